/*
 * The backend over CUDA's driver API, opened at run time: no headers and no library of NVIDIA's are needed to build it.
 * Calls that AMD and NVIDIA have alike are passed through. A descriptor is a DMA-BUF, which CUDA exports and does not import, so
 * the shim remembers by its inode which memory it is of; it can import its own descriptors only.
 */
#define _GNU_SOURCE
#include "backend.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct prop { uint32_t type, handles, location, id; void *win32; uint8_t compression, rdma; uint16_t usage; uint8_t reserved[4]; };
struct access { uint32_t location, id, flags; };

typedef unsigned long long ptr;
#define CALLS(X) \
	X(cuInit, unsigned) X(cuDeviceGetName, char *, int, int) X(cuDeviceGetPCIBusId, char *, int, int) \
	X(cuDeviceTotalMem_v2, size_t *, int) X(cuDeviceGetAttribute, int *, int, int) X(cuDevicePrimaryCtxRetain, void **, int) \
	X(cuCtxSetCurrent, void *) X(cuCtxSynchronize, void) X(cuMemGetInfo_v2, size_t *, size_t *) \
	X(cuMemAddressReserve, ptr *, size_t, size_t, ptr, ptr) X(cuMemAddressFree, ptr, size_t) \
	X(cuMemCreate, uint64_t *, size_t, const struct prop *, ptr) X(cuMemRelease, uint64_t) \
	X(cuMemMap, ptr, size_t, size_t, uint64_t, ptr) X(cuMemUnmap, ptr, size_t) \
	X(cuMemSetAccess, ptr, size_t, const struct access *, size_t) \
	X(cuMemGetAllocationGranularity, size_t *, const struct prop *, int) \
	X(cuMemGetHandleForAddressRange, void *, ptr, size_t, int, ptr) \
	X(cuMemHostAlloc, void **, size_t, unsigned) X(cuMemFreeHost, void *) X(cuMemHostRegister_v2, void *, size_t, unsigned) \
	X(cuMemHostUnregister, void *) X(cuMemHostGetDevicePointer_v2, ptr *, void *, unsigned) \
	X(cuModuleLoadData, void **, const void *) X(cuModuleUnload, void *) X(cuModuleGetFunction, void **, void *, const char *) \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, int *, void *, int, size_t) X(cuCtxGetStreamPriorityRange, int *, int *) \
	X(cuStreamCreateWithPriority, void **, unsigned, int) X(cuStreamDestroy_v2, void *) X(cuStreamQuery, void *) \
	X(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) \
	X(cuMemcpyAsync, ptr, ptr, size_t, void *) X(cuMemsetD8Async, ptr, unsigned char, size_t, void *) \
	X(cuLaunchHostFunc, void *, void (*)(void *), void *) X(cuStreamWaitValue64_v2, void *, ptr, uint64_t, unsigned)
#define DECLARE(name, ...) static int (*name)(__VA_ARGS__);
CALLS(DECLARE)

static const struct prop prop = {.type = 1, .location = 1, .rdma = 1};
static void *context;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the device ---- */

int be_init(struct facts *f) {
	setenv("CUDA_MODULE_LOADING", "EAGER", 0);
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!lib)
		return NO_DEVICE;
#define BIND(name, ...) if (!(*(void **)&name = dlsym(lib, #name))) { fprintf(stderr, "shim: libcuda has no " #name "\n"); return NO_DEVICE; }
	CALLS(BIND)
	int major, minor, rc;
	memset(f, 0, sizeof *f);
	if ((rc = cuInit(0)) || (rc = cuDeviceGetName(f->name, sizeof f->name, 0)) || (rc = cuDeviceGetPCIBusId(f->bus, sizeof f->bus, 0)) ||
		(rc = cuDeviceTotalMem_v2(&f->memory, 0)) || (rc = cuDeviceGetAttribute(&major, 75, 0)) || (rc = cuDeviceGetAttribute(&minor, 76, 0)) ||
		(rc = cuDeviceGetAttribute(&f->wave, 10, 0)) || (rc = cuDeviceGetAttribute(&f->units, 16, 0)) ||
		(rc = cuMemGetAllocationGranularity(&f->granularity, &prop, 0)) || (rc = cuDevicePrimaryCtxRetain(&context, 0)))
		return rc;
	snprintf(f->arch, sizeof f->arch, "sm_%d%d", major, minor);
	f->clock_khz = 1000000; /* %globaltimer counts nanoseconds */
	return OK;
}

int be_current(void) { return cuCtxSetCurrent(context); }
int be_memory(size_t *free_bytes, size_t *total) { return cuMemGetInfo_v2(free_bytes, total); }
uint32_t *be_flush(void) {
	static uint32_t word;
	return &word;
}

int be_sync(void) { return cuCtxSynchronize(); }

/* ---- memory ---- */

int be_create(phys **out, size_t n) {
	phys *p = calloc(1, sizeof *p);
	*p = (phys){.refs = 1, .size = n};
	int rc = cuMemCreate(&p->handle, n, &prop, 0);
	if (rc == OK)
		*out = p;
	else
		free(p);
	return rc;
}

int be_destroy(phys *p) {
	int rc = cuMemRelease(p->handle);
	free(p);
	return rc;
}

int be_reserve(void **at, size_t n) { return cuMemAddressReserve((ptr *)at, n, 0, 0, 0); }
int be_unreserve(void *at, size_t n) { return cuMemAddressFree((ptr)at, n); }
int be_map(void *at, size_t n, phys *p) { return cuMemMap((ptr)at, n, 0, p->handle, 0); }
int be_unmap(void *at, size_t n) { return cuMemUnmap((ptr)at, n); }

int be_access(void *at, size_t n) {
	const struct access a = {.location = 1, .flags = 3};
	return cuMemSetAccess((ptr)at, n, &a, 1);
}

/* The memory behind DMA-BUFs. An entry keeps its memory: the last close of a descriptor is not reported. */
static struct { dev_t dev; ino_t ino; phys *p; } exported[4096];
static unsigned exports;

void *be_bar(phys *p, void *at) {
	(void)p;
	return at;
}

int be_export(phys *p, void *at, size_t n, int *fd) {
	struct stat s;
	if (!at)
		return INVALID;
	int rc = cuMemGetHandleForAddressRange(fd, (ptr)at, n, 1, 0);
	if (rc != OK)
		return rc;
	if (fstat(*fd, &s) != 0 || exports == sizeof exported / sizeof *exported)
		return UNKNOWN;
	phys_retain(p);
	pthread_mutex_lock(&lock);
	exported[exports].dev = s.st_dev;
	exported[exports].ino = s.st_ino;
	exported[exports++].p = p;
	pthread_mutex_unlock(&lock);
	return OK;
}

int be_import(int fd, phys **out) {
	struct stat s;
	if (fstat(fd, &s) != 0)
		return INVALID;
	phys *p = NULL;
	pthread_mutex_lock(&lock);
	for (unsigned i = exports; i-- > 0 && !p;) /* the newest first: inode numbers are reused */
		if (exported[i].dev == s.st_dev && exported[i].ino == s.st_ino)
			p = exported[i].p;
	if (p)
		phys_retain(p);
	pthread_mutex_unlock(&lock);
	*out = p;
	return p ? OK : INVALID;
}

static phys *offers[4096];
static unsigned offered;

/* Within one process only. */
int be_offer(phys *p, uint32_t words[2]) {
	pthread_mutex_lock(&lock);
	unsigned i = offered < sizeof offers / sizeof *offers ? offered++ : -1u;
	if (i != -1u)
		offers[words[0] = i] = p;
	pthread_mutex_unlock(&lock);
	return i == -1u ? UNKNOWN : OK;
}

phys *be_withdraw(const uint32_t words[2]) {
	pthread_mutex_lock(&lock);
	phys *p = offers[words[0]];
	offers[words[0]] = NULL;
	pthread_mutex_unlock(&lock);
	return p;
}

int be_take(const uint32_t words[2], phys **out) {
	pthread_mutex_lock(&lock);
	*out = words[0] < offered ? offers[words[0]] : NULL;
	if (*out)
		phys_retain(*out);
	pthread_mutex_unlock(&lock);
	return *out ? OK : INVALID;
}

int be_host_alloc(void **at, size_t n) { return cuMemHostAlloc(at, n, 3); }
int be_host_free(void *at) { return cuMemFreeHost(at); }
int be_host_register(void *at, size_t n, unsigned flags) { return cuMemHostRegister_v2(at, n, flags | 3); }
int be_host_unregister(void *at) { return cuMemHostUnregister(at); }
int be_host_address(void **device, void *host) { return cuMemHostGetDevicePointer_v2((ptr *)device, host, 0); }

/* ---- modules and streams ---- */

int be_module_load(void **m, const void *image) { return cuModuleLoadData(m, image); }
int be_module_unload(void *m) { return cuModuleUnload(m); }
int be_module_function(void **f, void *m, const char *name) { return cuModuleGetFunction(f, m, name); }
int be_occupancy(int *n, void *f, int block) { return cuOccupancyMaxActiveBlocksPerMultiprocessor(n, f, block, 0); }

int be_stream_create(void **s, int urgent) {
	int least, most, rc = cuCtxGetStreamPriorityRange(&least, &most);
	return rc == OK ? cuStreamCreateWithPriority(s, 1, urgent ? most : least) : rc;
}

int be_stream_destroy(void *s) { return cuStreamDestroy_v2(s); }
int be_stream_query(void *s) { return cuStreamQuery(s); }

int be_launch(void *f, const uint32_t d[6], void *s, void **params) {
	return cuLaunchKernel(f, d[0], d[1], d[2], d[3], d[4], d[5], 0, s, params, NULL);
}

int be_copy(void *dst, const void *src, size_t n, void *s) { return cuMemcpyAsync((ptr)dst, (ptr)src, n, s); }
int be_fill(void *dst, unsigned char v, size_t n, void *s) { return cuMemsetD8Async((ptr)dst, v, n, s); }
int be_call(void (*f)(void *), void *arg, void *s) { return cuLaunchHostFunc(s, f, arg); }
int be_wait(uint64_t *word, uint64_t least, void *s) { return cuStreamWaitValue64_v2(s, (ptr)word, least, 0); }
