/*
 * Waits that their caller can end (lanefs_on_wait). A wait is cut into slices; after each, and when the handler of a signal has run, the caller's function
 * is asked. Without one a wait is a single system call.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE }; /* linux/futex.h is not among musl's headers */
enum { FREE, TAKEN, AWAITED }; /* of a guard; awaited: perhaps by nobody any more */

enum { SLICE = 100, NS = 1000000, SECOND = 1000000000 };

int lanefs_slice(const struct asking *a) { return a->f ? SLICE : -1; }

int lanefs_asked(const struct asking *a) { return a->f && a->f(a->arg) ? lanefs_fail(EINTR, "the wait was ended by the program") : 0; }

static int is_held(const struct guard *g) { return atomic_load(&g->holder) == pthread_self(); }

/* A mutex has no wait that a limit ends by a clock which nobody sets: not in every C library. */
int lanefs_lock(const struct asking *a, struct guard *g)
{
	const struct timespec slice = {.tv_nsec = SLICE * NS};
	uint32_t taken = FREE;
	if (!atomic_compare_exchange_strong(&g->taken, &taken, TAKEN))
		while (atomic_exchange(&g->taken, AWAITED) != FREE) {
			if (is_held(g)) /* what a wait has asked calls, or a signal's handler: it would wait for itself */
				return lanefs_fail(EDEADLK, "the calling thread is in the middle of such a call");
			long rc = syscall(SYS_futex, &g->taken, FUTEX_WAIT_PRIVATE, AWAITED, a->f ? &slice : NULL, NULL, 0);
			if (rc && (errno == ETIMEDOUT || errno == EINTR) && lanefs_asked(a))
				return -1;
		}
	atomic_store(&g->holder, pthread_self());
	return 0;
}

void lanefs_unlock(struct guard *g)
{
	atomic_store(&g->holder, (pthread_t)0);
	if (atomic_exchange(&g->taken, FREE) == AWAITED)
		syscall(SYS_futex, &g->taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void lanefs_cond(pthread_cond_t *c)
{
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(c, &a);
	pthread_condattr_destroy(&a);
}

int lanefs_await(const struct asking *a, pthread_cond_t *c, pthread_mutex_t *m)
{
	if (!a->f) {
		pthread_cond_wait(c, m);
		return 0;
	}
	uint64_t end = now_ns() + (uint64_t)SLICE * NS;
	struct timespec t = {.tv_sec = end / SECOND, .tv_nsec = end % SECOND};
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
