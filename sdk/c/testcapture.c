/*
 * Run by a Go test beside this: testcapture FILE, a file of a mount with device memory, whose byte i is i % 251, with memory of a GPU of the stand-in for libcuda (lab/cuda). Streams that are
 * captured into a graph, calls while another thread's stream is, contexts of the program's own, and one that is lost. Prints "ok".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)
#define FAILS(code, call) do { errno = 0; int64_t n_ = (call); if (n_ != -1 || errno != (code)) { fprintf(stderr, "%s:%d: %s: %lld, errno %d (%s)\n", __FILE__, __LINE__, #call, (long long)n_, errno, lanefs_error()); exit(1); } } while (0)

enum { STAGE = 1 << 20, BIG = 2 * STAGE, PIECES = 40, NON_BLOCKING = 1 };
enum { GLOBAL, THREAD_LOCAL, RELAXED };
#define PER_THREAD ((void *)2)

static int (*current)(void *), (*get_current)(void **), (*mem_alloc)(void **, size_t), (*mem_free)(void *), (*create)(void **, unsigned), (*destroy)(void *), (*sync_stream)(void *),
	(*begin)(void *, int), (*end)(void *, uint64_t *), (*set)(void *, unsigned char, size_t, void *), (*make)(void **, unsigned, int), (*exchange)(int *), (*wait_value)(void *, uint64_t *, uint64_t, unsigned),
	(*sync_context)(void);
static void (*fail)(const char *, int), (*keep)(int), (*hold)(void *, uint64_t), (*lose)(void);
static void *context;

static void load(void)
{
	int (*init)(unsigned), (*retain)(void **, int);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	WANT(lib);
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&current = dlsym(lib, "cuCtxSetCurrent");
	*(void **)&get_current = dlsym(lib, "cuCtxGetCurrent");
	*(void **)&mem_alloc = dlsym(lib, "cuMemAlloc_v2");
	*(void **)&mem_free = dlsym(lib, "cuMemFree_v2");
	*(void **)&create = dlsym(lib, "cuStreamCreate");
	*(void **)&destroy = dlsym(lib, "cuStreamDestroy_v2");
	*(void **)&sync_stream = dlsym(lib, "cuStreamSynchronize");
	*(void **)&begin = dlsym(lib, "cuStreamBeginCapture_v2");
	*(void **)&end = dlsym(lib, "cuStreamEndCapture");
	*(void **)&set = dlsym(lib, "cuMemsetD8Async");
	*(void **)&make = dlsym(lib, "cuCtxCreate_v2");
	*(void **)&exchange = dlsym(lib, "cuThreadExchangeStreamCaptureMode");
	*(void **)&wait_value = dlsym(lib, "cuStreamWaitValue64_v2");
	*(void **)&sync_context = dlsym(lib, "cuCtxSynchronize");
	*(void **)&fail = dlsym(lib, "fake_cuda_fail");
	*(void **)&keep = dlsym(lib, "fake_cuda_keep");
	*(void **)&hold = dlsym(lib, "fake_cuda_hold");
	*(void **)&lose = dlsym(lib, "fake_cuda_lose");
	WANT(init(0) == 0 && retain(&context, 0) == 0 && current(context) == 0);
}

static char *memory(size_t n)
{
	void *p;
	WANT(mem_alloc(&p, n) == 0);
	memset(p, 'x', n); /* the stand-in's device memory is the CPU's, too */
	return p;
}

static int right(const char *p, uint64_t off, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if ((unsigned char)p[i] != (off + i) % 251)
			return 0;
	return 1;
}

static int all(const char *p, char c, size_t n)
{
	while (n > 0 && p[n - 1] == c)
		n--;
	return n == 0;
}

static int mode(void)
{
	int m = GLOBAL;
	WANT(exchange(&m) == 0);
	int was = m;
	WANT(exchange(&m) == 0);
	return was;
}

/* The graph that a capture made has what the program put there, and nothing else. */
static void captured(lanefs_stage *st, uint32_t f)
{
	struct lanefs_piece p[PIECES];
	int64_t done = 'x', got[PIECES];
	uint64_t nodes;
	void *s;
	char *m = memory(BIG);
	for (int i = 0; i < PIECES; i++)
		p[i] = (struct lanefs_piece){(uint64_t)i * 2000, (uint64_t)i * 3000, 1000};
	for (int how = GLOBAL; how <= RELAXED; how++) {
		WANT(create(&s, NON_BLOCKING) == 0);
		lanefs_mark *before = lanefs_mark_new(st, m, s);
		WANT(before && begin(s, how) == 0 && set(m, 1, 10, s) == 0);
		for (size_t n = 1; n <= PIECES; n += PIECES - 1) { /* by a copy, by a kernel */
			FAILS(EINVAL, lanefs_read_batch(st, f, m, p, n, s, NULL));
			WANT(strstr(lanefs_error(), "captured into a graph"));
			FAILS(EINVAL, lanefs_write_batch(st, f, m, p, n, s, NULL));
			FAILS(EINVAL, lanefs_read_async(st, f, m, p, n, s, got, &done));
			FAILS(EINVAL, lanefs_write_async(st, f, m, p, n, s, got, &done));
		}
		WANT(!lanefs_mark_new(st, m, s) && errno == EINVAL);
		FAILS(EINVAL, lanefs_mark_set(before));
		WANT(set(m, 2, 10, s) == 0 && end(s, &nodes) == 0 && nodes == 2 && done == 'x' && all(m, 'x', BIG));
		WANT(lanefs_mark_set(before) == 0 && lanefs_mark_reached(before, 1) == 1);
		lanefs_mark_free(before);
		WANT(lanefs_read_batch(st, f, m, p, 1, s, NULL) == 1000 && sync_stream(s) == 0 && right(m, 0, 1000)); /* afterwards it is a stream as any */
		memset(m, 'x', BIG);
		WANT(destroy(s) == 0);
	}
	/* The default stream, while one is captured that it waits for; another thread's, and that of each thread. */
	WANT(create(&s, 0) == 0 && begin(s, THREAD_LOCAL) == 0);
	FAILS(EINVAL, lanefs_read_into(st, f, m, 0, 1000, NULL));
	WANT(strstr(lanefs_error(), "default stream waits"));
	FAILS(EINVAL, lanefs_read_async(st, f, m, p, 1, (void *)1, NULL, &done));
	WANT(end(s, &nodes) == 0 && nodes == 0 && destroy(s) == 0 && begin(PER_THREAD, GLOBAL) == 0);
	FAILS(EINVAL, lanefs_read_into(st, f, m, 0, 1000, PER_THREAD));
	WANT(end(PER_THREAD, &nodes) == 0 && nodes == 0 && all(m, 'x', BIG));
	WANT(lanefs_read_into(st, f, m, 7, 1000, NULL) == 1000 && sync_stream(NULL) == 0 && right(m, 7, 1000) && mem_free(m) == 0);
}

/* All that a program does with files, in a thread beside one that captures, or in the same. New stages are registered, kernels loaded, streams waited for. */
static struct beside { int fd; uint64_t size; char *m; void *stream; } beside;

static void *works(void *arg)
{
	struct lanefs_piece p[PIECES];
	int64_t done[2];
	uint32_t f;
	const struct beside *b = arg;
	int before = mode();
	void *was, *now;
	WANT(get_current(&was) == 0);
	lanefs *s = lanefs_connect(b->fd);
	lanefs_stage *st = s ? lanefs_stage_new(s, STAGE) : NULL;
	WANT(st && lanefs_open(s, b->fd, &f) == 0);
	for (int i = 0; i < PIECES; i++)
		p[i] = (struct lanefs_piece){(uint64_t)i * 2000, (uint64_t)i * 3000, 1000};
	WANT(lanefs_read_batch(st, f, b->m, p, PIECES, b->stream, NULL) == PIECES * 1000);
	lanefs_mark *mark = lanefs_mark_new(st, b->m, b->stream);
	WANT(mark && lanefs_mark_reached(mark, 1) == 1);
	lanefs_mark_free(mark);
	for (int i = 0; i < PIECES; i++)
		WANT(right(b->m + i * 3000, (uint64_t)i * 2000, 1000));
	WANT(lanefs_read_into(st, f, b->m, 3, BIG - 3, b->stream) == BIG - 3);
	WANT(lanefs_read_async(st, f, b->m, p, PIECES, b->stream, NULL, &done[0]) == 0 && lanefs_write_async(st, f, b->m, p, PIECES, b->stream, NULL, &done[1]) == 0);
	mark = lanefs_mark_new(st, b->m, b->stream);
	WANT(mark && lanefs_mark_reached(mark, 1) == 1 && done[0] == PIECES * 1000 && done[1] == PIECES * 1000);
	lanefs_mark_free(mark);
	lanefs_stage_free(st);
	lanefs_close(s);
	WANT(mode() == before && get_current(&now) == 0 && now == was);
	return NULL;
}

static void others(int fd)
{
	uint64_t nodes;
	void *s;
	pthread_t t;
	beside = (struct beside){.fd = fd, .m = memory(BIG)};
	WANT(create(&s, NON_BLOCKING) == 0 && create(&beside.stream, NON_BLOCKING) == 0);
	for (int own = 0; own < 2; own++) {
		for (int how = GLOBAL; how <= RELAXED; how++) {
			WANT(begin(s, how) == 0 && set(beside.m, 1, 10, s) == 0);
			if (own)
				works(&beside);
			else
				WANT(pthread_create(&t, NULL, works, &beside) == 0 && pthread_join(t, NULL) == 0);
			WANT(set(beside.m, 1, 10, s) == 0 && end(s, &nodes) == 0 && nodes == 2);
		}
	}
	/* That the stand-in ends captures. */
	WANT(begin(s, GLOBAL) == 0 && sync_stream(beside.stream) != 0 && end(s, &nodes) != 0);
	WANT(destroy(s) == 0 && destroy(beside.stream) == 0 && mem_free(beside.m) == 0);
}

/* A context of the program's own: its memory, its streams, its default stream, also while they have not got so far. */
static void *opens(void *arg)
{
	usleep(20000);
	__atomic_store_n((uint64_t *)arg, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void contexts(lanefs_stage *st, uint32_t f)
{
	struct lanefs_piece p[PIECES];
	struct lanefs_ways before, after;
	int64_t done;
	void *own, *named, *now;
	pthread_t t;
	char *primary = memory(BIG);
	for (int i = 0; i < PIECES; i++)
		p[i] = (struct lanefs_piece){(uint64_t)i * 2000, (uint64_t)i * 3000, 1000 - (uint64_t)i};
	WANT(make(&own, 0, 0) == 0 && create(&named, NON_BLOCKING) == 0);
	char *m = memory(BIG);
	void *streams[] = {NULL, (void *)1, PER_THREAD, named};
	for (int i = 0; i < 4; i++) {
		for (size_t n = 2; n <= PIECES; n += PIECES - 2) {
			for (int async = 0; async < 2; async++) {
				uint64_t gate = 0, want = 0;
				for (size_t k = 0; k < n; k++)
					want += p[k].length;
				/* What is on the stream comes before, and it is late. */
				WANT(wait_value(streams[i], &gate, 1, 0) == 0 && set(m, 'y', BIG, streams[i]) == 0 && pthread_create(&t, NULL, opens, &gate) == 0);
				lanefs_stage_ways(st, &before);
				if (async)
					WANT(lanefs_read_async(st, f, m, p, n, streams[i], NULL, &done) == 0 && done == (int64_t)want);
				else
					WANT(lanefs_read_batch(st, f, m, p, n, streams[i], NULL) == (int64_t)want);
				lanefs_stage_ways(st, &after);
				WANT(after.kernel == before.kernel); /* which cannot address the memory */
				for (size_t k = 0; k < n; k++) /* and what follows on it finds the bytes, whoever waits for it */
					WANT(right(m + p[k].memory_offset, p[k].file_offset, p[k].length) && m[p[k].memory_offset + p[k].length] == 'y');
				WANT(pthread_join(t, NULL) == 0);
				if (async)
					WANT(lanefs_write_async(st, f, m, p, n, streams[i], NULL, &done) == 0 && done == (int64_t)want);
				else
					WANT(lanefs_write_batch(st, f, m, p, n, streams[i], NULL) == (int64_t)want);
			}
		}
		lanefs_mark *mark = lanefs_mark_new(st, m, streams[i]);
		WANT(mark && current(context) == 0 && lanefs_mark_reached(mark, 1) == 1 && current(own) == 0 && lanefs_mark_set(mark) == 0 && lanefs_mark_reached(mark, 0) == 1);
		lanefs_mark_free(mark);
		WANT(get_current(&now) == 0 && now == own);
	}
	/* One of its streams by a thread whose context is the primary one, and memory of that by a thread in it. */
	WANT(current(context) == 0 && lanefs_read_into(st, f, m, 5, 1000, named) == 1000 && right(m, 5, 1000));
	WANT(current(own) == 0 && lanefs_read_batch(st, f, primary, p, PIECES, named, NULL) > 0);
	for (int i = 0; i < PIECES; i++)
		WANT(right(primary + p[i].memory_offset, p[i].file_offset, p[i].length));
	/* Its captures. */
	uint64_t nodes;
	WANT(begin(named, GLOBAL) == 0);
	FAILS(EINVAL, lanefs_read_into(st, f, m, 5, 1000, named));
	WANT(end(named, &nodes) == 0 && nodes == 0);
	WANT(sync_context() == 0 && destroy(named) == 0 && mem_free(m) == 0 && current(context) == 0 && mem_free(primary) == 0);
}

/* A context that is lost: the error has CUDA's name and says what helps. */
static void lost(lanefs_stage *st, uint32_t f)
{
	char *m = memory(BIG), plain[1000];
	void *s;
	const char *copies = getenv("LANEFS_COPIES");
	WANT(create(&s, NON_BLOCKING) == 0);
	fail(strcmp(copies, "batch") == 0 ? "cuMemcpyBatchAsync_v2" : "cuMemcpyAsync", 700);
	FAILS(EIO, lanefs_read_into(st, f, m, 0, 100000, s));
	WANT(strstr(lanefs_error(), ": error 700, CUDA_ERROR_ILLEGAL_ADDRESS: the GPU's context is lost") && strstr(lanefs_error(), "new process"));
	WANT(lanefs_read_into(st, f, plain, 11, sizeof plain, NULL) == sizeof plain && right(plain, 11, sizeof plain));
	fail(strcmp(copies, "batch") == 0 ? "cuMemcpyBatchAsync_v2" : "cuMemcpyAsync", 1);
	FAILS(EIO, lanefs_read_into(st, f, m, 0, 100000, s));
	WANT(strstr(lanefs_error(), ": error 1, ") && !strstr(lanefs_error(), "lost"));
	/* One that does not say any more whose the memory is. */
	fail("cuPointerGetAttributes", 719);
	FAILS(EIO, lanefs_read_into(st, f, m, 0, 1000, s));
	WANT(strstr(lanefs_error(), "lost"));
	fail("cuPointerGetAttributes", 719);
	WANT(lanefs_read_into(st, f, plain, 12, sizeof plain, NULL) == sizeof plain && right(plain, 12, sizeof plain));
	WANT(sync_stream(s) == 0 && destroy(s) == 0);
	keep(1); /* as a GPU's memory, which the CPU does not reach */
	WANT(mem_free(m) == 0);
	keep(0);
	fail("cuPointerGetAttributes", 719);
	FAILS(EIO, lanefs_read_into(st, f, m, 0, 1000, NULL));
	WANT(strstr(lanefs_error(), "lost"));
	FAILS(EFAULT, lanefs_read_into(st, f, m, 0, 1000, NULL));
}

/* A context that is lost while batches are on its streams, which will never be reached: they end, as does what waits for room, and the CPU's memory is served. The GPU's is not from then on. */
static void lost_before(lanefs_stage *st, uint32_t f)
{
	enum { BATCHES = 3 };
	char *m = memory(BIG), plain[1000];
	int64_t done[2 * BATCHES], got[2 * BATCHES];
	void *s;
	WANT(create(&s, NON_BLOCKING) == 0);
	for (int i = 0; i < 9; i++) /* no part is without an event of this context */
		WANT(lanefs_read_into(st, f, m, (uint64_t)i * 10, 100000, s) == 100000);
	WANT(sync_stream(s) == 0);
	hold(s, 0);
	for (int i = 0; i < 2 * BATCHES; i++) {
		const struct lanefs_piece p = {(uint64_t)i, 0, 50000};
		done[i] = 'x';
		WANT((i % 2 ? lanefs_write_async(st, f, m, &p, 1, s, &got[i], &done[i]) : lanefs_read_async(st, f, m, &p, 1, s, &got[i], &done[i])) == 0);
	}
	usleep(300000); /* the stage's thread has looked, and waits on */
	for (int i = 0; i < 2 * BATCHES; i++)
		WANT(__atomic_load_n(&done[i], __ATOMIC_ACQUIRE) == 'x');
	lose();
	for (int i = 0; i < 2 * BATCHES; i++) {
		while (__atomic_load_n(&done[i], __ATOMIC_ACQUIRE) == 'x')
			usleep(1000);
		WANT(done[i] == -EIO);
	}
	for (uint64_t i = 0; i < 20; i++) /* by every part */
		WANT(lanefs_read_into(st, f, plain, i, sizeof plain, NULL) == sizeof plain && right(plain, i, sizeof plain));
	WANT(lanefs_write_from(st, f, plain, 19, sizeof plain, NULL) == sizeof plain);
	FAILS(EIO, lanefs_read_into(st, f, m, 0, 1000, s));
	WANT(strstr(lanefs_error(), "lost"));
	FAILS(EIO, lanefs_read_async(st, f, m, &(struct lanefs_piece){0, 0, 1000}, 1, s, got, done));
	WANT(strstr(lanefs_error(), "lost"));
}

int main(int argc, char **argv)
{
	uint32_t f;
	int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
	WANT(fd >= 0);
	alarm(400);
	load();
	others(fd); /* first: nothing is registered or loaded yet */
	lanefs *s = lanefs_connect(fd);
	lanefs_stage *stage = s ? lanefs_stage_new(s, STAGE) : NULL;
	WANT(stage && lanefs_open(s, fd, &f) == 0);
	captured(stage, f);
	contexts(stage, f);
	lost(stage, f);
	lost_before(stage, f);
	lanefs_stage_free(stage);
	lanefs_close(s);
	puts("ok");
	return 0;
}
