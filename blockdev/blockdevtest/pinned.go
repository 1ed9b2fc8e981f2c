package blockdevtest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/internal/pool"
)

// PinnedDevice is a TestDevice whose buffers come from a pool with a limit, as those of a namespace do. It is a blockdev.Bounded.
type PinnedDevice struct {
	*blockdev.TestDevice
	pool *pool.Pool
}

var _ blockdev.Bounded = (*PinnedDevice)(nil)

// Pinned limits the memory of d's buffers to limit bytes.
func Pinned(t testing.TB, d *blockdev.TestDevice, limit int64) *PinnedDevice {
	t.Helper()
	p := pool.New(limit, func(size int64) (pool.Memory, error) { return memory(make([]byte, size)), nil })
	require.NoError(t, p.Reserve(blockdev.ForData, pool.DataShare(limit)))
	d.Modify(func(i *blockdev.Info) { i.Pinned = blockdev.Bytes(limit) })
	return &PinnedDevice{d, p}
}

// memory is Go memory. The pool aligns nothing, and a chunk of Go's is aligned to pages.
type memory []byte

func (m memory) Bytes() []byte       { return m }
func (m memory) Len() int64          { return int64(len(m)) }
func (m memory) Addresses() []uint64 { return nil }
func (m memory) Close() error        { return nil }

// Alloc gives a buffer of at least n bytes.
func (d *PinnedDevice) Alloc(n int, use ...blockdev.Use) (blockdev.Buffer, error) {
	return d.pool.Alloc(n, use...)
}

// Reserve keeps n bytes for a use.
func (d *PinnedDevice) Reserve(use blockdev.Use, n int64) error { return d.pool.Reserve(use, n) }

// Room is how many bytes a use can have.
func (d *PinnedDevice) Room(use blockdev.Use) int64 { return d.pool.Room(use) }

// OnShort has f called when memory is short.
func (d *PinnedDevice) OnShort(f func()) { d.pool.OnShort(f) }

// Pinned is how many bytes of buffers there are now.
func (d *PinnedDevice) Pinned() int64 { return d.pool.Size() }

// Close ends the device. A buffer that was not released is an error.
func (d *PinnedDevice) Close() error { return errors.Join(d.TestDevice.Close(), d.pool.Close()) }
