/*
 * Run by a test beside this: testcopier FILE, of the same bytes as test.c's, on a mount, with memory of two GPUs of the stand-in for libcuda (lab/cuda): small reads by a kernel that stays, and
 * what may go wrong with it: it comes late or never, leaves with a piece that it has not taken, is away, its context is lost; memory is freed, the process forks, threads come and go.
 * LANEFS_CUFILE_COPIER is "now", or not set: then it is launched for reads that follow one another, and for no others. Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testcuda.h"

enum { COPIES, NOT_YET, AT_ONCE, AWAY, REFUSES, HANGS };
enum { KIB = 1 << 10, ROOM = 256 * KIB, STAYS = 60 * 1000 /* ms: until somebody waits for its stream */, PAUSE = 1000 /* ms */, BAD = 4 };

static void *context[2];
static CUfileHandle_t handle;

static unsigned char *memory(int device, size_t n)
{
	void *p;
	WANT(cuda.current(context[device]) == 0 && cuda.malloc(&p, n) == 0 && cuda.current(context[0]) == 0);
	return p;
}

/* i: which sixteen bytes it begins at. */
static void read_right(unsigned char *m, size_t n, uint64_t i)
{
	uint64_t at = 16 * i % (1 << 20);
	WANT(cuFileRead(handle, m, n, (off_t)at, 0) == (ssize_t)n && right(m, at, n));
}

/* The driver's copies since the last cuda.calls(NULL). */
static unsigned copies(void) { return cuda.calls("cuMemcpyHtoDAsync_v2") + cuda.calls("cuMemcpy2DAsync_v2") + cuda.calls("cuMemcpyAsync"); }

/* Reads until a read was not the driver's: the kernel is there. */
static void engaged(unsigned char *m)
{
	int64_t end = now_ms() + 60 * 1000;
	for (unsigned i = 0;; i++) {
		cuda.calls(NULL);
		read_right(m, 4096, i);
		if (!copies())
			return;
		WANT(now_ms() < end);
		usleep(100);
	}
}

/* A child's own memory, library and stand-in: what one case does to the GPU's is no matter of the next one's. */
static void alone(void (*f)(void))
{
	fflush(stdout);
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		f();
		_exit(0);
	}
	int status;
	WANT(waitpid(child, &status, 0) == child && status == 0);
}

static int fd;

/* CUDA cannot be used in the child of a process that has used it, so each case begins with it. */
static void begin(void)
{
	load(context, 2);
	WANT(cuda.current(context[0]) == 0);
	cuda.copier(COPIES, STAYS);
	handle = reg(fd);
}

/* Every size and place that is for it, no call of the driver's but one that asks what the memory is, and nothing beside; others go the other ways. */
static void sizes(void)
{
	begin();
	unsigned char *m = memory(0, ROOM), *other = memory(1, ROOM);
	engaged(m);
	int64_t end = now_ms() + 120 * 1000;
	static const struct { size_t n, to; int by_it; } reads[] = {{16, 0, 1}, {4096, 0, 1}, {4096, 4096, 1}, {4112, 16, 1}, {16384, 16, 1}, {20000, 32, 1}, {65536, 4096, 1}, {65520, 16, 1}, {4096, 8, 0}, {4090, 0, 0},
		{65552, 0, 0}};
	for (unsigned round = 0; round < 3; round++)
		for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
			size_t n = reads[i].n, to = reads[i].to;
			memset(m, 'x', ROOM);
			cuda.calls(NULL);
			WANT(cuFileRead(handle, m, n, 784, (off_t)to) == (ssize_t)n);
			unsigned all = cuda.calls(""), waits = cuda.calls("cuStreamSynchronize");
			WANT(right(m + to, 784, n) && m[to + n] == 'x' && (!to || m[to - 1] == 'x'));
			WANT(reads[i].by_it || copies());
			if (!reads[i].by_it || (all == 2 && cuda.calls("cuPointerGetAttribute") == 1)) /* the other one is whether the context is current */
				continue;
			/* On a busy machine the piece was not copied soon, and the driver was asked, so that the kernel has left: again. */
			WANT(waits && now_ms() < end);
			engaged(m);
			i--;
		}
	/* Of two devices by turns: of the other a thread has none at a time. */
	for (unsigned i = 0; i < 20; i++)
		read_right(i % 2 ? other : m, 4096, i);
	/* Freed memory is refused, which the kernel would write to: the stand-in would end the test. */
	engaged(m);
	WANT(cuda.free(m) == 0 && cuFileRead(handle, m, 4096, 0, 0) == -CU_FILE_CUDA_POINTER_INVALID && cuFileRead(handle, m, 16384, 0, 0) == -CU_FILE_CUDA_POINTER_INVALID);
	/* And so is memory that is smaller now. */
	m = mmap(m, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE, -1, 0);
	unsigned char *small = memory(0, 4096);
	engaged(small);
	WANT(cuFileRead(handle, small, 8192, 0, 0) == -CU_FILE_CUDA_POINTER_RANGE_ERROR);
	read_right(small, 4096, 5);
}

/* A kernel that leaves with a piece that it has not taken: the driver copies it, and no later kernel does. */
static void refuses(void)
{
	begin();
	unsigned char *m = memory(0, ROOM), *lost = memory(0, 4096);
	for (unsigned i = 0; i < 5; i++) {
		engaged(m);
		cuda.copier(REFUSES, STAYS);
		cuda.calls(NULL);
		read_right(lost, 4096, 100 + i);
		WANT(copies() == 1);
		cuda.copier(COPIES, STAYS);
		memset(lost, 'x', 4096);
		engaged(m);
		read_right(m, 4096, 3);
		for (size_t k = 0; k < 4096; k++)
			WANT(lost[k] == 'x');
	}
	/* One that does nothing, until the driver is asked. */
	engaged(m);
	cuda.copier(HANGS, STAYS);
	read_right(m, 4096, 9);
	cuda.copier(COPIES, STAYS);
	engaged(m);
}

/* How many are launched by reads in so many ms. */
static unsigned launched_in(unsigned char *m, unsigned ms)
{
	cuda.calls(NULL);
	unsigned n = 0;
	for (int64_t end = now_ms() + ms; now_ms() < end; n++)
		read_right(m, 4096, n);
	return cuda.calls("cuLaunchKernel");
}

/* Some that do not begin, since other work fills the GPU: reads go on, and then none is launched for a second. */
static void not_yet(void)
{
	begin();
	unsigned char *m = memory(0, ROOM);
	int64_t start = 0;
	for (unsigned i = 0; i < BAD; i++) {
		cuda.copier(NOT_YET, STAYS);
		start = now_ms();
		WANT(launched_in(m, 20) == 1);
		cuda.copier(COPIES, 0); /* it begins, and leaves */
		usleep(20 * 1000);
	}
	WANT(launched_in(m, 100) == 0 || now_ms() - start > PAUSE);
	cuda.copier(COPIES, STAYS);
	usleep(PAUSE * 1000);
	engaged(m);
}

/* Some that were away, for another process had the GPU: the same. */
static void away(void)
{
	begin();
	unsigned char *m = memory(0, ROOM);
	cuda.copier(AWAY, 5);
	int64_t start = 0;
	for (unsigned i = 0; i < BAD; i++) {
		start = now_ms();
		engaged(m);
		usleep(50 * 1000);
	}
	WANT(launched_in(m, 100) == 0 || now_ms() - start > PAUSE);
	cuda.copier(COPIES, STAYS);
	usleep(PAUSE * 1000);
	engaged(m);
	/* One alone says nothing. */
	cuda.copier(AWAY, 5);
	cuda.sync(NULL);
	usleep(50 * 1000);
	engaged(m);
	cuda.copier(COPIES, STAYS);
	engaged(m);
}

/* Launches that are waited for, or fail: not for ever. */
static void in_vain(void)
{
	begin();
	unsigned char *m = memory(0, ROOM);
	cuda.copier(AT_ONCE, 0);
	unsigned n = launched_in(m, 500);
	WANT(n >= 1 && n <= 8);
	cuda.copier(COPIES, STAYS);
	usleep(PAUSE * 1000);
	engaged(m);
}

static void fails(void)
{
	begin();
	unsigned char *m = memory(0, ROOM);
	for (unsigned i = 0; i < 20; i++) {
		cuda.fail("cuLaunchKernel", 2);
		read_right(m, 4096, i);
	}
	cuda.fail("", 0);
	int64_t start = now_ms();
	WANT(launched_in(m, 100) == 0 || now_ms() - start > PAUSE / 2);
	usleep(PAUSE * 1000);
	engaged(m);
}

/* A context that is lost under a piece: its error, soon. */
static void lost(void)
{
	begin();
	unsigned char *m = memory(0, ROOM);
	engaged(m);
	cuda.copier(HANGS, STAYS);
	cuda.on("cuStreamSynchronize", cuda.lose);
	int64_t start = now_ms();
	WANT(cuFileRead(handle, m, 4096, 0, 0) == -CU_FILE_CUDA_DRIVER_ERROR && now_ms() - start < 30 * 1000);
}

/* A child has none, and its parent goes on with its own. */
static void forks(void)
{
	begin();
	unsigned char *m = memory(0, ROOM);
	for (unsigned i = 0; i < 3; i++) {
		engaged(m);
		pid_t child = fork();
		WANT(child >= 0);
		if (child == 0)
			_exit(cuFileRead(handle, m, 4096, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED ? 0 : 1);
		read_right(m, 4096, 31 + i);
		int status;
		WANT(waitpid(child, &status, 0) == child && status == 0);
	}
}

static void *reader(void *arg)
{
	unsigned char *m = memory((int)(intptr_t)arg % 2, ROOM);
	static const size_t sizes[] = {4096, 16384, 65536, 16, 1000};
	for (unsigned i = 0; i < 300; i++) {
		size_t n = sizes[i % 5];
		read_right(m + i % 3 * 4096, n, (uint64_t)(intptr_t)arg * 1000 + i);
		if (i % 50 == 0)
			usleep(20 * 1000); /* it leaves meanwhile */
	}
	return NULL;
}

/* Threads at once, kernels that leave now and then, and threads that end, of which others take over what they had. */
static void threads(void)
{
	enum { THREADS = 8 };
	begin();
	cuda.copier(COPIES, 5);
	pthread_t t[THREADS];
	for (unsigned round = 0; round < 3; round++) {
		for (intptr_t i = 0; i < THREADS; i++)
			WANT(pthread_create(&t[i], NULL, reader, (void *)i) == 0);
		for (unsigned i = 0; i < THREADS; i++)
			pthread_join(t[i], NULL);
	}
}

/* Reads that follow one another have one launched, soon; others never. */
static void dense(void)
{
	begin();
	unsigned char *m = memory(0, ROOM);
	for (unsigned i = 0; i < 100; i++) {
		cuda.calls(NULL);
		read_right(m, 4096, i);
		WANT(cuda.calls("cuLaunchKernel") == 0);
		usleep(100);
	}
	int64_t end = now_ms() + 60 * 1000;
	cuda.calls(NULL);
	while (!cuda.calls("cuLaunchKernel")) {
		for (unsigned i = 0; i < 1000; i++)
			WANT(cuFileRead(handle, m, 4096, 16 * i, 0) == 4096);
		WANT(now_ms() < end);
	}
	/* It leaves by itself: nobody who waits for the device waits for long. */
	WANT(right(m, 16 * 999, 4096));
}

int main(int argc, char **argv)
{
	WANT(argc == 2 && (fd = open(argv[1], O_RDWR)) >= 0);
	char page[4096];
	for (off_t at = 0; pread(fd, page, sizeof page, at) > 0;) /* it is in the page cache */
		at += (off_t)sizeof page;
	if (!getenv("LANEFS_CUFILE_COPIER")) {
		alone(dense);
	} else if (strcmp(getenv("LANEFS_CUFILE_COPIER"), "0") == 0) {
		begin();
		WANT(launched_in(memory(0, ROOM), 200) == 0);
	} else {
		static void (*const all[])(void) = {sizes, refuses, threads, lost, not_yet, away, in_vain, fails, forks};
		size_t n = strcmp(getenv("LANEFS_CUFILE_SMALL"), "cache") == 0 ? sizeof all / sizeof *all : 3; /* by shared memory those where that matters */
		for (size_t i = 0; i < n; i++)
			alone(all[i]);
	}
	puts("ok");
	return 0;
}
