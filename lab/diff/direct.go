package diff

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// direct runs Ops on LaneFS's ext4 package, without FUSE, which is faster. It supports the Ops of the data profile on files of the root directory.
type direct struct {
	vol   *ext4.FS
	dev   blockdev.Device
	root  *ext4.Inode
	slots [Slots]*directFile
}

type directFile struct {
	in    *ext4.Inode
	flags int
	pos   int64
}

func openDirect(image string) (*direct, error) {
	vol, dev, err := openVolume(image, false)
	if err != nil {
		return nil, err
	}
	root, err := vol.Root()
	if err != nil {
		return nil, errors.Join(err, vol.Close(), dev.Close())
	}
	return &direct{vol: vol, dev: dev, root: root}, nil
}

func (d *direct) close() error {
	d.closeAll()
	d.root.Put()
	return errors.Join(d.vol.Close(), d.dev.Close())
}

func (d *direct) closeAll() {
	for i := range d.slots {
		d.closeSlot(i)
	}
}

func (d *direct) closeSlot(slot int) unix.Errno {
	f := d.slots[slot]
	d.slots[slot] = nil
	if f == nil {
		return unix.EBADF
	}
	f.in.Put()
	return 0
}

func (d *direct) do(o *Op) (r Result) {
	f := d.slots[o.FD]
	if usesFD[o.Kind] && o.Kind != OpOpen && f == nil {
		r.Errno = unix.EBADF
		return r
	}
	var err error
	switch o.Kind {
	case OpOpen:
		err = d.open(o)
	case OpClose:
		r.Errno = d.closeSlot(o.FD)
	case OpUnlink:
		err = d.root.Unlink(o.Path)
	case OpTruncate:
		var in *ext4.Inode
		if in, err = d.root.Lookup(o.Path); err == nil {
			_, err = in.SetAttr(ext4.SetAttr{Size: &o.Len})
			in.Put()
		}
	case OpSync:
		err = d.vol.Sync()
	case OpCopyRange:
		err = d.copyRange(o, f, &r)
	default:
		err = f.do(o, &r)
	}
	if err != nil {
		r.Errno = directErrno(err)
	}
	return r
}

// directErrno is the errno that package fs returns for an error. An error that is not listed is EIO.
func directErrno(err error) unix.Errno {
	for _, e := range []struct {
		err   error
		errno unix.Errno
	}{
		{ext4.ErrNotExist, unix.ENOENT}, {ext4.ErrInvalid, unix.EINVAL}, {ext4.ErrTooBig, unix.EFBIG}, {ext4.ErrNoSpace, unix.ENOSPC},
		{ext4.ErrNotSup, unix.EOPNOTSUPP}, {ext4.ErrPerm, unix.EPERM}, {ext4.ErrReadOnly, unix.EROFS}, {ext4.ErrCorrupt, unix.EUCLEAN},
	} {
		if errors.Is(err, e.err) {
			return e.errno
		}
	}
	return unix.EIO
}

func (d *direct) open(o *Op) error {
	d.closeSlot(o.FD)
	in, err := d.root.Lookup(o.Path)
	switch {
	case errors.Is(err, ext4.ErrNotExist) && o.Flags&unix.O_CREAT != 0:
		in, err = d.root.Create(o.Path, unix.S_IFREG|o.Mode&^0o022, 0, 0, 0, 0)
	case err == nil && o.Flags&unix.O_TRUNC != 0:
		var zero int64
		_, err = in.SetAttr(ext4.SetAttr{Size: &zero})
	}
	if err != nil {
		return err
	}
	d.slots[o.FD] = &directFile{in: in, flags: o.Flags}
	return nil
}

func (f *directFile) mayRead() bool  { return f.flags&unix.O_ACCMODE != unix.O_WRONLY }
func (f *directFile) mayWrite() bool { return f.flags&unix.O_ACCMODE != unix.O_RDONLY }

func (f *directFile) do(o *Op, r *Result) (err error) {
	size := f.in.Attr().Size
	switch o.Kind {
	case OpRead, OpPread, OpMmapRead:
		pos := o.Off
		if o.Kind == OpRead {
			pos = f.pos
		}
		if o.Kind == OpMmapRead && pos >= size {
			return nil
		}
		if !f.mayRead() {
			if r.Errno = unix.EBADF; o.Kind == OpMmapRead {
				r.Errno = unix.EACCES
			}
			return nil
		}
		err = f.readAt(pos, o.Len, r)
		if o.Kind == OpRead {
			f.pos += r.Ret
		}
	case OpWrite, OpPwrite, OpPwritev:
		pos := o.Off
		if o.Kind == OpWrite {
			pos = f.pos
		}
		if f.flags&unix.O_APPEND != 0 {
			pos = size
		}
		if !f.mayWrite() {
			r.Errno = unix.EBADF
			return nil
		}
		var n int
		n, err = f.in.Write(pos, filled(o))
		if r.Ret = int64(n); n > 0 {
			err = nil
		}
		if o.Kind == OpWrite {
			f.pos = pos + r.Ret
		}
	case OpMmapWrite:
		if n := min(o.Off+o.Len, size) - o.Off; n > 0 && f.mayWrite() && f.mayRead() {
			b := make([]byte, n)
			Fill(b, o.Seed, o.Off)
			_, err = f.in.Write(o.Off, b)
			r.Ret = n
		} else if n > 0 {
			r.Errno = unix.EACCES
		}
	case OpLseek:
		pos := o.Off
		switch o.Flags {
		case unix.SEEK_CUR:
			pos += f.pos
		case unix.SEEK_END:
			pos += size
		}
		if pos < 0 {
			return ext4.ErrInvalid
		}
		f.pos = pos
		r.Ret = f.pos
	case OpSeekMap:
		err = f.seekMap(o.Off, size, r)
	case OpFtruncate:
		if !f.mayWrite() {
			return ext4.ErrInvalid
		}
		_, err = f.in.SetAttr(ext4.SetAttr{Size: &o.Len})
	case OpFallocate:
		switch o.Flags {
		case 0, keepSize, punch | keepSize, zero, zero | keepSize:
			if !f.mayWrite() {
				r.Errno = unix.EBADF
				return nil
			}
		}
		err = f.in.Fallocate(uint32(o.Flags), o.Off, o.Len)
	case OpFsync, OpFdatasync:
		err = f.in.Fsync(o.Kind == OpFdatasync)
	case OpDrop, OpFstat:
	default:
		return fmt.Errorf("operation %q: %w", o.Kind, ext4.ErrNotSup)
	}
	return err
}

func (f *directFile) readAt(pos, n int64, r *Result) error {
	data, err := f.in.Read(pos, int(n))
	if err != nil {
		return err
	}
	defer data.Release()
	r.Data = append([]byte{}, data.Bytes()...)
	r.Ret = int64(len(r.Data))
	return nil
}

func (d *direct) copyRange(o *Op, f *directFile, r *Result) error {
	to := d.slots[o.FD2]
	if to == nil || !f.mayRead() || !to.mayWrite() || to.flags&unix.O_APPEND != 0 {
		r.Errno = unix.EBADF
		return nil
	}
	left := min(o.Len, max(0, f.in.Attr().Size-o.Off))
	if f.in == to.in && o.Off < o.Off2+left && o.Off2 < o.Off+left {
		return ext4.ErrInvalid
	}
	n, err := f.in.CopyRange(o.Off, to.in, o.Off2, left)
	if r.Ret = n; n > 0 {
		err = nil
	}
	return err
}

// seekMap is posix.seekMap.
func (f *directFile) seekMap(off, size int64, r *Result) error {
	for off < size {
		data, err := f.in.Seek(off, ext4.SeekData)
		if errors.Is(err, ext4.ErrNoData) {
			data = size
		} else if err != nil {
			return err
		}
		if data < off || data > size {
			r.Note = fmt.Sprintf("SEEK_DATA at %d of %d: %d", off, size, data)
			return nil
		}
		if data > off {
			var skipped Result
			if err := f.readAt(off, data-off, &skipped); err != nil {
				return err
			}
			for i, c := range skipped.Data {
				if c != 0 {
					r.Note = fmt.Sprintf("SEEK_DATA at %d skipped to %d, but byte %d is %#x", off, data, off+int64(i), c)
					return nil
				}
			}
		}
		if data == size {
			return nil
		}
		if off, err = f.in.Seek(data, ext4.SeekHole); err != nil {
			return err
		}
	}
	return nil
}
