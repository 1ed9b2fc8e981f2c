/* A GPU as the library drives it, by CUDA's or HIP's library, which is opened at run time. */
#ifndef LANEFS_GPU_H
#define LANEFS_GPU_H

#include "internal.h"

#include <dlfcn.h>

/* A device and its library. It is never closed, because the program may have memory mapped. */
struct gpu {
	struct gpu *next;
	int hip, ordinal;
	void *lib, *context;
	void *copier; /* the function lanefs_gather, NULL until it is loaded; protected by the lock of stagegpu.c */
};

/* Looks up a function by its name without the prefix, which CUDA and HIP share. */
HIDDEN void *lanefs_gpu_function(struct gpu *g, const char *name);

/* Calls a function. The value is its error number, or -1 if the library does not have it. */
#define CALL(g, name, types, ...) ({ int (*f_) types = (int (*) types)lanefs_gpu_function(g, name); f_ ? f_(__VA_ARGS__) : -1; })

/* Fails a call of the library with what it is called, without the prefix, and its error number. */
HIDDEN int lanefs_gpu_bad(struct gpu *g, const char *what, int code);

/* The GPU with a PCI address, or, if that is NULL, with an ordinal. NULL: not there, with a text. */
HIDDEN struct gpu *lanefs_gpu_find(int hip, const char *device, int ordinal);

/* Whether the daemon of a session has this GPU. */
HIDDEN int lanefs_gpu_serves(lanefs *s, struct gpu *g);

/* Makes the device current for the thread, and restores the previous one. */
HIDDEN int lanefs_gpu_enter(struct gpu *g, int *was);
HIDDEN void lanefs_gpu_leave(struct gpu *g, int was);

#endif
