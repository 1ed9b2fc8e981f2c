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

// The road of a mapping:
//
//	1  the descriptor becomes a reference on the inode and is closed; the kernel writes back the file's dirty pages
//	2  the pool finds the range resident (then go to 5), or makes room and memory for it
//	3  the range is cut into parts, which loaders take one after the other (in parallel)
//	4  each part: ext4 maps it to extents, the lanes have the controller read them straight into the memory
//	5  the memory is exported, and its descriptor passed to the program

// What one loader reads at a time, in bytes: a multiple of part, and of a large range more, so that a command of the lanes is as
// large as it can be.
const (
	part     = 4 << 20
	mostPart = 16 << 20
)

// loaders is how many parts of a range are read at once: enough for every lane to have the next one waiting.
func loaders() int { return min(max(2*runtime.NumCPU(), 4), 32) }

// errEnding ends what is long when the mount goes away.
var errEnding = fmt.Errorf("the mount is about to end: %w", unix.ESHUTDOWN)

// load reads n bytes of f from off to the start of m, unless end is set meanwhile.
func load(end *atomic.Bool, f *fs.External, m *residency.Memory, off, n int64) error {
	var next atomic.Int64
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	each := min(max(n/int64(loaders())/part, 1)*part, mostPart)
	for range min(loaders(), int((n+each-1)/each)) {
		wg.Go(func() {
			for {
				at := next.Add(each) - each
				if at >= n {
					return
				}
				t := []ext4.Transfer{{Off: off + at, N: int(min(each, n-at)), Mem: m, At: int(at)}}
				err := errEnding
				if !end.Load() {
					f.Read(t)
					err = t[0].Err
				}
				if err == nil && t[0].Done < t[0].N { // the file has become shorter since it was asked for its size
					err = m.Zero(int(at)+t[0].Done, t[0].N-t[0].Done)
				}
				if err != nil {
					once.Do(func() { first = err })
					next.Store(n)
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// piece is how much is moved before it is looked whether the end has come.
const piece = 16 * part

// store writes n bytes of m to f, unless end is set meanwhile. The file grows in order, so that its extents do.
func store(end *atomic.Bool, f *fs.External, m *residency.Memory, off, at, n int64) (done int64, err error) {
	for done < n {
		if end.Load() {
			return done, errEnding
		}
		w, err := f.Write(off+done, m, int(at+done), int(min(n-done, piece)))
		done += int64(w)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// fetch reads n bytes of f to m, fewer at the end of the file, unless end is set meanwhile.
func fetch(end *atomic.Bool, f *fs.External, m *residency.Memory, off, at, n int64) (done int64, err error) {
	for done < n {
		if end.Load() {
			return done, errEnding
		}
		t := []ext4.Transfer{{Off: off + done, N: int(min(n-done, piece)), Mem: m, At: int(at + done)}}
		f.Read(t)
		done += int64(t[0].Done)
		if t[0].Err != nil || t[0].Done < t[0].N {
			return done, t[0].Err
		}
	}
	return done, nil
}
