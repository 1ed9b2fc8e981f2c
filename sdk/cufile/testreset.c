/*
 * Run by a test beside this, and on a GPU by lab/gpu/run: testreset FILE OTHER, files of the same bytes as test.c's, on a mount and not on LaneFS. The program resets the device again and again, as
 * cudaDeviceReset does, with files, buffers, streams and batches registered, and goes on with new memory. Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)
#define OK(call) do { CUfileError_t e_ = (call); if (e_.err) { fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)e_.err); exit(1); } } while (0)

enum { SIZE = 5 << 20, ALL = SIZE + 17, TURNS = 7, THREADS = 3, BATCH = 16, KNOWN = 15, NON_BLOCKING = 1, HELD = 4 };

static struct {
	int (*init)(unsigned), (*retain)(void **, int), (*reset)(int), (*current)(void *), (*malloc)(void **, size_t), (*set)(void *, unsigned char, size_t, void *);
	int (*create)(void **, unsigned), (*sync)(void *), (*back)(void *, const void *, size_t);
} cuda;

static void *context;
static CUfileHandle_t handle[2];
static unsigned char *memory; /* of the device */
static pthread_barrier_t turn;
static _Atomic int over;

static void load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	WANT(lib);
	const struct { void *at; const char *name; } all[] = {{&cuda.init, "cuInit"}, {&cuda.retain, "cuDevicePrimaryCtxRetain"}, {&cuda.reset, "cuDevicePrimaryCtxReset_v2"}, {&cuda.current, "cuCtxSetCurrent"},
		{&cuda.malloc, "cuMemAlloc_v2"}, {&cuda.set, "cuMemsetD8Async"}, {&cuda.create, "cuStreamCreate"}, {&cuda.sync, "cuStreamSynchronize"}, {&cuda.back, "cuMemcpyDtoH_v2"}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		WANT((*(void **)all[i].at = dlsym(lib, all[i].name)));
}

/* Whether n bytes of the device's are the file's from off on. */
static int right(const unsigned char *at, uint64_t off, size_t n)
{
	unsigned char *p = malloc(n);
	int yes = p && cuda.back(p, at, n) == 0;
	for (size_t i = 0; yes && i < n; i++)
		yes = p[i] == (off + i) % 251;
	free(p);
	return yes;
}

static void reads(unsigned char *m)
{
	static const size_t sizes[] = {4096, 16384, 65536, 1 << 20, SIZE};
	for (int f = 0; f < 2; f++)
		for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
			for (int again = 0; again < 3; again++) {
				WANT(cuFileRead(handle[f], m, sizes[i], i * 13 + again, 0) == (ssize_t)(sizes[i] < ALL - i * 13 - again ? sizes[i] : ALL - i * 13 - again));
				WANT(right(m, i * 13 + again, sizes[i] - 100));
			}
}

static void writes(unsigned char *m)
{
	for (int f = 0; f < 2; f++)
		for (size_t n = 4096; n <= 1 << 20; n *= 16) {
			WANT(cuFileRead(handle[f], m, n, 3 * 251, 0) == (ssize_t)n);
			WANT(cuFileWrite(handle[f], m, n, 251, 0) == (ssize_t)n); /* the same bytes */
		}
}

static void batch(unsigned char *m)
{
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[BATCH];
	CUfileIOEvents_t e[BATCH];
	memset(p, 0, sizeof p);
	for (int i = 0; i < BATCH; i++)
		p[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .u.batch = {m, i * 4001, i * 16384, 16384}, .fh = handle[i % 2], .opcode = CUFILE_READ, .cookie = &p[i]};
	OK(cuFileBatchIOSetUp(&b, BATCH));
	OK(cuFileBatchIOSubmit(b, BATCH, p, 0));
	for (unsigned got = 0, n; got < BATCH; got += n) {
		n = BATCH;
		OK(cuFileBatchIOGetStatus(b, 1, &n, e, NULL));
		for (unsigned i = 0; i < n; i++)
			WANT(e[i].status == CUFILE_COMPLETE && e[i].ret == 16384);
	}
	cuFileBatchIODestroy(b);
	for (int i = 0; i < BATCH; i++)
		WANT(right(m + i * 16384, i * 4001, 16384));
}

struct call { size_t n; off_t offset, at; ssize_t got; };

/* Calls on a stream that is registered, and, if they are to be found out of, not waited for. */
static void on_stream(unsigned char *m, struct call *left)
{
	void *s;
	struct call c[HELD];
	WANT(cuda.create(&s, NON_BLOCKING) == 0);
	OK(cuFileStreamRegister((CUstream)s, KNOWN));
	for (int i = 0; i < HELD; i++) {
		struct call *k = left ? &left[i] : &c[i];
		*k = (struct call){65536, i * 1000, i * 65536, -7};
		OK(cuFileReadAsync(handle[0], m, &k->n, &k->offset, &k->at, &k->got, (CUstream)s));
	}
	if (left)
		return; /* with the stream registered */
	WANT(cuda.sync(s) == 0);
	for (int i = 0; i < HELD; i++)
		WANT(c[i].got == 65536 && right(m + i * 65536, i * 1000, 65536));
	OK(cuFileStreamDeregister((CUstream)s));
}

static void *thread(void *number)
{
	size_t at = (size_t)number * 4096;
	for (;;) {
		pthread_barrier_wait(&turn); /* there is memory */
		if (over)
			return NULL;
		WANT(cuda.current(context) == 0);
		for (int i = 0; i < 20; i++) {
			WANT(cuFileRead(handle[i % 2], memory, 4096, 777 + i, (off_t)at) == 4096);
			WANT(right(memory + at, 777 + (uint64_t)i, 4096));
		}
		pthread_barrier_wait(&turn); /* all have read */
	}
}

int main(int argc, char **argv)
{
	static struct call left[TURNS][HELD];
	static unsigned char plain[SIZE];
	pthread_t t[THREADS];
	WANT(argc == 3);
	load();
	WANT(cuda.init(0) == 0);
	OK(cuFileDriverOpen());
	for (int i = 0; i < 2; i++) {
		CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = open(argv[1 + i], O_RDWR)};
		WANT(d.handle.fd >= 0);
		OK(cuFileHandleRegister(&handle[i], &d));
	}
	pthread_barrier_init(&turn, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_create(&t[i], NULL, thread, (void *)(size_t)(i + 1)) == 0);
	for (int i = 0; i < TURNS; i++) {
		void *m;
		WANT(cuda.retain(&context, 0) == 0 && cuda.current(context) == 0 && cuda.malloc(&m, SIZE + 4096) == 0 && cuda.set(m, 'x', SIZE, NULL) == 0 && cuda.sync(NULL) == 0);
		memory = m;
		if (i % 2)
			OK(cuFileBufRegister(m, SIZE, 0));
		pthread_barrier_wait(&turn);
		pthread_barrier_wait(&turn);
		reads(m);
		writes(m);
		batch(m);
		on_stream(m, NULL);
		on_stream(m, left[i]);
		WANT(cuda.reset(0) == 0);
		for (int j = 0; j < 2; j++) { /* what is no memory any more, and what is the CPU's */
			ssize_t got = cuFileRead(handle[j], m, 4096, 0, 0);
			WANT(got < 0);
			WANT(cuFileRead(handle[j], plain, SIZE, 0, 0) == SIZE);
			for (int k = 0; k < SIZE; k += 4099)
				WANT(plain[k] == k % 251);
		}
		if (i % 2)
			OK(cuFileBufDeregister(m));
	}
	over = 1;
	pthread_barrier_wait(&turn);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < 2; i++)
		cuFileHandleDeregister(handle[i]);
	OK(cuFileDriverClose()); /* with the device reset, and streams registered that are no more */
	for (int i = 0; i < TURNS; i++)
		for (int j = 0; j < HELD; j++)
			WANT(left[i][j].got != -7); /* done, or not: nobody waits for it */
	printf("ok\n");
	return 0;
}
