/*
 * Calls in a stream's order. Such a call waits for what is on the stream, so that the values that it is given by address are the right ones,
 * moves the bytes, and returns: what is put on the stream afterwards finds them.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <stdlib.h>

enum { FLAGS = 15 };

struct registered {
	struct registered *next;
	void *stream;
	unsigned flags;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct registered *list; /* protected by lock */

static void child(void)
{
	pthread_mutex_init(&lock, NULL);
	list = NULL;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, child); }

/* The caller holds the lock. */
static struct registered **find(void *stream)
{
	struct registered **p = &list;
	while (*p && (*p)->stream != stream)
		p = &(*p)->next;
	return p;
}

status stream_register(void *stream, unsigned flags)
{
	if (flags & ~(unsigned)FLAGS)
		return bad(CU_FILE_INVALID_VALUE);
	struct registered *r = malloc(sizeof *r);
	if (!r)
		return bad(CU_FILE_NOMEM_ERROR);
	driver_use();
	*r = (struct registered){.stream = stream, .flags = flags};
	pthread_mutex_lock(&lock);
	struct registered **p = find(stream);
	if (*p) { /* what was said last counts */
		(*p)->flags = flags;
		free(r);
	} else {
		r->next = list;
		list = r;
	}
	pthread_mutex_unlock(&lock);
	status (*f)(void *, unsigned) = (status (*)(void *, unsigned))next_function("StreamRegister");
	return f ? f(stream, flags) : ok();
}

status stream_deregister(void *stream)
{
	pthread_mutex_lock(&lock);
	struct registered **p = find(stream), *r = *p;
	if (r)
		*p = r->next;
	pthread_mutex_unlock(&lock);
	if (!r)
		return bad(CU_FILE_INVALID_VALUE);
	free(r);
	status (*f)(void *) = (status (*)(void *))next_function("StreamDeregister");
	return f ? f(stream) : ok();
}

void stream_forget_all(void)
{
	pthread_mutex_lock(&lock);
	while (list) {
		struct registered *r = list;
		list = r->next;
		free(r);
	}
	pthread_mutex_unlock(&lock);
}

typedef status (*next_async)(void *, void *, size_t *, off_t *, off_t *, ssize_t *, void *);

status stream_move(void *handle, int read, void *base, size_t *n, off_t *offset, off_t *at, ssize_t *result, void *stream)
{
	struct target t;
	if (!n || !offset || !at || !result || !base)
		return bad(CU_FILE_INVALID_VALUE);
	struct file *f = object_take(handle, FILE_OBJECT);
	if (!f)
		return bad(CU_FILE_HANDLE_NOT_REGISTERED);
	if (f->next) {
		next_async g = (next_async)next_function(read ? "ReadAsync" : "WriteAsync");
		size_t bytes = *n;
		buffer_next(base);
		status s = g ? g(f->next, base, n, offset, at, result, stream) : bad(CU_FILE_ASYNC_NOT_SUPPORTED);
		if (!s.err) /* what it will move is not known before the stream has come so far */
			count_bytes(ROAD_NEXT, read, bytes);
		object_give(f);
		return s;
	}
	int rc = memory_at(base, 1, read, &t);
	if (!rc && t.gpu && stream_wait(t.gpu, stream))
		rc = -CU_FILE_CUDA_DRIVER_ERROR;
	if (!rc) {
		struct move m = {.read = read, .file = f, .base = base, .at = *at, .memory = (char *)base + *at, .n = *n, .offset = *offset};
		*result = move_bytes(&m);
		if (*result < -1)
			rc = (int)*result;
	}
	object_give(f);
	return bad(-rc);
}
