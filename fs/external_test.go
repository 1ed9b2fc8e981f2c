package fs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// memory is a transfer's target in pinned memory.
type memory struct{ blockdev.Buffer }

func (m memory) Put(off int, p []byte) error { copy(m.Bytes()[off:], p); return nil }
func (m memory) Get(off int, p []byte) error { copy(p, m.Bytes()[off:]); return nil }
func (m memory) Zero(off, n int) error       { clear(m.Bytes()[off : off+n]); return nil }

// TestExternalSeesDirtyPages: a read without the kernel returns the bytes written last, also by a program that opened the file
// after the kernel had forgotten it.
func TestExternalSeesDirtyPages(t *testing.T) {
	m := newHandled(t, Options{WriteBack: true})
	path := m.path("file")
	write(t, path, "what was there")
	f, err := os.Open(path)
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	ext, err := m.srv.External(st.Ino, st.Mode, os.O_RDONLY)
	require.NoError(t, err)
	defer ext.Close()
	require.NoError(t, f.Close())
	m.forgotten(uint64(ext.Ino()))

	f, err = os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("what is new now"), 0)
	require.NoError(t, err)
	buf, err := m.dev.Alloc(4096)
	require.NoError(t, err)
	defer buf.Release()
	ts := []ext4.Transfer{{N: 4096, Mem: memory{buf}}}
	ext.Read(ts)
	require.NoError(t, ts[0].Err)
	require.Equal(t, "what is new now", string(buf.Bytes()[:ts[0].Done]))
}
