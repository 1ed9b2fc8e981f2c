/*
 * Run by a Go test beside this: testclock FILE, a file of a mount with device memory, whose byte i is i % 251. A thread reads; the first thread is about to, and its program ends the wait
 * for the other. The machine's clock is set back an hour in each wait that goes by it. The program prints "read" before the thread reads, "ended" when the first thread's wait
 * has ended, and "ok", and reads a line each time: the test holds the mount's device back between the first and the second.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

enum { N = 1 << 20 };

static lanefs_stage *st;
static uint32_t file;
static pthread_t first;

/* What the library gets: an end that is reckoned from it has the kernel wait for an hour. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, t);
	if (clock == CLOCK_REALTIME)
		t->tv_sec += 3600;
	return rc;
}

static int asked(void *arg)
{
	(void)arg;
	return pthread_equal(pthread_self(), first);
}

static void say(const char *text)
{
	char line[10];
	puts(text);
	WANT(fflush(stdout) == 0 && fgets(line, sizeof line, stdin));
}

static void *reads(void *arg)
{
	WANT(lanefs_read_into(st, file, arg, 0, N, NULL) == N);
	return NULL;
}

int main(int argc, char **argv)
{
	static unsigned char p[N], q[10];
	char line[10];
	pthread_t t;
	lanefs *s;
	int fd = open(argv[1], O_RDONLY);
	first = pthread_self();
	WANT(argc == 2 && fd >= 0 && (s = lanefs_connect(fd)) && (st = lanefs_stage_new(s, 0)) && lanefs_open(s, fd, &file) == 0);
	lanefs_on_wait(s, asked, NULL);
	alarm(400); /* nothing hangs */
	say("read");
	WANT(pthread_create(&t, NULL, reads, p) == 0 && fgets(line, sizeof line, stdin));
	WANT(lanefs_read_into(st, file, q, 0, sizeof q, NULL) == -1 && errno == EINTR);
	say("ended");
	WANT(pthread_join(t, NULL) == 0);
	for (size_t i = 0; i < N; i++)
		WANT(p[i] == i % 251);
	say("ok");
	lanefs_stage_free(st);
	lanefs_close(s);
	return 0;
}
