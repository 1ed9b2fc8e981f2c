package main

import (
	"encoding/json"
	"os"
	"slices"
)

// figure is what one run of a row gave.
type figure struct {
	Value    float64 `json:"value"`              // in the row's unit
	CPU      float64 `json:"cpu_us,omitempty"`   // of the daemon for each operation, µs
	Switches float64 `json:"switches,omitempty"` // context switches of the daemon for each operation
}

// results are figures by row and system, one a run.
type results map[string]map[string][]figure

func (r results) add(row, system string, f figure) {
	if r[row] == nil {
		r[row] = map[string][]figure{}
	}
	r[row][system] = append(r[row][system], f)
}

// median of what of takes from a row's figures; false: there are none.
func (r results) median(row, system string, of func(figure) float64) (float64, bool) {
	var v []float64
	for _, f := range r[row][system] {
		v = append(v, of(f))
	}
	if len(v) == 0 {
		return 0, false
	}
	return median(v), true
}

func (f figure) value() float64    { return f.Value }
func (f figure) cpu() float64      { return f.CPU }
func (f figure) switched() float64 { return f.Switches }

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// times says how many times as fast one system is as another in a row.
func (r row) times(one, other float64) float64 {
	if r.lessIsBetter {
		one, other = other, one
	}
	return one / other
}

// write stores all figures as JSON.
func (r results) write(path string, rows []row) error {
	var all []line
	for _, row := range rows {
		all = append(all, line{row.name, row.unit, row.lessIsBetter, r[row.name]})
	}
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
