/*
 * Run by a test of cmd/lanefs: testmap FILE LARGE DAEMON [later|cached], with memory of a GPU of the stand-in for libcuda (lab/cuda), too. FILE has the bytes of test.c's, on a mount
 * with a pool of 48 MiB. LARGE's byte i is i % 251, too; it is 65 MiB long, on a mount with a pool of four times that and more. DAEMON is the process of
 * FILE's mount. What is read from memory that is shared with the daemon, one at a time and together: files that change and that are closed while they are read, the end
 * of the room, and of the daemon. later: windows are mapped while reads go on. cached: by reads that go by the page cache. Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testcuda.h"

enum { N = 17000, SMALL = 3000, USUAL = 40 /* reads that pay for a window */, WINDOW = 64 << 20, MOST = 5 << 20 };

/* The counts of the library: count.c. The program makes the file, and starts itself anew. */
static volatile uint64_t *counts;

static void count_roads(char **argv, const char *mode)
{
	const char *path = getenv("TESTMAP_ROADS");
	if (!path) {
		char name[] = "/tmp/lanefs-testmap-XXXXXX";
		int fd = mkstemp(name);
		WANT(fd >= 0 && write(fd, "LFSROAD4", 8) == 8 && ftruncate(fd, 136) == 0);
		setenv("TESTMAP_ROADS", name, 1);
		setenv("LANEFS_ROADS", name, 1);
		if (strcmp(mode, "later") != 0)
			setenv("LANEFS_CUFILE_MAP", "wait", 1);
		if (strcmp(mode, "cached") == 0)
			unsetenv("LANEFS_CUFILE_SMALL");
		execv("/proc/self/exe", argv);
		WANT(!"exec");
	}
	int fd = open(path, O_RDWR);
	WANT(fd >= 0 && unlink(path) == 0 && (counts = mmap(NULL, 136, PROT_READ, MAP_SHARED, fd, 0)) != MAP_FAILED);
	close(fd);
}

static uint64_t shared(void) { return counts[4]; } /* bytes that were read */

/* Reads until it is from shared memory, most times at the most. Returns how often that was, or 0. */
static unsigned until_shared(CUfileHandle_t h, unsigned char *m, size_t n, off_t at, unsigned most)
{
	uint64_t before = shared();
	for (unsigned i = 1; i <= most; i++) {
		memset(m, 'x', n);
		WANT(cuFileRead(h, m, n, at, 0) == (ssize_t)n && right(m, (uint64_t)at, n));
		if (shared() != before)
			return i;
	}
	return 0;
}

static unsigned mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[1000];
	unsigned n = 0;
	WANT(f);
	while (fgets(line, sizeof line, f))
		n += strstr(line, "memfd:") != NULL || strstr(line, "lanefs") != NULL;
	fclose(f);
	return n;
}

/* What a file had is given back with it: the next one has as much room. */
static void again_and_again(int fd)
{
	static unsigned char m[N];
	unsigned before = 0;
	for (int i = 0; i < 12; i++) {
		CUfileHandle_t h = reg(fd);
		WANT(until_shared(h, m, N, 4001, USUAL));
		cuFileHandleDeregister(h);
		WANT(!before || mappings() == before);
		before = mappings();
	}
}

/* A quarter of the pool: two files of 5 MiB, not three. */
static void room(const char *path, int fd)
{
	static unsigned char m[N];
	CUfileHandle_t h[3];
	int f[3];
	void *all = mmap(NULL, 5 << 20, PROT_READ, MAP_PRIVATE, fd, 0);
	WANT(all != MAP_FAILED);
	for (int i = 0; i < 3; i++) {
		char name[5000];
		snprintf(name, sizeof name, "%s-%d", path, i);
		WANT((f[i] = open(name, O_RDWR | O_CREAT | O_EXCL, 0600)) >= 0 && write(f[i], all, 5 << 20) == 5 << 20 && unlink(name) == 0);
		h[i] = reg(f[i]);
		WANT((until_shared(h[i], m, N, 0, 2 * USUAL) != 0) == (i < 2));
	}
	cuFileHandleDeregister(h[0]);
	WANT(until_shared(h[2], m, N, 0, 8 * USUAL));
	for (int i = 0; i < 3; i++) {
		cuFileHandleDeregister(h[i]);
		close(f[i]);
	}
	munmap(all, 5 << 20);
}

/* A file that changes has to pay more for its next window. */
static void price(int fd)
{
	static unsigned char m[N];
	CUfileHandle_t h = reg(fd);
	unsigned first = until_shared(h, m, N, 0, USUAL), before = first;
	WANT(first);
	for (int i = 0; i < 2; i++) {
		WANT(pread(fd, m, N, 0) == N && pwrite(fd, m, N, 0) == N);
		unsigned now = until_shared(h, m, N, 0, 10 * USUAL);
		WANT(now > before * 3 / 2);
		before = now;
	}
	cuFileHandleDeregister(h);
}

/* Small reads save little by a copy from a window. What is read by a thousand of them is worth one. */
static void small(int fd)
{
	static unsigned char m[SMALL];
	CUfileHandle_t h = reg(fd);
	WANT(!until_shared(h, m, SMALL, 0, 10 * USUAL) && until_shared(h, m, SMALL, 0, 30 * USUAL));
	cuFileHandleDeregister(h);
}

/* From the end of one window to the beginning of the next, and one that is larger than the file. */
static void windows(int fd)
{
	static unsigned char m[2 * N];
	CUfileHandle_t h = reg(fd);
	for (off_t at = WINDOW - N; at <= WINDOW; at += N / 2) {
		WANT(until_shared(h, m, 2 * N, at, 3 * USUAL));
		for (int i = 0; i < 3; i++) {
			uint64_t before = shared();
			WANT(cuFileRead(h, m, N, at + i, 0) == N && right(m, (uint64_t)(at + i), N) && shared() > before);
		}
	}
	struct stat st;
	WANT(fstat(fd, &st) == 0 && cuFileRead(h, m, N, st.st_size - 100, 0) == 100 && right(m, (uint64_t)(st.st_size - 100), 100));
	cuFileHandleDeregister(h);
}

/* ---- Threads that read what another changes, until a third closes it ---- */

struct reading { CUfileHandle_t h; _Atomic unsigned from_shared; };

static void *reads(void *arg)
{
	struct reading *r = arg;
	unsigned char *m = malloc(MOST);
	for (;;) {
		uint64_t before = shared();
		ssize_t n = cuFileRead(r->h, m, MOST, 0, 0);
		if (n == -CU_FILE_HANDLE_NOT_REGISTERED)
			break;
		WANT(n == MOST && right(m, 0, MOST));
		r->from_shared += shared() != before;
	}
	free(m);
	return NULL;
}

static void race(int fd)
{
	enum { THREADS = 4, ROUNDS = 25 };
	unsigned char b[N];
	unsigned before = 0;
	WANT(pread(fd, b, N, 0) == N);
	for (int k = 0; k < ROUNDS; k++) {
		pthread_t t[THREADS];
		struct reading r = {.h = reg(fd)};
		for (int i = 0; i < THREADS; i++)
			WANT(pthread_create(&t[i], NULL, reads, &r) == 0);
		while (r.from_shared < 3)
			usleep(100);
		if (k % 2) { /* the same bytes, but the file is not the same for that */
			WANT(pwrite(fd, b, N, 0) == N);
			unsigned was = r.from_shared;
			for (int i = 0; i < 300 && r.from_shared < was + 3; i++)
				usleep(100);
		}
		cuFileHandleDeregister(r.h);
		for (int i = 0; i < THREADS; i++)
			WANT(pthread_join(t[i], NULL) == 0);
		if (k > 4)
			WANT(!before || mappings() <= before); /* stages were made before */
		before = k > 4 ? mappings() : 0;
	}
}

static void *context;

static void *on_gpu(size_t n)
{
	void *m;
	WANT(cuda.current(context) == 0 && cuda.malloc(&m, n) == 0);
	return m;
}

/* ---- Reads that go together ---- */

enum { K = 24, BIG = 17000, APART = 20011 };

/* A batch that reads K pieces, from places that are so far apart, into memory one behind the other. */
static void batch(CUfileHandle_t h, unsigned char *to, off_t at)
{
	CUfileIOParams_t p[K];
	CUfileIOEvents_t e[K];
	CUfileBatchHandle_t b;
	unsigned n = K;
	memset(to, 'x', (size_t)K * BIG);
	for (unsigned i = 0; i < K; i++)
		p[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .opcode = CUFILE_READ, .fh = h, .cookie = (void *)(uintptr_t)i,
			.u.batch = {.devPtr_base = to, .devPtr_offset = (off_t)i * BIG, .file_offset = at + (off_t)i * APART, .size = BIG}};
	OK(cuFileBatchIOSetUp(&b, K));
	OK(cuFileBatchIOSubmit(b, K, p, 0));
	OK(cuFileBatchIOGetStatus(b, K, &n, e, NULL));
	WANT(n == K);
	for (unsigned i = 0; i < K; i++)
		WANT(e[i].status == CUFILE_COMPLETE && e[i].ret == BIG);
	for (unsigned i = 0; i < K; i++)
		WANT(right(to + (size_t)i * BIG, (uint64_t)(at + (off_t)i * APART), BIG));
	cuFileBatchIODestroy(b);
}

/* How many batches until all of one is from shared memory. */
static unsigned all_shared(CUfileHandle_t h, unsigned char *to, off_t at)
{
	for (unsigned i = 1;; i++) {
		uint64_t before = shared();
		batch(h, to, at);
		if (shared() - before == K * BIG)
			return i;
		WANT(i < 40 * USUAL);
	}
}

/* A GPU's pieces are waited for once. What fails goes by the stage, as does what has changed. */
static void together(int fd, int large)
{
	unsigned char *gpus = on_gpu((size_t)K * BIG), *cpus = malloc((size_t)K * BIG), b[1];
	const char *copy[] = {"cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"};
	CUfileHandle_t h = reg(fd), of_large = reg(large);
	WANT(all_shared(h, gpus, 11) > 2); /* what a batch by the stage costs is not what as many calls cost */
	WANT(all_shared(h, cpus, 11) == 1);
	cuda.calls(NULL);
	batch(h, gpus, 12);
	WANT(cuda.calls(copy[0]) == K && cuda.calls(copy[1]) == 1);
	for (int i = 0; i < 2; i++) {
		uint64_t before = shared();
		cuda.fail(copy[i], 1);
		batch(h, gpus, 13);
		WANT(shared() - before == (i ? 0 : (K - 1) * BIG));
		WANT(all_shared(h, gpus, 13) == 1);
	}
	WANT(pread(fd, b, 1, 12) == 1 && pwrite(fd, b, 1, 12) == 1); /* the same byte, but the file is not the same for that */
	uint64_t before = shared();
	batch(h, gpus, 12);
	WANT(shared() == before);
	all_shared(h, gpus, 12);
	cuFileHandleDeregister(h);
	all_shared(of_large, gpus, WINDOW - 10 * APART + 5000); /* one of them lies in two windows */
	cuFileHandleDeregister(of_large);
	WANT(cuda.free(gpus) == 0);
	free(cpus);
}

/* A GPU's copies are from memory that is pinned, as long as it is there. */
static void pinned(int fd)
{
	enum { SIZE = 256 << 10 };
	void *m = on_gpu(SIZE);
	CUfileHandle_t h = reg(fd);
	WANT(!until_shared(h, m, SIZE, 5, 10 * USUAL) && until_shared(h, m, SIZE, 5, 5 * USUAL));
	cuda.calls(NULL);
	for (int i = 0; i < 5; i++)
		WANT(until_shared(h, m, SIZE, 50 + i, 1));
	WANT(cuda.calls("cuMemHostRegister_v2") == 0 && cuda.calls("cuStreamCreate") == 0);
	cuFileHandleDeregister(h);
	WANT(cuda.calls("cuMemHostUnregister") == 1);
	/* Where it cannot be pinned the driver is asked once in a while. */
	h = reg(fd);
	cuda.fail("cuMemHostRegister_v2", 801 /* not supported */);
	cuda.calls(NULL);
	WANT(until_shared(h, m, SIZE, 5, 15 * USUAL));
	for (int i = 0; i < 5; i++)
		WANT(until_shared(h, m, SIZE, 50 + i, 1));
	WANT(cuda.calls("cuMemHostRegister_v2") == 1);
	cuFileHandleDeregister(h);
	WANT(cuda.calls("cuMemHostUnregister") == 0 && cuda.free(m) == 0);
}

/* Reads n bytes at a place, of size each: by calls, or by one batch. */
static void pieces(CUfileHandle_t h, char *to, off_t at, size_t n, size_t size, int batch)
{
	CUfileIOParams_t p[K];
	CUfileIOEvents_t e[K];
	CUfileBatchHandle_t b;
	unsigned all = (unsigned)(n / size), ended = all;
	WANT(all && all <= K);
	for (unsigned i = 0; i < all; i++) {
		off_t in = (off_t)(i * size);
		if (!batch)
			WANT(cuFileRead(h, to, size, at + in, in) == (ssize_t)size);
		p[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .opcode = CUFILE_READ, .fh = h, .u.batch = {.devPtr_base = to, .devPtr_offset = in, .file_offset = at + in, .size = size}};
	}
	if (!batch)
		return;
	OK(cuFileBatchIOSetUp(&b, all));
	OK(cuFileBatchIOSubmit(b, all, p, 0));
	OK(cuFileBatchIOGetStatus(b, all, &ended, e, NULL));
	for (unsigned i = 0; i < all; i++)
		WANT(ended == all && e[i].status == CUFILE_COMPLETE && e[i].ret == size);
	cuFileBatchIODestroy(b);
}

/* What is read once or twice in order, in whatever pieces, is not worth memory that is pinned. What is read again and again is. */
static void once(int large)
{
	static const struct { size_t size, together; } reads[] = {{64 << 10, 1}, {128 << 10, 1}, {200 << 10, 1}, {256 << 10, 1}, {64 << 10, 2}};
	void *m = on_gpu(256 << 10);
	for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
		CUfileHandle_t h = reg(large);
		uint64_t before = shared();
		size_t n = reads[i].size * reads[i].together;
		int pass = 0;
		for (; pass < 4 && shared() == before; pass++)
			for (off_t at = 0; at + (off_t)n <= WINDOW; at += (off_t)n)
				pieces(h, m, at, n, reads[i].size, reads[i].together > 1);
		WANT(pass == 3);
		cuFileHandleDeregister(h);
	}
	WANT(cuda.free(m) == 0);
}

/* Reads by the page cache, which is the quicker way here until there is a window, pay for one. */
static void cached(int large)
{
	enum { SIZE = 64 << 10, PASSES = 3 };
	void *m = on_gpu(SIZE);
	CUfileHandle_t h = reg(large);
	uint64_t before = shared();
	for (int pass = 0; pass < PASSES; pass++) {
		WANT(pass == PASSES - 1 || shared() == before);
		for (off_t at = 0; at < WINDOW; at += SIZE)
			WANT(cuFileRead(h, m, SIZE, at, 0) == SIZE && right(m, (uint64_t)at, SIZE));
	}
	WANT(shared() > before);
	cuFileHandleDeregister(h);
	WANT(cuda.free(m) == 0);
}

/* When part of a window has been read in order the next one is mapped, but not if that has to be pinned. */
static void in_order(int large)
{
	enum { SIZE = 1 << 20, FEW = 5 };
	void *gpus = on_gpu(SIZE), *cpus = malloc(SIZE), *memory[] = {cpus, cpus, gpus};
	for (int i = 0; i < 3; i++) { /* the second time in no order */
		CUfileHandle_t h = reg(large);
		WANT(until_shared(h, memory[i], SIZE, 0, 3 * USUAL + 100));
		for (off_t k = 0; k < 32; k++)
			WANT(until_shared(h, memory[i], SIZE, (i == 1 ? 29 * k % 64 : k) * SIZE, 1));
		WANT(until_shared(h, memory[i], SIZE, WINDOW, FEW) == !i);
		cuFileHandleDeregister(h);
	}
	WANT(cuda.free(gpus) == 0);
	free(cpus);
}

static void killed(int fd, int daemon)
{
	static unsigned char m[N];
	CUfileHandle_t h = reg(fd);
	void *gpus = on_gpu(N);
	WANT(until_shared(h, m, N, 0, USUAL) && until_shared(h, gpus, N, 0, 1) && kill(daemon, SIGKILL) == 0);
	for (int i = 0; i < 10000; i++) { /* the kernel ends it soon */
		ssize_t n = cuFileRead(h, m, N, 0, 0);
		WANT(n == N ? right(m, 0, N) : n == -1 && errno == ENOTCONN);
		if (n < 0)
			break;
		WANT(i < 9999);
		usleep(1000);
	}
	for (int i = 0; i < 10; i++)
		WANT(cuFileRead(h, i % 2 ? m : gpus, N, 0, 0) == -1 && errno == ENOTCONN);
	cuFileHandleDeregister(h);
}

/* ---- A window is mapped while reads go on ---- */

static _Atomic int held, go, alone /* the library's thread is who maps */;
static pthread_t program;

static void hold(void)
{
	sigset_t blocked;
	alone = !pthread_equal(pthread_self(), program) && pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 && sigismember(&blocked, SIGTERM) == 1;
	held = 1;
	while (!go)
		usleep(1000);
}

/* Reads until a window is being mapped, which does not end. */
static void until_held(CUfileHandle_t h, unsigned char *m, size_t n)
{
	held = go = alone = 0;
	program = pthread_self();
	WANT(cuFileRead(h, m, n, 5, 0) == (ssize_t)n); /* the stage is pinned then */
	cuda.on("cuMemHostRegister_v2", hold);
	uint64_t before = shared();
	for (int i = 0; !held; i++) {
		WANT(i < 100000 && cuFileRead(h, m, n, 5, 0) == (ssize_t)n);
		if (i > 1000)
			usleep(1000);
	}
	WANT(alone && shared() == before);
}

static void *forgets(void *h)
{
	cuFileHandleDeregister(h);
	held = 0;
	return NULL;
}

static void later(int fd, int large)
{
	enum { SIZE = 256 << 10, GONE = 50 * 1000 /* µs */ };
	unsigned char *m = on_gpu(SIZE);
	CUfileHandle_t h = reg(fd), other = reg(large);
	pthread_t t;
	int status;
	WANT(cuFileRead(other, m, SIZE, 5, 0) == SIZE); /* the same of the other's stage */
	until_held(h, m, SIZE);
	for (int i = 0; i < 100; i++) /* reads do not wait for it; of the other file, too, and that has no window meanwhile */
		WANT(!until_shared(h, m, SIZE, 5 + i, 1) && !until_shared(other, m, SIZE, 5, 6));
	pid_t child = fork(); /* a child does not wait for a thread that it has not */
	WANT(child >= 0);
	if (!child)
		exit(0);
	WANT(waitpid(child, &status, 0) == child && status == 0);
	go = 1;
	for (int i = 0; !until_shared(h, m, SIZE, 5, 1); i++, usleep(1000))
		WANT(i < 60000);
	for (int i = 0; !until_shared(other, m, SIZE, 5, 1); i++, usleep(1000))
		WANT(i < 60000);
	cuFileHandleDeregister(other);
	cuFileHandleDeregister(h);
	unsigned before = mappings();
	/* Who takes a file away waits until its window is mapped, and it goes with it. */
	h = reg(fd);
	until_held(h, m, SIZE);
	WANT(pthread_create(&t, NULL, forgets, h) == 0);
	usleep(GONE);
	WANT(held);
	go = 1;
	WANT(pthread_join(t, NULL) == 0 && !held && mappings() == before);
	/* What is stored meanwhile is read. */
	unsigned char b[1], new;
	h = reg(fd);
	until_held(h, m, SIZE);
	WANT(pread(fd, b, 1, 5) == 1);
	new = (unsigned char)~b[0];
	WANT(pwrite(fd, &new, 1, 5) == 1);
	go = 1;
	for (int i = 0; i < 100; i++, usleep(1000))
		WANT(cuFileRead(h, m, SIZE, 5, 0) == SIZE && m[0] == new && right(m + 1, 6, SIZE - 1));
	WANT(pwrite(fd, b, 1, 5) == 1);
	cuFileHandleDeregister(h);
	/* The end of the process waits for it. */
	h = reg(fd);
	until_held(h, m, SIZE);
}

static void *goes(void *arg)
{
	usleep(100 * 1000);
	go = 1;
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t t;
	WANT(argc == 4 || argc == 5);
	const char *mode = argc == 5 ? argv[4] : "";
	count_roads(argv, mode);
	alarm(400);
	int fd = open(argv[1], O_RDWR), large = open(argv[2], O_RDWR);
	WANT(fd >= 0 && large >= 0);
	load(&context, 1);
	if (strcmp(mode, "cached") == 0) {
		cached(large);
		puts("ok");
		return 0;
	}
	if (strcmp(mode, "later") == 0) {
		later(fd, large);
		WANT(pthread_create(&t, NULL, goes, NULL) == 0);
		puts("ok");
		exit(0);
	}
	again_and_again(fd);
	room(argv[1], fd);
	price(fd);
	small(fd);
	windows(large);
	race(fd);
	pinned(fd);
	once(large);
	in_order(large);
	together(fd, large);
	killed(fd, atoi(argv[3]));
	OK(cuFileDriverClose());
	puts("ok");
	return 0;
}
