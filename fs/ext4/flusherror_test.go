package ext4_test

import (
	"log/slog"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// TestFlushFails has the device fail one flush, whatever asks for it, and then say that all is well, as Linux does with an image that it
// has lost pages of. Every question whether something is durable is answered no, then and always; the volume is read-only and marked, until
// e2fsck has looked.
func TestFlushFails(t *testing.T) {
	type volume struct {
		v    *ext4.FS
		root *ext4.Inode
		f    *ext4.Inode // durable, and written over since
	}
	for name, ask := range map[string]func(*volume) []error{
		"fsync":              func(s *volume) []error { return []error{s.f.Fsync(false)} },
		"fdatasync, a flush": func(s *volume) []error { return []error{s.f.Fsync(true)} },
		"fsync of what has not changed": func(s *volume) []error {
			return []error{s.root.Fsync(false)}
		},
		"fsync of a new file": func(s *volume) []error {
			f, err := s.root.Create("new", unix.S_IFREG|0o600, 0, 0, 0, 0)
			if err == nil {
				err = f.Fsync(false)
				f.Put()
			}
			return []error{err}
		},
		"sync": func(s *volume) []error { return []error{s.v.Sync()} },
		"many at once": func(s *volume) []error {
			errs := make([]error, 20)
			var all sync.WaitGroup
			for i := range errs {
				all.Go(func() {
					if i%2 == 0 {
						errs[i] = s.f.Fsync(true)
					} else {
						errs[i] = s.root.Fsync(false)
					}
				})
			}
			all.Wait()
			return errs
		},
	} {
		for kind, mkfs := range map[string][]string{"journal": nil, "no journal": {"-O", "^has_journal"}} {
			t.Run(name+", "+kind, func(t *testing.T) {
				img := disktest.Make(t, "16M", mkfs...)
				dev, err := blockdev.OpenFile(img, 512)
				require.NoError(t, err)
				s := &volume{}
				s.v, err = ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), CommitInterval: time.Hour})
				require.NoError(t, err)
				s.root, err = s.v.Root()
				require.NoError(t, err)
				s.f, err = s.root.Create("f", unix.S_IFREG|0o600, 0, 0, 0, 0)
				require.NoError(t, err)
				_, err = s.f.Write(0, make([]byte, 64<<10))
				require.NoError(t, err)
				require.NoError(t, s.v.Sync())
				_, err = s.f.Write(0, make([]byte, 64<<10))
				require.NoError(t, err)

				dev.Inject(blockdev.Fault{Op: blockdev.OpFlush, Times: 1})
				for _, err := range ask(s) {
					require.ErrorIs(t, err, blockdev.ErrFault)
				}
				for range 2 {
					for _, i := range []*ext4.Inode{s.f, s.root} {
						for _, dataOnly := range []bool{true, false} {
							err := i.Fsync(dataOnly)
							require.ErrorIs(t, err, jbd2.ErrAborted)
							require.ErrorIs(t, err, blockdev.ErrFault)
						}
					}
					require.ErrorIs(t, s.v.Sync(), blockdev.ErrFault)
				}
				require.True(t, s.v.ReadOnly())
				_, err = s.root.Create("another", unix.S_IFREG|0o600, 0, 0, 0, 0)
				require.ErrorIs(t, err, ext4.ErrReadOnly)
				s.f.Put()
				s.root.Put()
				require.ErrorIs(t, s.v.Close(), blockdev.ErrFault, "the last chance to say so")
				require.NoError(t, dev.Close())
				requireMarked(t, img)
				check := exec.Command("e2fsck", "-fp", img)
				out, _ := check.CombinedOutput()
				require.LessOrEqual(t, check.ProcessState.ExitCode(), 1, "%s", out)
				disktest.Fsck(t, img)
			})
		}
	}
}
