/* Registered memory. LaneFS's road needs no registration: the library keeps it to find mistakes, and for the next library. */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *list; /* these are protected by lock */
static size_t n, room;

static void child(void)
{
	pthread_mutex_init(&lock, NULL);
	list = NULL;
	n = room = 0;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, child); }

/* The caller holds the lock. */
static struct buffer *find(const void *base)
{
	for (size_t i = 0; i < n; i++)
		if (list[i].base == base)
			return &list[i];
	return NULL;
}

status buffer_register(const void *base, size_t length, int flags)
{
	struct target t;
	if (!base || !length || (flags & ~(CU_FILE_RDMA_REGISTER | CU_FILE_RDMA_RELAXED_ORDERING)))
		return bad(CU_FILE_INVALID_VALUE);
	int rc = memory_at(base, length, 0, &t);
	if (rc)
		return bad(-rc);
	driver_use();
	status s = ok();
	pthread_mutex_lock(&lock);
	if (find(base))
		s = bad(CU_FILE_MEMORY_ALREADY_REGISTERED);
	if (!s.err && n == room) {
		struct buffer *more = realloc(list, (2 * room + 16) * sizeof *list);
		if (more) {
			list = more;
			room = 2 * room + 16;
		} else {
			s = bad(CU_FILE_NOMEM_ERROR);
		}
	}
	if (!s.err)
		list[n++] = (struct buffer){.base = base, .length = length, .flags = flags, .gpu = t.gpu != NULL};
	pthread_mutex_unlock(&lock);
	return s;
}

static void forget_next(const struct buffer *b)
{
	status (*f)(const void *) = (status (*)(const void *))next_function("BufDeregister");
	if (b->next && f)
		f(b->base);
}

status buffer_deregister(const void *base)
{
	pthread_mutex_lock(&lock);
	struct buffer *b = find(base), was = {0};
	if (b) {
		was = *b;
		*b = list[--n];
	}
	pthread_mutex_unlock(&lock);
	if (!b)
		return bad(CU_FILE_MEMORY_NOT_REGISTERED);
	if (was.next)
		forget_next(&was);
	return ok();
}

void buffer_forget_all(void)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n; i++)
		if (list[i].next)
			forget_next(&list[i]);
	free(list);
	list = NULL;
	n = room = 0;
	pthread_mutex_unlock(&lock);
}

int buffer_find(const void *base, struct buffer *out)
{
	pthread_mutex_lock(&lock);
	struct buffer *b = n ? find(base) : NULL;
	if (b)
		*out = *b;
	pthread_mutex_unlock(&lock);
	return b != NULL;
}

void buffer_next(const void *base)
{
	pthread_mutex_lock(&lock);
	struct buffer *b = find(base);
	if (b && !b->next) {
		status (*f)(const void *, size_t, int) = (status (*)(const void *, size_t, int))next_function("BufRegister");
		b->next = f && f(b->base, b->length, b->flags).err == 0;
	}
	pthread_mutex_unlock(&lock);
}
