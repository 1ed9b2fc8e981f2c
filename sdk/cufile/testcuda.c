/*
 * Run by a test beside this: testcuda FILE OTHER [many|end], files of the same bytes as test.c's, with memory of two GPUs of the stand-in for libcuda (lab/cuda).
 * How many calls of the driver a small read takes, and bad input: memory of another device, memory that was freed and is another's now, streams
 * that are mixed up, a child. many: batches alone. end: reads on a stream until the daemon is killed, and says "reading" and "gone". Prints "ok".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testcuda.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

enum { N = 4096 };

static void *context[2];
static size_t size;
static int mounted; /* the file is on LaneFS */

static unsigned char *memory(int device, size_t n)
{
	void *p;
	WANT(cuda.current(context[device]) == 0 && cuda.malloc(&p, n) == 0);
	return p;
}

/* The driver's calls of one read or write, when everything has been used before. */
static unsigned calls_of(CUfileHandle_t h, int read, void *p, size_t n, off_t at)
{
	for (int i = 0; i < 6; i++) {
		cuda.calls(NULL);
		WANT((read ? cuFileRead(h, p, n, at, 0) : cuFileWrite(h, p, n, at, 0)) == (ssize_t)n);
	}
	return cuda.calls("");
}

static void counts(int fd)
{
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(0, 1 << 20), *pinned = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *other = memory(1, N);
	WANT(pinned != MAP_FAILED && cuda.current(context[0]) == 0 && cuda.pin(pinned, 1 << 20, 0) == 0);
	/* Whether the pointer is still of the same allocation, whether the context is current, the copy, its end. */
	WANT(calls_of(h, 1, m + 1000, N, 777) == 4 && right(m + 1000, 777, N));
	WANT(cuda.calls("cuPointerGetAttribute") == 1 && cuda.calls("cuPointerGetAttributes") == 0 && cuda.calls("cuCtxGetCurrent") == 1);
	/* By the page cache the stream tells its end. */
	int cache = strcmp(getenv("LANEFS_CUFILE_SMALL"), "cache") == 0;
	unsigned value = cache && !getenv("LANEFS_CUFILE_VALUE");
	WANT(cuda.calls("cuStreamSynchronize") == !value && cuda.calls("cuStreamWriteValue32_v2") == value);
	WANT(cuda.calls("cuMemcpyHtoDAsync_v2") == (unsigned)cache && cuda.calls("cuMemcpy2DAsync_v2") == (unsigned)!cache);
	WANT(calls_of(h, 0, m + 1000, N, 777) == 4);
	/* By the page cache to within a page of memory that the thread used last: nobody is asked. */
	unsigned asked = !(cache && mounted);
	WANT(calls_of(h, 1, m + 4096, N, 777) == 3 + asked && right(m + 4096, 777, N) && cuda.calls("cuPointerGetAttribute") == asked);
	WANT(calls_of(h, 1, m, 200000, 0) == 4 && right(m, 0, 200000));
	WANT(calls_of(h, 1, pinned + 8, N - 8, 5) == 4 && right(pinned + 8, 5, N - 8)); /* in one page */
	WANT(calls_of(h, 1, pinned + 8, N, 5) == 5 && right(pinned + 8, 5, N));         /* the end, too: between them there may be a hole */
	/* Without a context, or with another's, it is pushed and popped. */
	WANT(cuda.current(NULL) == 0 && calls_of(h, 1, m, N, 9) == 5 + asked && right(m, 9, N));
	WANT(cuda.current(context[1]) == 0 && calls_of(h, 1, m, N, 10) == 5 + asked && right(m, 10, N));
	/* Two devices by turns: nothing is looked for again. */
	for (int i = 0; i < 6; i++) {
		if (i == 4)
			cuda.calls(NULL);
		WANT(cuFileRead(h, i % 2 ? other : m, N, i, 0) == N && right(i % 2 ? other : m, (uint64_t)i, N));
	}
	WANT(cuda.calls("cuInit") == 0 && cuda.calls("cuDevicePrimaryCtxRetain") == 0 && cuda.calls("") == 4 + 6);
	WANT(cuda.current(context[0]) == 0);
	/* After a plain copy that was late, since another process has the GPU, small ones go as rows, which do not wait for it; large ones as before. */
	if (cache) {
		for (int i = 0; i < 3; i++) {
			WANT(calls_of(h, 1, m + 1000, N, 777) == 4 && cuda.calls("cuMemcpyHtoDAsync_v2") == 1); /* one alone says nothing */
			cuda.slow(2000);
			WANT(cuFileRead(h, m + 1000, N, 777, 0) == N);
		}
		WANT(calls_of(h, 1, m + 1000, N, 777) == 4 && cuda.calls("cuMemcpyHtoDAsync_v2") == 1);
		for (int seen = 0; !seen;) { /* for a second, which on a busy machine may be over before the read is: then again */
			int64_t until = 0;
			for (int i = 0; i < 3; i++) {
				until = now_ms() + 1000;
				cuda.slow(2000);
				WANT(cuFileRead(h, m + 1000, N, 777, 0) == N);
			}
			memset(m, 0, N);
			unsigned calls = calls_of(h, 1, m + 1000, N - 1, 778), plain = cuda.calls("cuMemcpyHtoDAsync_v2"), rows = cuda.calls("cuMemcpy2DAsync_v2");
			WANT(right(m + 1000, 778, N - 1));
			seen = now_ms() < until;
			WANT(!seen || (calls == 5 && plain == 0 && rows == 2)); /* the odd byte by a copy of its own */
			WANT(calls_of(h, 1, m + 1000, 65536, 778) == 4 && right(m + 1000, 778, 65536) && cuda.calls("cuMemcpyHtoDAsync_v2") == 1);
			usleep(1100 * 1000);
		}
	}
	WANT(cuda.current(context[0]) == 0 && cuda.unpin(pinned) == 0 && cuda.free(m) == 0 && cuda.free(other) == 0);
	munmap(pinned, 1 << 20);
	cuFileHandleDeregister(h);
}

/* ---- Small reads by the page cache while others are under way ---- */

enum { ROOM = 1 << 20, MEDIUM = 40000 /* it does not matter how long a copy of so much takes */ };

static struct crowd {
	CUfileHandle_t h;
	unsigned char *m, *to;
	size_t n, at;         /* of the third read: bytes, and where in to */
	const char *fails;    /* NULL: nothing does */
	int slow;             /* its end is not told at once */
	ssize_t got;
	unsigned values, copies;
} crowd;

static void thread(void *(*f)(void *))
{
	pthread_t t;
	WANT(pthread_create(&t, NULL, f, NULL) == 0 && pthread_join(t, NULL) == 0);
}

static void *third_read(void *arg)
{
	(void)arg;
	cuda.calls(NULL);
	if (crowd.slow)
		cuda.slow(1);
	if (crowd.fails)
		cuda.fail(crowd.fails, 719);
	crowd.got = cuFileRead(crowd.h, crowd.to, crowd.n, 5, (off_t)crowd.at);
	crowd.values = cuda.calls("cuStreamWriteValue32_v2");
	crowd.copies = cuda.calls("cuMemcpyHtoDAsync_v2");
	return NULL;
}

static void third(void) { thread(third_read); }

static void *second_read(void *arg)
{
	(void)arg;
	cuda.on("cuStreamSynchronize", third);
	WANT(cuFileRead(crowd.h, crowd.m, MEDIUM, 7, ROOM) == MEDIUM && right(crowd.m + ROOM, 7, MEDIUM));
	return NULL;
}

static void second(void) { thread(second_read); }

/* Three reads at once: the first is in the call that begins its copy when the second begins, which is waiting for its copy when the third does all it has to do. */
static void three(size_t n, size_t at, const char *fails, int slow)
{
	crowd.n = n;
	crowd.at = at;
	crowd.fails = fails;
	crowd.slow = slow;
	crowd.got = -7;
	memset(crowd.m, 'x', 3 * ROOM);
	cuda.on("cuMemcpyHtoDAsync_v2", second);
	WANT(cuFileRead(crowd.h, crowd.m, MEDIUM, 9, 2 * ROOM + 1) == MEDIUM && right(crowd.m + 2 * ROOM + 1, 9, MEDIUM));
	cuda.on("", NULL);
	cuda.fail("", 0);
	cuda.slow(0);
	WANT(crowd.got < 0 || (crowd.got == (ssize_t)n && right(crowd.to + at, 5, n) && crowd.to[at + n] == 'x' && (!at || crowd.to[at - 1] == 'x')));
}

static void crowded(int fd)
{
	crowd = (struct crowd){.h = reg(fd), .m = memory(0, 3 * ROOM)};
	unsigned char *all = crowd.to = crowd.m;
	/* Beside others the driver is asked for the end of a copy. */
	static const struct { size_t n, at; } reads[] = {{16384, 4096}, {65536, 0}, {4112, 16}, {4096, 4096}, {16388, 3}, {65552, 16}};
	for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
		three(reads[i].n, reads[i].at, NULL, 0);
		WANT(crowd.got == (ssize_t)reads[i].n && crowd.values == 0 && (reads[i].n > 65536 || crowd.copies == 1));
	}
	three(16384, 4096, NULL, 1);
	WANT(crowd.got == 16384);
	three(16384, 4096, "cuStreamSynchronize", 1);
	WANT(crowd.got == -CU_FILE_CUDA_DRIVER_ERROR);
	/* Freed memory is refused. */
	crowd.to = memory(0, ROOM);
	memset(crowd.to, 'x', ROOM);
	three(65536, 0, NULL, 0);
	WANT(crowd.got == 65536 && cuda.free(crowd.to) == 0);
	three(65536, 0, NULL, 0);
	WANT(crowd.got == -CU_FILE_CUDA_POINTER_INVALID);
	/* Alone: the stream tells the end of copies of 4 to 24 KiB. */
	int value = !getenv("LANEFS_CUFILE_VALUE");
	for (size_t n = 2048; n <= 65536; n *= 2) {
		WANT(calls_of(crowd.h, 1, all + 1000, n, 9) <= 4 && right(all + 1000, 9, n));
		WANT(cuda.calls("cuStreamWriteValue32_v2") == (unsigned)(value && n >= 4096 && n < 24576) && cuda.calls("cuLaunchKernel") == 0);
	}
	/* A stream that ends without: its error, soon. */
	cuda.slow(1);
	cuda.fail("cuStreamSynchronize", 719);
	WANT(cuFileRead(crowd.h, all, 16384, 9, 1000) == -CU_FILE_CUDA_DRIVER_ERROR);
	cuda.fail("", 0);
	cuda.slow(0);
	WANT(cuFileRead(crowd.h, all, 16384, 9, 1000) == 16384 && right(all + 1000, 9, 16384));
	/* A driver that stores no numbers is asked, and not for numbers again. */
	cuda.fail("cuStreamWriteValue32_v2", 801);
	WANT(cuFileRead(crowd.h, all, 16384, 10, 1000) == 16384 && right(all + 1000, 10, 16384));
	cuda.fail("", 0);
	WANT(calls_of(crowd.h, 1, all + 1000, 16384, 9) == 4 && right(all + 1000, 9, 16384) && cuda.calls("cuStreamWriteValue32_v2") == 0 && cuda.calls("cuStreamSynchronize") == 1);
	WANT(cuda.free(all) == 0);
	cuFileHandleDeregister(crowd.h);
}

/* ---- Batches: how many calls of the driver and of the system 64 reads of 4 KiB take ---- */

enum { MANY = 64 };

/* The calling thread's system calls that read or write, since the last time. */
static long system_calls(void)
{
	static long before;
	FILE *f = fopen("/proc/thread-self/io", "r"); /* syscr, syscw: only those that read and write */
	char line[64];
	long n, sum = 0;
	WANT(f);
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "syscr: %ld", &n) == 1 || sscanf(line, "syscw: %ld", &n) == 1)
			sum += n;
	fclose(f);
	n = sum - before;
	before = sum;
	return n;
}

/* Reads of a small file, so far apart from one another, from its page cache: how often the last one has read. */
static long last_of(CUfileHandle_t h, unsigned char *m, size_t n, const off_t *at, int k)
{
	for (int i = 0; i < k; i++) {
		system_calls();
		WANT(cuFileRead(h, m, n, at[i], 0) == (ssize_t)n && right(m, (uint64_t)at[i], n));
	}
	return system_calls();
}

/* A larger file beside another. */
static int large(int beside, size_t n)
{
	char link[64], name[4096];
	snprintf(link, sizeof link, "/proc/self/fd/%d", beside);
	ssize_t k = readlink(link, name, sizeof name - 10);
	WANT(k > 0);
	snprintf(name + k, 10, ".large");
	unsigned char *p = malloc(n);
	WANT(p);
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(i % 251);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	WANT(fd >= 0 && unlink(name) == 0 && pwrite(fd, p, n, 0) == (ssize_t)n);
	free(p);
	return fd;
}

/* What comes next is read while the GPU copies, if it is in the page cache, and again when it is asked for. */
static void ahead(int beside)
{
	enum { FAR = 16 << 20 };
	int fd = large(beside, FAR + (1 << 20));
	uint64_t range[2] = {0, 4096}, in[5];
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(0, 1 << 20), old[16384];
	static const off_t on[] = {0, 16384, 32768, 49152}, back[] = {600007, 500007, 400007, 300007}, nowhere[] = {0, 16384, 50000, 16384}, again[] = {4096, 4096, 4096, 4096};
	if (syscall(SYS_cachestat, fd, range, in, 0)) { /* before Linux 6.5 */
		WANT(last_of(h, m, 16384, on, 4) == last_of(h, m, 16384, nowhere, 4));
		goto end;
	}
	for (off_t at = 0; at < FAR + (1 << 20); at += (off_t)sizeof old) /* all of it is there */
		WANT(pread(fd, old, sizeof old, at) == (ssize_t)sizeof old);
	long one = last_of(h, m, 16384, nowhere, 4);
	WANT(last_of(h, m, 16384, again, 4) == one && last_of(h, m, 2000, on, 4) == one);
	WANT(last_of(h, m, 16384, on, 4) == one + 1 && last_of(h, m, 4096, back, 4) == one + 1 && last_of(h, m, 16384, back, 4) == one + 1);
	/* It changes between: new bytes. */
	WANT(pread(fd, old, sizeof old, 65536) == (ssize_t)sizeof old);
	last_of(h, m, 16384, on, 4);
	char *changed = malloc(sizeof old);
	memset(changed, 'c', sizeof old);
	WANT(pwrite(fd, changed, sizeof old, 65536) == (ssize_t)sizeof old && cuFileRead(h, m, 16384, 65536, 0) == 16384 && memcmp(m, changed, 16384) == 0);
	WANT(pwrite(fd, old, sizeof old, 65536) == (ssize_t)sizeof old);
	free(changed);
	/* What is not there is left alone. */
	WANT(fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) == 0);
	WANT(last_of(h, m, 16384, on, 4) == one);
	/* Nor is what the kernel may read just now, since nothing is there from before. */
	for (off_t at = 0; at < 1 << 20; at += (off_t)sizeof old)
		WANT(pread(fd, old, sizeof old, at) == (ssize_t)sizeof old);
	WANT(last_of(h, m, 16384, on, 4) == one && pread(fd, old, 1, FAR + 65536) == 1 && last_of(h, m, 16384, on, 4) == one + 1);
	static const off_t behind[] = {FAR, FAR + 16384, FAR + 32768, FAR + 49152};
	WANT(last_of(h, m, 16384, behind, 4) == one);
end:
	close(fd);
	WANT(cuda.free(m) == 0);
	cuFileHandleDeregister(h);
}

struct layout { unsigned allocations; size_t stride; int shuffled; unsigned runs; /* copies of what follows one another */ unsigned rows; /* copies of rows */ };

static unsigned char *place(unsigned char *const *m, const struct layout *l, int i)
{
	int k = l->shuffled ? i * 37 % MANY : i;
	return m[k % (int)l->allocations] + (size_t)(k / (int)l->allocations) * l->stride;
}

static void submit(CUfileBatchHandle_t b, CUfileHandle_t h, CUfileIOParams_t *p, unsigned char *const *m, const struct layout *l)
{
	for (int i = 0; i < MANY; i++) {
		p[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = h, .opcode = CUFILE_READ, .cookie = &p[i]};
		p[i].u.batch.devPtr_base = place(m, l, i);
		p[i].u.batch.file_offset = i * 4001;
		p[i].u.batch.size = N;
		memset(p[i].u.batch.devPtr_base, 'x', N);
	}
	OK(cuFileBatchIOSubmit(b, MANY, p, 0));
}

static void finish(CUfileBatchHandle_t b, CUfileIOParams_t *p)
{
	CUfileIOEvents_t e[MANY];
	for (unsigned got = 0, n; got < MANY; got += n) {
		n = MANY;
		OK(cuFileBatchIOGetStatus(b, MANY - got, &n, e, NULL));
		for (unsigned j = 0; j < n; j++) {
			CUfileIOParams_t *q = e[j].cookie;
			WANT(e[j].status == CUFILE_COMPLETE && e[j].ret == N && right(q->u.batch.devPtr_base, (uint64_t)(q - p) * 4001, N));
		}
	}
}

static void many(int fd)
{
	/* One allocation in order and not, rows with gaps, eight allocations by turns, as many as there are requests. */
	static const struct layout layouts[] = {{1, N, 0, 1, 1}, {1, N, 1, 1, 1}, {1, 3 * N, 1, MANY, 1}, {8, N, 1, 8, 8}, {MANY, N, 1, MANY, MANY}};
	const char *copies = getenv("LANEFS_COPIES"), *runner = getenv("LANEFS_CUFILE_BATCH");
	CUfileHandle_t h = reg(fd);
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[MANY];
	OK(cuFileBatchIOSetUp(&b, MANY));
	for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
		const struct layout *l = &layouts[k];
		unsigned char *m[MANY];
		for (unsigned i = 0; i < l->allocations; i++)
			m[i] = memory(0, MANY * l->stride);
		for (int round = 0; round < 6; round++) {
			system_calls();
			cuda.calls(NULL);
			submit(b, h, p, m, l);
			finish(b, p);
		}
		/* What each allocation is, once; then the copies, and their end. The context is pushed where the library's thread has run. */
		unsigned asked = cuda.calls("cuPointerGetAttribute") + cuda.calls("cuPointerGetAttributes"), rows = cuda.calls("cuMemcpy2DAsync_v2"), plain = cuda.calls("cuMemcpyAsync"),
			launches = cuda.calls("cuLaunchKernel"), batched = cuda.calls("cuMemcpyBatchAsync_v2");
		unsigned expected = copies && strcmp(copies, "kernel") == 0 ? 0 : copies && strcmp(copies, "batch") == 0 ? 0 : !copies && l->rows > 8 ? 0 : l->rows;
		unsigned kernel = (copies && strcmp(copies, "kernel") == 0) || (!copies && l->rows > 8);
		if (!copies && kernel && !launches) { /* on a busy machine one has been late: for a while copies are preferred */
			for (unsigned i = 0; i < l->allocations; i++)
				WANT(cuda.free(m[i]) == 0);
			usleep(500 * 1000);
			k--;
			continue;
		}
		WANT(asked >= l->allocations && asked <= 2 * l->allocations); /* twice: the address was another's when the thread used it last */
		WANT(rows + plain == expected + kernel && launches == kernel && batched == (copies && strcmp(copies, "batch") == 0));
		WANT(cuda.calls("cuStreamSynchronize") == 1 && cuda.calls("cuEventRecord") == kernel); /* beside a kernel a copy, whose end tells when it began */
		WANT(cuda.calls("") <= asked + rows + plain + launches + batched + kernel + 1 + 3);
		/* One doorbell at most with the daemon, and what a sleep takes; the page cache is read once for each. To count takes some, too. */
		WANT(runner || system_calls() <= (strcmp(getenv("LANEFS_CUFILE_SMALL"), "cache") == 0 ? MANY : 1) + 12);
		for (unsigned i = 0; i < l->allocations; i++)
			WANT(cuda.free(m[i]) == 0);
	}
	cuFileBatchIODestroy(b);
	cuFileHandleDeregister(h);
}

static void bad_memory(int fd)
{
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(0, 1 << 20), *other = memory(1, 1 << 20), *again;
	OK(cuFileBufRegister(m, 1 << 20, 0));
	OK(cuFileBufRegister(other, 1 << 20, 0));
	/* Either device's memory, with any context current. */
	for (int i = 0; i < 4; i++) {
		WANT(cuda.current(i < 3 ? context[i / 2] : NULL) == 0);
		WANT(cuFileRead(h, i % 2 ? other : m, 100000, i, 3) == 100000 && right((i % 2 ? other : m) + 3, (uint64_t)i, 100000));
	}
	/* Beyond what is registered, and beyond what is allocated. */
	WANT(cuFileRead(h, m, N, 0, (1 << 20) - N + 1) == -CU_FILE_INVALID_MAPPING_RANGE);
	WANT(cuFileRead(h, m + 1, (1 << 20), 0, 0) == -CU_FILE_CUDA_POINTER_RANGE_ERROR && cuFileWrite(h, m + N, 1 << 20, 0, 0) == -CU_FILE_CUDA_POINTER_RANGE_ERROR);
	/* Freed while it is registered: an error at once. Then the address is another's, and the registration is not what it is now. */
	WANT(cuda.current(context[0]) == 0 && cuda.free(m) == 0);
	WANT(cuFileRead(h, m, N, 0, 0) == -CU_FILE_CUDA_POINTER_INVALID && cuFileWrite(h, m, N, 0, 0) == -CU_FILE_CUDA_POINTER_INVALID);
	again = mmap(m, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	WANT(again == m); /* the CPU's now */
	memset(again, 'x', N);
	WANT(cuFileRead(h, m, 100, 0, 0) == -CU_FILE_CUDA_POINTER_INVALID && again[0] == 'x' && munmap(again, N) == 0);
	again = memory(1, 3 * N);
	if (again == m) { /* the other device's, and smaller */
		WANT(cuFileRead(h, m, 3 * N, 5, 0) == 3 * N && right(m, 5, 3 * N));
		WANT(cuFileRead(h, m, 3 * N + 1, 5, 0) == -CU_FILE_CUDA_POINTER_RANGE_ERROR);
	}
	/* An address that was another device's when the thread used it last. */
	for (int i = 0;; i++) {
		unsigned char *gone = memory(0, 16 * N);
		WANT(i < 100 && cuFileRead(h, gone, N, 0, 0) == N && cuda.free(gone) == 0);
		unsigned char *here = memory(1, 16 * N);
		cuda.calls(NULL);
		WANT(cuFileRead(h, here, N, 9, 1) == N && right(here + 1, 9, N) && cuda.calls("cuCtxPushCurrent_v2") == 0); /* of two pages: asked */
		WANT(cuFileRead(h, here, N, 9, 0) == N && right(here, 9, N) && cuda.free(here) == 0);
		if (gone == here)
			break;
	}
	/* In a batch, each for itself: devices by turns, and one that is nobody's. */
	enum { K = 30 };
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[K];
	CUfileIOEvents_t e[K];
	unsigned n = K;
	unsigned char *first = memory(0, K * N);
	memset(first, 'x', K * N);
	memset(other, 'x', K * N);
	for (int i = 0; i < K; i++) {
		p[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = h, .opcode = CUFILE_READ, .cookie = &p[i]};
		p[i].u.batch.devPtr_base = i % 2 ? first : other;
		p[i].u.batch.devPtr_offset = (K - 1 - i) * N;
		p[i].u.batch.file_offset = i * 4001;
		p[i].u.batch.size = N;
	}
	p[7].u.batch.devPtr_base = (void *)4096;
	p[7].u.batch.devPtr_offset = 0;
	p[9].u.batch.devPtr_offset = K * N - 5;
	OK(cuFileBatchIOSetUp(&b, K));
	OK(cuFileBatchIOSubmit(b, K, p, 0));
	for (unsigned got = 0; got < K; got += n) {
		n = K;
		OK(cuFileBatchIOGetStatus(b, 1, &n, e, NULL));
		for (unsigned j = 0; j < n; j++) {
			int i = (int)((CUfileIOParams_t *)e[j].cookie - p);
			unsigned char *at = (i % 2 ? first : other) + (K - 1 - i) * N;
			if (i == 7 || i == 9)
				WANT(e[j].status == CUFILE_FAILED && (ssize_t)e[j].ret == (i == 7 ? -CU_FILE_CUDA_POINTER_INVALID : -CU_FILE_CUDA_POINTER_RANGE_ERROR));
			else
				WANT(e[j].status == CUFILE_COMPLETE && e[j].ret == N && right(at, (uint64_t)i * 4001, N));
		}
	}
	cuFileBatchIODestroy(b);
	OK(cuFileBufDeregister(m));
	OK(cuFileBufDeregister(other));
	cuFileHandleDeregister(h);
}

/*
 * The CPU's memory, and values that are given by address, may be what something on the stream makes them: the call waits for that, unless all values are
 * known, and so it says of itself that it read them when it was made.
 */
static void in_order(int fd)
{
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(0, 1 << 20), plain[4000];
	struct values { size_t n; off_t offset, at; } early = {100, 3, 0}, *late = (void *)memory(0, sizeof *late), v;
	ssize_t got = -7;
	void *own;
	*late = (struct values){2000, 501, 11};
	WANT(cuda.current(context[0]) == 0 && cuda.create(&own, NON_BLOCKING) == 0);
	for (int known = 0; known < 2; known++) { /* what was said last counts */
		OK(cuFileStreamRegister((CUstream)own, known ? 0 : 0xf));
		OK(cuFileStreamRegister((CUstream)own, known ? 0xf : 0));
		v = early;
		memset(m, 'x', 1 << 20);
		WANT(cuda.copy(&v, late, sizeof v, own) == 0 && v.n == early.n);
		OK(cuFileReadAsync(h, m, &v.n, &v.offset, &v.at, &got, (CUstream)own));
		WANT(cuda.sync(own) == 0);
		if (known && mounted)
			WANT(got == (ssize_t)early.n && right(m, 3, early.n) && m[early.n] == 'x');
		else
			WANT(got == 2000 && right(m + 11, 501, 2000) && m[10] == 'x' && m[2011] == 'x');
		/* What is wrong with them is the call's error, also when it is found late. */
		v = (struct values){(1 << 20) + 1, 0, 0};
		IS(CU_FILE_CUDA_POINTER_RANGE_ERROR, cuFileReadAsync(h, m, &v.n, &v.offset, &v.at, &got, (CUstream)own));
		/* Plain memory: filled, and fetched, by what is on the stream before the call. */
		for (int i = 0; i < 4000; i++)
			m[i] = (unsigned char)((i + 777) % 251);
		memset(plain, 'p', sizeof plain);
		v = (struct values){sizeof plain, 777, 0};
		WANT(cuda.copy(plain, m, sizeof plain, own) == 0);
		OK(cuFileWriteAsync(h, plain, &v.n, &v.offset, &v.at, &got, (CUstream)own));
		memset(plain, 0, sizeof plain);
		WANT(got == (ssize_t)sizeof plain && pread(fd, plain, sizeof plain, 777) == (ssize_t)sizeof plain && right(plain, 777, sizeof plain));
		memset(plain, 'q', sizeof plain);
		WANT(cuda.copy(m, plain, sizeof plain, own) == 0);
		OK(cuFileReadAsync(h, plain, &v.n, &v.offset, &v.at, &got, (CUstream)own));
		WANT(m[0] == 'q' && m[sizeof plain - 1] == 'q' && right(plain, 777, sizeof plain));
		OK(cuFileStreamDeregister((CUstream)own));
	}
	WANT(cuda.destroy(own) == 0);
	IS(CU_FILE_CUDA_DRIVER_ERROR, cuFileReadAsync(h, plain, &v.n, &v.offset, &v.at, &got, (CUstream)own));
	WANT(cuda.free(m) == 0 && cuda.free(late) == 0);
	cuFileHandleDeregister(h);
}

/* Streams of the device, of the other, the three that everybody has, one that is destroyed: the bytes are right, or there is an error. */
static void streams(int fd)
{
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(0, 1 << 20);
	void *own, *others, *dead;
	WANT(cuda.current(context[1]) == 0 && cuda.create(&others, NON_BLOCKING) == 0);
	WANT(cuda.current(context[0]) == 0 && cuda.create(&own, NON_BLOCKING) == 0 && cuda.create(&dead, NON_BLOCKING) == 0 && cuda.destroy(dead) == 0);
	void *const all[] = {own, others, NULL, (void *)1, (void *)2, dead};
	for (int known = 0; known < 2; known++)
		for (int i = 0; i < 6; i++) {
			size_t n = 100000;
			off_t offset = 100 * i + known, at = 11;
			ssize_t got = -7;
			memset(m, 'x', 1 << 20);
			if (known)
				OK(cuFileStreamRegister((CUstream)all[i], 0xf));
			CUfileError_t e = cuFileReadAsync(h, m, &n, &offset, &at, &got, (CUstream)all[i]);
			if (!e.err && i != 5)
				WANT(cuda.sync(all[i]) == 0);
			if (i == 5)
				WANT(e.err == CU_FILE_CUDA_DRIVER_ERROR && got <= 0);
			else if (i == 1 && e.err) /* a kernel or an event cannot be on it */
				WANT(e.err == CU_FILE_CUDA_DRIVER_ERROR);
			else
				WANT(!e.err && got == (ssize_t)n && right(m + 11, (uint64_t)offset, n) && m[10] == 'x' && m[11 + n] == 'x');
			if (known)
				OK(cuFileStreamDeregister((CUstream)all[i]));
		}
	/* The GPU's library fails, not the file, whatever its number: the call says so, and nothing is on the stream. */
	for (int code = 1; code < 1000; code = code * 2 + code / 100) {
		size_t n = 100000;
		off_t offset = 5, at = 0;
		ssize_t got = -7;
		OK(cuFileStreamRegister((CUstream)own, 0xf));
		cuda.fail("cuEventRecord", code);
		CUfileError_t e = cuFileReadAsync(h, m, &n, &offset, &at, &got, (CUstream)own);
		WANT(e.err == (code == 2 ? CU_FILE_NOMEM_ERROR : CU_FILE_CUDA_DRIVER_ERROR) || !mounted);
		cuda.fail("", 0);
		OK(cuFileReadAsync(h, m, &n, &offset, &at, &got, (CUstream)own));
		WANT(cuda.sync(own) == 0 && got == (ssize_t)n && right(m, 5, n));
		OK(cuFileStreamDeregister((CUstream)own));
	}
	/* Also where streams cannot wait, and the call does all. */
	OK(cuFileStreamRegister((CUstream)own, 0xf));
	static const struct { const char *fails; int code; CUfileOpError err; } last[] = {{"cuStreamWaitValue64_v2", 801, CU_FILE_SUCCESS},
		{"cuMemcpyAsync", 400, CU_FILE_CUDA_DRIVER_ERROR}, {"cuMemcpyAsync", 2, CU_FILE_NOMEM_ERROR}, {"", 0, CU_FILE_SUCCESS}};
	for (int i = 0; mounted && i < 4; i++) {
		size_t n = 100000;
		off_t offset = 5, at = 0;
		ssize_t got = -7;
		cuda.fail(last[i].fails, last[i].code);
		IS(last[i].err, cuFileReadAsync(h, m, &n, &offset, &at, &got, (CUstream)own));
		WANT(last[i].err || (cuda.sync(own) == 0 && got == (ssize_t)n && right(m, 5, n)));
	}
	OK(cuFileStreamDeregister((CUstream)own));
	/* Destroyed while it is registered, as programs do that end. */
	OK(cuFileStreamRegister((CUstream)own, 0xf));
	WANT(cuda.destroy(own) == 0 && cuda.destroy(others) == 0);
	OK(cuFileStreamDeregister((CUstream)own));
	WANT(cuFileRead(h, m, N, 3, 0) == N && right(m, 3, N) && cuda.free(m) == 0);
	cuFileHandleDeregister(h);
}

/* A child has nothing of its parent's; the parent goes on. */
static void forked(int fd)
{
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(0, 1 << 20);
	OK(cuFileBufRegister(m, 1 << 20, 0));
	WANT(cuFileRead(h, m, N, 0, 0) == N);
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		alarm(60);
		WANT(cuFileRead(h, m, N, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED);
		IS(CU_FILE_MEMORY_NOT_REGISTERED, cuFileBufDeregister(m));
		_exit(0);
	}
	int status;
	WANT(waitpid(child, &status, 0) == child && status == 0);
	WANT(cuFileRead(h, m, 1 << 20, 7, 0) == 1 << 20 && right(m, 7, 1 << 20));
	OK(cuFileBufDeregister(m));
	WANT(cuda.free(m) == 0);
	cuFileHandleDeregister(h);
}

/* Reads on a stream until the daemon is killed: the call that is under way then has cuFile's own error, and the memory nothing but the file's bytes, zeroes, or what it had. */
static void until_end(int fd)
{
	enum { CALLS = 3 };
	CUfileHandle_t h = reg(fd);
	unsigned char *m = memory(0, CALLS * size);
	void *own;
	size_t n[CALLS];
	off_t offset[CALLS], at[CALLS];
	ssize_t got[CALLS];
	CUfileError_t e[CALLS];
	WANT(cuda.create(&own, NON_BLOCKING) == 0);
	OK(cuFileStreamRegister((CUstream)own, 0xf));
	for (unsigned round = 0, failed = 0; !failed; round++) {
		memset(m, 'x', CALLS * size);
		for (int i = 0; i < CALLS; i++) {
			n[i] = size - (size_t)i;
			offset[i] = i;
			at[i] = i * (off_t)size;
			got[i] = -7;
			e[i] = cuFileReadAsync(h, m, &n[i], &offset[i], &at[i], &got[i], (CUstream)own);
		}
		if (round == 3)
			puts("reading");
		fflush(stdout);
		WANT(cuda.sync(own) == 0);
		for (int i = 0; i < CALLS; i++) {
			unsigned char *p = m + at[i];
			if (!e[i].err && got[i] == (ssize_t)n[i]) {
				WANT(!failed && right(p, (uint64_t)offset[i], n[i]));
				continue;
			}
			failed++;
			WANT(e[i].err ? e[i].err > CUFILEOP_BASE_ERR : got[i] == -1);
			for (size_t k = 0; k < n[i]; k++)
				WANT(p[k] == 'x' || p[k] == 0 || p[k] == (offset[i] + k) % 251);
		}
	}
	ssize_t result = cuFileRead(h, m, N, 0, 0);
	WANT(result == -1 && errno == ENOTCONN);
	CUfileError_t last = cuFileReadAsync(h, m, &n[0], &offset[0], &at[0], &got[0], (CUstream)own);
	WANT(last.err > CUFILEOP_BASE_ERR);
	OK(cuFileStreamDeregister((CUstream)own));
	cuFileHandleDeregister(h);
	puts("gone");
}

int main(int argc, char **argv)
{
	struct stat st;
	WANT(argc >= 3 && stat(argv[1], &st) == 0);
	size = (size_t)st.st_size;
	load(context, 2);
	if (argc > 3) {
		int fd = open(argv[1], O_RDWR);
		WANT(fd >= 0);
		alarm(60);
		if (strcmp(argv[3], "many") == 0)
			many(fd);
		else
			until_end(fd);
		OK(cuFileDriverClose());
		puts("ok");
		return 0;
	}
	alarm(400);
	for (int i = 1; i < 3; i++) {
		int fd = open(argv[i], O_RDWR);
		WANT(fd >= 0);
		mounted = i == 1;
		if (mounted) {
			counts(fd);
			if (strcmp(getenv("LANEFS_CUFILE_SMALL"), "cache") == 0) {
				crowded(fd);
				ahead(fd);
			}
			many(fd);
		}
		bad_memory(fd);
		streams(fd);
		in_order(fd);
		forked(fd);
		close(fd);
	}
	OK(cuFileDriverClose());
	puts("ok");
	return 0;
}
