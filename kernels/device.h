/*
 * What differs between the devices that run lanes, besides what nvme_qp.h has of them: wide accesses, the full fence, the
 * clock.
 *
 * Everything above this header is the same source on an AMD GPU, an NVIDIA GPU and a CPU. It needs clang, for the
 * builtins of all three and for the address spaces.
 */
#ifndef LANEFS_DEVICE_H
#define LANEFS_DEVICE_H

#include "layout.h"
#include "nvme_qp.h"

#define LANEFS_FN NVME_FN
#if defined(__HIP__) || defined(__CUDA__)
#define LANEFS_FN_MEMBER inline __attribute__((device, always_inline))
#else
#define LANEFS_FN_MEMBER inline __attribute__((always_inline))
#endif

namespace lanefs {

using nvme::acquire;
using nvme::advance;
using nvme::at;
using nvme::load;
using nvme::load_acquire;
using nvme::quad;
using nvme::release;
using nvme::store;

/*
 * Stores two 64-bit words at p, a multiple of 16. On NVIDIA no reader ever sees one of them torn; elsewhere the caller makes a
 * release before it shows them to the reader.
 */
LANEFS_FN void store_pair(uint64_t *p, uint64_t first, uint64_t second) {
#if defined(__NVPTX__)
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" : : "l"((uint64_t NVME_GLOBAL *)p), "l"(first), "l"(second) : "memory");
#else
	*(quad *)p = quad{(uint32_t)first, (uint32_t)(first >> 32), (uint32_t)second, (uint32_t)(second >> 32)};
#endif
}

/*
 * Loads sixteen bytes at p, a multiple of 16, which only the caller stores. On NVIDIA the compiler leaves such loads where they
 * are: together, so that they wait together, where it spreads plain ones out to save registers.
 */
LANEFS_FN quad load_quad(const quad *p) {
#if defined(__NVPTX__)
	quad v;
	asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		: "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"((const quad NVME_GLOBAL *)p) : "memory");
	return v;
#else
	return *p;
#endif
}

/*
 * A word that threads of one device share, in its memory: a load, and the store of `next` if `*seen` is there, else a load into it.
 * Both order nothing.
 */
LANEFS_FN uint64_t load_device(const uint64_t *p) {
#if defined(__NVPTX__)
	uint64_t v;
	asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"((const uint64_t NVME_GLOBAL *)p) : "memory");
	return v;
#else
	return __scoped_atomic_load_n(p, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
#endif
}
LANEFS_FN bool compare_exchange_device(uint64_t *p, uint64_t *seen, uint64_t next) {
#if defined(__NVPTX__)
	uint64_t was;
	asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
		: "=l"(was) : "l"((uint64_t NVME_GLOBAL *)p), "l"(*seen), "l"(next) : "memory");
	bool stored = was == *seen;
	*seen = was;
	return stored;
#else
	return __scoped_atomic_compare_exchange_n(p, seen, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
#endif
}

/* A struct that may lie over memory of another type. */
#define LANEFS_ALIAS __attribute__((may_alias))

/* All earlier loads and stores come before all later ones: also a store before a load. */
LANEFS_FN void full() {
#if defined(__NVPTX__)
	asm volatile("fence.sc.sys;" ::: "memory");
#elif defined(__aarch64__)
	asm volatile("dmb osh" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* The device's steady clock, in its own ticks: 1 ns on NVIDIA, 10 ns on AMD's Instinct, the counter's on a CPU. */
LANEFS_FN uint64_t clock() {
#if defined(__NVPTX__)
	uint64_t t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
#elif defined(__AMDGPU__)
	return __builtin_readsteadycounter();
#elif defined(__aarch64__)
	uint64_t t;
	asm volatile("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#else
	return __builtin_readcyclecounter();
#endif
}

/*
 * Waits between polls, so that other lanes get the memory's bandwidth: some 50 ns, and on a GPU about so many ticks of
 * its clock.
 */
LANEFS_FN void pause(uint64_t ticks) {
#if defined(__NVPTX__)
	asm volatile("nanosleep.u32 %0;" : : "r"((uint32_t)(ticks < 64 ? 64 : ticks)));
#elif defined(__AMDGPU__)
	constexpr uint64_t step = 3; /* 64 cycles */
	do
		__builtin_amdgcn_s_sleep(1);
	while (ticks >= step && (ticks -= step) != 0);
#elif defined(__aarch64__)
	(void)ticks;
	asm volatile("yield");
#else
	(void)ticks;
	__builtin_ia32_pause();
#endif
}

#if defined(__NVPTX__)
/* Spins for so many cycles, for times shorter than pause() can wait. */
LANEFS_FN void spin(uint64_t cycles) {
	uint64_t start, now;
	asm volatile("mov.u64 %0, %%clock64;" : "=l"(start));
	do
		asm volatile("mov.u64 %0, %%clock64;" : "=l"(now));
	while (now - start < cycles);
}
#endif

} // namespace lanefs

#endif
