/*
 * Handles. They are numbers that are used once, not addresses, so one that has ended, or is another process's, is found out.
 *
 * A handle says which slot its object has. To take an object and to give it back is one atomic operation on the slot's state each: threads that
 * read by one handle at the same time would wait for a lock about as often as for the GPU. Slots are never freed, so a state can be looked at by
 * whatever handle:
 *
 *   FREE  -- object_add -->  LIVE + users  -- object_remove -->  DYING + users  -- the last user, or object_remove -->  FREE
 *
 * Who takes a slot from DYING without users to FREE ends the object. A call with a handle that is no longer one counts as a user until it has seen that.
 */
#define _GNU_SOURCE
#include "core.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { INDEX_BITS = 20, CHUNK_BITS = 6, CHUNK = 1 << CHUNK_BITS, CHUNKS = 1 << (INDEX_BITS - CHUNK_BITS) };
enum { FREE = 0, LIVE = 1 << 30, DYING = 1 << 29 }; /* beside the number of users */

struct slot {
	_Atomic unsigned state;
	_Atomic uintptr_t id;
	struct object *o;              /* constant while it is LIVE or DYING */
	int used;                      /* protected by lock */
};

PROCESS_LOCK(lock);
static _Atomic(struct slot *) chunks[CHUNKS]; /* stored with lock held */
static size_t n_slots;                        /* these are protected by lock */
static uintptr_t serial;

static size_t index_of(const void *handle) { return (uintptr_t)handle & (((uintptr_t)1 << INDEX_BITS) - 1); }

static struct slot *slot_at(size_t i)
{
	struct slot *c = atomic_load_explicit(&chunks[i >> CHUNK_BITS], memory_order_acquire);
	return c ? &c[i & (CHUNK - 1)] : NULL;
}

/* A slot that is not used. The caller holds the lock. */
static struct slot *unused(size_t *index)
{
	for (size_t i = 0; i < n_slots; i++)
		if (!slot_at(i)->used) {
			*index = i;
			return slot_at(i);
		}
	struct slot *more = n_slots < (size_t)1 << INDEX_BITS ? calloc(CHUNK, sizeof *more) : NULL;
	if (!more)
		return NULL;
	atomic_store_explicit(&chunks[n_slots >> CHUNK_BITS], more, memory_order_release);
	*index = n_slots;
	n_slots += CHUNK;
	return more;
}

int object_add(struct object *o, enum kind kind, void (*end)(struct object *))
{
	size_t i;
	o->kind = kind;
	o->end = end;
	pthread_mutex_lock(&lock);
	struct slot *s = unused(&i);
	if (s) {
		if (!serial) /* a child's handles are not its parent's */
			serial = (uintptr_t)getpid() << 20;
		o->id = ++serial << INDEX_BITS | i;
		s->used = 1;
		s->o = o;
		atomic_store(&s->id, o->id);
		atomic_fetch_add(&s->state, LIVE); /* after what it promises */
	}
	pthread_mutex_unlock(&lock);
	return s ? 0 : CU_FILE_NOMEM_ERROR;
}

/* Ends the object of a slot that is dying, if nobody uses it. */
static void ending(struct slot *s)
{
	unsigned last = DYING;
	if (!atomic_compare_exchange_strong(&s->state, &last, FREE))
		return;
	struct object *o = s->o; /* the slot is still used, so it is this one's */
	pthread_mutex_lock(&lock);
	s->used = 0;
	pthread_mutex_unlock(&lock);
	o->end(o);
}

static void leave(struct slot *s)
{
	if (atomic_fetch_sub(&s->state, 1) - 1 == DYING)
		ending(s);
}

void *object_take(void *handle, enum kind kind)
{
	struct slot *s = slot_at(index_of(handle));
	if (!s)
		return NULL;
	unsigned was = atomic_fetch_add(&s->state, 1);
	if (was & LIVE && atomic_load(&s->id) == (uintptr_t)handle && s->o->kind == kind)
		return s->o;
	leave(s);
	return NULL;
}

void object_give(void *object) { leave(slot_at(index_of(handle_of(object)))); }

int object_remove(void *handle, enum kind kind)
{
	struct slot *s = object_take(handle, kind) ? slot_at(index_of(handle)) : NULL;
	if (!s)
		return 0;
	unsigned was = atomic_load(&s->state);
	while (was & LIVE && !atomic_compare_exchange_weak(&s->state, &was, was - LIVE + DYING))
		;
	leave(s); /* what object_take took */
	return (was & LIVE) != 0; /* else another thread has removed it */
}

void object_remove_all(void)
{
	for (enum kind kind = BATCH_OBJECT; kind >= FILE_OBJECT; kind--)
		for (size_t i = 0; i < (size_t)1 << INDEX_BITS && slot_at(i); i++)
			object_remove((void *)atomic_load(&slot_at(i)->id), kind);
}

void object_each(enum kind kind, int (*f)(struct object *, void *), void *arg)
{
	int end = 0;
	for (size_t i = 0; !end && i < (size_t)1 << INDEX_BITS && slot_at(i); i++) {
		struct object *o = object_take((void *)atomic_load(&slot_at(i)->id), kind);
		end = o && f(o, arg);
		if (o)
			object_give(o);
	}
}

/* A child begins anew: what its parent's threads held is not its own. The objects are left, for nothing can be done with them. */
static void child(void)
{
	for (size_t i = 0; i < CHUNKS; i++)
		atomic_store(&chunks[i], NULL);
	n_slots = 0;
	serial = 0;
}

IN_CHILD(child);
