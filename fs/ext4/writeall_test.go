package ext4_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// bufferTarget is memory of transfers.
type bufferTarget struct{ blockdev.Buffer }

func (m bufferTarget) Put(off int, p []byte) error { copy(m.Bytes()[off:], p); return nil }
func (m bufferTarget) Get(off int, p []byte) error { copy(p, m.Bytes()[off:]); return nil }
func (m bufferTarget) Zero(off, n int) error       { clear(m.Bytes()[off : off+n]); return nil }

// mixed is a file on a device: 256 KiB of bytes, 64 KiB of hole, 64 KiB preallocated, and 5,000 bytes.
type mixed struct {
	dev   *blockdev.TestDevice
	v     *ext4.FS
	root  *ext4.Inode
	f     *ext4.Inode
	mem   bufferTarget
	want  []byte
	image string
}

const (
	mixedHole     = 256 << 10
	mixedAhead    = mixedHole + 64<<10
	mixedTail     = mixedAhead + 64<<10
	mixedSize     = mixedTail + 5000
	mixedMemory   = 1 << 20
	fallocKeeping = unix.FALLOC_FL_KEEP_SIZE
)

func newMixed(t *testing.T, mkfs ...string) *mixed {
	t.Helper()
	m := &mixed{image: disktest.Make(t, "32M", mkfs...), want: make([]byte, mixedSize)}
	rand.NewChaCha8([32]byte{7}).Read(m.want[:mixedHole])
	rand.NewChaCha8([32]byte{8}).Read(m.want[mixedTail:])
	var err error
	m.dev, err = blockdev.OpenFile(m.image, 512)
	require.NoError(t, err)
	t.Cleanup(func() { m.dev.Close() })
	m.v, err = ext4.Open(m.dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	m.root, err = m.v.Root()
	require.NoError(t, err)
	m.f, err = m.root.Create("f", unix.S_IFREG|0o600, 0, 0, 0, 0)
	require.NoError(t, err)
	for _, r := range [][2]int64{{0, mixedHole}, {mixedTail, mixedSize}} {
		_, err = m.f.Write(r[0], m.want[r[0]:r[1]])
		require.NoError(t, err)
	}
	require.NoError(t, m.f.Fallocate(fallocKeeping, mixedAhead, mixedTail-mixedAhead))
	require.NoError(t, m.v.Sync())
	buf, err := m.dev.Alloc(mixedMemory)
	require.NoError(t, err)
	m.mem = bufferTarget{buf}
	rand.NewChaCha8([32]byte{9}).Read(buf.Bytes())
	return m
}

// wrote says that a transfer has been carried out.
func (m *mixed) wrote(x ext4.Transfer) {
	m.want = append(m.want, make([]byte, max(int(x.Off)+x.N-len(m.want), 0))...)
	copy(m.want[x.Off:], m.mem.Bytes()[x.At:x.At+x.N])
}

// check closes the volume and compares the file after a second mount.
func (m *mixed) check(t *testing.T) {
	t.Helper()
	requireContent(t, m.f, m.want)
	m.f.Put()
	m.root.Put()
	m.mem.Release()
	require.NoError(t, m.v.Close())
	require.Zero(t, m.dev.Outstanding(), "buffers that were not released")
	disktest.Fsck(t, m.image)
	v, _ := open(t, m.image, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	f, err := root.Lookup("f")
	require.NoError(t, err)
	defer f.Put()
	requireContent(t, f, m.want)
}

// TestWriteAll: writes of every kind in one call, in any order. Those that replace blocks are planned, all others are not, and the file has
// them all.
func TestWriteAll(t *testing.T) {
	for _, mkfs := range [][]string{{"-b", "4096"}, {"-b", "1024", "-O", "^metadata_csum,^64bit"}} {
		t.Run(fmt.Sprint(mkfs), func(t *testing.T) {
			m := newMixed(t, mkfs...)
			const kib = 1 << 10
			bs := int(m.v.BlockSize())
			rows := []struct {
				what    string
				x       ext4.Transfer
				planned bool
			}{
				{"a block", ext4.Transfer{Off: 0, N: bs, At: 0}, true},
				{"its neighbour", ext4.Transfer{Off: int64(bs), N: bs, At: 100 * kib}, true},
				{"many blocks, memory at a multiple of 4", ext4.Transfer{Off: 32 * kib, N: 64 * kib, At: 200*kib + 12}, true},
				{"memory at no multiple of 4", ext4.Transfer{Off: 96 * kib, N: 4 * kib, At: 300*kib + 2}, false},
				{"within a block", ext4.Transfer{Off: 104*kib + 1, N: 100, At: 304 * kib}, false},
				{"no whole number of blocks", ext4.Transfer{Off: 112 * kib, N: bs + 1, At: 312 * kib}, false},
				{"no bytes", ext4.Transfer{Off: 128 * kib, N: 0, At: 0}, false},
				{"blocks and hole", ext4.Transfer{Off: mixedHole - 4*kib, N: 8 * kib, At: 320 * kib}, false},
				{"hole", ext4.Transfer{Off: mixedHole + 16*kib, N: 4 * kib, At: 332 * kib}, false},
				{"preallocated", ext4.Transfer{Off: mixedAhead + 8*kib, N: 8 * kib, At: 340 * kib}, false},
				{"the last whole block", ext4.Transfer{Off: mixedTail, N: 4 * kib, At: 352 * kib}, true},
				{"the block of the end", ext4.Transfer{Off: mixedTail + 4*kib, N: 4 * kib, At: 360 * kib}, false},
				{"behind the end", ext4.Transfer{Off: mixedTail + 40*kib, N: 4 * kib, At: 368 * kib}, false},
			}
			rng := rand.New(rand.NewPCG(3, uint64(bs)))
			rng.Shuffle(len(rows), func(i, k int) { rows[i], rows[k] = rows[k], rows[i] })
			var ts []ext4.Transfer
			want := 0
			for _, r := range rows {
				r.x.Mem = m.mem
				ts = append(ts, r.x)
				if r.planned {
					want++
				}
			}
			require.Equal(t, want, m.f.WriteAll(ts))
			for k, r := range rows {
				require.NoError(t, ts[k].Err, r.what)
				require.Equal(t, r.x.N, ts[k].Done, r.what)
				m.wrote(ts[k])
			}
			m.check(t)
		})
	}
}

// TestWriteAllOnce: many overwrites are one call of the device, under one look at the file, and the times move with it.
func TestWriteAllOnce(t *testing.T) {
	m := newMixed(t)
	var ts []ext4.Transfer
	for k := range 64 {
		ts = append(ts, ext4.Transfer{Off: int64(k*13%64) << 12, N: 4096, Mem: m.mem, At: k << 12})
	}
	time.Sleep(10 * time.Millisecond)
	before, commands := m.f.Attr(), 0
	m.dev.Observe(func(e blockdev.Event) {
		if e.Op == blockdev.OpWrite {
			commands++
		}
	})
	require.Equal(t, 64, m.f.WriteAll(ts))
	m.dev.Observe(nil)
	require.Equal(t, 64, commands)
	after := m.f.Attr()
	require.True(t, after.Mtime.After(before.Mtime), "%v, then %v", before.Mtime, after.Mtime)
	require.Equal(t, after.Mtime, after.Ctime)
	for _, x := range ts {
		require.NoError(t, x.Err)
		m.wrote(x)
	}
	m.check(t)
}

// TestWriteAllFails: of writes in one call those fail whose blocks do, and no others; when the device goes away in the middle, those
// that it did not carry out.
func TestWriteAllFails(t *testing.T) {
	m := newMixed(t)
	var ts []ext4.Transfer
	for k := range 16 {
		ts = append(ts, ext4.Transfer{Off: int64(k) << 13, N: 8192, Mem: m.mem, At: k << 13})
	}
	var where blockdev.Bytes
	m.dev.Observe(func(e blockdev.Event) {
		if e.Op == blockdev.OpWrite && where == 0 {
			where = e.Off + 5<<13
		}
	})
	require.Equal(t, 16, m.f.WriteAll(ts))
	m.dev.Observe(nil)
	for _, x := range ts {
		m.wrote(x)
	}
	rand.NewChaCha8([32]byte{10}).Read(m.mem.Bytes())
	remove := m.dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Off: where, Len: 4096})
	require.Equal(t, 16, m.f.WriteAll(ts))
	remove()
	for k, x := range ts {
		if k == 5 {
			require.ErrorIs(t, x.Err, blockdev.ErrFault)
			require.Zero(t, x.Done)
			continue
		}
		require.NoError(t, x.Err, "write %d", k)
		require.Equal(t, 8192, x.Done)
		m.wrote(x)
	}
	requireContent(t, m.f, m.want)

	rand.NewChaCha8([32]byte{11}).Read(m.mem.Bytes())
	remove = m.dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Skip: 7})
	m.f.WriteAll(ts)
	remove()
	for k, x := range ts {
		if k >= 7 {
			require.ErrorIs(t, x.Err, blockdev.ErrFault, "write %d", k)
			require.Zero(t, x.Done)
			continue
		}
		require.NoError(t, x.Err, "write %d", k)
		m.wrote(x)
	}
	m.check(t)
}

// TestWriteAllBesideTruncation: blocks that are being written belong to the file until they are: who shortens the file or punches a hole into
// it waits. What another file has in blocks that were freed stays.
func TestWriteAllBesideTruncation(t *testing.T) {
	for what, shorten := range map[string]func(*ext4.Inode) error{
		"truncate": func(f *ext4.Inode) error { return resize(f, 0) },
		"punch": func(f *ext4.Inode) error {
			return f.Fallocate(unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, mixedHole)
		},
	} {
		t.Run(what, func(t *testing.T) {
			m := newMixed(t)
			var ts []ext4.Transfer
			for k := range 16 {
				ts = append(ts, ext4.Transfer{Off: int64(k) << 12, N: 4096, Mem: m.mem, At: k << 12})
			}
			held, release := m.dev.Hold(blockdev.Fault{Op: blockdev.OpWrite, Skip: 3})
			wrote, short := make(chan int), make(chan error, 1)
			go func() { wrote <- m.f.WriteAll(ts) }()
			<-held
			go func() { short <- shorten(m.f) }()
			select {
			case err := <-short:
				t.Errorf("the file was shortened under the writes: %v", err)
				short <- err
			case <-time.After(20 * time.Millisecond):
			}
			release()
			require.Equal(t, 16, <-wrote)
			require.NoError(t, <-short)
			for _, x := range ts {
				require.NoError(t, x.Err)
			}
			other, err := m.root.Create("other", unix.S_IFREG|0o600, 0, 0, 0, 0)
			require.NoError(t, err)
			full := bytes.Repeat([]byte("other"), mixedHole/5)
			_, err = other.Write(0, full)
			require.NoError(t, err)
			require.NotEqual(t, 16, m.f.WriteAll(ts), "those blocks are gone")
			requireContent(t, other, full)
			other.Put()
			if what == "truncate" {
				m.want = nil
			} else {
				clear(m.want[:mixedHole])
			}
			for _, x := range ts {
				require.NoError(t, x.Err)
				m.wrote(x)
			}
			m.check(t)
		})
	}
}

// TestWriteAllRefused: a volume that is read-only, and a file that is immutable, get nothing.
func TestWriteAllRefused(t *testing.T) {
	m := newMixed(t)
	require.NoError(t, m.f.SetFlags(m.f.Flags()|ext4.FlagImmutable))
	ts := []ext4.Transfer{{Off: 0, N: 4096, Mem: m.mem}, {Off: 8192, N: 4096, Mem: m.mem}}
	require.Zero(t, m.f.WriteAll(ts))
	for _, x := range ts {
		require.ErrorIs(t, x.Err, ext4.ErrPerm)
	}
	require.NoError(t, m.f.SetFlags(m.f.Flags()&^ext4.FlagImmutable))
	m.check(t)
	v, _ := open(t, m.image, ext4.Options{ReadOnly: true})
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	f, err := root.Lookup("f")
	require.NoError(t, err)
	defer f.Put()
	require.Zero(t, f.WriteAll(ts))
	for _, x := range ts {
		require.ErrorIs(t, x.Err, ext4.ErrReadOnly)
	}
}
