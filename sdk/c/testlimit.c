/*
 * Run by a Go test beside this: testlimit FILE, a file of a mount with device memory, whose byte i is i % 251. With a limit of a file's size no stage can be had: EFBIG,
 * and the program lives, with its signals as they were. Prints "ok".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

static void limit(rlim_t n)
{
	struct rlimit r;
	WANT(getrlimit(RLIMIT_FSIZE, &r) == 0);
	r.rlim_cur = n;
	WANT(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

static volatile sig_atomic_t heard;
static void hear(int sig) { heard += sig == SIGXFSZ; }

static int pending(void)
{
	sigset_t set;
	WANT(sigpending(&set) == 0);
	return sigismember(&set, SIGXFSZ);
}

static int blocked(void)
{
	sigset_t set;
	WANT(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0);
	return sigismember(&set, SIGXFSZ);
}

static void refused(lanefs *s)
{
	errno = 0;
	WANT(lanefs_stage_new(s, 0) == NULL && errno == EFBIG && strstr(lanefs_error(), "ulimit -f"));
}

int main(int argc, char **argv)
{
	static const rlim_t limits[] = {0, 4096, 1 << 20};
	static char data[100000];
	sigset_t one, before;
	struct sigaction act = {0}, was;
	int file;
	lanefs *s;
	uint32_t handle;

	WANT(argc == 2 && (file = open(argv[1], O_RDWR | O_CLOEXEC)) >= 0 && (s = lanefs_connect(file)) && lanefs_open(s, file, &handle) == 0);
	for (int i = 0; i < 3; i++) {
		limit(limits[i]);
		refused(s); /* SIGXFSZ would end the program */
		WANT(!pending() && !blocked() && sigaction(SIGXFSZ, NULL, &was) == 0 && was.sa_handler == SIG_DFL);
		lanefs_ring *r = lanefs_ring_new(s, 16); /* its memory is the daemon's */
		WANT(r);
		lanefs_ring_free(r);
	}
	act.sa_handler = hear; /* the program's own does not hear of it */
	WANT(sigaction(SIGXFSZ, &act, NULL) == 0);
	refused(s);
	WANT(!heard);
	sigemptyset(&one);
	sigaddset(&one, SIGXFSZ);
	WANT(pthread_sigmask(SIG_BLOCK, &one, &before) == 0);
	refused(s);
	WANT(!pending() && blocked());
	WANT(raise(SIGXFSZ) == 0 && pending());
	refused(s);
	WANT(pending() && blocked() && !heard); /* one of the program's own stays */
	WANT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0 && heard == 1);

	limit(RLIM_INFINITY);
	lanefs_stage *st = lanefs_stage_new(s, 1 << 20);
	WANT(st && lanefs_read_into(st, handle, data, 0, sizeof data, NULL) == sizeof data);
	for (size_t i = 0; i < sizeof data; i++)
		WANT((unsigned char)data[i] == i % 251);
	lanefs_stage_free(st);
	lanefs_close(s);
	puts("ok");
	return 0;
}
