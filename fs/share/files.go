package share

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
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

// span is the bytes that a request means, in a file of size bytes.
func span(q *wire.Map, size int64) (off, n int64, toEnd bool, err error) {
	if q.Off > math.MaxInt64/4 || q.Len > math.MaxInt64/4 {
		return 0, 0, false, fmt.Errorf("%d bytes at %d: %w", q.Len, q.Off, unix.EINVAL)
	}
	off, n = int64(q.Off), int64(q.Len)
	if n == 0 {
		n, toEnd = size-off, true
	}
	if q.Flags&wire.MapEmpty != 0 {
		if q.Len == 0 {
			return 0, 0, false, fmt.Errorf("empty memory wants a length: %w", unix.EINVAL)
		}
		return off, n, false, nil
	}
	if n <= 0 || off+n > size {
		return 0, 0, false, fmt.Errorf("%d bytes at %d are not in the file, which has %d: %w", q.Len, q.Off, size, unix.EINVAL)
	}
	return off, n, toEnd, nil
}

func (c *conn) mapFile(q *wire.Map, rights []gate.Right) result {
	if !q.Flags.Valid() {
		return fail(fmt.Errorf("flags %#x: %w", uint32(q.Flags), unix.EINVAL))
	}
	f, name, err := c.take(rights)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	private, empty := q.Flags&wire.MapPrivate != 0, q.Flags&wire.MapEmpty != 0
	switch {
	case !f.Readable && !empty:
		return fail(fmt.Errorf("the file is not open for reading: %w", unix.EACCES))
	case !f.Writable && private:
		return fail(fmt.Errorf("the file is not open for writing, which memory to write to needs: %w", unix.EACCES))
	}
	size := f.Size()
	off, n, toEnd, err := span(q, size)
	if err != nil {
		return fail(err)
	}
	number, err := c.free()
	if err != nil {
		return fail(err)
	}
	cost, err := c.charge(Usage{Handles: 1})
	if err != nil {
		return fail(err)
	}
	defer cost.end()
	held := &reservation{c: c}
	defer held.end()
	read := func(m *residency.Memory) error { return load(&c.s.ending, f, m, off, n) }
	var hold *residency.Hold
	memOff, generation := int64(0), uint64(0)
	if private {
		if empty {
			read = nil
		}
		if err = held.admit(c.s.c.Pool.Round(n)); err == nil {
			hold, err = c.s.c.Pool.Alloc(n, read)
		}
	} else {
		hold, err = c.share(f, number, residency.Want{Name: name, Off: off, N: n, ToEnd: toEnd, Load: read, Admit: held.admit})
	}
	if err != nil {
		return fail(err)
	}
	if err := held.become(hold); err != nil {
		hold.Release()
		c.board.Word(8 * int(number)).Store(0)
		return fail(err)
	}
	if !private {
		memOff, generation = hold.Offset(off), hold.Generation()
	}
	e, err := hold.Export()
	if err != nil {
		(&mapping{hold}).close(c)
		c.board.Word(8 * int(number)).Store(0)
		return fail(err)
	}
	c.add(number, &mapping{hold}, cost)
	return result{reply: &wire.MapReply{
		Handle: number, Kind: uint32(e.Kind), MemOff: uint64(memOff), Len: uint64(n), MemSize: uint64(hold.Memory().Size()),
		Generation: generation, FileSize: uint64(size), FDOff: uint64(e.Offset),
	}, rights: []int{e.FD}, owned: []int{e.FD}}
}

// reservation is bytes of the pool that a request is about to take.
type reservation struct {
	c *conn
	n int64
}

// admit reserves n bytes instead of what was reserved before.
func (r *reservation) admit(n int64) error {
	r.end()
	if err := r.c.s.books.take(r.c.UID, Usage{Held: n}); err != nil {
		return err
	}
	r.n = n
	return nil
}

// become enters the memory that it was made for.
func (r *reservation) become(h *residency.Hold) error {
	n := r.n
	r.n = 0
	return r.c.s.books.hold(r.c.UID, h.Memory(), n)
}

func (r *reservation) end() {
	if r.n > 0 {
		r.c.s.books.give(r.c.UID, Usage{Held: r.n})
		r.n = 0
	}
}

// share gets a hold whose generation shows on the board.
func (c *conn) share(f *fs.External, number uint32, w residency.Want) (*residency.Hold, error) {
	word := c.board.Word(8 * int(number))
	raise := func(generation uint64) {
		for {
			was := word.Load()
			if was >= generation || word.CompareAndSwap(was, generation) {
				return
			}
		}
	}
	w.Key = c.s.c.Pool.Key(f.Ino(), f.Generation(), c.UID)
	w.Notify, w.Waker = raise, c.event
	hold, err := c.s.c.Pool.Map(w)
	if err != nil {
		word.Store(0)
		return nil, err
	}
	raise(hold.Generation())
	return hold, nil
}

// commit writes memory to a file, durably.
func (c *conn) commit(q *wire.Commit, rights []gate.Right) result {
	var m *residency.Memory
	switch h := c.handles[q.Handle].(type) {
	case *mapping:
		m = h.hold.Memory()
	case *memory:
		m = h.mem
	default:
		return fail(fmt.Errorf("handle %d is no memory: %w", q.Handle, unix.EBADF))
	}
	size := uint64(m.Size())
	if q.MemOff > size || q.Len > size-q.MemOff || q.FileOff > math.MaxInt64/2 {
		return fail(fmt.Errorf("%d bytes at %d of memory of %d: %w", q.Len, q.MemOff, size, unix.EINVAL))
	}
	f, _, err := c.take(rights)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	if !f.Writable {
		return fail(fmt.Errorf("the file is not open for writing, or only for appending: %w", unix.EACCES))
	}
	done, err := store(&c.s.ending, f, m, int64(q.FileOff), int64(q.MemOff), int64(q.Len))
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return fail(fmt.Errorf("after %d of %d bytes: %w", done, q.Len, err))
	}
	return result{reply: &wire.CommitReply{Written: uint64(done)}}
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

// pin keeps a whole file resident, or lets it go.
func (c *conn) pin(q *wire.Pin, rights []gate.Right) result {
	if !privileged(c.UID) {
		return fail(fmt.Errorf("uid %d may not pin: only root and who mounted may: %w", c.UID, unix.EPERM))
	}
	f, name, err := c.take(rights)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	if !f.Readable {
		return fail(fmt.Errorf("the file is not open for reading: %w", unix.EACCES))
	}
	owner := q.Owner
	if owner == wire.NoOwner {
		owner = c.UID
	}
	p := c.s.c.Pool
	key := p.Key(f.Ino(), f.Generation(), owner)
	if q.On == 0 {
		p.Pin(key, false)
		return result{reply: &wire.PinReply{}}
	}
	size := f.Size()
	hold, err := p.Map(residency.Want{Key: key, Name: name, N: size, ToEnd: true, Load: func(m *residency.Memory) error { return load(&c.s.ending, f, m, 0, size) }})
	if err != nil {
		return fail(err)
	}
	p.Pin(key, true)
	defer hold.Release()
	return result{reply: &wire.PinReply{Bytes: uint64(size), Generation: hold.Generation()}}
}
