/*
 * Reads and writes of a file of a LaneFS mount through rings, between the file and device memory of the daemon's that this program holds
 * alone: ringbench FILE SECONDS [-write] [BYTES DEPTH THREADS]. FILE's 8-byte words are their own offsets; it is changed by -write, and put
 * back. Each row prints requests a second and GB/s; each thread has a ring of its own and its part of the depth. What arrived last in each
 * place is compared.
 *
 * ringbench FILE fill BYTES makes such a file. ringbench FILE whole reads all of it in one request, again and again, beside plain copies of as much pinned memory.
 */
#define _GNU_SOURCE
#include "lanefs.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

enum { MOST = 4096, TAKE = 256, THREADS = 16 };

static lanefs *s;
static uint32_t file;
static struct lanefs_buffer memory;
static void *device; /* the memory's address on the GPU */
static int (*copy_back)(void *, uint64_t, size_t), (*copy_there)(uint64_t, const void *, size_t), (*pinned)(void **, size_t, unsigned);
static uint64_t size;
static double seconds;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t random64(uint64_t *seed)
{
	*seed ^= *seed << 13, *seed ^= *seed >> 7;
	return *seed ^= *seed << 17;
}

static void prove(const uint64_t *at, uint64_t n, unsigned depth)
{
	uint64_t *host = malloc(n);
	WANT(host);
	for (unsigned i = 0; i < depth; i++) {
		if (memory.data)
			memcpy(host, (char *)memory.data + i * n, n);
		else
			WANT(copy_back(host, (uint64_t)(uintptr_t)device + i * n, n) == 0);
		for (uint64_t k = 0; k < n / 8; k++)
			if (host[k] != at[i] + 8 * k) {
				fprintf(stderr, "WRONG BYTES: place %u, word %llu: %llx instead of %llx\n", i, (unsigned long long)k, (unsigned long long)host[k],
					(unsigned long long)(at[i] + 8 * k));
				exit(1);
			}
	}
	free(host);
}

struct worker {
	pthread_t thread;
	lanefs_ring *ring;
	uint32_t op;
	uint64_t n, seed, done;
	unsigned depth;
	uint64_t first; /* place in the memory */
	uint64_t *at;   /* of each place, what was moved last */
	double end;
};

static pthread_barrier_t barrier;

/* Keeps depth requests of n bytes at random in flight. A write puts back the bytes that belong there. */
static void *work(void *arg)
{
	struct worker *w = arg;
	struct lanefs_request *q = calloc(w->depth, sizeof *q), *next = calloc(TAKE, sizeof *next);
	struct lanefs_completion *c = calloc(TAKE, sizeof *c);
	WANT(q && next && c);
	for (unsigned i = 0; i < w->depth; i++) {
		if (w->op == LANEFS_READ)
			w->at[i] = random64(&w->seed) % (size / w->n) * w->n;
		q[i] = (struct lanefs_request){.data = i, .op = w->op, .file = file, .memory = memory.handle, .file_offset = w->at[i],
			.memory_offset = (w->first + i) * w->n, .length = w->n};
	}
	pthread_barrier_wait(&barrier);
	double start = now();
	WANT(lanefs_ring_submit(w->ring, q, w->depth) == (int)w->depth);
	for (unsigned flying = w->depth; flying;) {
		int got = lanefs_ring_reap(w->ring, c, TAKE, 60000);
		WANT(got > 0);
		w->end = now();
		w->done += (unsigned)got;
		flying -= (unsigned)got;
		unsigned more = 0;
		for (int i = 0; i < got; i++) {
			WANT(c[i].result == (int64_t)w->n);
			if (w->end - start >= seconds)
				continue;
			struct lanefs_request *p = &q[c[i].data];
			if (w->op == LANEFS_READ)
				p->file_offset = w->at[c[i].data] = random64(&w->seed) % (size / w->n) * w->n;
			next[more++] = *p;
		}
		if (more) {
			WANT(lanefs_ring_submit(w->ring, next, more) == (int)more);
			flying += more;
		}
	}
	free(q), free(next), free(c);
	return NULL;
}

static void row(uint32_t op, uint64_t n, unsigned depth, unsigned threads)
{
	static uint64_t at[MOST];
	struct worker w[THREADS] = {0};
	WANT(threads && threads <= THREADS && threads <= depth && depth <= MOST && depth * n <= memory.size);
	WANT(pthread_barrier_init(&barrier, NULL, threads + 1) == 0);
	uint64_t done = 0;
	for (unsigned i = 0, first = 0; i < threads; first += w[i++].depth) {
		w[i] = (struct worker){.op = op, .n = n, .seed = 88172645463325252u + i, .depth = depth / threads, .first = first, .at = at + first};
		w[i].ring = lanefs_ring_new(s, w[i].depth < 2 ? 2 : w[i].depth);
		WANT(w[i].ring && pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
	}
	pthread_barrier_wait(&barrier);
	double start = now(), end = start;
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(w[i].thread, NULL);
		lanefs_ring_free(w[i].ring);
		done += w[i].done;
		end = w[i].end > end ? w[i].end : end;
	}
	pthread_barrier_destroy(&barrier);
	printf("ring C: %s %llu B, %u in flight, %u rings: %.0f /s, %.2f GB/s\n", op == LANEFS_READ ? "read" : "write", (unsigned long long)n, depth, threads,
		(double)done / (end - start), (double)(done * n) / (end - start) / 1e9);
	fflush(stdout);
	prove(at, n, depth / threads * threads);
}

static int fill(const char *path, uint64_t bytes)
{
	enum { WORDS = 1 << 17 };
	static uint64_t words[WORDS];
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	WANT(fd >= 0);
	for (uint64_t at = 0; at < bytes;) {
		for (unsigned i = 0; i < WORDS; i++)
			words[i] = at + i * 8;
		uint64_t n = bytes - at < sizeof words ? bytes - at : sizeof words;
		WANT(write(fd, words, n) == (ssize_t)n);
		at += n;
	}
	WANT(close(fd) == 0);
	return 0;
}

/* One request for all of the file, as a program loads it. */
static void whole(void)
{
	enum { TIMES = 12, PLAIN = 3, PART = 1 << 30 };
	double took[TIMES], plain = 1e9;
	lanefs_ring *ring = lanefs_ring_new(s, 2);
	WANT(ring && size % PART == 0);
	for (unsigned i = 0; i < TIMES; i++) {
		struct lanefs_request q = {.op = LANEFS_READ, .file = file, .memory = memory.handle, .length = size};
		struct lanefs_completion c;
		double start = now();
		WANT(lanefs_ring_submit(ring, &q, 1) == 1 && lanefs_ring_reap(ring, &c, 1, 60000) == 1 && c.result == (int64_t)size);
		took[i] = now() - start;
		printf("whole file, load %u: %.2f GB/s\n", i + 1, (double)size / took[i] / 1e9);
	}
	lanefs_ring_free(ring);
	static uint64_t at[MOST];
	for (unsigned i = 0; i < MOST; i++)
		at[i] = i * (size / MOST);
	prove(at, size / MOST, MOST);
	if (memory.data)
		return;
	void *host;
	WANT(pinned(&host, PART, 0) == 0);
	memset(host, 7, PART);
	for (unsigned i = 0; i < PLAIN; i++) {
		double start = now();
		for (uint64_t off = 0; off < size; off += PART)
			WANT(copy_there((uint64_t)(uintptr_t)device + off, host, PART) == 0);
		plain = now() - start < plain ? now() - start : plain;
	}
	double best = took[0], sum = 0;
	for (unsigned i = 1; i < TIMES; i++)
		best = took[i] < best ? took[i] : best;
	for (unsigned i = TIMES / 2; i < TIMES; i++)
		sum += took[i];
	printf("whole file of %.1f GB: best %.2f GB/s, mean of the later half %.2f, a plain copy %.2f: %.0f and %.0f %% of it\n", (double)size / 1e9, (double)size / best / 1e9,
		(double)size * (TIMES - TIMES / 2) / sum / 1e9, (double)size / plain / 1e9, plain / best * 100, plain * (TIMES - TIMES / 2) / sum * 100);
}

int main(int argc, char **argv)
{
	static const struct { uint64_t n; unsigned depth, threads; } rows[] = {{4096, 1, 1}, {4096, 1024, 1}, {4096, 1024, 4}, {4096, 4096, 8}, {65536, 1, 1}, {65536, 256, 1}, {65536, 256, 4},
		{1 << 20, 64, 1}, {4 << 20, 16, 1}};
	WANT(argc >= 3);
	if (argc == 4 && strcmp(argv[2], "fill") == 0)
		return fill(argv[1], strtoull(argv[3], NULL, 10));
	int fd = open(argv[1], O_RDWR);
	struct stat st;
	WANT(fd >= 0 && fstat(fd, &st) == 0 && (size = (uint64_t)st.st_size) >= 256 << 20);
	seconds = atof(argv[2]);
	bool all = strcmp(argv[2], "whole") == 0;
	s = lanefs_connect(fd);
	WANT(s && lanefs_open(s, fd, &file) == 0 && lanefs_map(s, fd, 0, all ? size : 64 << 20, LANEFS_PRIVATE | LANEFS_EMPTY, &memory) == 0);
	if (!memory.data) {
		WANT(lanefs_gpu_map(s, &memory, &device) == 0);
		void *lib = dlopen("libcuda.so.1", RTLD_NOW);
		WANT(lib && (*(void **)&copy_back = dlsym(lib, "cuMemcpyDtoH_v2")) && (*(void **)&copy_there = dlsym(lib, "cuMemcpyHtoD_v2")));
		WANT((*(void **)&pinned = dlsym(lib, "cuMemHostAlloc")));
		int (*retain)(void **, int), (*set)(void *);
		void *context;
		WANT((*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain")) && (*(void **)&set = dlsym(lib, "cuCtxSetCurrent")));
		WANT(retain(&context, 0) == 0 && set(context) == 0);
	}
	if (all) {
		whole();
		lanefs_close(s);
		return 0;
	}
	int writes = argc > 3 && strcmp(argv[3], "-write") == 0;
	/* The first reading has the controller in software pin the image's pages. */
	seconds /= 4;
	row(LANEFS_READ, 1 << 20, 64, 1);
	row(LANEFS_READ, 1 << 20, 64, 1);
	seconds *= 4;
	printf("the image's pages were read before\n");
	bool one = argc == 6 + writes; /* the row of the command line only */
	for (unsigned i = 0; i < (one ? 1 : sizeof rows / sizeof *rows); i++) {
		uint64_t n = one ? strtoull(argv[3 + writes], NULL, 10) : rows[i].n;
		unsigned depth = one ? (unsigned)atoi(argv[4 + writes]) : rows[i].depth, threads = one ? (unsigned)atoi(argv[5 + writes]) : rows[i].threads;
		row(LANEFS_READ, n, depth, threads);
		if (writes) /* of what was read, so that the memory has bytes of known places */
			row(LANEFS_WRITE, n, depth, threads);
	}
	lanefs_unmap(s, &memory);
	lanefs_close(s);
	return 0;
}
