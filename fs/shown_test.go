package fs

import (
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// TestShown: who changes a directory, or a file's lists, sees that at once, whoever else looks at them at the same time.
func TestShown(t *testing.T) {
	m := newMount(t, Options{})
	dir, file := m.path("dir"), m.path("dir/file")
	require.NoError(t, os.Mkdir(dir, 0o755))
	write(t, file, "x")
	var stop atomic.Bool
	var others sync.WaitGroup
	defer others.Wait()
	defer stop.Store(true)
	for i := range 4 {
		others.Go(func() {
			var st unix.Stat_t
			for !stop.Load() {
				if i < 2 {
					_ = unix.Lstat(dir, &st)
					_ = unix.Lstat(file, &st)
				} else if d, err := os.ReadDir([]string{m.dir, dir}[i%2]); err == nil {
					for _, e := range d {
						_, _ = e.Info()
					}
				}
			}
		})
	}
	mode := func(path string) uint32 { return stat(t, path).Mode & 0o777 }
	changed := func(what, path string, before unix.Timespec) {
		t.Helper()
		st := stat(t, path)
		require.GreaterOrEqual(t, st.Ctim.Nano(), before.Nano(), what)
	}
	var now unix.Timespec
	tick := func() { require.NoError(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now)) }
	for i, end := 0, time.Now().Add(3*time.Second); time.Now().Before(end); i++ {
		mask := uint16(i % 8)
		list := binary.LittleEndian.AppendUint32(nil, 2)
		for _, e := range [][2]uint16{{1, 6}, {2, 6}, {4, 4}, {0x10, mask}, {0x20, 4}} {
			list = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(list, e[0]), e[1])
			list = binary.LittleEndian.AppendUint32(list, 5)
		}
		require.NoError(t, unix.Setxattr(file, ext4.XattrACLAccess, list, 0))
		require.Equal(t, 0o604|uint32(mask)<<3, mode(file))
		tick()
		require.NoError(t, unix.Setxattr(file, "user.a", []byte{byte(i)}, 0))
		changed("setxattr", file, now)
		tick()
		require.NoError(t, unix.Removexattr(file, "user.a"))
		changed("removexattr", file, now)
		tick()
		require.NoError(t, unix.Mkdir(dir+"/one", 0o755))
		changed("mkdir", dir, now)
		require.EqualValues(t, 3, stat(t, dir).Nlink)
		tick()
		require.NoError(t, unix.Rename(dir+"/one", dir+"/two"))
		changed("rename", dir, now)
		changed("what was renamed", dir+"/two", now)
		tick()
		require.NoError(t, unix.Rmdir(dir+"/two"))
		changed("rmdir", dir, now)
		require.EqualValues(t, 2, stat(t, dir).Nlink)
		tick()
		write(t, dir+"/three", "x")
		changed("create", dir, now)
		tick()
		require.NoError(t, unix.Link(file, dir+"/four"))
		changed("link", dir, now)
		changed("what was linked", file, now)
		tick()
		require.NoError(t, unix.Unlink(dir+"/four"))
		changed("unlink", dir, now)
		require.NoError(t, unix.Unlink(dir+"/three"))
	}
}
