package mountopt

import (
	"fmt"
	"slices"
	"strings"
)

// Kind says how the value of an option is written.
type Kind int

const (
	Flag   Kind = iota // no value
	Choice             // one of Values
	Number             // a decimal number from Low to High
	Size               // bytes, with an optional k, M or G, from Low on
	Text               // what set takes
	Prefix             // the name is the beginning of many: x-systemd.automount. Whatever follows is accepted
)

// Layer says which layer carries an option out.
type Layer int

const (
	Volume Layer = iota // fs/ext4
	FUSE                // fs
	Kernel              // the kernel's VFS
	Lanes               // nvmeq, blockdev, gpu
	Share               // fs/share, fs/vram
	Daemon              // cmd/lanefs
	Tuning              // the kernel's ext4: accepted, without effect
	Fstab               // mount(8), systemd, fsck: accepted, without effect
	nLayers
)

// titles are the headings of the layers' options in help and manual page.
var titles = [nLayers]string{
	Volume: "The volume", FUSE: "The mount", Kernel: "The kernel, as with any mount", Lanes: "The lanes and the controller",
	Share: "Files as device memory", Daemon: "The daemon",
	Tuning: "Tuning of the kernel's ext4: accepted, without effect", Fstab: "For other readers of /etc/fstab: accepted, without effect",
}

// about says more than the heading where an option by itself has nothing to say.
var about = map[Layer]string{
	Tuning: "These tell the kernel's ext4 how to go about its work (ext4(5)). No file reads differently for them, and nothing that was synced is less safe: " +
		"flushes are sent in any case, and i_version is always kept.",
	Fstab: "mount(8), systemd and fsck read these.",
}

// Option is an entry of the table.
type Option struct {
	Name    string
	Kind    Kind
	Values  []string // of a Choice
	Low     int64    // of a Number or a Size, in Unit
	High    int64    // of a Number
	Unit    string   // such as "seconds"; a Size has bytes
	Default string   // what holds without the option, in words; empty: Help says it, or there is nothing to say
	Arg     string   // stands for the value in help; empty: made from Kind
	Layer   Layer
	Help    string // one line
	More    string // sentences for the manual page

	bare   bool     // the value may be left out
	undoes []string // of a Flag: options that end with it
	holds  bool     // of a Kernel option: it holds without being asked for, and only undoes others
	want   string   // what the value must be, in an error; empty: made from Kind
	set    func(*Config, value) error
}

// value is what follows the = of an option.
type value struct {
	text string
	n    int64 // of a Number or a Size
}

// Ignored says whether the option is accepted without effect.
func (o *Option) Ignored() bool { return o.Layer == Tuning || o.Layer == Fstab }

// Undoes are the options that end with this one: "atime" undoes "noatime".
func (o *Option) Undoes() []string { return o.undoes }

// arg stands for the value in help.
func (o *Option) arg() string {
	switch {
	case o.Arg != "":
		return o.Arg
	case o.Kind == Choice:
		return strings.Join(o.Values, "|")
	case o.Kind == Number:
		return "N"
	case o.Kind == Size:
		return "SIZE"
	}
	return ""
}

// Syntax is the option as it is written: "commit=SECONDS".
func (o *Option) Syntax() string {
	switch {
	case o.Kind == Flag:
		return o.Name
	case o.Kind == Prefix:
		return o.Name + "…"
	case o.bare:
		return o.Name + "[=" + o.arg() + "]"
	}
	return o.Name + "=" + o.arg()
}

// limits are the range and the default, in words: "1 to 64; default 4".
func (o *Option) limits() string {
	var parts []string
	switch {
	case o.Kind == Number && !o.Ignored():
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%d to %d %s", o.Low, o.High, o.Unit)))
	case o.Kind == Size && o.Low > 1:
		parts = append(parts, shortSize(o.Low)+" or more")
	}
	if o.Default != "" {
		parts = append(parts, "default "+o.Default)
	}
	return strings.Join(parts, "; ")
}

// needs says what a value must be, in an error.
func (o *Option) needs() string {
	switch {
	case o.want != "":
		return o.want
	case o.Kind == Choice:
		return oneOf(o.Values)
	case o.Kind == Number && o.Ignored():
		return "a number"
	case o.Kind == Number:
		return fmt.Sprintf("a number from %d to %d", o.Low, o.High)
	case o.Kind == Size && o.Low > 1:
		return fmt.Sprintf("a size such as 256M, %s or more", shortSize(o.Low))
	}
	return "a size such as 256M"
}

// oneOf joins names: "a, b or c".
func oneOf(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// read reads the value of an option.
func (o *Option) read(text string) (v value, err error) {
	v.text = text
	ok := true
	switch o.Kind {
	case Choice:
		ok = slices.Contains(o.Values, text)
	case Number:
		v.n, ok = number(text)
		ok = ok && v.n >= o.Low && v.n <= o.High
	case Size:
		v.n, ok = size(text)
		ok = ok && v.n >= o.Low
	}
	if !ok {
		return v, fmt.Errorf("want %s", o.needs())
	}
	return v, nil
}
