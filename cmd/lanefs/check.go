package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// lanefs check reads a volume and says what LaneFS makes of it. An image is opened for reading, through the stack that
// a mount would use; a mounted volume is read by its daemon.

// checkReport is what `lanefs check` prints.
type checkReport struct {
	Name string `json:"name"`
	*ext4.Inspection
	FreeSpace *freeReport `json:"free_space,omitempty"` // not for volumes that are refused, or have clusters
	Files     *fileReport `json:"files,omitempty"`
	Damage    []string    `json:"damage"`                    // the first of what could not be read
	Protected bool        `json:"write_protected,omitempty"` // the block device or the namespace refuses writes
}

// freeReport counts the runs of free blocks.
type freeReport struct {
	Extents uint64       `json:"extents"`
	Largest int64        `json:"largest_bytes"`
	Sizes   []sizeReport `json:"sizes"`
}

// sizeReport counts the runs of From bytes and more, but less than the next.
type sizeReport struct {
	From    int64  `json:"from_bytes"`
	Extents uint64 `json:"extents"`
	Bytes   int64  `json:"bytes"`
}

// fileReport counts the files and directories that have blocks, by the pieces they lie in.
type fileReport struct {
	Files  uint64     `json:"files"`
	Pieces uint64     `json:"pieces"`
	Whole  uint64     `json:"in_one_piece"`
	Most   fileExtent `json:"most_pieces"`
}

type fileExtent struct {
	Inode  uint32 `json:"inode"`
	Pieces int    `json:"pieces"`
	Bytes  int64  `json:"bytes"`
}

const (
	maxDamage    = 10                     // lines of it
	tellInterval = 200 * time.Millisecond // between two reports of progress
	checkTimeout = 5 * time.Minute        // for the next report, or the answer
)

func checkCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "check [--json] DIR|IMAGE",
		Short: "print the features and state of a volume, and how LaneFS mounts it",
		Long: `Prints a volume's features, the state of its journal, its free space and how fragmented it is, and whether LaneFS
mounts it read-write, read-only or not at all, and why. DIR is a mount of LaneFS, IMAGE a volume that is not mounted, or a PCI
function. Nothing is written. The command does not repair, and checks less than e2fsck does.

The exit status is that of fsck(8): 0 if LaneFS mounts the volume and no error was found, 4 if the volume is damaged or needs e2fsck first,
8 if LaneFS refuses it or it cannot be read, 16 for wrong arguments.`,
		Args: exactly("DIR|IMAGE"),
		RunE: func(c *cobra.Command, args []string) error {
			bar := &progressBar{out: c.ErrOrStderr(), what: "inodes"}
			r, err := check(args[0], bar, c.ErrOrStderr())
			bar.clear()
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), "check", r)
			} else {
				err = r.print(c.OutOrStdout())
			}
			if code := r.status(); err == nil && code != 0 {
				return &exitError{status: code}
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// needsFsck says whether e2fsck must see the volume.
func (r *checkReport) needsFsck() bool { return r.Damaged || len(r.Damage) > 0 }

// status is what the command ends with: that of fsck(8).
func (r *checkReport) status() int {
	switch {
	case r.needsFsck():
		return fsckErrors
	case r.Mount == ext4.Refused:
		return fsckOperational
	}
	return 0
}

// check reads a mount or an image.
func check(arg string, bar *progressBar, errs io.Writer) (*checkReport, error) {
	// Another user's mount answers root with EACCES.
	if st, err := os.Stat(arg); errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.EACCES) && mountedThere(arg) || err == nil && st.IsDir() {
		m, err := ourMount(arg)
		if err != nil {
			return nil, err
		}
		r, err := query(m, request{Op: "check"}, checkTimeout, bar.show)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", arg, err)
		}
		return r.Check, nil
	}
	cfg := mountConfig{Config: mountopt.Config{GPU: "host", ReadOnly: true}}
	if err := cfg.take(arg); err != nil {
		return nil, err
	}
	s, err := openDevice(&cfg, warnings(errs))
	if err != nil {
		return nil, err
	}
	r, err := s.check(arg, bar)
	return r, errors.Join(err, s.Close())
}

// check reads what is on a device that is not mounted.
func (s *stack) check(arg string, bar *progressBar) (*checkReport, error) {
	in, vol, err := ext4.Inspect(s.disk())
	if err != nil {
		return nil, err
	}
	r := &checkReport{Name: arg, Inspection: in, Damage: []string{}, Protected: slices.ContainsFunc(splitList(arg), isProtected)}
	r.protect(s.protection())
	s.vol = vol // Close closes it
	if vol != nil {
		r.survey(vol, func(p progress) bool { bar.show(p); return true })
	}
	return r, nil
}

// protect notes that a namespace refuses writes, and why; nothing for an empty reason.
func (r *checkReport) protect(why string) {
	if why == "" {
		return
	}
	r.Protected, r.Reasons = true, append(r.Reasons, why)
	if r.Mount == ext4.ReadWrite {
		r.Mount = ext4.ReadOnly
	}
}

// protection says that a drive's namespace refuses writes, and what lifts that; it is empty if it takes them, and for software controllers, whose
// namespaces say what they were opened for.
func (s *stack) protection() string {
	for _, u := range s.all() {
		if _, soft := u.ctl.(*softctl.Controller); !soft && u.dev.Info().ReadOnly {
			return fmt.Sprintf("namespace %d of %s is write-protected (nvme set-feature --namespace-id=%[1]d --feature-id=0x84 --value=0 on the kernel's driver lifts that, unless it is for good)",
				u.cfg.namespace(), u.cfg.Device)
		}
	}
	return ""
}

// isProtected says whether a block device refuses writes. Opening it for reading does not tell.
func isProtected(arg string) bool {
	var cfg mountConfig
	if cfg.take(arg) != nil {
		return false
	}
	f, err := os.OpenFile(cfg.Device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	protected, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET)
	return err == nil && protected != 0
}

// mountedThere says whether anything is mounted at a directory that may not be looked into.
func mountedThere(arg string) bool {
	_, err := ourMount(arg)
	return err == nil
}

// check is what the daemon answers.
func (d *daemon) check(tell func(progress) bool) (*checkReport, error) {
	r := &checkReport{Name: d.cfg.Device, Inspection: d.stack.vol.Inspect(), Damage: []string{}}
	r.protect(d.stack.protection())
	waits := true // the command
	r.survey(d.stack.vol, func(p progress) bool {
		waits = tell(p)
		return waits && !d.ended.Load()
	})
	if !waits || d.ended.Load() {
		return nil, errors.New("the check was given up: the volume is being unmounted, or the command that asked has ended")
	}
	return r, nil
}

// survey counts what is free and how files lie. Damage does not end it.
func (r *checkReport) survey(v *ext4.FS, tell func(progress) bool) {
	bs := int64(v.BlockSize())
	free := &freeReport{}
	sizes := map[int]*sizeReport{}
	err := v.FreeExtents(func(n uint64) {
		k, from := 0, bs
		for ; n >= 4<<(2*k); k++ {
			from *= 4
		}
		if sizes[k] == nil {
			sizes[k] = &sizeReport{From: from}
		}
		sizes[k].Extents++
		sizes[k].Bytes += int64(n) * bs
		free.Extents++
		free.Largest = max(free.Largest, int64(n)*bs)
	})
	for k := 0; len(free.Sizes) < len(sizes); k++ {
		if sizes[k] != nil {
			free.Sizes = append(free.Sizes, *sizes[k])
		}
	}
	switch {
	case err == nil:
		r.FreeSpace = free
	case !errors.Is(err, ext4.ErrClusters):
		r.damaged(err)
	}

	files := &fileReport{}
	last := time.Now()
	err = v.FileExtents(func(ino uint32, blocks uint64, pieces int, err error) {
		if err != nil {
			r.damaged(err)
			return
		}
		files.Files++
		files.Pieces += uint64(pieces)
		if pieces == 1 {
			files.Whole++
		}
		if pieces > files.Most.Pieces {
			files.Most = fileExtent{ino, pieces, int64(blocks) * bs}
		}
	}, func(done, total uint64) bool {
		if time.Since(last) < tellInterval {
			return true
		}
		last = time.Now()
		return tell(progress{Done: done, Total: total})
	})
	if err != nil {
		r.damaged(err)
	}
	r.Files = files
}

func (r *checkReport) damaged(err error) {
	if len(r.Damage) < maxDamage {
		r.Damage = append(r.Damage, oneLine(err))
	}
}
