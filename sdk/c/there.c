/*
 * Whether ordinary memory is there, as read(2) and write(2) find out, and a memcpy does not. A GPU's library keeps the addresses of what it has given
 * back: they are mapped, and may not be used.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { LARGEST = 64 << 10 /* page, of the kernels that there are */ };

/* The bytes of a page: 4096 on x86-64, up to 64 KiB on Arm. */
static uintptr_t page_size(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

/* Linux before 5.14 has no such question, a sandbox may not either. */
static int can_ask(void)
{
	static int asked; /* 1: it can be asked, -1: not */
	static char page[2 * LARGEST];
	int can = __atomic_load_n(&asked, __ATOMIC_RELAXED);
	if (!can) {
		can = madvise((void *)(((uintptr_t)page + LARGEST - 1) & ~(uintptr_t)(LARGEST - 1)), page_size(), MADV_POPULATE_WRITE) == 0 ? 1 : -1;
		__atomic_store_n(&asked, can, __ATOMIC_RELAXED);
	}
	return can > 0;
}

/* Whether the process's mappings allow it. Where they cannot be seen (chroot; another user's process, after setuid) it is far more often memory that may not be used than a device's. */
static int allowed(uintptr_t at, uintptr_t end, int write)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	uintptr_t low, high;
	char r, w;
	if (!f)
		return 0;
	while (at < end && fgets(line, sizeof line, f))
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %c%c", &low, &high, &r, &w) == 4 && low <= at && at < high) {
			if (r != 'r' || (write && w != 'w'))
				break;
			at = high;
		}
	fclose(f);
	return at >= end;
}

int lanefs_there(const void *p, size_t n, int write)
{
	uintptr_t page = page_size(), at = (uintptr_t)p & ~(page - 1), end = ((uintptr_t)p + n + page - 1) & ~(page - 1);
	if (!can_ask() || madvise((void *)at, end - at, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0)
		return 1;
	if (errno == EINVAL) /* what may not be used so, and what has no pages, as a device's registers */
		return allowed(at, end, write);
	return errno != ENOMEM && errno != EFAULT && errno != EHWPOISON;
}
