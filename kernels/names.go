package kernels

import "structs"

// The kernels of every image, by name. All arguments are 64-bit words; blocks have at most MaxBlock threads. Threads are
// counted along x. lanes is the device address of an array of Lane.
const (
	// ResetKernel (lanes, count): thread i makes lane i ready for a queue pair that is about to be created, zeroing the
	// CQ. What an earlier queue pair left in flight is answered with EngineQueueDead; work not yet taken stays, and
	// counters go on. Afterwards Status.State is StateReady; if it is not, Status.Failed says why, or the lane's magic,
	// version or size are not the kernel's.
	ResetKernel = "lanefs_reset"
	// StepKernel (lanes, count, now): thread i does one step of lane i and never waits. now is the time in ticks.
	StepKernel = "lanefs_step"
	// BatchKernel (lanes, count, ticks): thread i steps lane i by the device's own clock until nothing is in flight and
	// no work is left, or until ticks have passed.
	BatchKernel = "lanefs_batch"
	// ResidentKernel (lanes, count, idle, limit, word, number): thread i steps lane i by the device's own clock. A lane dozes that has
	// had nothing to do for idle ticks. All leave when all doze, when one is told CommandPark, or after limit ticks. word is the
	// address of a 64-bit word in the device's memory, zero at first, number one that no earlier launch with that word had, not 0. Of
	// launches with the same word one runs at a time.
	ResidentKernel = "lanefs_resident"
	// WaveStepKernel, WaveBatchKernel and WaveResidentKernel are the same for lanes of a whole wave: the i-th wave serves lane
	// i, so blocks are multiples of gpu.Facts.WaveSize. On a CPU a wave is one thread.
	WaveStepKernel     = "lanefs_wave_step"
	WaveBatchKernel    = "lanefs_wave_batch"
	WaveResidentKernel = "lanefs_wave_resident"
	// RingKernel (doorbell, value): thread 0 stores value to the doorbell, an address.
	RingKernel = "lanefs_ring"
	// PRPKernel (out, list, list_iova, list_bytes, page_size, iova, len): thread 0 builds the PRPs of one transfer. out
	// receives PRP1, PRP2 and 1 for success as 64-bit words.
	PRPKernel = "lanefs_prp"
	// GatherKernel (pieces, count) copies count pieces, a GatherPiece each, in either direction and at any alignment: the i-th wave
	// copies piece i and each one a launch's waves further, so blocks are multiples of gpu.Facts.WaveSize. pieces is the device
	// address of the array, a multiple of 8; the addresses in it are the device's too. Pieces must not overlap.
	GatherKernel = "lanefs_gather"
	// WritePatternKernel (dst, words, seed) writes Pattern(seed, i) to the 64-bit word i of dst, with all threads.
	WritePatternKernel = "lanefs_write_pattern"
	// CheckPatternKernel (src, words, seed, out) adds to the first 64-bit word of out how many words of src differ from
	// the pattern, and to the second the sum of all words.
	CheckPatternKernel = "lanefs_check_pattern"
)

// MaxBlock is how many threads a block may have.
const MaxBlock = 256

// GatherPiece is one piece of GatherKernel: Bytes bytes from Src to Dst, any of which may be 0 or odd.
type GatherPiece struct {
	_               structs.HostLayout
	Dst, Src, Bytes uint64
}

// GatherPieceSize is a GatherPiece's bytes in an array of them.
const GatherPieceSize = 24

// Pattern is word i of the pattern of a seed (probe.h).
func Pattern(seed, i uint64) uint64 {
	z := seed + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
