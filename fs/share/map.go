package share

import (
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// span returns the range that a request means, in a file of size bytes. toEnd says that it goes to the end of the file.
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

// mapTries is how many times a range to the end of a file is mapped while the file's size changes.
const mapTries = 4

func (c *conn) mapFile(q *wire.Map, rights []gate.Right) result {
	if !q.Flags.Valid() {
		return fail(fmt.Errorf("flags %#x: %w", uint32(q.Flags), unix.EINVAL))
	}
	f, name, err := c.fileOf(rights)
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
	number, err := c.freeNumber()
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
	read := func(m *residency.Memory) error { return load(c.ends(), f, m, off, n) }
	var hold *residency.Hold
	memOff, generation := int64(0), uint64(0)
	if private {
		if empty {
			read = nil
		}
		if err = held.admit(c.pool.Round(n)); err == nil {
			hold, err = c.pool.Alloc(n, read, c.left)
		}
	} else {
		for try := 1; ; try++ {
			hold, err = c.share(f, number, residency.Want{Name: name, Off: off, N: n, ToEnd: toEnd, Load: read, Admit: held.admit})
			now := f.Size()
			if err != nil || now == size || !toEnd && off+n <= now || !c.current(number, hold) {
				break
			}
			// The size has changed before the range was in the pool's tables, or while it was read: nothing else tells that the range is another now.
			if !toEnd || try == mapTries {
				c.raise(number, hold.Generation()+1)
				break
			}
			c.unshare(number, hold)
			size = now
			if off, n, toEnd, err = span(q, size); err != nil {
				break
			}
		}
	}
	if err != nil {
		return fail(err)
	}
	if err := held.become(hold); err != nil {
		c.unshare(number, hold)
		return fail(err)
	}
	if !private {
		memOff, generation = hold.Offset(off), hold.Generation()
	}
	e, err := hold.Export(c.left)
	if err != nil {
		c.s.ledger.unhold(c.UID, hold.Memory())
		c.unshare(number, hold)
		return fail(err)
	}
	c.add(number, &mapping{hold}, cost)
	return result{reply: &wire.MapReply{
		Handle: number, Kind: uint32(e.Kind), MemOff: uint64(memOff), Len: uint64(n), MemSize: uint64(hold.Memory().Size()),
		Generation: generation, FileSize: uint64(size), FDOff: uint64(e.Offset),
	}, rights: []int{e.FD}, owned: []int{e.FD}}
}

// reservation is what a request is charged for memory of the pool before it has the memory.
type reservation struct {
	c *conn
	n int64
}

// admit reserves n bytes, in the place of what was reserved before.
func (r *reservation) admit(n int64) error {
	r.end()
	if err := r.c.s.ledger.take(r.c.UID, Usage{Held: n}); err != nil {
		return err
	}
	r.n = n
	return nil
}

// become replaces the reservation by a charge for the memory of h.
func (r *reservation) become(h *residency.Hold) error {
	n := r.n
	r.n = 0
	return r.c.s.ledger.hold(r.c.UID, h.Memory(), n)
}

func (r *reservation) end() {
	if r.n > 0 {
		r.c.s.ledger.give(r.c.UID, Usage{Held: r.n})
		r.n = 0
	}
}

// share returns a hold whose generation is kept up to date on the board.
func (c *conn) share(f *fs.External, number uint32, w residency.Want) (*residency.Hold, error) {
	w.Key = c.pool.Key(f.Ino(), f.Generation(), c.UID)
	w.Gone = c.left
	w.Notify, w.Waker = func(generation uint64) { c.raise(number, generation) }, c.event
	hold, err := c.pool.Map(w)
	if err != nil {
		c.word(number).Store(0)
		return nil, err
	}
	c.raise(number, hold.Generation())
	return hold, nil
}

// unshare releases a hold that becomes no handle.
func (c *conn) unshare(number uint32, h *residency.Hold) {
	h.Release()
	c.word(number).Store(0)
}

// word is the generation of a handle on the board.
func (c *conn) word(number uint32) *atomic.Uint64 { return c.board.Word(8 * int(number)) }

// raise stores a generation on the board, unless a newer one is there.
func (c *conn) raise(number uint32, generation uint64) {
	for word := c.word(number); ; {
		was := word.Load()
		if was >= generation || word.CompareAndSwap(was, generation) {
			return
		}
	}
}

// current says whether the board has the generation of a hold.
func (c *conn) current(number uint32, h *residency.Hold) bool {
	return c.word(number).Load() == h.Generation()
}
