/*
 * One read or write:
 *
 *  1. The handle, the range and the memory are checked.              move_call, check
 *  2. A file of LaneFS: shared memory, or the stage.                 map_move, lane_move
 *     A file of the next library: it.                                next_move
 *     All others: pread and pwrite.                                  plain_move
 *  3. It is counted by its road, and traced.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

/*
 * lone: the driver need not be asked about memory that the thread knows, nor the kernel whether a little ordinary memory is there: up to HOST_COPY our copies find out, which takes as long.
 * Of moves that go together all would fail, and go one after the other.
 */
static int check(struct move *m, int lone)
{
	struct buffer b;
	int access = m->file->flags & O_ACCMODE;
	if (m->at < 0 || m->offset < 0 || m->n > SIZE_MAX >> 1 || m->offset > INT64_MAX - (off_t)m->n)
		return -CU_FILE_INVALID_VALUE;
	if (access == (m->read ? O_WRONLY : O_RDONLY)) {
		errno = EBADF;
		return -1;
	}
	int registered = buffer_find(m->base, &b);
	if (registered && ((size_t)m->at > b.length || m->n > b.length - (size_t)m->at))
		return -CU_FILE_INVALID_MAPPING_RANGE;
	m->known = lone && m->read && m->file->mount && memory_known(m->memory, m->n, &m->target);
	enum use use = lone && m->n <= HOST_COPY && !m->file->next ? UNASKED : m->read ? TO_WRITE : TO_READ;
	int rc = m->known ? 0 : memory_at(m->memory, m->n, use, &m->target);
	if (rc == 0 && registered && b.gpu && !m->target.gpu)
		return -CU_FILE_CUDA_POINTER_INVALID; /* freed while it was registered */
	return rc;
}

/* Reads end at the file's end, and memory behind that is left alone. The kernel's own idea of the size is good enough to say that a range is
 * in the file; the daemon is asked only for one that seems not to be. */
static int clip(struct move *m, off_t *end)
{
	struct statx x;
	struct stat st;
	if (*end < 0 && statx(m->file->fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO | STATX_SIZE, &x) == 0 && file_is(m->file, &x))
		*end = (off_t)x.stx_size;
	if (*end >= 0 && (off_t)m->n <= *end && m->offset <= *end - (off_t)m->n)
		return 0;
	if (file_lost(m->file, m->file->fd) || fstat(m->file->fd, &st))
		return -1;
	*end = st.st_size;
	if (m->offset >= st.st_size)
		m->n = 0;
	else if ((off_t)m->n > st.st_size - m->offset)
		m->n = (size_t)(st.st_size - m->offset);
	return 0;
}

int move_syncs(const struct move *m) { return !m->read && m->file->flags & O_DSYNC; } /* O_SYNC contains it */

int move_sync(const struct move *m)
{
	if (!move_syncs(m))
		return 0;
	return AGAIN((m->file->flags & O_SYNC) == O_SYNC ? fsync(m->file->fd) : fdatasync(m->file->fd));
}

static ssize_t by_lanes(struct move *m)
{
	int rc = m->known ? check(m, 0) : 0;
	if (rc)
		return rc;
	m->road = ROAD_STAGE;
	ssize_t n = m->read ? map_move(m) : ELSEWHERE; /* first, for it needs no system call but one */
	if (n != ELSEWHERE)
		return n;
	if (mount_gone(m->file->mount)) {
		errno = ENOTCONN;
		return -1;
	}
	off_t end = -1;
	if (m->read && clip(m, &end))
		return -1;
	if (m->n == 0)
		return 0;
	n = lane_move(m);
	return n >= 0 && move_sync(m) ? -1 : n;
}

static ssize_t lanes(struct move *m)
{
	struct chosen c;
	choose(m, 1, &c);
	ssize_t n;
	if (c.way == BY_LANES) {
		n = by_lanes(m);
	} else {
		m->road = ROAD_CACHE;
		n = plain_move(m);
	}
	int saved = n == -1 && lanefs_ended(errno) ? ENOTCONN : errno;
	chose(&c, n == (ssize_t)m->n);
	if (c.of && c.way == BY_CACHE && n > 0)
		map_note(m);
	errno = saved;
	return n;
}

int move_check(struct move *m, off_t *end)
{
	int rc = check(m, 0);
	return rc == 0 && m->read ? clip(m, end) : rc;
}

/* The kernel's EFAULT is what memory_at says. */
ssize_t move_failed(const struct move *m, ssize_t n) { return n == -1 && errno == EFAULT ? memory_none(&m->target) : n; }

static ssize_t by_road(struct move *m) { return m->file->mount ? lanes(m) : m->file->next ? next_move(m) : plain_move(m); }

ssize_t move_bytes(struct move *m)
{
	m->road = m->file->mount ? ROAD_STAGE : m->file->next ? ROAD_NEXT : ROAD_PLAIN;
	uint64_t start = now_us();
	ssize_t n = !m->read && !m->file->next && file_lost_any(m->file) ? -1 : check(m, 1);
	if (n == 0)
		n = by_road(m);
	if (n == -CU_FILE_CUDA_DRIVER_ERROR && m->known && (n = check(m, 0)) == 0) /* the memory is not what it was */
		n = by_road(m);
	n = move_failed(m, n);
	int saved = errno;
	if (n > 0)
		count_bytes(m->road, m->read, (size_t)n);
	stats_move(m, n, now_us() - start);
	errno = saved;
	return n;
}

ssize_t move_call(void *handle, int read, const void *base, size_t n, off_t offset, off_t at)
{
	UNCANCELLED;
	uint64_t start = tracing() ? now_us() : 0;
	struct file *f = object_take(handle, FILE_OBJECT);
	if (!f) {
		count_call(1);
		trace("%s(%p, %zu bytes at %lld) = -%d, no such handle", read ? "Read" : "Write", handle, n, (long long)offset, CU_FILE_HANDLE_NOT_REGISTERED);
		return -CU_FILE_HANDLE_NOT_REGISTERED;
	}
	struct move m = {.read = read, .file = f, .base = base, .at = at, .memory = (char *)(uintptr_t)base + at, .n = n, .offset = offset};
	ssize_t result = move_bytes(&m);
	int saved = errno;
	count_call(result < 0);
	if (tracing())
		trace("%s(%s, %zu bytes at %lld, %p+%lld) = %zd, %s, %llu us", read ? "Read" : "Write", f->name, n, (long long)offset, base, (long long)at, result,
			result < 0 ? error_text(result == -1 ? -saved : (int)-result) : road_name(m.road), (unsigned long long)(now_us() - start));
	object_give(f);
	errno = saved;
	return result;
}
