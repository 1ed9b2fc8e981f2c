package disk

// The orphan file ([layout] Orphan file): an array of inode numbers, 0 for free places, that ends every block with a
// magic and a checksum.
const (
	OrphanMagic    = 0x0B10CA04
	OrphanTailSize = 8
)

// OrphansPerBlock is the number of places in one block of the orphan file.
func (s *Superblock) OrphansPerBlock() int { return (s.BlockSize() - OrphanTailSize) / 4 }

// GetOrphan is the inode number in place i of an orphan file's block, 0 if the place is free.
func GetOrphan(block []byte, i int) uint32 { return le.Uint32(block[4*i:]) }

// PutOrphan sets place i of an orphan file's block. SetOrphanTail comes after.
func PutOrphan(block []byte, i int, ino uint32) { le.PutUint32(block[4*i:], ino) }

func orphanCsum(seed uint32, blockNo uint64, block []byte) uint32 {
	return CRC32C(CRC32C64(seed, blockNo), block[:len(block)-OrphanTailSize])
}

// VerifyOrphanBlock checks the tail of a block of the orphan file that lies at blockNo. seed is InodeSeed of the orphan
// file.
func (s *Superblock) VerifyOrphanBlock(seed uint32, blockNo uint64, block []byte) error {
	t := block[len(block)-OrphanTailSize:]
	if m := le.Uint32(t); m != OrphanMagic {
		return Corrupt("orphan file", "magic of block %d is %#08x instead of %#08x", blockNo, m, OrphanMagic)
	}
	if !s.MetadataCsum() {
		return nil
	}
	if got, want := le.Uint32(t[4:]), orphanCsum(seed, blockNo, block); got != want {
		return Corrupt("orphan file", "checksum of block %d is %#08x, should be %#08x", blockNo, got, want)
	}
	return nil
}

// SetOrphanTail writes the tail of a block of the orphan file that lies at blockNo.
func (s *Superblock) SetOrphanTail(seed uint32, blockNo uint64, block []byte) {
	t := block[len(block)-OrphanTailSize:]
	le.PutUint32(t, OrphanMagic)
	if s.MetadataCsum() {
		le.PutUint32(t[4:], orphanCsum(seed, blockNo, block))
	}
}
