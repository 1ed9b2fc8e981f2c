/*
 * Between a stage and the memory of a program: copies on the program's stream, few by the copy engine, many by one launch of a kernel
 * in the device's primary context.
 */
#define _GNU_SOURCE
#include "stage.h"
#include "way.h"

#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCKS = 4, THREADS = 512 };                                    /* enough for PCI Express */
enum { ARGUMENTS = 16 };                                               /* more than the kernel has: HIP's stand-in does not know how many */
enum { CONTEXT = 1, MEMORY_TYPE = 2, BUFFER_ID = 7, MANAGED = 8, ORDINAL = 9, LEGACY_IPC = 10, RANGE_START = 11, RANGE_SIZE = 12 }; /* CUpointer_attribute, hipPointer_attribute */
enum { HOST = 1, DEVICE = 2, MANAGED_MEMORY = 77 };                                                    /* CUmemorytype, hipMemoryType since 6 */
enum { PAGE_SIZE = 4096, OUT_OF_MEMORY = 2 };
enum { SIGNAL_MEMORY = 2, GEQ = 0 };                                   /* hipMallocSignalMemory; of waits for a value */
enum { PORTABLE_MAPPED = 3, COPY_DEFAULT = 4, HIP_6 = 60000000 };
_Static_assert(sizeof(struct copy) == 24, "layout");

extern HIDDEN const char lanefs_image_sm_80[], lanefs_image_gfx90a[], lanefs_image_gfx942[], lanefs_image_gfx1100[], lanefs_image_gfx1201[], lanefs_image_gfx950[],
	lanefs_image_gfx9_4_generic[], lanefs_image_gfx11_generic[], lanefs_image_gfx12_generic[], lanefs_image_host[];

PROCESS_LOCK(lock);

/*
 * Held by who asks the loader. glibc's lock of the loaded objects stays taken in a child if another thread of its parent had it, and the child's next
 * question would wait for ever: so nobody asks while the process forks.
 */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) { pthread_mutex_lock(&asking); }
static void after_fork(void) { pthread_mutex_unlock(&asking); }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork); }

static const char *const libraries[] = {"libcuda.so.1", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};
enum { LIBRARIES = sizeof libraries / sizeof *libraries };
static _Atomic(void *) loaded[LIBRARIES];  /* stored with asking held */
static _Atomic unsigned long long looked; /* how many objects had been loaded when loaded was filled; stored after it */

static int objects(struct dl_phdr_info *info, size_t n, void *adds)
{
	(void)n;
	*(unsigned long long *)adds = info->dlpi_adds;
	return 1;
}

/* Looks for libraries that the program has loaded since. To ask the loader for one that is not there takes long, so that is done only after it
 * has loaded something. Returns what looked is then. */
static unsigned long long look(void)
{
	unsigned long long adds = 0;
	pthread_mutex_lock(&asking);
	dl_iterate_phdr(objects, &adds);
	if (adds != looked)
		for (int i = 0; i < LIBRARIES; i++)
			if (!loaded[i])
				loaded[i] = dlopen(libraries[i], RTLD_NOW | RTLD_NOLOAD);
	looked = adds;
	pthread_mutex_unlock(&asking);
	return adds;
}

/* Asks a library what p is, by one call. Returns whether it knows; -1: its context is lost. An attribute that a pointer does not have is left as it is, or becomes 0. */
static int known(struct gpu *g, const void *p, int *type, int *ordinal, void **context, struct target *t)
{
	static const int which[] = {MEMORY_TYPE, ORDINAL, MANAGED, RANGE_START, RANGE_SIZE, LEGACY_IPC, BUFFER_ID, CONTEXT};
	unsigned char managed[8] = {0}, whole[8] = {0}; /* a bool, or an unsigned of HIP's */
	uint64_t start = 0, size = 0, id = 0, at = (uint64_t)(uintptr_t)p;
	int kind[2] = {0}, device[2] = {-1};
	void *to[] = {kind, device, managed, &start, &size, whole, &id, context};
	static _Atomic int old; /* HIP counts kinds of memory from 0: 1, or not: -1 */
	int rc = CALL(g, g->hip ? "DrvPointerGetAttributes" : "PointerGetAttributes", (unsigned, const int *, void **, uint64_t), sizeof which / sizeof *which - (g->hip ? 2 : 0), which, to, at);
	if (lanefs_gpu_lost(rc)) {
		t->lost = rc;
		return -1;
	}
	if (rc)
		return 0;
	if (g->hip && !old) {
		int version = HIP_6;
		CALL(g, "RuntimeGetVersion", (int *), &version);
		old = version < HIP_6 ? 1 : -1;
	}
	*type = managed[0] ? MANAGED_MEMORY : kind[0] + (g->hip && old > 0);
	*ordinal = device[0];
	if (at >= start && at - start < size) {
		t->start = start;
		t->size = size;
		t->whole = whole[0] != 0;
		t->id = id;
	}
	return *type > 0 && *ordinal >= 0;
}

int lanefs_stage_target(struct lanefs_stage *st, const void *p, void *stream, struct target *t)
{
	*t = (struct target){.stream = stream};
	struct gpu *mine = __atomic_load_n(&st->gpu, __ATOMIC_ACQUIRE); /* once: libcufile's threads share a stage that another of them gives another GPU */
	unsigned long long seen = looked, now;
again:
	for (int i = 0; i < LIBRARIES; i++) {
		struct gpu g = {.hip = i > 0, .lib = loaded[i]};
		int type = 0, ordinal = 0;
		void *context = NULL; /* that the memory is of: kernels of another one cannot address it */
		if (!g.lib || known(&g, p, &type, &ordinal, &context, t) <= 0)
			continue;
		t->device = type == DEVICE;
		t->host = t->only_host = type == HOST;
		t->gpu = mine && mine->hip == g.hip && mine->ordinal == ordinal && lanefs_gpu_is(mine) ? mine : lanefs_gpu_find(g.hip, NULL, ordinal);
		if (!t->gpu)
			return -1;
		t->kernels = type != HOST && (!context || context == t->gpu->context);
		return 0;
	}
	if ((now = look()) != seen) { /* there may be one more */
		seen = now;
		goto again;
	}
	if (stream && t->lost)
		return lanefs_stage_lost(t);
	if (stream)
		return lanefs_fail(EINVAL, "the memory is ordinary memory, which no GPU knows, and has no place on a stream: give none, or pin the memory");
	return 0;
}

int lanefs_stage_lost(const struct target *t)
{
	struct gpu g = {0};
	for (int i = 0; i < LIBRARIES && !g.lib; i++)
		g = (struct gpu){.hip = i > 0, .lib = loaded[i]};
	return lanefs_gpu_bad(&g, g.hip ? "DrvPointerGetAttributes" : "PointerGetAttributes", t->lost);
}

int lanefs_stage_sync(int hip, void *stream)
{
	struct gpu g = {.hip = hip};
	struct was was;
	look();
	for (int i = hip; i < (hip ? LIBRARIES : 1) && !g.lib; i++)
		g.lib = loaded[i];
	if (!g.lib)
		return 0;
	if (lanefs_stream_captured(&g, stream))
		return -1;
	lanefs_gpu_relax(&g, &was);
	int rc = CALL(&g, "StreamSynchronize", (void *), stream);
	lanefs_gpu_restore(&g, &was);
	return rc;
}

/* Whether the first and the last page of a batch's ordinary memory are there. What a GPU has given back is known neither to it nor to the CPU. */
static int there(const struct batch *b)
{
	const char *low = b->base + b->piece[b->first].memory_offset, *high = low;
	for (size_t i = b->first; i < b->pieces; i++) {
		const char *at = b->base + b->piece[i].memory_offset;
		if (b->piece[i].length == 0)
			continue;
		low = at < low ? at : low;
		high = at + b->piece[i].length - 1 > high ? at + b->piece[i].length - 1 : high;
	}
	return lanefs_there(low, 1, b->read) && ((((uintptr_t)low ^ (uintptr_t)high) < PAGE_SIZE) || lanefs_there(high, 1, b->read));
}

/* Fails: a program has freed what was a GPU's, or never had it. */
static int no_memory(const struct target *t) { return t->lost ? lanefs_stage_lost(t) : lanefs_fail(EFAULT, lanefs_no_memory_text); }

/* Whether the end of t is known to be that of an allocation. Of virtual memory management it is that of reserved addresses. */
static int ends(const struct target *t) { return t->whole || (t->size && !t->device && !t->host); }

/* Where the copies of a batch go: to its stream, or, if they cannot, to another one after that. */
static int place(struct target *t)
{
	void *context;
	if (lanefs_stream_look(t->gpu, t->stream, &context))
		return -1;
	if (!context)
		return 0;
	if (lanefs_stream_wait(t->gpu, context, t->stream))
		return -1;
	t->stream = NULL;
	t->waited = 1;
	return 0;
}

int lanefs_batch_target(struct batch *b, void *stream)
{
	const struct lanefs_piece *first = &b->piece[b->first];
	struct target *t = &b->target, at;
	if (lanefs_stage_target(b->st, b->base + first->memory_offset, stream, t))
		return -1;
	if (!t->gpu) /* what a GPU's library has given back is nobody's */
		return b->kernel || there(b) ? 0 : no_memory(t);
	at = *t;
	b->one = t->whole;
	for (size_t i = b->first; i < b->pieces; i++) {
		const struct lanefs_piece *q = &b->piece[i];
		uint64_t p = (uint64_t)(uintptr_t)b->base + q->memory_offset;
		if (q->length == 0)
			continue;
		if (p < at.start || p - at.start >= at.size) { /* of another allocation */
			if (lanefs_stage_target(b->st, (void *)(uintptr_t)p, stream, &at))
				return -1;
			if (at.gpu != t->gpu)
				return lanefs_fail(EINVAL, "the pieces are in memory of several devices: make a batch for each");
			t->kernels &= at.kernels;
			t->device &= at.device;
			t->host |= at.host;
			t->only_host &= at.only_host;
			b->one = 0;
		}
		if (ends(&at) && q->length > at.size - (p - at.start))
			return lanefs_fail(EFAULT, "a piece ends beyond its allocation");
	}
	return place(t);
}

/* Registers the stage with the GPU of its first batch, for all devices of that library; and again with the next one's, if that GPU was reset. */
int lanefs_stage_known(struct lanefs_stage *st, struct gpu *g)
{
	if (st->gpu && st->gpu->hip == g->hip && lanefs_gpu_is(st->gpu))
		return 0;
	if (st->gpu && st->gpu->hip != g->hip)
		return lanefs_fail(EINVAL, "the stage belongs to GPUs of another vendor: make a second one");
	const char *what = g->hip ? "HostRegister" : "MemHostRegister_v2";
	int rc = CALL(g, what, (void *, size_t, unsigned), st->data, st->size, PORTABLE_MAPPED);
	if (rc)
		return lanefs_gpu_bad(g, what, rc);
	what = g->hip ? "HostGetDevicePointer" : "MemHostGetDevicePointer_v2";
	if ((rc = CALL(g, what, (uint64_t *, void *, unsigned), &st->device, st->data, 0))) {
		CALL(g, g->hip ? "HostUnregister" : "MemHostUnregister", (void *), st->data);
		return lanefs_gpu_bad(g, what, rc);
	}
	st->gpu = g;
	if (st->word)
		st->word_device = st->device + (uint64_t)((char *)st->word - st->data);
	return 0;
}

/* Loads the kernel, once for each device. The images for other architectures are refused. If all are, pieces go by copies from then on. */
static int load(struct gpu *g)
{
	static const char *const cuda[] = {lanefs_image_sm_80, NULL};
	static const char *const hip[] = {lanefs_image_gfx942, lanefs_image_gfx90a, lanefs_image_gfx1100, lanefs_image_gfx1201, lanefs_image_gfx950,
		lanefs_image_gfx9_4_generic, lanefs_image_gfx11_generic, lanefs_image_gfx12_generic, lanefs_image_host, NULL};
	int rc = 0;
	pthread_mutex_lock(&lock);
	for (const char *const *image = g->hip ? hip : cuda; !g->gather && *image; image++) {
		void *module;
		if ((rc = CALL(g, "ModuleLoadData", (void **, const void *), &module, *image)) == 0)
			rc = CALL(g, "ModuleGetFunction", (void **, void *, const char *), &g->gather, module, "lanefs_gather");
		void *copier = NULL;
		if (rc == 0 && !g->hip && CALL(g, "ModuleGetFunction", (void **, void *, const char *), &copier, module, "lanefs_copier") == 0)
			g->copier = copier;
	}
	rc = g->gather ? 0 : rc;
	if (rc && rc != OUT_OF_MEMORY)
		g->no_kernel = 1;
	pthread_mutex_unlock(&lock);
	return rc ? lanefs_gpu_bad(g, "ModuleLoadData", rc) : 0;
}

void *lanefs_gpu_copier(struct gpu *g)
{
	if (!g->copier && !g->hip && !g->no_kernel && !atomic_exchange(&g->no_copier, 1))
		load(g);
	return g->copier;
}

/* Notes how long a part's kernel took. */
static void took(struct part *p, uint64_t ns)
{
	if (was_late(ns, p->used))
		atomic_store_explicit(&p->gpu->late, now_ns() + WHILE, memory_order_relaxed);
}

static void events_end(struct part *p)
{
	for (int i = 0; i < 2; i++) {
		void **e = i ? &p->before : &p->event;
		if (*e)
			lanefs_gpu_event_end(p->gpu, *e);
		*e = NULL;
	}
}

/* Gives the part events of this GPU. An event belongs to a device. */
static int events(struct part *p, struct gpu *g)
{
	if (p->gpu != g) { /* else nothing is written: the stage's thread may be looking at them */
		events_end(p);
		p->gpu = g;
	}
	for (int i = 0; i < 2; i++) {
		void **e = i ? &p->before : &p->event;
		if (!*e && lanefs_gpu_event(g, e, 0))
			return -1;
	}
	return 0;
}

/* ---- Copies by the copy engine, as few as there can be ---- */

/* Rows of equal length and equal distance on both sides; one is as good as any. */
struct rows { char *at; uint64_t stage, width, at_pitch, stage_pitch; size_t height; };

/* Whether an entry is of the same allocation as the one before it: across two no copy goes. */
static int same(const struct part *p, unsigned i)
{
	const struct batch *b = p->b;
	return b->one || p->entry[i].piece == p->entry[i - 1].piece || (b->same && p->entry[i].piece == p->entry[i - 1].piece + 1 && b->same[p->entry[i].piece]);
}

/* Entries from i that follow one another on both sides, before the end-th, and how many bytes that is. Returns the entry after them. */
static unsigned run_of(const struct part *p, unsigned i, unsigned end, uint64_t *n)
{
	const struct entry *e = &p->entry[i];
	*n = e->length;
	for (i++; i < end && p->entry[i].at == e->at + *n && p->entry[i].stage == e->stage + *n && same(p, i); i++)
		*n += p->entry[i].length;
	return i;
}

/* The next copy, of entries from *i on. */
static void next_copy(const struct part *p, unsigned *i, unsigned end, int hip, struct rows *r)
{
	const struct entry *e = &p->entry[*i];
	*r = (struct rows){.at = e->at, .stage = e->stage, .height = 1};
	*i = run_of(p, *i, end, &r->width);
	while (*i < end && !hip && r->width < GPU_PITCH) {
		const struct entry *f = &p->entry[*i];
		uint64_t n, at = (uint64_t)(f->at - e->at) / r->height, stage = (f->stage - e->stage) / r->height;
		unsigned after = run_of(p, *i, end, &n);
		if (n != r->width || f->at < e->at || f->stage < e->stage || at < n || stage < n || at >= GPU_PITCH || stage >= GPU_PITCH || !same(p, *i) ||
		    f->at != e->at + r->height * at || f->stage != e->stage + r->height * stage || (r->height > 1 && (at != r->at_pitch || stage != r->stage_pitch)))
			break;
		r->at_pitch = at;
		r->stage_pitch = stage;
		r->height++;
		*i = after;
	}
}

/* How many copies a part takes. */
static unsigned copies_of(const struct part *p, int hip)
{
	unsigned n = 0;
	struct rows r;
	for (unsigned i = 0; i < p->n; n++)
		next_copy(p, &i, p->n, hip, &r);
	return n;
}

/* Copies the entries up to the end-th. */
static int calls(struct lanefs_stage *st, struct part *p, const struct target *t, int read, unsigned end)
{
	struct gpu *g = t->gpu;
	struct rows r;
	for (unsigned i = 0; i < end;) {
		next_copy(p, &i, end, g->hip, &r);
		if (r.width == 0)
			continue;
		char *stage = st->data + r.stage;
		char *to = read ? r.at : stage, *from = read ? stage : r.at;
		int rc = r.height > 1 ? lanefs_gpu_copy_rows(g, to, GPU_ANY, read ? r.at_pitch : r.stage_pitch, from, GPU_ANY, read ? r.stage_pitch : r.at_pitch, r.width, r.height, t->stream) :
			lanefs_gpu_copy_small(g, to, GPU_ANY, from, GPU_ANY, r.width, t->stream);
		if (rc == -1 && r.height == 1)
			rc = g->hip ? CALL(g, "MemcpyAsync", (void *, const void *, size_t, int, void *), to, from, r.width, COPY_DEFAULT, t->stream) :
				CALL(g, "MemcpyAsync", (void *, const void *, size_t, void *), to, from, r.width, t->stream);
		if (rc)
			return lanefs_gpu_bad(g, "MemcpyAsync", rc);
	}
	return 0;
}

/*
 * Copies all entries by one launch. Entries are cut, so that the kernel's teams have equal work. Of a batch that copies could carry out the first entry
 * goes by a copy, and an event after it: that event does not wait for the process's turn, as the kernel does. An event without a copy before it would.
 */
static int launch(struct lanefs_stage *st, struct part *p, const struct target *t, int read)
{
	struct gpu *g = t->gpu;
	uint64_t n = 0;
	if (events(p, g))
		return -1;
	unsigned first = p->n <= MANY; /* which goes by a copy engine */
	if (first) {
		if (calls(st, p, t, read, first))
			return -1;
		p->timed = CALL(g, "EventRecord", (void *, void *), p->before, t->stream) == 0; /* what is wrong with the stream the launch says */
	}
	for (unsigned i = first; i < p->n; i++) {
		struct entry *e = &p->entry[i];
		for (uint64_t done = 0; done < e->length; done += PIECE) {
			uint64_t at = (uint64_t)(uintptr_t)e->at + done, stage = st->device + e->stage + done;
			uint64_t bytes = e->length - done < PIECE ? e->length - done : PIECE;
			p->copy[n++] = read ? (struct copy){at, stage, bytes} : (struct copy){stage, at, bytes};
		}
	}
	uint64_t table = st->device + (uint64_t)((char *)p->copy - st->data), none = 0;
	void *args[ARGUMENTS];
	for (int i = 0; i < ARGUMENTS; i++)
		args[i] = i == 0 ? &table : i == 1 ? &n : &none;
	const char *what = g->hip ? "ModuleLaunchKernel" : "LaunchKernel";
	int rc = CALL(g, what, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
		g->gather, BLOCKS, 1, 1, THREADS, 1, 1, 0, t->stream, args, NULL);
	if (rc)
		return lanefs_gpu_bad(g, what, rc);
	st->kernel += p->n - first;
	st->copies += first;
	return 0;
}

/* CUmemcpyAttributes. */
struct attributes { int order, from[2], to[2]; unsigned flags; };
_Static_assert(sizeof(struct attributes) == 24, "the driver reads it");
enum { IN_STREAM_ORDER = 1, LEGACY_STREAM = 1 /* or 0 */ };

/* Copies all by one call, where there is one: of CUDA 12.8 and later, not for the legacy stream, by neither of its names. */
static int batched(struct lanefs_stage *st, struct part *p, const struct target *t, int read)
{
	struct gpu *g = t->gpu;
	const struct attributes a = {.order = IN_STREAM_ORDER};
	uint64_t to[ENTRIES], from[ENTRIES];
	size_t size[ENTRIES], n = 0, first = 0, failed;
	if (g->hip || (uintptr_t)t->stream <= LEGACY_STREAM)
		return calls(st, p, t, read, p->n);
	for (unsigned i = 0; i < p->n; n++) {
		const struct entry *e = &p->entry[i];
		i = run_of(p, i, p->n, &size[n]);
		to[n] = read ? (uint64_t)(uintptr_t)e->at : st->device + e->stage;
		from[n] = read ? st->device + e->stage : (uint64_t)(uintptr_t)e->at;
	}
	int rc = CALL(g, "MemcpyBatchAsync_v2", (uint64_t *, uint64_t *, size_t *, size_t, const struct attributes *, size_t *, size_t, void *), to, from, size, n, &a, &first, 1, t->stream);
	if (rc == -1)
		rc = CALL(g, "MemcpyBatchAsync", (uint64_t *, uint64_t *, size_t *, size_t, const struct attributes *, size_t *, size_t, size_t *, void *), to, from, size, n, &a, &first, 1,
			&failed, t->stream);
	if (rc == -1)
		return calls(st, p, t, read, p->n);
	return rc ? lanefs_gpu_bad(g, "MemcpyBatchAsync", rc) : 0;
}

/* LANEFS_COPIES leaves no choice. */
enum emptying { CHOOSE, BY_KERNEL, BY_CALLS, BY_BATCH };
static enum emptying forced;

__attribute__((constructor)) static void begin_copies(void)
{
	static const char *const names[] = {"", "kernel", "calls", "batch"};
	const char *e = getenv("LANEFS_COPIES");
	for (int i = BY_KERNEL; e && i <= BY_BATCH; i++)
		if (strcmp(e, names[i]) == 0)
			forced = (enum emptying)i;
}

static enum emptying way(const struct part *p, const struct target *t)
{
	if (forced)
		return forced == BY_KERNEL && !t->kernels ? BY_CALLS : forced;
	if (!t->kernels || t->gpu->no_kernel || p->n <= FEW)
		return BY_CALLS;
	uint64_t late = atomic_load_explicit(&t->gpu->late, memory_order_relaxed);
	return by_kernel(copies_of(p, t->gpu->hip), p->used, late && now_ns() < late) ? BY_KERNEL : BY_CALLS;
}

/* Records the part's event on the stream. An event belongs to a device, and so does the stream. */
static int record(struct part *p, const struct target *t)
{
	return events(p, t->gpu) ? -1 : lanefs_gpu_record(t->gpu, p->event, t->stream);
}

/* Makes the part's event follow what is on the stream. */
static int mark(struct part *p, const struct target *t)
{
	struct gpu *g = t->gpu;
	int rc;
	if (p->b->last) { /* the stream's end is waited for instead of an event, and all parts' copies are before it */
		uint64_t begun = p->timed ? now_ns() : 0;
		if ((rc = CALL(g, "StreamSynchronize", (void *), t->stream)))
			return lanefs_gpu_bad(g, "StreamSynchronize", rc);
		if (p->timed)
			took(p, now_ns() - begun);
		p->timed = 0;
		for (unsigned i = 0; i < PARTS && i < p->b->begun; i++) /* not of batches before it, which are on other streams */
			p->b->st->part[i].busy = 0;
		return 0;
	}
	p->busy = record(p, t) == 0;
	if (p->busy)
		return 0;
	int saved = errno;
	if (!p->ticket) /* of a batch on a stream: it waits for this thread */
		CALL(g, "StreamSynchronize", (void *), t->stream); /* or the part would be used again under the copies */
	errno = saved;
	return -1;
}

int lanefs_stage_by_cpu(struct lanefs_stage *st, struct part *p, const struct target *t, int read)
{
	struct host_copies c;
	int rc = 0;
	lanefs_host_copy_begin(&c, ((struct owner *)st)->pid, read);
	for (unsigned i = 0; i < p->n && !rc; i++) {
		const struct entry *e = &p->entry[i];
		char *stage = st->data + e->stage;
		if (p->b->kernel && e->length <= HOST_COPY)
			rc = lanefs_host_copy_add(&c, e->at, stage, e->length);
		else
			memcpy(read ? e->at : stage, read ? stage : e->at, e->length);
	}
	rc = rc || lanefs_host_copy_end(&c);
	if (rc)
		return errno == EFAULT ? no_memory(t) : -1;
	st->host += p->n;
	return 0;
}

int lanefs_stage_move(struct lanefs_stage *st, struct part *p, const struct target *t, int read)
{
	if (!t->gpu)
		return lanefs_stage_by_cpu(st, p, t, read);
	struct was was;
	int rc = lanefs_gpu_enter(t->gpu, &was);
	if (rc)
		return lanefs_gpu_not_entered(t->gpu, rc);
	enum emptying by = way(p, t);
	p->timed = 0;
	rc = lanefs_stage_known(st, t->gpu);
	if (!rc && by == BY_KERNEL && load(t->gpu)) {
		rc = forced ? -1 : 0;
		by = BY_CALLS;
	}
	if (!rc && by == BY_KERNEL)
		rc = launch(st, p, t, read);
	else if (!rc && !(rc = by == BY_BATCH ? batched(st, p, t, read) : calls(st, p, t, read, p->n)))
		st->copies += p->n;
	/* After a failure as well: some copies may have begun. */
	int saved = errno;
	if (mark(p, t))
		rc = -1;
	else if (rc)
		errno = saved;
	lanefs_gpu_leave(t->gpu, &was);
	return rc ? -1 : 0;
}

static int wait_for(struct lanefs_stage *st, const struct target *t, uint64_t value)
{
	struct gpu *g = t->gpu;
	return g->hip ? CALL(g, "StreamWaitValue64", (void *, void *, uint64_t, unsigned, uint64_t), t->stream, (void *)(uintptr_t)st->word_device, value, GEQ, UINT64_MAX) :
		CALL(g, "StreamWaitValue64_v2", (void *, uint64_t, uint64_t, unsigned), t->stream, st->word_device, value, GEQ);
}

/* Fails if the stream is none of the GPU's. The event stays: to end one that has not happened may wait for the stream. */
static int try_stream(struct lanefs_stage *st, const struct target *t)
{
	if (st->tried && st->tried_on != t->gpu) { /* also if that is gone */
		lanefs_gpu_event_end(st->tried_on, st->tried);
		st->tried = NULL;
	}
	st->tried_on = t->gpu;
	if (!st->tried && lanefs_gpu_event(t->gpu, &st->tried, 0))
		return -1;
	return lanefs_gpu_record(t->gpu, st->tried, t->stream);
}

/* The word is in the stage's last page, or, since an AMD GPU waits for signals only, in memory of that kind. A stream that is none says nothing about others. */
int lanefs_stage_waits(struct lanefs_stage *st, const struct target *t)
{
	struct gpu *g = t->gpu;
	if (st->word || st->no_wait)
		return !st->no_wait;
	if (try_stream(st, t))
		return -1;
	void *signal = NULL;
	if (!lanefs_gpu_function(g, "LaunchHostFunc") || (g->hip && CALL(g, "ExtMallocWithFlags", (void **, size_t, unsigned), &signal, sizeof *st->word, SIGNAL_MEMORY))) {
		st->no_wait = 1;
		return 0;
	}
	size_t last = st->size - sizeof *st->word;
	st->word_device = signal ? (uint64_t)(uintptr_t)signal : st->device + last;
	st->word = signal ? signal : (void *)(st->data + last);
	atomic_store(st->word, 0);
	st->no_wait = wait_for(st, t, 0) != 0; /* what is true already */
	return !st->no_wait;
}

int lanefs_stage_fits(struct part *p, const struct target *t) { return record(p, t); }

int lanefs_stage_gate(struct lanefs_stage *st, struct part *p, const struct target *t, void (*reached)(void *))
{
	int rc = CALL(t->gpu, "LaunchHostFunc", (void *, void (*)(void *), void *), t->stream, reached, p);
	if (rc)
		return lanefs_gpu_bad(t->gpu, "LaunchHostFunc", rc);
	if ((rc = wait_for(st, t, p->ticket)))
		lanefs_gpu_bad(t->gpu, "StreamWaitValue64", rc);
	return rc ? 1 : 0; /* 1: the stream will get there, and does not wait */
}

/* Waits for the part's copies. Returns the library's error. */
static int settle(struct part *p)
{
	struct was was;
	int rc;
	if (!p->busy)
		return 0;
	p->busy = 0;
	if ((rc = lanefs_gpu_enter(p->gpu, &was)) == 0) {
		float ms = 0;
		rc = CALL(p->gpu, "EventSynchronize", (void *), p->event);
		if (!rc && p->timed && CALL(p->gpu, "EventElapsedTime", (float *, void *, void *), &ms, p->before, p->event) == 0)
			took(p, (uint64_t)(ms * 1e6f));
		lanefs_gpu_leave(p->gpu, &was);
	}
	p->timed = 0;
	return rc;
}

int lanefs_stage_settle(struct part *p)
{
	int rc = settle(p);
	return rc ? lanefs_gpu_bad(p->gpu, "EventSynchronize", rc) : 0;
}

int lanefs_stage_empty(struct part *p)
{
	int rc = settle(p);
	return rc && !lanefs_gpu_lost(rc) ? lanefs_gpu_bad(p->gpu, "EventSynchronize", rc) : 0;
}

int lanefs_stage_stuck(struct part *p)
{
	struct was was;
	struct gpu *g = p->gpu;
	int rc = lanefs_gpu_enter(g, &was);
	if (!rc) {
		rc = CALL(g, "EventQuery", (void *), p->event);
		lanefs_gpu_leave(g, &was);
	}
	return lanefs_gpu_lost(rc) && lanefs_gpu_bad(g, "EventQuery", rc);
}

void lanefs_stage_forget(struct lanefs_stage *st)
{
	struct was was;
	for (int i = 0; i < PARTS; i++)
		events_end(&st->part[i]);
	if (st->tried)
		lanefs_gpu_event_end(st->tried_on, st->tried);
	if (st->gpu && lanefs_gpu_enter(st->gpu, &was) == 0) {
		if (st->word && st->gpu->hip)
			CALL(st->gpu, "Free", (void *), (void *)st->word);
		CALL(st->gpu, st->gpu->hip ? "HostUnregister" : "MemHostUnregister", (void *), st->data);
		lanefs_gpu_leave(st->gpu, &was);
	}
}
