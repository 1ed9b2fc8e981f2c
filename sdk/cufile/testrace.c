/*
 * Run by the Go tests beside this: testrace FILE OTHER cpu|cuda, files of the same bytes as test.c's, OTHER not on LaneFS. What happens
 * to a handle, a file or memory while calls are under way: several threads close it, the process forks, the file is cut, the memory is unmapped.
 * A call then ends with its bytes or with the interface's own error. With "cuda" memory is a GPU's, of the stand-in for libcuda. Prints "ok".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testcuda.h"
#include "testfds.h"

enum { THREADS = 6, N = 9000, ROUNDS = 60, MOST = 1 << 20 };

static int on_gpu;
static void *context;
static size_t size;

static unsigned char *memory(size_t n)
{
	void *p = NULL;
	if (on_gpu)
		WANT(cuda.current(context) == 0 && cuda.malloc(&p, n) == 0);
	else
		WANT((p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
	return p;
}

/* Then nothing lies where it was, the library's own memory neither: that would be read into. */
static void forget(void *p, size_t n)
{
	WANT((on_gpu ? cuda.free(p) : munmap(p, n)) == 0);
	mmap(p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

/* ---- Handles that threads close under one another ---- */

struct round { CUfileHandle_t h; _Atomic int stop; pthread_barrier_t begin; };

static void *reads(void *arg)
{
	struct round *r = arg;
	unsigned char *m = memory(N);
	pthread_barrier_wait(&r->begin);
	for (unsigned i = 0;; i++) {
		size_t off = i * 7919u % (size - N);
		ssize_t n = cuFileRead(r->h, m, N, (off_t)off, 0);
		if (n == -CU_FILE_HANDLE_NOT_REGISTERED)
			break;
		WANT(n == N && right(m, off, N));
	}
	WANT(cuFileRead(r->h, m, N, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED); /* never again one */
	forget(m, N);
	return NULL;
}

static void *closes(void *arg)
{
	struct round *r = arg;
	pthread_barrier_wait(&r->begin);
	usleep(300);
	cuFileHandleDeregister(r->h);
	return NULL;
}

/* Registers other files' handles meanwhile, which may get what the closed one had. */
static void *opens(void *arg)
{
	struct round *r = arg;
	unsigned char *m = memory(N);
	pthread_barrier_wait(&r->begin);
	while (!r->stop) {
		char path[] = "/tmp/lanefs-race-XXXXXX";
		int fd = mkstemp(path);
		WANT(fd >= 0 && unlink(path) == 0 && write(fd, "anything else", 13) == 13);
		CUfileHandle_t h = reg(fd);
		WANT(h != r->h && cuFileRead(h, m, N, 0, 0) == 13 && memcmp(m, "anything else", 13) == 0);
		cuFileHandleDeregister(h);
		close(fd);
	}
	forget(m, N);
	return NULL;
}

static void closed(int fd)
{
	for (int k = 0; k < ROUNDS; k++) {
		pthread_t t[THREADS], other;
		struct round r = {.h = reg(fd)};
		pthread_barrier_init(&r.begin, NULL, THREADS + 1);
		WANT(pthread_create(&other, NULL, opens, &r) == 0);
		for (int i = 0; i < THREADS; i++)
			WANT(pthread_create(&t[i], NULL, i < THREADS / 2 ? reads : closes, &r) == 0);
		for (int i = 0; i < THREADS; i++)
			WANT(pthread_join(t[i], NULL) == 0);
		r.stop = 1;
		WANT(pthread_join(other, NULL) == 0);
		pthread_barrier_destroy(&r.begin);
	}
	/* All that they held has gone: the same descriptor may be registered again, and there are no more handles than one. */
	CUfileHandle_t h = reg(fd);
	cuFileHandleDeregister(h);
}

/* The same for many handles, with calls that do nothing: more of them meet. What a handle held is given back, each time. */
struct many { CUfileHandle_t _Atomic h; _Atomic unsigned round, ended; };
enum { HANDLES = 2000, CLOSERS = 2, CALLERS = 2 };

static void await_round(struct many *y, unsigned round)
{
	for (unsigned i = 0; y->round < round; i++)
		if (i % 64 == 63)
			sched_yield();
}

static void *closes_many(void *arg)
{
	struct many *y = arg;
	for (unsigned round = 1; round <= HANDLES; round++) {
		await_round(y, round);
		cuFileHandleDeregister(y->h);
		y->ended++;
	}
	return NULL;
}

static void *calls_many(void *arg)
{
	struct many *y = arg;
	unsigned char *m = memory(N);
	for (unsigned round = 1; round <= HANDLES; round++) {
		await_round(y, round);
		while (cuFileRead(y->h, m, 0, 0, 0) == 0)
			;
		y->ended++;
	}
	forget(m, N);
	return NULL;
}

static void closed_often(int fd)
{
	struct many y = {.round = 0};
	pthread_t t[CLOSERS + CALLERS];
	cuFileHandleDeregister(reg(fd)); /* what a mount keeps is open now */
	unsigned before = descriptors();
	for (int i = 0; i < CLOSERS + CALLERS; i++)
		WANT(pthread_create(&t[i], NULL, i < CLOSERS ? closes_many : calls_many, &y) == 0);
	for (unsigned round = 1; round <= HANDLES; round++) {
		y.h = reg(fd);
		y.ended = 0;
		y.round = round;
		for (unsigned i = 0; y.ended < CLOSERS + CALLERS; i++)
			if (i % 64 == 63)
				sched_yield();
	}
	for (int i = 0; i < CLOSERS + CALLERS; i++)
		WANT(pthread_join(t[i], NULL) == 0);
	WANT(descriptors() == before);
}

/* ---- A process that forks while its threads read ---- */

static void *until_stopped(void *arg)
{
	struct round *r = arg;
	unsigned char *m = memory(N);
	pthread_barrier_wait(&r->begin);
	for (unsigned i = 0; !r->stop; i++) {
		size_t off = i * 7919u % (size - N);
		WANT(cuFileRead(r->h, m, N, (off_t)off, 0) == N && right(m, off, N));
	}
	forget(m, N);
	return NULL;
}

/* Calls that do little but take the library's locks, each its own. */
static void take_locks(void)
{
	CUfileBatchHandle_t b;
	size_t n;
	int level;
	cuFileUseCount();
	OK(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &n));
	OK(cuFileGetStatsLevel(&level));
	cuFileBufDeregister((void *)1);
	cuFileStreamDeregister((CUstream)(uintptr_t)12345);
	OK(cuFileBatchIOSetUp(&b, 1));
	cuFileBatchIODestroy(b);
}

static void *takes_locks(void *arg)
{
	struct round *r = arg;
	pthread_barrier_wait(&r->begin);
	while (!r->stop)
		take_locks();
	return NULL;
}

__attribute__((unused)) static void forked(const char *path, int fd)
{
	pthread_t t[THREADS];
	struct round r = {.h = reg(fd)};
	unsigned char b[N];
	pthread_barrier_init(&r.begin, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_create(&t[i], NULL, i % 3 ? until_stopped : takes_locks, &r) == 0);
	pthread_barrier_wait(&r.begin);
	for (int k = 0; k < 40; k++) {
		usleep(500);
		pid_t child = fork();
		WANT(child >= 0);
		if (child == 0) {
			alarm(100); /* a lock that a thread of the parent held would be held for ever */
			WANT(cuFileRead(r.h, b, N, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED);
			take_locks();
			int own = open(path, O_RDONLY);
			CUfileHandle_t h = reg(own);
			WANT(h != r.h && (on_gpu || (cuFileRead(h, b, N, 40, 0) == N && right(b, 40, N))));
			cuFileHandleDeregister(h);
			_exit(0);
		}
		int status;
		WANT(waitpid(child, &status, 0) == child && status == 0);
	}
	r.stop = 1;
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_join(t[i], NULL) == 0);
	pthread_barrier_destroy(&r.begin);
	cuFileHandleDeregister(r.h);
}

/* ---- A file that is cut and grows while it is read ---- */

struct cutting { int fd; _Atomic int stop; };

static void *cuts(void *arg)
{
	struct cutting *c = arg;
	for (unsigned i = 0; !c->stop; i++) {
		WANT(ftruncate(c->fd, (off_t)(i * 10007u % (1 << 20))) == 0);
		usleep(200);
	}
	return NULL;
}

static void cut(const char *directory)
{
	char path[5000];
	snprintf(path, sizeof path, "%s/cut-XXXXXX", directory);
	struct cutting c = {.fd = mkstemp(path)};
	pthread_t t;
	WANT(c.fd >= 0);
	unsigned char *one = malloc(1 << 20), *m = memory(1 << 20);
	memset(one, 1, 1 << 20);
	WANT(write(c.fd, one, 1 << 20) == 1 << 20);
	CUfileHandle_t h = reg(c.fd);
	WANT(pthread_create(&t, NULL, cuts, &c) == 0);
	for (unsigned i = 0; i < 600; i++) {
		size_t n = i % 3 ? 4096 : 1 << 20, off = i % 3 ? i * 7919u % (1 << 20) : 0;
		memset(m, 7, n);
		ssize_t got = cuFileRead(h, m, n, (off_t)off, 0);
		WANT(got >= 0 && got <= (ssize_t)n);
		for (ssize_t k = 0; k < got; k++) /* of the file, or a hole that it got when it grew */
			WANT(m[k] <= 1);
	}
	c.stop = 1;
	WANT(pthread_join(t, NULL) == 0);
	cuFileHandleDeregister(h);
	close(c.fd);
	WANT(unlink(path) == 0);
	free(one);
	forget(m, 1 << 20);
}

/* ---- Numbers at the end of what there is ---- */

static void numbers(int fd)
{
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(N);
	static const struct { size_t n; off_t offset, at; } bad[] = {
		{1, -1, 0}, {1, INT64_MIN, 0}, {1, 0, -1}, {1, 0, INT64_MIN}, {SIZE_MAX, 0, 0}, {SIZE_MAX, 1, 1}, {(size_t)1 << 63, 0, 0}, {SIZE_MAX - 4095, 0, 0},
		{2, INT64_MAX, 0}, {SIZE_MAX >> 1, 2, 0}, {4096, 0, INT64_MAX}, {(size_t)1 << 40, 0, 0}, {0, -1, 0}, {0, 0, -1},
	};
	memset(m, 7, N);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		for (int registered = 0; registered < 2; registered++) {
			if (registered)
				OK(cuFileBufRegister(m, N, 0));
			ssize_t r = cuFileRead(h, m, bad[i].n, bad[i].offset, bad[i].at), w = cuFileWrite(h, m, bad[i].n, bad[i].offset, bad[i].at);
			if (r > -CUFILEOP_BASE_ERR || w > -CUFILEOP_BASE_ERR) {
				fprintf(stderr, "%zu bytes at %lld, %lld: %zd, %zd\n", bad[i].n, (long long)bad[i].offset, (long long)bad[i].at, r, w);
				exit(1);
			}
			if (registered)
				OK(cuFileBufDeregister(m));
		}
	for (int i = 0; i < N; i++)
		WANT(m[i] == 7);
	struct stat st;
	WANT(fstat(fd, &st) == 0 && (size_t)st.st_size == size);
	/* Nothing at all is no error, wherever it is. */
	WANT(cuFileRead(h, m, 0, 0, 0) == 0 && cuFileWrite(h, m, 0, 0, 0) == 0 && cuFileRead(h, m, 0, INT64_MAX, 0) == 0 && cuFileRead(h, m, 4096, INT64_MAX - 4096, 0) == 0);
	WANT(fstat(fd, &st) == 0 && (size_t)st.st_size == size);
	cuFileHandleDeregister(h);
	forget(m, N);
}

/* ---- Batches with bad entries between the others, and ones that are destroyed, or whose file is closed, under way ---- */

static CUfileIOParams_t request(CUfileHandle_t h, void *m, size_t i)
{
	CUfileIOParams_t p = {.mode = CUFILE_BATCH, .fh = h, .opcode = CUFILE_READ, .cookie = (void *)i};
	p.u.batch.devPtr_base = m;
	p.u.batch.devPtr_offset = (off_t)(i * N);
	p.u.batch.file_offset = (off_t)(i * 4001);
	p.u.batch.size = N;
	return p;
}

static void batches(int fd)
{
	enum { K = 60 };
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[K];
	CUfileIOEvents_t e[K];
	unsigned char *m = memory(K * N), *freed = memory(N);
	CUfileHandle_t h = reg(fd), closed = reg(dup(fd));
	cuFileHandleDeregister(closed);
	forget(freed, N);
	OK(cuFileBatchIOSetUp(&b, K));
	memset(m, 7, K * N);
	for (size_t i = 0; i < K; i++)
		p[i] = request(h, m, i);
	p[10].fh = closed;
	p[20].u.batch.devPtr_base = freed, p[20].u.batch.devPtr_offset = 0;
	p[25].u.batch.size = SIZE_MAX;
	p[30].u.batch.file_offset = -1;
	p[35].u.batch.devPtr_offset = -1;
	p[40].u.batch.size = 0;
	p[45].u.batch.file_offset = (off_t)size + 1;
	OK(cuFileBatchIOSubmit(b, K, p, 0));
	unsigned char seen[K] = {0};
	for (unsigned got = 0, n; got < K; got += n) {
		n = K;
		OK(cuFileBatchIOGetStatus(b, 1, &n, e, NULL));
		for (unsigned j = 0; j < n; j++) {
			size_t i = (size_t)e[j].cookie;
			ssize_t r = (ssize_t)e[j].ret;
			WANT(i < K && !seen[i]++);
			if (i == 10 || i == 20 || i == 25 || i == 30 || i == 35)
				WANT((e[j].status == CUFILE_FAILED || e[j].status == CUFILE_INVALID) && r <= -CUFILEOP_BASE_ERR);
			else if (i == 40 || i == 45)
				WANT(e[j].status == CUFILE_COMPLETE && r == 0);
			else
				WANT(e[j].status == CUFILE_COMPLETE && r == N && right(m + i * N, i * 4001, N));
		}
	}
	/* A submission with a request that is none at all is refused as a whole, and leaves nothing in the batch. */
	for (size_t i = 0; i < K; i++)
		p[i] = request(h, m, i);
	p[30].opcode = (CUfileOpcode_t)77;
	memset(m, 7, K * N);
	CUfileError_t refused = cuFileBatchIOSubmit(b, K, p, 0);
	WANT(refused.err == CU_FILE_INVALID_VALUE);
	unsigned n = K;
	struct timespec soon = {0, 0};
	OK(cuFileBatchIOGetStatus(b, 0, &n, e, &soon));
	WANT(n == 0 && m[0] == 7 && m[K * N - 1] == 7);
	/* Submitted, then the file is closed: what was submitted is done. */
	p[30].opcode = CUFILE_READ;
	OK(cuFileBatchIOSubmit(b, K, p, 0));
	cuFileHandleDeregister(h);
	for (unsigned got = 0; got < K; got += n) {
		n = K;
		OK(cuFileBatchIOGetStatus(b, 1, &n, e, NULL));
		for (unsigned j = 0; j < n; j++)
			WANT(e[j].status == CUFILE_COMPLETE && right(m + (size_t)e[j].cookie * N, (size_t)e[j].cookie * 4001, N));
	}
	/* Submitted, then destroyed: nothing is written to the memory afterwards. */
	h = reg(fd);
	for (int k = 0; k < 20; k++) {
		for (size_t i = 0; i < K; i++)
			p[i] = request(h, m, i);
		OK(cuFileBatchIOSubmit(b, K, p, 0));
		cuFileBatchIODestroy(b);
		memset(m, 7, K * N);
		usleep(2000);
		for (size_t i = 0; i < K * N; i++)
			WANT(m[i] == 7);
		OK(cuFileBatchIOSetUp(&b, K));
	}
	cuFileBatchIODestroy(b);
	cuFileHandleDeregister(h);
	forget(m, K * N);
}

/* ---- Memory that is registered and no longer, streams, and statistics, while others read ---- */

enum { TIMES = 200 };
struct turmoil { int fd; CUfileHandle_t h; _Atomic int stop; };

static void *registers(void *arg)
{
	struct turmoil *u = arg;
	unsigned char *m[8];
	for (int i = 0; i < 8; i++)
		m[i] = memory(N);
	for (unsigned k = 0; k < TIMES; k++)
		for (unsigned i = 0; i < 8; i++) {
			unsigned j = i * (2 * k + 1) % 8;
			OK(cuFileBufRegister(m[j], N, 0));
			if (k % 16 == 0)
				WANT(cuFileRead(u->h, m[j], N, k, 0) == N && right(m[j], k, N));
			WANT(cuFileRead(u->h, m[j], N, 0, 1) == -CU_FILE_INVALID_MAPPING_RANGE); /* as what is registered says */
			OK(cuFileBufDeregister(m[j]));
			IS(CU_FILE_MEMORY_NOT_REGISTERED, cuFileBufDeregister(m[j]));
		}
	for (int i = 0; i < 8; i++)
		forget(m[i], N);
	return NULL;
}

static void *on_streams(void *arg)
{
	struct turmoil *u = arg;
	unsigned char *m = memory(N);
	for (unsigned k = 0; k < 40; k++) {
		void *stream = (void *)(uintptr_t)(4096 + 64 * k);
		size_t n = N;
		off_t offset = k, at = 0;
		ssize_t got = -7;
		WANT(!on_gpu || cuda.create(&stream, NON_BLOCKING) == 0);
		OK(cuFileStreamRegister((CUstream)stream, 0xf));
		OK(cuFileReadAsync(u->h, m, &n, &offset, &at, &got, (CUstream)stream));
		WANT(!on_gpu || cuda.sync(stream) == 0);
		WANT(got == N && right(m, k, N));
		CUfileError_t e = cuFileStreamDeregister((CUstream)stream);
		WANT(!e.err || !on_gpu); /* without a GPU two threads have the same names for theirs */
		WANT(!on_gpu || cuda.destroy(stream) == 0);
	}
	forget(m, N);
	return NULL;
}

/* Batches of few requests, one waited for by its thread and one with a limit of time. */
static void *in_batches(void *arg)
{
	enum { K = 6 };
	struct turmoil *u = arg;
	unsigned char *m = memory(K * N);
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[K];
	CUfileIOEvents_t e[K];
	OK(cuFileBatchIOSetUp(&b, K));
	for (unsigned k = 0; k < 150; k++) {
		struct timespec soon = {10, 0};
		for (size_t i = 0; i < K; i++)
			p[i] = request(u->h, m, i);
		memset(m, 7, K * N);
		OK(cuFileBatchIOSubmit(b, K / 2, p, 0));
		OK(cuFileBatchIOSubmit(b, K - K / 2, p + K / 2, 0));
		for (unsigned got = 0, n; got < K; got += n) {
			n = K;
			OK(cuFileBatchIOGetStatus(b, K - got, &n, e, k % 2 ? &soon : NULL));
			for (unsigned j = 0; j < n; j++)
				WANT(e[j].status == CUFILE_COMPLETE && e[j].ret == N && right(m + (size_t)e[j].cookie * N, (size_t)e[j].cookie * 4001, N));
		}
	}
	cuFileBatchIODestroy(b);
	forget(m, K * N);
	return NULL;
}

static void turmoil(int fd)
{
	struct turmoil u = {.fd = fd, .h = reg(fd)};
	static void *(*const all[THREADS])(void *) = {registers, registers, on_streams, on_streams, in_batches, in_batches};
	pthread_t t[THREADS];
	CUfileStatsLevel1_t s;
	enum { BALLAST = 3000, APART = 64 }; /* so many that what changes the list takes a while */
	unsigned char *ballast = memory(BALLAST * APART);
	for (int i = 0; i < BALLAST; i++)
		OK(cuFileBufRegister(ballast + i * APART, 1, 0));
	OK(cuFileSetStatsLevel(1));
	OK(cuFileStatsReset());
	OK(cuFileStatsStart());
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_create(&t[i], NULL, all[i], &u) == 0);
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_join(t[i], NULL) == 0);
	OK(cuFileGetStatsL1(&s));
	OK(cuFileStatsStop());
	WANT(s.batch_complete_ops.ok == 2 * 150 * 6 && s.buf_register_ops.ok == 2 * TIMES * 8 && s.buf_deregister_ops.ok == 2 * TIMES * 8 && s.buf_deregister_ops.err == 2 * TIMES * 8);
	for (int i = 0; i < BALLAST; i++)
		OK(cuFileBufDeregister(ballast + i * APART));
	forget(ballast, BALLAST * APART);
	cuFileHandleDeregister(u.h);
}

/* ---- Registered memory that goes away ---- */

static void unmapped(int fd)
{
	CUfileHandle_t h = reg(fd);
	for (int k = 0; k < 40; k++) {
		unsigned char *m = memory(MOST);
		OK(cuFileBufRegister(m, MOST, 0));
		WANT(cuFileRead(h, m, N, k, 0) == N && right(m, (uint64_t)k, N));
		forget(m, MOST);
		for (size_t n = 1; n <= MOST; n *= 32) {
			WANT(cuFileRead(h, m, n, 0, 0) == -CU_FILE_CUDA_POINTER_INVALID && cuFileWrite(h, m, n, 0, 0) == -CU_FILE_CUDA_POINTER_INVALID);
			WANT(cuFileRead(h, m, n, 0, MOST - (off_t)n) == -CU_FILE_CUDA_POINTER_INVALID);
		}
		OK(cuFileBufDeregister(m));
	}
	cuFileHandleDeregister(h);
}

int main(int argc, char **argv)
{
	struct stat st;
	WANT(argc == 4 && stat(argv[1], &st) == 0);
	size = (size_t)st.st_size;
	alarm(500);
	if ((on_gpu = strcmp(argv[3], "cuda") == 0))
		load(&context, 1);
	char directory[4096];
	for (int i = 1; i < 3; i++) {
		int fd = open(argv[i], O_RDWR);
		WANT(fd >= 0);
		numbers(fd);
		unmapped(fd);
		batches(fd);
		snprintf(directory, sizeof directory, "%s", argv[i]);
		*strrchr(directory, '/') = 0;
		cut(directory);
#ifndef __SANITIZE_ADDRESS__ /* a child of several threads waits for ever for the lock of AddressSanitizer's malloc */
		forked(argv[i], fd);
#endif
		turmoil(fd);
		closed(fd);
		if (i == 2 && !on_gpu && strcmp(getenv("LANEFS_CUFILE_SMALL"), "cache") == 0) /* of a file elsewhere: to register one of LaneFS takes a question to the daemon */
			closed_often(fd);
		close(fd);
	}
	OK(cuFileDriverClose());
	WANT(cuFileUseCount() == 0);
	puts("ok");
	return 0;
}
