/*
 * Calls that make a file larger, in a program with a limit of a file's size (RLIMIT_FSIZE, ulimit -f). Beyond the limit Linux sends SIGXFSZ to the thread,
 * which ends a program that knows nothing of it: for the library's own memory, a memfd, which is a file too. So the signal is blocked in the thread for the
 * call, and taken back if it came by the call, which fails with EFBIG. What the program has set for the signal stays, and one of its own that is pending stays pending.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

void lanefs_limit_begin(struct limit *l)
{
	sigset_t one, pending;
	sigemptyset(&one);
	sigaddset(&one, SIGXFSZ);
	l->had = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
	l->blocked = pthread_sigmask(SIG_BLOCK, &one, &l->before) == 0;
}

void lanefs_limit_end(struct limit *l)
{
	int saved = errno;
	if (saved == EFBIG && l->blocked && !l->had) {
		sigset_t one;
		struct timespec now = {0};
		sigemptyset(&one);
		sigaddset(&one, SIGXFSZ);
		while (sigtimedwait(&one, NULL, &now) < 0 && errno == EINTR)
			continue;
	}
	if (l->blocked)
		pthread_sigmask(SIG_SETMASK, &l->before, NULL);
	errno = saved;
}

int lanefs_size(int fd, uint64_t size)
{
	struct limit l;
	errno = 0;
	lanefs_limit_begin(&l);
	int failed = ftruncate(fd, (off_t)size);
	lanefs_limit_end(&l);
	return failed;
}

ssize_t lanefs_put(int fd, const void *p, size_t n)
{
	struct limit l;
	errno = 0;
	lanefs_limit_begin(&l);
	ssize_t put = write(fd, p, n);
	lanefs_limit_end(&l);
	return put;
}

ssize_t lanefs_put_at(int fd, const void *p, size_t n, off_t offset)
{
	struct rlimit r;
	if (getrlimit(RLIMIT_FSIZE, &r) || r.rlim_cur == RLIM_INFINITY || (uint64_t)offset + n <= r.rlim_cur)
		return pwrite(fd, p, n, offset);
	struct limit l;
	errno = 0;
	lanefs_limit_begin(&l);
	ssize_t put = pwrite(fd, p, n, offset);
	lanefs_limit_end(&l);
	return put;
}
