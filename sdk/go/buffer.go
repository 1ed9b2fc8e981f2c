package lanefs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// Buffer is device memory that the daemon gave.
type Buffer struct {
	s      *Session
	handle uint32
	export gpu.Export // FD is the buffer's own
	off    int64      // of the range in the memory
	n      int64
	size   int64  // of the file, when it was mapped
	gen    uint64 // 0: memory of its own
	mapped []byte
	bytes  []byte
	rt     gpu.Runtime // whose device is; nil: not imported
	device gpu.Memory
}

// Map gives n bytes of f from off in device memory, shared with all who map them; n 0 means to the end of the file. f must
// be open for reading and may be closed afterwards.
func (s *Session) Map(f *os.File, off, n int64) (*Buffer, error) {
	return s.mapFile(f, wire.Map{Off: uint64(off), Len: uint64(n)})
}

// MapPrivate gives a copy of the range that nobody shares, to change and Commit. f must be open for reading and writing.
func (s *Session) MapPrivate(f *os.File, off, n int64) (*Buffer, error) {
	return s.mapFile(f, wire.Map{Off: uint64(off), Len: uint64(n), Flags: wire.MapPrivate})
}

// Alloc gives n bytes of zeroes in device memory, to fill and Commit. f, any file of the mount open for writing, says that
// the program may.
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
	b := &Buffer{s: s, handle: r.Handle, off: int64(r.MemOff), n: int64(r.Len), size: int64(r.FileSize), gen: r.Generation,
		export: gpu.Export{FD: rights[0], Offset: int64(r.FDOff), Size: int64(r.MemSize), Kind: gpu.ExportKind(r.Kind)}}
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

// Bytes is the buffer, valid until Close; nil where the CPU does not reach it. Only memory of the program's own may be
// written to.
func (b *Buffer) Bytes() []byte { return b.bytes }

// Len is the buffer's length, FileSize the file's when it was mapped.
func (b *Buffer) Len() int64      { return b.n }
func (b *Buffer) FileSize() int64 { return b.size }

// Export is the memory behind the buffer, for a GPU's library to import, and where in it the buffer begins. The descriptor
// stays the buffer's.
func (b *Buffer) Export() (e gpu.Export, off int64) { return b.export, b.off }

// Import maps the memory behind the buffer for rt, the daemon's runtime and device (Session.Facts), and says where the
// buffer is for kernels and copies. Close unmaps it, after all that the program has under way on the device. A buffer that is
// not private must not be written to.
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

// synchronize waits for what the program has under way on the device.
func (b *Buffer) synchronize() error {
	if s, ok := b.rt.(interface{ Synchronize() error }); ok {
		return s.Synchronize()
	}
	return nil
}

// unmapDevice ends Import. Unmapping does not wait for kernels and copies that still use the memory, so this does.
func (b *Buffer) unmapDevice() error {
	if b.device == nil {
		return nil
	}
	err := errors.Join(b.synchronize(), b.device.Close())
	b.rt, b.device = nil, nil
	return err
}

// Generation is the one that the bytes have.
func (b *Buffer) Generation() uint64 { return b.gen }

// Latest is the generation that the file's range has now; all ones when the daemon has gone, and nobody knows.
func (b *Buffer) Latest() uint64 {
	switch {
	case b.gen == 0:
		return 0
	case b.s.gone.over():
		return wire.Unknown
	}
	return b.s.board.Word(8 * int(b.handle)).Load()
}

// Current says whether the file still has these bytes. Memory of the program's own has no file, and always is.
func (b *Buffer) Current() bool { return b.Latest() == b.gen }

// Commit writes n bytes from memOff of the buffer to f at off, and returns when they are durable, as after fsync(2). f must
// be open for writing, without O_APPEND. What the program has under way on the device of an imported buffer ends first.
func (b *Buffer) Commit(f *os.File, off, memOff, n int64) error {
	if memOff < 0 || n < 0 || memOff > b.n-n {
		return fmt.Errorf("%d bytes at %d of a buffer of %d: %w", n, memOff, b.n, unix.EINVAL)
	}
	if err := b.synchronize(); err != nil {
		return err
	}
	var r wire.CommitReply
	_, err := b.s.call(wire.TCommit, &wire.Commit{Handle: b.handle, MemOff: uint64(b.off + memOff), FileOff: uint64(off), Len: uint64(n)}, &r, 0, f)
	if err != nil {
		return fmt.Errorf("%q: %w", f.Name(), err)
	}
	return nil
}

// Close gives the buffer back. What the program has mapped of Export by itself it unmaps itself, after it has waited for the
// device.
func (b *Buffer) Close() error {
	if b.mapped != nil {
		_ = unix.Munmap(b.mapped)
		b.mapped, b.bytes = nil, nil
	}
	err := b.unmapDevice()
	wire.CloseAll([]int{b.export.FD})
	b.export.FD = -1
	return errors.Join(err, b.s.release(b.handle))
}
