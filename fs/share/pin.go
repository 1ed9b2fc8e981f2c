package share

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// pin makes a whole file resident and pins it, or unpins it.
func (c *conn) pin(q *wire.Pin, rights []gate.Right) result {
	if !privileged(c.UID) {
		return fail(fmt.Errorf("uid %d may not pin: only root and the user that mounted may: %w", c.UID, unix.EPERM))
	}
	f, name, err := c.fileOf(rights)
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
	p := c.pool
	key := p.Key(f.Ino(), f.Generation(), owner)
	if q.On == 0 {
		p.Pin(key, false)
		return result{reply: &wire.PinReply{}}
	}
	size := f.Size()
	hold, err := p.Map(residency.Want{Key: key, Name: name, N: size, ToEnd: true, Load: func(m *residency.Memory) error { return load(c.ends(), f, m, 0, size) }, Gone: c.left})
	if err != nil {
		return fail(err)
	}
	p.Pin(key, true)
	defer hold.Release()
	return result{reply: &wire.PinReply{Bytes: uint64(size), Generation: hold.Generation()}}
}
