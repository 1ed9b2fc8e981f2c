/*
 * Kernels that write and check a pattern: the proof that a mapping leads to the memory that it should. A mapping can succeed
 * and still lead elsewhere, so the side that should see the bytes computes on them.
 */
#ifndef LANEFS_PROBE_H
#define LANEFS_PROBE_H

#include "device.h"

namespace lanefs {

/* Word i of the pattern of a seed: the finaliser of SplitMix64, so that a shifted or stale block never matches. */
LANEFS_FN uint64_t pattern(uint64_t seed, uint64_t i) {
	uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* Writes `words` 64-bit words of the pattern to dst. */
LANEFS_FN void write_pattern(uint64_t thread, uint64_t threads, uint64_t dst, uint64_t words, uint64_t seed) {
	for (uint64_t i = thread; i < words; i += threads)
		at<uint64_t>(dst)[i] = pattern(seed, i);
}

/* Adds to out[0] how many words of src differ from the pattern, and to out[1] the sum of all words. */
LANEFS_FN void check_pattern(uint64_t thread, uint64_t threads, uint64_t src, uint64_t words, uint64_t seed, uint64_t out) {
	uint64_t wrong = 0, sum = 0;
	for (uint64_t i = thread; i < words; i += threads) {
		uint64_t w = at<uint64_t>(src)[i];
		wrong += w != pattern(seed, i);
		sum += w;
	}
	__scoped_atomic_fetch_add(at<uint64_t>(out), wrong, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
	__scoped_atomic_fetch_add(at<uint64_t>(out) + 1, sum, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}

} // namespace lanefs

#endif
