/* Copies of rows on a stream, small ones as two. See gpu.h. */
#define _GNU_SOURCE
#include "gpu.h"

#include <stdint.h>

/* CUDA_MEMCPY2D of version 2. */
struct rectangle {
	size_t from_x, from_y;
	unsigned from_type;
	const void *from_host;
	uint64_t from_device;
	void *from_array;
	size_t from_pitch, to_x, to_y;
	unsigned to_type;
	void *to_host;
	uint64_t to_device;
	void *to_array;
	size_t to_pitch, width, height;
};
_Static_assert(sizeof(struct rectangle) == 128, "the driver reads it");

int lanefs_gpu_copy_rows(struct gpu *g, void *to, enum gpu_memory to_type, size_t to_pitch, const void *from, enum gpu_memory from_type, size_t from_pitch, size_t width,
	size_t height, void *stream)
{
	struct rectangle r = {.from_type = from_type, .from_pitch = from_pitch, .to_type = to_type, .to_pitch = to_pitch, .width = width, .height = height};
	if (g->hip)
		return -1;
	if (from_type == GPU_HOST)
		r.from_host = from;
	else
		r.from_device = (uintptr_t)from;
	if (to_type == GPU_HOST)
		r.to_host = to;
	else
		r.to_device = (uintptr_t)to;
	return CALL(g, "Memcpy2DAsync_v2", (const struct rectangle *, void *), &r, stream);
}

static int two_rows(struct gpu *g, void *to, enum gpu_memory to_type, const void *from, enum gpu_memory from_type, size_t each, void *stream)
{
	return lanefs_gpu_copy_rows(g, to, to_type, each, from, from_type, each, each, 2, stream);
}

int lanefs_gpu_copy_small(struct gpu *g, void *to, enum gpu_memory to_type, const void *from, enum gpu_memory from_type, size_t n, void *stream)
{
	if (g->hip || n < 2 || n >= GPU_SMALL)
		return -1;
	int rc = two_rows(g, to, to_type, from, from_type, n / 2, stream);
	if (!rc && n % 2) /* the last byte, with the one before it */
		rc = two_rows(g, (char *)to + n - 2, to_type, (const char *)from + n - 2, from_type, 1, stream);
	return rc;
}
