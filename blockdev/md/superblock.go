package md

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/lanefs/lanefs/blockdev"
)

const (
	magic     = 0xa92b4efc // of all versions
	superSize = 4096       // bytes that a superblock may take: 256 and two for each device
	rolesAt   = 256
	maxRoles  = (superSize - rolesAt) / 2
)

// Features.
const (
	featureBitmap       = 1 << 0
	featureRecovery     = 1 << 1 // recovery_offset counts: the member is being rebuilt
	featureReshape      = 1 << 2
	featureBadBlocks    = 1 << 3
	featureReplacement  = 1 << 4
	featureBackwards    = 1 << 5
	featureNewOffset    = 1 << 6
	featureJournal      = 1 << 9
	featurePPL          = 1 << 10
	featureMultiplePPLs = 1 << 11
	featureRAID0Layout  = 1 << 12 // layout counts
)

// What a device may be instead of a member with a role.
const (
	roleSpare   = 0xffff
	roleFaulty  = 0xfffe
	roleJournal = 0xfffd
)

// Superblock is the metadata of a member, version 1.
type Superblock struct {
	Minor      int // 0: at the end of the device, 1: at its beginning, 2: 4 KiB behind that
	At         blockdev.Bytes
	Features   uint32
	Set        [16]byte // UUID of the array
	Name       string
	Created    uint64 // s since 1970 in the lower 40 bits
	Level      int32
	Layout     uint32 // of raid0, if the feature says that it counts
	Chunk      uint32 // sectors
	Disks      uint32 // members that the array has
	DataOffset uint64 // sectors
	DataSize   uint64 // sectors
	Number     uint32 // of this device, in roles
	Events     uint64
	Block      uint32 // logical block of the array in bytes; 0: that of its members
	roles      []uint16
}

// LevelName is the array's level in words.
func (s *Superblock) LevelName() string {
	if n := levelNames[s.Level]; n != "" {
		return n
	}
	return fmt.Sprintf("level %d", s.Level)
}

// UUID is the array's, as mdadm spells it.
func (s *Superblock) UUID() string {
	b := s.Set
	return fmt.Sprintf("%x:%x:%x:%x", b[:4], b[4:8], b[8:12], b[12:])
}

// Array names the array in messages.
func (s *Superblock) Array() string {
	if s.Name == "" {
		return "the md array " + s.UUID()
	}
	return fmt.Sprintf("the md array %q (%s)", s.Name, s.UUID())
}

// role is the member's place in the array, or one of role….
func (s *Superblock) role() uint16 {
	if int64(s.Number) >= int64(len(s.roles)) {
		return roleSpare
	}
	return s.roles[s.Number]
}

// LastAtBeginning is the last place of a superblock that is not at a device's end.
const LastAtBeginning blockdev.Bytes = 8 * sector

// start is where a superblock of a minor version is, on a device of size bytes; negative: the device is too small.
func start(minor int, size blockdev.Bytes) blockdev.Bytes {
	switch minor {
	case 0:
		return (size/sector - 16) &^ 7 * sector
	case 1:
		return 0
	}
	return LastAtBeginning
}

// decode reads a superblock that begins at `at` of a device. nil without an error: it is none.
func decode(b []byte, minor int, at blockdev.Bytes) (*Superblock, error) {
	le := binary.LittleEndian
	if le.Uint32(b) != magic || le.Uint32(b[4:]) != 1 {
		return nil, nil
	}
	if le.Uint64(b[0x90:]) != uint64(at/sector) {
		return nil, nil // of another minor version, or of the disk that this is a partition of
	}
	n := le.Uint32(b[0xdc:])
	if n > maxRoles {
		return nil, fmt.Errorf("%w: it has %d roles, and room for %d", ErrDamaged, n, maxRoles)
	}
	if got, want := checksum(b[:rolesAt+2*n]), le.Uint32(b[0xd8:]); got != want {
		return nil, fmt.Errorf("%w: it has checksum %08x, not %08x", ErrDamaged, got, want)
	}
	s := &Superblock{
		Minor: minor, At: at, Features: le.Uint32(b[8:]), Set: [16]byte(b[0x10:]), Name: strings.TrimRight(string(b[0x20:0x40]), "\x00"),
		Created: le.Uint64(b[0x40:]), Level: int32(le.Uint32(b[0x48:])), Layout: le.Uint32(b[0x4c:]), Chunk: le.Uint32(b[0x58:]),
		Disks: le.Uint32(b[0x5c:]), DataOffset: le.Uint64(b[0x80:]), DataSize: le.Uint64(b[0x88:]), Number: le.Uint32(b[0xa0:]),
		Events: le.Uint64(b[0xc8:]), Block: le.Uint32(b[0xe0:]),
	}
	for i := range n {
		s.roles = append(s.roles, le.Uint16(b[rolesAt+2*i:]))
	}
	return s, nil
}

// checksum is that of a superblock: the sum of its 32-bit words, its own left out, of which the carries are added once.
func checksum(b []byte) uint32 {
	var sum uint64
	for i := 0; i+4 <= len(b); i += 4 {
		if i != 0xd8 {
			sum += uint64(binary.LittleEndian.Uint32(b[i:]))
		}
	}
	if len(b)%4 == 2 {
		sum += uint64(binary.LittleEndian.Uint16(b[len(b)-2:]))
	}
	return uint32(sum) + uint32(sum>>32)
}

// Find looks for the metadata of an array on a device. Of several, an older array's rest among them, it is the newest, as for mdadm. nil
// without an error: there is none.
func Find(d blockdev.Device) (newest *Superblock, err error) {
	size := d.Info().Size()
	if d.Info().BlockSize > superSize {
		return nil, nil // md's places are within blocks
	}
	read := func(at blockdev.Bytes) ([]byte, error) {
		if at < 0 || at+superSize > size {
			return nil, nil
		}
		b, err := d.Alloc(superSize)
		if err != nil {
			return nil, err
		}
		defer b.Release()
		if err := d.Read(at, b.Slice(0, superSize)); err != nil {
			return nil, err
		}
		return append([]byte(nil), b.Bytes()[:superSize]...), nil
	}
	var damaged error
	for _, minor := range []int{2, 1, 0} {
		at := start(minor, size)
		b, err := read(at)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		s, err := decode(b, minor, at)
		if err != nil {
			damaged = err
		}
		if s != nil && (newest == nil || created(s) > created(newest)) {
			newest = s
		}
	}
	if newest != nil || damaged != nil {
		if newest != nil {
			damaged = nil
		}
		return newest, damaged
	}
	return nil, findForeign(size, d.Info().BlockSize, read)
}

func created(s *Superblock) uint64 { return s.Created & (1<<40 - 1) }

// ErrDamaged is the error of a superblock that is none: md does not take it either.
var ErrDamaged = errors.New("its md superblock is damaged")
