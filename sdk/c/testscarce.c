/*
 * Run by a Go test beside this: testscarce FILE, of a mount with device memory, whose byte i is i % 251. A process that may have little: addresses (RLIMIT_AS), descriptors, locked memory. What
 * cannot be had is ENOMEM or EMFILE with a text, nothing is lost by that, and all goes on with what there is. And children by vfork, which get none of the library's descriptors. Prints "ok".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); _exit(1); } } while (0)

enum { N = 1 << 20, RINGS = 8 /* that a session may have, a stage's among them */, ROUNDS = 60 };

static const char *path;
static unsigned char memory[N];

static struct rlimit limit(int what, rlim_t n)
{
	struct rlimit was, r;
	WANT(getrlimit(what, &was) == 0);
	r = was;
	r.rlim_cur = n;
	WANT(setrlimit(what, &r) == 0);
	return was;
}

static int right(const unsigned char *p, uint64_t off, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != (off + i) % 251)
			return 0;
	return 1;
}

static int descriptors(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	WANT(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static size_t addresses(void)
{
	size_t pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	WANT(f && fscanf(f, "%zu", &pages) == 1);
	fclose(f);
	return pages * 4096;
}

/* All that a program makes. Returns how far it came; 5: all of it. */
static int tries(int code)
{
	int fd, far = 0;
	lanefs *s = NULL;
	lanefs_stage *st = NULL;
	lanefs_ring *r = NULL;
	struct lanefs_buffer b = {.fd = -1}, p = {.fd = -1};
	uint32_t file;
	errno = 0;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (s = lanefs_connect(fd)) && ++far && (st = lanefs_stage_new(s, N)) && ++far && (r = lanefs_ring_new(s, 8)) && ++far && lanefs_map(s, fd, 0, N, 0, &b) == 0 && ++far &&
	    lanefs_map(s, fd, 0, N, LANEFS_PRIVATE, &p) == 0)
		far++;
	WANT(far == 5 || (errno == code && (fd < 0 || *lanefs_error())));
	if (st) { /* goes on with what there is */
		memset(memory, 'x', N);
		WANT(lanefs_open(s, fd, &file) == 0 && lanefs_read_into(st, file, memory, 7, N, NULL) == N && right(memory, 7, N));
	}
	if (far == 5)
		WANT(right(b.data, 0, N) && right(p.data, 0, N));
	if (s) {
		lanefs_unmap(s, &b);
		lanefs_unmap(s, &p);
	}
	lanefs_ring_free(r);
	lanefs_stage_free(st);
	lanefs_close(s);
	if (fd >= 0)
		close(fd);
	return far;
}

/* What failed has left nothing: in the daemon a session that goes on can have all its rings. */
static void all_of(lanefs *s, int fd)
{
	lanefs_ring *r[RINGS];
	lanefs_stage *st = lanefs_stage_new(s, N);
	uint32_t file;
	WANT(st && lanefs_open(s, fd, &file) == 0 && lanefs_read_into(st, file, memory, 0, N, NULL) == N && right(memory, 0, N));
	for (int i = 1; i < RINGS; i++)
		WANT((r[i] = lanefs_ring_new(s, 8)));
	for (int i = 1; i < RINGS; i++)
		lanefs_ring_free(r[i]);
	lanefs_stage_free(st);
	WANT(lanefs_release(s, file) == 0);
}

/* Sweeps a limit up from what the process has now. */
static void sweep(int what, rlim_t from, rlim_t step, int code)
{
	int seen[6] = {0}, fd = open(path, O_RDWR | O_CLOEXEC);
	lanefs *s = lanefs_connect(fd);
	WANT(s);
	struct rlimit was = limit(what, RLIM_INFINITY > 1 << 20 && what == RLIMIT_NOFILE ? 1024 : RLIM_INFINITY);
	for (int i = 0; i < ROUNDS; i++) {
		limit(what, from + (rlim_t)i * step);
		lanefs_stage *st = lanefs_stage_new(s, N);
		struct lanefs_buffer b;
		WANT(st || (errno == code && *lanefs_error()));
		if (lanefs_map(s, fd, 0, N, 0, &b) == 0)
			lanefs_unmap(s, &b);
		else
			WANT(errno == code && *lanefs_error());
		lanefs_stage_free(st);
		seen[tries(code)]++;
	}
	WANT(setrlimit(what, &was) == 0);
	WANT(seen[0] && seen[5]);
	all_of(s, fd);
	lanefs_close(s);
	close(fd);
}

/* Children that end or start another program; beside them a thread of the parent's reads. */
static volatile int stop;

static void *reads(void *arg)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	lanefs *s = lanefs_connect(fd);
	lanefs_stage *st = s ? lanefs_stage_new(s, N) : NULL;
	uint32_t file;
	unsigned char *p = malloc(N);
	WANT(st && p && lanefs_open(s, fd, &file) == 0);
	while (!stop)
		WANT(lanefs_read_into(st, file, p, 3, 100000, NULL) == 100000 && right(p, 3, 100000));
	free(p);
	lanefs_stage_free(st);
	lanefs_close(s);
	close(fd);
	return arg;
}

static pid_t starts(int ends)
{
	pid_t child = vfork();
	if (child == 0) {
		if (ends)
			_exit(3);
		execl("/proc/self/exe", "testscarce", "child", (char *)NULL);
		_exit(4);
	}
	return child;
}

static void children(void)
{
	pthread_t t;
	int status;
	WANT(pthread_create(&t, NULL, reads, NULL) == 0);
	for (int i = 0; i < 50; i++) {
		pid_t child = starts(i % 2);
		WANT(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == (i % 2 ? 3 : 0));
	}
	stop = 1;
	WANT(pthread_join(t, NULL) == 0);
}

/* What a child has of its parent's: no descriptor but the standard ones, and opendir's own. */
static int child(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	while ((e = readdir(d)))
		if (e->d_name[0] != '.' && atoi(e->d_name) > 2 && atoi(e->d_name) != dirfd(d))
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	WANT(argc == 2);
	if (strcmp(argv[1], "child") == 0)
		return child();
	alarm(300); /* nothing hangs */
	path = argv[1];
	WANT(tries(0) == 5); /* with what libc has of its own, from now on */
	int before = descriptors();
	limit(RLIMIT_MEMLOCK, 0);
	WANT(tries(0) == 5);
	size_t size = addresses();
	sweep(RLIMIT_AS, size, 256 << 10, ENOMEM);
	WANT(addresses() <= size + N);
	sweep(RLIMIT_NOFILE, 3, 1, EMFILE);
	WANT(descriptors() == before);
	children();
	WANT(descriptors() == before);
	puts("ok");
	return 0;
}
