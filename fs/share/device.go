package share

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// device chooses the pool of the connection. Handles name memory of one GPU, so there are none yet.
func (c *conn) device(q *wire.Device, _ []gate.Right) result {
	c.mu.Lock()
	has := len(c.handles) + len(c.releasing)
	c.mu.Unlock()
	if has > 0 {
		return fail(fmt.Errorf("the connection has memory or rings already; a GPU is chosen before: %w", unix.EBUSY))
	}
	pools := c.s.c.Pools
	i := int(q.Index)
	if q.Index == wire.NoIndex {
		want := wire.String(q.Device)
		i = slices.IndexFunc(pools, func(p *residency.Pool) bool {
			f := p.Runtime().Facts()
			return gpu.SameDevice(f.Identity(), want)
		})
		if i < 0 {
			return fail(fmt.Errorf("the mount has no GPU %q: %w", want, unix.ENODEV))
		}
	}
	if i >= len(pools) {
		return fail(fmt.Errorf("the mount has %d GPUs, and none with index %d: %w", len(pools), q.Index, unix.ENODEV))
	}
	c.pool = pools[i]
	f := c.pool.Runtime().Facts()
	return result{reply: &wire.DeviceReply{Index: uint32(i), Kind: uint32(c.pool.Kind()), Granule: uint64(c.pool.Granule()), PoolSize: uint64(c.pool.Size()),
		Device: wire.Text(f.Identity()), Name: wire.Text(f.Name)}}
}
