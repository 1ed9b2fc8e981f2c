/*
 * Shared memory as a road: a range of a file that the daemon keeps in device memory, and gives to all programs that want it, is copied on the
 * device. That is many times as fast as a stage, but for the first time, when the range has to be read as a whole. So each window of a file is
 * mapped when what was read from it by the stage would have paid for that:
 *
 *  1. Is the window mapped, and the file the same since?       copy it
 *  2. Else note what the stage's way costs.                    pay
 *  3. Enough? Then map it for the next time.                   begin
 *
 * Copies of reads that go together are begun one after another, and waited for once.                      map_many, waited
 *
 * A window that the file has outlived is unmapped; such a file must pay more for the next one. What a process has mapped is a quarter of the
 * pool at most. LANEFS_CUFILE_MAP=0 switches this road off, =now maps what is read once.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 64 << 20, CALL = 4 << 20, SMALL_CALL = 128 << 10, PRICE = 2 * WINDOW, PINNED = 10 /* times that */, DEAREST = 10, READ_ONLY = 8, UNUSED = 5000000 /* µs */, REFUSED = UNUSED };

struct window {
	struct window *next;
	uint64_t index;             /* of the file, in windows */
	uint64_t paid;              /* bytes; these are protected by the file's lock */
	unsigned users, stale;
	int mapped, busy, gone;     /* busy: being mapped; gone: no longer in the list */
	uint64_t used;              /* when it was last */
	struct lanefs_buffer b;     /* constant while it is mapped */
	char *at;
	struct gpu *gpu;            /* whose memory it is; NULL: the CPU's */
	struct gpu *pinned;         /* likewise of the CPU's, with whom it is pinned */
	uint64_t refused;           /* when it could not be; 0: it was not tried */
};

static _Atomic uint64_t total;  /* bytes that are mapped */

/* Streams of the library's own, one for each copy at a time. */
struct idle_stream {
	struct idle_stream *next;
	struct gpu *gpu;
	void *stream;
};
PROCESS_LOCK(lock);
static struct idle_stream *streams; /* protected by lock */

static void child(void)
{
	streams = NULL;
	total = 0;
}

IN_CHILD(child);

static int off, at_once;

__attribute__((constructor)) static void begin_map(void)
{
	const char *e = getenv("LANEFS_CUFILE_MAP");
	off = e && strcmp(e, "0") == 0;
	at_once = e && strcmp(e, "now") == 0;
}

static struct idle_stream *take_stream(struct gpu *g)
{
	pthread_mutex_lock(&lock);
	struct idle_stream **p = &streams;
	while (*p && (*p)->gpu != g)
		p = &(*p)->next;
	struct idle_stream *s = *p;
	if (s)
		*p = s->next;
	pthread_mutex_unlock(&lock);
	if (s || !(s = calloc(1, sizeof *s)))
		return s;
	s->gpu = g;
	if (!(s->stream = stream_new(g))) {
		free(s);
		return NULL;
	}
	return s;
}

static void give_stream(struct idle_stream *s)
{
	pthread_mutex_lock(&lock);
	s->next = streams;
	streams = s;
	pthread_mutex_unlock(&lock);
}

static void unmap(struct file *f, struct window *w)
{
	struct was was;
	if (w->pinned && lanefs_gpu_enter(w->pinned, &was) == 0) {
		CALL(w->pinned, w->pinned->hip ? "HostUnregister" : "MemHostUnregister", (void *), w->b.mapped);
		lanefs_gpu_leave(w->pinned, &was);
	}
	w->pinned = NULL;
	total -= w->b.size;
	lanefs_unmap(mount_session(f->mount), &w->b);
	w->mapped = 0;
}

static void end(struct file *f, struct window *w)
{
	if (w->mapped)
		unmap(f, w);
	free(w);
}

/* The caller holds the file's lock, and has removed w from the list. Returns whether it is the caller's to end. */
static int left(struct window *w)
{
	w->gone = 1;
	return w->users == 0 && !w->busy;
}

static void release(struct file *f, struct window *w)
{
	pthread_mutex_lock(&f->lock);
	int last = --w->users == 0 && w->gone && !w->busy;
	pthread_mutex_unlock(&f->lock);
	if (last)
		end(f, w);
}

void map_forget(struct file *f)
{
	while (f->windows) {
		struct window *w = f->windows;
		f->windows = w->next;
		end(f, w);
	}
}

/* The caller holds the file's lock. */
static struct window *find(struct file *f, uint64_t index, int make)
{
	for (struct window *w = f->windows; w; w = w->next)
		if (w->index == index)
			return w;
	struct window *w = make ? calloc(1, sizeof *w) : NULL;
	if (w) {
		w->index = index;
		w->b.fd = -1;
		w->next = f->windows;
		f->windows = w;
	}
	return w;
}

/* Takes the window out of the list. A new one in its place knows how often the file has changed. The caller holds the file's lock. */
static int drop(struct file *f, struct window *w)
{
	for (struct window **p = &f->windows; *p; p = &(*p)->next)
		if (*p == w) {
			*p = w->next;
			break;
		}
	struct window *heir = find(f, w->index, 1);
	if (heir)
		heir->stale = w->stale < DEAREST ? w->stale + 1 : w->stale;
	return left(w);
}

/* Room for another window. What this file has not used for a while goes; what is read over and over stays, though it is not all. */
static int room(struct file *f, uint64_t n)
{
	uint64_t most = lanefs_facts(mount_session(f->mount))->pool_size / 4;
	if (total + n <= most)
		return 1;
	struct window *oldest = NULL;
	pthread_mutex_lock(&f->lock);
	for (struct window *w = f->windows; w; w = w->next)
		if (w->mapped && !w->users && now_us() - w->used > UNUSED && (!oldest || w->used < oldest->used))
			oldest = w;
	int mine = oldest && drop(f, oldest);
	pthread_mutex_unlock(&f->lock);
	if (mine)
		end(f, oldest);
	return mine && total + n <= most;
}

/* Maps a window. It is busy, so nobody else does. */
static int map(struct file *f, struct window *w)
{
	struct stat st;
	lanefs *s = mount_session(f->mount);
	uint64_t start = w->index * WINDOW;
	void *at;
	if (file_lost(f, f->fd) || fstat(f->fd, &st) || (uint64_t)st.st_size <= start)
		return -1;
	uint64_t n = (uint64_t)st.st_size - start < WINDOW ? (uint64_t)st.st_size - start : WINDOW;
	if (!room(f, n) || lanefs_map(s, f->fd, start, n, 0, &w->b))
		return -1;
	if (w->b.kind == LANEFS_MEMFD) {
		w->at = w->b.data;
	} else if (lanefs_gpu_map(s, &w->b, &at) == 0) {
		w->at = at;
		w->gpu = w->b.gpu;
	} else {
		lanefs_unmap(s, &w->b);
		return -1;
	}
	close(w->b.fd); /* it is mapped. The program could close it otherwise, and open another file under its number */
	w->b.fd = -1;
	total += w->b.size;
	return 0;
}

static void begin(struct file *f, struct window *w)
{
	int rc = map(f, w), saved = errno;
	pthread_mutex_lock(&f->lock);
	w->busy = 0;
	w->mapped = rc == 0;
	w->paid = 0;
	if (rc && w->stale < DEAREST) /* the pool is full, or the like: not soon again */
		w->stale += 2;
	int last = w->gone && !w->users;
	pthread_mutex_unlock(&f->lock);
	if (last)
		end(f, w);
	errno = saved;
}

/* Memory of the CPU that a GPU is to copy from is pinned, once. Where the driver does not do that it is not asked for each read, which it may keep as long as if it did. */
static void pin(struct file *f, struct window *w, struct gpu *g)
{
	struct was was;
	pthread_mutex_lock(&f->lock);
	if (w->pinned && !lanefs_gpu_is(w->pinned))
		w->pinned = NULL;
	if (!w->pinned && !(w->refused && now_us() - w->refused < REFUSED) && lanefs_gpu_enter(g, &was) == 0) {
		if (CALL(g, g->hip ? "HostRegister" : "MemHostRegister_v2", (void *, size_t, unsigned), w->b.mapped, w->b.memory, READ_ONLY) == 0)
			w->pinned = g;
		else
			w->refused = now_us();
		lanefs_gpu_leave(g, &was);
	}
	pthread_mutex_unlock(&f->lock);
}

/* How part of a window is copied to a move's memory, which is a GPU's. */
static enum copy_kind kind(struct file *f, struct window *w, const struct move *m)
{
	struct gpu *g = m->target.gpu;
	if (!w->gpu)
		pin(f, w, g);
	return !m->target.device ? COPY_ANY : w->gpu ? IN_DEVICE : w->pinned == g ? TO_DEVICE : COPY_ANY;
}

/* A copy of part of a window. Other than 0: it failed, or the daemon has gone. */
static int copy(struct file *f, struct window *w, struct move *m, char *to, uint64_t from, size_t n)
{
	struct gpu *g = m->target.gpu;
	if (!g) {
		if (n > HOST_COPY)
			memcpy(to, w->at + from, n);
		else if (lanefs_host_copy(1, to, w->at + from, n))
			return -1; /* as the stage will say */
		return mount_gone(f->mount);
	}
	struct idle_stream *s = take_stream(g);
	if (!s)
		return -1;
	struct copying c;
	int rc = copy_begin(&c, g, s->stream, kind(f, w, m), to, w->at + from, n, NULL), lost = 0;
	if (!rc) {
		lost = mount_gone(f->mount); /* takes longer than all else that the CPU does here, so it is asked while the GPU copies */
		rc = copy_end(&c);
	}
	give_stream(s);
	return rc ? rc : lost;
}

/* Whether the daemon's memory is the CPU's, and a move's a GPU's: such a window is pinned page by page, for that GPU. */
static int is_pinned(const struct move *m) { return m->target.gpu && lanefs_facts(mount_session(m->file->mount))->kind == LANEFS_MEMFD; }

/*
 * What a window costs, in bytes. It takes 7 ms and more to map, and 15 to 25 where it is pinned: that is more than who reads a file once, in pieces of 64 KiB or 256 KiB, has of it.
 */
static uint64_t price(const struct move *m) { return (uint64_t)PRICE * (is_pinned(m) ? PINNED : 1); }

/* The part of a move that is in one window: the window, with a user, if it can be copied from now. call: bytes, what the stage's call would cost beside them. */
static struct window *ready(struct file *f, struct move *m, uint64_t offset, size_t n, size_t call)
{
	uint64_t index = offset / WINDOW;
	int mine = 0;
	pthread_mutex_lock(&f->lock);
	struct window *w = find(f, index, 1), *old = NULL, *start = NULL;
	if (w && w->mapped && w->gpu && w->gpu != m->target.gpu && w->gpu->ordinal == m->target.gpu->ordinal) /* which was reset since, and what is mapped outlives that */
		w->gpu = m->target.gpu;
	if (w && w->mapped && (w->gpu && w->gpu != m->target.gpu)) { /* another device's memory */
		w = NULL;
	} else if (w && w->mapped && lanefs_noticed(mount_session(f->mount), &w->b) != w->b.generation) {
		old = w;
		mine = drop(f, w);
		w = NULL;
	} else if (w && !(w->mapped && offset + n <= index * WINDOW + w->b.size)) {
		w->paid += n + call;
		if (!w->mapped && !w->busy && (at_once || w->paid >= price(m) << w->stale)) {
			w->busy = 1;
			start = w;
		}
		w = NULL;
	}
	if (w) {
		w->users++;
		w->used = now_us();
	}
	pthread_mutex_unlock(&f->lock);
	if (old && mine)
		end(f, old);
	if (start)
		begin(f, start); /* for the next read */
	return w;
}

/* Whether shared memory is a road to a move's memory. A GPU's daemon has the file in its memory, from where the CPU's is as far as from the stage. */
static int reaches(const struct move *m) { return !off && (m->target.gpu || lanefs_facts(mount_session(m->file->mount))->kind == LANEFS_MEMFD); }

static ssize_t move(struct move *m, size_t call)
{
	struct file *f = m->file;
	size_t done = 0;
	while (done < m->n) {
		uint64_t offset = (uint64_t)m->offset + done, in = offset % WINDOW;
		size_t n = m->n - done < WINDOW - in ? m->n - done : WINDOW - in;
		struct window *w = ready(f, m, offset, n, call);
		if (!w)
			return ELSEWHERE; /* the stage moves it all: a call takes one road */
		int rc = copy(f, w, m, m->memory + done, in, n);
		release(f, w);
		if (rc)
			return ELSEWHERE;
		done += n;
	}
	m->road = ROAD_SHARED;
	return (ssize_t)m->n;
}

/*
 * A copy from a window saves a small read 10 us where the page cache has not the bytes, and little where it has: a thousand pay for it, where dozens of others do. Until then tries of
 * this way, when the page cache is the quicker one, would map all of a file. Where the window is pinned a read of 64 KiB is twice as fast by it, and pays when the window has been read
 * once, as one of 256 KiB does, and those between; less than 16 KiB are hardly faster.
 */
static size_t call_of(const struct move *m)
{
	if (is_pinned(m))
		return m->n <= SMALL_IN_BATCH ? 0 : m->n < CALL / 16 ? 16 * m->n : CALL;
	return m->n <= SMALL_IN_BATCH ? SMALL_CALL : CALL;
}

/* Likewise of one in a batch, whose calls are one: never more than alone. */
static size_t call_in(const struct many *a, const struct move *m)
{
	size_t alone = call_of(m), share = CALL / a->n;
	return alone < share ? alone : share;
}

ssize_t map_move(struct move *m) { return m->n && reaches(m) ? move(m, call_of(m)) : ELSEWHERE; }

/* Waits for the copies on a stream, which are of moves from one up to another. What has failed the stage moves, or says why it cannot. */
static void waited(struct many *a, struct idle_stream *s, size_t from, size_t to)
{
	struct file *f = a->m[from]->file;
	int lost = mount_gone(f->mount), rc = stream_wait(s->gpu, s->stream);
	give_stream(s);
	for (size_t i = from; i < to; i++) {
		if (!a->window[i])
			continue;
		release(f, a->window[i]);
		if (rc || lost)
			continue;
		a->m[i]->road = ROAD_SHARED;
		many_done(a, i, (ssize_t)a->m[i]->n);
	}
}

void map_many(struct many *a)
{
	struct idle_stream *s = NULL;
	size_t first = 0;
	for (size_t i = 0; i < a->n; i++) {
		struct move *m = a->m[i];
		struct window *w = a->window[i] = NULL;
		if (!a->open[i] || m->n <= SMALL_IN_BATCH || !reaches(m))
			continue;
		uint64_t in = (uint64_t)m->offset % WINDOW;
		if (!m->target.gpu || in + m->n > WINDOW) { /* the CPU copies it, or it is in two windows, as few are */
			ssize_t n = move(m, call_in(a, m));
			if (n != ELSEWHERE)
				many_done(a, i, n);
			continue;
		}
		if (s && s->gpu != m->target.gpu) {
			waited(a, s, first, i);
			s = NULL;
		}
		if (!s) {
			first = i;
			s = take_stream(m->target.gpu);
		}
		if (s)
			w = ready(m->file, m, (uint64_t)m->offset, m->n, call_in(a, m));
		if (w && copy_on(s->gpu, s->stream, kind(m->file, w, m), m->memory, w->at + in, m->n))
			release(m->file, w);
		else
			a->window[i] = w;
	}
	if (s)
		waited(a, s, first, a->n);
}
