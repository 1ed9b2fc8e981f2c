/*
 * How a kernel is entered. LANEFS_KERNELn(name, fn) defines the kernel `name` of n 64-bit arguments; each of its threads
 * calls fn(i, threads, arguments...), i counting them from 0 along x.
 *
 * On a CPU a kernel is one C function that runs the whole launch on the caller's thread:
 *
 *     void name(const uint32_t dims[6], const uint64_t *args);
 *
 * dims being the grid's and then the block's x, y, z. One call per launch, whatever its size: a call from Go into C is
 * expensive.
 */
#ifndef LANEFS_KERNEL_H
#define LANEFS_KERNEL_H

#include "device.h"

#if defined(__AMDGPU__)
#define LANEFS_INDEX \
	((uint64_t)__builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + __builtin_amdgcn_workitem_id_x())
#define LANEFS_THREADS ((uint64_t)__builtin_amdgcn_grid_size_x())
#elif defined(__NVPTX__)
#define LANEFS_INDEX \
	((uint64_t)__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x())
#define LANEFS_THREADS ((uint64_t)__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x())
#endif

#if defined(__AMDGPU__) || defined(__NVPTX__)
/* Blocks of at most 256 threads: then each has registers enough for a whole lane. A file of simpler kernels sets another limit. */
#ifndef LANEFS_BLOCK
#define LANEFS_BLOCK 256
#endif
#if defined(__AMDGPU__)
#define LANEFS_ENTRY extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, LANEFS_BLOCK))) void
#else
#define LANEFS_ENTRY extern "C" __attribute__((global, launch_bounds(LANEFS_BLOCK))) void
#endif
#define LANEFS_KERNEL2(name, fn) \
	LANEFS_ENTRY name(uint64_t a, uint64_t b) { fn(LANEFS_INDEX, LANEFS_THREADS, a, b); }
#define LANEFS_KERNEL3(name, fn) \
	LANEFS_ENTRY name(uint64_t a, uint64_t b, uint64_t c) { fn(LANEFS_INDEX, LANEFS_THREADS, a, b, c); }
#define LANEFS_KERNEL4(name, fn) \
	LANEFS_ENTRY name(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { fn(LANEFS_INDEX, LANEFS_THREADS, a, b, c, d); }
#define LANEFS_KERNEL5(name, fn) \
	LANEFS_ENTRY name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e) { fn(LANEFS_INDEX, LANEFS_THREADS, a, b, c, d, e); }
#define LANEFS_KERNEL6(name, fn) \
	LANEFS_ENTRY name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) { \
		fn(LANEFS_INDEX, LANEFS_THREADS, a, b, c, d, e, f); \
	}
#define LANEFS_KERNEL7(name, fn) \
	LANEFS_ENTRY name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g) { \
		fn(LANEFS_INDEX, LANEFS_THREADS, a, b, c, d, e, f, g); \
	}
#else
#define LANEFS_HOST_KERNEL(name, ...) \
	extern "C" __attribute__((visibility("default"))) void name(const uint32_t dims[6], const uint64_t *args) { \
		uint64_t threads = (uint64_t)dims[0] * dims[1] * dims[2] * dims[3] * dims[4] * dims[5]; \
		for (uint64_t i = 0; i < threads; i++) { \
			__VA_ARGS__; \
		} \
	}
#define LANEFS_KERNEL2(name, fn) LANEFS_HOST_KERNEL(name, fn(i, threads, args[0], args[1]))
#define LANEFS_KERNEL3(name, fn) LANEFS_HOST_KERNEL(name, fn(i, threads, args[0], args[1], args[2]))
#define LANEFS_KERNEL4(name, fn) LANEFS_HOST_KERNEL(name, fn(i, threads, args[0], args[1], args[2], args[3]))
#define LANEFS_KERNEL5(name, fn) LANEFS_HOST_KERNEL(name, fn(i, threads, args[0], args[1], args[2], args[3], args[4]))
#define LANEFS_KERNEL6(name, fn) LANEFS_HOST_KERNEL(name, fn(i, threads, args[0], args[1], args[2], args[3], args[4], args[5]))
#define LANEFS_KERNEL7(name, fn) \
	LANEFS_HOST_KERNEL(name, fn(i, threads, args[0], args[1], args[2], args[3], args[4], args[5], args[6]))
#endif

#endif
