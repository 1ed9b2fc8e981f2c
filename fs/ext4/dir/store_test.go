package dir

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

var errNoSpace = errors.New("no space")

// memStore is a directory in memory. It counts references and changes and can run out of space.
type memStore struct {
	t        testing.TB
	size     int
	blocks   []*memBlock
	indexed  bool
	most     int // blocks it may have, 0: no limit
	appended int
	dirtied  map[*memBlock]bool
	damage   error
	gets     int
}

type memBlock struct {
	s        *memStore
	no       int // on the volume
	data     []byte
	known    []byte // the contents as Get, Append or Dirty saw them last
	changing bool   // Change was called since
	verified bool
	refs     int
}

func (b *memBlock) Data() []byte {
	if b.refs == 0 {
		b.s.t.Fatal("use of a block without a reference")
	}
	return b.data
}
func (b *memBlock) Block() disk.Block { return disk.Block(b.no) }
func (b *memBlock) Verified() bool    { return b.verified }
func (b *memBlock) SetVerified()      { b.verified = true }
func (b *memBlock) Put() {
	if b.refs--; b.refs < 0 {
		b.s.t.Fatal("a reference was dropped twice")
	}
	if b.refs == 0 && !b.changing && !bytes.Equal(b.data, b.known) {
		b.s.t.Fatal("a block changed without Change")
	}
}

func (s *memStore) Blocks() uint32    { return uint32(len(s.blocks)) }
func (s *memStore) Indexed() bool     { return s.indexed }
func (s *memStore) SetIndexed()       { s.indexed = true }
func (s *memStore) Damaged(err error) { s.damage = err }
func (s *memStore) Get(lblk uint32) (Block, error) {
	s.gets++
	b := s.blocks[lblk]
	if b.refs++; b.refs == 1 {
		b.known, b.changing = append(b.known[:0], b.data...), false
	}
	return b, nil
}

func (s *memStore) Append() (uint32, Block, error) {
	if s.most > 0 && len(s.blocks) >= s.most {
		return 0, nil, errNoSpace
	}
	s.appended++
	b := &memBlock{s: s, no: len(s.blocks), data: make([]byte, s.size), refs: 1, changing: true}
	s.blocks = append(s.blocks, b)
	return uint32(len(s.blocks) - 1), b, nil
}

func (s *memStore) Change(b Block) {
	m := b.(*memBlock)
	if !m.changing && !bytes.Equal(m.data, m.known) {
		s.t.Fatal("Change after the change")
	}
	m.changing = true
}

func (s *memStore) Dirty(b Block) {
	m := b.(*memBlock)
	if !m.changing {
		s.t.Fatal("Dirty without Change")
	}
	if m.refs == 0 {
		s.t.Fatal("Dirty of a block without a reference")
	}
	if s.dirtied != nil {
		s.dirtied[m] = true
	}
}

// check insists that no reference is left and that every checksum is right.
func (s *memStore) check() {
	s.t.Helper()
	for i, b := range s.blocks {
		require.Zero(s.t, b.refs, "references to block %d", i)
		b.verified = false
	}
}

// super is a superblock with what directories need.
func super(t testing.TB, blockSize int, csum, filetype, index, largeDir bool, hash uint8) *disk.Superblock {
	s := &disk.Superblock{InodesCount: 1 << 30, DefHashVersion: hash, HashSeed: [4]uint32{1, 2, 3, 4}}
	for s.BlockSize() < blockSize {
		s.LogBlockSize++
	}
	if csum {
		s.FeatureROCompat |= disk.ROCompatMetadataCsum
	}
	if filetype {
		s.FeatureIncompat |= disk.IncompatFiletype
	}
	if index {
		s.FeatureCompat |= disk.CompatDirIndex
	}
	if largeDir {
		s.FeatureIncompat |= disk.IncompatLargeDir
	}
	return s
}

const testIno = 12

func newDir(t testing.TB, sb *disk.Superblock) (*Dir, *memStore) {
	t.Helper()
	d, err := New(sb, testIno, &disk.Inode{Mode: disk.ModeDir | 0o755, Generation: 77})
	require.NoError(t, err)
	s := &memStore{t: t, size: sb.BlockSize()}
	require.NoError(t, d.Init(s, 2))
	return d, s
}

// TestForeignFlags: volumes with encrypted or case-insensitive directories are refused, so the flag of one is damage, as for e2fsck.
func TestForeignFlags(t *testing.T) {
	for _, flag := range []uint32{disk.FlEncrypt, disk.FlCasefold} {
		_, err := New(&disk.Superblock{LogBlockSize: 2}, testIno, &disk.Inode{Mode: disk.ModeDir | 0o755, Flags: flag})
		require.ErrorAs(t, err, new(*disk.CorruptError))
	}
}
