/*
 * A libcuda.so.1 for tests: the calls of the driver API that sdk/c, sdk/cufile and gpu/cuda's choice of a device make, over plain memory. It is
 * no part of LaneFS's binary. It has no virtual memory management, so no daemon runs on it.
 *
 * It is stricter than NVIDIA's where that finds mistakes. What is put on a stream happens when somebody waits for it, not before; from its first
 * function of the host or wait for a value on, a stream has a thread that does what is put on it, as soon as it can. A thread
 * begins without a context. A kernel must not touch memory of another context. What is put on a stream that is captured is counted, and never happens; a call that may not be made then, by
 * cuda.h's documentation of cuThreadExchangeStreamCaptureMode, fails, and the capture with it, and so does a wait for such a stream, or for its context. The legacy stream (0, 1) waits for what is on all of its context's streams that are not non-blocking, and these wait for it, as CUDA's documentation of
 * "stream synchronization behavior" says; each thread has a stream of its own in each context (2), of that kind. Copies of bytes that are not all of one allocation fail. A stream that was destroyed, and an event or a kernel on another device's
 * stream, are refused: with NVIDIA's library the first is undefined.
 *
 * Environment: LANEFS_FAKE_CUDA, the devices: UUID@PCI address,… (one, if it is not set). CUDA_VISIBLE_DEVICES chooses of them as with NVIDIA's:
 * ordinals or beginnings of UUIDs, up to the first that is none.
 *
 * fake_cuda_calls(name) is how often a function was called since fake_cuda_calls(NULL). fake_cuda_slow(us) has the next wait for a stream take that long, fake_cuda_late(us) each
 * kernel, as events tell, and the wait for its stream. fake_cuda_hold(stream, n) has a stream do n more things and then wait, or go on if n is UINT64_MAX.
 * fake_cuda_copier(does, ms) says what lanefs_copier does, and how long it waits for a piece: 0 copies; 1 does not begin; 2 leaves at once, and its launch waits for that; 3 says that it was away; 4 leaves when there
 * is a piece; 5 does nothing about it.
 * fake_cuda_fail(name, code) has the next call of a function fail, fake_cuda_on(name, f) has it call f first. fake_cuda_lose() loses the current context, as a kernel's illegal address does:
 * what is on its streams is dropped, functions of the host are not called, and every call that needs it fails. cuDevicePrimaryCtxReset_v2 does to a device's context what the real one does (an
 * H200, driver 580): what is in it is no more, the handle is as before, calls fail with 709 until the context is retained again, and then of its events with 201, of its functions with 400. A call
 * with a stream of before ends the program, as there.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, DESTROYED = 709, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
	CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_IMPLICIT = 906 };
enum { DEVICES = 16, DEPTH = 16, NAMES = 96, PAGE = 4096 };

/* ---- counts ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { const char *name; unsigned n; } counts[NAMES]; /* protected by lock, as all below */

static char failing[64];
static int failing_code;
static char hooked[64];
static void (*hook)(void);

/* Returns what the call must fail with, or OK. */
static int count(const char *name) {
	int rc = OK;
	void (*f)(void) = NULL;
	pthread_mutex_lock(&lock);
	if (*hooked && strcmp(hooked, name) == 0) {
		f = hook;
		*hooked = 0;
	}
	if (*failing && strcmp(failing, name) == 0) {
		rc = failing_code;
		*failing = 0;
	}
	for (int i = 0; i < NAMES; i++)
		if (!counts[i].name || strcmp(counts[i].name, name) == 0) {
			counts[i].name = name;
			counts[i].n++;
			break;
		}
	pthread_mutex_unlock(&lock);
	if (f)
		f();
	return rc;
}
#define COUNT() do { int rc_ = count(__func__); if (rc_) return rc_; } while (0)

API void fake_cuda_fail(const char *name, int code) {
	pthread_mutex_lock(&lock);
	snprintf(failing, sizeof failing, "%s", name);
	failing_code = code;
	pthread_mutex_unlock(&lock);
}

API void fake_cuda_on(const char *name, void (*f)(void)) {
	pthread_mutex_lock(&lock);
	snprintf(hooked, sizeof hooked, "%s", name);
	hook = f;
	pthread_mutex_unlock(&lock);
}

/* NULL: sets all to 0. "": the sum. */
API unsigned fake_cuda_calls(const char *name) {
	unsigned n = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < NAMES && counts[i].name; i++) {
		if (!name)
			counts[i].n = 0;
		else if (!*name || strcmp(counts[i].name, name) == 0)
			n += counts[i].n;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

/* ---- devices ---- */

/* f: a function of the host; word: what to wait for, until it is at_least. */
struct op { struct op *next; void *to; const void *from; size_t n; int fill, value; struct gather { uint64_t dst, src, bytes; } *pieces; uint64_t count;
	uint32_t *tell, number; /* stored at last */
	void (*f)(void *); void *arg; uint64_t *word, at_least;
	struct after { struct stream *on; uint64_t n; } *after; int afters; /* so many of what is on other streams come first */ };
struct stream { struct stream *next; struct context *c; struct op *first, **end; int blocking, threaded, busy, gone, reset; uint64_t n, did; /* that were put on it, that are done */
	int held; uint64_t most; /* held: it does no more than so many */
	_Atomic int wanted; /* somebody waits for what its thread does */
	int copies; /* its thread is lanefs_copier */
	uint64_t thread; /* whose own it is */
	struct capture { int state, mode; uint64_t thread, nodes; } capture; /* state: of CUstreamCaptureStatus; thread: that began it; nodes: that were put on the stream since */
	double ms; /* that its kernels have taken */ };
struct context { int device; _Atomic int lost; _Atomic uint64_t id; /* 0: it was reset */ struct stream legacy, *own; /* the threads' own ones, which outlive them */ };
static struct device { char uuid[64], pci[32]; struct context primary; } devices[DEVICES];
static int n_devices = -1;
static __thread struct context *stack[DEPTH];
static __thread int depth;
static _Atomic uint64_t contexts; /* that there were */
static __thread int capture_mode; /* CUstreamCaptureMode of the thread */
static _Atomic uint64_t threads;

static uint64_t this_thread(void) {
	static __thread uint64_t me;
	if (!me)
		me = ++threads;
	return me;
}

static void visible(struct device *all, int n) {
	const char *v = getenv("CUDA_VISIBLE_DEVICES");
	n_devices = 0;
	for (int i = 0; i < n && !v; i++)
		devices[n_devices++] = all[i];
	char text[512], *rest = text, *part;
	snprintf(text, sizeof text, "%s", v ? v : "");
	while (v && (part = strsep(&rest, ",")) && n_devices < DEVICES) {
		int found = -1;
		char *end;
		long k = strtol(part, &end, 10);
		if (*part && !*end && k >= 0 && k < n)
			found = (int)k;
		for (int i = 0; i < n && *end && *part; i++)
			if (strncasecmp(all[i].uuid, part, strlen(part)) == 0)
				found = i;
		if (found < 0)
			break;
		devices[n_devices++] = all[found];
	}
	for (int i = 0; i < n_devices; i++) {
		struct context *c = &devices[i].primary;
		*c = (struct context){.device = i, .id = ++contexts, .legacy = {.c = c, .end = &c->legacy.first}};
	}
}

API int cuInit(unsigned flags) {
	COUNT();
	if (flags)
		return INVALID;
	pthread_mutex_lock(&lock);
	pthread_testcancel(); /* the driver opens its devices */
	if (n_devices < 0) {
		struct device all[DEVICES];
		const char *named = getenv("LANEFS_FAKE_CUDA");
		char text[2048], *rest = text, *part;
		int n = 0;
		snprintf(text, sizeof text, "%s", named ? named : "GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0");
		while ((part = strsep(&rest, ",")) && n < DEVICES) {
			char *pci = strchr(part, '@');
			if (!pci)
				continue;
			*pci = 0;
			snprintf(all[n].uuid, sizeof all[n].uuid, "%s", part);
			snprintf(all[n++].pci, sizeof all[n].pci, "%s", pci + 1);
		}
		visible(all, n);
	}
	int rc = n_devices > 0 ? OK : NO_DEVICE;
	pthread_mutex_unlock(&lock);
	return rc;
}

static int exists(int device) { return device >= 0 && device < n_devices; }
static int no_device(void) { return n_devices < 0 ? NOT_INITIALIZED : INVALID_DEVICE; }

API int cuDriverGetVersion(int *v) {
	*v = 13000;
	return OK;
}

API int cuGetErrorName(int code, const char **name) {
	*name = code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : code == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE" : code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
	return OK;
}

API int cuGetErrorString(int code, const char **text) {
	*text = code == NO_DEVICE ? "no CUDA-capable device is detected" : "an error of the stand-in";
	return OK;
}

API int cuDeviceGetCount(int *n) {
	COUNT();
	*n = n_devices < 0 ? 0 : n_devices;
	return n_devices < 0 ? NOT_INITIALIZED : OK;
}

API int cuDeviceGet(int *device, int ordinal) {
	COUNT();
	*device = ordinal;
	return exists(ordinal) ? OK : no_device();
}

API int cuDeviceGetName(char *name, int n, int device) {
	COUNT();
	return !exists(device) || snprintf(name, (size_t)n, "LaneFS stand-in %.8s", devices[device].uuid + 4) >= n ? INVALID : OK;
}

/* As NVIDIA's: a domain of 8 digits, capital letters. */
API int cuDeviceGetPCIBusId(char *bus, int n, int device) {
	COUNT();
	if (!exists(device) || snprintf(bus, (size_t)n, "0000%s", devices[device].pci) >= n)
		return INVALID;
	for (char *p = bus; *p; p++)
		if (*p >= 'a' && *p <= 'f')
			*p = (char)(*p - 'a' + 'A');
	return OK;
}

/* Of a MIG instance its own. */
API int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
	COUNT();
	memset(uuid, 0, 16);
	if (!exists(device))
		return no_device();
	const char *p = strchr(devices[device].uuid, '-');
	for (int i = 0; i < 16 && p; i++) {
		while (*p == '-')
			p++;
		unsigned byte = 0;
		if (sscanf(p, "%2x", &byte) != 1)
			break;
		uuid[i] = (unsigned char)byte;
		p += 2;
	}
	return OK;
}

/* Of a MIG instance that of its GPU. */
API int cuDeviceGetUuid(unsigned char *uuid, int device) {
	int rc = cuDeviceGetUuid_v2(uuid, device);
	if (!rc && strncmp(devices[device].uuid, "MIG-", 4) == 0)
		memset(uuid, 0xee, 16);
	return rc;
}

API int cuDeviceGetByPCIBusId(int *device, const char *bus) {
	COUNT();
	for (int i = 0; i < n_devices; i++) {
		const char *at = strlen(bus) > strlen(devices[i].pci) ? bus + strlen(bus) - strlen(devices[i].pci) : bus;
		if (strcasecmp(devices[i].pci, at) == 0) {
			*device = i;
			return OK;
		}
	}
	return no_device();
}

API int cuDeviceTotalMem_v2(size_t *n, int device) {
	*n = (size_t)1 << 30;
	return exists(device) ? OK : no_device();
}

/* LANEFS_FAKE_CUDA_ATTRIBUTES is "NUMBER=VALUE,..." for every device; others are 0. */
API int cuDeviceGetAttribute(int *v, int which, int device) {
	const char *at = getenv("LANEFS_FAKE_CUDA_ATTRIBUTES");
	*v = 0;
	for (; at; at = strchr(at, ',')) {
		int n, value;
		if (sscanf(at += *at == ',', "%d=%d", &n, &value) == 2 && n == which)
			*v = value;
	}
	return exists(device) ? OK : no_device();
}

/* ---- contexts ---- */

static struct context *now(void) { return depth ? stack[depth - 1] : NULL; }
static int lost(const struct context *c) { return c && !c->id ? DESTROYED : c && c->lost ? ILLEGAL_ADDRESS : OK; }
#define ANY() do { if (!now()) return INVALID_CONTEXT; } while (0)
#define NEED() do { ANY(); int lost_ = lost(now()); if (lost_) return lost_; } while (0)

API int cuDevicePrimaryCtxRetain(struct context **c, int device) {
	COUNT();
	if (!exists(device))
		return no_device();
	*c = &devices[device].primary;
	if (!(*c)->id)
		(*c)->id = ++contexts;
	return OK;
}

/* What peer devices wrote is there for the owner (cuda.h: target CURRENT_CTX is 0, scope TO_OWNER 100, TO_ALL_DEVICES 200). */
API int cuFlushGPUDirectRDMAWrites(int target, int scope) {
	COUNT();
	NEED();
	return target == 0 && (scope == 100 || scope == 200) ? OK : INVALID;
}

API int cuDevicePrimaryCtxRelease_v2(int device) {
	COUNT();
	return exists(device) ? OK : no_device();
}

/* Of the program's own. */
API int cuCtxCreate_v2(struct context **out, unsigned flags, int device) {
	COUNT();
	if (flags || !exists(device) || depth == DEPTH)
		return INVALID;
	struct context *c = calloc(1, sizeof *c);
	*c = (struct context){.device = device, .id = ++contexts, .legacy = {.c = c, .end = &c->legacy.first}};
	stack[depth++] = *out = c;
	return OK;
}

API int cuCtxPushCurrent_v2(struct context *c) {
	COUNT();
	if (!c || depth == DEPTH)
		return INVALID_CONTEXT;
	stack[depth++] = c;
	return OK;
}

API int cuCtxPopCurrent_v2(struct context **c) {
	COUNT();
	ANY();
	*c = stack[--depth];
	return OK;
}

API int cuCtxSetCurrent(struct context *c) {
	COUNT();
	depth = c ? 1 : 0;
	stack[0] = c;
	return OK;
}

API int cuCtxGetCurrent(struct context **c) {
	COUNT();
	*c = now();
	return OK;
}

API int cuCtxGetDevice(int *device) {
	COUNT();
	ANY();
	*device = now()->device;
	return OK;
}

API int cuCtxGetId(struct context *c, unsigned long long *id) {
	if (!c)
		c = now();
	*id = c ? c->id : 0;
	return *id ? OK : c ? DESTROYED : INVALID_CONTEXT;
}

/* ---- memory ---- */

static struct alloc { struct alloc *next; char *at; size_t n; struct context *c; int host, managed; uint64_t id; } *allocs;

/* The caller holds the lock. */
static struct alloc *find(const void *p) {
	struct alloc *a = allocs;
	while (a && !((const char *)p >= a->at && (const char *)p < a->at + a->n))
		a = a->next;
	return a;
}

static void add(void *at, size_t n, int host) {
	static uint64_t ids;
	struct alloc *a = malloc(sizeof *a);
	pthread_mutex_lock(&lock);
	*a = (struct alloc){.next = allocs, .at = at, .n = n, .c = now(), .host = host, .id = ++ids};
	allocs = a;
	pthread_mutex_unlock(&lock);
}

static int take(const void *at, int host, size_t *n) {
	int rc = INVALID;
	pthread_mutex_lock(&lock);
	for (struct alloc **l = &allocs; *l; l = &(*l)->next)
		if ((*l)->at == at && (*l)->host == host) {
			struct alloc *a = *l;
			*l = a->next;
			*n = a->n;
			free(a);
			rc = OK;
			break;
		}
	pthread_mutex_unlock(&lock);
	return rc;
}

static int run(struct stream *s);
static int unsafe(void);
#define UNSAFE() do { int unsafe_ = unsafe(); if (unsafe_) return unsafe_; } while (0)

API int cuMemAlloc_v2(void **p, size_t n) {
	COUNT();
	NEED();
	UNSAFE();
	*p = n ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
	if (*p == MAP_FAILED)
		return INVALID;
	add(*p, n, 0);
	return OK;
}

/* Its type is the host's or the device's, as it happens to lie. */
API int cuMemAllocManaged(void **p, size_t n, unsigned flags) {
	COUNT();
	int rc = flags == 1 ? cuMemAlloc_v2(p, n) : INVALID;
	pthread_mutex_lock(&lock);
	if (!rc)
		find(*p)->managed = 1;
	pthread_mutex_unlock(&lock);
	return rc;
}

static _Atomic int keeps; /* what is freed stays mapped, and may not be used */

API void fake_cuda_keep(int on) { keeps = on; }

/* The driver gives addresses back, or to the next allocation, or keeps them. */
API int cuMemFree_v2(void *p) {
	size_t n;
	COUNT();
	NEED();
	UNSAFE();
	int rc = take(p, 0, &n);
	if (!rc)
		rc = (keeps ? mprotect(p, n, PROT_NONE) : munmap(p, n)) ? INVALID : OK;
	return rc;
}

API int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
	COUNT();
	NEED();
	UNSAFE();
	if (!n || flags & ~15u)
		return INVALID;
	add(p, n, 1);
	return OK;
}

API int cuMemHostUnregister(void *p) {
	size_t n;
	COUNT();
	NEED();
	UNSAFE();
	return take(p, 1, &n);
}

API int cuMemHostGetDevicePointer_v2(void **device, void *p, unsigned flags) {
	COUNT();
	NEED();
	*device = p;
	return flags ? INVALID : OK;
}

API int cuMemGetAddressRange_v2(void **base, size_t *n, void *p) {
	COUNT();
	pthread_mutex_lock(&lock);
	struct alloc *a = find(p);
	if (a) {
		*base = a->at;
		*n = a->n;
	}
	pthread_mutex_unlock(&lock);
	return a ? OK : NOT_FOUND;
}

enum { CONTEXT = 1, MEMORY_TYPE = 2, BUFFER_ID = 7, MANAGED = 8, ORDINAL = 9, LEGACY_IPC = 10, RANGE_START = 11, RANGE_SIZE = 12 };

/* As NVIDIA's: of memory that is not known it gives zeroes, and -2 for the device, and succeeds. */
static int attributes(unsigned n, const int *which, void **out, const void *p) {
	pthread_mutex_lock(&lock);
	struct alloc *a = find(p);
	for (unsigned i = 0; i < n; i++)
		switch (which[i]) {
		case CONTEXT: *(struct context **)out[i] = a ? a->c : NULL; break;
		case MEMORY_TYPE: *(int *)out[i] = !a ? 0 : a->host || a->managed ? 1 : 2; break;
		case BUFFER_ID: *(uint64_t *)out[i] = a ? a->id : 0; break;
		case MANAGED: *(_Bool *)out[i] = a && a->managed; break;
		case ORDINAL: *(int *)out[i] = a ? a->c->device : -2; break;
		case LEGACY_IPC: *(_Bool *)out[i] = a && !a->host && !a->managed; break;
		case RANGE_START: *(void **)out[i] = a ? a->at : NULL; break;
		case RANGE_SIZE: *(size_t *)out[i] = a ? a->n : 0; break;
		}
	pthread_mutex_unlock(&lock);
	return OK;
}

API int cuPointerGetAttributes(unsigned n, const int *which, void **out, const void *p) {
	COUNT();
	int rc = lost(now());
	if (rc && rc != DESTROYED) /* then there is none */
		return rc;
	return attributes(n, which, out, p);
}

API int cuPointerGetAttribute(void *out, int which, const void *p) {
	COUNT();
	pthread_mutex_lock(&lock);
	struct alloc *a = find(p);
	pthread_mutex_unlock(&lock);
	return a ? attributes(1, &which, &out, p) : INVALID;
}

/* ---- streams ---- */

static struct stream *streams, *destroyed; /* which no other has the address of */

/* The caller holds the lock. NULL: there is no such stream. */
static struct stream *stream_of(struct stream *s) {
	if ((uintptr_t)s <= 1)
		return &now()->legacy;
	if ((uintptr_t)s == 2) {
		struct context *c = now();
		struct stream *mine = c->own;
		while (mine && mine->thread != this_thread())
			mine = mine->next;
		if (!mine) {
			mine = calloc(1, sizeof *mine);
			*mine = (struct stream){.next = c->own, .c = c, .end = &mine->first, .blocking = 1, .thread = this_thread()};
			c->own = mine;
		}
		return mine;
	}
	struct stream *t = streams;
	while (t && t != s)
		t = t->next;
	if (t && t->reset) {
		fprintf(stderr, "a call with a stream of a context that was reset\n");
		abort();
	}
	return t;
}

API int cuStreamCreate(struct stream **out, unsigned flags) {
	COUNT();
	NEED();
	if (flags > 1)
		return INVALID;
	struct stream *s = calloc(1, sizeof *s);
	pthread_mutex_lock(&lock);
	*s = (struct stream){.next = streams, .c = now(), .end = &s->first, .blocking = flags == 0};
	streams = s;
	pthread_mutex_unlock(&lock);
	*out = s;
	return OK;
}

/* ---- captures ---- */

enum { NONE = 0, ACTIVE = 1, INVALIDATED = 2 };   /* CUstreamCaptureStatus */
enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 }; /* CUstreamCaptureMode */

/* A call that captures of this thread, or global ones of others, forbid to it: these fail, and so does it. */
static int unsafe(void) {
	int rc = OK;
	pthread_mutex_lock(&lock);
	for (struct stream *s = streams; s; s = s->next)
		if (s->capture.state == ACTIVE && capture_mode != RELAXED && s->capture.mode != RELAXED &&
		    (s->capture.thread == this_thread() || (capture_mode == GLOBAL && s->capture.mode == GLOBAL))) {
			s->capture.state = INVALIDATED;
			rc = CAPTURE_UNSUPPORTED;
		}
	pthread_mutex_unlock(&lock);
	return rc;
}

/* Whether a stream of the context, of those that the legacy one waits for, or of all, is captured; ends: that ends the capture. The caller holds the lock. */
static int captures(struct context *c, int all, int ends) {
	int n = 0;
	for (struct stream *s = streams; s; s = s->next)
		if (s->c == c && (all || s->blocking) && s->capture.state != NONE) {
			n++;
			if (ends)
				s->capture.state = INVALIDATED;
		}
	return n;
}

/* Not counted: it asks nobody, and takes 20 ns. */
API int cuThreadExchangeStreamCaptureMode(int *mode) {
	int was = capture_mode;
	if (*mode < GLOBAL || *mode > RELAXED)
		return INVALID;
	capture_mode = *mode;
	*mode = was;
	return OK;
}

API int cuStreamBeginCapture_v2(struct stream *on, int mode) {
	COUNT();
	NEED();
	pthread_mutex_lock(&lock);
	struct stream *s = (uintptr_t)on <= 1 ? NULL : stream_of(on);
	int rc = s && s->capture.state == NONE ? OK : CAPTURE_UNSUPPORTED;
	if (!rc)
		s->capture = (struct capture){ACTIVE, mode, this_thread(), 0};
	pthread_mutex_unlock(&lock);
	return rc;
}

/* The graph is how many nodes it has. */
API int cuStreamEndCapture(struct stream *on, uint64_t *graph) {
	COUNT();
	NEED();
	pthread_mutex_lock(&lock);
	struct stream *s = stream_of(on);
	int rc = !s || s->capture.state == NONE ? INVALID : s->capture.state == ACTIVE ? OK : CAPTURE_INVALIDATED;
	if (rc != INVALID) {
		*graph = s->capture.nodes;
		s->capture = (struct capture){0};
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

API int cuStreamIsCapturing(struct stream *on, int *state) {
	COUNT();
	NEED();
	pthread_mutex_lock(&lock);
	struct stream *s = stream_of(on);
	int rc = !s ? INVALID_HANDLE : s == &s->c->legacy && captures(s->c, 0, 0) ? CAPTURE_IMPLICIT : OK;
	if (!rc)
		*state = s->capture.state;
	pthread_mutex_unlock(&lock);
	return rc;
}

API int cuStreamGetCtx(struct stream *on, struct context **c) {
	COUNT();
	pthread_mutex_lock(&lock);
	struct stream *s = (uintptr_t)on <= 2 && !now() ? NULL : stream_of(on);
	int rc = s ? OK : INVALID_HANDLE;
	if (s)
		*c = s->c;
	pthread_mutex_unlock(&lock);
	return rc;
}

static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* a threaded stream has done something, or has more to do */

static void carry_out(const struct op *o) {
	for (uint64_t i = 0; i < o->count; i++)
		memcpy((void *)(uintptr_t)o->pieces[i].dst, (void *)(uintptr_t)o->pieces[i].src, o->pieces[i].bytes);
	if (o->fill)
		memset(o->to, o->value, o->n);
	else if (o->from)
		memcpy(o->to, o->from, o->n);
	if (o->tell)
		__atomic_store_n(o->tell, o->number, __ATOMIC_RELEASE);
}

static void run_to(struct stream *s, uint64_t n);

/* Takes the next of what is on a stream, when what comes before it elsewhere is done. The caller holds the lock, and calls end. */
static struct op *begin(struct stream *s) {
	struct op *o = s->first;
	s->first = o->next;
	if (!s->first)
		s->end = &s->first;
	s->busy = 1;
	for (int i = 0; i < o->afters; i++)
		run_to(o->after[i].on, o->after[i].n);
	return o;
}

static void end(struct stream *s, struct op *o) {
	if (!s->c->lost && !s->reset)
		carry_out(o);
	free(o->after);
	free(o);
	s->busy = 0;
	s->did++;
	pthread_cond_broadcast(&moved);
}

/* Does the first n of all that was ever put on a stream, or waits for its thread to. The caller holds the lock. */
static void run_to(struct stream *s, uint64_t n) {
	while (s->did < n)
		if (s->threaded || s->busy) {
			s->wanted = 1;
			pthread_cond_wait(&moved, &lock);
		} else {
			end(s, begin(s));
		}
	s->wanted = 0;
}

/* The thread of a stream. What it calls and waits for is not under the lock. */
static void *stream_thread(void *arg) {
	struct stream *s = arg;
	pthread_mutex_lock(&lock);
	while (s->first || !s->gone) {
		if (!s->first || s->busy || (s->held && s->did >= s->most && !s->c->lost && !s->reset)) {
			pthread_cond_wait(&moved, &lock);
			continue;
		}
		struct op *o = begin(s);
		pthread_mutex_unlock(&lock);
		if (o->f && !s->c->lost && !s->reset)
			o->f(o->arg);
		while (o->word && !s->c->lost && !s->reset && __atomic_load_n(o->word, __ATOMIC_ACQUIRE) < o->at_least)
			usleep(20);
		pthread_mutex_lock(&lock);
		end(s, o);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* Gives a stream its thread. The caller holds the lock. */
static int start(struct stream *s) {
	pthread_t t;
	if (!s->threaded)
		s->threaded = pthread_create(&t, NULL, stream_thread, s) == 0 && pthread_detach(t) == 0;
	return s->threaded ? OK : OUT_OF_MEMORY;
}

API void fake_cuda_hold(struct stream *s, uint64_t n) {
	pthread_mutex_lock(&lock);
	if ((uintptr_t)s <= 2)
		s = stream_of(s);
	s->held = n != UINT64_MAX && start(s) == OK;
	s->most = s->did + n;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&lock);
}

API void fake_cuda_lose(void) {
	pthread_mutex_lock(&lock);
	now()->lost = 1;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&lock);
}

/* Does what is on a stream. The caller holds the lock. */
static int run(struct stream *s) {
	run_to(s, s->n);
	return OK;
}

/* Calls f for the streams of a context that wait for its legacy stream, or for all, that one too. The caller holds the lock, which f may give up. */
static void each(struct context *c, int all, void (*f)(struct stream *, void *), void *arg) {
	for (struct stream *s = streams; s; s = s->next)
		if (s->c == c && (all || s->blocking))
			f(s, arg);
	for (struct stream *s = destroyed; s; s = s->next) /* what is on it goes on */
		if (s->c == c && (all || s->blocking))
			f(s, arg);
	for (struct stream *s = c->own; s; s = s->next)
		f(s, arg);
	if (all)
		f(&c->legacy, arg);
}

static void run_one(struct stream *s, void *arg) {
	(void)arg;
	run(s);
}

/* Notes that what is on a stream now comes before o. */
static void comes_after(struct stream *s, void *arg) {
	struct op *o = arg;
	if (s->did == s->n)
		return;
	o->after = realloc(o->after, (size_t)(o->afters + 1) * sizeof *o->after);
	o->after[o->afters++] = (struct after){s, s->n};
}

/* What of other streams comes before the next on s. */
static void implied(struct stream *s, struct op *o) {
	if (s == &s->c->legacy)
		each(s->c, 0, comes_after, o);
	else if (s->blocking)
		comes_after(&s->c->legacy, o);
}

/* Puts o on a stream. The caller holds the lock. */
static int add_op(struct stream *s, struct op o) {
	struct op *p = malloc(sizeof *p);
	implied(s, &o);
	*p = o;
	p->next = NULL;
	*s->end = p;
	s->end = &p->next;
	s->n++;
	int rc = o.f || o.word ? start(s) : OK;
	pthread_cond_broadcast(&moved);
	return rc;
}

static int put(struct stream *to, struct op o, int launch) {
	int rc = INVALID_HANDLE;
	NEED();
	pthread_mutex_lock(&lock);
	struct stream *s = stream_of(to);
	if (s && s == &s->c->legacy && captures(s->c, 0, 0)) {
		rc = CAPTURE_IMPLICIT;
	} else if (s && s->capture.state != NONE) {
		s->capture.nodes++;
		rc = s->capture.state == ACTIVE ? OK : CAPTURE_INVALIDATED;
	} else if (s && !(launch && s->c != now())) {
		rc = add_op(s, o);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

API int cuLaunchHostFunc(struct stream *s, void (*f)(void *), void *arg) {
	COUNT();
	return f ? put(s, (struct op){.f = f, .arg = arg}, 0) : INVALID;
}

/* Only "at least". */
API int cuStreamWaitValue64_v2(struct stream *s, uint64_t *word, uint64_t value, unsigned flags) {
	COUNT();
	return word && !flags ? put(s, (struct op){.word = word, .at_least = value}, 0) : INVALID;
}

/* Waits for all that is on a stream. */
static int await(struct stream *on) {
	pthread_mutex_lock(&lock);
	struct stream *s = stream_of(on);
	if (s && s->capture.state != NONE) {
		s->capture.state = INVALIDATED;
		pthread_mutex_unlock(&lock);
		return CAPTURE_UNSUPPORTED;
	}
	if (s && s == &s->c->legacy && captures(s->c, 0, 0)) {
		pthread_mutex_unlock(&lock);
		return CAPTURE_IMPLICIT;
	}
	if (s && s == &s->c->legacy) /* as an H100 does; a blocking one does not wait for the legacy stream until there is more on it */
		each(s->c, 0, run_one, NULL);
	int rc = s ? run(s) : INVALID_HANDLE;
	pthread_mutex_unlock(&lock);
	return rc;
}

static _Atomic unsigned slow; /* µs that the next wait for a stream takes */

API void fake_cuda_slow(unsigned us) { slow = us; }

API int cuStreamSynchronize(struct stream *to) {
	COUNT();
	NEED();
	UNSAFE();
	unsigned us = atomic_exchange(&slow, 0);
	if (us)
		usleep(us);
	return await(to);
}

/* What is on the stream happens now: somebody waits for it. */
API int cuStreamQuery(struct stream *to) { return cuStreamSynchronize(to); }

/* Its memory stays: another thread may be waiting for an event on it. */
API int cuStreamDestroy_v2(struct stream *s) {
	COUNT();
	NEED();
	int rc = INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	for (struct stream **l = &streams; *l; l = &(*l)->next)
		if (*l == s) {
			*l = s->next;
			s->next = destroyed;
			destroyed = s;
			if (s->threaded) { /* what is on it goes on */
				s->gone = 1;
				pthread_cond_broadcast(&moved);
			} else {
				run(s);
			}
			rc = OK;
			break;
		}
	pthread_mutex_unlock(&lock);
	return rc;
}

API int cuCtxSynchronize(void) {
	COUNT();
	NEED();
	pthread_mutex_lock(&lock);
	if (captures(now(), 1, 1)) { /* whatever the thread's mode (an H100) */
		pthread_mutex_unlock(&lock);
		return CAPTURE_UNSUPPORTED;
	}
	each(now(), 1, run_one, NULL);
	pthread_mutex_unlock(&lock);
	return OK;
}

/* What tells its end happens at once, since nobody else looks, but if the next wait is to take long. */
static int put_told(struct stream *on, struct op o) {
	int rc = put(on, o, 0);
	return rc || slow ? rc : await(on);
}

API int cuStreamWriteValue32_v2(struct stream *s, uint32_t *word, uint32_t value, unsigned flags) {
	COUNT();
	return word && !flags ? put_told(s, (struct op){.tell = word, .number = value}) : INVALID;
}

static int within(const void *p, size_t n) {
	pthread_mutex_lock(&lock);
	struct alloc *a = find(p);
	int ok = !a || n <= (size_t)(a->at + a->n - (const char *)p);
	pthread_mutex_unlock(&lock);
	return ok;
}

/* Whether p is no device's. */
static int is_host(const void *p) {
	pthread_mutex_lock(&lock);
	struct alloc *a = find(p);
	int yes = !a || (a->host && !a->managed);
	pthread_mutex_unlock(&lock);
	return yes;
}

/* From the CPU's memory to the CPU's, pinned or not, the call waits for the stream, as CUDA's does ("API synchronization behavior"). */
API int cuMemcpyAsync(void *to, const void *from, size_t n, struct stream *on) {
	COUNT();
	if (!within(to, n) || !within(from, n))
		return INVALID;
	int rc = put(on, (struct op){.to = to, .from = from, .n = n}, 0);
	return !rc && is_host(to) && is_host(from) ? await(on) : rc;
}

/* What only goes to a device: to must be one's memory. */
static int is_device(const void *p, size_t n) {
	pthread_mutex_lock(&lock);
	struct alloc *a = find(p);
	int ok = a && !a->host && n <= (size_t)(a->at + a->n - (const char *)p);
	pthread_mutex_unlock(&lock);
	return ok;
}

API int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t n, struct stream *s) {
	COUNT();
	return is_device(to, n) && within(from, n) ? put(s, (struct op){.to = to, .from = from, .n = n}, 0) : INVALID;
}

API int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t n, struct stream *s) {
	COUNT();
	return is_device(from, n) && within(to, n) ? put(s, (struct op){.to = to, .from = from, .n = n}, 0) : INVALID;
}

API int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t n, struct stream *s) {
	COUNT();
	return is_device(to, n) && is_device(from, n) ? put(s, (struct op){.to = to, .from = from, .n = n}, 0) : INVALID;
}

/* CUDA_MEMCPY2D of version 2. */
struct rectangle {
	size_t from_x, from_y;
	unsigned from_type;
	const char *from_host;
	uint64_t from_device;
	void *from_array;
	size_t from_pitch, to_x, to_y;
	unsigned to_type;
	char *to_host;
	uint64_t to_device;
	void *to_array;
	size_t to_pitch, width, height;
};

/* Host memory, a device's, or either, by its type; of n bytes. */
static int is_type(unsigned type, const void *p, size_t n) {
	return type == 1 || type == 4 ? within(p, n) : type == 2 && is_device(p, n);
}

API int cuMemcpy2DAsync_v2(const struct rectangle *r, struct stream *s) {
	COUNT();
	char *to = r->to_type == 1 ? r->to_host : (char *)(uintptr_t)r->to_device;
	const char *from = r->from_type == 1 ? r->from_host : (const char *)(uintptr_t)r->from_device;
	if (r->from_x || r->from_y || r->to_x || r->to_y || r->from_array || r->to_array || !r->width || !r->height || r->from_pitch < r->width || r->to_pitch < r->width)
		return INVALID;
	if (!is_type(r->to_type, to, (r->height - 1) * r->to_pitch + r->width) || !is_type(r->from_type, from, (r->height - 1) * r->from_pitch + r->width))
		return INVALID;
	int rc = OK;
	for (size_t y = 0; !rc && y < r->height; y++)
		rc = put(s, (struct op){.to = to + y * r->to_pitch, .from = from + y * r->from_pitch, .n = r->width}, 0);
	return rc;
}

/* CUmemcpyAttributes, of copies that wait for the stream; one for all. */
struct attributes { int order, from[2], to[2]; unsigned flags; };

API int cuMemcpyBatchAsync_v2(char **to, char **from, size_t *n, size_t pieces, const struct attributes *a, const size_t *first, size_t attributes, struct stream *s) {
	COUNT();
	if (!pieces || attributes != 1 || first[0] || a->order != 1 || a->flags || (uintptr_t)s <= 1) /* not the legacy stream */
		return INVALID;
	for (size_t i = 0; i < pieces; i++)
		if (!n[i] || !within(to[i], n[i]) || !within(from[i], n[i]))
			return INVALID;
	int rc = OK;
	for (size_t i = pieces; !rc && i-- > 0;) /* in no order */
		rc = put(s, (struct op){.to = to[i], .from = from[i], .n = n[i]}, 0);
	return rc;
}

API int cuMemcpyDtoH_v2(void *to, const void *from, size_t n) {
	int rc = cuMemcpyDtoHAsync_v2(to, from, n, NULL);
	return rc ? rc : cuStreamSynchronize(NULL);
}

API int cuMemsetD8Async(void *to, unsigned char value, size_t n, struct stream *s) {
	COUNT();
	return within(to, n) ? put(s, (struct op){.to = to, .n = n, .fill = 1, .value = value}, 0) : INVALID;
}

/* Drops what is on a stream. */
static void reset(struct stream *s, void *arg) {
	(void)arg;
	s->reset = s->gone = 1;
	while (s->first && !s->busy)
		end(s, begin(s));
	while (s->copies)
		pthread_cond_wait(&moved, &lock);
}

API int cuDevicePrimaryCtxReset_v2(int device) {
	COUNT();
	if (!exists(device))
		return no_device();
	struct context *c = &devices[device].primary;
	pthread_mutex_lock(&lock);
	c->id = 0;
	each(c, 1, reset, NULL);
	c->own = NULL;
	c->legacy.reset = c->legacy.gone = 0;
	for (struct alloc **l = &allocs, *a; (a = *l);) {
		if (a->c != c) {
			l = &a->next;
			continue;
		}
		*l = a->next;
		if (!a->host)
			munmap(a->at, a->n);
		free(a);
	}
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&lock);
	return OK;
}

struct event { uint64_t id; /* of the context */ struct context *c; struct stream *on; uint64_t after; /* how many of what is on it */ double ms; };

API int cuEventCreate(struct event **e, unsigned flags) {
	COUNT();
	NEED();
	(void)flags;
	*e = calloc(1, sizeof **e);
	(*e)->c = now();
	(*e)->id = now()->id;
	return OK;
}

/* What is wrong with the event's context. */
static int event_lost(const struct event *e) {
	int rc = lost(e->c);
	return rc ? rc : e->id != e->c->id ? INVALID_CONTEXT : OK;
}

static int is_own(const struct stream *s) {
	const struct stream *o = s->c->own;
	while (o && o != s)
		o = o->next;
	return o != NULL;
}

/* The event's stream, NULL if it is no more. The caller holds the lock. */
static struct stream *on(struct event *e) {
	struct stream *s = streams;
	while (s && s != e->on)
		s = s->next;
	return s ? s : e->on && (e->on == &e->c->legacy || is_own(e->on)) ? e->on : NULL;
}

API int cuEventRecord(struct event *e, struct stream *to) {
	COUNT();
	NEED();
	if (event_lost(e))
		return event_lost(e);
	pthread_mutex_lock(&lock);
	struct stream *s = stream_of(to);
	int rc = !s || s->c != e->c ? INVALID_HANDLE : s == &s->c->legacy && captures(s->c, 0, 0) ? CAPTURE_IMPLICIT : OK;
	if (!rc && s->capture.state != NONE) {
		s->capture.nodes++;
	} else if (!rc) {
		struct op o = {0};
		implied(s, &o);
		if (o.afters) { /* it is there when these are done */
			free(o.after);
			add_op(s, (struct op){0});
		}
		e->on = s;
		e->after = s->n;
		e->ms = s->ms;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

/* What is put on the stream from now on comes after the event. */
API int cuStreamWaitEvent(struct stream *to, struct event *e, unsigned flags) {
	COUNT();
	NEED();
	if (flags)
		return INVALID;
	pthread_mutex_lock(&lock);
	struct stream *s = stream_of(to), *of = on(e);
	int rc = s ? OK : INVALID_HANDLE;
	if (!rc && of && of != s && of->did < e->after) {
		struct op o = {.after = malloc(sizeof *o.after), .afters = 1};
		o.after[0] = (struct after){of, e->after};
		rc = add_op(s, o);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

API int cuEventSynchronize(struct event *e) {
	COUNT();
	if (event_lost(e))
		return event_lost(e);
	UNSAFE();
	pthread_mutex_lock(&lock);
	struct stream *s = on(e);
	if (s)
		run_to(s, s->threaded ? e->after : s->n);
	pthread_mutex_unlock(&lock);
	return OK;
}

/* What is on a stream without a thread happens now: somebody waits for it. */
API int cuEventQuery(struct event *e) {
	COUNT();
	if (event_lost(e))
		return event_lost(e);
	UNSAFE();
	int rc = OK;
	pthread_mutex_lock(&lock);
	struct stream *s = on(e);
	if (s && !s->threaded)
		run(s);
	else if (s && s->did < e->after)
		rc = NOT_READY;
	pthread_mutex_unlock(&lock);
	return rc;
}

API int cuEventElapsedTime(float *ms, struct event *from, struct event *to) {
	COUNT();
	*ms = (float)(to->ms - from->ms);
	return from->on && to->on ? OK : INVALID_HANDLE;
}

API int cuEventDestroy_v2(struct event *e) {
	COUNT();
	if (e->id != e->c->id)
		return lost(e->c) ? lost(e->c) : INVALID_CONTEXT;
	free(e);
	return OK;
}

/* ---- the kernels: lanefs_gather's arguments are a table of pieces and how many, lanefs_copier's a seat, numbers, and times, of which it takes no notice ---- */

/* A function of a context: one that was reset has it no more. */
static struct function { char which; struct context *c; uint64_t id; } functions[256];
static int n_functions;
enum { GATHER = 1, COPIER = 2 };

API int cuModuleLoadData(void **m, const void *image) {
	COUNT();
	NEED();
	UNSAFE();
	*m = (void *)(uintptr_t)image;
	return OK;
}

API int cuModuleGetFunction(void **f, void *m, const char *name) {
	COUNT();
	(void)m;
	NEED();
	char which = strcmp(name, "lanefs_gather") == 0 ? GATHER : strcmp(name, "lanefs_copier") == 0 ? COPIER : 0;
	if (!which)
		return NOT_FOUND;
	pthread_mutex_lock(&lock);
	struct function *g = &functions[n_functions++ % 256];
	*g = (struct function){which, now(), now()->id};
	*f = g;
	pthread_mutex_unlock(&lock);
	return OK;
}

/* As kernels/copier.h has it. */
struct seat {
	_Atomic uint64_t to, what, unused[6];
	_Atomic uint32_t done, here, leaving, left, away;
};
struct copier { struct seat *seat; uint32_t launch, number; struct stream *s; };

static _Atomic int copier_does;
static _Atomic unsigned copier_ms = 1000;
enum { COPIES = 0, NOT_YET = 1, AT_ONCE = 2, AWAY = 3, REFUSES = 4, HANGS = 5 };

API void fake_cuda_copier(int does, unsigned ms) {
	copier_does = does;
	copier_ms = ms;
}

/* What a GPU would not survive ends the test. */
static void copier_copy(struct copier *k, uint64_t to, uint64_t what) {
	enum { ADDRESS = 44, QUADS = 12, QUAD = 16 };
	const uint64_t mask = (1ull << ADDRESS) - 1;
	char *at = (char *)(uintptr_t)((to & mask) * QUAD), *from = (char *)(uintptr_t)((what & mask) * QUAD);
	size_t n = ((what >> ADDRESS & ((1 << QUADS) - 1)) + 1) * QUAD;
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at), *b = find(from);
	if (!a || a->host || n > (size_t)(a->at + a->n - at) || a->c != k->s->c) {
		fprintf(stderr, "lanefs_copier writes to what is no memory of the context\n");
		abort();
	}
	if (!b || n > (size_t)(b->at + b->n - from) || (!b->host && b->c != k->s->c)) {
		fprintf(stderr, "lanefs_copier reads what it does not reach\n");
		abort();
	}
	memcpy(at, from, n);
	pthread_mutex_unlock(&lock);
}

/* Copies pieces until nothing has come for a while, or somebody waits for its stream. */
static void copier_run(void *arg) {
	enum { ADDRESS = 44, LOW = 56, POLL = 20 /* us */, YIELDS = 100 * POLL, TICKS = 5000000 };
	struct copier *k = arg;
	struct seat *seat = k->seat;
	pthread_mutex_lock(&lock);
	k->s->copies = 1;
	pthread_mutex_unlock(&lock);
	while (seat->here != k->launch && copier_does == NOT_YET && !k->s->wanted && !k->s->c->lost && !k->s->reset)
		usleep(POLL);
	seat->here = k->launch;
	seat->away = copier_does == AWAY ? TICKS : 0;
	uint64_t idle = 0, most = copier_does == AT_ONCE ? 0 : 1000ull * copier_ms;
	while (!k->s->c->lost && !k->s->reset) {
		uint64_t what = atomic_load(&seat->what), to = atomic_load(&seat->to);
		uint32_t n = (uint32_t)(to >> ADDRESS);
		if (n != k->number && (uint8_t)n == what >> LOW && copier_does != HANGS) {
			if (copier_does == REFUSES)
				break;
			copier_copy(k, to, what);
			k->number = n;
			seat->done = n;
			idle = 0;
			continue;
		}
		if (idle >= most || k->s->wanted) {
			if (seat->leaving == k->launch)
				break;
			seat->leaving = k->launch;
			continue;
		}
		if (idle < YIELDS)
			sched_yield();
		else
			usleep(POLL);
		idle += POLL;
	}
	if (!k->s->c->lost && !k->s->reset)
		seat->leaving = seat->left = k->launch;
	pthread_mutex_lock(&lock);
	k->s->copies = 0;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&lock);
	free(k);
}

static int copier_launch(struct stream *on, void **args) {
	uint64_t v[5];
	for (int i = 0; i < 5; i++)
		v[i] = *(uint64_t *)args[i];
	struct copier *k = malloc(sizeof *k);
	pthread_mutex_lock(&lock);
	*k = (struct copier){(struct seat *)(uintptr_t)v[0], (uint32_t)v[1], (uint32_t)v[2], stream_of(on)};
	pthread_mutex_unlock(&lock);
	/* It is there at once, however long its thread takes to begin. */
	while (k->s && copier_does != NOT_YET && k->seat->leaving != k->seat->left && !k->s->c->lost)
		sched_yield();
	if (k->s && copier_does != NOT_YET)
		k->seat->here = k->launch;
	int rc = put(on, (struct op){.f = copier_run, .arg = k}, 1);
	if (rc)
		free(k);
	else if (copier_does == AT_ONCE) /* the launch waits for it */
		rc = await(on);
	return rc;
}

/* That a kernel's pieces are of its context, or the CPU's: a GPU would not survive others. */
static void reachable(struct stream *on, const struct gather *pieces, uint64_t n) {
	pthread_mutex_lock(&lock);
	struct stream *s = now() ? stream_of(on) : NULL;
	for (uint64_t i = 0; s && i < 2 * n; i++) {
		const struct alloc *a = find((void *)(uintptr_t)(i % 2 ? pieces[i / 2].src : pieces[i / 2].dst));
		if (a && !a->host && !a->managed && a->c != s->c) {
			fprintf(stderr, "lanefs_gather addresses memory of another context\n");
			abort();
		}
	}
	pthread_mutex_unlock(&lock);
}

static _Atomic unsigned late; /* µs that kernels take */

API void fake_cuda_late(unsigned us) { late = us; }

API int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream *s, void **args, void **extra) {
	COUNT();
	const struct function *g = f;
	if (!f || !gx || !gy || !gz || !bx || !by || !bz || shared || extra)
		return INVALID;
	if (g->id != g->c->id)
		return INVALID_HANDLE;
	if (g->which == GATHER)
		reachable(s, *(void **)args[0], *(uint64_t *)args[1]);
	int rc = g->which == COPIER ? copier_launch(s, args) : put(s, (struct op){.pieces = *(void **)args[0], .count = *(uint64_t *)args[1]}, 1);
	pthread_mutex_lock(&lock);
	if (!rc && late) {
		stream_of(s)->ms += late / 1e3;
		slow = late;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

/* ---- what is not here: gpu/cuda wants to find it ---- */

enum { NOT_SUPPORTED = 801 };
#define NOT_HERE(name) API int name(void); API int name(void) { return NOT_SUPPORTED; }
NOT_HERE(cuMemHostAlloc) NOT_HERE(cuMemFreeHost) NOT_HERE(cuMemGetInfo_v2) NOT_HERE(cuMemAddressReserve) NOT_HERE(cuMemAddressFree) NOT_HERE(cuMemCreate)
NOT_HERE(cuMemRelease) NOT_HERE(cuMemMap) NOT_HERE(cuMemUnmap) NOT_HERE(cuMemSetAccess) NOT_HERE(cuMemGetAllocationGranularity)
NOT_HERE(cuMemExportToShareableHandle) NOT_HERE(cuMemImportFromShareableHandle) NOT_HERE(cuModuleUnload)
NOT_HERE(cuStreamCreateWithPriority) NOT_HERE(cuCtxGetStreamPriorityRange) NOT_HERE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOT_HERE(cuIpcOpenMemHandle_v2) NOT_HERE(cuIpcCloseMemHandle)
