/* Small copies on a stream, as two rows. See gpu.h. */
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

static int two_rows(struct gpu *g, void *to, enum gpu_memory to_type, const void *from, enum gpu_memory from_type, size_t each, void *stream)
{
	struct rectangle r = {.from_type = from_type, .from_pitch = each, .to_type = to_type, .to_pitch = each, .width = each, .height = 2};
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

int lanefs_gpu_copy_small(struct gpu *g, void *to, enum gpu_memory to_type, const void *from, enum gpu_memory from_type, size_t n, void *stream)
{
	if (g->hip || n < 2 || n >= GPU_SMALL)
		return -1;
	int rc = two_rows(g, to, to_type, from, from_type, n / 2, stream);
	if (!rc && n % 2) /* the last byte, with the one before it */
		rc = two_rows(g, (char *)to + n - 2, to_type, (const char *)from + n - 2, from_type, 1, stream);
	return rc;
}
