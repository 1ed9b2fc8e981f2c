/*
 * Batches. A batch has a thread, which does its requests in their order.
 *
 * batch_submit puts requests into a ring of the batch, the thread takes them and writes how they ended beside them, batch_status takes those.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum entry_state { FREE, QUEUED, RUNNING, ENDED };

struct asked {
	enum entry_state state;
	CUfileIOParams_t p;
	CUfileStatus_t status;
	ssize_t ret;
};

struct queue {
	struct object object;
	pthread_mutex_t lock;
	pthread_cond_t work, news;
	struct asked *entry;      /* these are protected by lock */
	unsigned most, used, head; /* head: the oldest that is not taken; used: from there on */
	unsigned next;            /* how many of those have begun or ended */
	int stop, running, started;
	pthread_t thread;
};

static struct asked *at(struct queue *b, unsigned i) { return &b->entry[(b->head + i) % b->most]; }

static void free_batch(struct queue *b)
{
	pthread_cond_destroy(&b->work);
	pthread_cond_destroy(&b->news);
	pthread_mutex_destroy(&b->lock);
	free(b->entry);
	free(b);
}

/* Waits for the request that is under way, if there is one. */
static void end(struct object *o)
{
	struct queue *b = (struct queue *)o;
	if (b->started) {
		pthread_mutex_lock(&b->lock);
		b->stop = 1;
		pthread_cond_broadcast(&b->work);
		pthread_mutex_unlock(&b->lock);
		pthread_join(b->thread, NULL);
	}
	free_batch(b);
}

/* Does a request. The batch's lock is not held. */
static void run(struct asked *e)
{
	uint64_t start = now_us();
	struct file *f = object_take(e->p.fh, FILE_OBJECT);
	int read = e->p.opcode == CUFILE_READ;
	if (!f) {
		e->status = CUFILE_INVALID;
		e->ret = -CU_FILE_HANDLE_NOT_REGISTERED;
		return;
	}
	struct move m = {.read = read, .file = f, .base = e->p.u.batch.devPtr_base, .at = e->p.u.batch.devPtr_offset, .n = e->p.u.batch.size,
		.memory = (char *)e->p.u.batch.devPtr_base + e->p.u.batch.devPtr_offset, .offset = e->p.u.batch.file_offset};
	e->ret = move_bytes(&m);
	if (e->ret == -1)
		e->ret = -errno;
	e->status = e->ret < 0 ? CUFILE_FAILED : CUFILE_COMPLETE;
	if (tracing())
		trace("BatchIO %s(%s, %zu bytes at %lld) = %zd, %s", read ? "read" : "write", f->name, e->p.u.batch.size, (long long)e->p.u.batch.file_offset, e->ret,
			e->ret < 0 ? error_text(e->ret > -CUFILEOP_BASE_ERR ? (int)e->ret : (int)-e->ret) : road_name(m.road));
	stats_batch(read, e->ret, now_us() - start);
	object_give(f);
}

static void *work(void *arg)
{
	struct queue *b = arg;
	pthread_mutex_lock(&b->lock);
	while (!b->stop) {
		if (b->next >= b->used) {
			pthread_cond_wait(&b->work, &b->lock);
			continue;
		}
		struct asked *e = at(b, b->next);
		if (e->state == QUEUED) {
			e->state = RUNNING;
			b->running = 1;
			pthread_mutex_unlock(&b->lock);
			run(e);
			pthread_mutex_lock(&b->lock);
			b->running = 0;
			e->state = ENDED;
		}
		b->next++;
		pthread_cond_broadcast(&b->news);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

status batch_new(void **handle, unsigned most)
{
	if (!handle || most == 0 || most > param_size(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE))
		return bad(CU_FILE_INVALID_VALUE);
	struct queue *b = calloc(1, sizeof *b);
	if (!b || !(b->entry = calloc(most, sizeof *b->entry))) {
		free(b);
		return bad(CU_FILE_NOMEM_ERROR);
	}
	b->most = most;
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

status batch_submit(void *handle, unsigned n, const CUfileIOParams_t *p, unsigned flags)
{
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
	if (!s.err && n > b->most - b->used)
		s = bad(CU_FILE_BATCH_FULL);
	if (!s.err && !b->started) {
		if (pthread_create(&b->thread, NULL, work, b))
			s = bad(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
		else
			b->started = 1;
	}
	for (unsigned i = 0; !s.err && i < n; i++)
		*at(b, b->used + i) = (struct asked){.state = QUEUED, .p = p[i], .status = CUFILE_PENDING};
	if (!s.err)
		b->used += n;
	pthread_cond_signal(&b->work);
	pthread_mutex_unlock(&b->lock);
	object_give(b);
	return s;
}

/* Those that ended, oldest first. */
static unsigned take(struct queue *b, CUfileIOEvents_t *events, unsigned n)
{
	unsigned k = 0;
	for (; k < n && b->next > 0; k++, b->next--, b->used--) {
		struct asked *e = at(b, 0);
		events[k] = (CUfileIOEvents_t){.cookie = e->p.cookie, .status = e->status, .ret = (size_t)e->ret};
		e->state = FREE;
		b->head = (b->head + 1) % b->most;
	}
	return k;
}

status batch_status(void *handle, unsigned least, unsigned *n, CUfileIOEvents_t *events, const struct timespec *timeout)
{
	if (!n || !events || !*n || least > *n)
		return bad(CU_FILE_INVALID_VALUE);
	struct queue *b = object_take(handle, BATCH_OBJECT);
	if (!b)
		return bad(CU_FILE_INVALID_VALUE);
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	if (timeout) {
		until.tv_sec += timeout->tv_sec;
		until.tv_nsec += timeout->tv_nsec;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
	}
	pthread_mutex_lock(&b->lock);
	/* Nothing more will end than what was submitted. */
	while (b->next < least && b->next < b->used) {
		if (!timeout)
			pthread_cond_wait(&b->news, &b->lock);
		else if (pthread_cond_timedwait(&b->news, &b->lock, &until) == ETIMEDOUT)
			break;
	}
	*n = take(b, events, *n);
	pthread_mutex_unlock(&b->lock);
	object_give(b);
	return ok();
}

status batch_cancel(void *handle)
{
	struct queue *b = object_take(handle, BATCH_OBJECT);
	if (!b)
		return bad(CU_FILE_INVALID_VALUE);
	pthread_mutex_lock(&b->lock);
	for (unsigned i = b->next; i < b->used; i++) {
		struct asked *e = at(b, i);
		if (e->state != QUEUED)
			continue;
		e->state = ENDED;
		e->status = CUFILE_CANCELED;
	}
	pthread_cond_signal(&b->work); /* it counts them as ended */
	pthread_mutex_unlock(&b->lock);
	object_give(b);
	return ok();
}

void batch_end(void *handle)
{
	batch_cancel(handle);
	stats_event(DID_BATCH_DESTROY, !object_remove(handle, BATCH_OBJECT), 0);
}
