/* Run by the tests of cmd/lanefs: testgpu FILE KIND, a file of a mount on an AMD GPU, open to read and write, that is not empty,
 * and the kind of memory that there must be. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

enum { COPIES = 8, DEFAULT = 4, NON_BLOCKING = 1 };

/* Ordinary memory of the program, which the daemon's GPU does not know. */
static void host_memory(lanefs *s, int fd, size_t size)
{
	size_t n = (size + 4095) / 4096 * 4096;
	int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	WANT(memory >= 0 && ftruncate(memory, (off_t)n) == 0);
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0), *want = malloc(size);
	WANT(p != MAP_FAILED && want && pread(fd, want, size, 0) == (ssize_t)size);
	uint32_t m, f;
	WANT(lanefs_register(s, memory, LANEFS_MEMFD, 0, n, &m) == 0 && lanefs_open(s, fd, &f) == 0);
	WANT(ftruncate(memory, 0) == -1 && errno == EPERM); /* sealed */
	lanefs_ring *r = lanefs_ring_new(s, 8);
	struct lanefs_completion c;
	WANT(r && lanefs_ring_submit(r, &(struct lanefs_request){.op = LANEFS_READ, .file = f, .memory = m, .length = size}, 1) == 1);
	WANT(lanefs_ring_reap(r, &c, 1, 60000) == 1 && c.result == (int64_t)size && memcmp(p, want, size) == 0);
	lanefs_ring_free(r);
	WANT(lanefs_release(s, m) == 0 && lanefs_release(s, f) == 0);
	munmap(p, n);
	close(memory);
	free(want);
}

int main(int argc, char **argv)
{
	WANT(argc == 3);
	int fd = open(argv[1], O_RDWR);
	struct stat st;
	WANT(fd >= 0 && fstat(fd, &st) == 0);
	size_t size = (size_t)st.st_size;
	lanefs *s = lanefs_connect(fd);
	WANT(s && strcmp(lanefs_facts(s)->runtime, "hip") == 0);
	host_memory(s, fd, size);
	struct lanefs_buffer b;
	void *at, *again, *stream;
	WANT(lanefs_map(s, fd, 0, 0, 0, &b) == 0 && b.size == size && !b.data && (int)b.kind == atoi(argv[2]));
	WANT(lanefs_gpu_map(s, &b, &at) == 0 && lanefs_gpu_map(s, &b, &again) == 0 && at == again);

	/* The program's own use of HIP, as the library finds it. */
	void *hip = dlopen("libamdhip64.so.7", RTLD_NOW | RTLD_NOLOAD);
	WANT(hip);
	int (*set)(int) = (int (*)(int))dlsym(hip, "hipSetDevice");
	int (*pinned)(void **, size_t, unsigned) = (int (*)(void **, size_t, unsigned))dlsym(hip, "hipHostMalloc");
	int (*create)(void **, unsigned) = (int (*)(void **, unsigned))dlsym(hip, "hipStreamCreateWithFlags");
	int (*copy)(void *, const void *, size_t, int, void *) = (int (*)(void *, const void *, size_t, int, void *))dlsym(hip, "hipMemcpyAsync");
	int (*query)(void *) = (int (*)(void *))dlsym(hip, "hipStreamQuery");
	char *want = malloc(size), *host;
	WANT(want && pread(fd, want, size, 0) == (ssize_t)size);
	WANT(set(0) == 0 && pinned((void **)&host, size, 0) == 0 && create(&stream, NON_BLOCKING) == 0);
	memset(host, 0, size);
	for (int i = 0; i < COPIES; i++)
		WANT(copy(host, at, size, DEFAULT, stream) == 0);
	lanefs_unmap(s, &b); /* under the copies */
	WANT(query(stream) == 0 && memcmp(host, want, size) == 0);

	/* Part of the file, and memory of the program's own that is written to while commit begins. */
	size_t half = size / 2;
	WANT(lanefs_map(s, fd, half, 1, 0, &b) == 0 && lanefs_gpu_map(s, &b, &at) == 0);
	WANT(copy(host, at, 1, DEFAULT, stream) == 0);
	lanefs_unmap(s, &b);
	WANT(host[0] == want[half]);
	WANT(lanefs_map(s, fd, 0, size, LANEFS_PRIVATE | LANEFS_EMPTY, &b) == 0 && lanefs_gpu_map(s, &b, &at) == 0);
	for (size_t i = 0; i < size; i++)
		host[i] = (char)~want[i];
	for (int i = 0; i < COPIES; i++)
		WANT(copy(at, i % 2 ? host : want, size, DEFAULT, stream) == 0);
	WANT(lanefs_commit(s, fd, 0, &b, 0, size) == 0);
	lanefs_unmap(s, &b);
	char *got = malloc(size);
	WANT(got && pread(fd, got, size, 0) == (ssize_t)size && memcmp(got, host, size) == 0);
	WANT(pwrite(fd, want, size, 0) == (ssize_t)size); /* as it was */
	lanefs_close(s);
	puts("ok");
	return 0;
}
