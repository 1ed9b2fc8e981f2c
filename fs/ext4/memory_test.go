package ext4_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// slowDevice is a device whose medium takes its time.
type slowDevice struct {
	*blockdevtest.PinnedDevice
	delay time.Duration
}

func (d *slowDevice) Do(reqs ...*blockdev.Request) error {
	time.Sleep(d.delay)
	return d.PinnedDevice.Do(reqs...)
}

func smallPool(t *testing.T, img string, pinned int64) *blockdevtest.PinnedDevice {
	t.Helper()
	dev, err := blockdev.OpenFile(img, 512)
	require.NoError(t, err)
	return blockdevtest.Pinned(t, dev, pinned)
}

// TestManySlowReaders: 1,600 readers of 1 MiB each at once, of a device that is slow and may have 64 MiB of memory. All get their bytes.
func TestManySlowReaders(t *testing.T) {
	img := disktest.Make(t, "256M")
	ns := smallPool(t, img, 64<<20)
	dev := &slowDevice{ns, 0}
	v, err := ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	root, err := v.Root()
	require.NoError(t, err)
	const size = 32 << 20
	want := make([]byte, size)
	rand.NewChaCha8([32]byte{5}).Read(want)
	f, err := root.Create("f", unix.S_IFREG|0o600, 0, 0, 0, 0)
	require.NoError(t, err)
	for off := 0; off < size; off += 1 << 20 {
		_, err = f.Write(int64(off), want[off:off+1<<20])
		require.NoError(t, err)
	}
	require.NoError(t, f.Fsync(false))
	dev.delay = 5 * time.Millisecond
	var wg sync.WaitGroup
	for k := range 1600 {
		wg.Go(func() {
			n := 1 << 20
			if k%3 == 0 {
				n = 4096
			}
			off := k * 7919 % (size - n)
			d, err := f.Read(int64(off), n)
			if err != nil {
				t.Errorf("reader %d: %v", k, err)
				return
			}
			time.Sleep(time.Millisecond) // the reader of the answer is slow, too
			if !bytes.Equal(d.Bytes(), want[off:off+n]) {
				t.Errorf("reader %d has other bytes", k)
			}
			d.Release()
		})
	}
	wg.Wait()
	dev.delay = 0
	f.Put()
	root.Put()
	require.NoError(t, v.Close())
	require.NoError(t, ns.Close())
	disktest.Fsck(t, img)
}

// TestSmallPool does all that goes with files, from many goroutines, with 16 MiB of pinned memory: far more is wanted at once. Nothing
// fails, and nothing is lost.
func TestSmallPool(t *testing.T) {
	img := disktest.Make(t, "256M")
	ns := smallPool(t, img, 16<<20)
	v, err := ext4.Open(ns, ext4.Options{Log: disktest.Logger(func(line string) { t.Errorf("logged: %s", line) }), CommitInterval: 100 * time.Millisecond})
	require.NoError(t, err)
	root, err := v.Root()
	require.NoError(t, err)
	var wg sync.WaitGroup
	for g := range 48 {
		wg.Go(func() {
			if err := churn(root, g); err != nil {
				t.Errorf("goroutine %d: %v", g, err)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, ns.Pinned(), int64(16<<20))
	require.Nil(t, v.Held())
	root.Put()
	require.NoError(t, v.Close())
	require.NoError(t, ns.Close())
	disktest.Fsck(t, img)
}

// churn creates, writes, reads, renames, truncates and removes files in a directory of its own.
func churn(root *ext4.Inode, g int) error {
	rng := rand.New(rand.NewPCG(uint64(g), 13))
	dir, err := root.Mkdir(fmt.Sprint("d", g), 0o755, 0, 0)
	if err != nil {
		return fmt.Errorf("mkdir: %w", err)
	}
	defer dir.Put()
	p := make([]byte, 1<<20+4096)
	rand.NewChaCha8([32]byte{byte(g)}).Read(p)
	for round := range 12 {
		name := fmt.Sprint("f", round)
		f, err := dir.Create(name, unix.S_IFREG|0o600, 0, 0, 0, 0)
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		off, n := rng.Int64N(3<<20), 1+rng.IntN(len(p))
		for _, step := range []struct {
			what string
			do   func() error
		}{
			{"write", func() error { _, err := f.Write(off, p[:n]); return err }},
			{"small files", func() error { return smallFiles(dir, round) }},
			{"read", func() error {
				d, err := f.Read(off, n)
				if err != nil {
					return err
				}
				defer d.Release()
				if !bytes.Equal(d.Bytes(), p[:n]) {
					return fmt.Errorf("%d other bytes at %d", n, off)
				}
				return nil
			}},
			{"fsync", func() error { return f.Fsync(round%2 == 0) }},
			{"truncate", func() error { size := off + int64(n)/2; _, err := f.SetAttr(ext4.SetAttr{Size: &size}); return err }},
			{"read into memory", func() error {
				m := &target{b: make([]byte, n+16)}
				var ts []ext4.Transfer
				for at := 0; len(ts) < 2; at = n/4 + 4 {
					x := ext4.Transfer{Off: off + 3, N: n / 4, Mem: m, At: at}
					x.At += int(x.Off-int64(at)+1) & 3 // so that no part of it can go by DMA
					ts = append(ts, x)
				}
				f.ReadInto(ts)
				for _, x := range ts {
					if x.Err != nil {
						return x.Err
					}
					if from := int(x.Off - off); !bytes.Equal(m.b[x.At:x.At+x.Done], p[from:from+x.Done]) {
						return fmt.Errorf("%d other bytes at %d", x.Done, x.Off)
					}
				}
				return nil
			}},
		} {
			if err := step.do(); err != nil {
				return fmt.Errorf("round %d: %s: %w", round, step.what, err)
			}
		}
		f.Put()
		if round%3 == 0 {
			if err := dir.Unlink(name); err != nil {
				return fmt.Errorf("unlink: %w", err)
			}
		}
	}
	return nil
}

func smallFiles(dir *ext4.Inode, round int) error {
	for k := range 20 {
		f, err := dir.Create(fmt.Sprintf("small-%d-%d", round, k), unix.S_IFREG|0o600, 0, 0, 0, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(int64(k), []byte("small"))
		f.Put()
		if err != nil {
			return err
		}
	}
	return nil
}

// target is memory of a program; none of it can be reached by DMA.
type target struct{ b []byte }

func (m *target) Slice(off, n int) blockdev.Slice { panic("not whole blocks") }
func (m *target) Put(off int, p []byte) error     { copy(m.b[off:], p); return nil }
func (m *target) Get(off int, p []byte) error     { copy(p, m.b[off:]); return nil }
func (m *target) Zero(off, n int) error           { clear(m.b[off : off+n]); return nil }
