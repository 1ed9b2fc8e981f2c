/*
 * The ways of a batch into memory of a program, by size: waysbench FILE cuda|host|cpu [SIZE:COUNT...]. FILE's 8-byte words are their own offsets, 64 MiB of them at
 * least. With SIZE:COUNT only reads by the stage of so many pieces of so many bytes are measured; with "cpu" what the CPU makes of them that would come
 * by the stage, but stays there: "filled" by a ring into memory as a stage has it, "memcpy" by as many threads as half the CPUs from the file's pages, mapped. Else for each size from 4 KiB to 64 MiB a batch of up to 64 MiB is read, and written back, by the stage, by legacy IPC (LANEFS_LEGACY) and
 * into memory that the daemon exported. With "host" the memory is malloc's, which legacy IPC does not know. Each row is the median of
 * several calls; it is proved by the library's counts that the batch went that way, and by the bytes that it read.
 */
#define _GNU_SOURCE
#include "lanefs.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

enum { MOST = 4096, MANY = 1024, RUNS = 31 };
static const uint64_t file_room = 64 << 20;
static uint64_t room = 64 << 20; /* of the memory */
static int reads;                /* no writes */

static lanefs *s;
static lanefs_stage *stage;
static uint32_t file;
static int (*copy_back)(void *, uint64_t, size_t), (*copy_to)(uint64_t, const void *, size_t), (*wait)(void); /* NULL: the memory is the CPU's */
static int (*give)(uint64_t), (*alloc)(void **, size_t);

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int less(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b; }

static uint64_t moved(const char *way) /* how many pieces went that way */
{
	struct lanefs_ways w;
	lanefs_stage_ways(stage, &w);
	return strcmp(way, "stage") == 0 ? w.kernel + w.copies + w.host : strcmp(way, "exported") == 0 ? w.direct : w.legacy;
}

static void prove(void *at, const struct lanefs_piece *p, unsigned n, uint64_t *host)
{
	for (unsigned i = 0; i < n; i++) {
		if (copy_back)
			WANT(copy_back(host, (uint64_t)(uintptr_t)at + p[i].memory_offset, p[i].length) == 0);
		else
			memcpy(host, (char *)at + p[i].memory_offset, p[i].length);
		for (uint64_t k = 0; k < p[i].length / 8; k++)
			if (host[k] != p[i].file_offset + 8 * k) {
				fprintf(stderr, "WRONG BYTES: piece %u, word %llu\n", i, (unsigned long long)k);
				exit(1);
			}
	}
}

/* Two rows: reads of n pieces of size bytes in one call, and writes of what was read. "anew": of memory that was allocated just before, which the
 * daemon does not know. */
static void rows(const char *way, void **memory, uint64_t size, unsigned n, uint64_t *host)
{
	int anew = strcmp(way, "anew") == 0;
	void *at = *memory;
	static struct lanefs_piece p[MOST];
	double took[RUNS];
	for (unsigned i = 0; i < n; i++)
		p[i] = (struct lanefs_piece){(uint64_t)i * 7919 % (file_room / size) * size, i * size, size};
	memset(host, 0, room);
	if (copy_to)
		WANT(copy_to((uint64_t)(uintptr_t)at, host, n * size) == 0);
	else
		memset(at, 0, n * size);
	for (int write = 0; write < 2 - (reads || anew); write++) {
		uint64_t before = moved(way);
		int runs = n * size > (uint64_t)16 << 20 && !reads ? RUNS / 3 : RUNS;
		for (int r = 0; r < runs; r++) {
			if (anew)
				WANT(give((uint64_t)(uintptr_t)at) == 0 && alloc(memory, room) == 0 && (at = *memory));
			double start = now();
			int64_t got = write ? lanefs_write_batch(stage, file, at, p, n, NULL, NULL) : lanefs_read_batch(stage, file, at, p, n, NULL, NULL);
			WANT(got == (int64_t)(n * size) && (!wait || wait() == 0));
			took[r] = now() - start;
		}
		if (moved(way) - before < (uint64_t)runs * n) {
			fprintf(stderr, "%s, %llu bytes: it went another way\n", way, (unsigned long long)size);
			exit(1);
		}
		qsort(took, (size_t)runs, sizeof *took, less);
		double t = took[runs / 2];
		printf("ways: %-5s %-8s %8llu B x %-4u %10.1f us %8.2f GB/s\n", write ? "write" : "read", way, (unsigned long long)size, n, t * 1e6, (double)(n * size) / t / 1e9);
		fflush(stdout);
		if (!write)
			prove(at, p, n, host);
	}
}

static struct { /* threads that copy pieces, in turns with the one that takes the time */
	pthread_barrier_t turn;
	atomic_uint next;
	unsigned n;
	uint64_t size;
	const char *from;
	char *to;
	int end;
} copies;

static void *copy(void *unused)
{
	for (;;) {
		pthread_barrier_wait(&copies.turn);
		if (copies.end)
			return unused;
		for (unsigned i; (i = atomic_fetch_add(&copies.next, 1)) < copies.n;)
			memcpy(copies.to + i * copies.size % file_room, copies.from + (uint64_t)i * 7919 % (file_room / copies.size) * copies.size, copies.size);
		pthread_barrier_wait(&copies.turn);
	}
}

/* What the CPU makes of n pieces of size bytes without the second half of their way. */
static void row_of_cpu(int ring, int fd, char *to, uint32_t memory, uint64_t size, unsigned n)
{
	enum { FLYING = 256, TAKE = 64, THREADS = 64 };
	static struct lanefs_request q[MOST];
	struct lanefs_completion c[TAKE];
	pthread_t threads[THREADS];
	double took[RUNS];
	long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;
	unsigned many = half < 1 ? 1 : half > THREADS ? THREADS : (unsigned)half;
	lanefs_ring *r = lanefs_ring_new(s, FLYING);
	WANT(r && size <= file_room && file_room % size == 0);
	for (unsigned i = 0; i < n; i++)
		q[i] = (struct lanefs_request){.data = i, .op = LANEFS_READ, .file = file, .memory = memory, .file_offset = (uint64_t)i * 7919 % (file_room / size) * size,
			.memory_offset = i * size % file_room, .length = size};
	copies.n = n, copies.size = size, copies.to = to, copies.end = 0;
	WANT((copies.from = mmap(NULL, file_room, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0)) != MAP_FAILED && pthread_barrier_init(&copies.turn, NULL, many + 1) == 0);
	for (unsigned i = 0; i < many; i++)
		WANT(pthread_create(&threads[i], NULL, copy, NULL) == 0);
	memset(to, 0, file_room);
	for (int run = 0; run < RUNS; run++) {
		double start = now();
		if (ring) {
			for (unsigned begun = 0, done = 0; done < n;) {
				unsigned more = n - begun < FLYING - (begun - done) ? n - begun : FLYING - (begun - done);
				WANT(!more || lanefs_ring_submit(r, q + begun, more) == (int)more);
				begun += more;
				int got = lanefs_ring_reap(r, c, TAKE, 60000);
				WANT(got > 0);
				for (int i = 0; i < got; i++)
					WANT(c[i].result == (int64_t)size);
				done += (unsigned)got;
			}
		} else {
			atomic_store(&copies.next, 0);
			pthread_barrier_wait(&copies.turn);
			pthread_barrier_wait(&copies.turn);
		}
		took[run] = now() - start;
	}
	copies.end = 1;
	pthread_barrier_wait(&copies.turn);
	for (unsigned i = 0; i < many; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&copies.turn);
	munmap((void *)copies.from, file_room);
	lanefs_ring_free(r);
	for (unsigned i = n * size > file_room ? n - (unsigned)(file_room / size) : 0; i < n; i++) /* what came last */
		for (uint64_t k = 0; k < size / 8; k++)
			WANT(((uint64_t *)(to + i * size % file_room))[k] == q[i].file_offset + 8 * k);
	qsort(took, RUNS, sizeof *took, less);
	double t = took[RUNS / 2];
	printf("ways: read  %-8s %8llu B x %-4u %10.1f us %8.2f GB/s\n", ring ? "filled" : "memcpy", (unsigned long long)size, n, t * 1e6, (double)(n * size) / t / 1e9);
	fflush(stdout);
}

static void by_cpu(int fd, int argc, char **argv)
{
	uint32_t memory;
	int m = memfd_create("waysbench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char *to;
	WANT(m >= 0 && ftruncate(m, (off_t)file_room) == 0 && (to = mmap(NULL, file_room, PROT_READ | PROT_WRITE, MAP_SHARED, m, 0)) != MAP_FAILED);
	WANT(lanefs_register(s, m, LANEFS_MEMFD, 0, file_room, &memory) == 0);
	for (int i = 0; i < argc; i++)
		for (int ring = 1; ring >= 0; ring--) {
			unsigned long long size;
			unsigned n;
			sscanf(argv[i], "%llu:%u", &size, &n);
			row_of_cpu(ring, fd, to, memory, size, n);
		}
	WANT(lanefs_release(s, memory) == 0);
}

int main(int argc, char **argv)
{
	WANT(argc >= 2);
	int onhost = argc > 2 && strcmp(argv[2], "host") == 0, fd = open(argv[1], O_RDWR);
	struct lanefs_buffer exported;
	void *at = NULL, *device;
	reads = argc > 3;
	for (int i = 3; i < argc; i++) {
		unsigned long long size, n;
		WANT(sscanf(argv[i], "%llu:%llu", &size, &n) == 2 && size > 0 && size <= file_room && n > 0 && n <= MOST);
		room = size * n > room ? size * n : room;
	}
	uint64_t *host = malloc(room);
	WANT(fd >= 0 && host && (s = lanefs_connect(fd)) && lanefs_open(s, fd, &file) == 0 && (stage = lanefs_stage_new(s, 64 << 20)));
	if (argc > 2 && strcmp(argv[2], "cpu") == 0) {
		by_cpu(fd, argc - 3, argv + 3);
		lanefs_stage_free(stage);
		lanefs_close(s);
		return 0;
	}
	WANT(lanefs_map(s, fd, 0, room, LANEFS_PRIVATE | LANEFS_EMPTY, &exported) == 0);
	device = exported.data;
	if (onhost) {
		WANT((at = malloc(room)) && device);
	} else {
		void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
		int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
		WANT(lib && (*(void **)&init = dlsym(lib, "cuInit")) && (*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain")) &&
			(*(void **)&set = dlsym(lib, "cuCtxSetCurrent")) && (*(void **)&alloc = dlsym(lib, "cuMemAlloc_v2")) && (*(void **)&give = dlsym(lib, "cuMemFree_v2")) &&
			(*(void **)&copy_back = dlsym(lib, "cuMemcpyDtoH_v2")) && (*(void **)&copy_to = dlsym(lib, "cuMemcpyHtoD_v2")) && (*(void **)&wait = dlsym(lib, "cuCtxSynchronize")));
		WANT(init(0) == 0 && retain(&context, 0) == 0 && set(context) == 0 && alloc(&at, room) == 0);
		if (!device)
			WANT(lanefs_gpu_map(s, &exported, &device) == 0);
	}
	for (int i = 3; i < argc; i++) {
		unsigned long long size;
		unsigned n;
		sscanf(argv[i], "%llu:%u", &size, &n);
		rows("stage", &at, size, n, host);
	}
	for (uint64_t size = 4096; size <= room && !reads; size *= 4) {
		unsigned many = (unsigned)(room / size < MANY ? room / size : MANY);
		for (unsigned n = 1;; n = many) {
			unsetenv("LANEFS_LEGACY");
			rows("stage", &at, size, n, host);
			if (!onhost) {
				setenv("LANEFS_LEGACY", "1", 1);
				rows("legacy", &at, size, n, host);
				rows("anew", &at, size, n, host);
			}
			rows("exported", &device, size, n, host);
			if (n == many)
				break;
		}
	}
	if (onhost && !reads)
		printf("ways: legacy IPC is for a GPU's memory\n");
	lanefs_stage_free(stage);
	lanefs_unmap(s, &exported);
	lanefs_close(s);
	return 0;
}
