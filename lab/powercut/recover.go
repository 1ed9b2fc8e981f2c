package powercut

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"

	"github.com/lanefs/lanefs/lab/internal/image"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// This file has the ways to recover a cut volume. Each returns the recovered tree.

// ours recovers with LaneFS, walks, and unmounts; e2fsck must then find nothing wrong. rec, if not nil, records it.
func ours(path string, l *Layout, rec *media.Recorder) (*Tree, error) {
	t, err := look(path, stackOptions{lba: l.LBA, discard: l.Discard, recorder: rec})
	if err != nil {
		return nil, fmt.Errorf("LaneFS's recovery: %w", err)
	}
	if err := image.Check(path); err != nil {
		return nil, fmt.Errorf("after LaneFS's recovery: %w", err)
	}
	return t, nil
}

// readOnly returns the tree of a read-only mount. The image is opened so that it cannot be written.
func readOnly(path string, l *Layout) (*Tree, error) {
	t, err := look(path, stackOptions{lba: l.LBA, readOnly: true})
	if err != nil {
		return nil, fmt.Errorf("LaneFS, read-only: %w", err)
	}
	return t, nil
}

func look(path string, o stackOptions) (*Tree, error) {
	var said strings.Builder
	o.log = slog.New(slog.NewTextHandler(&said, nil))
	s, err := openStack(path, o)
	if err != nil {
		return nil, fmt.Errorf("mount: %w\n%s", err, said.String())
	}
	t, err := walk(s.vol)
	if err == nil && !o.readOnly && s.vol.ReadOnly() {
		err = errors.New("the volume turned read-only")
	}
	if err = errors.Join(err, s.close()); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, said.String())
	}
	return t, nil
}

// fsckRepair recovers with e2fsck -fy, and looks at the volume without writing. truncated are the inodes whose attributes
// e2fsck may have dropped: see image.Repair.
func fsckRepair(path string, l *Layout) (t *Tree, truncated map[uint64]bool, err error) {
	var allowed []*regexp.Regexp
	if l.Miscounts {
		allowed = append(allowed, miscount)
	}
	r, err := image.Repair(path, allowed...)
	if err != nil {
		return nil, nil, fmt.Errorf("e2fsck's recovery: %w", err)
	}
	if r.Damage {
		return nil, nil, fmt.Errorf("e2fsck found damage:\n%s", r.Output)
	}
	if err := image.Check(path); err != nil {
		return nil, nil, fmt.Errorf("after e2fsck's recovery: %w", err)
	}
	if t, err = readOnly(path, l); err != nil {
		return nil, nil, fmt.Errorf("after e2fsck's recovery: %w", err)
	}
	return t, r.Truncated, nil
}

// miscount is what e2fsck prints when it corrects i_blocks. On volumes with inline data it did so once in 32,000 cuts, for an
// inode that is correct after LaneFS's and after the kernel's recovery of the same medium: e2fsck -fn checks both.
var miscount = regexp.MustCompile(`Inode \d+, i_blocks is \d+, should be \d+\.  Fix\? yes\n`)

// restoreXattrs gives the inodes that e2fsck truncated the attributes back that it dropped.
func (t *Tree) restoreXattrs(want *Tree, truncated map[uint64]bool) {
	for ino := range truncated {
		if n, w := t.Nodes[ino], want.Nodes[ino]; n != nil && w != nil && len(n.Xattrs) < len(w.Xattrs) {
			n.Xattrs = w.Xattrs
		}
	}
}

// kernel recovers with the kernel's ext4 over a loop device, mounted at dir.
func kernel(path, dir string) (*Tree, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var t *Tree
	err = image.WithKernel(f, dir, func() (err error) {
		t, err = kernelTree(dir)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the kernel's recovery: %w", err)
	}
	if err := image.Check(path); err != nil {
		return nil, fmt.Errorf("after the kernel's recovery: %w", err)
	}
	return t, nil
}
