package fs

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// TestNoAtime: what is read by a descriptor with O_NOATIME, of open(2) or of fcntl(2), keeps its access time: a file by the page cache, by
// direct I/O and without the kernel, and a directory. The same without the flag changes it.
func TestNoAtime(t *testing.T) {
	const size = 4096
	aligned := func(t *testing.T, _ *mounted, f *os.File) {
		// For O_DIRECT: a page of its own.
		b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		defer func() { require.NoError(t, unix.Munmap(b)) }()
		n, err := f.ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, size, n)
	}
	external := func(t *testing.T, m *mounted, f *os.File) {
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		require.NoError(t, err)
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(int(f.Fd()), &st))
		ext, err := m.srv.External(st.Ino, st.Mode, flags)
		require.NoError(t, err)
		defer ext.Close()
		buf, err := m.dev.Alloc(size)
		require.NoError(t, err)
		defer buf.Release()
		ts := []ext4.Transfer{{N: size, Mem: memory{buf}}}
		ext.Read(ts)
		require.NoError(t, ts[0].Err)
		require.Equal(t, size, ts[0].Done)
	}
	for name, how := range map[string]struct {
		flags int
		dir   bool
		later bool // the flag comes by fcntl(2)
		read  func(*testing.T, *mounted, *os.File)
	}{
		"pages":     {read: aligned},
		"fcntl":     {later: true, read: aligned},
		"direct":    {flags: unix.O_DIRECT, read: aligned},
		"external":  {read: external},
		"directory": {dir: true, read: func(t *testing.T, _ *mounted, f *os.File) { _, err := f.Readdirnames(-1); require.NoError(t, err) }},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMount(t, Options{})
			for _, keep := range []bool{true, false} {
				path := m.path(map[bool]string{true: "keeps", false: "changes"}[keep])
				if how.dir {
					require.NoError(t, os.Mkdir(path, 0o755))
				} else {
					write(t, path, string(make([]byte, size)))
				}
				past := time.Unix(1, 0)
				require.NoError(t, os.Chtimes(path, past, past))
				if !how.dir {
					dropPages(t, path)
				}
				flags := how.flags
				if keep && !how.later {
					flags |= unix.O_NOATIME
				}
				f, err := os.OpenFile(path, flags, 0)
				require.NoError(t, err)
				if keep && how.later {
					_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_NOATIME)
					require.NoError(t, err)
				}
				how.read(t, m, f)
				var st unix.Statx_t
				require.NoError(t, unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_ATIME, &st))
				require.NoError(t, f.Close())
				require.Equal(t, keep, st.Atime.Sec == 1, "access time %d", st.Atime.Sec)
			}
		})
	}
}
