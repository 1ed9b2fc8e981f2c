package mountopt

import (
	"fmt"
	"slices"
	"strings"

	near "github.com/lanefs/lanefs/cmd/lanefs/internal/nearest"
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
	for _, item := range split(lists) {
		if item == "" {
			continue
		}
		if err := parse(c, item); err != nil {
			return err
		}
	}
	return nil
}

// split cuts lists at their commas, but for those between GPUs.
func split(lists []string) (items []string) {
	for item := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		if _, ok := number(item); (ok || isDevice(item)) && len(items) > 0 && strings.HasPrefix(items[len(items)-1], "gpu=") {
			items[len(items)-1] += "," + item
			continue
		}
		items = append(items, item)
	}
	return items
}

// Known leaves out of the arguments of -o the options that are not in the table: mount -s asks for that.
func Known(lists ...string) (known []string) {
	for _, item := range split(lists) {
		if name, _, _ := strings.Cut(item, "="); Find(name) != nil {
			known = append(known, item)
		}
	}
	return known
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
	if meant := nearest(name); meant != "" {
		return fmt.Errorf("unknown option %q: did you mean %q? (lanefs mount --help lists all)", item, meant)
	}
	return fmt.Errorf("unknown option %q: see lanefs mount --help", item)
}

// nearest is the option that a mistyped name most likely means, empty if none is near.
func nearest(name string) string {
	var names []string
	for i := range table {
		if o := &table[i]; o.Kind != Prefix {
			names = append(names, o.Name)
		}
	}
	return near.Of(name, names)
}
