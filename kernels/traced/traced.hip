/*
 * The kernels of measurements: the engine's, built so that lanes note when the steps of each command happen (trace.h), and those that
 * write and check the bytes that are moved. They are an image of their own, because a mount has no use for them: its lanes have no
 * instruction more, and a driver compiles PTX when it loads it.
 */
#define LANEFS_TRACE
#include "../engine.hip"

/*
 * A range of a device that lies in memory: kernels/traced.Block. Word i of its memory is word (offset / 8 + i) of the pattern, so what
 * a block holds depends on where it is on the device alone, however it was cut into commands, and a block that went elsewhere is
 * wrong there.
 */
struct block {
	uint64_t at, bytes, offset;
};
static_assert(sizeof(block) == 24, "the CPU writes them");

/* What is wrong in one: kernels/traced.Wrong. first is a word of the block, where words are wrong. */
struct wrong {
	uint64_t words, first;
};
static_assert(sizeof(wrong) == 16, "the CPU reads them");

/* Wave i has the blocks i, i + waves, and so on. */
LANEFS_FN void write_blocks(uint64_t i, uint64_t threads, uint64_t blocks, uint64_t count, uint64_t seed) {
	for (uint64_t n = i / wave::W; n < count; n += threads / wave::W) {
		block b = at<const block>(blocks)[n];
		for (uint64_t w = self<wave>(); w < b.bytes / 8; w += wave::W)
			at<uint64_t>(b.at)[w] = pattern(seed, b.offset / 8 + w);
	}
}

LANEFS_FN void check_blocks(uint64_t i, uint64_t threads, uint64_t blocks, uint64_t count, uint64_t seed, uint64_t out) {
	for (uint64_t n = i / wave::W; n < count; n += threads / wave::W) {
		block b = at<const block>(blocks)[n];
		uint64_t words = 0, first = ~0ull;
		for (uint64_t w = self<wave>(); w < b.bytes / 8; w += wave::W)
			if (at<const uint64_t>(b.at)[w] != pattern(seed, b.offset / 8 + w)) {
				words++;
				first = w < first ? w : first;
			}
		words = sum<wave>(words);
		first = minimum<wave>(first);
		if (self<wave>() == 0) {
			at<wrong>(out)[n].words = words;
			at<wrong>(out)[n].first = first;
		}
	}
}

LANEFS_FN void clock_thread(uint64_t i, uint64_t, uint64_t out, uint64_t) {
	if (i == 0)
		store(at<uint64_t>(out), clock());
}

LANEFS_KERNEL3(lanefs_write_blocks, write_blocks)
LANEFS_KERNEL4(lanefs_check_blocks, check_blocks)
LANEFS_KERNEL2(lanefs_clock, clock_thread)
