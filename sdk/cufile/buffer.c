/* Registered memory. LaneFS's road needs no registration: the library keeps it to find mistakes, and for the next library. */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* every read and write looks into the list, few calls change it */
static struct buffer *list; /* by address; these are protected by lock */
static size_t n, room;

static void child(void)
{
	lock = (pthread_rwlock_t)PTHREAD_RWLOCK_INITIALIZER;
	list = NULL;
	n = room = 0;
}

IN_CHILD(child);

/* The place of the first buffer that is not below base. The caller holds the lock. */
static size_t place(const void *base)
{
	size_t from = 0, to = n;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if ((uintptr_t)list[middle].base < (uintptr_t)base)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

/* The caller holds the lock. */
static struct buffer *find(const void *base)
{
	size_t i = place(base);
	return i < n && list[i].base == base ? &list[i] : NULL;
}

status buffer_register(const void *base, size_t length, int flags)
{
	UNCANCELLED;
	struct target t;
	if (!base || !length || (flags & ~(CU_FILE_RDMA_REGISTER | CU_FILE_RDMA_RELAXED_ORDERING)))
		return bad(CU_FILE_INVALID_VALUE);
	int rc = memory_at(base, length, TO_READ, &t);
	if (rc)
		return bad(-rc);
	driver_use();
	status s = ok();
	pthread_rwlock_wrlock(&lock);
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
	if (!s.err) {
		size_t i = place(base);
		memmove(&list[i + 1], &list[i], (n++ - i) * sizeof *list);
		list[i] = (struct buffer){.base = base, .length = length, .flags = flags, .gpu = t.gpu != NULL};
	}
	pthread_rwlock_unlock(&lock);
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
	UNCANCELLED;
	pthread_rwlock_wrlock(&lock);
	struct buffer *b = find(base), was = {0};
	if (b) {
		was = *b;
		memmove(b, b + 1, (size_t)(&list[--n] - b) * sizeof *list);
	}
	pthread_rwlock_unlock(&lock);
	if (!b)
		return bad(CU_FILE_MEMORY_NOT_REGISTERED);
	if (was.next)
		forget_next(&was);
	return ok();
}

void buffer_forget_all(void)
{
	pthread_rwlock_wrlock(&lock);
	for (size_t i = 0; i < n; i++)
		if (list[i].next)
			forget_next(&list[i]);
	free(list);
	list = NULL;
	n = room = 0;
	pthread_rwlock_unlock(&lock);
}

int buffer_find(const void *base, struct buffer *out)
{
	pthread_rwlock_rdlock(&lock);
	struct buffer *b = find(base);
	if (b)
		*out = *b;
	pthread_rwlock_unlock(&lock);
	return b != NULL;
}

void buffer_next(const void *base)
{
	pthread_rwlock_wrlock(&lock);
	struct buffer *b = find(base);
	if (b && !b->next) {
		status (*f)(const void *, size_t, int) = (status (*)(const void *, size_t, int))next_function("BufRegister");
		b->next = f && f(b->base, b->length, b->flags).err == 0;
	}
	pthread_rwlock_unlock(&lock);
}
