/*
 * Run by a Go test beside this: testbad FILE, a file of a mount with device memory, whose byte i is i % 251, with memory of two GPUs of the stand-in
 * for libcuda (lab/cuda). Without FILE it says by what name this process's device is asked for. Input that is bad gets an error at once, and what is right gets the right bytes. The file is as it was at the end. Prints "ok".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)
#define FAILS(code, call) do { errno = 0; int64_t n_ = (call); if (n_ != -1 || errno != (code)) { fprintf(stderr, "%s:%d: %s: %lld, errno %d (%s)\n", __FILE__, __LINE__, #call, (long long)n_, errno, lanefs_error()); exit(1); } } while (0)

enum { BIG = 1 << 20, PIECES = 40, NON_BLOCKING = 1 };

static int (*current)(void *), (*get_current)(void **), (*mem_alloc)(void **, size_t), (*mem_free)(void *), (*managed_alloc)(void **, size_t, unsigned), (*pin)(void *, size_t, unsigned), (*unpin)(void *), (*create)(void **, unsigned), (*destroy)(void *), (*sync_stream)(void *);
static void (*keep)(int), (*hold)(void *, uint64_t), (*fail)(const char *, int);
static unsigned (*calls)(const char *);
static void *context[2];

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
	*(void **)&managed_alloc = dlsym(lib, "cuMemAllocManaged");
	*(void **)&pin = dlsym(lib, "cuMemHostRegister_v2");
	*(void **)&unpin = dlsym(lib, "cuMemHostUnregister");
	*(void **)&create = dlsym(lib, "cuStreamCreate");
	*(void **)&destroy = dlsym(lib, "cuStreamDestroy_v2");
	*(void **)&keep = dlsym(lib, "fake_cuda_keep");
	*(void **)&hold = dlsym(lib, "fake_cuda_hold");
	*(void **)&fail = dlsym(lib, "fake_cuda_fail");
	*(void **)&calls = dlsym(lib, "fake_cuda_calls");
	*(void **)&sync_stream = dlsym(lib, "cuStreamSynchronize");
	WANT(init(0) == 0 && retain(&context[0], 0) == 0 && retain(&context[1], 1) == 0);
}

static char *memory(int device, size_t n)
{
	void *p;
	WANT(current(context[device]) == 0 && mem_alloc(&p, n) == 0);
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

static void devices(lanefs_stage *st, uint32_t f)
{
	char *m[2] = {memory(0, BIG), memory(1, BIG)};
	struct lanefs_piece p[PIECES];
	int64_t got[PIECES];
	for (int i = 0; i < 4; i++) { /* either device's, whichever is current */
		WANT(current(context[i / 2]) == 0 && lanefs_read_into(st, f, m[i % 2], (uint64_t)i, 100000, NULL) == 100000);
		void *now;
		WANT(get_current(&now) == 0 && now == context[i / 2]); /* it stays current */
		WANT(current(context[i % 2]) == 0 && sync_stream(NULL) == 0 && right(m[i % 2], (uint64_t)i, 100000));
	}
	memset(m[0], 'x', BIG);
	memset(m[1], 'x', BIG);
	for (int few = 0; few < 2; few++) { /* by a kernel, and by copies */
		for (int i = 0; i < PIECES; i++)
			p[i] = (struct lanefs_piece){(uint64_t)i * 100, (uint64_t)i * 1000, 500};
		size_t n = few ? 3 : PIECES;
		char *low = m[0] < m[1] ? m[0] : m[1], *high = m[0] < m[1] ? m[1] : m[0];
		p[1].memory_offset = (uint64_t)(high - low);
		FAILS(EINVAL, lanefs_read_batch(st, f, low, p, n, NULL, got)); /* one is in the other's memory */
		WANT(strstr(lanefs_error(), "several devices"));
		FAILS(EINVAL, lanefs_write_batch(st, f, low, p, n, NULL, NULL));
		WANT(strstr(lanefs_error(), "several devices"));
		p[1].memory_offset = BIG - 499;
		FAILS(EFAULT, lanefs_read_batch(st, f, m[0], p, n, NULL, got)); /* one ends beyond the allocation */
		FAILS(EFAULT, lanefs_write_batch(st, f, m[0], p, n, NULL, NULL));
		FAILS(EFAULT, lanefs_read_async(st, f, m[0], p, n, NULL, got, got));
	}
	FAILS(EFAULT, lanefs_read_into(st, f, m[0] + 1, 0, BIG, NULL));
	FAILS(EINVAL, lanefs_read_into(st, f, m[0], 0, UINT64_MAX, NULL));
	WANT(sync_stream(NULL) == 0 && all(m[0], 'x', BIG) && all(m[1], 'x', BIG));
	/* Freed, and its address kept, as CUDA's driver does; freed, and then another's. */
	char *kept = memory(0, BIG);
	keep(1);
	WANT(current(context[0]) == 0 && mem_free(kept) == 0);
	keep(0);
	FAILS(EFAULT, lanefs_read_into(st, f, kept, 0, 1000, NULL));
	FAILS(EFAULT, lanefs_write_from(st, f, kept, 0, 1000, NULL));
	WANT(mem_free(m[0]) == 0);
	FAILS(EFAULT, lanefs_read_into(st, f, m[0], 0, 1000, NULL));
	FAILS(EFAULT, lanefs_write_from(st, f, m[0], 0, 1000, NULL));
	char *again = memory(1, 8192);
	if (again == m[0]) {
		WANT(lanefs_read_into(st, f, again, 3, 8192, NULL) == 8192 && sync_stream(NULL) == 0 && right(again, 3, 8192));
		FAILS(EFAULT, lanefs_read_into(st, f, again, 3, 8193, NULL));
	}
	WANT(mem_free(again) == 0 && mem_free(m[1]) == 0);
}

/* Ordinary memory of a program with GPUs that is not there, or may not be used so, in the first or the last of the pieces. */
static void missing(lanefs_stage *st, uint32_t f)
{
	enum { EACH = 64 << 10 };
	char *m = mmap(NULL, 3 * EACH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct lanefs_piece p[] = {{0, EACH - 1000, 1000}, {3000, EACH, 1000}, {5000, 2 * EACH - 1000, 1000}};
	int64_t got[3];
	WANT(m != MAP_FAILED && lanefs_read_batch(st, f, m, p, 3, NULL, got) == 3000 && right(m + EACH - 1000, 0, 1000));
	for (int i = 0; i < 2; i++) {
		char *end = i ? m : m + 2 * EACH;
		p[i ? 0 : 2] = i ? (struct lanefs_piece){0, 0, 1000} : (struct lanefs_piece){5000, 2 * EACH + 10, 1000};
		WANT(mprotect(end, EACH, PROT_NONE) == 0); /* as CUDA's driver leaves what was freed */
		FAILS(EFAULT, lanefs_read_batch(st, f, m, p, 3, NULL, got));
		FAILS(EFAULT, lanefs_write_batch(st, f, m, p, 3, NULL, NULL));
		WANT(mprotect(end, EACH, PROT_READ) == 0);
		FAILS(EFAULT, lanefs_read_batch(st, f, m, p, 3, NULL, got));
		WANT(lanefs_read_batch(st, f, m, p + 1, 1, NULL, got) == 1000);
		WANT(munmap(end, EACH) == 0);
		FAILS(EFAULT, lanefs_read_batch(st, f, m, p, 3, NULL, got));
		FAILS(EFAULT, lanefs_write_batch(st, f, m, p, 3, NULL, NULL));
		p[i ? 0 : 2] = (struct lanefs_piece){0, EACH, 1000};
	}
	WANT(munmap(m + EACH, EACH) == 0);
}

static void streams(lanefs_stage *st, uint32_t f)
{
	char *m = memory(0, BIG), *want = malloc(BIG);
	struct lanefs_piece p[PIECES];
	void *own, *others, *dead;
	for (int i = 0; i < PIECES; i++)
		p[i] = (struct lanefs_piece){(uint64_t)i * 2000, (uint64_t)i * 2000, 2000};
	WANT(want && current(context[1]) == 0 && create(&others, NON_BLOCKING) == 0);
	WANT(current(context[0]) == 0 && create(&own, NON_BLOCKING) == 0 && create(&dead, NON_BLOCKING) == 0 && destroy(dead) == 0);
	void *const good[] = {own, NULL, (void *)1, (void *)2};
	/* One that is none says nothing about the next: on that the call returns before the stream gets there. */
	int (*wait)(void *, uint64_t *, uint64_t, unsigned) = NULL;
	uint64_t gate = 0;
	int64_t later = INT64_MIN;
	*(void **)&wait = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamWaitValue64_v2");
	FAILS(EIO, lanefs_read_async(st, f, m, p, 2, dead, NULL, &later));
	later = INT64_MIN;
	WANT(wait(own, &gate, 1, 0) == 0 && lanefs_read_async(st, f, m, p, 2, own, NULL, &later) == 0 && later == INT64_MIN);
	__atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
	WANT(sync_stream(own) == 0 && later == 4000 && right(m, 0, 4000));
	for (int i = 0; i < 4; i++)
		for (size_t n = 2; n <= PIECES; n += PIECES - 2) {
			int64_t done = -7;
			memset(m, 'x', BIG);
			WANT(lanefs_read_batch(st, f, m, p, n, good[i], NULL) == (int64_t)(n * 2000) && sync_stream(good[i]) == 0 && right(m, 0, n * 2000));
			memset(m, 'x', BIG);
			WANT(lanefs_read_async(st, f, m, p, n, good[i], NULL, &done) == 0 && sync_stream(good[i]) == 0 && done == (int64_t)(n * 2000) && right(m, 0, n * 2000));
			WANT(lanefs_write_batch(st, f, m, p, n, good[i], NULL) == (int64_t)(n * 2000));
		}
	/* A destroyed one, and the other device's: the driver's error, at once, and the stage serves the next. */
	for (int i = 0; i < 2; i++)
		for (size_t n = 2; n <= PIECES; n += PIECES - 2) {
			void *bad = i ? others : dead;
			int64_t done = -7;
			FAILS(EIO, lanefs_read_batch(st, f, m, p, n, bad, NULL));
			WANT(strstr(lanefs_error(), ": error 400"));
			FAILS(EIO, lanefs_write_batch(st, f, m, p, n, bad, NULL));
			WANT(lanefs_read_async(st, f, m, p, n, bad, NULL, &done) == -1 || done == -EIO);
			memset(m, 'x', BIG);
			WANT(lanefs_read_batch(st, f, m, p, n, own, NULL) == (int64_t)(n * 2000) && sync_stream(own) == 0 && right(m, 0, n * 2000));
		}
	/* What a batch has put on the stream before it failed is waited for: the memory may be freed when it returns. */
	memset(m, 'x', BIG);
	fail("cuEventRecord", 999);
	FAILS(EIO, lanefs_read_batch(st, f, m, p, 2, own, NULL));
	WANT(right(m, 0, 4000));
	FAILS(EINVAL, lanefs_read_into(st, f, want, 0, 1000, own)); /* what no GPU knows is on no stream */
	WANT(destroy(own) == 0 && destroy(others) == 0 && mem_free(m) == 0);
	free(want);
}

/* Pinned memory is the CPU's: given without a stream it has the bytes when the call returns, by one copy, by many, and by more parts than the stage has. The
 * stand-in's streams do nothing before somebody waits for them. */
static void pinned(lanefs *s, uint32_t f, uint64_t size)
{
	lanefs_stage *small = lanefs_stage_new(s, 1 << 20);
	struct lanefs_piece p[PIECES];
	char *m = aligned_alloc(4096, 4 * BIG), *device = memory(0, BIG);
	void *own;
	WANT(small && m && size > 2 * BIG && current(context[0]) == 0 && pin(m, 4 * BIG, 0) == 0 && create(&own, NON_BLOCKING) == 0);
	for (int i = 0; i < PIECES; i++)
		p[i] = (struct lanefs_piece){(uint64_t)i * 2000, (uint64_t)i * 3000, 1000 + (uint64_t)i};
	for (size_t n = 2; n <= PIECES; n += PIECES - 2) {
		int64_t sum = 0;
		memset(m, 'x', BIG);
		for (size_t i = 0; i < n; i++)
			sum += (int64_t)p[i].length;
		WANT(lanefs_read_batch(small, f, m, p, n, NULL, NULL) == sum);
		for (size_t i = 0; i < n; i++)
			WANT(right(m + p[i].memory_offset, p[i].file_offset, p[i].length) && m[p[i].memory_offset + p[i].length] == 'x');
	}
	memset(m, 'x', 4 * BIG);
	WANT(lanefs_read_into(small, f, m + 1, 3, 2 * BIG, NULL) == 2 * BIG && right(m + 1, 3, 2 * BIG) && m[2 * BIG + 1] == 'x');
	/* On a stream that is named it is in that stream's order, and a GPU's memory always is. */
	memset(m, 'x', BIG);
	WANT(lanefs_read_into(small, f, m, 7, 1000, own) == 1000 && all(m, 'x', 1000) && sync_stream(own) == 0 && right(m, 7, 1000));
	WANT(lanefs_read_into(small, f, device, 9, 1000, NULL) == 1000 && all(device, 'x', 1000) && sync_stream(NULL) == 0 && right(device, 9, 1000));
	/* For batches on a stream the call does not wait, though copies to and from the CPU's memory would. Some are larger than the stage. */
	for (int i = 0; i < 4; i++) {
		uint64_t n = i == 3 ? 2 * BIG : 1000;
		int64_t read = -1, written = -1;
		memset(m, 'x', n);
		WANT(lanefs_read_async(small, f, m, &(struct lanefs_piece){3, 0, n}, 1, own, NULL, &read) == 0);
		WANT(lanefs_write_async(small, f, m, &(struct lanefs_piece){3, 0, n}, 1, own, NULL, &written) == 0);
		WANT(sync_stream(own) == 0 && read == (int64_t)n && written == read && right(m, 3, n));
	}
	lanefs_stage_free(small);
	WANT(unpin(m) == 0 && mem_free(device) == 0 && destroy(own) == 0);
	free(m);
}

/* Managed memory is a GPU's, wherever it lies: in the stream's order, and many pieces go by the kernel. */
static void managed(lanefs_stage *st, uint32_t f)
{
	struct lanefs_piece p[PIECES];
	struct lanefs_rungs before, after;
	char *m;
	void *own;
	WANT(current(context[0]) == 0 && managed_alloc((void **)&m, BIG, 1) == 0 && create(&own, NON_BLOCKING) == 0);
	for (int i = 0; i < PIECES; i++)
		p[i] = (struct lanefs_piece){(uint64_t)i * 2000, (uint64_t)i * 3000, 1000 + (uint64_t)i};
	for (size_t n = 2; n <= PIECES; n += PIECES - 2) {
		memset(m, 'x', BIG);
		lanefs_stage_rungs(st, &before);
		WANT(lanefs_read_batch(st, f, m, p, n, own, NULL) > 0 && all(m, 'x', BIG) && sync_stream(own) == 0);
		lanefs_stage_rungs(st, &after);
		for (size_t i = 0; i < n; i++)
			WANT(right(m + p[i].memory_offset, p[i].file_offset, p[i].length) && m[p[i].memory_offset + p[i].length] == 'x');
		WANT(after.host == before.host && (n == 2 ? after.kernel == before.kernel : after.kernel - before.kernel == n - 1));
		WANT(lanefs_write_batch(st, f, m, p, n, own, NULL) > 0);
		/* Its end is known: neither a copy nor a kernel goes beyond it. */
		int64_t got[PIECES];
		struct lanefs_piece last = p[1];
		memset(m, 'x', BIG);
		p[1].memory_offset = BIG - p[1].length;
		WANT(lanefs_read_batch(st, f, m, p, n, own, got) > 0 && got[1] == (int64_t)p[1].length && sync_stream(own) == 0 && right(m + p[1].memory_offset, p[1].file_offset, p[1].length));
		memset(m, 'x', BIG);
		p[1].memory_offset++;
		FAILS(EFAULT, lanefs_read_batch(st, f, m, p, n, own, got));
		WANT(strstr(lanefs_error(), "beyond its allocation"));
		FAILS(EFAULT, lanefs_write_batch(st, f, m, p, n, own, NULL));
		FAILS(EFAULT, lanefs_read_async(st, f, m, p, n, own, got, got));
		WANT(sync_stream(own) == 0 && all(m, 'x', BIG));
		p[1] = last;
	}
	WANT(mem_free(m) == 0 && destroy(own) == 0);
}

/* Marks: of a stream that waits, of one that goes on, of one that is none, of ordinary memory, in a child. */
static void marks(lanefs_stage *st, uint32_t f)
{
	int (*wait)(void *, uint64_t *, uint64_t, unsigned) = NULL;
	char *m = memory(0, BIG), *plain = malloc(BIG);
	uint64_t gate = 0, second = 0;
	int64_t done;
	int status;
	void *own, *dead;
	*(void **)&wait = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamWaitValue64_v2");
	WANT(wait && plain && current(context[0]) == 0 && create(&own, NON_BLOCKING) == 0 && create(&dead, NON_BLOCKING) == 0 && destroy(dead) == 0);
	lanefs_mark *mark = lanefs_mark_new(st, m + 5, own);
	WANT(mark && wait(own, &gate, 1, 0) == 0 && lanefs_mark_reached(mark, 1) == 1); /* it is before the gate */
	WANT(lanefs_read_async(st, f, m, &(struct lanefs_piece){0, 0, BIG}, 1, own, NULL, &done) == 0 && lanefs_mark_set(mark) == 0 && wait(own, &second, 1, 0) == 0);
	WANT(current(NULL) == 0 && lanefs_mark_reached(mark, 0) == 0);
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		alarm(60);
		FAILS(EPERM, lanefs_mark_reached(mark, 0));
		FAILS(EPERM, lanefs_mark_reached(mark, 1));
		FAILS(EPERM, lanefs_mark_set(mark));
		WANT(!lanefs_mark_new(st, m, own) && errno == EPERM);
		lanefs_mark_free(mark);
		_exit(0);
	}
	WANT(waitpid(child, &status, 0) == child && status == 0 && lanefs_mark_reached(mark, 0) == 0);
	__atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
	WANT(lanefs_mark_reached(mark, 1) == 1 && done == BIG && right(m, 0, BIG) && lanefs_mark_reached(mark, 0) == 1); /* not what follows */
	__atomic_store_n(&second, 1, __ATOMIC_RELEASE);
	lanefs_mark_free(mark);
	lanefs_mark_free(NULL);
	WANT(!lanefs_mark_new(st, m, dead) && errno == EIO && strstr(lanefs_error(), ": error 400"));
	WANT(!lanefs_mark_new(st, plain, own) && errno == EINVAL);
	WANT((mark = lanefs_mark_new(st, plain, NULL)) && lanefs_mark_reached(mark, 0) == 1 && lanefs_mark_set(mark) == 1 && lanefs_mark_reached(mark, 1) == 1);
	lanefs_mark_free(mark);
	WANT(current(context[0]) == 0 && sync_stream(own) == 0 && destroy(own) == 0 && mem_free(m) == 0);
	free(plain);
}

/* Kernels that wait for other programs': some pieces go by copies then, many do not, and a kernel is tried again. */
static void late(lanefs_stage *st, uint32_t f)
{
	enum { SOME = 200, LOTS = 300 };
	static struct lanefs_piece p[LOTS];
	char *m = memory(0, BIG);
	void (*late)(unsigned) = NULL;
	struct lanefs_rungs before, after;
	*(void **)&late = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_late");
	WANT(late && current(context[0]) == 0);
	for (int i = 0; i < LOTS; i++) /* of equal length two would be one copy, of two rows */
		p[i] = (struct lanefs_piece){(uint64_t)i * 900, (uint64_t)i * 1000, 500 - (uint64_t)i % 2};
	for (int round = 0; round < 2; round++) { /* 0: in time; 1: late */
		late(round ? 3000 : 0);
		for (int call = 0; call < 4; call++) {
			unsigned n = call == 3 ? LOTS : SOME;
			memset(m, 'x', BIG);
			lanefs_stage_rungs(st, &before);
			WANT(lanefs_read_batch(st, f, m, p, n, NULL, NULL) == (int64_t)n * 500 - n / 2 && sync_stream(NULL) == 0);
			lanefs_stage_rungs(st, &after);
			for (unsigned i = 0; i < n; i++)
				WANT(right(m + i * 1000, i * 900, 500 - i % 2) && m[i * 1000 + 500] == 'x');
			if (n == LOTS)
				WANT(after.kernel - before.kernel == n && after.copies == before.copies);
			else if (round == 0 || call == 0) /* the first by a copy, by which the kernel is timed */
				WANT(after.kernel - before.kernel == n - 1 && after.copies - before.copies == 1);
			else
				WANT(after.copies - before.copies == n && after.kernel == before.kernel);
		}
	}
	late(0);
	struct lanefs_rungs end = after;
	for (int i = 0; i < 300 && end.kernel == after.kernel; i++) { /* it is tried again */
		usleep(10000);
		WANT(lanefs_read_batch(st, f, m, p, SOME, NULL, NULL) == SOME * 500 - SOME / 2 && sync_stream(NULL) == 0);
		lanefs_stage_rungs(st, &end);
	}
	WANT(end.kernel > after.kernel && mem_free(m) == 0);
}

/* Pieces in a GPU's memory and in pinned memory, whichever is first: no kernel addresses the latter, and what names no stream has all when it returns; on a stream
 * the copies are the stream's. */
static void mixed(lanefs_stage *st, uint32_t f)
{
	char *m = memory(0, BIG), *pinned = aligned_alloc(4096, BIG), *low = m < pinned ? m : pinned;
	struct lanefs_piece p[PIECES];
	struct lanefs_rungs before, after;
	void *own;
	WANT(pinned && pin(pinned, BIG, 0) == 0 && create(&own, NON_BLOCKING) == 0);
	for (int first = 0; first < 2; first++)
		for (int on = 0; on < 3; on++) { /* no stream; a stream; without waiting */
			int64_t sum = 0, got;
			for (int i = 0; i < PIECES; i++) {
				char *at = (i % 2 == first ? m : pinned) + i * 1000;
				p[i] = (struct lanefs_piece){(uint64_t)i * 900, (uint64_t)(at - low), 500 - (uint64_t)i % 3};
				sum += (int64_t)p[i].length;
			}
			memset(m, 'x', BIG);
			memset(pinned, 'x', BIG);
			lanefs_stage_rungs(st, &before);
			if (on == 2)
				WANT(lanefs_read_async(st, f, low, p, PIECES, own, NULL, &got) == 0);
			else
				got = lanefs_read_batch(st, f, low, p, PIECES, on ? own : NULL, NULL);
			WANT(!on || sync_stream(own) == 0);
			lanefs_stage_rungs(st, &after);
			WANT(got == sum && after.copies - before.copies == PIECES && after.kernel == before.kernel && after.host == before.host);
			for (int i = 0; i < PIECES; i++)
				WANT(right(low + p[i].memory_offset, p[i].file_offset, p[i].length) && low[p[i].memory_offset + p[i].length] == 'x');
			got = on == 2 ? 0 : lanefs_write_batch(st, f, low, p, PIECES, on ? own : NULL, NULL);
			WANT(got == (on == 2 ? 0 : sum));
		}
	WANT(unpin(pinned) == 0 && destroy(own) == 0 && mem_free(m) == 0);
	free(pinned);
}

/* Where piece i of n lies in memory, by shape, and how long it is. SHAPES and more: pieces that overlap, which may be written. */
enum { ROWS, BACKWARDS, LIKE_THE_STAGE, ONE_FURTHER, THREE_FURTHER, ONE_LONGER, TOGETHER, PAIRS, UNLIKE, SHAPES, OVERLAPPING = SHAPES, ALL };

static struct lanefs_piece shaped(int shape, unsigned i, unsigned n)
{
	struct lanefs_piece p = {(uint64_t)i * 900, (uint64_t)i * 1000, 500};
	switch (shape) {
	case BACKWARDS: p.memory_offset = (n - 1 - i) * 1000ull; break;
	case LIKE_THE_STAGE: p.memory_offset = i * 1024ull; p.length = 512; break; /* pieces that follow one another there */
	case ONE_FURTHER: p.memory_offset += i >= 3; break;
	case THREE_FURTHER: p.memory_offset += i >= 3 ? 3 : 0; break;
	case ONE_LONGER: p.length += i == 2; break;
	case TOGETHER: p.memory_offset = i * 500ull; break;
	case PAIRS: p.memory_offset = i / 2 * 1500ull + i % 2 * 500; break;
	case UNLIKE: p.memory_offset += i * 7 % 5; p.length += i * 13 % 300; break;
	case OVERLAPPING: p.memory_offset = i * 300ull; break;
	}
	return p;
}

/* Pieces of all shapes, few and many, to a GPU's memory and from it: some are rows for one copy, some look like rows, and some go by the kernel. */
static void shapes(lanefs_stage *st, uint32_t f, int fd, uint64_t size)
{
	char *m = memory(0, BIG), *was = malloc(size), *now = malloc(size);
	struct lanefs_piece p[PIECES];
	struct lanefs_rungs before, after;
	uint64_t by_kernel = 0;
	WANT(was && now && pread(fd, was, size, 0) == (ssize_t)size);
	for (int shape = 0; shape < ALL; shape++)
		for (unsigned n = 6; n <= PIECES; n += PIECES - 6) {
			int64_t sum = 0;
			for (unsigned i = 0; i < n; i++) {
				p[i] = shaped(shape, i, n);
				sum += (int64_t)p[i].length;
			}
			memset(m, 'x', BIG);
			if (shape < SHAPES) {
				WANT(lanefs_read_batch(st, f, m, p, n, NULL, NULL) == sum && sync_stream(NULL) == 0);
				for (unsigned i = 0; i < n; i++) {
					WANT(right(m + p[i].memory_offset, p[i].file_offset, p[i].length));
					memset(m + p[i].memory_offset, 'x', p[i].length);
				}
				WANT(all(m, 'x', BIG));
			}
			for (size_t i = 0; i < BIG; i++)
				m[i] = (char)(i * 7 % 241);
			lanefs_stage_rungs(st, &before);
			WANT(lanefs_write_batch(st, f, m, p, n, NULL, NULL) == sum);
			lanefs_stage_rungs(st, &after);
			WANT(n == PIECES || after.kernel == before.kernel); /* some are sooner copied than a kernel is launched */
			by_kernel += after.kernel - before.kernel;
			WANT(pread(fd, now, size, 0) == (ssize_t)size);
			for (unsigned i = 0; i < n; i++) {
				WANT(memcmp(now + p[i].file_offset, m + p[i].memory_offset, p[i].length) == 0);
				memcpy(now + p[i].file_offset, was + p[i].file_offset, p[i].length);
			}
			WANT(memcmp(now, was, size) == 0 && pwrite(fd, was, size, 0) == (ssize_t)size && fsync(fd) == 0);
		}
	WANT(by_kernel >= PIECES - 1 && mem_free(m) == 0);
	free(was);
	free(now);
}

/* A file that grows while a piece beyond its end is read: the piece ends where the file did, though the daemon finds bytes for its later requests. */
static struct { lanefs *s; int fd; uint64_t size, moved; } grown;

static void grow(void)
{
	static char more[BIG];
	struct lanefs_moved m;
	do
		WANT(lanefs_how_moved(grown.s, &m) == 0);
	while (m.device < grown.moved + 3);
	memset(more, 'm', BIG);
	for (uint64_t i = 0; i < 3; i++)
		WANT(pwrite(grown.fd, more, BIG, (off_t)(grown.size + i * BIG)) == BIG);
	WANT(fsync(grown.fd) == 0);
}

static void grows(lanefs *s, uint32_t f, int fd, uint64_t size)
{
	enum { PART = BIG / 4, LEFT = PART + 100 };
	lanefs_stage *small = lanefs_stage_new(s, BIG);
	char *m = memory(0, 2 * BIG);
	struct lanefs_moved moved;
	void (*on)(const char *, void (*)(void)) = NULL;
	*(void **)&on = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_on");
	WANT(small && on && lanefs_how_moved(s, &moved) == 0);
	grown.s = s;
	grown.fd = fd;
	grown.size = size;
	grown.moved = moved.device;
	on("cuMemcpyAsync", grow); /* the first part's, before which the stage has handed over three */
	WANT(lanefs_read_into(small, f, m, size - LEFT, 2 * BIG, NULL) == LEFT && sync_stream(NULL) == 0);
	WANT(right(m, size - LEFT, LEFT) && all(m + LEFT, 0, 2 * BIG - LEFT));
	WANT(ftruncate(fd, (off_t)size) == 0 && fsync(fd) == 0);
	lanefs_stage_free(small);
	WANT(mem_free(m) == 0);
}

/* A GPU for which no image of the kernel is, and one that has no room for it just now: pieces go by copies, and in the second case by the kernel later. */
static void no_image(lanefs_stage *st, uint32_t f)
{
	enum { NO_BINARY = 209, OUT_OF_MEMORY = 2 };
	struct lanefs_piece p[PIECES];
	struct lanefs_rungs before, after;
	int64_t sum = 0;
	for (int i = 0; i < PIECES; i++) { /* of equal length two would be one copy, of two rows */
		p[i] = (struct lanefs_piece){(uint64_t)i * 900, (uint64_t)i * 1000, 500 - (uint64_t)i % 2};
		sum += (int64_t)p[i].length;
	}
	for (int device = 0; device < 2; device++) {
		char *m = memory(device, BIG);
		fail("cuModuleLoadData", device ? NO_BINARY : OUT_OF_MEMORY);
		for (int call = 0; call < 3; call++) {
			memset(m, 'x', BIG);
			lanefs_stage_rungs(st, &before);
			WANT(lanefs_read_batch(st, f, m, p, PIECES, NULL, NULL) == sum && sync_stream(NULL) == 0);
			lanefs_stage_rungs(st, &after);
			for (unsigned i = 0; i < PIECES; i++)
				WANT(right(m + i * 1000, i * 900, 500 - i % 2) && m[i * 1000 + 500] == 'x');
			if (device || call == 0)
				WANT(after.copies - before.copies == PIECES && after.kernel == before.kernel);
			else
				WANT(after.kernel - before.kernel == PIECES - 1);
		}
		WANT(mem_free(m) == 0);
	}
}

/* The second of three batches waits for its own stream, not for the first's, of which parts are still copied: the third waits for those. */
static struct { void *stream; unsigned waits; _Atomic int returned; } first;

static void *release(void *arg)
{
	(void)arg;
	while (!first.returned && calls("cuEventSynchronize") == first.waits)
		usleep(100);
	hold(first.stream, UINT64_MAX);
	return NULL;
}

static void others(lanefs *s, uint32_t f, int without_waiting)
{
	enum { FOUR_PARTS = BIG };
	lanefs_stage *small = lanefs_stage_new(s, FOUR_PARTS);
	char *m = memory(0, BIG), *third = memory(0, BIG), *pinned = aligned_alloc(4096, 4096);
	int64_t done = FOUR_PARTS;
	void *other;
	pthread_t t;
	WANT(small && pinned && pin(pinned, 4096, 0) == 0 && create(&first.stream, NON_BLOCKING) == 0 && create(&other, NON_BLOCKING) == 0);
	hold(first.stream, 1); /* the first part's copy */
	WANT(lanefs_read_into(small, f, m, 0, FOUR_PARTS, first.stream) == FOUR_PARTS);
	WANT(lanefs_read_into(small, f, pinned, 3, 1000, NULL) == 1000 && right(pinned, 3, 1000));
	first.returned = 0;
	first.waits = calls("cuEventSynchronize");
	WANT(pthread_create(&t, NULL, release, NULL) == 0);
	if (without_waiting)
		WANT(lanefs_read_async(small, f, third, &(struct lanefs_piece){7, 0, FOUR_PARTS}, 1, other, NULL, &done) == 0 && sync_stream(other) == 0);
	else
		WANT(lanefs_read_into(small, f, third, 7, FOUR_PARTS, other) == FOUR_PARTS);
	first.returned = 1;
	WANT(pthread_join(t, NULL) == 0 && sync_stream(first.stream) == 0 && sync_stream(other) == 0);
	WANT(done == FOUR_PARTS && right(m, 0, FOUR_PARTS) && right(third, 7, FOUR_PARTS));
	lanefs_stage_free(small);
	WANT(unpin(pinned) == 0 && destroy(first.stream) == 0 && destroy(other) == 0 && mem_free(m) == 0 && mem_free(third) == 0);
	free(pinned);
}

/* The program ends a batch that has all of the stage's parts on a stream, and waits for room, when these have ended: the call says that something is on the stream, and *done what
 * became of it. */
static struct { void *stream; uint64_t gate; int asked; } room;

static int no_more(void *arg)
{
	WANT(arg == &room && current(context[0]) == 0);
	__atomic_store_n(&room.gate, 1, __ATOMIC_RELEASE);
	room.asked++;
	WANT(sync_stream(room.stream) == 0);
	return 1;
}

static void partly(lanefs *s, uint32_t f)
{
	lanefs_stage *small = lanefs_stage_new(s, BIG);
	int (*wait)(void *, uint64_t *, uint64_t, unsigned) = NULL;
	char *m = memory(0, 2 * BIG);
	int64_t done = INT64_MIN;
	*(void **)&wait = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamWaitValue64_v2");
	WANT(small && create(&room.stream, NON_BLOCKING) == 0);
	do { /* again if it waited for a daemon that took long, and not for room */
		room.gate = 0;
		room.asked = 0;
		WANT(wait(room.stream, &room.gate, 1, 0) == 0);
		lanefs_on_wait(s, no_more, &room);
		int begun = lanefs_read_async(small, f, m, &(struct lanefs_piece){0, 0, BIG + 1}, 1, room.stream, NULL, &done) == 0;
		int why = errno;
		lanefs_on_wait(s, NULL, NULL);
		WANT(room.asked == 1 && m[BIG] == 'x' && (begun ? done == -EINTR : why == EINTR));
	} while (!right(m, 0, BIG));
	WANT(lanefs_read_async(small, f, m, &(struct lanefs_piece){5, 0, BIG}, 1, room.stream, NULL, &done) == 0 && sync_stream(room.stream) == 0 && done == BIG && right(m, 5, BIG));
	lanefs_stage_free(small);
	WANT(destroy(room.stream) == 0 && mem_free(m) == 0);
}

static void handles(lanefs *s, lanefs_stage *st, int fd, uint64_t size)
{
	uint32_t a, b, reader;
	char *m = memory(0, BIG);
	int copy = dup(fd), only;
	WANT(copy >= 0 && lanefs_open(s, copy, &a) == 0 && lanefs_open(s, copy, &b) == 0 && a != b && close(copy) == 0);
	WANT(lanefs_release(s, a) == 0);
	WANT(lanefs_read_into(st, b, m, 5, 1000, NULL) == 1000 && sync_stream(NULL) == 0 && right(m, 5, 1000)); /* its own, whatever happens to the others */
	FAILS(EBADF, lanefs_read_into(st, a, m, 0, 1000, NULL));
	WANT(lanefs_release(s, a) == -1 && lanefs_release(s, 12345) == -1);
	FAILS(EBADF, lanefs_open(s, copy, &a)); /* closed */
	/* Beyond the file: what is there, and zeroes; nothing. */
	memset(m, 'x', BIG);
	WANT(lanefs_read_into(st, b, m, size - 10, 1000, NULL) == 10 && sync_stream(NULL) == 0 && right(m, size - 10, 10) && all(m + 10, 0, 990) && m[1000] == 'x');
	WANT(lanefs_read_into(st, b, m, size + 10, 1000, NULL) == 0);
	/* A descriptor that may not be written to. */
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	WANT((only = open(link, O_RDONLY)) >= 0 && lanefs_open(s, only, &reader) == 0);
	FAILS(EACCES, lanefs_write_from(st, reader, m, 0, 1000, NULL));
	WANT(lanefs_read_into(st, reader, m, 9, 1000, NULL) == 1000 && sync_stream(NULL) == 0 && right(m, 9, 1000));
	WANT(lanefs_release(s, reader) == 0 && lanefs_release(s, b) == 0 && close(only) == 0);
	/* A child has neither session nor stage. */
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		alarm(60);
		FAILS(EPERM, lanefs_read_into(st, b, m, 0, 1000, NULL));
		FAILS(EPERM, lanefs_open(s, fd, &a));
		calls(NULL);
		lanefs_stage_free(st); /* whose thread, and whose objects of the GPU's, are the parent's */
		WANT(calls("") == 0);
		_exit(0);
	}
	int status;
	WANT(waitpid(child, &status, 0) == child && status == 0 && mem_free(m) == 0);
}

int main(int argc, char **argv)
{
	struct stat st;
	uint32_t f;
	if (argc == 1) { /* which device this process's is, and which one has that name */
		char name[64];
		WANT(lanefs_gpu_current(0, name, sizeof name) == 0);
		struct gpu *g = lanefs_gpu_find(0, name, 0);
		WANT(g && !lanefs_gpu_find(0, "MIG-00000000-0000-0000-0000-000000000000", 0) && errno == ENODEV);
		printf("%s %d\n", name, g->ordinal);
		return 0;
	}
	int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
	WANT(fd >= 0 && fstat(fd, &st) == 0);
	alarm(400);
	load();
	lanefs *s = lanefs_connect(fd);
	lanefs_stage *stage = s ? lanefs_stage_new(s, 0) : NULL;
	WANT(stage && lanefs_open(s, fd, &f) == 0);
	no_image(stage, f);
	devices(stage, f);
	missing(stage, f);
	managed(stage, f);
	pinned(s, f, (uint64_t)st.st_size); /* before the default stream has a function on it, and so a thread */
	streams(stage, f);
	mixed(stage, f);
	shapes(stage, f, fd, (uint64_t)st.st_size);
	others(s, f, 0);
	others(s, f, 1);
	grows(s, f, fd, (uint64_t)st.st_size);
	partly(s, f);
	marks(stage, f);
	late(stage, f);
	handles(s, stage, fd, (uint64_t)st.st_size);
	lanefs_stage_free(stage);
	WANT(calls("cuEventCreate") > 0 && calls("cuEventDestroy_v2") == calls("cuEventCreate") && calls("cuMemHostUnregister") == calls("cuMemHostRegister_v2"));
	lanefs_close(s);
	puts("ok");
	return 0;
}
