package mountopt

import (
	"fmt"
	"slices"
	"strings"
)

// Find gives the option with this name, nil if there is none. The name of a [Prefix] option has more behind it.
func Find(name string) *Option {
	if i, ok := byName[name]; ok {
		return &table[i]
	}
	for i := range table {
		if o := &table[i]; o.Kind == Prefix && strings.HasPrefix(name, o.Name) {
			return o
		}
	}
	return nil
}

// All are the options, in the order of help and manual page.
func All() []*Option {
	all := make([]*Option, len(table))
	for i := range table {
		all[i] = &table[i]
	}
	return all
}

// Parse sets c from the arguments of -o, each a list with commas. Of options that exclude one another the last counts, as with
// mount(8). Its error names the option and says what is wanted.
func Parse(c *Config, lists ...string) error {
	for _, item := range strings.Split(strings.Join(lists, ","), ",") {
		if item == "" {
			continue
		}
		if err := parse(c, item); err != nil {
			return err
		}
	}
	return nil
}

// parse sets c from one option.
func parse(c *Config, item string) error {
	name, text, valued := strings.Cut(item, "=")
	o := Find(name)
	switch {
	case o == nil:
		return unknown(item, name)
	case o.Kind == Prefix:
		return nil
	case o.Kind == Flag && valued:
		return fmt.Errorf("option %q takes no value", item)
	case o.Kind != Flag && !valued && !o.bare:
		return fmt.Errorf("option %q needs a value: %s", item, o.Syntax())
	}
	var v value
	if valued {
		var err error
		if v, err = o.read(text); err != nil {
			return fmt.Errorf("option %q: %w", item, err)
		}
	}
	if o.Layer == Kernel {
		c.Kernel = slices.DeleteFunc(c.Kernel, func(k string) bool { return k == o.Name || slices.Contains(o.undoes, k) })
		if !o.holds {
			c.Kernel = append(c.Kernel, o.Name)
		}
	}
	if o.set == nil {
		return nil
	}
	if err := o.set(c, v); err != nil {
		return fmt.Errorf("option %q: %w", item, err)
	}
	return nil
}

// unknown is the error for an option that is not in the table.
func unknown(item, name string) error {
	if near := nearest(name); near != "" {
		return fmt.Errorf("unknown option %q: did you mean %q? (lanefs mount --help lists all)", item, near)
	}
	return fmt.Errorf("unknown option %q: see lanefs mount --help", item)
}

// nearest is the option that a mistyped name most likely means, empty if none is near.
func nearest(name string) string {
	if len(name) > 2*len("noauto_da_alloc") {
		return ""
	}
	best, at := "", 3
	if len(name) < 5 { // in a short name two mistakes leave little of it
		at = 2
	}
	for i := range table {
		if o := &table[i]; o.Kind != Prefix {
			if d := distance(strings.ToLower(name), o.Name); d < at && d < len(o.Name)-1 {
				best, at = o.Name, d
			}
		}
	}
	return best
}

// distance counts the letters that have to be put in, left out, changed or exchanged with their neighbour to make b of a
// (the optimal string alignment distance).
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
