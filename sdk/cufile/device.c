/* Where a pointer points, and copies there. GPUs are driven as in sdk/c/gpu.c. */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { NON_BLOCKING = 1, COPY_DEFAULT = 4, PAGE = 4096 };

/* lanefs_stage_target asks a stage for its GPU before it makes one. */
static struct lanefs_stage none;

static int target(const void *p, struct target *t)
{
	if (lanefs_stage_target(&none, p, NULL, t))
		return -CU_FILE_CUDA_DRIVER_ERROR;
	if (t->gpu && t->gpu != none.gpu)
		__atomic_store_n(&none.gpu, t->gpu, __ATOMIC_RELAXED);
	return 0;
}

/* Whether memory is there and may be used so. Linux before 5.14 has no such question: there the answer is yes. */
static int there(void *p, size_t n, int write)
{
	static int asked; /* 1: it can be asked, -1: not */
	static char page[2 * PAGE];
	int can = __atomic_load_n(&asked, __ATOMIC_RELAXED);
	if (!can) {
		can = madvise((void *)(((uintptr_t)page + PAGE - 1) & ~(uintptr_t)(PAGE - 1)), PAGE, MADV_POPULATE_WRITE) == 0 ? 1 : -1;
		__atomic_store_n(&asked, can, __ATOMIC_RELAXED);
	}
	return can < 0 || madvise(p, n, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0 || errno == EAGAIN;
}

int memory_at(const void *p, size_t n, int write, struct target *t)
{
	struct target last;
	uintptr_t at = (uintptr_t)p;
	if (!p || at + n < at)
		return -CU_FILE_INVALID_VALUE;
	int rc = target(p, t);
	if (rc || n == 0)
		return rc;
	if (t->gpu) { /* a copy beyond the allocation would end the program's context */
		if (t->whole)
			return n <= t->size - (at - t->start) ? 0 : -CU_FILE_CUDA_POINTER_RANGE_ERROR;
		if ((at ^ (at + n - 1)) < PAGE) /* a page is memory, or is not */
			return 0;
		if ((rc = target((const char *)p + n - 1, &last)))
			return rc;
		return last.gpu == t->gpu ? 0 : -CU_FILE_CUDA_POINTER_RANGE_ERROR;
	}
	/* Ordinary memory, or none: a GPU's that was freed is neither known nor there. */
	uintptr_t start = at & ~(uintptr_t)(PAGE - 1), end = (at + n + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
	if (!there((void *)start, end - start, write))
		return -CU_FILE_CUDA_POINTER_INVALID;
	return 0;
}

void *stream_new(struct gpu *g)
{
	int was;
	void *stream = NULL;
	if (lanefs_gpu_enter(g, &was))
		return NULL;
	if (CALL(g, g->hip ? "StreamCreateWithFlags" : "StreamCreate", (void **, unsigned), &stream, NON_BLOCKING))
		stream = NULL;
	lanefs_gpu_leave(g, was);
	return stream;
}

void stream_free(struct gpu *g, void *stream)
{
	int was;
	if (lanefs_gpu_enter(g, &was))
		return;
	CALL(g, g->hip ? "StreamDestroy" : "StreamDestroy_v2", (void *), stream);
	lanefs_gpu_leave(g, was);
}

int stream_wait(struct gpu *g, void *stream)
{
	int was, rc = lanefs_gpu_enter(g, &was);
	if (rc)
		return rc;
	rc = CALL(g, "StreamSynchronize", (void *), stream);
	lanefs_gpu_leave(g, was);
	return rc;
}

int copy_now(struct gpu *g, void *stream, void *to, const void *from, size_t n)
{
	int was, rc = lanefs_gpu_enter(g, &was);
	if (rc)
		return rc;
	rc = g->hip ? CALL(g, "MemcpyAsync", (void *, const void *, size_t, int, void *), to, from, n, COPY_DEFAULT, stream) :
		CALL(g, "MemcpyAsync", (void *, const void *, size_t, void *), to, from, n, stream);
	if (!rc)
		rc = CALL(g, "StreamSynchronize", (void *), stream);
	lanefs_gpu_leave(g, was);
	return rc;
}
