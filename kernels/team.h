/*
 * A lane's team: W threads that run in step, each of which handles K slots at a time.
 *
 *     single    one thread, one slot: CPUs, whose loads are cheap and overtake one another anyway
 *     thread    one thread, several slots: a lane that is one thread of a GPU. Its loads wait for memory together
 *     wave      a wave, a slot for each thread: the wave fills a batch, one thread rings, each polls a completion of its own
 *
 * The source is the same for all: it handles "slots" 0 to W*K-1, of which thread i has i, i+W, ... A mask has a bit for each
 * slot. Every thread of a team has a copy of the lane, all of them equal but for two sums (lanefs_counters.bytes_*), of which
 * each has a part; so all take the same branches, and every function that says "all together" is reached by all.
 */
#ifndef LANEFS_TEAM_H
#define LANEFS_TEAM_H

#include "device.h"

namespace lanefs {

#if defined(__AMDGPU__)
#if defined(__GFX9__)
#define LANEFS_AMD_WAVE 64
#else
#define LANEFS_AMD_WAVE 32 /* what clang makes for later ones */
#endif
constexpr uint32_t wave_size = LANEFS_AMD_WAVE;
#elif defined(__NVPTX__)
constexpr uint32_t wave_size = 32;
#elif defined(LANEFS_WAVE)
/* Tests: a wave of so many threads on a CPU, which meet in functions of the test's (tsan/wave.h). */
constexpr uint32_t wave_size = LANEFS_WAVE;
uint32_t wave_self();
uint64_t wave_ballot(bool p);
uint32_t wave_shuffle(uint32_t v, uint32_t from);
void wave_sync();
#else
constexpr uint32_t wave_size = 1;
#endif

/* Where the threads of a team have a copy of the lane each. On a CPU it is in the first-level cache anyway. */
#if defined(__AMDGPU__) || defined(__NVPTX__) || defined(LANEFS_WAVE)
#define LANEFS_COPIES
#endif

template <uint32_t w, uint32_t k> struct team {
	static constexpr uint32_t W = w, K = k, slots = w * k;
	/*
	 * Whether each poll is an acquire by itself. One thread's loads would wait for one another then; elsewhere than on NVIDIA
	 * an acquire is a fence, which is made once something was found.
	 */
	static constexpr bool acquires = nvme::loads_acquire && k == 1;
	/* Whether it polls all that may have come by one load, while little is in flight (poll.h). */
	static constexpr bool one_load = acquires && w != 1;
	/*
	 * One thread with several slots. No other thread shares its instructions, so full batches of plain commands have a fast path
	 * without branches: each costs such a thread as much as five to ten other instructions.
	 */
	static constexpr bool multi_slot = w == 1 && k != 1;
	static_assert(slots <= 64, "a mask has 64 bits");
	static_assert(w == 1 || w == wave_size, "a team is a thread or a wave");
	static_assert(w == 1 || k == 1, "a wave has one slot a thread");
};
#if defined(LANEFS_SLOTS)
using single = team<1, LANEFS_SLOTS>; /* tests: several slots on a CPU, as GPUs have them */
#else
using single = team<1, 1>;
#endif
#if defined(__NVPTX__)
using thread = team<1, 4>;
#elif defined(__AMDGPU__)
using thread = team<1, 2>; /* four need more scalar registers than gfx90a has */
#else
using thread = single;
#endif
using wave = team<wave_size, 1>;

/* The number of this thread in its team. */
template <typename T> LANEFS_FN uint32_t self() {
	if (T::W == 1)
		return 0;
#if defined(__AMDGPU__)
	return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
#elif defined(__NVPTX__)
	return __nvvm_read_ptx_sreg_tid_x() % 32;
#elif defined(LANEFS_WAVE)
	return wave_self();
#else
	return 0;
#endif
}

/* This thread's k-th slot. */
template <typename T> LANEFS_FN uint32_t slot(uint32_t k) { return k * T::W + self<T>(); }

/* All together: the threads for which p holds. */
template <typename T> LANEFS_FN uint64_t ballot(bool p) {
	if (T::W == 1)
		return p;
#if defined(__AMDGPU__)
#if LANEFS_AMD_WAVE == 64
	return __builtin_amdgcn_ballot_w64(p);
#else
	return __builtin_amdgcn_ballot_w32(p);
#endif
#elif defined(__NVPTX__)
	return __nvvm_vote_ballot_sync(~0u, p);
#elif defined(LANEFS_WAVE)
	return wave_ballot(p);
#else
	return p;
#endif
}

/* All together: the slots for which p holds. */
template <typename T, uint32_t n> LANEFS_FN uint64_t ballot_slots(const bool (&p)[n]) {
	uint64_t mask = 0;
#pragma unroll
	for (uint32_t k = 0; k < n; k++)
		mask |= ballot<T>(p[k]) << (k * T::W);
	return mask;
}

/* All together: v of the thread `from`, which is the same number for all. */
template <typename T> LANEFS_FN uint32_t broadcast(uint32_t v, uint32_t from) {
	if (T::W == 1)
		return v;
#if defined(__AMDGPU__)
	return (uint32_t)__builtin_amdgcn_readlane((int)v, (int)from);
#elif defined(__NVPTX__)
	return (uint32_t)__nvvm_shfl_sync_idx_i32(~0u, (int)v, (int)from, 31);
#elif defined(LANEFS_WAVE)
	return wave_shuffle(v, from);
#else
	(void)from;
	return v;
#endif
}
template <typename T> LANEFS_FN uint64_t broadcast(uint64_t v, uint32_t from) {
	return (uint64_t)broadcast<T>((uint32_t)(v >> 32), from) << 32 | broadcast<T>((uint32_t)v, from);
}

#if defined(__NVPTX__)
/* All together: v of the thread `from`, which each chooses. */
template <typename T> LANEFS_FN uint32_t shuffle(uint32_t v, uint32_t from) {
	return (uint32_t)__nvvm_shfl_sync_idx_i32(~0u, (int)v, (int)from, 31);
}
#endif

/* All together: the time, the same for all. */
template <typename T> LANEFS_FN uint64_t time() { return broadcast<T>(clock(), 0); }

/* All together: v of the slot `from`. */
template <typename T> LANEFS_FN uint32_t broadcast_slot(const uint32_t (&v)[T::K], uint32_t from) {
	uint32_t got = 0;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		if (T::K == 1 || from / T::W == k)
			got = broadcast<T>(v[k], from % T::W);
	return got;
}

/* All together: v of the thread whose number differs in one bit. */
template <typename T> LANEFS_FN uint64_t shuffle_xor(uint64_t v, uint32_t bit) {
#if defined(__AMDGPU__)
	int at = (int)((self<T>() ^ bit) * 4);
	uint32_t low = (uint32_t)__builtin_amdgcn_ds_bpermute(at, (int)(uint32_t)v);
	uint32_t high = (uint32_t)__builtin_amdgcn_ds_bpermute(at, (int)(uint32_t)(v >> 32));
	return (uint64_t)high << 32 | low;
#elif defined(__NVPTX__)
	uint32_t low = (uint32_t)__nvvm_shfl_sync_bfly_i32(~0u, (int)(uint32_t)v, (int)bit, 31);
	uint32_t high = (uint32_t)__nvvm_shfl_sync_bfly_i32(~0u, (int)(uint32_t)(v >> 32), (int)bit, 31);
	return (uint64_t)high << 32 | low;
#elif defined(LANEFS_WAVE)
	uint32_t at = self<T>() ^ bit, low = wave_shuffle((uint32_t)v, at);
	return (uint64_t)wave_shuffle((uint32_t)(v >> 32), at) << 32 | low;
#else
	(void)bit;
	return v;
#endif
}

/* All together: the sum of every thread's v, and the least of them. */
template <typename T> LANEFS_FN uint64_t sum(uint64_t v) {
	for (uint32_t bit = 1; bit < T::W; bit *= 2)
		v += shuffle_xor<T>(v, bit);
	return v;
}
template <typename T> LANEFS_FN uint64_t minimum(uint64_t v) {
	for (uint32_t bit = 1; bit < T::W; bit *= 2) {
		uint64_t other = shuffle_xor<T>(v, bit);
		v = other < v ? other : v;
	}
	return v;
}

/* All together: what each thread has stored is there for the others of its team. */
template <typename T> LANEFS_FN void sync_team() {
	if (T::W == 1)
		return;
#if defined(__AMDGPU__)
	__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
	__builtin_amdgcn_wave_barrier();
#elif defined(__NVPTX__)
	__nvvm_bar_warp_sync(~0u);
#elif defined(LANEFS_WAVE)
	wave_sync();
#endif
}

/* Whether a batch from `position` on does not reach beyond the end of a ring of `size` entries. */
template <typename T> LANEFS_FN bool contiguous(uint32_t position, uint32_t size) { return position + T::slots <= size; }

/* How many slots from slot 0 on are in the mask without a gap. */
LANEFS_FN uint32_t leading(uint64_t mask) { return mask == ~0ull ? 64 : (uint32_t)__builtin_ctzll(~mask); }

LANEFS_FN uint32_t count(uint64_t mask) { return (uint32_t)__builtin_popcountll(mask); }

/* How many slots of the mask are before s. */
LANEFS_FN uint32_t rank(uint64_t mask, uint32_t s) { return count(mask & ((1ull << s) - 1)); }

/* All together: the slots before n whose v an earlier one has too. */
template <typename T> LANEFS_FN uint64_t duplicates(const uint32_t (&v)[T::K], uint32_t n) {
	bool again[T::K] = {};
#if defined(__NVPTX__)
	if (T::W != 1) {
		uint32_t s = self<T>();
		/* Slots from n on get values of their own. */
		uint32_t same = __nvvm_match_any_sync_i32(~0u, s < n ? v[0] : 0x80000000u | s);
		again[0] = (same & ((1u << s) - 1)) != 0;
		return ballot_slots<T>(again);
	}
#endif
	if (T::W == 1) {
#pragma unroll
		for (uint32_t k = 0; k < T::K; k++)
#pragma unroll
			for (uint32_t from = 0; from < k; from++)
				again[k] = again[k] || (k < n && v[k] == v[from]);
	} else {
		for (uint32_t from = 0; from + 1 < n; from++) {
			uint32_t earlier = broadcast<T>(v[0], from);
			again[0] = again[0] || (from < self<T>() && self<T>() < n && v[0] == earlier);
		}
	}
	return ballot_slots<T>(again);
}

} // namespace lanefs

#endif
