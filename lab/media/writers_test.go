package media

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// writer is a program that writes until it is stopped, and records what fsync acknowledged. After a failure it tries a few more
// times.
type writer struct {
	name  string
	step  func(w *writer, dir string, rng *rand.Rand) error // one piece of work that ends with fsync or its like
	check func(w *writer, dir string) error                 // what was acknowledged is there

	mu                sync.Mutex
	acks              int       // protected by mu, as is all below
	refused           []error   // what steps failed with
	ackedAfterRefusal bool      // by fsync alone, or a whole step
	lastBegun         time.Time // when the last step that was acknowledged began

	round    int
	versions [16]struct{ acked, tried uint32 } // of overwritten blocks
	length   int64                             // acknowledged, of an appended file, but for what is lost
	lost     []int64                           // where records begin for which fsync failed: the next one does not answer for them
	names    map[string]bool                   // true: acknowledged to be there; false: not to be
	files    map[string]int                    // acknowledged: seed of the contents
}

const (
	block     = 16 << 10
	moreAsked = 4 // after the first failure
)

func newWriters() []*writer {
	w := []*writer{
		{name: "files", step: stepFiles, check: checkFiles},
		{name: "overwrite", step: stepOverwrite(false), check: checkOverwrite},
		{name: "overwrite-osync", step: stepOverwrite(true), check: checkOverwrite},
		{name: "append", step: stepAppend, check: checkAppend},
		{name: "names", step: stepNames, check: checkNames},
	}
	for _, w := range w {
		w.names, w.files = map[string]bool{}, map[string]int{}
	}
	return w
}

// work writes until stop is closed, or until moreAsked steps have failed.
func (w *writer) work(dir string, rng *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		begun := time.Now()
		w.round++
		err := w.step(w, dir, rng)
		w.mu.Lock()
		if err == nil {
			w.acks++
			w.lastBegun = begun
			w.ackedAfterRefusal = w.ackedAfterRefusal || len(w.refused) > 0
		} else {
			w.refused = append(w.refused, err)
		}
		enough := len(w.refused) >= moreAsked
		w.mu.Unlock()
		if enough {
			return
		}
	}
}

func (w *writer) count() (acks, refused int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acks, len(w.refused)
}

// contents returns n bytes that differ for each seed.
func contents(seed, n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(seed)<<32|uint64(i))
	}
	return b
}

// sync calls fsync, and once more after a failure: the second call must not succeed.
func (w *writer) sync(f *os.File, dataOnly bool) error {
	ask := f.Sync
	if dataOnly {
		ask = func() error { return unix.Fdatasync(int(f.Fd())) }
	}
	err := ask()
	if err != nil && ask() == nil {
		w.mu.Lock()
		w.ackedAfterRefusal = true
		w.mu.Unlock()
	}
	return err
}

func stepFiles(w *writer, dir string, rng *rand.Rand) error {
	path := filepath.Join(dir, fmt.Sprint("f", w.round))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(contents(w.round, 8*(1+rng.IntN(block)))); err != nil {
		return err
	}
	if err := w.sync(f, false); err != nil {
		return err
	}
	w.files[path] = w.round
	if w.round > 40 { // the volume is small
		old := filepath.Join(dir, fmt.Sprint("f", w.round-40))
		delete(w.files, old)
		return os.Remove(old)
	}
	return nil
}

func checkFiles(w *writer, _ string) error {
	for path, seed := range w.files {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if len(b) == 0 || !bytes.Equal(b, contents(seed, len(b))) {
			return fmt.Errorf("%s does not have the acknowledged content, but %d bytes", path, len(b))
		}
	}
	return nil
}

// stepOverwrite writes a block of a file in place, by fdatasync or O_DSYNC.
func stepOverwrite(osync bool) func(*writer, string, *rand.Rand) error {
	flags := os.O_RDWR | os.O_CREATE
	if osync {
		flags |= unix.O_DSYNC
	}
	return func(w *writer, dir string, rng *rand.Rand) error {
		f, err := os.OpenFile(filepath.Join(dir, "blocks"), flags, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		k := rng.IntN(len(w.versions))
		v := &w.versions[k]
		v.tried++
		b := bytes.Repeat(binary.LittleEndian.AppendUint32(nil, v.tried), block/4)
		if _, err := f.WriteAt(b, int64(k)*block); err != nil {
			return err
		}
		if !osync {
			if err := w.sync(f, true); err != nil {
				return err
			}
		}
		v.acked = v.tried
		return nil
	}
}

func checkOverwrite(w *writer, dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "blocks"))
	if err != nil {
		return err
	}
	for k, v := range w.versions {
		for i := k * block; i < (k+1)*block && v.acked > 0; i += 4 {
			if i+4 > len(b) {
				return fmt.Errorf("block %d is beyond the end, version %d was acknowledged", k, v.acked)
			}
			if got := binary.LittleEndian.Uint32(b[i:]); got < v.acked || got > v.tried {
				return fmt.Errorf("block %d has version %d at %d, %d was acknowledged and %d the last", k, got, i-k*block, v.acked, v.tried)
			}
		}
	}
	return nil
}

const record = 1000

func stepAppend(w *writer, dir string, _ *rand.Rand) error {
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	off := st.Size()
	if _, err := f.Write(contents(7, int(off)+record)[off:]); err != nil {
		return err
	}
	if err := w.sync(f, w.round%2 == 0); err != nil {
		w.lost = append(w.lost, off)
		return err
	}
	w.length = off + record
	return nil
}

func checkAppend(w *writer, dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	want := contents(7, int(w.length+7)&^7)[:w.length]
	if len(b) < len(want) {
		return fmt.Errorf("of %d bytes that were acknowledged %d are there", len(want), len(b))
	}
	for i := range want {
		if b[i] != want[i] && !slices.ContainsFunc(w.lost, func(at int64) bool { return int64(i) >= at && int64(i) < at+record }) {
			return fmt.Errorf("of %d bytes that were acknowledged that at %d is another; fsync failed for the records at %d", len(want), i, w.lost)
		}
	}
	return nil
}

// stepNames makes a name, renames it, removes the name of the step before, and calls fsync on the directory.
func stepNames(w *writer, dir string, _ *rand.Rand) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	at := func(kind string, n int) string { return filepath.Join(dir, fmt.Sprint(kind, n)) }
	if err := os.WriteFile(at("new", w.round), nil, 0o644); err != nil {
		return err
	}
	if err := os.Rename(at("new", w.round), at("name", w.round)); err != nil {
		return err
	}
	gone := at("name", w.round-1)
	delete(w.names, gone)
	if err := os.Remove(gone); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := w.sync(d, false); err != nil {
		return err
	}
	w.names[at("name", w.round)], w.names[at("new", w.round)], w.names[gone] = true, false, false
	return nil
}

func checkNames(w *writer, _ string) error {
	for path, there := range w.names {
		_, err := os.Lstat(path)
		if there != (err == nil) {
			return fmt.Errorf("%s: acknowledged to be there: %v, now: %v", path, there, err)
		}
	}
	return nil
}
