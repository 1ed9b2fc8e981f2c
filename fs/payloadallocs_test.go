//go:build !race

// The race detector allocates, and drops some of what is pooled.

package fs

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/namespace/namespacetest"
	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// prepared is a READ and a WRITE as a ring brings them, to a file of size bytes on the whole stack.
type prepared struct {
	raw     measuredFS
	payload *exchange.Payload
	read    fuse.ReadIn
	write   fuse.WriteIn
}

func prepare(t testing.TB, image string, size int) *prepared {
	needFuse(t)
	dev := namespacetest.OpenLanes(t, image, softctl.Options{}, engine.Config{})
	vol, err := ext4.Open(dev, ext4.Options{})
	require.NoError(t, err)
	dir := t.TempDir()
	s, err := Mount(dir, vol, Options{})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(dir+"/file", make([]byte, size), 0o600))
	fd, err := unix.Open(dir+"/file", unix.O_RDONLY, 0)
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	payloads := vol.Payloads()
	pinned, err := payloads.Alloc(maxRequest)
	require.NoError(t, err)
	p := &prepared{raw: measuredFS{&rawFS{srv: s}, s.times}, payload: &exchange.Payload{Memory: pinned.Bytes(), Of: pinned}}
	p.read.NodeId, p.read.Size = st.Ino, uint32(size)
	p.write.NodeId, p.write.Size = st.Ino, uint32(size)
	t.Cleanup(func() {
		pinned.Release()
		payloads.Close()
		unix.Close(fd)
		require.NoError(t, s.Unmount())
		require.NoError(t, vol.Close())
		require.NoError(t, dev.Close())
	})
	return p
}

func (p *prepared) doRead(t testing.TB) {
	n, status := p.raw.ReadPayload(&p.read, p.payload)
	if !status.Ok() || n != int(p.read.Size) {
		t.Fatal(n, status)
	}
}

func (p *prepared) doWrite(t testing.TB) {
	n, status := p.raw.WritePayload(&p.write, p.payload)
	if !status.Ok() || n != p.write.Size {
		t.Fatal(n, status)
	}
}

func makeImage(t testing.TB, path string) {
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 64<<20))
	out, err := exec.Command("mkfs.ext4", "-q", "-F", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestPayloadAllocs: READs, and WRITEs over what is there, allocate nothing in all of the stack. The file's times are changed once in a
// while (volume.TimeGrain), which does.
func TestPayloadAllocs(t *testing.T) {
	for _, size := range []int{4096, 1 << 20} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			image := t.TempDir() + "/image"
			makeImage(t, image)
			p := prepare(t, image, size)
			p.doWrite(t)
			require.Zero(t, testing.AllocsPerRun(1000, func() { p.doRead(t) }), "READ")
			require.Zero(t, testing.AllocsPerRun(1000, func() { p.doWrite(t) }), "WRITE")
		})
	}
}

// BenchmarkPayload is READ and WRITE without the kernel.
func BenchmarkPayload(b *testing.B) {
	for name, size := range map[string]int{"4k": 4096, "1m": 1 << 20} {
		image := b.TempDir() + "/image"
		makeImage(b, image)
		p := prepare(b, image, size)
		b.Run("read-"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.doRead(b)
			}
		})
		b.Run("write-"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.doWrite(b)
			}
		})
	}
}
