/*
 * Reads and writes of a file of a LaneFS mount through one ring, between the file and device memory of the daemon's that this program holds
 * alone: ringbench FILE SECONDS [-write] [BYTES DEPTH]. FILE's 8-byte words are their own offsets; it is changed by -write, and put back. Each row prints
 * requests a second and GB/s. What arrived last in each place is compared.
 */
#define _GNU_SOURCE
#include "lanefs.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

enum { MOST = 4096, TAKE = 256 };

static lanefs *s;
static uint32_t file;
static struct lanefs_buffer memory;
static void *device; /* the memory's address on the GPU */
static int (*copy_back)(void *, uint64_t, size_t);
static uint64_t size, seed = 88172645463325252u;
static double seconds;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t random64(void)
{
	seed ^= seed << 13, seed ^= seed >> 7;
	return seed ^= seed << 17;
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

/* Keeps depth requests of n bytes at random in flight. A write puts back the bytes that belong there. */
static void row(uint32_t op, uint64_t n, unsigned depth)
{
	static struct lanefs_request q[MOST];
	static struct lanefs_completion c[TAKE];
	static uint64_t at[MOST];
	lanefs_ring *r = lanefs_ring_new(s, depth < 2 ? 2 : depth);
	WANT(r && depth * n <= memory.size);
	for (unsigned i = 0; i < depth; i++) {
		if (op == LANEFS_READ || i >= size / n)
			at[i] = random64() % (size / n) * n;
		q[i] = (struct lanefs_request){.data = i, .op = op, .file = file, .memory = memory.handle, .file_offset = at[i], .memory_offset = i * n, .length = n};
	}
	uint64_t done = 0;
	double start = now(), end = start;
	WANT(lanefs_ring_submit(r, q, depth) == (int)depth);
	for (unsigned flying = depth; flying;) {
		int got = lanefs_ring_reap(r, c, TAKE, 60000);
		WANT(got > 0);
		end = now();
		done += (unsigned)got;
		flying -= (unsigned)got;
		unsigned more = 0;
		static struct lanefs_request next[TAKE];
		for (int i = 0; i < got; i++) {
			WANT(c[i].result == (int64_t)n);
			if (end - start >= seconds)
				continue;
			struct lanefs_request *p = &q[c[i].data];
			if (op == LANEFS_READ)
				p->file_offset = at[c[i].data] = random64() % (size / n) * n;
			next[more++] = *p;
		}
		if (more) {
			WANT(lanefs_ring_submit(r, next, more) == (int)more);
			flying += more;
		}
	}
	printf("ring C: %s %llu B at depth %u: %.0f /s, %.2f GB/s\n", op == LANEFS_READ ? "read" : "write", (unsigned long long)n, depth, (double)done / (end - start),
		(double)(done * n) / (end - start) / 1e9);
	fflush(stdout);
	prove(at, n, depth);
	lanefs_ring_free(r);
}

int main(int argc, char **argv)
{
	static const struct { uint64_t n; unsigned depth; } rows[] = {{4096, 1}, {4096, 1024}, {4096, 4096}, {65536, 1}, {65536, 256}, {1 << 20, 64}, {4 << 20, 16}};
	WANT(argc >= 3);
	int fd = open(argv[1], O_RDWR);
	struct stat st;
	WANT(fd >= 0 && fstat(fd, &st) == 0 && (size = (uint64_t)st.st_size) >= 256 << 20);
	seconds = atof(argv[2]);
	s = lanefs_connect(fd);
	WANT(s && lanefs_open(s, fd, &file) == 0 && lanefs_map(s, fd, 0, 64 << 20, LANEFS_PRIVATE | LANEFS_EMPTY, &memory) == 0);
	if (!memory.data) {
		WANT(lanefs_gpu_map(s, &memory, &device) == 0);
		void *lib = dlopen("libcuda.so.1", RTLD_NOW);
		WANT(lib && (*(void **)&copy_back = dlsym(lib, "cuMemcpyDtoH_v2")));
		int (*retain)(void **, int), (*set)(void *);
		void *context;
		WANT((*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain")) && (*(void **)&set = dlsym(lib, "cuCtxSetCurrent")));
		WANT(retain(&context, 0) == 0 && set(context) == 0);
	}
	int writes = argc > 3 && strcmp(argv[3], "-write") == 0;
	if (argc == 5 + writes)
		row(LANEFS_READ, strtoull(argv[3 + writes], NULL, 10), (unsigned)atoi(argv[4 + writes]));
	else
		for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
			row(LANEFS_READ, rows[i].n, rows[i].depth);
	for (unsigned i = 0; writes && i < sizeof rows / sizeof *rows; i++) {
		row(LANEFS_READ, rows[i].n, rows[i].depth); /* so that the memory has bytes of known places */
		row(LANEFS_WRITE, rows[i].n, rows[i].depth);
	}
	lanefs_unmap(s, &memory);
	lanefs_close(s);
	return 0;
}
