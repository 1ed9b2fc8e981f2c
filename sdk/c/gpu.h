/* A GPU as the library drives it, by CUDA's or HIP's library, which is opened at run time. */
#ifndef LANEFS_GPU_H
#define LANEFS_GPU_H

#include "internal.h"

#include <dlfcn.h>
#include <stdatomic.h>

/*
 * A device and its library. It is never closed, because the program may have memory mapped.
 *
 * A program that resets the device (cudaDeviceReset, cuDevicePrimaryCtxReset) destroys all that is in its primary context, whoever made it, and the context is made anew under the same
 * handle. Events, functions, registered memory and cudaMalloc's of before are invalid then, and a call with a stream of before may end the process; what is mapped by virtual memory management stays. So what is found out about a device, and what is
 * made on it, ends with its context: the struct is gone, none of its calls are made any more, and lanefs_gpu_find gives another one.
 */
struct gpu {
	struct gpu *next;
	int hip, ordinal;
	void *lib, *context;   /* with HIP, which has no contexts, the sentinel: memory of the device that a reset frees */
	unsigned long long id; /* of the context, CUDA's, or the sentinel, HIP's (BUFFER_ID): never given twice in a process. 0: not known, of drivers before 12.0 */
	_Atomic int gone;      /* the device was reset since */
	_Atomic uint64_t busy; /* until this time (CLOCK_MONOTONIC, ns) small copies go as rows, for cuFile's calls: a plain one was late */
	_Atomic uint64_t late; /* until this time kernels wait for those of others, and batches of some pieces go by copies */
	void *gather; /* the function lanefs_gather, NULL until it is loaded; protected by the lock of stagegpu.c */
	_Atomic(void *) copier; /* likewise lanefs_copier, stored by stagegpu.c */
	_Atomic uint64_t copier_from; /* until this time lanefs_copier is not launched, for cuFile's calls: it was no good */
	_Atomic unsigned copier_pauses; /* how often in a row */
	_Atomic int no_kernel; /* no image of them is for this device */
	_Atomic int no_copier; /* it was tried */
	char apart[64]; /* what is above is read by all threads, what is below is written by all */
	_Atomic unsigned copying; /* small copies of cuFile's calls that are under way */
	char apart_too[60];
};

/* Initializes CUDA's driver (cuInit), if the program has loaded it. An error is the program's, which hears of it by its first call. Not in a child of a process in which it did: CUDA cannot be
 * used there, and another thread may have held a lock of the driver's at the fork. */
HIDDEN void lanefs_cuda_init(void);

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

/* The GPU with a PCI address or a MIG instance's UUID, or, if that is NULL, with an ordinal. NULL: not there, with a text. If the device was reset, it has a context again. */
HIDDEN struct gpu *lanefs_gpu_find(int hip, const char *device, int ordinal);

/* Whether it was not reset, so that what was made on it is there. 10 ns (an H200). */
HIDDEN int lanefs_gpu_is(struct gpu *g);

/* Whether the daemon of a session has this GPU. */
HIDDEN int lanefs_gpu_serves(lanefs *s, struct gpu *g);

/*
 * Begins a copy of fewer than GPU_SMALL bytes on a stream, as two rows. CUDA's driver sends the bytes of a small copy from host memory along with its
 * commands, by the engine that runs kernels: beside another process's kernels they wait for a turn of this process, some 2 ms. A copy of two rows goes by a copy
 * engine, which waits for nobody, and takes no longer alone (measured on an H100 with driver 580: up to 24 KiB a plain copy waits, from 28 KiB on it does
 * not). The value is the driver's error number, or -1 if the copy is not for this function: HIP's, another size, a library without the call.
 */
enum { GPU_SMALL = 32 << 10 };
enum gpu_memory { GPU_HOST = 1, GPU_DEVICE = 2, GPU_ANY = 4 }; /* CUmemorytype */
HIDDEN int lanefs_gpu_copy_small(struct gpu *g, void *to, enum gpu_memory to_type, const void *from, enum gpu_memory from_type, size_t n, void *stream);

/* Begins a copy of rows, the first bytes of which are so far apart, less than GPU_PITCH. As lanefs_gpu_copy_small; also -1 for HIP. */
enum { GPU_PITCH = 1 << 30 };
HIDDEN int lanefs_gpu_copy_rows(struct gpu *g, void *to, enum gpu_memory to_type, size_t to_pitch, const void *from, enum gpu_memory from_type, size_t from_pitch, size_t width,
	size_t height, void *stream);

/* What a thread had before the library's calls of the GPU's. */
struct was {
	int device;     /* HIP's, that was current; or CURRENT, it was this one */
	int capture;    /* how the thread's calls bear on captures: CUstreamCaptureMode */
	int relaxed;    /* it was changed */
};

/*
 * Makes the device current for the thread, and restores the previous one. In between the thread's calls do not end captures of streams, by whatever thread: those that might
 * be part of one (cuMemHostRegister, cuStreamSynchronize, …) are forbidden while one is under way, and end it, unless the thread's mode is relaxed (cuda.h,
 * cuThreadExchangeStreamCaptureMode). What the library calls has no part in any. It takes 20 ns on an H100.
 * Of a device that was reset it is CUDA_ERROR_CONTEXT_IS_DESTROYED, for which lanefs_gpu_lost.
 */
HIDDEN int lanefs_gpu_enter(struct gpu *g, struct was *was);
HIDDEN void lanefs_gpu_leave(struct gpu *g, const struct was *was);

/* Fails with what lanefs_gpu_enter returned. */
HIDDEN int lanefs_gpu_not_entered(struct gpu *g, int code);

/* As lanefs_gpu_enter, for one of CUDA's contexts of the device. NULL: that of the library's calls. */
HIDDEN int lanefs_gpu_enter_context(struct gpu *g, void *context, struct was *was);

/* Whether an error of the library's says that the device's context is lost: nothing runs in it any more, and all calls fail. */
HIDDEN int lanefs_gpu_lost(int code);

/* The part of them that is about captures, for calls without a device. */
HIDDEN void lanefs_gpu_relax(struct gpu *g, struct was *was);
HIDDEN void lanefs_gpu_restore(struct gpu *g, const struct was *was);

/* -1, EINVAL: the stream is captured, or one that it waits for. Its context is current if it is a default one. */
HIDDEN int lanefs_stream_captured(struct gpu *g, void *stream);

/* Looks at a stream that the calling thread names: -1 as lanefs_stream_captured; 0, and in *context that of the program's own, on this device, that it is of, or NULL. */
HIDDEN int lanefs_stream_look(struct gpu *g, void *stream, void **context);

/* Waits for a stream of that context; NULL: of the primary one. -1, EIO. */
HIDDEN int lanefs_stream_wait(struct gpu *g, void *context, void *stream);

/* An event of the device, which is current. To end one of a device that was reset does nothing. */
HIDDEN int lanefs_gpu_event(struct gpu *g, void **event, unsigned flags);
HIDDEN int lanefs_gpu_record(struct gpu *g, void *event, void *stream);
HIDDEN void lanefs_gpu_event_end(struct gpu *g, void *event);

#endif
