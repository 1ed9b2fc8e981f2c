/*
 * Batches. A batch has a thread.
 *
 *  1. Requests are put at the end of a queue.                                                             batch_submit
 *  2. The oldest is taken, and what can go with it: the same file of LaneFS, the same direction.          gather
 *  3. Those go as one batch of the SDK; one that is alone goes as a call would.                           run
 *  4. How they ended is taken from a second queue.                                                        batch_status
 *
 * What is cancelled is forgotten, as by NVIDIA's library: no status is given of it, also if it has ended. What had begun ends first.
 *
 * The thread does 2 and 3; or who waits for them without a limit of time, and finds that the thread has not begun: that is sooner than to wait for
 * one another. One at a time does. LANEFS_CUFILE_BATCH=thread leaves it to the thread.
 *
 * A request overtakes another only if they have no byte in common, in the file or in memory, that either writes.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How much goes together: what is under way can not be cancelled. And how many are overtaken, for each of them is looked at. */
enum { TOGETHER = 64 << 20, OVERTAKEN = 256 };
enum { MOST = 1 << 16 }; /* requests of a batch, as many as fs.aio-max-nr allows NVIDIA's library, which does not hold them to max_batch_io_size either */

struct asked {
	struct asked *next;
	void *cookie;
	struct move m;        /* its file is NULL: the handle was none */
	size_t size;          /* as asked for: a read may be cut */
	unsigned round;       /* the batch's, when it was submitted */
	CUfileStatus_t status;
	ssize_t ret;
};

struct list { struct asked *first, **end; };

/* Bytes of a file or of memory. */
struct span { uint64_t start, end; };

struct queue {
	struct object object;
	pthread_mutex_t lock;
	pthread_cond_t work, news;
	struct asked *entries;    /* most of them */
	struct list idle, queued, ended; /* these are protected by lock. What is in no list is being done */
	unsigned most, idles, ends, round, steps; /* round: how often it was cancelled; steps: how often requests were carried out */
	int stop, started, running;
	pthread_t thread;
	struct span *span;        /* room for who gathers, */
	struct many many;         /* and for who runs */
};

static int by_thread;

__attribute__((constructor)) static void begin_batch(void)
{
	const char *e = getenv("LANEFS_CUFILE_BATCH");
	by_thread = e && strcmp(e, "thread") == 0;
}

static void clear(struct list *l) { *l = (struct list){NULL, &l->first}; }

static void append(struct list *l, struct asked *e)
{
	e->next = NULL;
	*l->end = e;
	l->end = &e->next;
}

/* Takes the element that *at points to out of the list. */
static struct asked *out(struct list *l, struct asked **at)
{
	struct asked *e = *at;
	*at = e->next;
	if (l->end == &e->next)
		l->end = at;
	return e;
}

static void free_batch(struct queue *b)
{
	pthread_cond_destroy(&b->work);
	pthread_cond_destroy(&b->news);
	pthread_mutex_destroy(&b->lock);
	many_free(&b->many);
	free(b->span);
	free(b->entries);
	free(b);
}

static void forget(struct queue *b, struct asked *e)
{
	append(&b->idle, e);
	b->idles++;
}

static void end_one(struct queue *b, struct asked *e)
{
	if (e->round != b->round) {
		forget(b, e);
		return;
	}
	append(&b->ended, e);
	b->ends++;
}

/* Takes the first that has ended. Its entry is free again. */
static struct asked *take_ended(struct queue *b)
{
	struct asked *e = out(&b->ended, &b->ended.first);
	b->ends--;
	forget(b, e);
	return e;
}

/* Takes all that has not begun. The caller holds the lock. */
static void cancel(struct queue *b, struct list *taken)
{
	while (b->queued.first)
		append(taken, out(&b->queued, &b->queued.first));
}

/* Gives back the files of entries that are in no list. Their last user may close them, so no lock is held. */
static void give_files(struct asked *e)
{
	for (; e; e = e->next) {
		if (e->m.file)
			object_give(e->m.file);
		e->m.file = NULL;
	}
}

/* Waits for the requests that are under way, if there are any. */
static void end(struct object *o)
{
	struct queue *b = (struct queue *)o;
	struct list left;
	clear(&left);
	if (b->started) {
		pthread_mutex_lock(&b->lock);
		b->stop = 1;
		pthread_cond_broadcast(&b->work);
		pthread_mutex_unlock(&b->lock);
		pthread_join(b->thread, NULL);
	}
	cancel(b, &left);
	give_files(left.first);
	free_batch(b);
}

/* ---- What goes together ---- */

static int meet(uint64_t a, uint64_t an, uint64_t b, uint64_t bn) { return a >= b ? a - b < bn : b - a < an; }

static int same_file(const struct file *a, const struct file *b)
{
	return a == b || (a && b && a->st.st_dev == b->st.st_dev && a->st.st_ino == b->st.st_ino);
}

/* Whether their order matters. */
static int tied(const struct asked *a, const struct asked *b)
{
	const struct move *x = &a->m, *y = &b->m;
	return (!(x->read && y->read) && same_file(x->file, y->file) && meet((uint64_t)x->offset, a->size, (uint64_t)y->offset, b->size)) ||
		((x->read || y->read) && meet((uint64_t)(uintptr_t)x->memory, a->size, (uint64_t)(uintptr_t)y->memory, b->size));
}

static int tied_to_any(const struct asked *list, const struct asked *before, const struct asked *e)
{
	for (; list && list != before; list = list->next)
		if (tied(list, e))
			return 1;
	return 0;
}

/*
 * Notes what a request of a group writes, in memory or in the file. 0: another one of the group writes some of that, too. The spans of a group are in
 * order, and there are n of them.
 */
static int add(struct span *span, size_t *n, const struct asked *e)
{
	uint64_t start = e->m.read ? (uint64_t)(uintptr_t)e->m.memory : (uint64_t)e->m.offset, end;
	size_t from = 0, to = *n;
	if (e->size == 0)
		return 1;
	if (__builtin_add_overflow(start, e->size, &end))
		return 0;
	if (to && span[to - 1].start < start) /* most follow one another */
		from = to;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (span[middle].start < start)
			from = middle + 1;
		else
			to = middle;
	}
	if ((from < *n && span[from].start < end) || (from && span[from - 1].end > start))
		return 0;
	if (from && span[from - 1].end == start && from == *n) {
		span[from - 1].end = end;
		return 1;
	}
	memmove(&span[from + 1], &span[from], ((*n)++ - from) * sizeof *span);
	span[from] = (struct span){start, end};
	return 1;
}

/* Takes the oldest request and what goes with it. The caller holds the lock. */
static struct asked *gather(struct queue *b)
{
	struct list group;
	struct asked *first = out(&b->queued, &b->queued.first);
	size_t bytes = first->size, n = 0;
	unsigned passed = 0;
	clear(&group);
	append(&group, first);
	if (!first->m.file || !first->m.file->mount || !add(b->span, &n, first))
		return first;
	for (struct asked **at = &b->queued.first; *at && bytes < TOGETHER && passed < OVERTAKEN;) {
		struct asked *e = *at;
		if (e->m.file != first->m.file || e->m.read != first->m.read || (passed && tied_to_any(b->queued.first, e, e)) || !add(b->span, &n, e)) {
			at = &e->next;
			passed++;
			continue;
		}
		bytes += e->size < TOGETHER ? e->size : TOGETHER;
		append(&group, out(&b->queued, at));
	}
	return group.first;
}

/* ---- The thread ---- */

static void ended(struct asked *e, uint64_t us)
{
	const struct move *m = &e->m;
	e->status = e->ret < 0 ? CUFILE_FAILED : CUFILE_COMPLETE;
	if (tracing())
		trace("BatchIO %s(%s, %zu bytes at %lld) = %zd, %s", m->read ? "read" : "write", m->file->name, e->size, (long long)m->offset, e->ret,
			e->ret < 0 ? error_text(e->ret > -CUFILEOP_BASE_ERR ? (int)e->ret : (int)-e->ret) : road_name(m->road));
	if (e->ret < 0)
		count_failed_request();
	stats_batch(m, e->ret, us);
}

/* Does a group. The batch's lock is not held. */
static void run(struct queue *b, struct asked *group)
{
	uint64_t start = now_us();
	size_t n = 0;
	if (!group->m.file) {
		group->status = CUFILE_INVALID;
		group->ret = -CU_FILE_HANDLE_NOT_REGISTERED;
		count_failed_request();
		return;
	}
	for (struct asked *e = group; e; e = e->next)
		b->many.m[n++] = &e->m;
	if (n == 1) { /* as a call would */
		group->ret = move_bytes(&group->m);
		if (group->ret == -1)
			group->ret = -errno;
	} else {
		move_many(&b->many, n);
		n = 0;
		for (struct asked *e = group; e; e = e->next)
			e->ret = b->many.result[n++];
	}
	uint64_t us = now_us() - start;
	for (struct asked *e = group; e; e = e->next)
		ended(e, us);
	give_files(group);
}

/* Does the oldest requests. The caller holds the lock, and nobody runs. */
static void step(struct queue *b)
{
	b->running = 1;
	struct asked *group = gather(b);
	pthread_mutex_unlock(&b->lock);
	run(b, group);
	pthread_mutex_lock(&b->lock);
	b->running = 0;
	b->steps++;
	while (group) {
		struct asked *e = group;
		group = e->next;
		end_one(b, e);
	}
	pthread_cond_broadcast(&b->news);
}

static void *work(void *arg)
{
	struct queue *b = arg;
	pthread_mutex_lock(&b->lock);
	while (!b->stop) {
		if (b->queued.first && !b->running)
			step(b);
		else
			pthread_cond_wait(&b->work, &b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

/* ---- The interface ---- */

status batch_new(void **handle, unsigned most)
{
	UNCANCELLED;
	if (!handle || most == 0 || most > MOST)
		return bad(CU_FILE_INVALID_VALUE);
	struct queue *b = calloc(1, sizeof *b);
	if (!b || !(b->entries = calloc(most, sizeof *b->entries)) || !(b->span = malloc(most * sizeof *b->span)) || many_new(&b->many, most)) {
		if (b) {
			free(b->span);
			free(b->entries);
		}
		free(b);
		return bad(CU_FILE_NOMEM_ERROR);
	}
	clear(&b->idle);
	clear(&b->queued);
	clear(&b->ended);
	for (unsigned i = 0; i < most; i++)
		append(&b->idle, &b->entries[i]);
	b->most = b->idles = most;
	pthread_mutex_init(&b->lock, NULL);
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&b->work, NULL);
	pthread_cond_init(&b->news, &a);
	pthread_condattr_destroy(&a);
	driver_use();
	int rc = object_add(&b->object, BATCH_OBJECT, end);
	if (rc)
		free_batch(b);
	else
		*handle = handle_of(&b->object);
	return bad(rc);
}

static int sound(const CUfileIOParams_t *p)
{
	return p->mode == CUFILE_BATCH && (p->opcode == CUFILE_READ || p->opcode == CUFILE_WRITE) && p->u.batch.devPtr_base;
}

static void put(struct queue *b, const CUfileIOParams_t *p)
{
	struct asked *e = out(&b->idle, &b->idle.first);
	b->idles--;
	*e = (struct asked){.cookie = p->cookie, .round = b->round, .size = p->u.batch.size, .status = CUFILE_PENDING,
		.m = {.read = p->opcode == CUFILE_READ, .file = object_take(p->fh, FILE_OBJECT), .base = p->u.batch.devPtr_base, .at = p->u.batch.devPtr_offset,
			.n = p->u.batch.size, .memory = (char *)p->u.batch.devPtr_base + p->u.batch.devPtr_offset, .offset = p->u.batch.file_offset}};
	append(&b->queued, e);
}

status batch_submit(void *handle, unsigned n, const CUfileIOParams_t *p, unsigned flags)
{
	UNCANCELLED;
	status s = ok();
	struct queue *b = object_take(handle, BATCH_OBJECT);
	if (!b || !n || !p || flags)
		s = bad(CU_FILE_INVALID_VALUE);
	for (unsigned i = 0; !s.err && i < n; i++)
		if (!sound(&p[i]))
			s = bad(CU_FILE_INVALID_VALUE);
	if (!b)
		return s;
	pthread_mutex_lock(&b->lock);
	if (!s.err && n > b->idles)
		s = bad(CU_FILE_BATCH_FULL);
	if (!s.err && !b->started) {
		if (lanefs_thread(&b->thread, work, b))
			s = bad(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
		else
			b->started = 1;
	}
	for (unsigned i = 0; !s.err && i < n; i++)
		put(b, &p[i]);
	pthread_cond_signal(&b->work);
	pthread_mutex_unlock(&b->lock);
	object_give(b);
	return s;
}

/* Those that ended, in that order. */
static unsigned take(struct queue *b, CUfileIOEvents_t *events, unsigned n)
{
	unsigned k = 0;
	for (; k < n && b->ended.first; k++) {
		struct asked *e = take_ended(b);
		events[k] = (CUfileIOEvents_t){.cookie = e->cookie, .status = e->status, .ret = (size_t)e->ret};
	}
	return k;
}

/* When a wait that begins now ends. 0: the time is none. */
static int deadline(const struct timespec *timeout, struct timespec *until)
{
	if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000)
		return 0;
	clock_gettime(CLOCK_MONOTONIC, until);
	until->tv_nsec += timeout->tv_nsec;
	if (until->tv_nsec >= 1000000000) {
		until->tv_nsec -= 1000000000;
		until->tv_sec++;
	}
	if (__builtin_add_overflow(until->tv_sec, timeout->tv_sec, &until->tv_sec))
		until->tv_sec = INT64_MAX;
	return 1;
}

status batch_status(void *handle, unsigned least, unsigned *n, CUfileIOEvents_t *events, const struct timespec *timeout)
{
	UNCANCELLED;
	struct timespec until;
	if (!n || !events || !*n || least > *n || (timeout && !deadline(timeout, &until)))
		return bad(CU_FILE_INVALID_VALUE);
	struct queue *b = object_take(handle, BATCH_OBJECT);
	if (!b)
		return bad(CU_FILE_INVALID_VALUE);
	pthread_mutex_lock(&b->lock);
	/* Nothing more will end than what was submitted. */
	while (b->ends < least && b->idles + b->ends < b->most) {
		if (!timeout && !by_thread && b->queued.first && !b->running)
			step(b);
		else if (!timeout)
			pthread_cond_wait(&b->news, &b->lock);
		else if (pthread_cond_timedwait(&b->news, &b->lock, &until))
			break;
	}
	*n = take(b, events, *n);
	if (b->queued.first && !b->running)
		pthread_cond_signal(&b->work); /* it may have looked while this thread ran */
	pthread_mutex_unlock(&b->lock);
	object_give(b);
	return ok();
}

status batch_cancel(void *handle)
{
	UNCANCELLED;
	struct queue *b = object_take(handle, BATCH_OBJECT);
	struct list taken;
	if (!b)
		return bad(CU_FILE_INVALID_VALUE);
	clear(&taken);
	pthread_mutex_lock(&b->lock);
	b->round++;
	cancel(b, &taken);
	while (b->ended.first)
		take_ended(b);
	for (unsigned now = b->steps; b->running && b->steps == now;)
		pthread_cond_wait(&b->news, &b->lock); /* the program may free the memory then */
	pthread_mutex_unlock(&b->lock);
	give_files(taken.first);
	pthread_mutex_lock(&b->lock);
	while (taken.first)
		forget(b, out(&taken, &taken.first));
	pthread_cond_broadcast(&b->news);
	pthread_mutex_unlock(&b->lock);
	object_give(b);
	return ok();
}

void batch_end(void *handle)
{
	UNCANCELLED;
	batch_cancel(handle);
	stats_event(DID_BATCH_DESTROY, !object_remove(handle, BATCH_OBJECT), 0);
}
