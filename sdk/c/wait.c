/*
 * Waits that their caller can end (lanefs_on_wait). A wait is cut into slices; after each, and when the handler of a signal has run, the caller's function
 * is asked. Without one a wait is a single system call.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>

enum { SLICE = 100, NS = 1000000, SECOND = 1000000000 };

int lanefs_slice(const struct asking *a) { return a->f ? SLICE : -1; }

int lanefs_asked(const struct asking *a) { return a->f && a->f(a->arg) ? lanefs_fail(EINTR, "the wait was ended by the program") : 0; }

/* When a slice ends, by the clock of locks. */
static struct timespec slice_end(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += SLICE * NS;
	if (t.tv_nsec >= SECOND) {
		t.tv_sec++;
		t.tv_nsec -= SECOND;
	}
	return t;
}

int lanefs_lock(const struct asking *a, struct guard *g)
{
	int rc = pthread_mutex_trylock(&g->mutex);
	while (rc) {
		if (atomic_load(&g->holder) == pthread_self()) /* what a wait has asked calls, or a signal's handler: it would wait for itself */
			return lanefs_fail(EDEADLK, "the calling thread is in the middle of such a call");
		if (!a->f) {
			rc = pthread_mutex_lock(&g->mutex);
			continue;
		}
		struct timespec t = slice_end();
		if ((rc = pthread_mutex_timedlock(&g->mutex, &t)) && lanefs_asked(a))
			return -1;
	}
	atomic_store(&g->holder, pthread_self());
	return 0;
}

void lanefs_unlock(struct guard *g)
{
	atomic_store(&g->holder, (pthread_t)0);
	pthread_mutex_unlock(&g->mutex);
}

int lanefs_await(const struct asking *a, pthread_cond_t *c, pthread_mutex_t *m)
{
	if (!a->f) {
		pthread_cond_wait(c, m);
		return 0;
	}
	struct timespec t = slice_end();
	if (pthread_cond_timedwait(c, m, &t) == 0)
		return 0;
	pthread_mutex_unlock(m); /* the caller's function may do anything */
	int rc = lanefs_asked(a);
	pthread_mutex_lock(m);
	return rc;
}

int lanefs_readable(const struct asking *a, int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	while (a->f) {
		int n = poll(&p, 1, SLICE);
		if (n > 0)
			break;
		if ((n < 0 && errno != EINTR) || lanefs_asked(a))
			return n < 0 && errno != EINTR ? lanefs_fail(errno, NULL) : -1;
	}
	return 0;
}

/* For the Python SDK: the interpreter's functions, so that it is not needed to build this, and the exception that a signal's handler has raised. */
struct python {
	uint64_t thread; /* that runs handlers */
	int (*ensure)(void), (*check)(void);
	void (*fetch)(void **, void **, void **), (*release)(int);
	void *raised[3];
};

/* Likewise: what says that the calling thread's waits are to end, in all sessions; NULL: nothing does. */
static _Thread_local const atomic_int *ends;

void lanefs_python_ends(const atomic_int *flag) { ends = flag; }

int lanefs_python_asked(void *arg)
{
	struct python *p = arg;
	if (ends && atomic_load(ends))
		return 1;
	if ((uint64_t)pthread_self() != p->thread)
		return 0;
	int gil = p->ensure();
	if (!p->raised[0] && p->check())
		p->fetch(&p->raised[0], &p->raised[1], &p->raised[2]);
	p->release(gil);
	return p->raised[0] != NULL;
}

/* Likewise: connects to the socket of a session of the SDK's, which asks from the beginning. */
lanefs *lanefs_python_connect(const char *path, const char *device, struct python *p) { return lanefs_connect_asking(path, device, lanefs_python_asked, p); }
