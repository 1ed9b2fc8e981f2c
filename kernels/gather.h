/*
 * Copies many small pieces in one launch, in either direction: each has its own source and destination, in memory of the device or
 * of the host, at any alignment. A copy engine takes microseconds for each piece, a wave of this kernel copies 4 KiB with one trip
 * over PCIe.
 *
 * Wave i copies the pieces i, i + waves, and so on. So pieces should be of about the same size; a caller cuts a long one up. Pieces
 * must not overlap. The bytes have arrived when the launch has ended.
 */
#ifndef LANEFS_GATHER_H
#define LANEFS_GATHER_H

#include "team.h"

namespace lanefs {

/* One piece: kernels.GatherPiece. */
struct gather_piece {
	uint64_t dst, src, bytes;
};
static_assert(sizeof(gather_piece) == 24, "the CPU writes them");

/* How many loads a thread has in flight: with a wave of 32 threads that is 4 KiB. */
constexpr uint32_t gather_loads = 8;

/* Loads a unit that is not used again soon. On NVIDIA the compiler leaves such loads together, so that they wait together. */
template <typename U> LANEFS_FN U load_once(const U *p) {
#if defined(__NVPTX__)
	U v;
	if constexpr (sizeof(U) == 16) {
		asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
			: "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"((const U NVME_GLOBAL *)p) : "memory");
	} else if constexpr (sizeof(U) == 4) {
		asm volatile("ld.global.cs.u32 %0, [%1];" : "=r"(v) : "l"((const U NVME_GLOBAL *)p) : "memory");
	} else {
		uint32_t byte;
		asm volatile("ld.global.cs.u8 %0, [%1];" : "=r"(byte) : "l"((const U NVME_GLOBAL *)p) : "memory");
		v = (U)byte;
	}
	return v;
#else
	return __builtin_nontemporal_load(p);
#endif
}

/* All together: copies `units` units, gather_loads of a thread at a time. */
template <typename U> LANEFS_FN void copy_units(uint64_t dst, uint64_t src, uint64_t units) {
	constexpr uint64_t threads = wave::W;
	U *to = at<U>(dst);
	const U *from = at<const U>(src);
	uint64_t i = self<wave>();
	for (; i + (gather_loads - 1) * threads < units; i += gather_loads * threads) {
		U v[gather_loads];
#pragma unroll
		for (uint32_t k = 0; k < gather_loads; k++)
			v[k] = load_once(from + i + k * threads);
#pragma unroll
		for (uint32_t k = 0; k < gather_loads; k++)
			to[i + k * threads] = v[k];
	}
	for (; i < units; i += threads)
		to[i] = load_once(from + i);
}

/* All together: copies a piece by units of U as far as its ends are multiples of them, and the rest by bytes. */
template <typename U> LANEFS_FN void copy_aligned(gather_piece p) {
	uint64_t head = -p.dst & (sizeof(U) - 1);
	head = head < p.bytes ? head : p.bytes;
	uint64_t units = (p.bytes - head) / sizeof(U), end = head + units * sizeof(U);
	copy_units<uint8_t>(p.dst, p.src, head);
	copy_units<U>(p.dst + head, p.src + head, units);
	copy_units<uint8_t>(p.dst + end, p.src + end, p.bytes - end);
}

LANEFS_FN void gather_wave(uint64_t i, uint64_t threads, uint64_t pieces, uint64_t count) {
	for (uint64_t n = i / wave::W; n < count; n += threads / wave::W) {
		gather_piece p = at<const gather_piece>(pieces)[n];
		uint64_t apart = p.dst ^ p.src; /* where the low bits agree both can be aligned */
		if ((apart & 15) == 0)
			copy_aligned<quad>(p);
		else if ((apart & 3) == 0)
			copy_aligned<uint32_t>(p);
		else
			copy_units<uint8_t>(p.dst, p.src, p.bytes);
	}
}

} // namespace lanefs

#endif
