/*
 * Run by a Go test beside this: testwait FILE, a file of a mount with device memory, whose byte i is i % 251. Waits that the program ends by lanefs_on_wait. Before each it prints a
 * line and reads one; then the test holds the mount's device back, until it reads the next line (of "release" the one after that: the first is when the device has the request). At the end it prints "ok", and waits for a line.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

enum { N = 1 << 20 };

static lanefs *s;
static lanefs_stage *st;
static uint32_t file;
static int end, inner; /* what the function says, and the errno of what it calls itself */

static int asked(void *arg)
{
	struct lanefs_moved m;
	char b[10];
	WANT(arg == &end);
	inner = lanefs_how_moved(s, &m) ? errno : 0;
	if (!inner)
		inner = lanefs_read_into(st, file, b, 0, 10, NULL) < 0 ? errno : 0;
	return end;
}

static void say(const char *text)
{
	char line[10];
	puts(text);
	WANT(fflush(stdout) == 0 && fgets(line, sizeof line, stdin));
}

static int right(const unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != i % 251)
			return 0;
	return 1;
}

static void *reads(void *arg)
{
	WANT(lanefs_read_into(st, file, arg, 0, N, NULL) == N);
	return NULL;
}

static void *releases(void *arg)
{
	WANT(lanefs_release(s, *(uint32_t *)arg) == 0);
	return NULL;
}

/* A thread releases memory that a request uses. */
static void release(int fd)
{
	uint32_t memory, more;
	char line[10];
	int m = memfd_create("m", MFD_ALLOW_SEALING);
	lanefs_ring *r = lanefs_ring_new(s, 8);
	WANT(r && m >= 0 && ftruncate(m, N) == 0 && lanefs_register(s, m, LANEFS_MEMFD, 0, N, &memory) == 0);
	say("release");
	struct lanefs_request q = {.op = LANEFS_READ, .file = file, .memory = memory, .length = N};
	struct lanefs_completion c;
	pthread_t t;
	WANT(lanefs_ring_submit(r, &q, 1) == 1 && fgets(line, sizeof line, stdin));
	WANT(pthread_create(&t, NULL, releases, &memory) == 0);
	usleep(100000); /* likely enough it waits by then */
	WANT(lanefs_open(s, fd, &more) == 0 && lanefs_release(s, more) == 0);
	WANT(pthread_tryjoin_np(t, NULL) == EBUSY);
	say("ended");
	WANT(pthread_join(t, NULL) == 0);
	WANT(lanefs_ring_reap(r, &c, 1, 0) == 1 && c.result == N);
	lanefs_ring_free(r);
	close(m);
}

int main(int argc, char **argv)
{
	struct lanefs_buffer b;
	struct lanefs_moved m;
	static unsigned char p[N], q[N];
	pthread_t t;
	int fd = open(argv[1], O_RDWR);
	WANT(argc == 2 && fd >= 0 && (s = lanefs_connect(fd)) && (st = lanefs_stage_new(s, 0)) && lanefs_open(s, fd, &file) == 0);
	lanefs_on_wait(s, asked, &end);
	end = 1;

	say("map");
	WANT(lanefs_map(s, fd, 0, N, 0, &b) == -1 && errno == EINTR && inner == EDEADLK);
	say("ended");
	end = 0; /* what follows is waited for */
	WANT(lanefs_how_moved(s, &m) == 0); /* its own reply, not the late one */
	WANT(lanefs_map(s, fd, 0, N, 0, &b) == 0 && right(b.data, N));
	lanefs_unmap(s, &b);

	memset(p, 'x', N);
	say("read");
	end = 1;
	WANT(lanefs_read_into(st, file, p, 0, N, NULL) == -1 && errno == EINTR && inner == EDEADLK);
	WANT(lanefs_read_into(st, file, p, 0, N, NULL) == -1 && errno == EINTR); /* what is under way is waited for first */
	say("ended");
	end = 0; /* for another thread's read, too, which goes on */
	for (size_t i = 0; i < N; i++)
		WANT(p[i] == 'x');
	WANT(lanefs_read_into(st, file, p, 0, N, NULL) == N && right(p, N));

	say("thread");
	WANT(pthread_create(&t, NULL, reads, q) == 0);
	say("ended");
	WANT(pthread_join(t, NULL) == 0 && right(q, N));

	alarm(400); /* nothing hangs */
	release(fd);
	say("ok");
	lanefs_stage_free(st);
	lanefs_close(s);
	return 0;
}
