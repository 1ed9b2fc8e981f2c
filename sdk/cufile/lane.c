/*
 * LaneFS's road: a session with the daemon of a mount, shared by its files, and stages, one for each call at a time.
 *
 * The lock of a mount is never held while bytes move. A call that finds no stage free makes one, until there are STAGES; then it waits for
 * one, which it gets when another call ends: the daemon ends each, or ends itself, which the stage reports. So it does where no stage can be
 * made, for want of memory, addresses or descriptors, or since the daemon refuses it; a call tries that again after PAUSE.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The daemon allows 8 rings to a session, a stage has one. Streams leave some of them to the other calls, which could not wait for a stream's to be free. */
enum { STAGES = 8, STAGE = 16 << 20, STREAMS = 6, STREAM_STAGE = 32 << 20, PAUSE = 1000000 /* µs */ };

struct lane {
	struct lane *next;
	lanefs_stage *stage;
	struct lane_stream { struct lane_stream *next; struct gpu *gpu; void *stream; } *streams; /* one for each GPU that it has met */
};

struct mount {
	struct mount *next;
	dev_t dev;
	lanefs *s;
	unsigned users;          /* files; protected by the lock of all mounts, as next is */
	pthread_mutex_t lock;
	pthread_cond_t freed;
	struct lane *idle;       /* these are protected by lock */
	unsigned lanes;
	unsigned streams;        /* that have a stage */
	uint64_t refused;        /* when the last lane could not be made, in µs; 0: it could */
	int gone;
};

PROCESS_LOCK(lock);
static struct mount *mounts; /* protected by lock */

static void child(void)
{
	mounts = NULL;
}

IN_CHILD(child);

static void lane_end(struct lane *l)
{
	lanefs_stage_free(l->stage);
	while (l->streams) {
		struct lane_stream *s = l->streams;
		l->streams = s->next;
		stream_free(s->gpu, s->stream);
		free(s);
	}
	free(l);
}

static void end(struct mount *m)
{
	while (m->idle) {
		struct lane *l = m->idle;
		m->idle = l->next;
		lane_end(l);
	}
	lanefs_close(m->s);
	pthread_cond_destroy(&m->freed);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

int mount_gone(struct mount *m) { return m->gone || lanefs_gone(m->s); }

struct mount *mount_find(int fd, const struct stat *st)
{
	pthread_mutex_lock(&lock);
	struct mount *m = mounts;
	while (m && (m->dev != st->st_dev || mount_gone(m)))
		m = m->next;
	if (m) {
		m->users++;
		pthread_mutex_unlock(&lock);
		return m;
	}
	pthread_mutex_unlock(&lock);
	lanefs *s = lanefs_connect(fd);
	if (!s)
		return NULL;
	if (!(m = calloc(1, sizeof *m))) {
		lanefs_close(s);
		errno = ENOMEM;
		return NULL;
	}
	m->dev = st->st_dev;
	m->s = s;
	m->users = 1;
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->freed, NULL);
	pthread_mutex_lock(&lock);
	m->next = mounts;
	mounts = m;
	pthread_mutex_unlock(&lock);
	return m;
}

/* A mount stays for its next file, unless its daemon has gone. */
static void drop(int all)
{
	struct mount *dead = NULL;
	pthread_mutex_lock(&lock);
	for (struct mount **p = &mounts; *p;) {
		struct mount *m = *p;
		if (m->users || (!all && !mount_gone(m))) {
			p = &m->next;
			continue;
		}
		*p = m->next;
		m->next = dead;
		dead = m;
	}
	pthread_mutex_unlock(&lock);
	while (dead) {
		struct mount *m = dead;
		dead = m->next;
		end(m);
	}
}

void mount_take(struct mount *m)
{
	pthread_mutex_lock(&lock);
	m->users++;
	pthread_mutex_unlock(&lock);
}

void mount_give(struct mount *m)
{
	pthread_mutex_lock(&lock);
	m->users--;
	pthread_mutex_unlock(&lock);
	drop(0);
}

void mount_forget_all(void) { drop(1); }

lanefs *mount_session(struct mount *m) { return m->s; }
int mount_open(struct mount *m, int fd, uint32_t *opened) { return lanefs_open(m->s, fd, opened); }
void mount_release(struct mount *m, uint32_t opened) { lanefs_release(m->s, opened); }

static struct lane *lane_new(struct mount *m)
{
	struct lane *l = calloc(1, sizeof *l);
	if (!l) {
		errno = ENOMEM;
		return NULL;
	}
	if (!(l->stage = lanefs_stage_new(m->s, STAGE))) {
		free(l);
		return NULL;
	}
	return l;
}

/* Whether a lane may be made now. The first one may be, for nobody would give another back. The caller holds the lock. */
static int may_make(struct mount *m)
{
	if (m->lanes + m->streams >= STAGES)
		return 0;
	if (!m->lanes || !m->refused)
		return 1;
	uint64_t now = now_us();
	if (now - m->refused < PAUSE)
		return 0;
	m->refused = now; /* one call tries */
	return 1;
}

static struct lane *take(struct mount *m)
{
	pthread_mutex_lock(&m->lock);
	for (;;) {
		struct lane *l = m->idle;
		if (l) {
			m->idle = l->next;
			pthread_mutex_unlock(&m->lock);
			return l;
		}
		if (may_make(m)) {
			m->lanes++;
			pthread_mutex_unlock(&m->lock);
			l = lane_new(m);
			int saved = errno;
			pthread_mutex_lock(&m->lock);
			m->refused = l ? 0 : now_us();
			if (l) {
				pthread_mutex_unlock(&m->lock);
				return l;
			}
			m->lanes--;
			if (!m->lanes || mount_gone(m)) {
				pthread_cond_broadcast(&m->freed); /* nobody else will wake those that wait */
				pthread_mutex_unlock(&m->lock);
				errno = saved;
				return NULL;
			}
			continue;
		}
		pthread_cond_wait(&m->freed, &m->lock);
	}
}

static void give(struct mount *m, struct lane *l)
{
	pthread_mutex_lock(&m->lock);
	l->next = m->idle;
	m->idle = l;
	pthread_cond_signal(&m->freed);
	pthread_mutex_unlock(&m->lock);
}

/* Ends a lane that is idle, if enough others are left. 0: there is none. */
static int lane_spare(struct mount *m)
{
	pthread_mutex_lock(&m->lock);
	struct lane *l = m->lanes > STAGES - STREAMS ? m->idle : NULL;
	if (l) {
		m->idle = l->next;
		m->lanes--;
		m->refused = now_us(); /* what it had is for a stream */
	}
	pthread_mutex_unlock(&m->lock);
	if (l)
		lane_end(l);
	return l != NULL;
}

/* One stage of a stream less. Calls that wait for a lane can make one. */
static void stream_less(struct mount *m)
{
	pthread_mutex_lock(&m->lock);
	m->streams--;
	m->refused = 0;
	pthread_cond_signal(&m->freed);
	pthread_mutex_unlock(&m->lock);
}

lanefs_stage *mount_stage(struct mount *m)
{
	pthread_mutex_lock(&m->lock);
	int full = m->streams == STREAMS;
	m->streams += !full;
	pthread_mutex_unlock(&m->lock);
	if (full)
		return NULL;
	lanefs_stage *stage = lanefs_stage_new(m->s, STREAM_STAGE);
	if (!stage && lane_spare(m))
		stage = lanefs_stage_new(m->s, STREAM_STAGE);
	if (!stage)
		stream_less(m);
	return stage;
}

void mount_stage_free(struct mount *m, lanefs_stage *stage)
{
	lanefs_stage_free(stage);
	stream_less(m);
}

ssize_t lane_failed(const struct failure *f)
{
	errno = lane_ended(f->code) || f->code == EPROTO ? ENOTCONN : f->code; /* as a read of a file whose daemon has gone */
	switch (f->code) {
	case ENOMEM:
		return -CU_FILE_NOMEM_ERROR;
	case EFAULT:
		return -CU_FILE_CUDA_POINTER_INVALID;
	case EIO:
		return f->gpu ? -CU_FILE_CUDA_DRIVER_ERROR : -1;
	case EINVAL: /* of a GPU: the stream is captured */
		return f->gpu ? -CU_FILE_CUDA_DRIVER_ERROR : -CU_FILE_INVALID_VALUE;
	}
	return -1;
}

/* The lane's stream on a GPU, or NULL for memory that no GPU knows. */
static int stream_for(struct lane *l, struct gpu *g, void **stream)
{
	*stream = NULL;
	if (!g)
		return 0;
	struct lane_stream *s = l->streams;
	while (s && s->gpu != g)
		s = s->next;
	if (!s) {
		if (!(s = calloc(1, sizeof *s)))
			return -1;
		*s = (struct lane_stream){l->streams, g, stream_new(g)};
		if (!s->stream) {
			free(s);
			return -1;
		}
		l->streams = s;
	}
	*stream = s->stream;
	return 0;
}

/* How the thread's last call of the SDK failed. */
static ssize_t call_failed(void)
{
	struct failure f;
	lanefs_failed(&f);
	return lane_failed(&f);
}

ssize_t lane_batch(const struct move *m, int fd, void *base, const struct lanefs_piece *piece, const unsigned char *same, size_t n, int64_t *results)
{
	struct mount *mount = m->file->mount;
	struct lane *l = take(mount);
	struct target t = m->target;
	if (!l)
		return call_failed();
	ssize_t got = -CU_FILE_CUDA_DRIVER_ERROR;
	if (stream_for(l, t.gpu, &t.stream) == 0 && (got = lanefs_batch_of(l->stage, m->read, m->file->opened, fd, base, piece, same, n, &t, results)) < 0)
		got = call_failed();
	int saved = errno;
	if (got == -1 && saved == ENOTCONN)
		mount->gone = 1;
	give(mount, l);
	errno = saved;
	return got;
}

ssize_t lane_move(struct move *m)
{
	m->road = ROAD_STAGE;
	return lane_batch(m, -1, m->memory, &(struct lanefs_piece){(uint64_t)m->offset, 0, m->n}, NULL, 1, NULL);
}
