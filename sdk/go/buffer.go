package lanefs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// Buffer is device memory of the daemon's pool.
type Buffer struct {
	object
	export gpu.Export // FD is closed by Close
	fd     own        // the same
	off    int64      // of the range in the memory
	n      int64
	size   int64  // of the file when it was mapped
	gen    uint64 // 0: private memory
	mapped []byte
	bytes  []byte
	rt     gpu.Runtime // that has imported the memory as device; nil: not imported
	device gpu.Memory
}

// Map returns n bytes of f at off in device memory, which all programs that map them share. n 0 means to the end of the file. f must be open
// for reading and may be closed afterwards. Errors are errnos, among them EINVAL for a range outside of the file and ENOMEM if the pool is
// full.
func (s *Session) Map(f *os.File, off, n int64) (*Buffer, error) {
	return s.mapFile(f, wire.Map{Off: uint64(off), Len: uint64(n)})
}

// MapPrivate returns a private copy of the range, which the program may change and Commit. f must be open for reading and writing.
func (s *Session) MapPrivate(f *os.File, off, n int64) (*Buffer, error) {
	return s.mapFile(f, wire.Map{Off: uint64(off), Len: uint64(n), Flags: wire.MapPrivate})
}

// Alloc returns n bytes of zeroes in private device memory, to fill and Commit. f is any file of the mount that is open for writing; it
// proves the permission.
func (s *Session) Alloc(f *os.File, n int64) (*Buffer, error) {
	return s.mapFile(f, wire.Map{Len: uint64(n), Flags: wire.MapPrivate | wire.MapEmpty})
}

func (s *Session) mapFile(f *os.File, q wire.Map) (*Buffer, error) {
	if off, n := int64(q.Off), int64(q.Len); off < 0 || n < 0 {
		return nil, fmt.Errorf("%q: %d bytes at %d: %w", f.Name(), n, off, unix.EINVAL)
	}
	var r wire.MapReply
	rights, err := s.call(wire.TMap, &q, &r, 1, f)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", f.Name(), err)
	}
	b := &Buffer{object: object{s: s, handle: r.Handle}, off: int64(r.MemOff), n: int64(r.Len), size: int64(r.FileSize), gen: r.Generation,
		export: gpu.Export{FD: rights[0], Offset: int64(r.FDOff), Size: int64(r.MemSize), Kind: gpu.ExportKind(r.Kind)}}
	b.fd = newOwn(b.export.FD)
	if b.export.Kind != gpu.ExportMemFD {
		return b, nil
	}
	prot := unix.PROT_READ
	if q.Flags&wire.MapPrivate != 0 {
		prot |= unix.PROT_WRITE
	}
	b.mapped, err = unix.Mmap(b.export.FD, b.export.Offset, int(b.export.Size), prot, unix.MAP_SHARED)
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("%q: mapping device memory: %w", f.Name(), err)
	}
	b.bytes = b.mapped[b.off : b.off+b.n : b.off+b.n]
	return b, nil
}

// Bytes returns the buffer's bytes, valid until Close. It is nil if the CPU cannot address them. Only private memory may be written to.
func (b *Buffer) Bytes() []byte { return b.bytes }

// Len returns the length of the buffer, FileSize the size of the file when it was mapped.
func (b *Buffer) Len() int64      { return b.n }
func (b *Buffer) FileSize() int64 { return b.size }

// Export returns the memory behind the buffer, for a GPU's library to import, and the offset of the buffer in it. Close closes the
// descriptor, unless the program has closed it and the number is another file's.
func (b *Buffer) Export() (e gpu.Export, off int64) { return b.export, b.off }

// Import maps the memory behind the buffer on a GPU, and returns the address of the buffer for kernels and copies. rt must be of the daemon's
// runtime and device (Session.Facts). Close unmaps it, after it has waited for the program's work on the device. Only private memory may
// be written to.
func (b *Buffer) Import(rt gpu.Runtime) (gpu.Addr, error) {
	if b.device == nil {
		m, err := rt.Import(b.export)
		if err != nil {
			return 0, err
		}
		b.rt, b.device = rt, m
	}
	return b.device.Addr() + gpu.Addr(b.off), nil
}

// synchronize waits for the program's work on the device.
func (b *Buffer) synchronize() error {
	if s, ok := b.rt.(interface{ Synchronize() error }); ok {
		return s.Synchronize()
	}
	return nil
}

// unmapDevice undoes Import. It waits for kernels and copies that use the memory, because unmapping does not.
func (b *Buffer) unmapDevice() error {
	if b.device == nil {
		return nil
	}
	err := errors.Join(b.synchronize(), b.device.Close())
	b.rt, b.device = nil, nil
	return err
}

// Generation returns the generation of the bytes, 0 for private memory.
func (b *Buffer) Generation() uint64 { return b.gen }

// Latest returns the present generation of the file's range. After Close, and after the end of the daemon, it is not known, and Latest returns all ones.
func (b *Buffer) Latest() uint64 {
	switch {
	case b.gen == 0:
		return 0
	case b.closed.Load(), b.s.gone.over():
		return wire.Unknown
	}
	return b.s.board.Word(8 * int(b.handle)).Load()
}

// Current reports whether the file still has these bytes. Private memory is always current.
func (b *Buffer) Current() bool { return b.Latest() == b.gen }

// Commit writes n bytes at memOff of the buffer to f at off, and returns when they are durable, as after fsync(2). f must be open for
// writing, without O_APPEND. If the buffer is imported, Commit first waits for the program's work on the device.
func (b *Buffer) Commit(f *os.File, off, memOff, n int64) error {
	if memOff < 0 || n < 0 || memOff > b.n-n {
		return fmt.Errorf("%d bytes at %d of a buffer of %d: %w", n, memOff, b.n, unix.EINVAL)
	}
	handle, err := b.in(b.s)
	if err == nil {
		err = b.synchronize()
	}
	if err != nil {
		return err
	}
	var r wire.CommitReply
	_, err = b.s.call(wire.TCommit, &wire.Commit{Handle: handle, MemOff: uint64(b.off + memOff), FileOff: uint64(off), Len: uint64(n)}, &r, 0, f)
	if err != nil {
		return fmt.Errorf("%q: %w", f.Name(), err)
	}
	return nil
}

// Close releases the buffer. A program that has mapped the descriptor of Export itself must unmap it itself, after its work on the device.
func (b *Buffer) Close() error {
	if b.mapped != nil {
		_ = unix.Munmap(b.mapped)
		b.mapped, b.bytes = nil, nil
	}
	err := b.unmapDevice()
	b.fd.close()
	b.export.FD = -1
	return errors.Join(err, b.release())
}
