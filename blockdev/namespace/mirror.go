package namespace

import (
	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/internal/pool"
)

// Buffers in device memory that the CPU cannot address (memory modes 8 to 15 on such a device) have a mirror in host memory: Bytes.
// A write copies the mirror to the device before its commands, a read copies the other way after them.

// mirrored is memory that may have a mirror: *controller.Chunk.
type mirrored interface {
	Mirrored() bool
	Push(off, n int64) error
	Pull(off, n int64) error
}

// mirrorOf is the memory of a buffer with a mirror; nil if the CPU addresses the buffer itself.
func mirrorOf(b *pool.Buffer) mirrored {
	if m, ok := b.Memory().(mirrored); ok && m.Mirrored() {
		return m
	}
	return nil
}

// push copies what r writes to the device.
func (d *Namespace) push(r *blockdev.Request) error {
	return mirrors(r, blockdev.OpWrite, mirrored.Push)
}

// pull copies what r has read from the device.
func (d *Namespace) pull(r *blockdev.Request) error {
	return mirrors(r, blockdev.OpRead, mirrored.Pull)
}

// mirrors calls move for each slice of r that has a mirror, if r does op.
func mirrors(r *blockdev.Request, op blockdev.Op, move func(m mirrored, off, n int64) error) error {
	if r.Op != op {
		return nil
	}
	for _, s := range r.Bufs {
		b := s.Buf.(*pool.Buffer)
		if m := mirrorOf(b); m != nil && s.N > 0 {
			if err := move(m, int64(b.Offset()+s.Off), int64(s.N)); err != nil {
				return err
			}
		}
	}
	return nil
}
