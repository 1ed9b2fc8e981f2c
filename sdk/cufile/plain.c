/*
 * pread and pwrite, for files that are neither LaneFS's nor the next library's, and for what the page cache of LaneFS's answers. Memory of a GPU
 * is reached through pinned memory of the library: bounces, each with a stream. Large ones are idle between copies. A small one stays a thread's own until
 * the thread ends, so threads do not wait for one another.
 */
#define _GNU_SOURCE
#include "idle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

enum { BOUNCE = 4 << 20, /* a large one's size; a small one's is SMALL */ ALIGNED = 4096, PORTABLE_MAPPED = 3 };

struct bounce {
	struct item it; /* its size is data's */
	char *data;
	void *stream;
	struct pinned pinned; /* of a small one; its word is behind the data */
};

static void end_bounce(struct item *it)
{
	struct bounce *b = (struct bounce *)it;
	munmap(b->data, it->size + ALIGNED);
	free(b);
}

IDLE(bounces, end_bounce); /* a thread's own is small */

static struct bounce *new_bounce(struct gpu *g, size_t size)
{
	struct bounce *b = calloc(1, sizeof *b);
	if (!b)
		return NULL;
	b->it = (struct item){.gpu = g, .size = size};
	b->data = mmap(NULL, size + ALIGNED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->data == MAP_FAILED || !(b->stream = stream_new(g))) {
		if (b->data != MAP_FAILED)
			munmap(b->data, size + ALIGNED);
		free(b);
		return NULL;
	}
	madvise(b->data, size + ALIGNED, MADV_DONTFORK); /* the GPU has these pages: they must stay this process's */
	struct was was;
	if (lanefs_gpu_enter(g, &was) == 0) { /* copies work without, slower */
		int rc = CALL(g, g->hip ? "HostRegister" : "MemHostRegister_v2", (void *, size_t, unsigned), b->data, size + ALIGNED, PORTABLE_MAPPED);
		struct pinned *p = &b->pinned;
		if (!rc && !g->hip && size == SMALL && CALL(g, "MemHostGetDevicePointer_v2", (uint64_t *, void *, unsigned), &p->device, b->data, 0))
			p->device = 0;
		p->word = (void *)(b->data + size);
		p->word_device = p->device + size;
		lanefs_gpu_leave(g, &was);
	}
	return b;
}

static struct bounce *take(struct gpu *g, size_t n)
{
	size_t size = n <= SMALL ? SMALL : BOUNCE;
	struct item *it = size == SMALL ? idle_own(&bounces) : NULL;
	if (!it || it->gpu != g)
		it = idle_take(&bounces, g, size);
	return it ? (struct bounce *)it : new_bounce(g, size);
}

static void give(struct bounce *b)
{
	if (&b->it != idle_own(&bounces) && (b->it.size != SMALL || idle_keep(&bounces, &b->it)))
		idle_put(&bounces, &b->it);
}

/* The descriptor by which a file's page cache is read. */
static int cache_of(const struct file *f) { return f->buffered >= 0 ? f->buffered : f->fd; }

/* All of a range, or up to the file's end. */
static ssize_t whole(const struct move *m, char *p, size_t n, off_t offset)
{
	const struct file *f = m->file;
	int read = m->read;
	size_t done = 0;
	while (done < n) {
		int around = m->road == ROAD_CACHE || (f->flags & O_DIRECT && (((uintptr_t)p + done) | (n - done) | (size_t)(offset + (off_t)done)) % ALIGNED);
		int fd = around ? cache_of(f) : f->fd;
		ssize_t k = read ? pread(fd, p + done, n - done, offset + (off_t)done) : lanefs_put_at(fd, p + done, n - done, offset + (off_t)done);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return done && !read ? (ssize_t)done : -1;
		if (k == 0)
			break;
		done += (size_t)k;
	}
	return (ssize_t)done;
}

/* Why the bytes that were read are none of the file's, as an errno, or 0. The page cache knows nothing of the daemon. */
static int void_read(const struct move *m)
{
	const struct file *f = m->file;
	int saved = errno, code = 0;
	if (m->road == ROAD_CACHE && mount_gone(f->mount))
		code = ENOTCONN;
	else if (m->road == ROAD_CACHE ? file_lost(f, cache_of(f)) : file_lost_any(f))
		code = errno;
	errno = saved;
	return code;
}

/* The result of a read, or of a write, of which it was asked before. */
static ssize_t checked(const struct move *m, ssize_t n)
{
	int code = m->read ? void_read(m) : 0;
	if (code)
		errno = code;
	return code ? -1 : n;
}

/* Whether all of a range is in the page cache, of which part may be under way yet. 0, too, if the kernel does not say: before Linux 6.5, and of what is another user's. */
static int cached(struct file *f, uint64_t offset, uint64_t n)
{
	struct { uint64_t offset, length; } range = {offset, n};
	struct { uint64_t cached, dirty, writeback, evicted, recently; } in;
	if (__atomic_load_n(&f->unseen, __ATOMIC_RELAXED))
		return 0;
	if (syscall(SYS_cachestat, cache_of(f), &range, &in, 0)) {
		__atomic_store_n(&f->unseen, 1, __ATOMIC_RELAXED);
		return 0;
	}
	return in.cached >= (offset + n - 1) / ALIGNED - offset / ALIGNED + 1;
}

/*
 * While the GPU copies the CPU has nothing to do. The thread's next read, if the last ones were as far apart from one another, finds its bytes in the CPU's caches
 * then: of a large file pread waits for the memory as long as for all else. They are read again when they are asked for, so they cannot be old ones.
 * What is not in the page cache is left alone: to read it could take any time, and so could what the kernel reads ahead just now, though its pages are there.
 * It has not read as far as FAR beyond the next read: what is there, too, is from before. Of the last FAR of a file nothing is looked at.
 */
static void look_ahead(const struct move *m, size_t n)
{
	enum { FAR = 16 << 20 }; /* four times what a mount has the kernel read ahead */
	static _Thread_local struct { const struct file *file; off_t offset, step; } last;
	static _Thread_local char page[ALIGNED]; /* nobody wants it */
	struct iovec v[SMALL / ALIGNED];
	off_t step = m->offset - last.offset, next = m->offset + step;
	int in_step = m->file == last.file && step && step == last.step;
	last.file = m->file;
	last.offset = m->offset;
	last.step = step;
	if (!in_step || n < ALIGNED || n > SMALL || next < 0 || !cached(m->file, (uint64_t)next, n) || !cached(m->file, (uint64_t)next + FAR, 1))
		return;
	int k = 0;
	for (size_t left = n; left > 0; left -= v[k++].iov_len)
		v[k] = (struct iovec){page, left < ALIGNED ? left : ALIGNED};
	if (preadv(cache_of(m->file), v, k, next) < 0)
		last.file = NULL;
}

/* A read's bytes from the bounce. Whether they are the file's is asked while the GPU copies: to ask takes as long as pread does. */
static ssize_t copy_out(const struct move *m, struct bounce *b, char *to, size_t n)
{
	struct copying c;
	const struct target *t = &m->target;
	enum copy_kind kind = m->known ? TO_KNOWN : t->device ? TO_DEVICE : COPY_ANY;
	if (copy_begin(&c, b->it.gpu, b->stream, kind, to, b->data, n, b->pinned.device ? &b->pinned : NULL, !m->known && kernels_may(t) ? b->pinned.device : 0))
		return -CU_FILE_CUDA_DRIVER_ERROR;
	int code = void_read(m);
	if (!code && m->road == ROAD_CACHE)
		look_ahead(m, n);
	if (copy_end(&c))
		return -CU_FILE_CUDA_DRIVER_ERROR;
	if (code)
		errno = code;
	return code ? -1 : (ssize_t)n;
}

ssize_t plain_move(struct move *m)
{
	struct gpu *g = m->target.gpu;
	if (m->road != ROAD_CACHE)
		m->road = ROAD_PLAIN;
	if (!m->read && fcntl(m->file->fd, F_GETFL) & O_APPEND) /* set since it was registered: the kernel would write at the end, wherever it is told to */
		return -CU_FILE_INVALID_FILE_OPEN_FLAG;
	if (!g)
		return checked(m, whole(m, m->memory, m->n, m->offset));
	struct bounce *b = take(g, m->n);
	if (!b)
		return -CU_FILE_NOMEM_ERROR;
	size_t done = 0;
	ssize_t result = 0;
	while (done < m->n && result >= 0) {
		size_t n = m->n - done < b->it.size ? m->n - done : b->it.size;
		if (!m->read && copy_now(g, b->stream, m->target.device ? FROM_DEVICE : COPY_ANY, b->data, m->memory + done, n)) {
			result = -CU_FILE_CUDA_DRIVER_ERROR;
			break;
		}
		ssize_t k = whole(m, b->data, n, m->offset + (off_t)done);
		k = m->read && k > 0 ? copy_out(m, b, m->memory + done, (size_t)k) : checked(m, k);
		if (k < 0)
			result = k;
		else
			done += (size_t)k;
		if (k >= 0 && (size_t)k < n)
			break;
	}
	int saved = errno;
	give(b);
	errno = saved;
	return result < 0 ? result : (ssize_t)done;
}
