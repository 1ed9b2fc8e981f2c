package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// journalFound is the journal of an earlier mount.
type journalFound struct {
	log     *jbd2.Log      // nil without a journal
	pending *jbd2.Recovery // has fast commits that are not replayed yet; nil when there are none
}

// recoverJournal recovers what an earlier mount left in the log. It comes before everything else that looks at metadata,
// for the log may hold newer copies of it.
func (v *FS) recoverJournal() (j journalFound, err error) {
	if !v.sb.FeatureCompat.Has(disk.CompatHasJournal) {
		if v.sb.FeatureIncompat.Has(disk.IncompatRecover) {
			err = v.note(disk.Corrupt("superblock", "has needs_recovery without has_journal"))
		}
		return j, err
	}
	if v.sb.JournalInum == 0 {
		return j, fmt.Errorf("%s: the journal is on an external device, that with the UUID %s, which LaneFS does not support", v.name(), uuidText(v.sb.JournalUUID))
	}
	if j.log, err = v.openLog(); err != nil {
		return j, fmt.Errorf("%s: journal: %w", v.name(), v.note(err))
	}
	if j.pending, err = v.recover(j.log); err != nil {
		return j, fmt.Errorf("%s: recovering the journal: %w", v.name(), v.note(err))
	}
	return j, nil
}

// startJournal opens the journal for the changes of this mount.
func (v *FS) startJournal(j journalFound) (err error) {
	cfg := jbd2.Config{
		Interval:            v.opt.CommitInterval,
		Logf:                func(f string, args ...any) { v.opt.Logf(v.name()+": "+f, args...) },
		BeforeCommit:        v.beforeCommit,
		BeforeCommitCredits: 1,
	}
	if j.log == nil || v.readOnly.Load() { // read-only, nobody begins a handle
		v.jnl, err = jbd2.OpenInPlace(v.cache, cfg)
		return err
	}
	sum := jbd2.ChecksumNone
	if v.sb.MetadataCsum() {
		sum = jbd2.ChecksumV3
	}
	wide := v.sb.FeatureIncompat.Has(disk.Incompat64Bit)
	if j.pending != nil {
		err = v.startFastCommits(j.pending, cfg, sum, wide)
	} else {
		v.jnl, err = j.log.Start(cfg, sum, wide)
	}
	v.logged = err == nil
	return err
}

// openLog maps the journal's inode. Groups are not loaded yet, so it is found by hand.
func (v *FS) openLog() (*jbd2.Log, error) {
	i := v.blank(v.sb.JournalInum)
	var err error
	if i.d, err = v.journalInode(); err != nil && !v.journalBackup(&i.d) {
		return nil, err
	}
	v.journalIno = i
	blocks := min(i.d.Size>>v.bits, 1<<31)
	return jbd2.OpenLog(v.cache, uint32(blocks), func(n uint32) (b jbd2.Block, count uint32, err error) {
		err = i.mapRange(n, n+1<<20, func(x extent.Extent) error {
			if x.Hole() || x.Unwritten {
				return errStop
			}
			b, count = x.Pblk, x.Len
			return errStop
		})
		if errors.Is(err, errStop) {
			err = nil
		}
		return b, count, err
	})
}

// journalInode reads the journal's inode.
func (v *FS) journalInode() (d disk.Inode, err error) {
	ino := v.sb.JournalInum
	if !v.sb.ValidIno(ino) {
		return d, disk.Corrupt("superblock", "the journal would be inode %d of %d", ino, v.sb.InodesCount)
	}
	group, block, off := v.sb.InodeLocation(ino)
	descBlock, descOff := v.sb.DescLocation(group)
	buf, err := v.cache.Get(jbd2.Block(v.sb.DescBlock(descBlock)))
	if err != nil {
		return d, err
	}
	desc, err := v.sb.ReadGroup(group, buf.Data()[descOff:]) // the log may mend the rest
	buf.Put()
	if err != nil {
		return d, err
	}
	if buf, err = v.cache.Get(jbd2.Block(desc.InodeTable) + jbd2.Block(block)); err != nil {
		return d, err
	}
	defer buf.Put()
	slot := buf.Data()[off : off+int(v.sb.InodeSize)]
	if d, err = v.sb.DecodeInode(ino, slot); err != nil {
		return d, err
	}
	if err := v.sb.VerifyInode(ino, &d, slot); err != nil {
		return d, err
	}
	if !d.IsReg() || d.LinksCount == 0 {
		return d, disk.Corrupt(inodeName(ino), "is not the journal: mode %#o, %d links", d.Mode, d.LinksCount)
	}
	return d, nil
}

// journalBackup is journalInode from the copy of i_block and i_size that the superblock has (s_jnl_blocks): the inode
// itself may be one of those that only the log has. It reports false where there is no copy.
func (v *FS) journalBackup(d *disk.Inode) bool {
	b := &v.sb.JnlBlocks
	if v.sb.JnlBackupType != 1 || b[16] == 0 {
		return false
	}
	*d = disk.Inode{Mode: disk.ModeReg | 0o600, LinksCount: 1, Size: uint64(b[15])<<32 | uint64(b[16])}
	for k := range disk.InodeBlockSize / 4 {
		binary.LittleEndian.PutUint32(d.Block[4*k:], b[k])
	}
	if _, err := disk.DecodeExtentHeader("", d.Block[:]); err == nil {
		d.Flags |= disk.FlExtents
	}
	return true
}

var errStop = errors.New("stop")

// recover brings the volume to what was last committed: on the medium, or for a read-only mount only in what the cache
// shows. It leaves fast commits to whoever starts the journal, and returns the recovery that has them.
func (v *FS) recover(log *jbd2.Log) (*jbd2.Recovery, error) {
	info := log.Info()
	v.noteJournal(info, nil)
	if v.opt.NoRecovery && v.readOnly.Load() {
		return nil, nil
	}
	r, err := log.Scan()
	if err != nil {
		return nil, err
	}
	v.noteJournal(info, r)
	if !r.Needed() {
		return nil, nil
	}
	if !v.sb.FeatureIncompat.Has(disk.IncompatRecover) {
		v.opt.Logf("%s: the journal is not empty, but the superblock does not ask for recovery: recovered all the same", v.name())
	}
	fast, err := r.HasFastCommits()
	if err != nil {
		return nil, err
	}
	if v.readOnly.Load() {
		v.cache.SetOverlay(r.Overlay())
		v.opt.Logf("%s: %d transactions of the journal are shown, not written: the mount is read-only", v.name(), r.Transactions)
		if fast {
			v.opt.Logf("%s: fast commits in the journal are not shown: what was done last appears after a mount that may write", v.name())
		}
	} else {
		if err := r.Replay(jbd2.Block(v.sb.SuperBlockNo())); err != nil {
			return nil, err
		}
		if err := v.replaySuper(r.Overlay()); err != nil {
			return nil, err
		}
		v.opt.Logf("%s: recovered %d transactions, %d blocks, from the journal", v.name(), r.Transactions, r.Blocks())
	}
	v.cache.Invalidate()
	if err := v.reloadSuper(); err != nil {
		return nil, err
	}
	if v.readOnly.Load() {
		return nil, nil
	}
	if fast {
		return r, nil
	}
	return nil, r.Finish()
}

// replaySuper writes home what the log has of the superblock. Whoever logged it gave it a checksum of its own, and a power
// cut between its two sectors would leave a volume that nobody opens: see disk.Superblock.EncodeStable.
func (v *FS) replaySuper(log *jbd2.Overlay) error {
	block := jbd2.Block(v.sb.SuperBlockNo())
	buf, err := v.dev.Alloc(v.bs, blockdev.ForBlock)
	if err != nil {
		return err
	}
	defer buf.Release()
	s := buf.Slice(0, v.bs)
	if found, err := log.Read(block, s); err != nil || !found {
		return err
	}
	b := s.Bytes()[disk.SuperblockOffset&(v.bs-1):]
	sb, err := disk.DecodeSuperblock(b)
	if err != nil {
		return err
	}
	if err := sb.VerifyChecksum(); err != nil {
		return err
	}
	sb.Checksum = v.sb.Checksum
	keepErrors(sb, v.sb)
	sb.EncodeStable(b)
	return v.sendSuper(s)
}

// reloadSuper reads the superblock again, through the cache, after recovery.
func (v *FS) reloadSuper() error {
	buf, err := v.cache.Get(jbd2.Block(v.sb.SuperBlockNo()))
	if err != nil {
		return err
	}
	defer buf.Put()
	sb, err := disk.DecodeSuperblock(buf.Data()[disk.SuperblockOffset&(v.bs-1):])
	if err != nil {
		return err
	}
	if err := sb.VerifyChecksum(); err != nil {
		return err
	}
	if sb.BlockSize() != v.bs || sb.BlocksCount > uint64(v.cache.Blocks()) {
		return disk.Corrupt("superblock", "in the journal has another geometry")
	}
	keepErrors(sb, v.sb) // also where the log is only shown
	ro := v.readOnly.Load()
	if err := checkFeatures(sb, &ro, v.opt.Logf); err != nil {
		return err
	}
	v.sb, v.seed = sb, sb.CsumSeed()
	v.largeFile.Store(sb.FeatureROCompat.Has(disk.ROCompatLargeFile))
	v.extAttr.Store(sb.FeatureCompat.Has(disk.CompatExtAttr))
	v.readOnly.Store(ro)
	return nil
}

// beforeCommit keeps the superblock's counters right in every transaction.
func (v *FS) beforeCommit(h *jbd2.Handle) {
	if v.sbBuf != nil && v.alloc != nil {
		v.alloc.AgeWindows()
		v.updateSuper(h, func(*disk.Superblock) {})
	}
}

// writeSuper changes the superblock and writes it home, durably, outside of any transaction: what says whether the log
// is to be recovered cannot itself be in the log. No handle is open.
func (v *FS) writeSuper(f func(*disk.Superblock)) error {
	v.sbMu.Lock()
	defer v.sbMu.Unlock()
	v.encodeSuper(f)
	buf, err := v.dev.Alloc(v.bs, blockdev.ForBlock)
	if err != nil {
		return err
	}
	defer buf.Release()
	s := buf.Slice(0, v.bs)
	v.sbBuf.RLock()
	copy(s.Bytes(), v.sbBuf.Data())
	v.sbBuf.RUnlock()
	return v.sendSuper(s)
}

// sendSuper writes the superblock's block home, past the cache, and makes it durable.
func (v *FS) sendSuper(s blockdev.Slice) error {
	v.stats.superWritten.Add(int64(v.bs))
	if err := v.dev.Write(blockdev.Bytes(v.sb.SuperBlockNo())<<v.bits, true, s); err != nil {
		return err
	}
	return v.cache.FlushDevice()
}

// protectJournal keeps the journal's blocks out of every file.
func (v *FS) protectJournal() error {
	if v.journalIno == nil {
		return nil
	}
	i := v.journalIno
	return i.tree(nil).Walk(func(b jbd2.Block, _ int) error {
		if b == 0 {
			return nil
		}
		return v.alloc.Protect(b, 1)
	}, func(x extent.Extent) error {
		return v.alloc.Protect(x.Pblk, x.Len)
	})
}
