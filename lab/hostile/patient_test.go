package hostile

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// patient is a sample and its state before changes.
type patient struct {
	name   string
	image  *content
	seen   *tour
	fast   bool // its log has fast commits, which only a mount that writes shows
	before verdict
	clean  bool              // e2fsck can repair it
	whole  map[string]string // the files that it has after the repair
}

// treat mounts a copy for writing, changes it, and checks that its damage is not worse afterwards.
func (p *patient) treat(t *testing.T, what string, f func(*churn, string)) string {
	m := newMedium(p.image, false)
	c := &churn{touched: map[string]bool{}}
	var l mountLog
	how := "read-write"
	bounded(t, func() {
		v, err := ext4.Open(m, ext4.Options{Log: l.logger()})
		if err != nil {
			how = "refused for writing"
			t.Logf("refused for writing: %v", err)
			return
		}
		if v.ReadOnly() {
			how = "read-only"
		}
		c.v = v
		for _, d := range p.seen.dirs[:min(len(p.seen.dirs), 50)] {
			f(c, d)
		}
		c.try("sync", v.Sync())
		if err := v.Close(); err != nil {
			c.refused = append(c.refused, fmt.Errorf("close: %w", err)) // freeing may find corruption, too
		}
	})
	checkMedium(t, m)
	left := orphansLeft(m.snapshot())
	if how != "refused for writing" {
		checkErrors(t, c.refused, &l, left)
	}
	t.Logf("%s: %s, %d changes made, %d refused", what, how, c.done, len(c.refused))
	for _, line := range l.lines {
		t.Logf("%s: log: %s", what, line)
	}
	if len(m.written) == 0 {
		return how
	}
	if how == "read-only" {
		t.Errorf("%s: mounted read-only, but written to", what)
	}
	if why := misjudged[p.name]; why != "" {
		t.Logf("%s: not compared: %s", what, why)
		return how
	}
	after := m.snapshot()
	verdict := diagnose(t, after)
	w := worse(p.before, verdict)
	if left { // e2fsck -n does not process the list of orphans, and finds them as unattached
		w = slices.DeleteFunc(w, func(kind string) bool {
			return slices.ContainsFunc(ofOrphans, func(s string) bool { return strings.HasPrefix(kind, s) })
		})
	}
	if len(w) > 0 {
		t.Errorf("%s: e2fsck finds what it did not before: %q\nbefore: %v\nafter: %v", what, w, p.before, verdict)
	}
	if w, _, err := look(t, after); err != nil {
		t.Errorf("%s: does not mount any more: %v", what, err)
	} else {
		if !p.fast {
			c.compare(t, what+", as it is", p.seen.files, w.files)
		}
	}
	if !p.clean {
		return how
	}
	fixed, clean := repaired(t, after)
	if !clean {
		t.Errorf("%s: e2fsck -fy does not repair it any more", what)
		return how
	}
	if w, _, err := look(t, fixed); err == nil {
		c.compare(t, what+", repaired", p.whole, w.files)
	}
	return how
}

// orphansLeft reports whether the volume lists files that are to be freed: s_last_orphan, or orphan_present.
func orphansLeft(image *content) bool {
	sb := image.slice(disk.SuperblockOffset, disk.SuperblockSize)
	return binary.LittleEndian.Uint32(sb[0xe8:]) != 0 || disk.ROCompat(binary.LittleEndian.Uint32(sb[0x64:])).Has(disk.ROCompatOrphanPresent)
}

// ofOrphans matches what e2fsck -n prints about files without names.
var ofOrphans = []string{"Deleted inode has zero dtime", "Inode bitmap differences", "Block bitmap differences", "Directories count wrong"}

// compare requires that intact files that were not touched are unchanged.
func (c *churn) compare(t *testing.T, what string, before, after map[string]string) {
	t.Helper()
	n := 0
	for file, facts := range before {
		if after[file] == facts || c.below(file) {
			continue
		}
		if n++; n <= 5 {
			t.Errorf("%s: %s was %s, is %q", what, file, facts, after[file])
		}
	}
}

// below reports whether a file or a directory above it was touched.
func (c *churn) below(file string) bool {
	for ; file != "/"; file = path.Dir(file) {
		name, _, _ := strings.Cut(file, "~") // e2fsck's, for a name that was there twice
		if c.touched[name] {
			return true
		}
	}
	return false
}
