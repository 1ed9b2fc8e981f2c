package main

import (
	"fmt"
	"slices"
	"strings"
)

// aim is what a row is to reach; 0: nothing is said.
type aim struct {
	row                   string
	fuse2fs, kernel, null float64 // times as fast, at least
	cpu                   float64 // µs of the daemon's an operation, at most
	most                  float64 // of the row's unit
}

// aims are for the transport that LaneFS chooses by itself, on two quiet CPUs.
var aims = []aim{
	{row: "sequential write 1 MiB", kernel: 1, null: 0.85},
	{row: "sequential read 1 MiB", kernel: 1, null: 0.85},
	{row: "random read 4 KiB, O_DIRECT", fuse2fs: 2.5, kernel: 1.5, null: 0.7, cpu: 15},
	{row: "random write 4 KiB, O_DIRECT", fuse2fs: 2.5, kernel: 1.5, null: 0.7, cpu: 15},
	{row: "random read 4 KiB, O_DIRECT, 4 jobs", fuse2fs: 3},
	{row: "random write 4 KiB, O_DIRECT, 4 jobs", fuse2fs: 3},
	{row: "fsync: append 4 KiB, 8 writers", kernel: 1},
	{row: "fsync: 1,000 new files, each", kernel: 1},
	{row: "create 2,000 files", fuse2fs: 5, kernel: 0.25},
	{row: "list 2,000 files", fuse2fs: 5, kernel: 0.25},
	{row: "remove 2,000 files", fuse2fs: 4, kernel: 0.25},
	{row: "tar x of 5,000 files, syncfs", fuse2fs: 4},
	{row: "git clone and status of 5,000 files", fuse2fs: 4},
	{row: "sqlite3, 10,000 inserts in WAL mode", fuse2fs: 4},
	{row: "cp -a of Go's source tree, syncfs", fuse2fs: 4, kernel: 0.5},
	{row: "hog: random read 4 KiB, O_DIRECT", fuse2fs: 1},
	{row: "hog: cp -a of a part of it, syncfs", fuse2fs: 1},
	{row: "idle mount", most: 0.1},
}

// aimed is the table of the aims beside each machine's figures.
func aimed(machines [][]line) *table {
	t := &table{head: []string{"work", "× fuse2fs", "× kernel", "of null", "other"}}
	for _, a := range aims {
		var fuse2fs, kernel, null, other []string
		for _, all := range machines {
			k := slices.IndexFunc(all, func(l line) bool { return l.Row == a.row })
			if k < 0 {
				continue
			}
			l := all[k]
			fuse2fs = append(fuse2fs, least("fuse2fs", l, a.fuse2fs)...)
			kernel = append(kernel, least("kernel", l, a.kernel)...)
			null = append(null, least("null", l, a.null)...)
			if v, ok := l.median("lanefs", figure.cpu); ok && a.cpu > 0 {
				other = append(other, bold(fmt.Sprintf("%.0f µs", v), v > a.cpu))
			}
			if v, ok := l.median("lanefs", figure.value); ok && a.most > 0 {
				other = append(other, bold(number(v)+" "+l.Unit, v > a.most))
			}
		}
		if fuse2fs == nil && kernel == nil && null == nil && other == nil {
			continue
		}
		most := ""
		switch {
		case a.cpu > 0:
			most = fmt.Sprintf("%g µs of CPU", a.cpu)
		case a.most > 0:
			most = fmt.Sprintf("at most %g", a.most)
		}
		t.add(a.row, beside(fmt.Sprintf("%g", a.fuse2fs), fuse2fs), beside(fmt.Sprintf("%g", a.kernel), kernel),
			beside(fmt.Sprintf("%.0f %%", 100*a.null), null), beside(most, other))
	}
	return t
}

// least is how LaneFS compares with a system, if that is aimed at.
func least(system string, l line, want float64) []string {
	v, ok := l.against(system)
	if want == 0 || !ok {
		return nil
	}
	return []string{bold(ratio(system, l), v < want)}
}

func bold(text string, missed bool) string {
	if missed {
		return "**" + text + "**"
	}
	return text
}

func beside(want string, have []string) string {
	if have == nil {
		return ""
	}
	return want + ": " + strings.Join(have, ", ")
}
