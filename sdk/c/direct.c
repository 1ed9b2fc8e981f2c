/*
 * Batches that need no stage, since the daemon moves the bytes between the file and the program's memory itself:
 *
 * - memory that the program has registered, and said where it is (lanefs_register_at), or mapped as its own (LANEFS_PRIVATE);
 * - what cudaMalloc and hipMalloc gave, by legacy IPC, for pieces as large as LANEFS_LEGACY says: the daemon's copy engine moves them.
 *
 * What is on the stream before has ended when the daemon begins, and the daemon has ended when the call returns.
 */
#define _GNU_SOURCE
#include "stage.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE_SIZE = 4096 };
enum { LEGACY_LEAST = 0 }; /* never: what the program frees would stay allocated until its next batch */
enum { BUFFER_ID = 7, AT_ONCE = 1024, TOGETHER = 64, PART_SIZE = 16 << 20 };
_Static_assert(AT_ONCE <= PARTS * ENTRIES, "the ring has room");
enum { LEGACY_MESSAGE = 80, LEGACY_HANDLE = 64 };
#define LEGACY_MAGIC UINT64_C(0x3243504953464c20) /* " LFSIPC2" */

/* Memory that the daemon knows, and where the program has it. */
struct region {
	struct region *next;
	lanefs *s;
	uint64_t at, size;
	uint32_t handle;
	uint64_t offset; /* of at in the memory of the handle */
};

PROCESS_LOCK(lock);
static struct region *regions; /* protected by lock */

int lanefs_region_add(lanefs *s, const void *at, uint64_t size, uint32_t handle, uint64_t offset)
{
	struct region *r = malloc(sizeof *r);
	if (!r)
		return lanefs_fail(ENOMEM, NULL);
	pthread_mutex_lock(&lock);
	*r = (struct region){regions, s, (uint64_t)(uintptr_t)at, size, handle, offset};
	regions = r;
	pthread_mutex_unlock(&lock);
	return 0;
}

void lanefs_region_end(lanefs *s, uint32_t handle)
{
	pthread_mutex_lock(&lock);
	for (struct region **l = &regions; *l;) {
		struct region *r = *l;
		if (r->s == s && (!handle || r->handle == handle)) {
			*l = r->next;
			free(r);
		} else {
			l = &r->next;
		}
	}
	pthread_mutex_unlock(&lock);
}

/* Whether bytes [low, high) are in a region, and where. */
static int find(lanefs *s, uint64_t low, uint64_t high, struct region *found)
{
	int yes = 0;
	pthread_mutex_lock(&lock);
	for (struct region *r = regions; r && !yes; r = r->next)
		if (r->s == s && low >= r->at && high <= r->at + r->size) {
			*found = *r;
			yes = 1;
		}
	pthread_mutex_unlock(&lock);
	return yes;
}

int lanefs_register_at(lanefs *s, const void *address, int fd, enum lanefs_kind kind, uint64_t offset, uint64_t size, uint32_t *handle)
{
	if (lanefs_register(s, fd, kind, offset, size, handle))
		return -1;
	if (lanefs_region_add(s, address, size, *handle, 0) == 0)
		return 0;
	int saved = errno;
	lanefs_release(s, *handle);
	errno = saved;
	return -1;
}

/* ---- legacy IPC ---- */

/* The allocation that a pointer is in, as the GPU's library knows it. */
static int allocation(struct gpu *g, uint64_t at, uint64_t *base, uint64_t *size, uint64_t *id)
{
	return CALL(g, "PointerGetAttribute", (void *, int, uint64_t), id, BUFFER_ID, at) == 0 &&
		CALL(g, g->hip ? "MemGetAddressRange" : "MemGetAddressRange_v2", (uint64_t *, uint64_t *, uint64_t), base, size, at) == 0;
}

/* Registers an allocation with the daemon. Returns its handle; 0: it cannot be. */
static uint32_t offer(lanefs *s, struct gpu *g, uint64_t base, uint64_t size)
{
	struct { uint64_t magic, size; char handle[LEGACY_HANDLE]; } m = {LEGACY_MAGIC, size, {0}};
	uint32_t handle = 0;
	_Static_assert(sizeof m == LEGACY_MESSAGE, "layout");
	if (size < PAGE_SIZE || CALL(g, "IpcGetMemHandle", (void *, uint64_t), m.handle, base))
		return 0;
	int fd = lanefs_memfd("lanefs-ipc");
	if (fd < 0)
		return 0;
	if (lanefs_put(fd, &m, sizeof m) != sizeof m || lanefs_register(s, fd, LANEFS_LEGACY, 0, size / PAGE_SIZE * PAGE_SIZE, &handle))
		handle = 0;
	close(fd);
	return handle;
}

static void forget(struct lanefs_stage *st, struct legacy *l)
{
	if (l->handle)
		lanefs_release(st->s, l->handle);
	*l = (struct legacy){0};
}

/* Gives up memory that the program has freed: the daemon has it still. */
static void sweep(struct lanefs_stage *st)
{
	for (int i = 0; i < LEGACIES; i++) {
		struct legacy *l = &st->legacy[i];
		uint64_t base, size, id;
		if (l->gpu && (!allocation(l->gpu, l->base, &base, &size, &id) || id != l->id))
			forget(st, l);
	}
}

/* The bytes from which on legacy IPC is used, per piece; 0: never. */
static uint64_t least(void)
{
	const char *text = getenv("LANEFS_LEGACY");
	return text ? strtoull(text, NULL, 0) : LEGACY_LEAST;
}

/* The allocation of [low, high), if the daemon has it or will have it. The GPU is entered. */
static int known(struct lanefs_stage *st, struct gpu *g, uint64_t low, uint64_t high, struct region *found)
{
	uint64_t base, size, id;
	struct legacy *oldest = &st->legacy[0];
	if (!allocation(g, low, &base, &size, &id) || high > base + size)
		return 0;
	for (int i = 0; i < LEGACIES; i++) {
		struct legacy *l = &st->legacy[i];
		if (l->gpu == g && l->base == base && l->id == id) {
			l->used = ++st->uses;
			*found = (struct region){.at = base, .size = l->size, .handle = l->handle};
			return l->handle && high <= base + l->size;
		}
		if (l->used < oldest->used)
			oldest = l;
	}
	sweep(st);
	forget(st, oldest);
	*oldest = (struct legacy){.gpu = g, .base = base, .id = id, .used = ++st->uses};
	oldest->handle = offer(st->s, g, base, size);
	oldest->size = size / PAGE_SIZE * PAGE_SIZE;
	*found = (struct region){.at = base, .size = oldest->size, .handle = oldest->handle};
	return oldest->handle && high <= base + oldest->size;
}

void lanefs_direct_end(struct lanefs_stage *st)
{
	for (int i = 0; i < LEGACIES; i++)
		forget(st, &st->legacy[i]);
}

/* ---- the batch ---- */

/* A request on its way: its data is its place. */
struct request { size_t piece; char *at; uint64_t length; int64_t got; int over; };

/* The requests of a batch, the newest AT_ONCE of them, and those that the daemon is told of together. They end in any order, and are counted in theirs. */
struct straight {
	struct request all[AT_ONCE];
	uint64_t begun, counted;
	unsigned queued;
	int zeroes; /* are on the stream */
	struct lanefs_request queue[TOGETHER];
};

static void zero(struct batch *b, struct straight *w, char *at, uint64_t n)
{
	struct gpu *g = b->target.gpu;
	int rc;
	if (!g) {
		if (lanefs_host_zero(at, n))
			lanefs_batch_give_up(b);
		return;
	}
	w->zeroes = 1;
	if ((rc = CALL(g, "MemsetD8Async", (uint64_t, unsigned char, size_t, void *), (uint64_t)(uintptr_t)at, 0, n, b->target.stream))) {
		lanefs_gpu_bad(g, "MemsetD8Async", rc);
		lanefs_batch_give_up(b);
	}
}

static void submit(struct batch *b, struct straight *w)
{
	lanefs_ring_submit(b->st->ring, w->queue, w->queued); /* there is room for AT_ONCE */
	w->queued = 0;
}

/* Counts the oldest requests, those that are over. Behind what counts a piece is zero. */
static void count(struct batch *b, struct straight *w)
{
	for (struct request *q; w->counted < w->begun && (q = &w->all[w->counted % AT_ONCE])->over; w->counted++) {
		uint64_t got = lanefs_batch_add(b, q->piece, q->length, q->got);
		if (b->read && got < q->length)
			zero(b, w, q->at + got, q->length - got);
	}
}

static void reap(struct batch *b, struct straight *w)
{
	struct lanefs_completion c[TOGETHER];
	submit(b, w);
	int n = lanefs_batch_reap(b, c, TOGETHER);
	if (n < 0) {
		w->counted = w->begun;
		return;
	}
	for (int i = 0; i < n; i++) {
		if (c[i].data >= AT_ONCE || c[i].data >= w->begun)
			continue; /* a bug of the daemon */
		struct request *q = &w->all[c[i].data];
		q->got = c[i].result > (int64_t)q->length ? (int64_t)q->length : c[i].result;
		q->over = 1;
	}
	count(b, w);
}

static void straight(struct batch *b, const struct region *r)
{
	struct straight w;
	int rc;
	w.begun = w.counted = 0;
	w.queued = 0;
	w.zeroes = 0;
	for (size_t i = 0; i < b->pieces && !lanefs_batch_failed(b); i++) {
		const struct lanefs_piece *q = &b->piece[i];
		for (uint64_t done = 0; done < q->length && !lanefs_batch_failed(b); done += PART_SIZE) {
			while (w.begun - w.counted == AT_ONCE && !lanefs_batch_failed(b))
				reap(b, &w);
			if (lanefs_batch_failed(b))
				break;
			uint64_t n = q->length - done < PART_SIZE ? q->length - done : PART_SIZE;
			char *at = b->base + q->memory_offset + done;
			unsigned slot = w.begun++ % AT_ONCE;
			w.all[slot] = (struct request){i, at, n, 0, 0};
			w.queue[w.queued++] = (struct lanefs_request){.data = slot, .op = b->read ? LANEFS_READ : LANEFS_WRITE, .file = b->file, .memory = r->handle,
				.file_offset = q->file_offset + done, .memory_offset = r->offset + ((uint64_t)(uintptr_t)at - r->at), .length = n};
			if (w.queued == TOGETHER)
				submit(b, &w);
		}
	}
	while (w.counted < w.begun)
		reap(b, &w);
	if (w.zeroes && b->now && (rc = CALL(b->target.gpu, "StreamSynchronize", (void *), b->target.stream))) {
		lanefs_gpu_bad(b->target.gpu, "StreamSynchronize", rc);
		lanefs_batch_give_up(b);
	}
}

int lanefs_direct(struct batch *b)
{
	uint64_t low = UINT64_MAX, high = 0, sum = 0;
	struct gpu *g = b->target.gpu;
	struct region r;
	for (size_t i = 0; i < b->pieces; i++) {
		uint64_t at = (uint64_t)(uintptr_t)b->base + b->piece[i].memory_offset, n = b->piece[i].length;
		if (n == 0)
			continue;
		low = at < low ? at : low;
		high = at + n > high ? at + n : high;
		sum += n;
	}
	struct was was;
	int yes = find(b->st->s, low, high, &r), rc;
	if (!yes && (!g || !b->target.device || !least() || sum / b->pieces < least() || !lanefs_gpu_serves(b->st->s, g)))
		return 0;
	if (g && (rc = lanefs_gpu_enter(g, &was)) != 0) {
		lanefs_gpu_not_entered(g, rc);
		lanefs_batch_give_up(b);
		return 1;
	}
	int legacy = !yes;
	if (!yes)
		yes = known(b->st, g, low, high, &r);
	if (yes && g && (rc = CALL(g, "StreamSynchronize", (void *), b->target.stream))) {
		lanefs_gpu_bad(g, "StreamSynchronize", rc);
		lanefs_batch_give_up(b);
	} else if (yes) {
		straight(b, &r);
		*(legacy ? &b->st->legacies : &b->st->directs) += b->pieces;
	}
	if (g)
		lanefs_gpu_leave(g, &was);
	return yes;
}
