package fs

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// handled is a mount whose files are opened by handle.
type handled struct{ *mounted }

func newHandled(t *testing.T, opt Options, mkfs ...string) handled {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: open_by_handle_at needs CAP_DAC_READ_SEARCH, and dropping the kernel's caches root")
	}
	return handled{newMount(t, opt, mkfs...)}
}

// handle is the handle of a name.
func (m handled) handle(path string) unix.FileHandle {
	m.t.Helper()
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
	require.NoError(m.t, err)
	return h
}

// open opens a handle, and gives the path that the kernel has for it.
func (m handled) open(h unix.FileHandle) (*os.File, string, error) {
	m.t.Helper()
	at, err := unix.Open(m.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(m.t, err)
	defer unix.Close(at)
	fd, err := unix.OpenByHandleAt(at, h, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, "", err
	}
	path, err := os.Readlink(fmt.Sprint("/proc/self/fd/", fd))
	require.NoError(m.t, err)
	return os.NewFile(uintptr(fd), path), path, nil
}

// forgotten makes the kernel forget the mount's files, except those that are open.
func (m handled) forgotten(inos ...uint64) {
	m.t.Helper()
	require.Eventually(m.t, func() bool {
		require.NoError(m.t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0))
		for _, ino := range inos {
			if m.srv.nodes.knows(ino) {
				return false
			}
		}
		return true
	}, time.Minute, 10*time.Millisecond, "the kernel does not forget")
}

func inoOf(t *testing.T, path string) uint64 { return stat(t, path).Ino }

// fakeHandle is the handle of an inode as the kernel's FUSE makes it: its number, high half first, and its generation.
func fakeHandle(ino uint64, generation uint32) unix.FileHandle {
	const ino64Gen = 0x81 // FILEID_INO64_GEN
	var b [12]byte
	binary.NativeEndian.PutUint32(b[0:], uint32(ino>>32))
	binary.NativeEndian.PutUint32(b[4:], uint32(ino))
	binary.NativeEndian.PutUint32(b[8:], generation)
	return unix.NewFileHandle(ino64Gen, b[:])
}

func (m handled) requireText(h unix.FileHandle, text, path string) {
	m.t.Helper()
	f, at, err := m.open(h)
	require.NoError(m.t, err)
	defer f.Close()
	b := make([]byte, 100)
	n, _ := f.Read(b)
	require.Equal(m.t, text, string(b[:n]))
	if path != "" {
		require.Equal(m.t, path, at)
	}
}

// TestHandles: a handle finds its file after the kernel has forgotten it and under any name, and nothing after the file was deleted.
func TestHandles(t *testing.T) {
	modes := map[string]Options{"through": {}, "writeback": {WriteBack: true}}
	for name, opt := range modes {
		t.Run(name, func(t *testing.T) {
			m := newHandled(t, opt)
			deep := m.path("a", "b", "c")
			require.NoError(t, os.MkdirAll(deep, 0o755))
			require.NoError(t, os.Mkdir(m.path("elsewhere"), 0o755))
			path := filepath.Join(deep, "file")
			write(t, path, "text")
			h, dir := m.handle(path), m.handle(deep)
			inos := func() []uint64 { return []uint64{inoOf(t, path), inoOf(t, deep), inoOf(t, m.path("a", "b"))} }
			all := inos()

			m.requireText(h, "text", "")
			m.forgotten(all...)
			m.requireText(h, "text", "")
			m.forgotten(all...)
			f, at, err := m.open(dir)
			require.NoError(t, err)
			require.Equal(t, deep, at, "the kernel has found the names of a directory")
			names, err := f.Readdirnames(-1)
			require.NoError(t, err)
			require.Equal(t, []string{"file"}, names)
			require.NoError(t, f.Close())
			m.requireText(h, "text", path)

			// Other names, other directories.
			require.NoError(t, os.Rename(path, m.path("elsewhere", "renamed")))
			require.NoError(t, os.Rename(deep, m.path("elsewhere", "moved")))
			m.forgotten(all[:2]...)
			m.requireText(h, "text", "")
			f, at, err = m.open(dir)
			require.NoError(t, err)
			require.Equal(t, m.path("elsewhere", "moved"), at)
			require.NoError(t, f.Close())
			path = m.path("elsewhere", "renamed")
			require.NoError(t, os.Link(path, m.path("second")))
			require.NoError(t, os.Remove(path))
			m.forgotten(all[0])
			m.requireText(h, "text", "")

			// A file without names, while it is open and after.
			f, err = os.Open(m.path("second"))
			require.NoError(t, err)
			require.NoError(t, os.Remove(m.path("second")))
			m.requireText(h, "text", "")
			require.NoError(t, f.Close())
			m.forgotten(all[0])
			_, _, err = m.open(h)
			require.ErrorIs(t, err, unix.ESTALE)

			// Another file with the number.
			var again string // in the same directory, for the number
			for i := 0; again == ""; i++ {
				require.Less(t, i, 1000, "no file gets the inode that is free")
				p := m.path("elsewhere", "moved", fmt.Sprint("new", i))
				write(t, p, "another's")
				if inoOf(t, p) == all[0] {
					again = p
				}
			}
			_, _, err = m.open(h)
			require.ErrorIs(t, err, unix.ESTALE)
			m.forgotten(all[0])
			_, _, err = m.open(h)
			require.ErrorIs(t, err, unix.ESTALE)
			m.requireText(m.handle(again), "another's", "")
			require.NoError(t, os.RemoveAll(m.path("elsewhere", "moved")))
			_, _, err = m.open(dir)
			require.ErrorIs(t, err, unix.ESTALE)
		})
	}
}

// TestHandlesAfterRemount: a handle is valid as long as the file exists.
func TestHandlesAfterRemount(t *testing.T) {
	m := newHandled(t, Options{})
	require.NoError(t, os.Mkdir(m.path("dir"), 0o755))
	write(t, m.path("dir", "file"), "text")
	write(t, m.path("dir", "gone"), "text")
	root, dir, file, gone := m.handle(m.dir), m.handle(m.path("dir")), m.handle(m.path("dir", "file")), m.handle(m.path("dir", "gone"))
	m.unmount()
	v := m.volume
	v.open()
	again := handled{mountVolume(t, v, Options{})}
	again.requireText(file, "text", "")
	for h, path := range map[*unix.FileHandle]string{&root: again.dir, &dir: again.path("dir")} {
		f, at, err := again.open(*h)
		require.NoError(t, err)
		require.Equal(t, path, at)
		require.NoError(t, f.Close())
	}
	require.NoError(t, os.Remove(again.path("dir", "gone")))
	_, _, err := again.open(gone)
	require.ErrorIs(t, err, unix.ESTALE)
}

// TestMadeUpHandles: a number that is no file's is a stale handle, and no damage.
func TestMadeUpHandles(t *testing.T) {
	m := newHandled(t, Options{}, "-E", "lazy_itable_init=0")
	require.NoError(t, m.vol.Sync())
	for ino := range uint64(200) {
		if ino == fakeRootNode {
			continue
		}
		for _, gen := range []uint32{0, 1} {
			f, path, err := m.open(fakeHandle(ino, gen))
			if err == nil { // lost+found
				require.Equal(t, m.path("lost+found"), path)
				require.NoError(t, f.Close())
				continue
			}
			require.ErrorIs(t, err, unix.ESTALE, "inode %d", ino)
		}
	}
	for _, ino := range []uint64{39999, 40000, 40001, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 11, 1<<63 + 1} {
		_, path, err := m.open(fakeHandle(ino, 0))
		require.ErrorIs(t, err, unix.ESTALE, "inode %d: %q", ino, path)
	}
	require.False(t, m.vol.ReadOnly())
}

const fakeRootNode = 1

// TestHandlesWhileFilesComeAndGo opens handles of files that others make, remove and make again with the same numbers.
func TestHandlesWhileFilesComeAndGo(t *testing.T) {
	m := newHandled(t, Options{})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p := m.path(fmt.Sprint("f", i%5))
			os.WriteFile(p, []byte("text"), 0o600)
			os.Remove(p)
			os.Mkdir(p, 0o700)
			os.Remove(p)
		}
	}()
	write(t, m.path("probe"), "")
	first := inoOf(t, m.path("probe"))
	found := 0
	for i := range 5000 {
		ino := first + uint64(i%8)
		in, err := m.vol.ByNumber(uint32(ino))
		if err != nil {
			require.ErrorIs(t, err, ext4.ErrStale)
			continue
		}
		found++
		in.Put()
		f, _, err := m.open(fakeHandle(ino, in.Generation()))
		if err == nil {
			require.NoError(t, f.Close())
		}
	}
	close(stop)
	<-stopped
	require.NotZero(t, found)
}
