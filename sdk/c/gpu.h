/* A GPU as the library drives it, by CUDA's or HIP's library, which is opened at run time. */
#ifndef LANEFS_GPU_H
#define LANEFS_GPU_H

#include "internal.h"

#include <dlfcn.h>
#include <stdatomic.h>

/* A device and its library. It is never closed, because the program may have memory mapped. */
struct gpu {
	struct gpu *next;
	int hip, ordinal;
	void *lib, *context;
	void *copier; /* the function lanefs_gather, NULL until it is loaded; protected by the lock of stagegpu.c */
};

/* Looks up a function by its name without the prefix, which CUDA and HIP share. */
HIDDEN void *lanefs_gpu_function(struct gpu *g, const char *name);

/*
 * Calls a function. The value is its error number, or -1 if the library does not have it. Each place keeps what it has found: to look a function
 * up takes the loader's lock, for which threads would queue.
 */
#define CALL(g, name, types, ...) ({ \
	static struct found found_; \
	int (*f_) types = (int (*) types)lanefs_gpu_found(g, name, &found_); \
	f_ ? f_(__VA_ARGS__) : -1; })

/* The function of one library: the first that was asked. lib is stored after function. */
struct found {
	_Atomic int begun;
	_Atomic(void *) lib;
	void *function;
};

static inline void *lanefs_gpu_found(struct gpu *g, const char *name, struct found *f)
{
	if (atomic_load_explicit(&f->lib, memory_order_acquire) == g->lib)
		return f->function;
	void *function = lanefs_gpu_function(g, name);
	if (function && !atomic_exchange(&f->begun, 1)) {
		f->function = function;
		atomic_store_explicit(&f->lib, g->lib, memory_order_release);
	}
	return function;
}

/* Fails a call of the library with what it is called, without the prefix, and its error number. */
HIDDEN int lanefs_gpu_bad(struct gpu *g, const char *what, int code);

/* The GPU with a PCI address or a MIG instance's UUID, or, if that is NULL, with an ordinal. NULL: not there, with a text. */
HIDDEN struct gpu *lanefs_gpu_find(int hip, const char *device, int ordinal);

/* Whether the daemon of a session has this GPU. */
HIDDEN int lanefs_gpu_serves(lanefs *s, struct gpu *g);

/* Makes the device current for the thread, and restores the previous one. */
HIDDEN int lanefs_gpu_enter(struct gpu *g, int *was);
HIDDEN void lanefs_gpu_leave(struct gpu *g, int was);

#endif
