/*
 * By which way the pieces of a part of a stage go between the stage and a GPU's memory: each by a copy, or all by one launch of a kernel.
 *
 * A copy call takes the CPU 3 µs, a launch 16 µs with all that it needs; from 256 KiB on the copy engine is as fast as the kernel. On a busy
 * GPU the copy engine does not wait for other kernels, and a kernel waits for its process's turn, 2 to 3 ms (H100, 2026): once one did,
 * up to MANY pieces go by copies for a while, and then one more kernel is tried.
 */
#ifndef LANEFS_WAY_H
#define LANEFS_WAY_H

#include <stdint.h>

enum { FEW = 8, MANY = 256 };                 /* copies */
enum { LARGE = 256 << 10 };                   /* bytes of a copy, on the average */
enum { LATE = 1000000, EACH_BYTE = 10 };      /* ns, and 1/ns: what a kernel of n bytes takes at most is LATE + n/EACH_BYTE */
enum { WHILE = 1000000000 };                  /* ns: so long after a kernel that was late others would be */

/* Whether what n copies do, bytes in all, is done by a kernel. late: one was, less than WHILE ago. */
static inline int by_kernel(uint64_t n, uint64_t bytes, int late) { return n > FEW && bytes / n < LARGE && (!late || n > MANY); }

/* Whether a kernel that copied bytes in ns was late. */
static inline int was_late(uint64_t ns, uint64_t bytes) { return ns > LATE + bytes / EACH_BYTE; }

#endif
