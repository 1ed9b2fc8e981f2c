package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/fs/ext4"
)

// print writes the report for people.
func (r *checkReport) print(out io.Writer) error {
	bs := int64(r.BlockSize)
	label := ""
	if r.Label != "" {
		label = fmt.Sprintf(", label %q", r.Label)
	}
	fmt.Fprintf(out, "%s: ext4, UUID %s%s\n", r.Name, r.UUID, label)
	fmt.Fprintf(out, "size        %s in %d blocks of %d bytes; %s free, of that %s reserved for root; %d of %d inodes free\n",
		units.Bytes(int64(r.Blocks)*bs), r.Blocks, bs, units.Bytes(int64(r.Free)*bs), units.Bytes(int64(min(r.Reserved, r.Free))*bs), r.FreeInodes, r.Inodes)
	r.printFeatures(out)
	r.printJournal(out)
	if r.Errors.Marked || r.Errors.Count > 0 {
		fmt.Fprintf(out, "errors      %d recorded", r.Errors.Count)
		if !r.Errors.Last.IsZero() {
			fmt.Fprintf(out, ", the last on %s", r.Errors.Last.Format("2006-01-02 15:04:05"))
		}
		fmt.Fprintln(out)
	}
	if f := r.FreeSpace; f != nil {
		fmt.Fprintf(out, "free space  in %d runs, the largest %s\n", f.Extents, units.Bytes(f.Largest))
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, s := range f.Sizes {
			fmt.Fprintf(w, "            from\t%s\t%d runs\t%s\t\n", units.Bytes(s.From), s.Extents, units.Bytes(s.Bytes))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if f := r.Files; f != nil && f.Files > 0 {
		fmt.Fprintf(out, "files       %d with blocks, %d in one piece; %d pieces in all, at most %d (inode %d, %s)\n",
			f.Files, f.Whole, f.Pieces, f.Most.Pieces, f.Most.Inode, units.Bytes(f.Most.Bytes))
	}
	for _, d := range r.Damage {
		fmt.Fprintf(out, "damage      %s\n", d)
	}
	fmt.Fprintf(out, "LaneFS      %s\n", r.verdict())
	return nil
}

// verdict is what LaneFS makes of the volume, and what to do.
func (r *checkReport) verdict() string {
	switch why := strings.Join(r.Reasons, "; "); {
	case r.Mount == ext4.Refused:
		return "refuses it: " + why
	case r.Mount == ext4.ReadOnly:
		return "mounts it read-only: " + why
	case r.needsFsck():
		return "would mount it read-write, but it is damaged: run e2fsck -f on it first"
	case r.Protected:
		return "mounts it with -o ro only: the device is write-protected (blockdev --setrw lifts that)"
	}
	return "mounts it read-write"
}

// printFeatures lists the names by word, and marks what LaneFS cannot do.
func (r *checkReport) printFeatures(out io.Writer) {
	what := "features"
	for _, word := range []string{"compat", "incompat", "ro_compat"} {
		var names []string
		for _, f := range r.Features {
			if f.Word != word {
				continue
			}
			name := f.Name
			if f.Support != ext4.ReadWrite {
				name += fmt.Sprintf(" (%s)", f.Support)
			}
			names = append(names, name)
		}
		fmt.Fprintf(out, "%-11s %s: %s\n", what, word, strings.Join(names, ", "))
		what = ""
	}
}

func (r *checkReport) printJournal(out io.Writer) {
	j := r.Journal
	fmt.Fprintf(out, "journal     %s", j.State)
	if j.Blocks > 0 {
		fmt.Fprintf(out, ", %s", units.Bytes(int64(j.Blocks)*int64(r.BlockSize)))
	}
	if j.FastBlocks > 0 {
		fmt.Fprintf(out, ", of that %s for fast commits", units.Bytes(int64(j.FastBlocks)*int64(r.BlockSize)))
	}
	if j.Transactions > 0 {
		fmt.Fprintf(out, ", %d transactions of %d blocks", j.Transactions, j.Logged)
		if j.State == "in use" {
			fmt.Fprint(out, " recovered by this mount")
		} else {
			fmt.Fprint(out, " to recover")
		}
	}
	if j.Errno != 0 {
		fmt.Fprintf(out, ", aborted with errno %d", -j.Errno)
	}
	fmt.Fprintln(out)
}
