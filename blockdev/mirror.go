package blockdev

// Data in device memory that the CPU cannot address (memory modes 8 to 15 on such a device) has a mirror that it can: a
// buffer's Bytes. A write copies the mirror to the device before its commands, a read the other way after them.

// mirrored is a memory whose Bytes are a mirror: *nvmeq.Chunk.
type mirrored interface {
	Mirrored() bool
	Push(off, n int64) error
	Pull(off, n int64) error
}

// mirror is the chunk's mirror, nil for memory that the CPU addresses itself.
func (c *chunk) mirror() mirrored {
	if m, ok := c.mem.(mirrored); ok && m.Mirrored() {
		return m
	}
	return nil
}

// push brings what r writes to the device.
func (d *Namespace) push(r *Request) error {
	return r.mirrors(OpWrite, mirrored.Push)
}

// pull brings what r has read to the CPU.
func (d *Namespace) pull(r *Request) error {
	return r.mirrors(OpRead, mirrored.Pull)
}

func (r *Request) mirrors(op Op, move func(m mirrored, off, n int64) error) error {
	if r.Op != op {
		return nil
	}
	for _, s := range r.Bufs {
		b := s.Buf.(*buffer)
		if m := b.chunk.mirror(); m != nil && s.N > 0 {
			if err := move(m, int64(b.off+s.Off), int64(s.N)); err != nil {
				return err
			}
		}
	}
	return nil
}
