/* Handles. They are numbers that are used once, not addresses, so one that has ended, or is another process's, is found out. */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <unistd.h>

enum { INDEX_BITS = 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object **slots;   /* these are protected by lock */
static size_t n_slots;
static uintptr_t serial;

int object_add(struct object *o, enum kind kind, void (*end)(struct object *))
{
	o->kind = kind;
	o->end = end;
	pthread_mutex_lock(&lock);
	size_t i = 0;
	while (i < n_slots && slots[i])
		i++;
	if (i == n_slots) {
		size_t n = n_slots ? 2 * n_slots : 64;
		struct object **more = n <= (size_t)1 << INDEX_BITS ? realloc(slots, n * sizeof *slots) : NULL;
		if (!more) {
			pthread_mutex_unlock(&lock);
			return CU_FILE_NOMEM_ERROR;
		}
		for (size_t j = n_slots; j < n; j++)
			more[j] = NULL;
		slots = more;
		n_slots = n;
	}
	if (!serial) /* a child's handles are not its parent's */
		serial = (uintptr_t)getpid() << 20;
	o->id = ++serial << INDEX_BITS | i;
	slots[i] = o;
	pthread_mutex_unlock(&lock);
	return 0;
}

/* The caller holds the lock. */
static struct object *find(void *handle, enum kind kind)
{
	size_t i = (uintptr_t)handle & (((uintptr_t)1 << INDEX_BITS) - 1);
	struct object *o = i < n_slots ? slots[i] : NULL;
	return o && o->id == (uintptr_t)handle && o->kind == kind ? o : NULL;
}

void *object_take(void *handle, enum kind kind)
{
	pthread_mutex_lock(&lock);
	struct object *o = find(handle, kind);
	if (o)
		o->users++;
	pthread_mutex_unlock(&lock);
	return o;
}

void object_give(void *object)
{
	struct object *o = object;
	pthread_mutex_lock(&lock);
	int last = --o->users == 0 && o->removed;
	pthread_mutex_unlock(&lock);
	if (last)
		o->end(o);
}

int object_remove(void *handle, enum kind kind)
{
	pthread_mutex_lock(&lock);
	struct object *o = find(handle, kind);
	int last = 0;
	if (o) {
		slots[o->id & (((uintptr_t)1 << INDEX_BITS) - 1)] = NULL;
		o->removed = 1;
		last = o->users == 0;
	}
	pthread_mutex_unlock(&lock);
	if (last)
		o->end(o);
	return o != NULL;
}

void object_remove_all(void)
{
	for (enum kind kind = BATCH_OBJECT; kind >= FILE_OBJECT; kind--)
		for (size_t i = 0;; i++) {
			pthread_mutex_lock(&lock);
			int more = i < n_slots;
			struct object *o = more ? slots[i] : NULL;
			void *handle = o && o->kind == kind ? handle_of(o) : NULL;
			pthread_mutex_unlock(&lock);
			if (!more)
				break;
			if (handle)
				object_remove(handle, kind);
		}
}

void object_each(enum kind kind, int (*f)(struct object *, void *), void *arg)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n_slots; i++)
		if (slots[i] && slots[i]->kind == kind && f(slots[i], arg))
			break;
	pthread_mutex_unlock(&lock);
}

/* A child begins anew: what its parent's threads held is not its own. The objects are left, for nothing can be done with them. */
static void child(void)
{
	pthread_mutex_init(&lock, NULL);
	slots = NULL;
	n_slots = 0;
	serial = 0;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, child); }
