package iofault

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/diff"
)

// data carries out an operation on the contents of an open file.
func (p *player) data(s *slot, o *diff.Op) (r outcome) {
	if s.in.Attr().Mode&unix.S_IFMT != unix.S_IFREG {
		r.err = errSkipped
		return r
	}
	if !p.again {
		p.at = o.Off
		switch {
		case s.flags&unix.O_APPEND != 0 && (o.Kind == diff.OpWrite || o.Kind == diff.OpPwrite || o.Kind == diff.OpPwritev):
			p.at = s.in.Attr().Size
		case o.Kind == diff.OpWrite || o.Kind == diff.OpRead:
			p.at = s.pos
		}
	}
	switch o.Kind {
	case diff.OpRead, diff.OpPread, diff.OpMmapRead:
		r.ret, r.err = read(s.in, p.at, o.Len)
	case diff.OpWrite, diff.OpPwrite, diff.OpPwritev, diff.OpMmapWrite:
		b := make([]byte, o.Len)
		diff.Fill(b, o.Seed, p.at)
		var n int
		n, r.err = s.in.Write(p.at, b)
		r.ret = int64(n)
		if r.err == nil && s.flags&(unix.O_SYNC|unix.O_DSYNC) != 0 {
			r.err = s.in.Fsync(false)
		}
	case diff.OpLseek:
		s.pos = max(o.Off, 0)
	case diff.OpSeekMap:
		r.err = p.seekMap(s, o)
	case diff.OpFtruncate:
		_, r.err = s.in.SetAttr(ext4.SetAttr{Size: &o.Len})
	case diff.OpFallocate:
		r.err = s.in.Fallocate(uint32(o.Flags), o.Off, o.Len)
	case diff.OpFsync, diff.OpFdatasync:
		r.err = s.in.Fsync(o.Kind == diff.OpFdatasync)
	case diff.OpCopyRange, diff.OpSendfile:
		r = p.copyRange(s, o)
	case diff.OpFstat:
		s.in.Attr()
	case diff.OpFchmod:
		mode := o.Mode & 0o7777
		_, r.err = s.in.SetAttr(ext4.SetAttr{Mode: &mode})
	case diff.OpFchown:
		r.err = chown(s.in, o)
	case diff.OpGetflags:
		s.in.Flags()
	default:
		r.err = errSkipped
	}
	if r.err == nil && (o.Kind == diff.OpWrite || o.Kind == diff.OpRead) {
		s.pos = p.at + r.ret
	}
	return r
}

func read(in *ext4.Inode, off, n int64) (int64, error) {
	d, err := in.Read(off, int(n))
	if err != nil {
		return 0, err
	}
	defer d.Release()
	return int64(len(d.Bytes())), nil
}

func (p *player) copyRange(s *slot, o *diff.Op) (r outcome) {
	to := p.slots[o.FD2]
	n := min(o.Len, max(0, s.in.Attr().Size-o.Off))
	switch {
	case to == nil || to.in.Attr().Mode&unix.S_IFMT != unix.S_IFREG:
		r.err = errSkipped
	case s.in == to.in && o.Off < o.Off2+n && o.Off2 < o.Off+n:
		r.err = ext4.ErrInvalid
	case n > 0:
		r.ret, r.err = s.in.CopyRange(o.Off, to.in, o.Off2, n)
	}
	return r
}

func (p *player) seekMap(s *slot, o *diff.Op) error {
	for off := o.Off; ; {
		data, err := s.in.Seek(off, ext4.SeekData)
		if errors.Is(err, ext4.ErrNoData) {
			return nil
		}
		if err != nil {
			return err
		}
		if off, err = s.in.Seek(data, ext4.SeekHole); err != nil {
			return err
		}
	}
}

func chown(in *ext4.Inode, o *diff.Op) error {
	var a ext4.SetAttr
	if uid := uint32(o.UID); o.UID >= 0 {
		a.UID = &uid
	}
	if gid := uint32(o.GID); o.GID >= 0 {
		a.GID = &gid
	}
	_, err := in.SetAttr(a)
	return err
}
