/*
 * Copies one piece from host memory to the device by one block, and then stores a number to the host's memory, which the CPU polls: of several threads that copy
 * at once each waits less than for a copy of the driver's (an H100, eight threads: 16 KiB 16 us instead of 20, 64 KiB 24 instead of 44).
 *
 * dst and src are multiples of 16, quads how many sixteen bytes there are. When the host sees the number at word, all of them are at dst.
 */
#ifndef LANEFS_PUT_H
#define LANEFS_PUT_H

#include "gather.h"

namespace lanefs {

/* How many loads a thread has in flight: 256 threads copy 16 KiB with one trip over PCIe. */
constexpr uint32_t put_loads = 4;

/* The block's threads wait for one another, and what they stored comes before what is after. On a CPU they run one after the other. */
LANEFS_FN void meet() {
#if defined(__NVPTX__)
	__nvvm_bar_sync(0);
#endif
}

LANEFS_FN void put(uint64_t i, uint64_t threads, uint64_t dst, uint64_t src, uint64_t quads, uint64_t word, uint64_t number) {
	copy_part<put_loads, quad>(i, threads, dst, src, quads, load_quad);
	meet();
	if (i == threads - 1) { /* on a CPU the last one that runs */
		release();
		store(at<uint32_t>(word), (uint32_t)number);
	}
}

} // namespace lanefs

#endif
