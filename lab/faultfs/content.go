package faultfs

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// content is what the medium of a file holds where that differs from the backing file, which has what reads see: the old contents
// of pages. A page in neither map is on the medium as it is in the backing file.
type content struct {
	fs   *FS
	ino  uint64
	name string
	f    *os.File // for reading and writing
	open int      // handles; protected by FS.mu

	mu    sync.Mutex
	dirty map[int64][]byte // protected by mu: the page on the medium, nil for a hole; the next fsync writes what reads see
	lost  map[int64][]byte // protected by mu: likewise, but no fsync writes it
}

const page = 4096

// contentOf returns the content of a file that was just opened.
func (f *FS) contentOf(file *os.File, name string) (*content, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.files[st.Ino]
	if c == nil {
		both, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), os.O_RDWR, 0)
		if err != nil { // a handle that cannot write changes nothing
			if both, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), os.O_RDONLY, 0); err != nil {
				return nil, err
			}
		}
		c = &content{fs: f, ino: st.Ino, name: name, f: both, dirty: map[int64][]byte{}, lost: map[int64][]byte{}}
		f.files[st.Ino] = c
	}
	c.open++
	return c, nil
}

// release closes a handle. Before the last one is closed, reads see what is on the medium, as when Linux drops the cached pages: who finds that no file is open sees it, too.
func (c *content) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.countOpen(0) == 1 {
		c.forgetLocked()
	}
	if c.countOpen(-1) == 0 {
		c.f.Close()
	}
}

// countOpen adds to the number of open handles, and returns it. Without handles the content is no file's.
func (c *content) countOpen(n int) int {
	c.fs.mu.Lock()
	defer c.fs.mu.Unlock()
	if c.open += n; c.open == 0 {
		delete(c.fs.files, c.ino)
	}
	return c.open
}

// all returns the contents of the open files. content.mu is locked before FS.mu.
func (f *FS) all() []*content {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.files))
}

// Forget makes reads see what is on the medium where an fsync failed, as when Linux drops the cached pages.
func (f *FS) Forget() {
	for _, c := range f.all() {
		c.forget()
	}
}

// Cut cuts the power: what is not on the medium is lost, of all files. The mount stays.
func (f *FS) Cut() {
	for _, c := range f.all() {
		c.synced(false, true)
		c.forget()
	}
}

func (c *content) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetLocked()
}

func (c *content) forgetLocked() {
	for p, old := range c.lost {
		c.restoreLocked(p, old)
	}
	clear(c.lost)
}

// restoreLocked restores the old content of a page, up to the end of the file.
func (c *content) restoreLocked(p int64, old []byte) {
	var st unix.Stat_t
	if unix.Fstat(int(c.f.Fd()), &st) != nil || p*page >= st.Size {
		return
	}
	if old == nil {
		_ = unix.Fallocate(int(c.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, p*page, page)
		return
	}
	_, _ = c.f.WriteAt(old[:min(page, st.Size-p*page)], p*page)
}

// synced ends an fsync.
func (c *content) synced(well, drop bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case well:
		clear(c.dirty)
	case drop:
		for p, old := range c.dirty {
			c.lost[p] = old
		}
		clear(c.dirty)
	}
}

// touchLocked records the old contents of pages before a change, and returns how many of them are holes.
func (c *content) touchLocked(off, n int64) (holes int64) {
	for p := off / page; p*page < off+n; p++ {
		hole := c.hole(p)
		if hole {
			holes++
		}
		if _, ok := c.dirty[p]; ok {
			continue
		}
		old, ok := c.lost[p]
		if ok { // the whole page will be written
			delete(c.lost, p)
		} else if !hole {
			old = make([]byte, page)
			if _, err := c.f.ReadAt(old, p*page); err != nil && err != io.EOF {
				old = nil
			}
		}
		c.dirty[p] = old
	}
	return holes
}

// hole reports whether the page is a hole.
func (c *content) hole(p int64) bool {
	at, err := unix.Seek(int(c.f.Fd()), p*page, unix.SEEK_DATA)
	return err == unix.ENXIO || err == nil && at >= (p+1)*page
}

// take reserves space for up to n pages, and returns for how many.
func (f *FS) take(n int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.room < 0 {
		return n
	}
	n = min(n, f.room/page)
	f.room -= n * page
	return n
}

func (f *FS) give(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.room >= 0 {
		f.room += n * page
	}
}

// write stores as much of b as there is space for.
func (c *content) write(b []byte, off int64) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := 0
	for done < len(b) {
		at := off + int64(done)
		n := min(int64(len(b)-done), page-at%page)
		if c.hole(at/page) && c.fs.take(1) == 0 {
			return done, unix.ENOSPC
		}
		c.touchLocked(at, n)
		w, err := c.f.WriteAt(b[done:done+int(n)], at)
		done += w
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (c *content) fallocate(mode uint32, off, n int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(int(c.f.Fd()), &st); err != nil {
		return err
	}
	end := off + n
	if mode&unix.FALLOC_FL_KEEP_SIZE != 0 {
		end = min(end, st.Size)
	}
	before := c.dataPages(off, end)
	holes := int64(0)
	if mode&unix.FALLOC_FL_PUNCH_HOLE == 0 {
		holes = (end+page-1)/page - off/page - before
		if got := c.fs.take(holes); got < holes {
			c.fs.give(got)
			return unix.ENOSPC
		}
	}
	for p := off / page; p*page < end; p++ {
		if at, err := unix.Seek(int(c.f.Fd()), p*page, unix.SEEK_DATA); mode&unix.FALLOC_FL_PUNCH_HOLE != 0 && err == nil && at >= (p+1)*page {
			p = min(at/page, (end+page-1)/page) - 1 // go to the next data; a hole that stays one is not dirty
			continue
		} else if err == unix.ENXIO && mode&unix.FALLOC_FL_PUNCH_HOLE != 0 {
			break
		}
		c.touchLocked(p*page, 1)
	}
	err := unix.Fallocate(int(c.f.Fd()), mode, off, n)
	if mode&unix.FALLOC_FL_PUNCH_HOLE != 0 {
		c.fs.give(before - c.dataPages(off, end))
	} else if err != nil {
		c.fs.give(holes)
	}
	return err
}

// dataPages returns how many pages of a range hold data.
func (c *content) dataPages(off, end int64) (n int64) {
	for at := off; at < end; {
		data, err := unix.Seek(int(c.f.Fd()), at, unix.SEEK_DATA)
		if err != nil || data >= end {
			return n
		}
		hole, err := unix.Seek(int(c.f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return n
		}
		hole = min(hole, end)
		n += (hole+page-1)/page - data/page
		at = max(hole, data+1)
	}
	return n
}

// truncated drops the pages beyond the new end.
func (f *FS) truncated(ino uint64, size int64) {
	f.mu.Lock()
	c := f.files[ino]
	f.mu.Unlock()
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.dirty {
		if p*page >= size {
			delete(c.dirty, p)
		}
	}
	for p := range c.lost {
		if p*page >= size {
			delete(c.lost, p)
		}
	}
}

// Open returns how many files are open. The kernel reports a close some time after it.
func (f *FS) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.files)
}
