/*
 * Calls in a stream's order. A stream is registered with what of a call's values is known when the call is made.
 *
 *  - All of it, a file of LaneFS, memory of a GPU: the call is put on the stream, with a stage that is the stream's, and returns. Not a write to a
 *    file that is open with O_DSYNC or O_SYNC, which ends when the bytes are durable. A handle that is deregistered meanwhile ends after it.
 *  - Else the call waits for what is on the stream, so that the values that it is given by address are the right ones, moves the bytes, and
 *    returns: what is put on the stream afterwards finds them. So it is with files of the next library, too, which gets the plain call: its
 *    own call on a stream has been seen to give wrong bytes where the values were not known (cuFile 1.15 in compatibility mode, flags 0).
 *
 * Three handles are streams of whoever uses them. NULL is the legacy stream, and a call on it is synchronous, as cuFile says. CU_STREAM_LEGACY is that of the current device, so
 * each device has a stage there. CU_STREAM_PER_THREAD is another stream in each thread and on each device, and what one of them waits for another may do: each has a stage. It is registered
 * until it was deregistered as often as that, for threads may do so each for themselves.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { FLAGS = 15, KNOWN = CU_FILE_STREAM_FIXED_BUF_OFFSET | CU_FILE_STREAM_FIXED_FILE_OFFSET | CU_FILE_STREAM_FIXED_FILE_SIZE };

#define PER_THREAD ((void *)2) /* CU_STREAM_PER_THREAD, hipStreamPerThread */

/* A thread that has used CU_STREAM_PER_THREAD. */
struct thread {
	_Atomic unsigned refs; /* of the thread, and of stages */
	_Atomic int ended;
};

/* What a stream has on the files of a mount, for one device and, if each thread has such a stream, one thread. */
struct on_mount {
	struct on_mount *next;
	struct mount *mount;
	struct gpu *gpu;
	struct thread *thread;
	lanefs_stage *stage;
	unsigned users;       /* calls that have it, protected by the stream's lock busy */
};

struct registered {
	struct registered *next;
	void *stream;
	unsigned flags, users;  /* users: calls that have it; these are protected by lock */
	unsigned times;         /* likewise, of PER_THREAD: that it was registered */
	pthread_cond_t unused;
	struct on_mount *stages; /* made when they are needed; protected by busy */
	pthread_mutex_t busy;
};

PROCESS_LOCK(lock);
static struct registered *list; /* protected by lock */
static _Thread_local struct thread *me;
static pthread_key_t at_end; /* has me, too, for the end of the thread */
static _Atomic int left;     /* stages of threads that have ended may be there */

static void child(void)
{
	list = NULL;
	me = NULL;
	pthread_setspecific(at_end, NULL);
}

IN_CHILD(child);

static void thread_give(struct thread *t)
{
	if (t && --t->refs == 0)
		free(t);
}

/* What the thread has on its stream goes on. To end its stages would call the GPU's library, which may have gone before the thread. */
static void thread_ended(void *t)
{
	me = NULL;
	((struct thread *)t)->ended = 1;
	left = 1;
	thread_give(t);
}

__attribute__((constructor)) static void begin_stream(void)
{
	pthread_key_create(&at_end, thread_ended);
}

static struct thread *this_thread(void)
{
	if (me || !(me = calloc(1, sizeof *me)))
		return me;
	me->refs = 1;
	if (pthread_setspecific(at_end, me)) {
		free(me);
		me = NULL;
	}
	return me;
}

/* The caller holds the lock. */
static struct registered **find(void *stream)
{
	struct registered **p = &list;
	while (*p && (*p)->stream != stream)
		p = &(*p)->next;
	return p;
}

/* The stream, if it is registered with these flags. It has one more user then. */
static struct registered *take(void *stream, unsigned flags)
{
	pthread_mutex_lock(&lock);
	struct registered *r = *find(stream);
	if (r && (r->flags & flags) != flags)
		r = NULL;
	if (r)
		r->users++;
	pthread_mutex_unlock(&lock);
	return r;
}

static void give(struct registered *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&lock);
	if (--r->users == 0)
		pthread_cond_broadcast(&r->unused);
	pthread_mutex_unlock(&lock);
}

static void end_stage(struct on_mount *o)
{
	mount_stage_free(o->mount, o->stage);
	mount_give(o->mount);
	thread_give(o->thread);
	free(o);
}

/* Ends what is in no list any more. Waits for the calls that have it, and for what they have put on the stream. */
static void end(struct registered *r)
{
	pthread_mutex_lock(&lock);
	while (r->users)
		pthread_cond_wait(&r->unused, &lock);
	pthread_mutex_unlock(&lock);
	while (r->stages) {
		struct on_mount *o = r->stages;
		r->stages = o->next;
		end_stage(o);
	}
	pthread_cond_destroy(&r->unused);
	pthread_mutex_destroy(&r->busy);
	free(r);
}

/* Takes out what is said to be not needed any more. */
static struct on_mount *taken_out(struct registered *r, int (*unneeded)(const struct on_mount *))
{
	struct on_mount *out = NULL;
	pthread_mutex_lock(&r->busy);
	for (struct on_mount **p = &r->stages, *o; (o = *p);) {
		if (o->users || !unneeded(o)) {
			p = &o->next;
			continue;
		}
		*p = o->next;
		o->next = out;
		out = o;
	}
	pthread_mutex_unlock(&r->busy);
	return out;
}

static void end_stages(struct on_mount *o)
{
	while (o) {
		struct on_mount *next = o->next;
		end_stage(o);
		o = next;
	}
}

static int is_own(const struct on_mount *o) { return o->thread && o->thread == me; }
static int is_over(const struct on_mount *o) { return (mount_gone(o->mount) || (o->thread && o->thread->ended) || !lanefs_gpu_is(o->gpu)) && lanefs_stage_idle(o->stage); }

/* Waits for what the calling thread has on its stream, as end does for all threads. */
static void end_own(struct registered *r) { end_stages(taken_out(r, is_own)); }

/* Ends the stages of threads that have ended, where nothing is on their streams. The others are looked at the next time. */
static void end_left(void)
{
	struct registered *r = atomic_exchange(&left, 0) ? take(PER_THREAD, 0) : NULL;
	if (!r)
		return;
	end_stages(taken_out(r, is_over));
	pthread_mutex_lock(&r->busy);
	for (struct on_mount *o = r->stages; o; o = o->next)
		if (o->thread && o->thread->ended)
			left = 1;
	pthread_mutex_unlock(&r->busy);
	give(r);
}

status stream_register(void *stream, unsigned flags)
{
	UNCANCELLED;
	if (flags & ~(unsigned)FLAGS)
		return bad(CU_FILE_INVALID_VALUE);
	struct registered *r = calloc(1, sizeof *r);
	if (!r)
		return bad(CU_FILE_NOMEM_ERROR);
	driver_use();
	r->stream = stream;
	r->flags = flags;
	pthread_mutex_init(&r->busy, NULL);
	pthread_cond_init(&r->unused, NULL);
	pthread_mutex_lock(&lock);
	struct registered *known = *find(stream);
	if (known) { /* what was said last counts */
		known->flags = flags;
		known->times++;
	} else {
		r->times = 1;
		r->next = list;
		list = r;
	}
	pthread_mutex_unlock(&lock);
	if (known)
		end(r);
	return ok();
}

status stream_deregister(void *stream)
{
	UNCANCELLED;
	pthread_mutex_lock(&lock);
	struct registered **p = find(stream), *r = *p;
	int others = r && stream == PER_THREAD && --r->times > 0;
	if (others)
		r->users++;
	else if (r)
		*p = r->next;
	pthread_mutex_unlock(&lock);
	if (!r)
		return bad(CU_FILE_INVALID_VALUE);
	if (others) {
		end_own(r);
		give(r);
	} else {
		end(r);
	}
	return ok();
}

void stream_forget_all(void)
{
	pthread_mutex_lock(&lock);
	struct registered *all = list;
	list = NULL;
	pthread_mutex_unlock(&lock);
	while (all) {
		struct registered *r = all;
		all = r->next;
		end(r);
	}
}

/* The caller holds busy. */
static struct on_mount *stage_of(struct registered *r, const struct mount *m, const struct gpu *g, const struct thread *t)
{
	struct on_mount *o = r->stages;
	while (o && (o->mount != m || o->gpu != g || o->thread != t))
		o = o->next;
	return o;
}

/*
 * The stream's stage for a mount, or NULL, and one more user. One for all mounts would have to be empty before it serves another, so a call would wait for
 * those before it.
 */
static struct on_mount *stage_for(struct registered *r, struct mount *m, struct gpu *g)
{
	struct thread *t = r->stream == PER_THREAD ? this_thread() : NULL;
	if (r->stream == PER_THREAD && !t)
		return NULL;
	end_left();
	pthread_mutex_lock(&r->busy);
	struct on_mount *o = stage_of(r, m, g, t);
	if (!o) {
		pthread_mutex_unlock(&r->busy);
		end_stages(taken_out(r, is_over)); /* what mounts before this one have left */
		pthread_mutex_lock(&r->busy);
		o = stage_of(r, m, g, t);
	}
	if (!o && (o = malloc(sizeof *o))) {
		*o = (struct on_mount){.next = r->stages, .mount = m, .gpu = g, .thread = t, .stage = mount_stage(m)};
		if (o->stage) {
			r->stages = o;
			mount_take(m);
			if (t)
				t->refs++;
		} else {
			free(o);
			o = NULL;
		}
	}
	if (o)
		o->users++;
	pthread_mutex_unlock(&r->busy);
	return o;
}

/* What the program finds in place of the bytes of a call that failed on its stream: as cuFile, -1 for the file's side. */
static int64_t failed(const struct failure *f) { return lane_failed(f); }

/* Counts a call when it has ended, before its stream goes on: then the program may end. */
static void count_ended(int read, int64_t done)
{
	if (done > 0)
		count_bytes(ROAD_STAGE, read, (size_t)done);
	else if (done < 0)
		count_failed();
}

static void read_ended(void *file, int64_t done) { (void)file; count_ended(1, done); }
static void write_ended(void *file, int64_t done) { (void)file; count_ended(0, done); }

/* Puts a call on its stream. 0: it is not one for that. 1: it is there, and gives the file back when it has ended. */
static int put(struct registered *r, struct move *m, ssize_t *result)
{
	struct lanefs_piece piece = {.file_offset = (uint64_t)m->offset, .length = m->n};
	int rc;
	_Static_assert(sizeof *result == sizeof(int64_t), "result");
	struct on_mount *o = stage_for(r, m->file->mount, m->target.gpu);
	if (!o)
		rc = 0; /* one of another stream will be free some time */
	else
		rc = lanefs_async(o->stage, m->read, m->file->opened, m->memory, &piece, 1, r->stream, NULL, (int64_t *)result, failed,
			(struct ending){object_give, m->read ? read_ended : write_ended, m->file}) ? -1 : 1;
	if (rc == -1) {
		struct failure f;
		lanefs_failed(&f);
		rc = (int)lane_failed(&f);
	}
	if (o) {
		pthread_mutex_lock(&r->busy);
		o->users--;
		pthread_mutex_unlock(&r->busy);
	}
	return rc == -1 ? -CU_FILE_IO_ERROR : rc;
}

status stream_move(void *handle, int read, void *base, size_t *n, off_t *offset, off_t *at, ssize_t *result, void *stream)
{
	UNCANCELLED;
	struct target t;
	if (!n || !offset || !at || !result || !base)
		return bad(CU_FILE_INVALID_VALUE);
	struct file *f = object_take(handle, FILE_OBJECT);
	if (!f)
		return bad(CU_FILE_HANDLE_NOT_REGISTERED);
	struct move m = {.read = read, .file = f, .base = base, .at = *at, .memory = (char *)base + *at, .n = *n, .offset = *offset};
	int rc = memory_at(base, 1, read ? TO_WRITE : TO_READ, &t), put_there = 0;
	off_t end = -1;
	struct registered *r = NULL;
	if (!rc && f->mount && (file_lost_any(f) || mount_gone(f->mount))) { /* at once, not when the stream gets there */
		errno = ENOTCONN;
		rc = -1;
	}
	if (!rc && t.gpu && f->mount && stream && !move_syncs(&m) && (r = take(stream, KNOWN)) && (rc = move_check(&m, &end)) == 0 && m.n > 0) {
		rc = put(r, &m, result);
		put_there = rc > 0;
		if (put_there)
			rc = 0;
	}
	give(r);
	if (!rc && !put_there && stream_wait(t.gpu, stream))
		rc = -CU_FILE_CUDA_DRIVER_ERROR;
	if (!rc && !put_there) {
		m = (struct move){.read = read, .file = f, .base = base, .at = *at, .memory = (char *)base + *at, .n = *n, .offset = *offset};
		*result = move_bytes(&m);
		if (*result < -1)
			rc = (int)*result;
	}
	if (!put_there)
		object_give(f);
	return bad(rc == -1 ? CU_FILE_IO_ERROR : -rc);
}
