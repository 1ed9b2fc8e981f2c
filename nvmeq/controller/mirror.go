package controller

import (
	"fmt"

	"github.com/lanefs/lanefs/gpu"
)

// Data in device memory that the CPU cannot address has a mirror in pinned host memory, for whoever wants its bytes on
// the CPU: a shell's read and write do, a GPU program's do not. The controller moves data to and from the device; Push and
// Pull move it between the device and its mirror.

// Mirrored says that Bytes is a mirror, to be kept in step with Push and Pull.
func (c *Chunk) Mirrored() bool { return c.mirror != nil }

// Push copies n bytes at off from the mirror to the device; Pull copies them back. Without a mirror there is nothing to do.
func (c *Chunk) Push(off, n int64) error {
	if c.mirror == nil {
		return nil
	}
	return c.copy(c.d.Addr+gpu.Addr(off), c.mirror.Addr()+gpu.Addr(off), off, n)
}

func (c *Chunk) Pull(off, n int64) error {
	if c.mirror == nil {
		return nil
	}
	return c.copy(c.mirror.Addr()+gpu.Addr(off), c.d.Addr+gpu.Addr(off), off, n)
}

func (c *Chunk) copy(dst, src gpu.Addr, off, n int64) error {
	if off < 0 || n < 0 || off > c.d.Size || n > c.d.Size-off {
		return fmt.Errorf("nvmeq: copy of %d bytes at %d of %d bytes of data memory", n, off, c.d.Size)
	}
	return c.d.c.copies.Copy(c.d.c.Runtime(), dst, src, n)
}
