package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// store is a small file system that holds an image larger than itself, and a file that takes the rest of it.
type store struct {
	*place
	dir string
}

// newStore makes one of a few MiB: a tmpfs, or an ext4 of the kernel's.
func newStore(p *place, kind string) *store {
	s := &store{p, p.mkdir("store")}
	switch kind {
	case "tmpfs":
		if err := unix.Mount("tmpfs", s.dir, "tmpfs", 0, "size=24m"); err != nil {
			p.t.Skipf("needs root, to mount a small tmpfs: %v", err)
		}
	case "ext4":
		img := p.image("store.img", 32)
		if _, err := toolStatus("mount", "-o", "loop", img, s.dir); err != nil {
			p.t.Skipf("needs the kernel's ext4 on a loop device: %v", err)
		}
	}
	p.t.Cleanup(func() { unix.Unmount(s.dir, unix.MNT_DETACH) })
	return s
}

// volume is a sparse image whose journal has no blocks yet.
func (s *store) volume() string {
	img := filepath.Join(s.dir, "image")
	require.NoError(s.t, os.WriteFile(img, nil, 0o600))
	require.NoError(s.t, os.Truncate(img, 256<<20))
	tool(s.t, "mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=1,lazy_journal_init=1", img)
	return img
}

// fill takes all room that is left.
func (s *store) fill() {
	f, err := os.OpenFile(filepath.Join(s.dir, "filler"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(s.t, err)
	defer f.Close()
	for n := 1 << 20; n >= 4096; {
		if _, err = f.Write(make([]byte, n)); err != nil {
			require.ErrorIs(s.t, err, unix.ENOSPC)
			n /= 2
		}
	}
	require.NoError(s.t, f.Sync())
}

func (s *store) empty() { require.NoError(s.t, os.Remove(filepath.Join(s.dir, "filler"))) }

// writer writes files, and knows which of them are durable.
type writer struct {
	t     *testing.T
	dir   string
	acked map[string][]byte
	made  int
}

// file writes one durably, or fails with ENOSPC.
func (w *writer) file(size int) error {
	name := fmt.Sprint("f", len(w.acked))
	content := bytes.Repeat([]byte(name+" "), size/(len(name)+1)+1)[:size]
	err := func() error {
		f, err := os.Create(filepath.Join(w.dir, name))
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Write(content); err != nil {
			return err
		}
		return f.Sync()
	}()
	if err != nil {
		require.ErrorIs(w.t, err, unix.ENOSPC)
		return err
	}
	w.acked[name] = content
	return nil
}

// names makes n directories durably, or fails with ENOSPC.
func (w *writer) names(n int) error {
	w.made++
	err := func() error {
		for k := range n {
			if err := os.Mkdir(filepath.Join(w.dir, fmt.Sprintf("d%d-%d", w.made, k)), 0o700); err != nil {
				return err
			}
		}
		d, err := os.Open(w.dir)
		if err != nil {
			return err
		}
		defer d.Close()
		return d.Sync()
	}()
	if err != nil {
		require.ErrorIs(w.t, err, unix.ENOSPC)
	}
	return err
}

func (w *writer) check() {
	w.t.Helper()
	for name, want := range w.acked {
		got, err := os.ReadFile(filepath.Join(w.dir, name))
		require.NoError(w.t, err)
		require.True(w.t, bytes.Equal(want, got), "%s was durable, and is another now", name)
	}
}

func toolStatus(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		err = errors.New(strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// TestFullBackingStore: the file system that holds the image is full, with commits that have no room. Writers hear ENOSPC, stat, log and
// umount say why, the mount stays, and goes on when there is room; what was synced is there, also after kill -9.
func TestFullBackingStore(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, killed %v", kind, killed), func(t *testing.T) {
				t.Parallel() // each waits for a while that nothing happens
				p := newPlace(t)
				s := newStore(p, kind)
				img, mnt, log := s.volume(), p.mkdir("mnt"), p.path("log")
				p.ok("mount", "-o", "log="+log, img, mnt)
				w := &writer{t: t, dir: mnt, acked: map[string][]byte{}}
				for range 4 {
					require.NoError(t, w.file(1<<20))
				}
				r, err := p.stat(mnt)
				require.NoError(t, err)
				require.Nil(t, r.Full)

				open, err := os.Create(filepath.Join(mnt, "nameless"))
				require.NoError(t, err)
				defer open.Close()
				_, err = open.Write(make([]byte, 256<<10))
				require.NoError(t, err)
				require.NoError(t, os.Remove(open.Name()))

				began := time.Now()
				s.fill()
				require.Error(t, w.file(1<<20), "file data")
				for k := 0; w.names(100) == nil; k++ { // no data at all: it is the journal that finds no room
					require.Less(t, k, 1000, "never full")
				}
				require.Error(t, w.names(1), "changes are refused, too")
				w.check()
				out := p.ok("stat", mnt)
				require.Regexp(t, `(?m)^full +backing store full since .*: \d+ writes refused, commits waiting since .*; last: write of .* Capacity Exceeded`, out)
				require.NotContains(t, out, "read-only")
				why := p.fails("umount", mnt)
				require.Contains(t, why, "not unmounted: what was changed cannot be written")
				require.Contains(t, why, "Capacity Exceeded")
				require.True(t, p.mounted(mnt))
				w.check()
				require.NoError(t, open.Close()) // what it had cannot be given back now
				require.ErrorIs(t, os.Remove(filepath.Join(mnt, "f0")), unix.ENOSPC)

				if killed {
					r, err = p.stat(mnt)
					require.NoError(t, err)
					p.kill(r.PID)
					_, errs, err := p.run("umount", mnt)
					require.NoError(t, err, errs)
					s.empty()
					p.ok("mount", img, mnt)
					w.check()
				} else {
					s.empty()
					require.NoError(t, w.file(100<<10), "there is room again")
					var refused uint64
					p.eventually("the end of it in stat", func() bool {
						r, err := p.stat(mnt)
						require.NoError(t, err)
						refused = r.Full.Refused
						return r.Full.Since == nil && r.Full.Commits == nil && refused > 0
					})
					b, err := os.ReadFile(log)
					require.NoError(t, err)
					most := 1 + int(time.Since(began)/(10*time.Second)) // where nothing is refused for so long, on a busy machine, the next one is said again
					for _, line := range []string{"the backing store is full", "no space left for the image", "has refused no write for", "commits wait, and", "commits go on after"} {
						n := strings.Count(string(b), line)
						require.True(t, 1 <= n && n <= most && uint64(n) < refused, "%q in the log, %d times of %d refused writes:\n%s", line, n, refused, b)
					}
				}
				require.NoError(t, w.file(1<<20))
				p.ok("umount", mnt)
				fsck(t, img)
				p.ok("mount", img, mnt)
				w.check()
				p.ok("umount", mnt)
			})
		}
	}
}

// TestFullUnmountedOtherwise: umount(8) cannot be refused. The daemon stays until there is room, or is told to give up;
// then what was synced is there.
func TestFullUnmountedOtherwise(t *testing.T) {
	for _, room := range []bool{true, false} {
		t.Run(fmt.Sprintf("room %v", room), func(t *testing.T) {
			p := newPlace(t)
			s := newStore(p, "tmpfs")
			img, mnt := s.volume(), p.mkdir("mnt")
			p.ok("mount", "-o", "commit=300", img, mnt)
			r, err := p.stat(mnt)
			require.NoError(t, err)
			t.Cleanup(func() { // its mount may have gone
				if !gone(r.PID) {
					syscall.Kill(r.PID, syscall.SIGKILL)
				}
			})
			w := &writer{t: t, dir: mnt, acked: map[string][]byte{}}
			require.NoError(t, w.file(1<<20))
			s.fill()
			for k := range 300 { // more than the journal has blocks for
				require.NoError(t, os.Mkdir(filepath.Join(mnt, fmt.Sprint("d", k)), 0o700))
			}
			require.NoError(t, unix.Unmount(mnt, 0))
			said := func() bool { return strings.Contains(p.logs(mnt), "the daemon stays until there is room") }
			p.eventually("the daemon to say why it stays", said)
			require.False(t, gone(r.PID))
			if room {
				s.empty()
			} else {
				require.NoError(t, syscall.Kill(r.PID, syscall.SIGTERM))
			}
			p.eventually("the daemon's end", func() bool { return gone(r.PID) })
			if !room {
				require.NotContains(t, p.logs(mnt), "run e2fsck")
				require.Contains(t, p.logs(mnt), "gave up waiting for room: what was not synchronized is lost; make room, and mount it again")
				s.empty()
			}
			_, note, err := p.run("mount", img, mnt)
			require.NoError(t, err, "%s", note)
			require.NotContains(t, note, "read-only", "nothing is wrong with the volume")
			w.check()
			if _, err := os.Stat(filepath.Join(mnt, "d299")); room {
				require.NoError(t, err, "nothing is lost")
			}
			p.ok("umount", mnt)
			fsck(t, img)
		})
	}
}

// logs are the logs of a mount's daemons that are left.
func (p *place) logs(mnt string) (all string) {
	for _, f := range p.leftovers(mnt) {
		if b, err := os.ReadFile(f); err == nil {
			all += string(b)
		}
	}
	return all
}

// TestMountOfFullStore: a daemon was killed, and when its volume is to be mounted again there is no room to recover it. The error says where room is missing and advises that, or -o ro, which shows
// all that was synchronized; not e2fsck, which would empty the journal. Nothing is marked.
func TestMountOfFullStore(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			s := newStore(p, kind)
			img, mnt := s.volume(), p.mkdir("mnt")
			p.ok("mount", img, mnt)
			w := &writer{t: t, dir: mnt, acked: map[string][]byte{}}
			for range 300 {
				require.NoError(t, w.file(10))
			}
			r, err := p.stat(mnt)
			require.NoError(t, err)
			s.fill()
			p.kill(r.PID)
			_, errs, err := p.run("umount", mnt)
			require.NoError(t, err, errs)

			for range 2 {
				why := p.fails("mount", img, mnt)
				require.Contains(t, why, "recovering the journal: ")
				require.Contains(t, why, "; make room where it is stored, or mount it with -o ro; do not run e2fsck before there is room")
				require.Regexp(t, fmt.Sprintf(`; the file system at %q, of type %s, that holds %q has \S+ \S+ free$`, s.dir, kind, img), why)
			}
			p.ok("mount", "-o", "ro", img, mnt)
			w.check()
			p.ok("umount", mnt)
			s.empty()
			_, note, err := p.run("mount", img, mnt)
			require.NoError(t, err, note)
			require.Empty(t, note)
			w.check()
			require.NoError(t, w.file(10))
			p.ok("umount", mnt)
			fsck(t, img)
		})
	}
}

// TestCacheTooLarge: what cannot be is refused before anything is mounted, with what to do about it.
func TestCacheTooLarge(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 64), p.mkdir("mnt")
	require.Regexp(t, `cache=2147483648 does not fit into 1073741824 bytes of pinned memory: .* leaves \d+ for the metadata cache; give a smaller cache= or a larger pinned=$`,
		p.fails("mount", "-o", "cache=2G", img, mnt))
	require.Regexp(t, `8388608 bytes of pinned memory are too few for a volume with blocks of 4096: .*; give pinned=\d+M or more$`,
		p.fails("mount", "-o", "pinned=8M", img, mnt))
	p.ok("mount", "-o", "pinned=16M", img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.LessOrEqual(t, r.Pinned, int64(16<<20))
	p.ok("umount", mnt)
	p.ok("mount", "-o", "cache=2G,pinned=3G", img, mnt)
	p.ok("umount", mnt)
}
