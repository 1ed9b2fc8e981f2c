/* What one copy of a GPU's at a time uses, memory that is pinned and a stream say, is kept for the next one. */
#ifndef LANEFS_CUFILE_IDLE_H
#define LANEFS_CUFILE_IDLE_H

#include "core.h"

/* The beginning of such a thing. */
struct item {
	struct item *next;
	struct gpu *gpu;
	size_t size;                 /* what take asks for: others do not fit */
};

struct idle {
	pthread_mutex_t *lock;
	struct item *first;          /* protected by lock */
	void (*end)(struct item *);  /* frees what is left of one whose GPU's context has gone, and all that the GPU had of it */
	pthread_key_t own;           /* a thread's own item. When the thread ends it is idle: to free it would call the GPU's library, which may have gone before */
	int no_own;                  /* the process has no key left */
};

/* An idle item that fits, or NULL. */
struct item *idle_take(struct idle *i, struct gpu *g, size_t size);
void idle_put(struct idle *i, struct item *it);

/* The calling thread's own item, of whatever GPU and size, or NULL. */
static inline struct item *idle_own(struct idle *i) { return i->no_own ? NULL : pthread_getspecific(i->own); }

/* Makes one that was taken the thread's own. What it had is idle then. -1: it cannot have one. */
int idle_keep(struct idle *i, struct item *it);

/* Defines name, whose items end_item ends. A child of a fork has none of its parent's. */
#define IDLE(name, end_item) \
	PROCESS_LOCK(lock_of_##name); \
	static struct idle name = {.lock = &lock_of_##name, .end = end_item}; \
	static void ended_##name(void *it) { idle_put(&name, it); } \
	__attribute__((constructor)) static void begin_##name(void) { name.no_own = pthread_key_create(&name.own, ended_##name) != 0; } \
	static void forget_##name(void) \
	{ \
		name.first = NULL; \
		if (!name.no_own) \
			pthread_setspecific(name.own, NULL); \
	} \
	IN_CHILD(forget_##name); \
	static struct idle name

#endif
