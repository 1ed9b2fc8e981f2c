// Package traced holds the kernels of measurements: those of package kernels, built so that each lane with a Trace area notes when the steps
// of a command happen, and kernels that write and check the bytes that commands move. A mount uses none of them.
package traced

import (
	"embed"
	"structs"

	"github.com/lanefs/lanefs/kernels"
)

// Made by build.sh of package kernels, and committed.
//
//go:embed images/*.gz
var built embed.FS

// Image is what gpu.Runtime.Load takes on a device of the architecture arch. It has all that kernels.Image has, by the same names.
func Image(arch string) ([]byte, error) { return kernels.Images(built).Image(arch) }

// The kernels that only these images have. All arguments are 64-bit words. blocks is the device address of an array of Block, 8-byte
// aligned; the i-th wave works on the i-th and each one a launch's waves further, so blocks of threads are multiples of
// gpu.Facts.WaveSize.
const (
	// WriteBlocksKernel (blocks, count, seed) writes the pattern of each block.
	WriteBlocksKernel = "lanefs_write_blocks"
	// CheckBlocksKernel (blocks, count, seed, out) compares each block with it; out is an array of Wrong, one a block.
	CheckBlocksKernel = "lanefs_check_blocks"
	// ClockKernel (out, 0) stores the time of the clock by which lanes trace, in its ticks, to a 64-bit word.
	ClockKernel = "lanefs_clock"
)

// Block is a range of a device that lies in memory at At. Word i of it, of 64 bits, is kernels.Pattern(seed, Offset/8+i) of the device:
// what a block holds depends on where it is alone. Bytes and Offset are multiples of 8.
type Block struct {
	_                 structs.HostLayout
	At, Bytes, Offset uint64
}

// Wrong says how many words of a Block are not the pattern's, and which is the first; that means something if there are any.
type Wrong struct {
	_            structs.HostLayout
	Words, First uint64
}

// BlockSize and WrongSize are their bytes in an array.
const (
	BlockSize = 24
	WrongSize = 16
)
