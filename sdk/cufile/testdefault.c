/*
 * Run by a test beside this: testdefault FILE, a file of the same bytes as test.c's, with memory of two GPUs of the stand-in for libcuda (lab/cuda). The streams
 * that have no names of their own: the legacy stream, as NULL and as CU_STREAM_LEGACY, and each thread's, CU_STREAM_PER_THREAD. Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "testcuda.h"

enum { N = 9000, BLOCKING = 0, KNOWN = 0xf, AT_ONCE = 12, WRITTEN = 4 << 20 };
#define LEGACY ((void *)1)
#define OWN ((void *)2)

static void *context[2];
static CUfileHandle_t h;
static void (*hold)(void *, uint64_t);
static int (*event_new)(void **, unsigned), (*event_record)(void *, void *), (*event_wait)(void *, void *, unsigned), (*event_end)(void *),
	(*await)(void *, uint64_t *, uint64_t, unsigned);

static unsigned char *memory(int device, size_t n)
{
	void *p;
	WANT(cuda.current(context[device]) == 0 && cuda.malloc(&p, n) == 0);
	memset(p, 'x', n);
	return p;
}

static void *stream_new(unsigned flags)
{
	void *s;
	WANT(cuda.create(&s, flags) == 0);
	return s;
}

/* A call's values, which stay until it has ended. */
struct call { size_t n; off_t offset, at; ssize_t got; };

static void put(int read, void *m, struct call *c, void *stream)
{
	c->got = -7;
	OK(read ? cuFileReadAsync(h, m, &c->n, &c->offset, &c->at, &c->got, (CUstream)stream) : cuFileWriteAsync(h, m, &c->n, &c->offset, &c->at, &c->got, (CUstream)stream));
}

static int all(const unsigned char *p, int c, size_t n)
{
	while (n > 0 && p[n - 1] == c)
		n--;
	return n == 0;
}

/* ---- NULL: what is on the context's streams comes before, and all is there when the call returns, as cuFile's documentation says ---- */

static void null(int fd)
{
	unsigned char *m = memory(0, N), *from = memory(0, N), b[N];
	void *s = stream_new(BLOCKING);
	for (int registered = 0; registered < 2; registered++) {
		struct call c = {.n = N, .offset = WRITTEN};
		if (registered)
			OK(cuFileStreamRegister(NULL, KNOWN));
		void *const before[] = {s, LEGACY, OWN, NULL};
		for (int i = 0; i < 4; i++) {
			memset(m, 'x', N);
			memset(from, 'a' + 4 * registered + i, N);
			WANT(cuda.copy(m, from, N, before[i]) == 0);
			put(0, m, &c, NULL);
			WANT(c.got == N && pread(fd, b, N, WRITTEN) == N && all(b, 'a' + 4 * registered + i, N));
			struct call r = {.n = N, .offset = i};
			put(1, m, &r, NULL);
			WANT(r.got == N && right(m, (uint64_t)i, N));
		}
		if (registered)
			OK(cuFileStreamDeregister(NULL));
	}
	WANT(cuda.destroy(s) == 0 && cuda.free(m) == 0 && cuda.free(from) == 0);
}

/* ---- CU_STREAM_LEGACY ---- */

static void *on_legacy(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg;
	unsigned char *m = memory(0, 4 * N), *out = malloc(N);
	void *s = stream_new(BLOCKING);
	off_t mine = WRITTEN + (off_t)me * N;
	for (unsigned i = 0; i < 20; i++) {
		struct call r = {.n = N, .offset = (off_t)(me * 501 + i)}, w = {.n = N, .offset = mine, .at = N}, back = {.n = N, .offset = mine, .at = 2 * N};
		memset(m, 'x', 4 * N);
		memset(m + 3 * N, (int)(me + i), N);
		/* On the blocking stream, on the legacy one, and there again: each waits for the one before it. */
		WANT(cuda.copy(m + N, m + 3 * N, N, s) == 0);
		put(0, m, &w, LEGACY);
		put(1, m, &back, LEGACY);
		put(1, m, &r, LEGACY);
		WANT(cuda.copy(out, m + 2 * N, N, s) == 0 && cuda.sync(s) == 0 && all(out, (unsigned char)(me + i), N));
		WANT(cuda.sync(LEGACY) == 0 && w.got == N && back.got == N && r.got == N && right(m, (uint64_t)r.offset, N));
	}
	WANT(cuda.destroy(s) == 0 && cuda.free(m) == 0);
	free(out);
	return NULL;
}

static void legacy(void)
{
	pthread_t t[4];
	for (int registered = 0; registered < 2; registered++) {
		if (registered)
			OK(cuFileStreamRegister((CUstream)LEGACY, KNOWN));
		for (uintptr_t i = 0; i < 4; i++)
			WANT(pthread_create(&t[i], NULL, on_legacy, (void *)i) == 0);
		for (int i = 0; i < 4; i++)
			WANT(pthread_join(t[i], NULL) == 0);
	}
	/* It returns at once, and no non-blocking stream waits for it. Another device's is another stream. */
	unsigned char *m = memory(0, 2 * N), *other = memory(1, N);
	struct call c[AT_ONCE], d = {.n = N, .offset = 5};
	WANT(cuda.current(context[0]) == 0);
	void *s = stream_new(NON_BLOCKING);
	hold(LEGACY, 0);
	c[0] = (struct call){.n = N, .offset = 3};
	put(1, m, &c[0], LEGACY);
	WANT(c[0].got == -7 && all(m, 'x', N));
	WANT(cuda.copy(m + N, m, N, s) == 0 && cuda.sync(s) == 0 && cuFileRead(h, m + N, N, 9, 0) == N && right(m + N, 9, N));
	WANT(cuda.current(context[1]) == 0);
	put(1, other, &d, LEGACY);
	WANT(cuda.sync(LEGACY) == 0 && d.got == N && right(other, 5, N) && c[0].got == -7);
	WANT(cuda.current(context[0]) == 0);
	hold(LEGACY, UINT64_MAX);
	WANT(cuda.sync(LEGACY) == 0 && c[0].got == N && right(m, 3, N));
	OK(cuFileStreamDeregister((CUstream)LEGACY));
	WANT(cuda.destroy(s) == 0 && cuda.free(m) == 0 && cuda.current(context[1]) == 0 && cuda.free(other) == 0);
}

/* ---- CU_STREAM_PER_THREAD ---- */

enum { THREADS = 5 };
static pthread_barrier_t meet;

/* In order with the thread's other work on it, whether it is registered or not. */
static void *on_own(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg;
	unsigned char *m = memory(0, 4 * N), *out = malloc(N);
	off_t mine = WRITTEN + (off_t)me * N;
	for (int registered = 0; registered < 2; registered++) {
		pthread_barrier_wait(&meet);
		if (registered)
			OK(cuFileStreamRegister((CUstream)OWN, KNOWN));
		for (unsigned i = 0; i < 20; i++) {
			struct call w = {.n = N, .offset = mine, .at = N}, back = {.n = N, .offset = mine, .at = 2 * N};
			memset(m, 'x', 3 * N);
			memset(m + 3 * N, (int)(10 * me + i), N);
			WANT(cuda.copy(m + N, m + 3 * N, N, OWN) == 0);
			put(0, m, &w, OWN);
			put(1, m, &back, OWN);
			WANT(cuda.copy(out, m + 2 * N, N, OWN) == 0 && cuda.sync(OWN) == 0);
			WANT(w.got == N && back.got == N && all(out, (unsigned char)(10 * me + i), N));
		}
		if (registered) /* others go on */
			OK(cuFileStreamDeregister((CUstream)OWN));
	}
	WANT(cuda.free(m) == 0);
	free(out);
	return NULL;
}

struct holding { unsigned calls; unsigned char *m; uint64_t word; _Atomic int there; };

/* Has calls on its stream, which stands still. Where they are more than a stage has parts, the thread does, too. */
static void *holds(void *arg)
{
	struct holding *x = arg;
	struct call c[AT_ONCE];
	x->m = memory(0, AT_ONCE * N);
	WANT(await(OWN, &x->word, 1, 0) == 0);
	for (unsigned i = 0; i < x->calls; i++) {
		c[i] = (struct call){.n = N, .offset = i, .at = i * N};
		put(1, x->m, &c[i], OWN);
		if (i < 3)
			WANT(c[i].got == -7 && all(x->m + i * N, 'x', N));
		if (i == 2 || i + 1 == x->calls)
			x->there = 1;
	}
	WANT(cuda.sync(OWN) == 0);
	for (unsigned i = 0; i < x->calls; i++)
		WANT(c[i].got == N && right(x->m + i * N, i, N));
	WANT(cuda.free(x->m) == 0);
	return NULL;
}

/* One thread's stream waits for something, and the thread perhaps for room there: the others' do not wait for it. */
static void apart(void)
{
	unsigned char *m = memory(0, N);
	OK(cuFileStreamRegister((CUstream)OWN, KNOWN));
	for (unsigned calls = 1; calls <= AT_ONCE; calls += AT_ONCE - 1) {
		struct holding x = {.calls = calls};
		pthread_t t;
		WANT(pthread_create(&t, NULL, holds, &x) == 0);
		while (!x.there)
			usleep(1000);
		usleep(calls * 2000);
		for (int i = 0; i < 10; i++) {
			struct call c = {.n = N, .offset = 77 + i};
			memset(m, 'x', N);
			put(1, m, &c, OWN);
			WANT(cuda.sync(OWN) == 0 && c.got == N && right(m, 77 + (uint64_t)i, N));
		}
		WANT(all(x.m, 'x', calls * N));
		__atomic_store_n(&x.word, 1, __ATOMIC_RELEASE);
		WANT(pthread_join(t, NULL) == 0);
	}
	OK(cuFileStreamDeregister((CUstream)OWN));
	IS(CU_FILE_INVALID_VALUE, cuFileStreamDeregister((CUstream)OWN));
	WANT(cuda.free(m) == 0);
}

struct brief { struct call c; unsigned char *m; uint64_t word; void *event; };

/* Ends with its call on its stream. */
static void *ends(void *arg)
{
	struct brief *b = arg;
	WANT(cuda.current(context[0]) == 0 && await(OWN, &b->word, 1, 0) == 0);
	put(1, b->m, &b->c, OWN);
	WANT(b->c.got == -7); /* there is a stage for it, though many threads before have had one */
	WANT(event_record(b->event, OWN) == 0);
	return NULL;
}

/* Threads come and go. What they put on their streams is done, and what they had there is given back. */
static void brief(void)
{
	enum { MANY = 30 };
	unsigned char *m = memory(0, N), *out = memory(0, N);
	void *s = stream_new(NON_BLOCKING);
	OK(cuFileStreamRegister((CUstream)OWN, KNOWN));
	for (int i = 0; i < MANY; i++) {
		struct brief b = {.c = {.n = N, .offset = i}, .m = m};
		pthread_t t;
		memset(m, 'x', N);
		WANT(event_new(&b.event, 0) == 0 && pthread_create(&t, NULL, ends, &b) == 0 && pthread_join(t, NULL) == 0);
		WANT(b.c.got == -7);
		__atomic_store_n(&b.word, 1, __ATOMIC_RELEASE);
		WANT(event_wait(s, b.event, 0) == 0 && cuda.copy(out, m, N, s) == 0 && cuda.sync(s) == 0 && right(out, (uint64_t)i, N));
		while (__atomic_load_n(&b.c.got, __ATOMIC_ACQUIRE) == -7)
			usleep(100);
		WANT(b.c.got == N && event_end(b.event) == 0);
	}
	OK(cuFileStreamDeregister((CUstream)OWN));
	WANT(cuda.destroy(s) == 0 && cuda.free(m) == 0 && cuda.free(out) == 0);
}

int main(int argc, char **argv)
{
	WANT(argc == 2);
	alarm(400);
	load(context, 2);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	const struct { void *at; const char *name; } more[] = {{&hold, "fake_cuda_hold"}, {&event_new, "cuEventCreate"}, {&event_record, "cuEventRecord"},
		{&event_wait, "cuStreamWaitEvent"}, {&event_end, "cuEventDestroy_v2"}, {&await, "cuStreamWaitValue64_v2"}};
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		WANT((*(void **)more[i].at = dlsym(lib, more[i].name)));
	int fd = open(argv[1], O_RDWR);
	WANT(fd >= 0);
	h = reg(fd);
	null(fd);
	legacy();
	pthread_t t[THREADS];
	pthread_barrier_init(&meet, NULL, THREADS);
	for (uintptr_t i = 0; i < THREADS; i++)
		WANT(pthread_create(&t[i], NULL, on_own, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_join(t[i], NULL) == 0);
	apart();
	brief();
	OK(cuFileDriverClose());
	puts("ok");
	return 0;
}
