package attrs

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Attr is what stat reports.
type Attr struct {
	Ino                         uint32
	Generation                  uint32
	Mode                        uint32 // S_IFMT and permission bits, as in struct stat
	Links                       uint32
	UID, GID                    uint32
	Major, Minor                uint32 // of a device node
	Size                        int64
	Blocks                      int64 // of 512 bytes
	Atime, Mtime, Ctime, Crtime time.Time
	Flags                       uint32 // EXT4_*_FL, as on disk
	ProjID                      uint32
}

// Change is a change of attributes; nil fields stay. Ctime is set to now unless given. A time that is the zero
// time.Time means now.
type Change struct {
	Mode                *uint32 // permission bits only
	UID, GID            *uint32
	Size                *int64
	Atime, Mtime, Ctime *time.Time
}

// Stat reports the inode's attributes.
func Stat(i *volume.Inode) Attr {
	i.Mu.RLock()
	defer i.Mu.RUnlock()
	return stat(i)
}

// Flags are EXT4_*_FL, as Attr has them.
func Flags(i *volume.Inode) uint32 {
	i.Mu.RLock()
	defer i.Mu.RUnlock()
	return i.Disk.Flags
}

func stat(i *volume.Inode) Attr {
	d := &i.Disk
	a := Attr{
		Ino: i.Ino(), Generation: d.Generation, Mode: uint32(d.Mode), Links: uint32(d.LinksCount), UID: d.UID, GID: d.GID,
		Size: int64(d.Size), Blocks: int64(i.FS.Super.Sectors(d)),
		Atime: i.LastAccess(), Mtime: d.Mtime.Time(), Ctime: d.Ctime.Time(),
		Flags: d.Flags, ProjID: d.Projid,
	}
	if i.IsInline() && d.IsReg() {
		a.Blocks += (a.Size + 511) >> 9 // as the kernel says it: a file with content is not to look like a hole
	}
	if d.HasCrtime() {
		a.Crtime = d.Crtime.Time()
	}
	if d.IsDevice() {
		a.Major, a.Minor = d.Device()
	}
	return a
}

// Set changes attributes, all or none, and reports them as they are then. A change of size is of regular files only.
func Set(i *volume.Inode, s Change) (a Attr, err error) {
	if !i.FS.Writable() {
		return a, volume.ErrReadOnly
	}
	err = i.FS.Change(nil, func(o *volume.Op) error {
		o.Lock(i)
		if i.Disk.Flags&disk.FlImmutable != 0 {
			return volume.ErrPerm
		}
		if i.Disk.Flags&disk.FlAppend != 0 && (s.Mode != nil || s.UID != nil || s.GID != nil || s.Size != nil || s.setsTimes()) {
			return volume.ErrPerm
		}
		set := func() { setAttr(i, &s) }
		done := false
		if s.Size != nil {
			var err error
			if done, err = contents.Resize(i, o, *s.Size, set); err != nil {
				return err
			}
		}
		if !done {
			err := o.Do(4, func() error {
				set()
				return i.Store(o)
			})
			if err != nil {
				return err
			}
		}
		a = stat(i)
		return nil
	})
	return a, err
}

// setAttr sets all of s but the size. Mu is held; the caller stores the inode.
func setAttr(i *volume.Inode, s *Change) {
	now := time.Now()
	pick := func(t *time.Time) disk.Timestamp {
		if t.IsZero() {
			return disk.TimestampOf(now)
		}
		return disk.TimestampOf(*t)
	}
	d := &i.Disk
	if s.Mode != nil {
		d.Mode = d.Mode&disk.ModeFmt | uint16(*s.Mode&0o7777)
	}
	if s.UID != nil {
		d.UID = *s.UID
	}
	if s.GID != nil {
		d.GID = *s.GID
	}
	if s.Size != nil && s.Mtime == nil {
		d.Mtime = disk.TimestampOf(now)
	}
	if s.Atime != nil {
		d.Atime = pick(s.Atime)
		i.AccessTime.Store(0)
	}
	if s.Mtime != nil {
		d.Mtime = pick(s.Mtime)
	}
	if s.Ctime != nil {
		i.Stamp(pick(s.Ctime))
	} else {
		i.Stamp(disk.TimestampOf(now))
	}
}

// setsTimes says whether times other than now are asked for. A change with a Ctime comes from the write-back
// cache, which reports a write.
func (s *Change) setsTimes() bool {
	return s.Ctime == nil && (s.Atime != nil && !s.Atime.IsZero() || s.Mtime != nil && !s.Mtime.IsZero())
}
