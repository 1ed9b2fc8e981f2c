/*
 * Reads of a file into memory of a GPU by cuFile's interface: cufilebench LABEL LIBRARY FILE SECONDS. Prints "LABEL threads bytes µs-a-read GB/s %" for
 * 1 and 8 threads and reads of 4 KiB to 16 MiB, each for so many seconds, of which so many per cent are in reads of more than a millisecond, after half as many that do not count: libraries load kernels at first, and try ways; then the same for batches of 64 requests of 4 KiB to 1 MiB at places of no order, with "batch" for
 * the threads and the time of a request.  FILE's 8-byte words are their own offsets, which is checked, and it
 * has 256 MiB or more. LIBRARY is libcufile's path. With "host" as a fifth argument the memory is ordinary memory, where there is no GPU; with "small" it
 * reads up to 64 KiB, without batches; with "batches" it makes batches of up to 64 KiB only, of which "one" has its memory in one piece, and "rows" in one
 * buffer with gaps; with "batches host" likewise in ordinary memory.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LANEFS_NO_CUDA_H
#include "cufile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); exit(1); } } while (0)

#define LONG 1e-3 /* s */
enum { MOST = 16 << 20, THREADS = 8, REQUESTS = 64, MOST_REQUEST = 1 << 20 };

static CUfileError_t (*driver_open)(void), (*handle_register)(CUfileHandle_t *, CUfileDescr_t *), (*buf_register)(const void *, size_t, int);
static ssize_t (*cufile_read)(CUfileHandle_t, void *, size_t, off_t, off_t);
static int (*ctx_set)(void *), (*mem_alloc)(void **, size_t), (*copy_back)(void *, void *, size_t);
static void *context;
static CUfileHandle_t handle;
static uint64_t size;
static double seconds;

struct worker {
	pthread_t thread;
	unsigned i, of;
	size_t chunk;
	char *memory;
	uint64_t reads;
	double took, long_ones; /* seconds: all, and in reads of more than LONG */
};

static pthread_barrier_t barrier;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The last read's bytes. */
static void prove(struct worker *w, uint64_t at)
{
	uint64_t *host = malloc(w->chunk);
	WANT(host);
	if (copy_back)
		WANT(copy_back(host, w->memory, w->chunk) == 0);
	else
		memcpy(host, w->memory, w->chunk);
	for (size_t i = 0; i < w->chunk / 8; i++)
		WANT(host[i] == at + 8 * i);
	free(host);
}

/* Chunks of the file in order, the threads' in turn, over and over. */
static void *work(void *arg)
{
	struct worker *w = arg;
	if (ctx_set)
		WANT(ctx_set(context) == 0);
	uint64_t chunks = size / w->chunk, k = w->i, at = 0;
	for (int counts = 0; counts < 2; counts++) {
		pthread_barrier_wait(&barrier);
		double start = now(), end = start + (counts ? seconds : seconds / 2);
		w->reads = 0;
		w->long_ones = 0;
		double last = start;
		while (w->reads < 2 || last < end) {
			at = k % chunks * w->chunk;
			k += w->of;
			ssize_t n = cufile_read(handle, w->memory, w->chunk, (off_t)at, 0);
			if (n != (ssize_t)w->chunk) {
				fprintf(stderr, "cuFileRead of %zu bytes at %llu: %zd\n", w->chunk, (unsigned long long)at, n);
				exit(1);
			}
			if (!counts && w->reads % 64 == 0 && w->chunk <= 65536) /* in the time that does not count */
				prove(w, at);
			w->reads++;
			double t = now();
			if (t - last > LONG)
				w->long_ones += t - last;
			last = t;
		}
		w->took = now() - start;
	}
	prove(w, at);
	return NULL;
}

static CUfileError_t (*batch_setup)(CUfileBatchHandle_t *, unsigned), (*batch_submit)(CUfileBatchHandle_t, unsigned, CUfileIOParams_t *, unsigned);
static CUfileError_t (*batch_status)(CUfileBatchHandle_t, unsigned, unsigned *, CUfileIOEvents_t *, struct timespec *);

/* Where a batch's requests have their memory: by turns in the workers' buffers, or in one, without gaps or with. */
enum layout { TURNS, ONE, ROWS };
static const char *const layouts[] = {"batch", "one", "rows"};

static char *place(struct worker *w, enum layout l, unsigned i, size_t chunk)
{
	return l == TURNS ? w[i % THREADS].memory + i / THREADS * chunk : w[0].memory + i * chunk * (l == ROWS ? 2 : 1);
}

static void batches(const char *label, struct worker *w, size_t chunk, enum layout layout)
{
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[REQUESTS];
	CUfileIOEvents_t e[REQUESTS];
	uint64_t rounds = 0, seed = 1;
	CUfileError_t failed = batch_setup(&b, REQUESTS);
	if (failed.err) {
		fprintf(stderr, "%s: no batches: cuFile error %d\n", label, (int)failed.err);
		return;
	}
	double start = now();
	int counts = 0;
	while (rounds < 2 || now() - start < seconds) {
		if (!counts && rounds >= 2 && now() - start >= seconds / 2) {
			counts = 1;
			rounds = 0;
			start = now();
		}
		memset(p, 0, sizeof p);
		for (unsigned i = 0; i < REQUESTS; i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			p[i].mode = CUFILE_BATCH;
			p[i].fh = handle;
			p[i].opcode = CUFILE_READ;
			p[i].cookie = &p[i];
			p[i].u.batch.devPtr_base = w[layout == TURNS ? i % THREADS : 0].memory;
			p[i].u.batch.devPtr_offset = place(w, layout, i, chunk) - (char *)p[i].u.batch.devPtr_base;
			p[i].u.batch.file_offset = (off_t)((seed >> 20) % (size / chunk) * chunk);
			p[i].u.batch.size = chunk;
		}
		failed = batch_submit(b, REQUESTS, p, 0);
		if (failed.err) {
			fprintf(stderr, "%s: a batch of %zu bytes each: cuFile error %d\n", label, chunk, (int)failed.err);
			return;
		}
		for (unsigned got = 0, n; got < REQUESTS; got += n) {
			n = REQUESTS;
			failed = batch_status(b, REQUESTS - got, &n, e, NULL);
			WANT(failed.err == 0);
			for (unsigned i = 0; i < n; i++)
				if (e[i].status != CUFILE_COMPLETE || e[i].ret != chunk) {
					fprintf(stderr, "%s: a batch's request of %zu bytes: status %d, %zd\n", label, chunk, (int)e[i].status, (ssize_t)e[i].ret);
					return;
				}
		}
		rounds++;
	}
	double took = now() - start;
	for (unsigned i = 0; i < REQUESTS; i++) {
		struct worker one = {.memory = (char *)p[i].u.batch.devPtr_base + p[i].u.batch.devPtr_offset, .chunk = chunk};
		prove(&one, (uint64_t)p[i].u.batch.file_offset);
	}
	printf("%s %s %zu %.2f %.3f\n", label, layouts[layout], chunk, took / (double)(rounds * REQUESTS) * 1e6, (double)(rounds * REQUESTS * chunk) / took / 1e9);
	fflush(stdout);
}

static void *symbol(void *lib, const char *name)
{
	void *p = dlsym(lib, name);
	if (!p) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return p;
}

static void gpu(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	WANT(lib);
	int (*init)(unsigned) = (int (*)(unsigned))symbol(lib, "cuInit"), (*retain)(void **, int) = (int (*)(void **, int))symbol(lib, "cuDevicePrimaryCtxRetain");
	ctx_set = (int (*)(void *))symbol(lib, "cuCtxSetCurrent");
	mem_alloc = (int (*)(void **, size_t))symbol(lib, "cuMemAlloc_v2");
	copy_back = (int (*)(void *, void *, size_t))symbol(lib, "cuMemcpyDtoH_v2");
	WANT(init(0) == 0 && retain(&context, 0) == 0 && ctx_set(context) == 0);
}

int main(int argc, char **argv)
{
	static struct worker w[THREADS];
	WANT(argc >= 5);
	void *lib = dlopen(argv[2], RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	driver_open = (CUfileError_t(*)(void))symbol(lib, "cuFileDriverOpen");
	handle_register = (CUfileError_t(*)(CUfileHandle_t *, CUfileDescr_t *))symbol(lib, "cuFileHandleRegister");
	buf_register = (CUfileError_t(*)(const void *, size_t, int))symbol(lib, "cuFileBufRegister");
	cufile_read = (ssize_t(*)(CUfileHandle_t, void *, size_t, off_t, off_t))symbol(lib, "cuFileRead");
	batch_setup = (CUfileError_t(*)(CUfileBatchHandle_t *, unsigned))symbol(lib, "cuFileBatchIOSetUp");
	batch_submit = (CUfileError_t(*)(CUfileBatchHandle_t, unsigned, CUfileIOParams_t *, unsigned))symbol(lib, "cuFileBatchIOSubmit");
	batch_status = (CUfileError_t(*)(CUfileBatchHandle_t, unsigned, unsigned *, CUfileIOEvents_t *, struct timespec *))symbol(lib, "cuFileBatchIOGetStatus");
	seconds = atof(argv[4]);
	int alone = argc > 5 && strcmp(argv[5], "batches") == 0, host = argc > 5 && strcmp(argv[argc - 1], "host") == 0;
	size_t largest = argc > 5 && strcmp(argv[5], "small") == 0 ? 65536 : MOST;
	if (!host)
		gpu();
	CUfileDescr_t d;
	struct stat st;
	memset(&d, 0, sizeof d);
	d.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
	d.handle.fd = open(argv[3], O_RDONLY);
	WANT(d.handle.fd >= 0 && fstat(d.handle.fd, &st) == 0 && st.st_size >= 256 << 20);
	size = (uint64_t)st.st_size;
	CUfileError_t e = driver_open();
	if (e.err == 0)
		e = handle_register(&handle, &d);
	if (e.err != 0) {
		fprintf(stderr, "%s: cuFile error %d\n", argv[1], (int)e.err);
		return 1;
	}
	for (int i = 0; i < THREADS; i++) {
		if (mem_alloc)
			WANT(mem_alloc((void **)&w[i].memory, MOST) == 0);
		else
			WANT((w[i].memory = aligned_alloc(4096, MOST)) && memset(w[i].memory, 1, MOST));
		e = buf_register(w[i].memory, MOST, 0);
		WANT(e.err == 0);
	}
	if (alone) {
		for (enum layout l = TURNS; l <= ROWS; l++)
			for (size_t chunk = 4096; chunk <= 65536; chunk *= 4)
				batches(argv[1], w, chunk, l);
		return 0;
	}
	double start = now();
	for (uint64_t at = 0; at + MOST <= size; at += MOST)
		WANT(cufile_read(handle, w[0].memory, MOST, (off_t)at, 0) == MOST);
	printf("# %s reads the file for the first time: %.3f GB/s\n", argv[1], (double)(size / MOST * MOST) / (now() - start) / 1e9);
	for (unsigned threads = 1; threads <= THREADS; threads *= THREADS)
		for (size_t chunk = 4096; chunk <= largest; chunk *= 4) {
			uint64_t reads = 0;
			double took = 0, all = 0, long_ones = 0;
			pthread_barrier_init(&barrier, NULL, threads);
			for (unsigned i = 0; i < threads; i++) {
				w[i].i = i;
				w[i].of = threads;
				w[i].chunk = chunk;
				w[i].reads = 0;
				WANT(pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
			}
			for (unsigned i = 0; i < threads; i++) {
				WANT(pthread_join(w[i].thread, NULL) == 0);
				reads += w[i].reads;
				took = w[i].took > took ? w[i].took : took;
				all += w[i].took;
				long_ones += w[i].long_ones;
			}
			pthread_barrier_destroy(&barrier);
			printf("%s %u %zu %.2f %.3f %.0f\n", argv[1], threads, chunk, took * threads / (double)reads * 1e6, (double)reads * (double)chunk / took / 1e9, 100 * long_ones / all);
			fflush(stdout);
		}
	for (size_t chunk = 4096; chunk <= MOST_REQUEST && largest == MOST; chunk *= 4)
		batches(argv[1], w, chunk, TURNS);
	return 0;
}
