/*
 * What the shim needs of a machine: physical memory that is mapped at addresses, pinned host memory, modules, streams.
 * backend_cpu.c has it in plain memory and threads, backend_cuda.c over libcuda. Results are hipError_t.
 */
#ifndef LANEFS_SHIM_BACKEND_H
#define LANEFS_SHIM_BACKEND_H

#include <stddef.h>
#include <stdint.h>

enum {
	OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, LAUNCH_TIMEOUT = 702, LAUNCH_FAILURE = 719, NOT_SUPPORTED = 801,
	UNKNOWN = 999,
};

struct facts {
	char name[128], bus[32], arch[64];
	size_t memory, granularity;
	int wave, units, clock_khz, large_bar;
};

/*
 * Physical memory. It exists as long as it has references or mappings. A backend makes it with one reference; shim.c counts
 * references and calls the backend to destroy it after the last.
 */
typedef struct {
	int refs;
	size_t size, wanted; /* of size bytes; 0: all */
	uint64_t handle;     /* the backend's */
} phys;
void phys_retain(phys *p);

int be_init(struct facts *f);
int be_current(void); /* makes the device the calling thread's */
int be_memory(size_t *free_bytes, size_t *total);
int be_sync(void); /* waits for all that runs */
uint32_t *be_flush(void); /* the register to which a store has what others wrote into device memory written out */

int be_reserve(void **at, size_t n);
int be_unreserve(void *at, size_t n);
int be_create(phys **p, size_t n);
int be_destroy(phys *p);
int be_map(void *at, size_t n, phys *p);
int be_access(void *at, size_t n);
int be_unmap(void *at, size_t n);
void *be_bar(phys *p, void *at); /* the CPU's address of what is mapped at `at` */
/* A descriptor for memory that is mapped at `at` (NULL: nowhere), and the memory behind a descriptor, which the caller then has too. */
int be_export(phys *p, void *at, size_t n, int *fd);
int be_import(int fd, phys **p);
/* Words by which p is found again, in this process or, where the backend can, another; p is the backend's from then on. */
int be_offer(phys *p, uint32_t words[2]);
int be_take(const uint32_t words[2], phys **p);
phys *be_withdraw(const uint32_t words[2]); /* p is not found any more, and the caller's again */

int be_host_alloc(void **at, size_t n);
int be_host_free(void *at);
int be_host_register(void *at, size_t n, unsigned flags); // HIP's and CUDA's, which are the same
int be_host_unregister(void *at);
int be_host_address(void **device, void *host);

int be_module_load(void **m, const void *image);
int be_module_unload(void *m);
int be_module_function(void **f, void *m, const char *name);
int be_occupancy(int *blocks, void *f, int block); /* of a compute unit */
int be_stream_create(void **s, int urgent);
int be_stream_destroy(void *s);
int be_stream_query(void *s);
int be_launch(void *f, const uint32_t dims[6], void *s, void **params);
int be_copy(void *dst, const void *src, size_t n, void *s);
int be_fill(void *dst, unsigned char v, size_t n, void *s);
int be_call(void (*f)(void *), void *arg, void *s);         /* in the stream's order */
int be_wait(uint64_t *word, uint64_t least, void *s);       /* until the word is that large */

#endif
