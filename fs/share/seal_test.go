package share_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// TestSeals: what a client gets it can neither make longer, nor shorter, nor seal against the next one; and what is shared it
// cannot change, by whatever call.
func TestSeals(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := make([]byte, 3*mib)
	f := m.Write("file", data)
	c := dial(t, f)
	first := hello(t, c)
	var shared, private wire.MapReply
	one, err := c.Call(wire.TMap, 2, &wire.Map{}, &shared, 1, int(f.Fd()))
	require.NoError(t, err)
	two, err := c.Call(wire.TMap, 3, &wire.Map{Len: mib, Flags: wire.MapPrivate | wire.MapEmpty}, &private, 1, int(f.Fd()))
	require.NoError(t, err)
	var ring wire.RingReply
	three, err := c.Call(wire.TRing, 4, &wire.Ring{Entries: 8}, &ring, 3)
	require.NoError(t, err)
	defer wire.CloseAll(append(append(append(first, one...), two...), three...))
	for name, fd := range map[string]int{"notice board": first[0], "shared memory": one[0], "private memory": two[0], "ring": three[0]} {
		for _, seal := range []int{unix.F_SEAL_SEAL, unix.F_SEAL_GROW, unix.F_SEAL_SHRINK, unix.F_SEAL_WRITE, unix.F_SEAL_FUTURE_WRITE, unix.F_SEAL_EXEC} {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
			require.ErrorIs(t, err, unix.EPERM, "%s: seal %#x", name, seal)
		}
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(fd, &st))
		require.ErrorIs(t, unix.Ftruncate(fd, st.Size+1<<30), unix.EPERM, name)
		require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM, name)
		require.ErrorIs(t, unix.Fallocate(fd, 0, st.Size, 1<<30), unix.EPERM, name)
		if name == "private memory" || name == "ring" {
			continue
		}
		again, err := unix.Open("/proc/self/fd/"+itoa(fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil { // root may open it once more; that gives nothing
			defer unix.Close(again)
		} else {
			again = fd
		}
		for _, way := range []int{fd, again} {
			_, err = unix.Pwrite(way, []byte{1}, 0)
			require.ErrorIs(t, err, unix.EPERM, name)
			require.ErrorIs(t, unix.Fallocate(way, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), unix.EPERM, name)
			_, err = unix.Mmap(way, 0, 4096, unix.PROT_WRITE, unix.MAP_SHARED)
			require.ErrorIs(t, err, unix.EPERM, name)
		}
	}
	works(t, m.Open("file", os.O_RDWR), data) // the next program that maps the same memory
	works(t, m.Open("file", os.O_RDWR), data)
}
