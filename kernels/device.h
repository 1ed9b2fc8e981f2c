/*
 * What differs between the machines that run lanes: how a function is marked, memory ordered, time read.
 *
 * Everything above this header is the same source on an AMD GPU, an NVIDIA GPU and a CPU. It needs clang: gcc and nvcc
 * have no scoped atomics.
 */
#ifndef LANEFS_DEVICE_H
#define LANEFS_DEVICE_H

#include "layout.h"

#if defined(__HIP__) || defined(__CUDA__)
#define LANEFS_FN static inline __attribute__((device, always_inline))
#define LANEFS_FN_MEMBER inline __attribute__((device, always_inline))
#else
#define LANEFS_FN static inline __attribute__((always_inline))
#define LANEFS_FN_MEMBER inline __attribute__((always_inline))
#endif

#if defined(__AMDGPU__) || defined(__NVPTX__)
#define LANEFS_GLOBAL __attribute__((address_space(1)))
#else
#define LANEFS_GLOBAL
#endif

namespace lanefs {

/* Sixteen bytes: the widest store that all targets have. */
typedef uint32_t quad __attribute__((ext_vector_type(4)));

/* The device address a as a pointer. Saying that it is global memory spares a GPU the slower flat accesses. */
template <typename T> LANEFS_FN T *at(uint64_t a) { return (T *)(T LANEFS_GLOBAL *)a; }

/* Relaxed and system-scope: goes to memory that the CPU or the controller shares, orders nothing by itself. */
template <typename T> LANEFS_FN T load(const T *p) {
	return __scoped_atomic_load_n(p, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
template <typename T> LANEFS_FN void store(T *p, T v) {
	__scoped_atomic_store_n(p, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}

/*
 * Two 64-bit words at p, a multiple of 16. On NVIDIA neither is ever seen torn; elsewhere a release comes before whoever is to
 * see them looks.
 */
LANEFS_FN void store_pair(uint64_t *p, uint64_t first, uint64_t second) {
#if defined(__NVPTX__)
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" : : "l"((uint64_t LANEFS_GLOBAL *)p), "l"(first), "l"(second) : "memory");
#else
	*(quad *)p = quad{(uint32_t)first, (uint32_t)(first >> 32), (uint32_t)second, (uint32_t)(second >> 32)};
#endif
}

/*
 * Sixteen bytes at p, a multiple of 16, that nobody else stores meanwhile. On NVIDIA the compiler leaves such loads where they
 * are: together, so that they wait together, where it spreads plain ones out to save registers.
 */
LANEFS_FN quad load_quad(const quad *p) {
#if defined(__NVPTX__)
	quad v;
	asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		: "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"((const quad LANEFS_GLOBAL *)p) : "memory");
	return v;
#else
	return *p;
#endif
}

/*
 * System-wide fences. NVPTX cannot select C11 fences (LLVM 19). Arm's C11 fences reach the inner shareable domain only,
 * and a device may stand in the outer one.
 */

/* All earlier loads and stores come before all later stores. */
LANEFS_FN void release() {
#if defined(__NVPTX__)
	asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif defined(__aarch64__)
	asm volatile("dmb osh" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

/* All earlier loads come before all later loads and stores. */
LANEFS_FN void acquire() {
#if defined(__NVPTX__)
	asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif defined(__aarch64__)
	asm volatile("dmb oshld" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

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

/*
 * A load, system-scope, that comes before all later loads and stores of its thread. On NVIDIA it waits for itself only,
 * where a fence would wait for every store on its way too.
 */
#if defined(__NVPTX__)
#define LANEFS_LOADS_ACQUIRE true
#define LANEFS_LOAD_ACQUIRE(type, suffix, constraint) \
	LANEFS_FN type load_acquire(const type *p) { \
		type v; \
		asm volatile("ld.acquire.sys.global." suffix " %0, [%1];" : "=" constraint(v) : "l"((const type LANEFS_GLOBAL *)p) : "memory"); \
		return v; \
	}
#else
#define LANEFS_LOADS_ACQUIRE false
#define LANEFS_LOAD_ACQUIRE(type, suffix, constraint) \
	LANEFS_FN type load_acquire(const type *p) { \
		type v = load(p); \
		acquire(); \
		return v; \
	}
#endif
LANEFS_LOAD_ACQUIRE(uint32_t, "u32", "r")
LANEFS_LOAD_ACQUIRE(uint64_t, "u64", "l")

/* The device's own steady clock, in its own ticks: ns on NVIDIA, 10 ns on AMD's Instinct; what the CPU counts on a CPU. */
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

/* Gives the memory system and the neighbours a moment between polls: some 50 ns, and on a GPU about so many ticks of its clock. */
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
