package faultfs

import (
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Op is a kind of request.
type Op uint8

const (
	OpAny Op = iota
	OpOpen
	OpRead
	OpWrite
	OpFsync     // fsync, fdatasync, and the end of a write with O_DSYNC
	OpFallocate // also to punch holes and to write zeroes
	OpTruncate
)

func (o Op) String() string {
	return [...]string{"any", "open", "read", "write", "fsync", "fallocate", "truncate"}[o]
}

// Rule makes requests fail. The zero value makes all of them fail with EIO for good. The first rule that applies decides.
type Rule struct {
	Op       Op
	File     string // pattern of filepath.Match for the path below the mount; empty: any
	Off, Len int64  // only requests that touch these bytes; Len 0: anywhere. fsync and open touch none
	Skip     int    // so many of those that match pass first
	Times    int    // then so many fail; 0: all from then on

	Err  syscall.Errno   // 0: EIO; None: it does not fail, but see Wait
	Part int64           // write: so many bytes are stored before it fails
	Drop bool            // fsync: what is dirty is lost, see the package
	Wait <-chan struct{} // the request waits until this is closed, before anything else
}

// None as Rule.Err lets the request proceed.
const None = syscall.Errno(1 << 20)

type rule struct {
	Rule
	seen int
}

type request struct {
	op     Op
	file   string
	off, n int64
	rule   Rule // that makes it fail
}

// Add appends a rule, and returns what removes it.
func (f *FS) Add(r Rule) (remove func()) {
	if r.Err == 0 {
		r.Err = unix.EIO
	}
	mine := &rule{Rule: r}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, mine)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i, r := range f.rules {
			if r == mine {
				f.rules = append(f.rules[:i:i], f.rules[i+1:]...)
				return
			}
		}
	}
}

// Clear removes all rules and the limit of Room.
func (f *FS) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.room = nil, -1
}

// Vanish makes every request fail with ENODEV, as when a disk is pulled.
func (f *FS) Vanish() (back func()) { return f.Add(Rule{Err: unix.ENODEV}) }

// ReadOnly makes every change fail with EROFS.
func (f *FS) ReadOnly() (back func()) {
	var all []func()
	for _, op := range []Op{OpWrite, OpFallocate, OpTruncate} {
		all = append(all, f.Add(Rule{Op: op, Err: unix.EROFS}))
	}
	return func() {
		for _, b := range all {
			b()
		}
	}
}

// Room lets n bytes of holes be filled from now on; then writes to holes store what fits and return ENOSPC. Punching holes frees
// space. Less than 0: no limit.
func (f *FS) Room(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.room = n
}

// Fired returns how many requests rules have decided about. Count returns how many requests of a kind there were.
func (f *FS) Fired() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

func (f *FS) Count(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[op]
}

// admit returns the error that a rule, r.rule then, makes a request fail with, or 0. It waits if the rule has Wait set.
func (f *FS) admit(r *request) syscall.Errno {
	f.mu.Lock()
	f.seen[r.op]++
	hit := f.matchLocked(r)
	if hit != nil {
		f.fired++
		r.rule = hit.Rule
	}
	f.mu.Unlock()
	if hit == nil {
		return 0
	}
	if hit.Wait != nil {
		<-hit.Wait
	}
	if hit.Err == None {
		return 0
	}
	return hit.Err
}

func (f *FS) matchLocked(q *request) *rule {
	for _, r := range f.rules {
		if r.Op != OpAny && r.Op != q.op || r.Len > 0 && (q.n == 0 || q.off >= r.Off+r.Len || q.off+q.n <= r.Off) {
			continue
		}
		if r.File != "" {
			if ok, err := filepath.Match(r.File, q.file); err != nil || !ok {
				continue
			}
		}
		r.seen++
		if r.seen > r.Skip && (r.Times == 0 || r.seen <= r.Skip+r.Times) {
			return r
		}
	}
	return nil
}
