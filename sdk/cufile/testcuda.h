/* What testcuda.c and testrace.c have in common: the stand-in for libcuda (lab/cuda), handles, and what a file must have. */
#ifndef LANEFS_TESTCUDA_H
#define LANEFS_TESTCUDA_H

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cufile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)
#define IS(want, call) do { CUfileError_t e_ = (call); if (e_.err != (want)) { fprintf(stderr, "%s:%d: %s: %d, not %d\n", __FILE__, __LINE__, #call, (int)e_.err, (int)(want)); exit(1); } } while (0)
#define OK(call) IS(CU_FILE_SUCCESS, call)

enum { NON_BLOCKING = 1 };

static struct {
	int (*init)(unsigned), (*retain)(void **, int), (*current)(void *), (*malloc)(void **, size_t), (*free)(void *), (*pin)(void *, size_t, unsigned), (*unpin)(void *);
	int (*create)(void **, unsigned), (*destroy)(void *), (*sync)(void *), (*copy)(void *, const void *, size_t, void *);
	unsigned (*calls)(const char *);
	void (*slow)(unsigned), (*fail)(const char *, int), (*on)(const char *, void (*)(void)), (*lose)(void), (*copier)(int, unsigned);
} cuda;

/* The primary contexts of the first devices. */
__attribute__((unused)) static void load(void **context, int devices)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	WANT(lib);
	const struct { void *at; const char *name; } all[] = {{&cuda.init, "cuInit"}, {&cuda.retain, "cuDevicePrimaryCtxRetain"}, {&cuda.current, "cuCtxSetCurrent"},
		{&cuda.malloc, "cuMemAlloc_v2"}, {&cuda.free, "cuMemFree_v2"}, {&cuda.pin, "cuMemHostRegister_v2"}, {&cuda.unpin, "cuMemHostUnregister"},
		{&cuda.create, "cuStreamCreate"}, {&cuda.destroy, "cuStreamDestroy_v2"}, {&cuda.sync, "cuStreamSynchronize"}, {&cuda.copy, "cuMemcpyAsync"},
		{&cuda.calls, "fake_cuda_calls"}, {&cuda.slow, "fake_cuda_slow"}, {&cuda.fail, "fake_cuda_fail"}, {&cuda.on, "fake_cuda_on"},
		{&cuda.lose, "fake_cuda_lose"}, {&cuda.copier, "fake_cuda_copier"}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		WANT((*(void **)all[i].at = dlsym(lib, all[i].name)));
	WANT(cuda.init(0) == 0);
	for (int i = 0; i < devices; i++)
		WANT(cuda.retain(&context[i], i) == 0);
}

__attribute__((unused)) static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static CUfileHandle_t reg(int fd)
{
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd};
	CUfileHandle_t h;
	OK(cuFileHandleRegister(&h, &d));
	return h;
}

/* The stand-in's device memory is the CPU's, too. */
__attribute__((unused)) static int right(const unsigned char *p, uint64_t off, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] != (off + i) % 251)
			return 0;
	return 1;
}

#endif
