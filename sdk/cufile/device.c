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
	if (n == 0 || (at ^ (at + n - 1)) >= PAGE || !known(l, at) || !l->t.device || !lanefs_gpu_is(l->t.gpu) || copier_there(l->t.gpu))
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
 * Small copies of reads that follow one another go by a kernel that stays (copier.c). Of others, from memory that the library has pinned, the GPU tells the end by a number in memory where
 * that is quicker than to ask the driver: of a lone copy (an H100, 16 KiB: 7.8 us, not 9.7; no gain from 24 KiB on, where the copy engine does it, nor below 4 KiB, nor of several at
 * once). LANEFS_CUFILE_VALUE=0 does without.
 */
enum { VALUE_FROM = 4 << 10, VALUE_TO = 24 << 10 };
static unsigned with_value = 1;

__attribute__((constructor)) static void begin_device(void)
{
	const char *v = getenv("LANEFS_CUFILE_VALUE");
	with_value = !v || strcmp(v, "0") != 0;
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

/* Begins a copy of the driver's. CUDA's calls for known kinds of memory are quicker than the one that finds out, and refuse memory that is of another kind by now. */
static int begin(struct copying *c, enum copy_kind kind, void *to, const void *from, size_t n, struct pinned *p)
{
	struct gpu *g = c->gpu;
	if (g->hip)
		return CALL(g, "MemcpyAsync", (void *, const void *, size_t, int, void *), to, from, n, COPY_DEFAULT, c->stream);
	switch (kind) {
	case TO_DEVICE:
	case TO_KNOWN:
		return to_device(c, kind, to, from, n, p);
	case FROM_DEVICE:
		return CALL(g, "MemcpyDtoHAsync_v2", (void *, const void *, size_t, void *), to, from, n, c->stream);
	case IN_DEVICE:
		return CALL(g, "MemcpyDtoDAsync_v2", (void *, const void *, size_t, void *), to, from, n, c->stream);
	default:
		return CALL(g, "MemcpyAsync", (void *, const void *, size_t, void *), to, from, n, c->stream);
	}
}

int copy_begin(struct copying *c, struct gpu *g, void *stream, enum copy_kind kind, void *to, const void *from, size_t n, struct pinned *p, uint64_t kernel)
{
	*c = (struct copying){.gpu = g, .stream = stream, .kind = kind, .to = to, .from = from, .n = n};
	int rc = lanefs_gpu_enter(g, &c->was);
	if (rc)
		return rc;
	if ((kernel || kind == TO_KNOWN) && (c->copier = copier_begin(g, to, kernel, n)))
		return 0;
	if ((rc = begin(c, kind, to, from, n, p))) {
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
		relax();
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
	int rc;
	if (c->copier) {
		rc = copier_end(c->copier);
		if (rc == -1)
			rc = copy_now(c->gpu, c->stream, c->kind, c->to, c->from, c->n);
	} else {
		rc = c->told && told(c) ? 0 : CALL(c->gpu, "StreamSynchronize", (void *), c->stream);
	}
	if (c->begun)
		ended(c->gpu, c->begun, now_ns());
	count_end(c);
	lanefs_gpu_leave(c->gpu, &c->was);
	copier_ended();
	return rc;
}

int copy_on(struct gpu *g, void *stream, enum copy_kind kind, void *to, const void *from, size_t n)
{
	struct copying c;
	int rc = copy_begin(&c, g, stream, kind, to, from, n, NULL, 0);
	if (!rc)
		lanefs_gpu_leave(g, &c.was);
	return rc;
}

int copy_now(struct gpu *g, void *stream, enum copy_kind kind, void *to, const void *from, size_t n)
{
	struct copying c;
	int rc = copy_begin(&c, g, stream, kind, to, from, n, NULL, 0);
	return rc ? rc : copy_end(&c);
}
