/* The checksum of values in a slab: docs/SPEC.md, "Slabs". */
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

uint64_t lanefs_sum(const void *data, size_t size)
{
	const unsigned char *p = data;
	uint64_t sum = 0, weight = 1, word;

	for (; size >= 8; size -= 8, p += 8, weight += 2) {
		memcpy(&word, p, 8);
		sum += word * weight;
	}
	word = 0;
	memcpy(&word, p, size);
	return sum + word * weight;
}
