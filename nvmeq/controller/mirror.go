package controller

import (
	"fmt"

	"github.com/lanefs/lanefs/gpu"
)

// Data in device memory that the CPU cannot address has a mirror in pinned host memory, for requests that need its bytes on the
// CPU: read and write of a process do, those of a GPU program do not. The controller moves data to and from the device; Push
// and Pull copy between the device and the mirror.

// Mirrored says that Bytes is a mirror, which Push and Pull copy to and from the device.
func (c *Chunk) Mirrored() bool { return c.mirror != nil }

// Push copies n bytes at off from the mirror to the device, Pull from the device to the mirror. Without a mirror both do nothing.
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
		return fmt.Errorf("nvme: copy of %d bytes at %d of %d bytes of data memory", n, off, c.d.Size)
	}
	return c.d.c.copies.Copy(c.d.c.Runtime(), dst, src, n)
}
