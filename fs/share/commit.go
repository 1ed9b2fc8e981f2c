package share

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// commit writes memory to a file, durably.
func (c *conn) commit(q *wire.Commit, rights []gate.Right) result {
	var m *residency.Memory
	switch h := c.name(q.Handle).(type) {
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
	f, _, err := c.fileOf(rights)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	if !f.Writable {
		return fail(fmt.Errorf("the file is not open for writing, or only for appending: %w", unix.EACCES))
	}
	done, err := store(c.ends(), f, m, int64(q.FileOff), int64(q.MemOff), int64(q.Len))
	c.unname() // what is to be synchronized is the file's
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return fail(fmt.Errorf("after %d of %d bytes: %w", done, q.Len, err))
	}
	return result{reply: &wire.CommitReply{Written: uint64(done)}}
}
