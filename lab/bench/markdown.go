package main

import (
	"strconv"
	"strings"
)

// readTables takes the figures from the tables of a document that put LaneFS, fuse2fs and the kernel's ext4 side by side, as -markdown prints
// them: a row's name ends with its unit, and of seconds fewer are better.
func readTables(text string) (all []line) {
	var columns map[string]int // of the table that we are in; nil: of another, or none
	for row := range strings.Lines(text) {
		row = strings.TrimSpace(row)
		if !strings.HasPrefix(row, "|") {
			columns = nil
			continue
		}
		cells := strings.Split(strings.Trim(row, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if cells[0] == "" {
			columns = header(cells)
			continue
		}
		cut := strings.LastIndex(cells[0], ", ")
		if columns == nil || cut < 0 {
			continue
		}
		l := line{Row: strings.ReplaceAll(cells[0][:cut], "`", ""), Unit: cells[0][cut+2:], Figures: map[string][]figure{}}
		l.LessIsBetter = l.Unit == "s"
		for system, i := range columns {
			if v, err := strconv.ParseFloat(strings.ReplaceAll(cells[min(i, len(cells)-1)], ",", ""), 64); err == nil {
				l.Figures[system] = []figure{{Value: v}}
			}
		}
		all = append(all, l)
	}
	return all
}

// header says which column is whose; nil if the table is none of the three.
func header(cells []string) map[string]int {
	found := map[string]int{}
	for i, c := range cells {
		for prefix, system := range map[string]string{"LaneFS": "lanefs", "fuse2fs": "fuse2fs", "kernel": "kernel"} {
			if strings.HasPrefix(c, prefix) {
				if _, twice := found[system]; twice {
					return nil
				}
				found[system] = i
			}
		}
	}
	if len(found) < 3 {
		return nil
	}
	return found
}
