package partition

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"unicode/utf16"

	"github.com/lanefs/lanefs/blockdev"
)

const (
	gptSignature  = "EFI PART"
	gptHeaderSize = 92
	gptEntrySize  = 128
	gptMaxEntries = 1024
)

// gpt reads the first of the two copies of the table that is whole.
func (r *reader) gpt() (*Table, error) {
	t, first := r.gptAt(1)
	if first == nil {
		return t, nil
	}
	t, second := r.gptAt(blockdev.LBA(r.d.Info().Blocks) - 1)
	if second != nil {
		if other := r.otherBlock(); other > 0 {
			return nil, fmt.Errorf("the GPT is of a disk with blocks of %d bytes, and those of this one have %d; of an image lba=%[1]d says so", other, r.block)
		}
		return nil, fmt.Errorf("the GPT is damaged: %w; and so is its copy at the end of the disk: %w", first, second)
	}
	t.Damage = first.Error()
	return t, nil
}

// otherBlock is the size of the blocks of which the table was made, if it is not the disk's; 0: there is no telling. A copy of a drive may have another.
func (r *reader) otherBlock() int {
	const least, most = 512, 4096
	b, err := r.read(0, most/r.block+1)
	if err != nil {
		return 0
	}
	for size := least; size <= most; size *= 2 {
		if size != r.block && string(b[size:][:len(gptSignature)]) == gptSignature {
			return size
		}
	}
	return 0
}

// gptAt reads the copy whose header is at lba (UEFI 2.10 §5.3.2, §5.3.3).
func (r *reader) gptAt(lba blockdev.LBA) (*Table, error) {
	blocks := uint64(r.d.Info().Blocks)
	if uint64(lba) >= blocks {
		return nil, fmt.Errorf("the disk has %d blocks only", blocks)
	}
	h, err := r.read(lba, 1)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	size := le.Uint32(h[12:])
	if string(h[:8]) != gptSignature {
		return nil, fmt.Errorf("block %d has no signature", lba)
	}
	if size < gptHeaderSize || size > uint32(len(h)) {
		return nil, fmt.Errorf("the header in block %d says that it has %d bytes", lba, size)
	}
	want := le.Uint32(h[16:])
	clear(h[16:20])
	if got := crc32.ChecksumIEEE(h[:size]); got != want {
		return nil, fmt.Errorf("the header in block %d has checksum %08x, not %08x", lba, got, want)
	}
	if at := le.Uint64(h[24:]); at != uint64(lba) {
		return nil, fmt.Errorf("the header in block %d is that of block %d", lba, at)
	}
	low, high, array := le.Uint64(h[40:]), le.Uint64(h[48:]), le.Uint64(h[72:])
	n, each := le.Uint32(h[80:]), le.Uint32(h[84:])
	if each < gptEntrySize || each%8 != 0 || each > 4096 || n == 0 || n > gptMaxEntries {
		return nil, fmt.Errorf("the header in block %d has %d entries of %d bytes", lba, n, each)
	}
	need := (uint64(n)*uint64(each) + uint64(r.block) - 1) / uint64(r.block)
	if array >= blocks || need > blocks-array || low > high || high >= blocks {
		return nil, fmt.Errorf("the header in block %d has its entries, or what they may use, outside the disk of %d blocks", lba, blocks)
	}
	b, err := r.read(blockdev.LBA(array), int(need))
	if err != nil {
		return nil, err
	}
	b = b[:n*each]
	if got, want := crc32.ChecksumIEEE(b), le.Uint32(h[88:]); got != want {
		return nil, fmt.Errorf("the entries of the header in block %d have checksum %08x, not %08x", lba, got, want)
	}
	t := &Table{}
	var all spans
	for i := range int(n) {
		e := b[i*int(each):][:gptEntrySize]
		if [16]byte(e[:16]) == ([16]byte{}) {
			continue
		}
		s := &span{number: i + 1, first: le.Uint64(e[32:]), last: le.Uint64(e[40:]), id: guid(e[16:32]), name: name(e[56:128])}
		s.within(low, high)
		all = append(all, s)
	}
	all.overlaps()
	all.put(t)
	return t, nil
}

// guid spells a GUID: its first three fields are little-endian.
func guid(b []byte) string {
	le := binary.LittleEndian
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", le.Uint32(b), le.Uint16(b[4:]), le.Uint16(b[6:]), b[8:10], b[10:16])
}

// name is UTF-16 up to the first zero.
func name(b []byte) string {
	var u []uint16
	for ; len(b) > 1; b = b[2:] {
		c := binary.LittleEndian.Uint16(b)
		if c == 0 {
			break
		}
		u = append(u, c)
	}
	return string(utf16.Decode(u))
}
