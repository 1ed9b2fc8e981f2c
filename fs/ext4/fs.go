package ext4

import (
	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/recovery"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// FS is a mounted volume. docs/DESIGN.md has the order of its locks, and of those of the packages below.
type FS struct {
	vol     *volume.FS
	journal *recovery.Journal
}

// Open mounts the volume on dev. It takes no ownership of dev: the caller closes it after Close.
func Open(dev blockdev.Device, opt Options) (*FS, error) {
	vol, err := volume.New(dev, opt, attrs.End)
	if err != nil {
		return nil, err
	}
	journal, err := recovery.Start(vol)
	if err != nil {
		return nil, err
	}
	return &FS{vol, journal}, nil
}

// Inspect looks at the volume on dev and writes nothing. A volume that Open would refuse is described by its superblock
// and comes without an FS; any other comes with one that is mounted for reading, which the caller closes. The error is
// for devices that hold no ext4 volume.
func Inspect(dev blockdev.Device) (*Inspection, *FS, error) {
	sb, err := volume.ReadSuperblock(dev)
	if sb == nil {
		return nil, nil, err
	}
	if err == nil {
		err = volume.Refusal(sb)
	}
	var v *FS
	if err == nil {
		v, err = Open(dev, Options{ReadOnly: true})
	}
	if err != nil {
		return recovery.InspectRefused(sb, err), nil, nil
	}
	return v.Inspect(), v, nil
}

// Payloads is the memory for the requests of a mount. The caller closes it.
func (v *FS) Payloads() *Payloads { return contents.NewPayloads(v.vol) }

// Inspect describes the mounted volume as it is now, its journal as this mount found it.
func (v *FS) Inspect() *Inspection { return v.journal.Inspect() }

// Root gives a reference to the root directory.
func (v *FS) Root() (*Inode, error) { return face(v.vol.Root()) }

// ByNumber gives a reference to the file with inode number ino, ErrStale if there is none. Unlike Inode it takes any number: it
// comes from a file handle, which may be old or made up. So what is found there says nothing about the volume, and a slot that is
// no inode is no damage. The caller compares generations.
//
// A free inode is never made a live one here: its last Put would free it once more.
func (v *FS) ByNumber(ino uint32) (*Inode, error) { return face(v.vol.ByNumber(ino)) }

// Sync makes everything durable that was done before it.
func (v *FS) Sync() error { return v.vol.Sync() }

// Close makes everything durable, marks the volume clean and releases what it had. The caller has dropped every Inode.
func (v *FS) Close() error { return v.vol.Close() }

// ReadOnly says whether the volume refuses changes: asked for, required by its features, or since an error, also that of a
// commit after which no change was tried yet.
func (v *FS) ReadOnly() bool { return v.vol.ReadOnly() }

// BlockSize is the volume's block size in bytes.
func (v *FS) BlockSize() int { return v.vol.BlockSize }

// Statfs reports sizes and what is free.
func (v *FS) Statfs() Statfs { return v.vol.Statfs() }

// Stats is a snapshot of the counters.
func (v *FS) Stats() Stats { return v.vol.Stats() }

// Held says since when and why a commit is repeated. See jbd2.Held.
type Held = jbd2.Held

// ErrHeld is in the errors of changes that are refused while a commit is repeated.
var ErrHeld = jbd2.ErrHeld

// Held is what keeps changes from being committed, nil if nothing does: the medium has no room, or there is no memory.
func (v *FS) Held() *Held { return v.vol.Held() }

// Settle makes everything durable, and writes home what the log holds, as Close does, while the volume goes on. An error says that
// Close would leave something behind: what was not committed would be lost, and what the log holds is for the next mount to recover.
func (v *FS) Settle() error { return v.vol.Settle() }

// Label is the volume's name (s_volume_name).
func (v *FS) Label() string { return v.vol.Label() }

// SetLabel renames the volume, on the device when it returns: first its superblock, then the backups, each of which may keep the
// old name if the power is cut meanwhile. A damaged backup keeps it in any case, and the log says so.
func (v *FS) SetLabel(label string) error { return v.vol.SetLabel(label) }

// Trim discards the free blocks in length bytes from start, in runs of at least least bytes, and returns how many bytes
// that were: FITRIM of ioctl(2).
func (v *FS) Trim(start, length, least uint64) (uint64, error) {
	return v.vol.Trim(start, length, least)
}

// FreeExtents calls f with the length in blocks of every run of free blocks, across groups.
func (v *FS) FreeExtents(f func(n uint64)) error { return contents.FreeExtents(v.vol, f) }

// FileExtents calls f with every file and directory that has blocks, and in how many pieces they lie. Between two of
// them it calls progress with how many of all inodes in use are done, and ends when that reports false. What cannot be
// read is passed to f as an error.
func (v *FS) FileExtents(f func(ino uint32, blocks uint64, pieces int, err error), progress func(done, total uint64) bool) error {
	return contents.FileExtents(v.vol, f, progress)
}
