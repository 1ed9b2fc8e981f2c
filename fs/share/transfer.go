package share

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/residency"
)

// A loader reads a multiple of part bytes at a time, and more of a large range, so that the NVMe commands are as large as possible.
const (
	part     = 4 << 20
	mostPart = 32 << 20
	inParts  = 16 << 20 // a ring's request of more than that is read in parts
	crowd    = 4        // if the ring has fewer requests under way, or it is more than mostPart
)

// loaders returns how many parts of a range are read at once: enough that the next part always waits at a lane.
func loaders() int { return min(max(2*runtime.NumCPU(), 4), 32) }

// errEnding ends long transfers when the mount ends, and those of rings when their client does.
var errEnding = fmt.Errorf("the mount or the connection is about to end: %w", unix.ESHUTDOWN)

// ends says that transfers are to end early: the mount ends, or the client has gone.
type ends struct {
	mount, client *atomic.Bool
	left          <-chan struct{}   // closed when client becomes true
	tenant        *residency.Tenant // the client, as who has parts of the stage
}

func (e ends) now() bool { return e.mount.Load() || e.client.Load() }

// stop is ext4's question for a write that has waited for its file.
func (e ends) stop() error {
	if e.now() {
		return errEnding
	}
	return nil
}

// load reads n bytes of f at off to the start of m. It returns errEnding if end comes meanwhile.
func load(end ends, f *fs.External, m *residency.Memory, off, n int64) error {
	done, err := fetch(end, f, m, off, 0, n, m.Read)
	if err == nil && done < n { // the file has become shorter since Size was called
		err = m.Zero(int(done), int(n-done))
	}
	return err
}

// piece is how many bytes are moved before end is checked again.
const piece = 16 * part

// store writes n bytes of m to f, in order, so that the extents of a growing file are in order. It returns errEnding if end comes
// meanwhile.
func store(end ends, f *fs.External, m *residency.Memory, off, at, n int64) (done int64, err error) {
	for done < n {
		if end.now() {
			return done, errEnding
		}
		w, err := write(end, f, off+done, m, int(at+done), int(min(n-done, piece)))
		done += int64(w)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// fetch reads n bytes of f to m, fewer at the end of the file: by several goroutines, so that the device does not wait between two parts. Each
// part that was read is told to arrived, if that is not nil. fetch returns errEnding if end comes meanwhile.
func fetch(end ends, f *fs.External, m *residency.Memory, off, at, n int64, arrived func(n int)) (done int64, err error) {
	each := min(max(n/int64(loaders())/part, 1)*part, mostPart)
	var next atomic.Int64
	var mu sync.Mutex
	whole := n // of the bytes, those before it were read, but for parts under way; protected by mu
	stop := func(upTo int64, why error) {
		mu.Lock()
		defer mu.Unlock()
		if upTo < whole {
			whole, err = upTo, why
		}
		next.Store(n)
	}
	var wg sync.WaitGroup
	for range min(loaders(), int((n+each-1)/each)) {
		wg.Go(func() {
			for {
				from := next.Add(each) - each
				if from >= n {
					return
				}
				if end.now() {
					stop(from, errEnding)
					return
				}
				t := []ext4.Transfer{{Off: off + from, N: int(min(each, n-from)), Mem: m, At: int(at + from)}}
				read(end, f, t)
				if t[0].Err != nil || t[0].Done < t[0].N {
					stop(from+int64(t[0].Done), t[0].Err)
					return
				}
				if arrived != nil {
					arrived(t[0].N)
				}
			}
		})
	}
	wg.Wait()
	return whole, err
}
