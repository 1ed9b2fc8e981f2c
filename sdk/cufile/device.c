/* Where a pointer points, and copies there. GPUs are driven as in sdk/c/gpu.c. */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { NON_BLOCKING = 1, COPY_DEFAULT = 4, PAGE = 4096, BUFFER_ID = 7 /* CUpointer_attribute */ };

/* lanefs_stage_target asks a stage for its GPU before it makes one. */
static struct lanefs_stage none;

/* The allocations that the thread used last. asked: in which round its number was. */
enum { LASTS = 16 };
static _Thread_local struct last { struct target t; unsigned asked; } last[LASTS];
static _Thread_local unsigned newest, turn, asked_round;
static _Thread_local int asked_once;

void memory_asked(int once)
{
	asked_once = once;
	asked_round++;
}

static int known(const struct last *l, uint64_t at) { return l->t.id && at >= l->t.start && at - l->t.start < l->t.size; }

/* Whether p is still in it. CUDA gives no number to two allocations, so the number says that all the rest is as it was. */
static int in(struct last *l, uint64_t at)
{
	uint64_t id = 0;
	if (!known(l, at))
		return 0;
	if (asked_once && l->asked == asked_round)
		return 1;
	if (!lanefs_gpu_is(l->t.gpu) || CALL(l->t.gpu, "PointerGetAttribute", (void *, int, uint64_t), &id, BUFFER_ID, at) || id != l->t.id) {
		l->t.id = 0;
		return 0;
	}
	l->asked = asked_round;
	return 1;
}

static int in_last(const void *p, struct target *t)
{
	for (unsigned i = 0; i < LASTS; i++) {
		unsigned k = (newest + i) % LASTS;
		if (in(&last[k], (uint64_t)(uintptr_t)p)) {
			newest = k;
			*t = last[k].t;
			return 1;
		}
	}
	return 0;
}

/*
 * With eight threads each question to the driver takes 1 to 3 us of a read's 16, for its lock. Within a page there is none to ask: the page is memory as a
 * whole, or the copy is refused; if it is another allocation's by now, the bytes are where the program wants them all the same.
 */
int memory_known(const void *p, size_t n, struct target *t)
{
	uint64_t at = (uint64_t)(uintptr_t)p;
	const struct last *l = &last[newest];
	if (n == 0 || (at ^ (at + n - 1)) >= PAGE || !known(l, at) || !l->t.device || !lanefs_gpu_is(l->t.gpu))
		return 0;
	if (now_ns() < atomic_load_explicit(&l->t.gpu->busy, memory_order_relaxed)) /* then copies go as rows */
		return 0;
	*t = l->t;
	return 1;
}

static int target(const void *p, struct target *t)
{
	if (in_last(p, t))
		return 0;
	if (lanefs_stage_target(&none, p, NULL, t))
		return -CU_FILE_CUDA_DRIVER_ERROR;
	if (t->gpu && t->gpu != __atomic_load_n(&none.gpu, __ATOMIC_RELAXED))
		__atomic_store_n(&none.gpu, t->gpu, __ATOMIC_RELEASE);
	if (t->gpu && t->whole && t->id) { /* virtual memory: the number may be that of more than one allocation */
		newest = turn++ % LASTS;
		last[newest] = (struct last){*t, asked_round};
	}
	return 0;
}

int memory_none(const struct target *t) { return t->lost ? -CU_FILE_CUDA_DRIVER_ERROR : -CU_FILE_CUDA_POINTER_INVALID; }

int memory_at(const void *p, size_t n, enum use use, struct target *t)
{
	struct target other;
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
		if ((rc = target((const char *)p + n - 1, &other)))
			return rc;
		return other.gpu == t->gpu ? 0 : -CU_FILE_CUDA_POINTER_RANGE_ERROR;
	}
	/* Ordinary memory, or none: a GPU's that was freed is neither known nor there. */
	return use == UNASKED || lanefs_there(p, n, use == TO_WRITE) ? 0 : memory_none(t);
}

void *stream_new(struct gpu *g)
{
	struct was was;
	void *stream = NULL;
	if (lanefs_gpu_enter(g, &was))
		return NULL;
	if (CALL(g, g->hip ? "StreamCreateWithFlags" : "StreamCreate", (void **, unsigned), &stream, NON_BLOCKING))
		stream = NULL;
	lanefs_gpu_leave(g, &was);
	return stream;
}

void stream_free(struct gpu *g, void *stream)
{
	struct was was;
	if (lanefs_gpu_enter(g, &was))
		return;
	CALL(g, g->hip ? "StreamDestroy" : "StreamDestroy_v2", (void *), stream);
	lanefs_gpu_leave(g, &was);
}

int stream_wait(struct gpu *g, void *stream)
{
	if (!g) { /* the default stream is nobody's where no GPU is current */
		int rc = lanefs_stage_sync(front.hip, stream);
		return stream ? rc : 0;
	}
	void *context;
	return lanefs_stream_look(g, stream, &context) || lanefs_stream_wait(g, context, stream);
}

/*
 * Small copies to the GPU go as rows (gpu.h) only while another process keeps it busy, which LATE_ONES plain copies of a thread show that take LATE each: a
 * single one may have met a thread that waited for a CPU. Of several threads copies of rows wait for one another, 22 µs each with eight where plain
 * ones take 15 (an H100). A second later plain ones are tried again.
 */
enum { LATE = 500 * 1000, LATE_ONES = 3, ROWS_FOR = 1000 * 1000 * 1000 }; /* ns */
static _Thread_local unsigned late_ones; /* in a row */

/*
 * Small copies of reads, from memory that the library has pinned. What one takes depends on how many are under way (an H100, us, 16 and 64 KiB):
 *
 *   alone           a copy, whose end the GPU tells by a number in memory: 7.8; the driver asked for it: 9.7. No gain from 24 KiB on, where the copy
 *                   engine does it, nor below 4 KiB
 *   eight threads   a kernel that copies and tells its end: 16 and 24; a copy, the driver asked: 20 and 44; a copy and a number: 25 and 52
 *
 * A kernel that writes to what is no memory ends the program's context, where a copy is refused: TO_ASKED only. It waits for the process's turn on the GPU, as
 * small plain copies do, so it is not used while another process keeps that busy. LANEFS_CUFILE_VALUE=0 and LANEFS_CUFILE_KERNEL=0 leave out one or
 * the other, LANEFS_CUFILE_KERNEL=N uses the kernel from N other copies on.
 */
enum { VALUE_FROM = 4 << 10, VALUE_TO = 24 << 10, PUT_ABOVE = 4 << 10, PUT_TO = SMALL, PUT_THREADS = 256, QUAD = 16 };
static unsigned put_others = 2, with_value = 1;

__attribute__((constructor)) static void begin_device(void)
{
	const char *v = getenv("LANEFS_CUFILE_VALUE"), *k = getenv("LANEFS_CUFILE_KERNEL");
	with_value = !v || strcmp(v, "0") != 0;
	if (k && *k)
		put_others = (unsigned)strtoul(k, NULL, 10);
}

/* Begins a copy by the kernel. 0: it is on the stream. */
static int put(struct copying *c, void *to, const void *from, size_t n, struct pinned *p)
{
	void *f = lanefs_gpu_putter(c->gpu);
	if (!f)
		return -1;
	uint64_t dst = (uint64_t)(uintptr_t)to, src = p->device + (uint64_t)((const char *)from - p->host), quads = n / QUAD, number = p->number + 1;
	void *args[] = {&dst, &src, &quads, &p->word_device, &number};
	int rc = CALL(c->gpu, "LaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
		f, 1, 1, 1, PUT_THREADS, 1, 1, 0, c->stream, args, NULL);
	if (rc)
		return rc;
	p->number++;
	c->told = p;
	return 0;
}

/* Has the stream tell when it gets here. If it does not, the driver is asked. */
static void tell(struct copying *c, struct pinned *p)
{
	if (CALL(c->gpu, "StreamWriteValue32_v2", (void *, uint64_t, uint32_t, unsigned), c->stream, p->word_device, p->number + 1, 0)) {
		p->no_value = 1;
		return;
	}
	p->number++;
	c->told = p;
}

static int to_device(struct copying *c, enum copy_kind kind, void *to, const void *from, size_t n, struct pinned *p)
{
	struct gpu *g = c->gpu;
	uint64_t now = now_ns();
	int busy = now < atomic_load_explicit(&g->busy, memory_order_relaxed);
	unsigned others = 0;
	if (p && n <= SMALL) {
		others = atomic_fetch_add_explicit(&g->copying, 1, memory_order_relaxed);
		c->counted = 1;
	}
	if (c->counted && kind == TO_ASKED && !busy && put_others && others >= put_others && n > PUT_ABOVE && n <= PUT_TO && (((uintptr_t)to | n) & (QUAD - 1)) == 0 &&
	    put(c, to, from, n, p) == 0) {
		c->begun = now;
		return 0;
	}
	if (n < GPU_SMALL) {
		c->begun = now;
		int rc = kind != TO_KNOWN && busy ? lanefs_gpu_copy_small(g, to, GPU_DEVICE, from, GPU_HOST, n, c->stream) : -1;
		if (rc != -1) {
			c->begun = 0; /* it is no plain one */
			return rc;
		}
	}
	int rc = CALL(g, "MemcpyHtoDAsync_v2", (void *, const void *, size_t, void *), to, from, n, c->stream);
	if (!rc && c->counted && with_value && !p->no_value && others == 0 && n >= VALUE_FROM && n <= VALUE_TO)
		tell(c, p);
	return rc;
}

static void count_end(const struct copying *c)
{
	if (c->counted)
		atomic_fetch_sub_explicit(&c->gpu->copying, 1, memory_order_relaxed);
}

/* CUDA's calls for known kinds of memory are quicker than the one that finds out, and refuse memory that is of another kind by now. */
int copy_begin(struct copying *c, struct gpu *g, void *stream, enum copy_kind kind, void *to, const void *from, size_t n, struct pinned *p)
{
	*c = (struct copying){.gpu = g, .stream = stream};
	int rc = lanefs_gpu_enter(g, &c->was);
	if (rc)
		return rc;
	if (g->hip)
		rc = CALL(g, "MemcpyAsync", (void *, const void *, size_t, int, void *), to, from, n, COPY_DEFAULT, stream);
	else if (kind == TO_DEVICE || kind == TO_ASKED || kind == TO_KNOWN)
		rc = to_device(c, kind, to, from, n, p);
	else if (kind == FROM_DEVICE)
		rc = CALL(g, "MemcpyDtoHAsync_v2", (void *, const void *, size_t, void *), to, from, n, stream);
	else if (kind == IN_DEVICE)
		rc = CALL(g, "MemcpyDtoDAsync_v2", (void *, const void *, size_t, void *), to, from, n, stream);
	else
		rc = CALL(g, "MemcpyAsync", (void *, const void *, size_t, void *), to, from, n, stream);
	if (rc) {
		count_end(c);
		lanefs_gpu_leave(g, &c->was);
	}
	return rc;
}

/* Notes how long a small plain copy took. */
static void ended(struct gpu *g, uint64_t begun, uint64_t now)
{
	late_ones = now - begun > LATE ? late_ones + 1 : 0;
	if (late_ones == LATE_ONES) {
		late_ones = 0;
		atomic_store_explicit(&g->busy, now + ROWS_FOR, memory_order_relaxed);
	}
}

/*
 * Whether the GPU has told the end, soon. If it has not, the driver is asked, which waits as the program wants its threads to, and knows whether the
 * end will ever come: a context that is lost stores no number.
 */
static int told(const struct copying *c)
{
	enum { LOOKS = 64, SOON = 100 * 1000 /* ns */ };
	const struct pinned *p = c->told;
	uint64_t until = 0;
	for (unsigned i = 1; atomic_load_explicit(p->word, memory_order_acquire) != p->number; i++) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
		if (i % LOOKS)
			continue;
		uint64_t now = now_ns();
		if (!until)
			until = now + SOON;
		else if (now > until)
			return 0;
	}
	return 1;
}

int copy_end(const struct copying *c)
{
	int rc = c->told && told(c) ? 0 : CALL(c->gpu, "StreamSynchronize", (void *), c->stream);
	if (c->begun)
		ended(c->gpu, c->begun, now_ns());
	count_end(c);
	lanefs_gpu_leave(c->gpu, &c->was);
	return rc;
}

int copy_on(struct gpu *g, void *stream, enum copy_kind kind, void *to, const void *from, size_t n)
{
	struct copying c;
	int rc = copy_begin(&c, g, stream, kind, to, from, n, NULL);
	if (!rc)
		lanefs_gpu_leave(g, &c.was);
	return rc;
}

int copy_now(struct gpu *g, void *stream, enum copy_kind kind, void *to, const void *from, size_t n)
{
	struct copying c;
	int rc = copy_begin(&c, g, stream, kind, to, from, n, NULL);
	return rc ? rc : copy_end(&c);
}
