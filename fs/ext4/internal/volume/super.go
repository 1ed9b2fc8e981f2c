package volume

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// superblockRead is how many bytes ReadSuperblock reads: whole blocks of the device.
func superblockRead(dev blockdev.Device) int64 {
	return max(disk.SuperblockOffset+disk.SuperblockSize, int64(dev.Info().BlockSize))
}

// ReadSuperblock reads and checks the superblock. If only its checksum is wrong, it returns the superblock as well as the error.
func ReadSuperblock(dev blockdev.Device) (*disk.Superblock, error) {
	if dev.Info().Size() < disk.SuperblockOffset+disk.SuperblockSize {
		return nil, fmt.Errorf("%s is %d bytes: too small for an ext4 volume; name an image, device or partition that mkfs.ext4 has formatted", dev.Info().Name, dev.Info().Size())
	}
	n := int(superblockRead(dev))
	buf, err := dev.Alloc(n)
	if err != nil {
		return nil, err
	}
	defer buf.Release()
	if err := dev.Read(0, buf.Slice(0, n)); err != nil {
		return nil, err
	}
	sb, err := disk.DecodeSuperblock(buf.Bytes()[disk.SuperblockOffset:])
	if errors.Is(err, disk.ErrNotExt4) {
		return nil, notExt4(dev)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dev.Info().Name, err)
	}
	if err := sb.VerifyChecksum(); err != nil {
		return sb, fmt.Errorf("%s: %w; run e2fsck on it", dev.Info().Name, err)
	}
	return sb, nil
}

// notExt4 says what dev holds instead, as far as its beginning tells.
func notExt4(dev blockdev.Device) error {
	i := dev.Info()
	n := int(min(disk.ForeignSize, i.Size()/i.BlockSize*i.BlockSize))
	what, remedy := "its format is none that LaneFS knows", "if it was an ext4 volume, e2fsck -b 32768 looks for a copy of its superblock"
	buf, err := dev.Alloc(n)
	if err == nil {
		defer buf.Release()
		err = dev.Read(0, buf.Slice(0, n))
	}
	if err == nil {
		if name, do, ok := disk.Foreign(buf.Bytes()[:n]); ok {
			what, remedy = "it is "+name, do
		}
	}
	return fmt.Errorf("%s is not an ext4 volume: %s; %s", i.Name, what, remedy)
}

func checkGeometry(sb *disk.Superblock, dev blockdev.Device) error {
	info := dev.Info()
	if int(info.BlockSize) > sb.BlockSize() {
		return fmt.Errorf("%s: %w", info.Name, &SmallBlocksError{Volume: sb.BlockSize(), Device: int(info.BlockSize)})
	}
	if have := uint64(info.Size()) >> sb.BlockBits(); have < sb.BlocksCount {
		return fmt.Errorf("%s is truncated: the volume has %d blocks of %d bytes, the device only %d; copy it again as a whole, or have e2fsck and resize2fs save what is left",
			info.Name, sb.BlocksCount, sb.BlockSize(), have)
	}
	return nil
}

// MarkMounted records in the superblock that the volume is in use.
func (v *FS) MarkMounted() (err error) {
	if v.sbBuf, err = v.Cache.Get(disk.Block(v.Super.SuperBlockNo())); err != nil {
		return err
	}
	return v.writeSuper(func(sb *disk.Superblock) {
		sb.Mtime = disk.SuperTime(time.Now())
		sb.MntCount++
		if v.Logged {
			sb.FeatureIncompat |= disk.IncompatRecover
		} else {
			sb.State &^= disk.StateValid
		}
		if sb.FeatureCompat.Has(disk.CompatOrphanFile) {
			sb.FeatureROCompat |= disk.ROCompatOrphanPresent
		}
	})
}

// encodeSuper changes the superblock in memory and in sbBuf. sbMu is held.
func (v *FS) encodeSuper(f func(*disk.Superblock)) {
	f(v.Super)
	v.met.moveTo(v.Super)
	v.Super.FreeBlocksCount = v.Alloc.FreeBlocks()
	v.Super.FreeInodesCount = uint32(v.Alloc.FreeInodes())
	v.Super.Wtime = disk.SuperTime(time.Now())
	v.sbBuf.Lock()
	v.Super.EncodeStable(v.sbBuf.Data()[disk.SuperblockOffset&(v.BlockSize-1):])
	v.sbBuf.Unlock()
}

// ViewSuper has f look at the superblock, and not keep it.
func (v *FS) ViewSuper(f func(*disk.Superblock)) {
	v.SuperMu.Lock()
	defer v.SuperMu.Unlock()
	f(v.Super)
}

// updateSuper changes the superblock under h. A caller whose operation may fail afterwards undoes it by Handle.OnUndo. What the block
// holds follows in BeforeCommit, once for all operations of the transaction: on a volume with a list of orphans each removal of
// a file changes the superblock twice.
func (v *FS) updateSuper(h *jbd2.Handle, f func(*disk.Superblock)) {
	v.SuperMu.Lock()
	defer v.SuperMu.Unlock()
	f(v.Super)
	h.DirtyShared(v.sbBuf)
}

// ReloadSuper reads the superblock again, through the cache, after recovery.
func (v *FS) ReloadSuper() error {
	buf, err := v.Cache.Get(disk.Block(v.Super.SuperBlockNo()))
	if err != nil {
		return err
	}
	defer buf.Put()
	sb, err := disk.DecodeSuperblock(buf.Data()[disk.SuperblockOffset&(v.BlockSize-1):])
	if err != nil {
		return err
	}
	if err := sb.VerifyChecksum(); err != nil {
		return err
	}
	if sb.BlockSize() != v.BlockSize || sb.BlocksCount > uint64(v.Cache.Blocks()) {
		return disk.Corrupt("superblock", "in the journal has another geometry")
	}
	KeepErrors(sb, v.Super) // also where the log is only shown
	ro := !v.Writable()
	if err := checkFeatures(sb, &ro, v.Opt.Log); err != nil {
		return err
	}
	v.Super, v.Seed = sb, sb.CsumSeed()
	v.largeFile.Store(sb.FeatureROCompat.Has(disk.ROCompatLargeFile))
	v.extAttr.Store(sb.FeatureCompat.Has(disk.CompatExtAttr))
	v.readOnly.Store(ro)
	return nil
}

// BeforeCommit puts the superblock into every transaction, with counters that are right.
func (v *FS) BeforeCommit(h *jbd2.Handle) {
	if v.sbBuf != nil && v.Alloc != nil {
		v.Alloc.AgeWindows()
		v.SuperMu.Lock()
		defer v.SuperMu.Unlock()
		v.encodeSuper(func(*disk.Superblock) {})
		h.DirtyShared(v.sbBuf)
	}
}

// writeSuper changes the superblock and writes it home, durably, outside of any transaction: what says whether the log
// is to be recovered cannot itself be in the log. No handle is open.
func (v *FS) writeSuper(f func(*disk.Superblock)) error {
	v.SuperMu.Lock()
	defer v.SuperMu.Unlock()
	v.encodeSuper(f)
	buf, err := v.Dev.Alloc(v.BlockSize, blockdev.ForBlock)
	if err != nil {
		return err
	}
	defer buf.Release()
	s := buf.Slice(0, v.BlockSize)
	v.sbBuf.RLock()
	copy(s.Bytes(), v.sbBuf.Data())
	v.sbBuf.RUnlock()
	return v.SendSuper(s)
}

// SendSuper writes the superblock's block home, past the cache, and makes it durable.
func (v *FS) SendSuper(s blockdev.Slice) error {
	v.Counters.superWritten.Add(int64(v.BlockSize))
	if err := v.Dev.Write(blockdev.Bytes(v.Super.SuperBlockNo())<<v.BlockBits, true, s); err != nil {
		return err
	}
	return v.Cache.FlushDevice()
}
