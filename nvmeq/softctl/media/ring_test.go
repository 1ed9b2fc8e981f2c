package media

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
	"github.com/lanefs/lanefs/blockdev/iouring"
)

// TestRingDiscard: a discard goes by the ring, beside reads, and, where the kernel knows no such command, by a call; one past the end of
// a device that has shrunk fails.
func TestRingDiscard(t *testing.T) {
	const size = 4 << 20
	file := filepath.Join(t.TempDir(), "image")
	full := bytes.Repeat([]byte("x"), size)
	require.NoError(t, os.WriteFile(file, full, 0o600))
	dev, _ := looptest.Attach(t, file)
	m, err := Open(dev, Options{BlockSize: 512, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer m.Close()
	if !m.Discards() {
		t.Skip("SKIPPED: this loop device takes no discards")
	}
	r, err := m.NewRing(4)
	if err != nil {
		t.Skipf("SKIPPED: no io_uring here: %v", err)
	}
	defer r.Close()
	known := uringDiscard
	defer func() { uringDiscard = known }()
	for _, cmd := range []uint64{known, 0x12<<8 | 0xff} {
		uringDiscard = cmd
		require.NoError(t, os.WriteFile(file, full, 0o600))
		var b Buffers
		p := alignedBytes(4096)
		b.Add(p)
		require.NoError(t, r.StartDiscard(0, 1<<20, 1<<20))
		require.NoError(t, r.Start(1, &b, 3<<20, false, false))
		require.NoError(t, r.Submit())
		seen := map[int]error{}
		for end := time.Now().Add(time.Minute); len(seen) < 2 && time.Now().Before(end); {
			if slot, err, ok := r.Reap(); ok {
				seen[slot] = err
				continue
			}
			r.Await()
		}
		require.Equal(t, map[int]error{0: nil, 1: nil}, seen)
		require.Equal(t, full[:4096], p)
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.True(t, bytes.Equal(full[:1<<20], got[:1<<20]) && bytes.Equal(make([]byte, 1<<20), got[1<<20:2<<20]) && bytes.Equal(full[2<<20:], got[2<<20:]))
	}
	require.NoError(t, unix.Truncate(file, size/2))
	out, err := exec.Command("losetup", "-c", dev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	uringDiscard = known
	if err = r.StartDiscard(0, 3<<20, 4096); err == nil { // it was not seen yet
		require.NoError(t, r.Submit())
		for end, ok := time.Now().Add(time.Minute), false; !ok && time.Now().Before(end); r.Await() {
			_, err, ok = r.Reap()
		}
	}
	require.Error(t, err)
	require.Zero(t, r.InFlight())
}

// TestRingRegisters: what a kernel does not register, the descriptor, places for memory, or the memory, is used as it is; a place is used again.
func TestRingRegisters(t *testing.T) {
	file := filepath.Join(t.TempDir(), "image")
	full := bytes.Repeat([]byte("y"), 1<<20)
	require.NoError(t, os.WriteFile(file, full, 0o600))
	dev, _ := looptest.Attach(t, file)
	places, set, descriptor := makeBuffers, setBuffer, registerFile
	defer func() { makeBuffers, setBuffer, registerFile = places, set, descriptor }()
	for name, tc := range map[string]struct {
		mistake func()
		file    bool
		want    string // of Hold's error
	}{
		"all":        {func() {}, true, ""},
		"descriptor": {func() { registerFile = func(*iouring.Ring, int) error { return unix.EMFILE } }, false, ""},
		"places":     {func() { makeBuffers = func(*iouring.Ring, int) error { return unix.EINVAL } }, true, "invalid argument"},
		"memory":     {func() { setBuffer = func(*iouring.Ring, int, []byte) error { return unix.ENOMEM } }, true, "ulimit -l"},
	} {
		t.Run(name, func(t *testing.T) {
			makeBuffers, setBuffer, registerFile = places, set, descriptor
			tc.mistake()
			m, err := Open(dev, Options{BlockSize: 512, Log: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			defer m.Close()
			r, err := m.NewRing(4)
			if err != nil {
				t.Skipf("SKIPPED: no io_uring here: %v", err)
			}
			defer r.Close()
			require.EqualValues(t, tc.file, r.file)
			p := alignedBytes(8192)
			for range 2 * heldMost { // each place many times
				held, err := r.Hold(p)
				if tc.want != "" {
					require.ErrorContains(t, err, tc.want)
					require.Zero(t, held)
				} else {
					require.NoError(t, err)
				}
				clear(p)
				var b Buffers
				b.Add(p)
				b.In(held)
				require.NoError(t, r.Start(0, &b, 4096, false, false))
				require.NoError(t, r.Submit())
				_, err, ok := r.Reap()
				for end := time.Now().Add(time.Minute); !ok && time.Now().Before(end); _, err, ok = r.Reap() {
					r.Await()
				}
				require.NoError(t, err)
				require.Equal(t, full[:len(p)], p)
				if tc.want != "" {
					return
				}
				r.Drop(held)
			}
			for range heldMost {
				_, err = r.Hold(p)
				require.NoError(t, err)
			}
			_, err = r.Hold(p)
			require.ErrorIs(t, err, ErrHeldNoMore)
		})
	}
}
