/*
 * Run by a test beside this: testcapture FILE OTHER, files of the same bytes as test.c's, on a mount and not on LaneFS, with memory of a GPU of the stand-in for libcuda (lab/cuda). Streams
 * that are captured into a graph, calls beside a capture, contexts that the program has made, and one that is lost. Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "testcuda.h"

enum { N = 70000, SMALL = 16384, KNOWN = 0xf, THREADS = 6, GLOBAL = 0, RELAXED = 2 };

static void *context;
static int (*begin)(void *, int), (*end)(void *, uint64_t *), (*set)(void *, unsigned char, size_t, void *), (*make)(void **, unsigned, int), (*wait_value)(void *, uint64_t *, uint64_t, unsigned), (*exchange)(int *);
static void (*hold)(void *, uint64_t), (*lose)(void);

static void load_captures(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	const struct { void *at; const char *name; } more[] = {{&begin, "cuStreamBeginCapture_v2"}, {&end, "cuStreamEndCapture"}, {&set, "cuMemsetD8Async"}, {&make, "cuCtxCreate_v2"},
		{&wait_value, "cuStreamWaitValue64_v2"}, {&exchange, "cuThreadExchangeStreamCaptureMode"}, {&hold, "fake_cuda_hold"}, {&lose, "fake_cuda_lose"}};
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		WANT((*(void **)more[i].at = dlsym(lib, more[i].name)));
}

struct call { size_t n; off_t offset, at; ssize_t got; };

static CUfileError_t put(CUfileHandle_t h, int read, void *m, struct call *c, void *stream)
{
	c->got = -7;
	return read ? cuFileReadAsync(h, m, &c->n, &c->offset, &c->at, &c->got, (CUstream)stream) : cuFileWriteAsync(h, m, &c->n, &c->offset, &c->at, &c->got, (CUstream)stream);
}

/* Registered for what is known, or for nothing, or not at all: refused before anything is called on the stream, and the graph has the program's nodes only. */
static void captured(CUfileHandle_t h)
{
	static unsigned char ordinary[N], pinned[N];
	uint64_t nodes;
	void *s, *m;
	WANT(cuda.malloc(&m, N) == 0 && cuda.create(&s, NON_BLOCKING) == 0 && cuda.pin(pinned, N, 0) == 0);
	memset(m, 'x', N);
	unsigned char *where[] = {m, pinned, ordinary};
	for (int how = GLOBAL; how <= RELAXED; how++) {
		for (int registered = 0; registered < 3; registered++) {
			if (registered)
				OK(cuFileStreamRegister((CUstream)s, registered == 1 ? 0 : KNOWN));
			for (int i = 0; i < 3; i++) {
				struct call c = {.n = N};
				WANT(begin(s, how) == 0 && set(m, 1, 10, s) == 0);
				IS(CU_FILE_CUDA_DRIVER_ERROR, put(h, 1, where[i], &c, s));
				IS(CU_FILE_CUDA_DRIVER_ERROR, put(h, 0, where[i], &c, s));
				WANT(c.got == -7 && set(m, 2, 10, s) == 0 && end(s, &nodes) == 0 && nodes == 2);
				OK(put(h, 1, where[i], &c, s)); /* afterwards it is a stream as any */
				WANT(cuda.sync(s) == 0 && c.got == N && right(where[i], 0, N));
			}
			if (registered)
				OK(cuFileStreamDeregister((CUstream)s));
		}
	}
	WANT(cuda.unpin(pinned) == 0 && cuda.destroy(s) == 0 && cuda.free(m) == 0);
}

/* All in a thread beside one that captures, for the first time: what is pinned and made then. */
static struct beside { CUfileHandle_t h[2]; void *s, *context; unsigned char *m; size_t n; int thread; } beside;

static void *works(void *arg)
{
	const struct beside *b = arg;
	WANT(cuda.current(b->context) == 0);
	for (int i = 0; i < 2; i++) {
		for (size_t n = 4096; n <= b->n; n *= 4) { /* of one thread by a copy, of several by a kernel */
			memset(b->m, 'x', b->n);
			WANT(cuFileRead(b->h[i], b->m, n, 5, 0) == (ssize_t)n && right(b->m, 5, n));
			WANT(cuFileWrite(b->h[i], b->m, n, 5, 0) == (ssize_t)n);
		}
	}
	if (b->s) {
		static unsigned char ordinary[N];
		struct call c = {.n = b->n, .offset = 9};
		OK(put(b->h[0], 1, ordinary, &c, b->s)); /* which waits for the stream */
		WANT(c.got == (ssize_t)b->n && right(ordinary, 9, b->n));
		int mode = RELAXED;
		OK(put(b->h[0], 1, b->m, &c, b->s));
		WANT(exchange(&mode) == 0 && mode == GLOBAL && cuda.sync(b->s) == 0 && exchange(&mode) == 0); /* which the program may not do either */
		WANT(c.got == (ssize_t)b->n && right(b->m, 9, b->n));
	}
	return NULL;
}

static void others(void)
{
	uint64_t nodes;
	void *s, *m;
	pthread_t t;
	WANT(cuda.malloc(&m, 2 * N) == 0 && cuda.create(&s, NON_BLOCKING) == 0);
	beside.context = context;
	beside.m = m;
	beside.n = N;
	WANT(begin(s, GLOBAL) == 0 && set(m, 1, 10, s) == 0);
	WANT(pthread_create(&t, NULL, works, &beside) == 0 && pthread_join(t, NULL) == 0);
	works(&beside); /* and in the same thread */
	WANT(set(m, 1, 10, s) == 0 && end(s, &nodes) == 0 && nodes == 2 && cuda.destroy(s) == 0 && cuda.free(m) == 0);
}

/* Memory and streams of a context of the program's own. Small reads of several threads go by a kernel, which cannot address it. */
static uint64_t gate;

static void *opens(void *arg)
{
	usleep(20000);
	__atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
	return arg;
}

static void contexts(CUfileHandle_t h)
{
	void *own, *s, *m;
	pthread_t t[THREADS];
	struct beside b[THREADS];
	WANT(make(&own, 0, 0) == 0 && cuda.malloc(&m, N) == 0 && cuda.create(&s, NON_BLOCKING) == 0);
	OK(cuFileStreamRegister((CUstream)s, KNOWN));
	void *streams[] = {s, NULL, (void *)1, (void *)2};
	for (int i = 0; i < 4; i++) {
		struct call c = {.n = N, .offset = i};
		gate = 0;
		WANT(wait_value(streams[i], &gate, 1, 0) == 0 && set(m, 'y', N, streams[i]) == 0 && pthread_create(&t[0], NULL, opens, NULL) == 0);
		OK(put(h, 1, m, &c, streams[i])); /* after what is on the stream */
		WANT(pthread_join(t[0], NULL) == 0 && cuda.sync(streams[i]) == 0 && c.got == N && right(m, (uint64_t)i, N));
	}
	OK(cuFileStreamDeregister((CUstream)s));
	WANT(cuda.destroy(s) == 0);
	for (int i = 0; i < THREADS; i++) {
		b[i] = beside;
		b[i].context = own;
		b[i].s = NULL;
		b[i].n = SMALL;
		WANT(cuda.malloc((void **)&b[i].m, SMALL) == 0 && pthread_create(&t[i], NULL, works, &b[i]) == 0);
	}
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_join(t[i], NULL) == 0 && cuda.free(b[i].m) == 0);
	WANT(cuda.free(m) == 0 && cuda.current(context) == 0);
}

/* A context that is lost while calls are on its streams, which never get there: they end, registered streams as others, and memory of the CPU's is served. */
static void lost(CUfileHandle_t h)
{
	enum { STREAMS = 3, CALLS = 2 };
	static unsigned char ordinary[N];
	static struct call c[STREAMS][CALLS];
	void *s[STREAMS], *m;
	WANT(cuda.malloc(&m, N) == 0);
	for (int i = 0; i < STREAMS; i++) {
		WANT(cuda.create(&s[i], NON_BLOCKING) == 0);
		if (i)
			OK(cuFileStreamRegister((CUstream)s[i], i == 1 ? 0 : KNOWN));
		WANT(cuFileRead(h, m, N, 0, 0) == N && cuda.sync(s[i]) == 0);
		hold(s[i], 0);
		for (int k = 0; k < CALLS; k++) {
			c[i][k].n = N;
			OK(put(h, k == 0, m, &c[i][k], s[i]));
		}
	}
	lose();
	for (int i = 0; i < STREAMS; i++) {
		for (int k = 0; k < CALLS; k++) {
			while (__atomic_load_n(&c[i][k].got, __ATOMIC_ACQUIRE) == -7)
				usleep(1000);
			WANT(c[i][k].got == (i == STREAMS - 1 ? -CU_FILE_CUDA_DRIVER_ERROR : N)); /* on one that is not registered for all that is known they were done before the call returned */
		}
		struct call more = {.n = N};
		IS(CU_FILE_CUDA_DRIVER_ERROR, put(h, 1, m, &more, s[i]));
		if (i)
			OK(cuFileStreamDeregister((CUstream)s[i]));
	}
	for (size_t n = 1000; n <= N; n += N - 1000) {
		WANT(cuFileRead(h, m, n, 0, 0) == -CU_FILE_CUDA_DRIVER_ERROR);
		for (int i = 0; i < 20; i++)
			WANT(cuFileRead(h, ordinary, n, 5, 0) == (ssize_t)n && right(ordinary, 5, n));
	}
}

int main(int argc, char **argv)
{
	int fd[2];
	WANT(argc == 3 && (fd[0] = open(argv[1], O_RDWR)) >= 0 && (fd[1] = open(argv[2], O_RDWR)) >= 0);
	alarm(400);
	load(&context, 1);
	load_captures();
	WANT(cuda.current(context) == 0 && cuda.create(&beside.s, NON_BLOCKING) == 0);
	for (int i = 0; i < 2; i++)
		beside.h[i] = reg(fd[i]);
	others();
	captured(beside.h[0]);
	contexts(beside.h[0]);
	WANT(cuda.destroy(beside.s) == 0);
	lost(beside.h[0]);
	for (int i = 0; i < 2; i++)
		cuFileHandleDeregister(beside.h[i]);
	OK(cuFileDriverClose());
	puts("ok");
	return 0;
}
