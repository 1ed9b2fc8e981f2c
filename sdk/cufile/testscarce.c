/*
 * Run by a test beside this: testscarce FILE OTHER, files of the same bytes as test.c's, OTHER not on LaneFS. A process that may have few addresses (RLIMIT_AS) or descriptors, with ordinary
 * memory: calls fail and say so, nothing is lost, and without the limit the same handles do all. And children by vfork beside calls. Prints "ok".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cufile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); _exit(1); } } while (0)
#define OK(call) WANT((call).err == CU_FILE_SUCCESS)

enum { N = 1 << 20, SMALL = 4096, ROUNDS = 60 };

static const char *paths[2];
static unsigned char memory[N];

static rlim_t limit(int what, rlim_t n)
{
	struct rlimit r;
	WANT(getrlimit(what, &r) == 0);
	rlim_t was = r.rlim_cur;
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

/* Only these say that something cannot be had. */
static int lacks(ssize_t n) { return n == -CU_FILE_NOMEM_ERROR || n == -CU_FILE_GETNEWFD_FAILED || (n == -1 && (errno == ENOMEM || errno == EMFILE || errno == EAGAIN)); }

static int reads(CUfileHandle_t h, size_t n)
{
	errno = 0;
	memset(memory, 'x', n);
	ssize_t k = cuFileRead(h, memory, n, 7, 0);
	WANT(k == (ssize_t)n ? right(memory, 7, n) : lacks(k));
	return k > 0;
}

static int writes(CUfileHandle_t h, size_t n)
{
	for (size_t i = 0; i < n; i++)
		memory[i] = (unsigned char)((7 + i) % 251);
	errno = 0;
	ssize_t k = cuFileWrite(h, memory, n, 7, 0);
	WANT(k == (ssize_t)n || lacks(k));
	return k > 0;
}

static int batch(CUfileHandle_t h)
{
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[4];
	CUfileIOEvents_t e[4];
	unsigned n = 4;
	int whole = 1;
	CUfileError_t rc = cuFileBatchIOSetUp(&b, 4);
	if (rc.err) {
		WANT(rc.err == CU_FILE_NOMEM_ERROR);
		return 0;
	}
	for (int i = 0; i < 4; i++) {
		p[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = h, .opcode = CUFILE_READ, .cookie = &p[i]};
		p[i].u.batch.devPtr_base = memory;
		p[i].u.batch.devPtr_offset = i * SMALL;
		p[i].u.batch.file_offset = i * SMALL;
		p[i].u.batch.size = SMALL;
	}
	rc = cuFileBatchIOSubmit(b, 4, p, 0);
	WANT(rc.err == CU_FILE_SUCCESS || rc.err == CU_FILE_NOMEM_ERROR);
	if (!rc.err) {
		OK(cuFileBatchIOGetStatus(b, 4, &n, e, NULL));
		WANT(n == 4);
		for (unsigned i = 0; i < n; i++)
			whole &= e[i].status == CUFILE_COMPLETE && e[i].ret == SMALL;
		WANT(!whole || right(memory, 0, 4 * SMALL));
	}
	cuFileBatchIODestroy(b);
	return whole && !rc.err;
}

static CUfileHandle_t registers(int fd)
{
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd};
	CUfileHandle_t h = NULL;
	CUfileError_t e = cuFileHandleRegister(&h, &d);
	WANT(h || e.err == CU_FILE_NOMEM_ERROR || e.err == CU_FILE_GETNEWFD_FAILED || e.err == CU_FILE_DRIVER_NOT_INITIALIZED);
	return h;
}

static int all(CUfileHandle_t h) { return reads(h, N) && reads(h, SMALL) && writes(h, N) && writes(h, SMALL) && batch(h); }

/* Each round makes the handle, and so the session and a stage, anew. */
static void sweep(int what, rlim_t from, rlim_t step)
{
	for (int which = 0; which < 2; which++) {
		unsigned far = 0;
		for (int i = 0; i < ROUNDS; i++) {
			int fd = open(paths[which], O_RDWR | O_CLOEXEC);
			WANT(fd >= 0);
			rlim_t was = limit(what, from + (rlim_t)i * step);
			CUfileHandle_t h = registers(fd);
			if (h)
				far += (unsigned)(reads(h, N) + reads(h, SMALL) + writes(h, N) + batch(h));
			limit(what, was);
			if (!h)
				WANT((h = registers(fd)));
			WANT(all(h));
			cuFileHandleDeregister(h);
			OK(cuFileDriverClose());
			close(fd);
		}
		WANT(far && far <= 4 * ROUNDS);
	}
}

/* How many stages the library has. */
static int stages(void)
{
	char line[512];
	int n = 0;
	FILE *f = fopen("/proc/self/maps", "r");
	WANT(f);
	while (fgets(line, sizeof line, f))
		n += strstr(line, "lanefs-stage") != NULL;
	fclose(f);
	return n;
}

enum { THREADS = 4 };

static void *some(void *arg)
{
	for (int i = 0; i < 50; i++)
		WANT(cuFileWrite(arg, memory, N, 7, 0) == N); /* what writes has put there */
	return NULL;
}

static void together(CUfileHandle_t h)
{
	pthread_t t[THREADS];
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_create(&t[i], NULL, some, h) == 0);
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_join(t[i], NULL) == 0);
}

/* Calls of several threads share what stages there are while no more can be made, and have more when they can be. */
static void shortage(void)
{
	int fd = open(paths[0], O_RDWR | O_CLOEXEC);
	CUfileHandle_t h = registers(fd);
	WANT(h && writes(h, N) && stages() == 1);
	rlim_t was = limit(RLIMIT_NOFILE, 3); /* enough for poll(2), of what there is */
	together(h);
	limit(RLIMIT_NOFILE, was);
	WANT(stages() == 1);
	for (time_t end = time(NULL) + 60; stages() < 2 && time(NULL) < end;)
		together(h);
	WANT(stages() >= 2);
	cuFileHandleDeregister(h);
	OK(cuFileDriverClose());
	close(fd);
}

static volatile int stop;

static void *beside(void *arg)
{
	static unsigned char m[N];
	while (!stop)
		WANT(cuFileRead(arg, m, N, 3, 0) == N && right(m, 3, N));
	return NULL;
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
	for (int which = 0; which < 2; which++) {
		int status, fd = open(paths[which], O_RDWR | O_CLOEXEC);
		CUfileHandle_t h = registers(fd);
		pthread_t t;
		stop = 0;
		WANT(h && pthread_create(&t, NULL, beside, h) == 0);
		for (int i = 0; i < 30; i++) {
			pid_t child = starts(i % 2);
			WANT(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == (i % 2 ? 3 : 0));
		}
		stop = 1;
		WANT(pthread_join(t, NULL) == 0);
		cuFileHandleDeregister(h);
		OK(cuFileDriverClose());
		close(fd);
	}
}

/* No descriptor of the parent's but the standard ones. */
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
	if (argc == 2)
		return child();
	WANT(argc == 3);
	alarm(500); /* nothing hangs */
	paths[0] = argv[1];
	paths[1] = argv[2];
	for (int i = 0; i < 2; i++) { /* with what libc has of its own, from now on */
		int fd = open(paths[i], O_RDWR | O_CLOEXEC);
		CUfileHandle_t h = registers(fd);
		WANT(h && all(h));
		cuFileHandleDeregister(h);
		close(fd);
	}
	OK(cuFileDriverClose());
	limit(RLIMIT_MEMLOCK, 0);
	int before = descriptors();
	size_t size = addresses();
	sweep(RLIMIT_AS, size, 1 << 20);
	WANT(addresses() <= size + (16 << 20));
	sweep(RLIMIT_NOFILE, (rlim_t)before - 2, 1);
	shortage();
	children();
	WANT(descriptors() == before);
	puts("ok");
	return 0;
}
