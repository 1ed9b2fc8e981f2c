/*
 * Shared memory as a road: a range of a file that the daemon keeps in device memory, and gives to all programs that want it, is copied on the
 * device. That is many times as fast as a stage, but for the first time, when the range has to be read as a whole. So each window of a file is
 * mapped when what was read from it by the stage would have paid for that:
 *
 *  1. Is the window mapped, and the file the same since?            copy it
 *  2. Else note what the stage's way, or the page cache's, costs.   pays, map_note
 *  3. Enough? Then map it, while reads go on by the other ways.     start
 *
 * To map a window takes up to 25 ms, so a thread of the library's does it, one at a time. Where it need not be pinned, reading a file once is quicker by windows, too: the next one is mapped
 * when part of one was read in order (ahead).
 *
 * Copies of reads that go together are begun one after another, and waited for once.                      map_many, waited
 *
 * A window that the file has outlived is unmapped; such a file must pay more for the next one. What a process has mapped is a quarter of the
 * pool at most. LANEFS_CUFILE_MAP=0 switches this road off, =wait has the read that has paid map the window, =now every first one.
 */
#define _GNU_SOURCE
#include "idle.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { WINDOW = 64 << 20, CALL = 4 << 20, SMALL_CALL = 128 << 10, PRICE = 2 * WINDOW, DEAREST = 10, DEVICE_MAPPED = 2, READ_ONLY = 8, UNUSED = 5000000 /* µs */, REFUSED = UNUSED };

struct window {
	struct window *next;
	uint64_t index;             /* of the file, in windows */
	uint64_t paid;              /* bytes; these are protected by the file's lock */
	unsigned users, stale;
	int mapped, busy, gone;     /* busy: being mapped; gone: no longer in the list */
	uint64_t used;              /* when it was last */
	uint64_t run, run_end;      /* bytes that were read in order, or about so, and where that was */
	int led;                    /* in that run the next one was looked at */
	struct lanefs_buffer b;     /* constant while it is mapped */
	char *at;
	struct gpu *gpu;            /* whose memory it is; NULL: the CPU's */
	struct gpu *pinned;         /* likewise of the CPU's, with whom it is pinned */
	uint64_t device;            /* at, for a kernel of its, if it is pinned; 0: none may read there */
	uint64_t refused;           /* when it could not be; 0: it was not tried */
};

static _Atomic uint64_t total;  /* bytes that are mapped */

/* Streams of the library's own, one for each copy at a time. */
struct idle_stream {
	struct item it;
	void *stream;
};

static void end_stream(struct item *it) { free(it); }

IDLE(streams, end_stream);
PROCESS_LOCK(lock);
static struct mapper {
	struct file *file;          /* NULL: there is none; protected by lock */
	struct window *window;
	struct gpu *gpu;            /* with which the window is to be pinned, or NULL */
} mapper;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER; /* the mapper has become so */

static void child(void)
{
	total = 0;
	mapper.file = NULL;
	pthread_cond_init(&idle, NULL);
}

IN_CHILD(child);

static int off, at_once, wait_for_it;

__attribute__((constructor)) static void begin_map(void)
{
	const char *e = getenv("LANEFS_CUFILE_MAP");
	off = e && strcmp(e, "0") == 0;
	at_once = e && strcmp(e, "now") == 0;
	wait_for_it = at_once || (e && strcmp(e, "wait") == 0);
}

static struct idle_stream *take_stream(struct gpu *g)
{
	struct idle_stream *s = (struct idle_stream *)idle_take(&streams, g, 0);
	if (s || !(s = calloc(1, sizeof *s)))
		return s;
	s->it.gpu = g;
	if (!(s->stream = stream_new(g))) {
		free(s);
		return NULL;
	}
	return s;
}

static void give_stream(struct idle_stream *s) { idle_put(&streams, &s->it); }

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
	pthread_mutex_lock(&lock);
	while (mapper.file == f)
		pthread_cond_wait(&idle, &lock);
	pthread_mutex_unlock(&lock);
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

/*
 * Memory of the CPU that a GPU is to copy from is pinned, once. Where the driver does not do that it is not asked for each read, which it may keep as long as if it did. The caller holds
 * the file's lock, or nobody else knows the window yet.
 */
static void pin(struct window *w, struct gpu *g)
{
	struct was was;
	if (w->pinned && !lanefs_gpu_is(w->pinned))
		w->pinned = NULL;
	if (w->pinned || (w->refused && now_us() - w->refused < REFUSED) || lanefs_gpu_enter(g, &was))
		return;
	if (CALL(g, g->hip ? "HostRegister" : "MemHostRegister_v2", (void *, size_t, unsigned), w->b.mapped, w->b.memory, READ_ONLY | DEVICE_MAPPED) == 0) {
		w->pinned = g;
		if (g->hip || CALL(g, "MemHostGetDevicePointer_v2", (uint64_t *, void *, unsigned), &w->device, w->at, 0))
			w->device = 0;
	} else {
		w->refused = now_us();
	}
	lanefs_gpu_leave(g, &was);
}

/* Maps a window that is busy, and pins it for g, if that is one and the memory is the CPU's. Then the mapper is idle. */
static void begin(struct file *f, struct window *w, struct gpu *g)
{
	int rc = map(f, w), saved = errno;
	if (!rc && g && !w->gpu)
		pin(w, g);
	pthread_mutex_lock(&f->lock);
	w->busy = 0;
	w->mapped = rc == 0;
	w->paid = 0;
	if (rc && w->stale < DEAREST) /* the pool is full, or the like: not soon again */
		w->stale += 2;
	int last = w->gone && !w->users;
	if (!rc)
		choose_again(f); /* who reads by the page cache, and has the rest of the window before it, would find out too late */
	pthread_mutex_unlock(&f->lock);
	if (last)
		end(f, w);
	pthread_mutex_lock(&lock);
	mapper.file = NULL; /* which may end now */
	pthread_cond_broadcast(&idle);
	pthread_mutex_unlock(&lock);
	errno = saved;
}

static void *map_thread(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "lanefs-map");
	begin(mapper.file, mapper.window, mapper.gpu);
	return NULL;
}

/* At the process's end, before that of the GPU's library, in which the thread may be. A daemon that stands still must not keep the process. */
static void at_exit(void)
{
	enum { EACH = 1000 /* µs */, TIMES = 2000 };
	for (unsigned i = 0; i < TIMES; i++) {
		pthread_mutex_lock(&lock);
		int busy = mapper.file != NULL;
		pthread_mutex_unlock(&lock);
		if (!busy)
			return;
		usleep(EACH);
	}
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void first(void) { atexit(at_exit); }

/* Has a window mapped that the caller has made busy, as the mapper is. Where no thread can be made the caller does it. */
static void start(struct file *f, struct window *w, struct gpu *g)
{
	sigset_t all, were;
	pthread_attr_t attributes;
	pthread_t thread;
	int rc = 1;
	pthread_once(&once, first);
	if (!wait_for_it && pthread_attr_init(&attributes) == 0) {
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &were); /* the program's signals are for its own threads */
		mapper.window = w;
		mapper.gpu = g;
		rc = pthread_create(&thread, &attributes, map_thread, NULL);
		pthread_sigmask(SIG_SETMASK, &were, NULL);
		pthread_attr_destroy(&attributes);
	}
	if (rc)
		begin(f, w, g);
}

/* Whether the caller may have a window of f's mapped. */
static int may_map(struct file *f)
{
	pthread_mutex_lock(&lock);
	int mine = !mapper.file;
	if (mine)
		mapper.file = f;
	pthread_mutex_unlock(&lock);
	return mine;
}

/* How part of a window is copied to a move's memory, which is a GPU's. */
static enum copy_kind kind(struct file *f, struct window *w, const struct move *m)
{
	struct gpu *g = m->target.gpu;
	if (!w->gpu) {
		pthread_mutex_lock(&f->lock);
		pin(w, g);
		pthread_mutex_unlock(&f->lock);
	}
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
	enum copy_kind k = kind(f, w, m);
	uint64_t at = k == IN_DEVICE ? (uint64_t)(uintptr_t)w->at : k == TO_DEVICE ? w->device : 0;
	int rc = copy_begin(&c, g, s->stream, k, to, w->at + from, n, NULL, at && kernels_may(&m->target) ? at + from : 0), lost = 0;
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
 * What a read pays for its window, of PRICE, in bytes. A copy from a window saves a small read 10 us where the page cache has not the bytes, and little where it has: a thousand pay for it, where
 * dozens of others do. Until then tries of this way, when the page cache is the quicker one, would map all of a file. A window that has to be pinned saves a read a
 * time that grows with it: it is worth it when the window has been read twice. Less than 16 KiB are hardly faster. n: how many bytes of it are in the window. together: how many reads go in
 * one call.
 */
static uint64_t pays(const struct move *m, size_t n, size_t together)
{
	enum { PART_OF_SMALL = 8 };
	int small = m->n <= SMALL_IN_BATCH;
	if (is_pinned(m))
		return small ? n / PART_OF_SMALL : n;
	size_t alone = small ? SMALL_CALL : CALL, share = CALL / together;
	return n + (alone < share ? alone : share); /* a call of many is one: never more than alone */
}

/* Notes what a read pays for a window that is not mapped. Whether the caller is to start it. The caller holds the file's lock. */
static int paid(struct file *f, struct window *w, uint64_t bytes)
{
	w->paid += bytes;
	if (w->mapped || w->busy || !(at_once || w->paid >= (uint64_t)PRICE << w->stale) || !may_map(f))
		return 0;
	w->busy = 1;
	return 1;
}

/*
 * Notes a read of a window that is mapped. If so much of it has been read in order that the next one is likely to be read, which is not mapped: that one, for the caller to start. The caller
 * holds the file's lock.
 */
static struct window *ahead(struct file *f, const struct move *m, struct window *w, uint64_t offset, size_t n)
{
	enum { NEAR = 16 /* reads, as those of threads that share a file's in turn */, LIKELY = WINDOW / 8 };
	uint64_t apart = offset > w->run_end ? offset - w->run_end : w->run_end - offset;
	int goes_on = apart <= (uint64_t)NEAR * n;
	w->run = goes_on ? w->run + n : n;
	w->run_end = offset + n;
	w->led = w->led && goes_on;
	if (w->led || w->run < LIKELY || is_pinned(m) || (w->index + 1) * WINDOW >= w->b.file_size)
		return NULL;
	struct window *next = find(f, w->index + 1, 1);
	int wanted = next && !next->mapped && !next->busy && !next->stale;
	if (wanted && !may_map(f))
		return NULL; /* with another read */
	w->led = 1;
	if (!wanted)
		return NULL;
	next->busy = 1;
	return next;
}

/* The part of a move that is in one window: the window, with a user, if it can be copied from now. together: how many moves go in one call. */
static struct window *ready(struct file *f, struct move *m, uint64_t offset, size_t n, size_t together)
{
	uint64_t index = offset / WINDOW;
	int mine = 0;
	pthread_mutex_lock(&f->lock);
	struct window *w = find(f, index, 1), *old = NULL, *next = NULL;
	if (w && w->mapped && w->gpu && w->gpu != m->target.gpu && w->gpu->ordinal == m->target.gpu->ordinal) /* which was reset since, and what is mapped outlives that */
		w->gpu = m->target.gpu;
	if (w && w->mapped && (w->gpu && w->gpu != m->target.gpu)) { /* another device's memory */
		w = NULL;
	} else if (w && w->mapped && lanefs_noticed(mount_session(f->mount), &w->b) != w->b.generation) {
		old = w;
		mine = drop(f, w);
		w = NULL;
	} else if (w && !(w->mapped && offset + n <= index * WINDOW + w->b.size)) {
		next = paid(f, w, pays(m, n, together)) ? w : NULL;
		w = NULL;
	}
	if (w) {
		w->users++;
		w->used = now_us();
		next = ahead(f, m, w, offset, n);
	}
	pthread_mutex_unlock(&f->lock);
	if (old && mine)
		end(f, old);
	if (next)
		start(f, next, m->target.gpu); /* for reads to come */
	return w;
}

/* Whether shared memory is a road to a move's memory. A GPU's daemon has the file in its memory, from where the CPU's is as far as from the stage. */
static int reaches(const struct move *m) { return !off && (m->target.gpu || lanefs_facts(mount_session(m->file->mount))->kind == LANEFS_MEMFD); }

static ssize_t move(struct move *m, size_t together)
{
	struct file *f = m->file;
	size_t done = 0;
	while (done < m->n) {
		uint64_t offset = (uint64_t)m->offset + done, in = offset % WINDOW;
		size_t n = m->n - done < WINDOW - in ? m->n - done : WINDOW - in;
		struct window *w = ready(f, m, offset, n, together);
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

void map_note(struct move *m)
{
	enum { TIMES = 8 };
	struct file *f = m->file;
	if (m->n <= SMALL_IN_BATCH || !m->target.gpu || off)
		return;
	pthread_mutex_lock(&f->lock);
	struct window *w = find(f, (uint64_t)m->offset / WINDOW, 1);
	int begins = w && paid(f, w, is_pinned(m) ? m->n : TIMES * m->n);
	pthread_mutex_unlock(&f->lock);
	if (begins)
		start(f, w, m->target.gpu);
}

ssize_t map_move(struct move *m) { return m->n && reaches(m) ? move(m, 1) : ELSEWHERE; }

/* Waits for the copies on a stream, which are of moves from one up to another. What has failed the stage moves, or says why it cannot. */
static void waited(struct many *a, struct idle_stream *s, size_t from, size_t to)
{
	struct file *f = a->m[from]->file;
	int lost = mount_gone(f->mount), rc = stream_wait(s->it.gpu, s->stream);
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
			ssize_t n = move(m, a->n);
			if (n != ELSEWHERE)
				many_done(a, i, n);
			continue;
		}
		if (s && s->it.gpu != m->target.gpu) {
			waited(a, s, first, i);
			s = NULL;
		}
		if (!s) {
			first = i;
			s = take_stream(m->target.gpu);
		}
		if (s)
			w = ready(m->file, m, (uint64_t)m->offset, m->n, a->n);
		if (w && copy_on(s->it.gpu, s->stream, kind(m->file, w, m), m->memory, w->at + in, m->n))
			release(m->file, w);
		else
			a->window[i] = w;
	}
	if (s)
		waited(a, s, first, a->n);
}
