package diff

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/internal/image"
)

// finish compares what a run left behind:
//
//  1. the two trees, as the two sides show them
//  2. the data profile's files with its model
//  3. after both are unmounted: what e2fsck finds in both, and how many inodes and blocks each uses
//  4. each image as the other side reads it: exactly the tree that its own side showed
func (r *run) finish() (*Failure, error) {
	trees := make([][]Entry, len(r.sides))
	for i, v := range r.sides {
		if v.Kind == "direct" {
			continue
		}
		var err error
		if trees[i], err = r.tree(v); err != nil {
			return r.problem("tree", err), nil
		}
	}
	if f := r.unmountAll(); f != nil {
		return f, nil
	}
	for _, v := range r.sides {
		if err := image.Check(v.image); err != nil {
			return r.differs("e2fsck", fmt.Sprintf("e2fsck: of %s's volume: %v", v.Kind, err)), nil
		}
	}
	for i, v := range r.sides {
		got, err := r.readBy(v)
		if err != nil {
			return r.problem("other reader", err), nil
		}
		if trees[i] == nil {
			trees[i] = got
			continue
		}
		c := comparison{exact: true}
		if v.WriteBack {
			c.grain = r.writeBackGrain()
		}
		if d := differ(trees[i], got, c); d != nil {
			return r.differs("other reader of "+v.Kind+"'s volume", d...), nil
		}
	}
	if d := notes(trees[0]); d != nil {
		return r.differs("tree", d...), nil
	}
	for _, p := range r.procs {
		if p.model != nil {
			if d := p.model.check(trees[0], p.root); d != nil {
				return r.differs("tree", d...), nil
			}
		}
	}
	if len(r.sides) == 1 {
		return nil, nil
	}
	for i := range trees {
		trees[i] = r.comparable(trees[i])
	}
	if d := differ(trees[0], trees[1], comparison{run: r.began}); d != nil {
		return r.differs("tree", d...), nil
	}
	return r.compareUse()
}

// writeBackGrain is how far the times that the kernel shows of a file on a write-back mount may lie from those on the
// volume: see accepted.
func (r *run) writeBackGrain() time.Duration {
	for _, p := range r.procs {
		for _, s := range p.steps {
			if s.Kind == OpOpen && s.Flags&unix.O_DIRECT != 0 {
				return 24 * time.Hour
			}
		}
	}
	if r.Volume.WholeSeconds {
		return time.Second + 3*clockGrain
	}
	return 3 * clockGrain
}

func notes(tree []Entry) []string {
	var d []string
	for _, e := range tree {
		if e.Note != "" {
			d = append(d, fmt.Sprintf("note: left: %s: %s", clip(e.Path), e.Note))
		}
	}
	return d
}

// readBy reads a volume through the side that did not write it.
func (r *run) readBy(v *volume) ([]Entry, error) {
	o := &volume{Side: Side{Kind: "kernel"}, image: v.image, dir: v.dir}
	if v.Kind == "kernel" {
		o.Kind = "lanefs"
	}
	if err := o.mount(true); err != nil {
		return nil, err
	}
	tree, err := r.tree(o)
	if uerr := o.unmount(); err == nil {
		err = uerr
	}
	return tree, err
}

// compareUse compares the free inodes and blocks of the two volumes. The inodes must be equal; the blocks depend on where
// directories and extent trees grew.
func (r *run) compareUse() (*Failure, error) {
	if r.Profile == ProfileShared {
		return nil, nil
	}
	var inodes, blocks [2]int64
	for i, v := range r.sides {
		out, err := exec.Command("dumpe2fs", "-h", v.image).Output()
		if err != nil {
			return nil, fmt.Errorf("dumpe2fs -h %q: %w", filepath.Base(v.image), err)
		}
		for line := range strings.Lines(string(out)) {
			name, value, _ := strings.Cut(line, ":")
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			switch name {
			case "Free inodes":
				inodes[i] = n
			case "Free blocks":
				blocks[i] = n
			}
		}
	}
	if inodes[0] != inodes[1] {
		return r.differs("use", fmt.Sprintf("use: free inodes: %d, %d", inodes[0], inodes[1])), nil
	}
	if d := blocks[0] - blocks[1]; max(d, -d) > 64+blocks[1]/20 {
		return r.differs("use", fmt.Sprintf("use: free blocks: %d, %d", blocks[0], blocks[1])), nil
	}
	return nil, nil
}
