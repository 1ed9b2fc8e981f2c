/*
 * Run by a test beside this: teststream FILE OTHER, files of the same bytes as test.c's on two mounts, with memory of a GPU of the stand-in for libcuda
 * (lab/cuda). Streams of the program's: of more than one mount's files, more of them than a session has rings, deregistered while they are in use, as are handles.
 * Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testcuda.h"
#include "testfds.h"

enum { N = 9000, KNOWN = 0xf };

static void *context;
static void (*hold)(void *, uint64_t), (*on)(const char *, void (*)(void));

static unsigned char *memory(size_t n)
{
	void *p;
	WANT(cuda.current(context) == 0 && cuda.malloc(&p, n) == 0);
	return p;
}

/* A call's values, which stay until it has ended. */
struct call { size_t n; off_t offset, at; ssize_t got; };

static CUfileError_t put(CUfileHandle_t h, int read, void *m, struct call *c, void *stream)
{
	c->got = -7;
	return read ? cuFileReadAsync(h, m, &c->n, &c->offset, &c->at, &c->got, (CUstream)stream) : cuFileWriteAsync(h, m, &c->n, &c->offset, &c->at, &c->got, (CUstream)stream);
}

static void *stream_new(unsigned flags)
{
	void *s;
	WANT(cuda.create(&s, NON_BLOCKING) == 0);
	OK(cuFileStreamRegister((CUstream)s, flags));
	return s;
}

static void stream_end(void *s)
{
	OK(cuFileStreamDeregister((CUstream)s));
	WANT(cuda.destroy(s) == 0);
}

/* Files of two mounts by turns on one stream: no call waits for those before it, and they are done in their order. */
static void two_mounts(const int *fd)
{
	enum { K = 4 };
	CUfileHandle_t h[2] = {reg(fd[0]), reg(fd[1])};
	unsigned char *m = memory(K * N), b[N];
	void *s = stream_new(KNOWN);
	for (int round = 0; round < 3; round++) {
		struct call c[3 * K];
		memset(m, 'x', K * N);
		hold(s, 0);
		/* From one to the memory, from there to the other, and back with what was written. */
		for (int i = 0; i < K; i++) {
			c[3 * i] = (struct call){.n = N, .offset = i * 20011 + round, .at = i * N};
			c[3 * i + 1] = (struct call){.n = N, .offset = i * N, .at = i * N};
			c[3 * i + 2] = (struct call){.n = N, .offset = i * N, .at = (K - 1 - i) * N};
			OK(put(h[i % 2], 1, m, &c[3 * i], s));
			if (i == 0) {
				OK(put(h[1], 0, m, &c[1], s));
				OK(put(h[1], 1, m, &c[2], s));
			}
		}
		for (int i = 0; i < K * N; i++)
			WANT(m[i] == 'x');
		hold(s, UINT64_MAX);
		WANT(cuda.sync(s) == 0);
		for (int i = 0; i < K; i++)
			WANT(c[3 * i].got == N && (i == 0 || i == K - 1 || right(m + i * N, (uint64_t)c[3 * i].offset, N)));
		WANT(c[1].got == N && c[2].got == N && pread(fd[1], b, N, 0) == N && right(b, (uint64_t)round, N));
		for (int i = 0; i < N; i++)
			b[i] = (unsigned char)(i % 251);
		WANT(pwrite(fd[1], b, N, 0) == N);
	}
	stream_end(s);
	WANT(cuda.free(m) == 0);
	cuFileHandleDeregister(h[0]);
	cuFileHandleDeregister(h[1]);
}

/* More streams than the daemon gives rings to a session, and calls without a stream beside them. */
static void many_streams(int fd)
{
	enum { STREAMS = 20 };
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(STREAMS * N), *plain = malloc(N);
	void *s[STREAMS];
	struct call c[STREAMS];
	for (int i = 0; i < STREAMS; i++)
		s[i] = stream_new(KNOWN);
	for (int round = 0; round < 3; round++) {
		memset(m, 'x', STREAMS * N);
		for (int i = 0; i < STREAMS; i++) {
			c[i] = (struct call){.n = N, .offset = i * 5003 + round, .at = i * N};
			OK(put(h, 1, m, &c[i], s[i]));
		}
		WANT(cuFileRead(h, plain, N, 77, 0) == N && right(plain, 77, N));
		for (int i = 0; i < STREAMS; i++)
			WANT(cuda.sync(s[i]) == 0 && c[i].got == N && right(m + i * N, (uint64_t)c[i].offset, N));
	}
	for (int i = 0; i < STREAMS; i++)
		stream_end(s[i]);
	free(plain);
	WANT(cuda.free(m) == 0);
	cuFileHandleDeregister(h);
}

/* ---- A stream after as many calls at once as a session has rings ---- */

enum { AT_ONCE = 8 };
static _Atomic int waiting;

/* Until all are here. */
static void meet(void)
{
	int last = ++waiting == AT_ONCE;
	if (!last)
		on("cuStreamSynchronize", meet);
	while (waiting < AT_ONCE)
		usleep(100);
}

static void *reads(void *h)
{
	unsigned char *m = memory(1 << 20);
	do /* again, if the thread that has met last had not said yet that another may */
		WANT(cuFileRead(h, m, 1 << 20, 5, 0) == 1 << 20 && right(m, 5, 1 << 20));
	while (waiting < AT_ONCE);
	WANT(cuda.free(m) == 0);
	return NULL;
}

static void after_lanes(int fd)
{
	CUfileHandle_t h = reg(fd);
	pthread_t t[AT_ONCE];
	unsigned char *m = memory(N);
	void *s = stream_new(KNOWN);
	struct call c = {.n = N, .offset = 7};
	on("cuStreamSynchronize", meet);
	for (int i = 0; i < AT_ONCE; i++)
		WANT(pthread_create(&t[i], NULL, reads, h) == 0);
	for (int i = 0; i < AT_ONCE; i++)
		WANT(pthread_join(t[i], NULL) == 0);
	WANT(waiting == AT_ONCE);
	hold(s, 0);
	OK(put(h, 1, m, &c, s)); /* returns */
	hold(s, UINT64_MAX);
	WANT(cuda.sync(s) == 0 && c.got == N && right(m, 7, N));
	stream_end(s);
	WANT(cuda.free(m) == 0);
	cuFileHandleDeregister(h);
}

/* ---- Deregistered while it is in use ---- */

static void *used;
static _Atomic int called, deregistered;
static pthread_t other;

static void *deregisters(void *arg)
{
	(void)arg;
	OK(cuFileStreamDeregister((CUstream)used));
	deregistered = 1;
	return NULL;
}

static void in_call(void)
{
	called = 1;
	WANT(pthread_create(&other, NULL, deregisters, NULL) == 0);
	for (int i = 0; i < 300 && !deregistered; i++)
		usleep(1000);
}

/* At each place where the call asks the driver for something. */
static void in_use(int fd)
{
	static const char *const places[] = {"cuStreamWaitValue64_v2", "cuLaunchHostFunc", "cuEventRecord", "cuMemcpy2DAsync_v2"};
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(N);
	for (size_t i = 0; i < sizeof places / sizeof *places; i++)
		for (int fresh = 0; fresh < 2; fresh++) {
			struct call c = {.n = N, .offset = (off_t)i};
			used = stream_new(KNOWN);
			if (!fresh) { /* with the stage that the stream has had before */
				OK(put(h, 1, m, &c, used));
				WANT(cuda.sync(used) == 0);
			}
			memset(m, 'x', N);
			called = deregistered = 0;
			on(places[i], in_call);
			OK(put(h, 1, m, &c, used));
			on("", in_call);
			WANT(called);
			WANT(pthread_join(other, NULL) == 0 && cuda.sync(used) == 0 && c.got == N && right(m, i, N));
			IS(CU_FILE_INVALID_VALUE, cuFileStreamDeregister((CUstream)used));
			WANT(cuda.destroy(used) == 0);
		}
	WANT(cuda.free(m) == 0);
	cuFileHandleDeregister(h);
}

/* ---- A handle that is deregistered while its calls are on streams ---- */

/* What was put on a stream is done, as what was submitted in a batch is; then all that the handle held is given back. */
static void closed_on_streams(const int *fd)
{
	unsigned char *m = memory(4 * N), b[N];
	void *s[2] = {stream_new(KNOWN), stream_new(KNOWN)};
	struct call c[4];
	for (int warm = 0; warm < 2; warm++) { /* what streams keep is open the second time */
		for (int last = 0; last < 2; last++) { /* of which stream is done last */
			CUfileHandle_t h = reg(fd[0]);
			memset(m, 'x', 4 * N);
			for (int i = 0; i < 2; i++)
				hold(s[i], 0);
			c[0] = (struct call){.n = N, .offset = 4099 + last};
			c[1] = (struct call){.n = N, .offset = 12345, .at = N};
			c[2] = (struct call){.n = N, .offset = 0, .at = 0}; /* writes what the first has read */
			c[3] = (struct call){.n = N, .offset = 33333, .at = 3 * N};
			OK(put(h, 1, m, &c[0], s[0]));
			OK(put(h, 1, m, &c[1], s[1]));
			OK(put(h, 0, m, &c[2], s[0]));
			OK(put(h, 1, m, &c[3], s[0]));
			unsigned before = descriptors();
			cuFileHandleDeregister(h);
			CUfileHandle_t other = reg(fd[1]); /* which is not to be read instead */
			IS(CU_FILE_HANDLE_NOT_REGISTERED, put(h, 1, m, &(struct call){.n = N}, s[0]));
			for (int i = 0; i < 2; i++) {
				void *now = s[(i + last) % 2];
				hold(now, UINT64_MAX);
				WANT(cuda.sync(now) == 0);
			}
			for (int i = 0; i < 4; i++)
				WANT(c[i].got == N);
			WANT(right(m, 4099 + (uint64_t)last, N) && right(m + N, 12345, N) && right(m + 3 * N, 33333, N));
			WANT(pread(fd[0], b, N, 0) == N && right(b, 4099 + (uint64_t)last, N));
			for (int i = 0; i < N; i++)
				b[i] = (unsigned char)(i % 251);
			WANT(pwrite(fd[0], b, N, 0) == N);
			cuFileHandleDeregister(other);
			if (warm) {
				for (int i = 0; i < 2; i++) { /* waits for the stage's thread, which gave the handle up */
					OK(cuFileStreamDeregister((CUstream)s[i]));
					OK(cuFileStreamRegister((CUstream)s[i], KNOWN));
				}
				WANT(descriptors() < before);
			}
		}
	}
	for (int i = 0; i < 2; i++)
		stream_end(s[i]);
	WANT(cuda.free(m) == 0);
}

int main(int argc, char **argv)
{
	int fd[2];
	WANT(argc == 3);
	alarm(400);
	load(&context, 1);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&hold = dlsym(lib, "fake_cuda_hold");
	*(void **)&on = dlsym(lib, "fake_cuda_on");
	for (int i = 0; i < 2; i++)
		WANT((fd[i] = open(argv[1 + i], O_RDWR)) >= 0);
	after_lanes(fd[0]);
	many_streams(fd[0]);
	two_mounts(fd);
	in_use(fd[0]);
	closed_on_streams(fd);
	OK(cuFileDriverClose());
	puts("ok");
	return 0;
}
