/*
 * pread and pwrite, for files that are neither LaneFS's nor the next library's. Memory of a GPU is reached through pinned memory of the
 * library: bounces, a pool of them, each with a stream.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BOUNCE = 4 << 20, ALIGNED = 4096, PORTABLE = 1 };

struct bounce {
	struct bounce *next;
	char *data;
	struct gpu *gpu;
	void *stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bounce *idle; /* protected by lock */

static void child(void)
{
	pthread_mutex_init(&lock, NULL);
	idle = NULL;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, child); }

static struct bounce *take(struct gpu *g)
{
	pthread_mutex_lock(&lock);
	struct bounce **p = &idle;
	while (*p && (*p)->gpu != g)
		p = &(*p)->next;
	struct bounce *b = *p;
	if (b)
		*p = b->next;
	pthread_mutex_unlock(&lock);
	if (b)
		return b;
	if (!(b = calloc(1, sizeof *b)))
		return NULL;
	b->gpu = g;
	b->data = mmap(NULL, BOUNCE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->data == MAP_FAILED || !(b->stream = stream_new(g))) {
		if (b->data != MAP_FAILED)
			munmap(b->data, BOUNCE);
		free(b);
		return NULL;
	}
	int was;
	if (lanefs_gpu_enter(g, &was) == 0) { /* copies work without, slower */
		CALL(g, g->hip ? "HostRegister" : "MemHostRegister_v2", (void *, size_t, unsigned), b->data, BOUNCE, PORTABLE);
		lanefs_gpu_leave(g, was);
	}
	return b;
}

static void give(struct bounce *b)
{
	pthread_mutex_lock(&lock);
	b->next = idle;
	idle = b;
	pthread_mutex_unlock(&lock);
}

/* All of a range, or up to the file's end. */
static ssize_t whole(const struct move *m, char *p, size_t n, off_t offset)
{
	const struct file *f = m->file;
	int read = m->read;
	size_t done = 0;
	while (done < n) {
		int around = m->road == ROAD_CACHE || (f->flags & O_DIRECT && (((uintptr_t)p + done) | (n - done) | (size_t)(offset + (off_t)done)) % ALIGNED);
		int fd = around && f->buffered >= 0 ? f->buffered : f->fd;
		ssize_t k = read ? pread(fd, p + done, n - done, offset + (off_t)done) : pwrite(fd, p + done, n - done, offset + (off_t)done);
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

/* Of one that the page cache answers, which knows nothing of the daemon. */
static int gone(const struct move *m) { return m->road == ROAD_CACHE && mount_gone(m->file->mount); }

/* A read's bytes from the bounce. Whether the daemon has gone is asked while the GPU copies: to ask takes as long as pread does. */
static ssize_t copy_out(const struct move *m, struct bounce *b, char *to, size_t n)
{
	struct copying c;
	if (copy_begin(&c, b->gpu, b->stream, m->target.device ? TO_DEVICE : COPY_ANY, to, b->data, n))
		return -CU_FILE_CUDA_DRIVER_ERROR;
	int lost = gone(m);
	if (copy_end(&c))
		return -CU_FILE_CUDA_DRIVER_ERROR;
	if (lost)
		errno = ENOTCONN;
	return lost ? -1 : (ssize_t)n;
}

static ssize_t to_cpu(const struct move *m)
{
	ssize_t n = whole(m, m->memory, m->n, m->offset);
	if (n < 0 || !gone(m))
		return n;
	errno = ENOTCONN;
	return -1;
}

ssize_t plain_move(struct move *m)
{
	struct gpu *g = m->target.gpu;
	if (m->road != ROAD_CACHE)
		m->road = ROAD_PLAIN;
	if (!g)
		return to_cpu(m);
	struct bounce *b = take(g);
	if (!b)
		return -CU_FILE_NOMEM_ERROR;
	size_t done = 0;
	ssize_t result = 0;
	while (done < m->n && result >= 0) {
		size_t n = m->n - done < BOUNCE ? m->n - done : BOUNCE;
		if (!m->read && copy_now(g, b->stream, m->target.device ? FROM_DEVICE : COPY_ANY, b->data, m->memory + done, n)) {
			result = -CU_FILE_CUDA_DRIVER_ERROR;
			break;
		}
		ssize_t k = whole(m, b->data, n, m->offset + (off_t)done);
		if (m->read && k > 0)
			k = copy_out(m, b, m->memory + done, (size_t)k);
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
