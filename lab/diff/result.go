package diff

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Result is what an Op returned.
type Result struct {
	Errno  unix.Errno
	Ret    int64
	Data   []byte
	Names  []string
	Note   string // a violation that the worker itself found
	Probes []Probe
}

// Probe is the attributes of a file that an Op touches, after it, and which times it changed.
type Probe struct {
	What  string // which file: "parent of Path", …
	Errno unix.Errno
	Stat  Stat
	// Changed has a bit for each time that differs from the one before the Op. Grain is set if a time may be equal only
	// because it was changed within the same tick before.
	Changed Times
	Grain   bool
}

// Times is a set of time stamps.
type Times uint8

// The bits of Times.
const (
	Atime Times = 1 << iota
	Mtime
	Ctime
)

func (t Times) String() string {
	s := ""
	for i, c := range "amc" {
		if t&(1<<i) != 0 {
			s += string(c)
		}
	}
	return "[" + s + "]"
}

// Stat is the attributes that do not depend on where a file lies.
type Stat struct {
	Mode, UID, GID uint32
	Nlink          uint64
	Rdev           uint64
	Size           int64
	// Times that utimensat(2) set; those of the run itself are zero.
	Atime, Mtime unix.Timespec
	// Order is -1, 0 or 1: the modification time lies before, at or after the change time; 0 if utimensat(2) set one. It is
	// compared where both sides have just changed the modification time, and must be 0 on the left or as on the right.
	Order int
}

func (r Result) String() string {
	s := fmt.Sprintf("%d", r.Ret)
	if r.Errno != 0 {
		s = errnoName(r.Errno)
	}
	if r.Note != "" {
		s += " NOTE " + r.Note
	}
	return s
}

func errnoName(e unix.Errno) string {
	if e == 0 {
		return "ok"
	}
	return unix.ErrnoName(e)
}

// compare returns the differences of two results of an Op, one line each. A line begins with a word for the kind of
// difference.
func compare(l, r Result) []string {
	var d []string
	add := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	if l.Errno != r.Errno {
		add("errno: %s, %s", errnoName(l.Errno), errnoName(r.Errno))
	}
	if l.Note != "" {
		add("note: left: %s", l.Note)
	}
	if r.Note != "" {
		add("note: right: %s", r.Note)
	}
	if len(d) > 0 {
		return d
	}
	if l.Ret != r.Ret {
		add("ret: %d, %d", l.Ret, r.Ret)
	}
	if !bytes.Equal(l.Data, r.Data) {
		add("data: %s", diffBytes(l.Data, r.Data))
	}
	if !slices.Equal(l.Names, r.Names) {
		add("names: %s", diffNames(l.Names, r.Names))
	}
	if len(l.Probes) != len(r.Probes) {
		add("probes: %d, %d", len(l.Probes), len(r.Probes))
		return d
	}
	for i := range l.Probes {
		d = append(d, compareProbes(&l.Probes[i], &r.Probes[i])...)
	}
	return d
}

func compareProbes(a, b *Probe) []string {
	var d []string
	add := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	if a.Errno != b.Errno {
		add("stat of %s: %s, %s", a.What, errnoName(a.Errno), errnoName(b.Errno))
		return d
	}
	if a.Stat.Order != b.Stat.Order && a.Stat.Order != 0 && a.Changed&b.Changed&Mtime != 0 && !a.Grain && !b.Grain {
		add("times of %s: mtime against ctime: %d, %d", a.What, a.Stat.Order, b.Stat.Order)
	}
	x, y := a.Stat, b.Stat
	x.Order, y.Order = 0, 0
	if x != y {
		add("attributes of %s: %s, %s", a.What, x, y)
	}
	if a.Changed != b.Changed && !a.Grain && !b.Grain {
		add("times of %s: changed %s, %s", a.What, a.Changed, b.Changed)
	}
	return d
}

func (s Stat) String() string {
	return fmt.Sprintf("{mode %#o nlink %d owner %d:%d rdev %#x size %d atime %d.%d mtime %d.%d}", s.Mode, s.Nlink, s.UID, s.GID,
		s.Rdev, s.Size, s.Atime.Sec, s.Atime.Nsec, s.Mtime.Sec, s.Mtime.Nsec)
}

func diffBytes(l, r []byte) string {
	at := 0
	for at < len(l) && at < len(r) && l[at] == r[at] {
		at++
	}
	end := 0
	for end < len(l)-at && end < len(r)-at && l[len(l)-1-end] == r[len(r)-1-end] {
		end++
	}
	show := func(b []byte) []byte { return b[min(at, len(b)):min(at+8, len(b))] }
	return fmt.Sprintf("%d bytes, %d bytes; they differ from byte %d to %d: %x..., %x...", len(l), len(r), at, len(l)-end,
		show(l), show(r))
}

func diffNames(l, r []string) string {
	only := func(a, b []string) string {
		in := map[string]bool{}
		for _, s := range b {
			in[s] = true
		}
		var out []string
		for _, s := range a {
			if !in[s] {
				out = append(out, clip(s))
			}
		}
		if len(out) > 5 {
			out = append(out[:5], fmt.Sprintf("and %d more", len(out)-5))
		}
		return strings.Join(out, " ")
	}
	return fmt.Sprintf("%d, %d; only left: %s; only right: %s", len(l), len(r), only(l, r), only(r, l))
}
