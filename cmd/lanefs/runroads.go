package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
)

// roadsEnv names the file in which the libraries of sdk/cufile count; sdk/cufile/count.c has the layout, too.
const roadsEnv = "LANEFS_ROADS"

const (
	roadsMagic = "LFSROAD4"
	roadsSize  = 136
)

var roadNames = []string{"LaneFS, shared memory", "LaneFS, stage", "LaneFS, page cache", "the vendor's library", "pread and pwrite"}

// roads is that file: magic, processes, calls, failed calls, for each road bytes read and written, batches that went as one, their
// requests, and requests of batches that failed, 8 bytes each. A library of another version, whose layout has another magic, counts nothing.
type roads struct{ path string }

// roadsDirs are where that file may be: TMPDIR, and where there is mostly room.
func roadsDirs() []string { return []string{os.TempDir(), "/dev/shm", "/tmp", "/var/tmp"} }

// newRoads makes the file, which only this user can read and write, in the first directory in which that can be done.
func newRoads(dirs ...string) (*roads, error) {
	var failed []error
	for k, dir := range dirs {
		if slices.Contains(dirs[:k], dir) {
			continue
		}
		r, err := roadsIn(dir)
		if err == nil {
			return r, nil
		}
		failed = append(failed, err)
	}
	return nil, fmt.Errorf("run: there is no room for the file that counts the bytes; TMPDIR can name a directory for it: %w", errors.Join(failed...))
}

func roadsIn(dir string) (*roads, error) {
	dir, err := filepath.Abs(dir) // the program may go elsewhere
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "lanefs-roads-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, roadsSize)
	copy(b, roadsMagic)
	if _, err := f.Write(b); err != nil {
		os.Remove(f.Name())
		return nil, err
	}
	return &roads{f.Name()}, nil
}

func (r *roads) close() { os.Remove(r.path) }

// String is what the program has done, on one line.
func (r *roads) String() string {
	b, err := os.ReadFile(r.path)
	if err != nil || len(b) != roadsSize || string(b[:8]) != roadsMagic {
		return "how many bytes took which road is not known: the file that counts them was changed"
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }
	processes, calls, failed := word(1), word(2), word(3)
	if processes == 0 {
		return "the libraries were loaded by no process (is the program static, or set-user-ID, or are they of another version?): cuFile and hipFile calls went past LaneFS"
	}
	if calls == 0 {
		return "no call of cuFile or hipFile was made, but for those of programs that are static, set-user-ID, or started without LD_PRELOAD"
	}
	var parts []string
	for i, name := range roadNames {
		read, written := word(4+2*i), word(5+2*i)
		if read+written > 0 {
			parts = append(parts, fmt.Sprintf("%s: %s read, %s written", name, units.Bytes(int64(read)), units.Bytes(int64(written))))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no bytes were moved"}
	}
	if batches := word(4 + 2*len(roadNames)); batches > 0 {
		parts = append(parts, fmt.Sprintf("%d requests in %d batches", word(5+2*len(roadNames)), batches))
	}
	requests := ""
	if n := word(6 + 2*len(roadNames)); n > 0 {
		requests = fmt.Sprintf("; %d requests in batches failed", n)
	}
	return fmt.Sprintf("%s (%d calls, %d failed%s)", strings.Join(parts, "; "), calls, failed, requests)
}
