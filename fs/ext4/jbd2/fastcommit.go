package jbd2

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Fast commits, [journal] "Fast commits": between two transactions ext4 may log what changed as short records in an area
// of their own, little-endian. This package finds and checks them; what they mean is ext4's business. Each fast commit
// begins at a block boundary and ends with a TAIL that carries its checksum; the first begins with a HEAD.

// FCTag is the kind of a record.
type FCTag uint16

const (
	FCAddRangeTag FCTag = iota + 1
	FCDelRangeTag
	FCCreatTag
	FCLinkTag
	FCUnlinkTag
	FCInodeTag
	FCPadTag
	FCTailTag
	FCHeadTag
)

const (
	fcBaseSize = 4 // struct ext4_fc_tl: tag and length
	fcTailSize = 8 // struct ext4_fc_tail: TID and checksum
	fcHeadSize = 8 // struct ext4_fc_head: features and TID
)

// FCRecord is one of FCAddRange, FCDelRange, FCName and FCInode.
type FCRecord interface{ fcRecord() }

// FCAddRange maps an extent into an inode.
type FCAddRange struct {
	Ino    uint32
	Extent [12]byte // struct ext4_extent
}

// FCDelRange unmaps logical blocks of an inode.
type FCDelRange struct{ Ino, Logical, Len uint32 }

// FCName makes or removes a directory entry.
type FCName struct {
	Tag    FCTag // FCCreatTag, FCLinkTag or FCUnlinkTag
	Parent uint32
	Ino    uint32
	Name   []byte
}

// FCInode is an inode's new contents.
type FCInode struct {
	Ino uint32
	Raw []byte // struct ext4_inode
}

func (FCAddRange) fcRecord() {}
func (FCDelRange) fcRecord() {}
func (FCName) fcRecord()     {}
func (FCInode) fcRecord()    {}

// errFCEnd ends a walk: what follows was not committed.
var errFCEnd = errors.New("end of the fast commits")

// FastCommits calls f for each record of the fast commits that follow the last transaction of the log, in order. It does
// so only after all of them were checked, and stops at f's first error. Call it between Replay and Finish.
func (r *Recovery) FastCommits(f func(FCRecord) error) error {
	if !r.Needed() || r.l.fastFrom == r.l.fastTo {
		return nil
	}
	rd, err := r.l.reader(r.l.fastTo)
	if err != nil {
		return err
	}
	defer rd.close()
	w := fcWalk{tid: r.end}
	good := 0
	for n := r.l.fastFrom; n < r.l.fastTo; n++ {
		p, err := rd.block(n)
		if err != nil {
			return err
		}
		if err = w.block(p, nil); err != nil && !errors.Is(err, errFCEnd) {
			return err
		}
		good = w.good
		if err != nil {
			break
		}
	}
	w = fcWalk{tid: r.end, limit: good}
	for n := r.l.fastFrom; w.seen < good; n++ {
		p, err := rd.block(n)
		if err != nil {
			return err
		}
		if err := w.block(p, f); err != nil {
			return err
		}
	}
	return nil
}

// HasFastCommits says whether FastCommits has anything to hand out.
func (r *Recovery) HasFastCommits() (bool, error) {
	errFound := errors.New("found")
	err := r.FastCommits(func(FCRecord) error { return errFound })
	if errors.Is(err, errFound) {
		return true, nil
	}
	return false, err
}

// fcWalk goes through the blocks of the area.
type fcWalk struct {
	tid   TID
	limit int    // records to hand out, when there is someone to hand them to
	seen  int    // records so far, those that end a commit too
	good  int    // of them, up to the last good TAIL
	sum   uint32 // since the last TAIL
}

// block goes through one block; f is nil on the first pass.
func (w *fcWalk) block(p []byte, f func(FCRecord) error) error {
	le := binary.LittleEndian
	for off := 0; off+fcBaseSize <= len(p); {
		if f != nil && w.seen == w.limit {
			return nil
		}
		tag := FCTag(le.Uint16(p[off:]))
		n := int(le.Uint16(p[off+2:]))
		if w.seen == 0 && tag != FCHeadTag {
			return errFCEnd
		}
		if off+fcBaseSize+n > len(p) {
			return errFCEnd
		}
		v := p[off+fcBaseSize:][:n]
		rec, err := w.record(tag, v)
		if err != nil {
			return err
		}
		summed := n
		if tag == FCTailTag {
			summed = 4 // all but the checksum itself
		}
		w.sum = crc32c(w.sum, p[off:off+fcBaseSize+summed])
		w.seen++
		if tag == FCTailTag {
			if TID(le.Uint32(v)) != w.tid || le.Uint32(v[4:]) != w.sum {
				return errFCEnd
			}
			w.sum, w.good = 0, w.seen
		}
		if f != nil && rec != nil {
			if err := f(rec); err != nil {
				return err
			}
		}
		off += fcBaseSize + n
	}
	return nil
}

// record decodes one record; nil for those that only frame others.
func (w *fcWalk) record(tag FCTag, v []byte) (FCRecord, error) {
	le := binary.LittleEndian
	switch tag {
	case FCHeadTag:
		if len(v) != fcHeadSize || TID(le.Uint32(v[4:])) != w.tid {
			return nil, errFCEnd
		}
		if features := le.Uint32(v); features != 0 {
			return nil, fmt.Errorf("%w: unknown features %#x of fast commits", ErrUnsupported, features)
		}
	case FCTailTag:
		if len(v) < fcTailSize {
			return nil, errFCEnd
		}
	case FCPadTag:
	case FCAddRangeTag:
		if len(v) != 16 {
			return nil, errFCEnd
		}
		return FCAddRange{le.Uint32(v), [12]byte(v[4:])}, nil
	case FCDelRangeTag:
		if len(v) != 12 {
			return nil, errFCEnd
		}
		return FCDelRange{le.Uint32(v), le.Uint32(v[4:]), le.Uint32(v[8:])}, nil
	case FCCreatTag, FCLinkTag, FCUnlinkTag:
		if len(v) < 9 || len(v) > 8+255 {
			return nil, errFCEnd
		}
		return FCName{tag, le.Uint32(v), le.Uint32(v[4:]), append([]byte(nil), v[8:]...)}, nil
	case FCInodeTag:
		if len(v) < 4+128 {
			return nil, errFCEnd
		}
		return FCInode{le.Uint32(v), append([]byte(nil), v[4:]...)}, nil
	default:
		return nil, errFCEnd
	}
	return nil, nil
}
