//go:build !race

package fs

import (
	"bytes"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMixedWorkTakesLittleMemory: reads, writes, mappings, truncations and holes of all sizes at once, as fsx mixes them, in several files.
// Each byte is compared with what it should be.
func TestMixedWorkTakesLittleMemory(t *testing.T) {
	for name, way := range map[string]IOUring{"fuse": IOUringOff, "io_uring": IOUringAuto} {
		t.Run(name, func(t *testing.T) {
			m := newMount(t, Options{IOUring: way})
			takesLittleMemory(t, func() {
				out, err := helper(t, "mixed", m.path("mixed")).CombinedOutput()
				require.NoError(t, err, "%s", out)
			})
		})
	}
}

const (
	mixedFiles = 6
	mixedSize  = 512 << 10
	mixedTime  = 1500 * time.Millisecond
)

func init() { helpers["mixed"] = mixedHelper }

func mixedHelper(args []string) {
	var wg sync.WaitGroup
	for i := range mixedFiles {
		f, err := os.Create(args[0] + string(rune('0'+i)))
		if err != nil {
			die("%v", err)
		}
		wg.Go(func() { mix(f, rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	wg.Wait()
}

// mix does what want says to f, by ways at random.
func mix(f *os.File, r *rand.Rand) {
	want := make([]byte, 0, mixedSize)
	got := make([]byte, mixedSize)
	need := func(what string, err error) {
		if err != nil {
			die("%s: %s: %v", f.Name(), what, err)
		}
	}
	resize := func(n int) {
		was := len(want)
		want = want[:n]
		if n > was {
			clear(want[was:])
		}
	}
	for end := time.Now().Add(mixedTime); time.Now().Before(end); {
		off := r.IntN(mixedSize)
		n := 1 + r.IntN(min(mixedSize-off, 1<<(9+r.IntN(10))))
		switch r.IntN(7) {
		case 0, 1: // write
			if off+n > len(want) {
				resize(off + n)
			}
			for i := range want[off : off+n] {
				want[off+i] = byte(r.Uint32())
			}
			_, err := f.WriteAt(want[off:off+n], int64(off))
			need("write", err)
		case 2, 3: // read
			k, _ := f.ReadAt(got[:n], int64(off))
			if part := want[min(off, len(want)):min(off+n, len(want))]; !bytes.Equal(part, got[:k]) {
				die("%s: %d bytes at %d are not what was written", f.Name(), n, off)
			}
		case 4: // by a mapping
			if len(want) == 0 {
				continue
			}
			off, n = off%len(want), min(n, len(want)-off%len(want))
			p, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			need("mmap", err)
			if !bytes.Equal(p[off:off+n], want[off:off+n]) {
				die("%s: %d bytes mapped at %d are not what was written", f.Name(), n, off)
			}
			for i := range want[off : off+n] {
				want[off+i] = byte(r.Uint32())
			}
			copy(p[off:], want[off:off+n])
			need("munmap", unix.Munmap(p))
		case 5: // truncate
			resize(off)
			need("truncate", f.Truncate(int64(off)))
		default: // punch a hole
			if off+n > len(want) {
				continue
			}
			clear(want[off : off+n])
			need("punch", unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n)))
		}
	}
	need("fsync", f.Sync())
}
