/*
 * A libamdhip64 and libhsa-runtime64 for tests: the calls that gpu/hip makes, with the arguments AMD documents, checked,
 * over a backend (backend.h). It is no part of LaneFS's binary. SHIM_VERSION is the version of ROCm: 70100000 has
 * hsa_amd_portable_export_dmabuf_v2 and imports descriptors by value, 60400000 neither.
 *
 * It is stricter than AMD's where that finds mistakes: a thread must have called hipSetDevice, sizes and flags must be
 * ones that exist, and what waits for the device with AMD (hipFree and the like) waits here too.
 *
 * Environment: LANEFS_SHIM_NO_VMM, a device without virtual memory management; LANEFS_SHIM_ARCH, its architecture;
 * LANEFS_SHIM_MEMORY, its bytes, and LANEFS_SHIM_QUEUES, its hardware queues (4), over plain memory; LANEFS_SHIM_DEVICES, how many there are (1);
 * HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, which of them; LANEFS_SHIM_NO_DMABUF, a kernel that exports no DMA-BUFs; LANEFS_SHIM_LOST, a device whose every kernel has failed.
 * LANEFS_SHIM_FAIL names a file: once there is "refuse" in it no kernel can be launched, with "hang" those that are never
 * begin, with "lose" it is as if LANEFS_SHIM_LOST were set, with "stick" calls for streams do not return as long as it is there, with "open" hipGetDeviceCount and with "copy" those of copies, after they have made the file whose name has ".hangs" behind it.
 * With "NAME N" in it the N-th call of that function, and those after it, do likewise; with "NAME N DEVICE" those for that device, and likewise with a device behind the other words. Over plain memory, LANEFS_SHIM_HOST names the file, a PCI
 * function's BAR, that hipHostMalloc's memory is in; with LANEFS_SHIM_NO_IOMEM I/O memory is not registered, as mainline
 * amdgpu does not; LANEFS_SHIM_ENDED names a file that says when such a registration ended, LANEFS_SHIM_IDLE one that says when a thread with SCHED_IDLE made a call. With LANEFS_SHIM_NO_WAIT streams cannot wait for values. With LANEFS_SHIM_COPIES, over plain memory, device memory
 * that others reach has two copies, that of the GPU's kernels and that of other devices and the CPU (backend_cpu.c, with two variables more).
 */
#define _GNU_SOURCE
#include "backend.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef SHIM_VERSION
#define SHIM_VERSION 70100000
#endif
#define API __attribute__((visibility("default")))
enum { CONTEXT_IS_DESTROYED = 709, ALREADY_REGISTERED = 712 }; /* besides those of backend.h */
enum { PAGE = 4096, HSA_OK = 0, HSA_ERROR = 0x1000, HSA_INVALID = 0x1001, HSA_INVALID_AGENT = 0x1004, AGENT = 0x4c616e65 };

static struct facts facts;
static int initialized = -1;
static __thread int current = -1;

/* With LANEFS_SHIM_IDLE, a line for each call by a thread with SCHED_IDLE, whose policy threads that a runtime begins would inherit. */
static void idle(void) {
	const char *name = getenv("LANEFS_SHIM_IDLE");
	FILE *out = name && (sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) == SCHED_IDLE ? fopen(name, "ae") : NULL;
	if (out) {
		fputs("a call\n", out);
		fclose(out);
	}
}

static int need(void) {
	idle();
	if (initialized != OK)
		return initialized < 0 ? INVALID_DEVICE : initialized;
	return current >= 0 ? be_current() : INVALID_CONTEXT;
}
#define NEED() do { static int calls_; hold(__func__, __atomic_add_fetch(&calls_, 1, __ATOMIC_RELAXED)); int need_ = need(); if (need_ != OK) return need_; } while (0)

static void hold(const char *name, int call);

static int total(void) {
	const char *n = getenv("LANEFS_SHIM_DEVICES");
	return n ? atoi(n) : 1;
}

/* How many devices this process sees, and (which >= 0) which of all one of them is. HIP_VISIBLE_DEVICES and, before it, ROCR_VISIBLE_DEVICES name them by ordinals, up to
 * the first that is none. */
static int seen(const char *name, int of, int which, int (*below)(int)) {
	const char *v = getenv(name);
	int n = 0;
	if (!v)
		return which < 0 ? of : below(which);
	for (char *end; *v; v = *end == ',' ? end + 1 : end, n++) {
		long k = strtol(v, &end, 10);
		if (end == v || k < 0 || k >= of)
			break;
		if (n == which)
			return below((int)k);
	}
	return n;
}

static int itself(int device) { return device; }
static int rocr(int device) { return seen("ROCR_VISIBLE_DEVICES", total(), device, itself); }
static int devices(void) { return seen("HIP_VISIBLE_DEVICES", rocr(-1), -1, rocr); }
static int physical(int device) { return seen("HIP_VISIBLE_DEVICES", rocr(-1), device, rocr); }

static int exists(int device) { return device >= 0 && device < devices(); }

/* ---- references to memory ---- */

void phys_retain(phys *p) { __atomic_add_fetch(&p->refs, 1, __ATOMIC_RELAXED); }

/* ACQ_REL: all accesses before the other releases happen before be_destroy. */
static int phys_release(phys *p) { return __atomic_sub_fetch(&p->refs, 1, __ATOMIC_ACQ_REL) == 0 ? be_destroy(p) : OK; }

/* Whether the file of LANEFS_SHIM_FAIL contains what; with a device behind it, whether that is current. */
static int failing(const char *what) {
	const char *name = getenv("LANEFS_SHIM_FAIL");
	FILE *f = name ? fopen(name, "re") : NULL;
	char said[64] = "";
	int device = current;
	if (!f)
		return 0;
	int got = fscanf(f, "%63s %d", said, &device);
	fclose(f);
	return got >= 1 && strcmp(said, what) == 0 && device == current;
}

/* Makes the file whose name has ".hangs" behind it. */
static void hangs(void) {
	char name[4096];
	snprintf(name, sizeof name, "%s.hangs", getenv("LANEFS_SHIM_FAIL"));
	FILE *f = fopen(name, "we");
	if (f)
		fclose(f);
}

/* A call of a function, counted from 1, that does not return as long as the file of LANEFS_SHIM_FAIL has the function's name in it, and that call's number or a lower one; with a device behind it, one
 * with that device current. */
static void hold(const char *name, int call) {
	const char *file = getenv("LANEFS_SHIM_FAIL");
	while (file) {
		FILE *f = fopen(file, "re");
		char said[64] = "";
		int from = 0, device = current;
		if (!f)
			return;
		int got = fscanf(f, "%63s %d %d", said, &from, &device);
		fclose(f);
		if (got < 2 || strcmp(said, name) != 0 || call < from || device != current)
			return;
		hangs();
		usleep(10000);
	}
}

/* ---- device memory of hipMalloc and HSA ---- */

struct alloc {
	struct alloc *next;
	void *at;
	size_t size, mapped;
	phys *p;
	uint32_t legacy[2]; /* words by which another process finds it */
	int offered, opened;
	int device;
	uint64_t id;
};
static struct alloc *allocs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

/* Maps p, whose reference it takes over, and remembers it. */
static int adopt(phys *p, size_t size, void **out) {
	struct alloc *a = calloc(1, sizeof *a);
	a->size = size;
	a->mapped = p->size;
	a->p = p;
	int rc = be_reserve(&a->at, a->mapped);
	if (rc != OK) {
		phys_release(p);
		free(a);
		return rc;
	}
	if ((rc = be_map(a->at, a->mapped, p)) != OK || (rc = be_access(a->at, a->mapped)) != OK) {
		be_unreserve(a->at, a->mapped);
		phys_release(p);
		free(a);
		return rc;
	}
	static uint64_t ids;
	pthread_mutex_lock(&lock);
	a->id = ++ids;
	a->device = current < 0 ? 0 : current;
	a->next = allocs;
	allocs = a;
	pthread_mutex_unlock(&lock);
	*out = a->at;
	return OK;
}

static struct alloc *find(const void *at, struct alloc ***link) {
	for (struct alloc **l = &allocs; *l; l = &(*l)->next) {
		char *start = (*l)->at;
		if ((const char *)at >= start && (const char *)at < start + (*l)->size) {
			if (link)
				*link = l;
			return *l;
		}
	}
	return NULL;
}

static int disown(void *at) {
	struct alloc **link;
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at, &link);
	if (!a || a->at != at) {
		pthread_mutex_unlock(&lock);
		return INVALID;
	}
	*link = a->next;
	pthread_mutex_unlock(&lock);
	phys *offer = a->offered ? be_withdraw(a->legacy) : NULL;
	if (offer)
		phys_release(offer);
	int rc = be_unmap(a->at, a->mapped);
	if (rc == OK)
		rc = be_unreserve(a->at, a->mapped);
	phys_release(a->p);
	free(a);
	return rc;
}

static int alloc_device(void **out, size_t n) {
	NEED();
	if (!out || n == 0)
		return INVALID;
	phys *p;
	int rc = be_create(&p, round_up(n, facts.granularity));
	if (rc != OK)
		return rc;
	p->wanted = round_up(n, PAGE);
	return adopt(p, n, out);
}

/* ---- HIP: the library and the device ---- */

API int hipInit(unsigned flags) {
	if (flags != 0)
		return INVALID;
	if (devices() == 0)
		return NO_DEVICE;
	if (initialized < 0) {
		initialized = be_init(&facts);
		if (getenv("LANEFS_SHIM_ARCH"))
			snprintf(facts.arch, sizeof facts.arch, "%s", getenv("LANEFS_SHIM_ARCH"));
	}
	return initialized;
}

API int hipRuntimeGetVersion(int *v) {
	*v = SHIM_VERSION + 43484;
	return OK;
}

static const struct { int code; const char *name, *text; } errors[] = {
	{OK, "hipSuccess", "no error"}, {INVALID, "hipErrorInvalidValue", "invalid argument"},
	{OUT_OF_MEMORY, "hipErrorOutOfMemory", "out of memory"}, {ALREADY_REGISTERED, "hipErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"}, {NO_DEVICE, "hipErrorNoDevice", "no ROCm-capable device is detected"},
	{INVALID_DEVICE, "hipErrorInvalidDevice", "invalid device ordinal"}, {INVALID_IMAGE, "hipErrorInvalidImage", "device kernel image is invalid"},
	{INVALID_CONTEXT, "hipErrorInvalidContext", "invalid device context"}, {INVALID_HANDLE, "hipErrorInvalidHandle", "invalid resource handle"},
	{NOT_FOUND, "hipErrorNotFound", "named symbol not found"}, {NOT_READY, "hipErrorNotReady", "device not ready"},
	{LAUNCH_TIMEOUT, "hipErrorLaunchTimeOut", "the launch timed out and was terminated"},
	{LAUNCH_FAILURE, "hipErrorLaunchFailure", "unspecified launch failure"}, {NOT_SUPPORTED, "hipErrorNotSupported", "operation not supported"},
};

API const char *hipGetErrorName(int code) {
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code)
			return errors[i].name;
	return "hipErrorUnknown";
}

API const char *hipGetErrorString(int code) {
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code)
			return errors[i].text;
	return "unknown error";
}

API int hipGetDeviceCount(int *n) {
	while (failing("open")) {
		hangs();
		usleep(10000);
	}
	*n = initialized == OK ? devices() : 0;
	return *n ? OK : NO_DEVICE;
}

API int hipSetDevice(int device) {
	if (!exists(device))
		return INVALID_DEVICE;
	current = device;
	return OK;
}

API int hipDeviceGetName(char *name, int n, int device) {
	return !exists(device) || snprintf(name, n, "%s", facts.name) >= n ? INVALID : OK;
}

/* The devices are one, but for their addresses: 0000:c1:00.0, 0000:c1:01.0, … */
API int hipDeviceGetPCIBusId(char *bus, int n, int device) {
	if (!exists(device) || snprintf(bus, n, "%s", facts.bus) >= n)
		return INVALID;
	bus[9] += physical(device);
	return OK;
}

/* 16 letters, with AMD's: what follows GPU- in ROCR_VISIBLE_DEVICES. */
API int hipDeviceGetUuid(char *uuid, int device) {
	char text[17];
	if (!exists(device))
		return INVALID_DEVICE;
	snprintf(text, sizeof text, "%08x%08x", 0xc1f0e0d0 + physical(device), 0x5eed);
	memcpy(uuid, text, 16);
	return OK;
}

API int hipDeviceGetByPCIBusId(int *device, const char *bus) {
	char mine[32];
	for (int i = 0; i < devices(); i++)
		if (hipDeviceGetPCIBusId(mine, sizeof mine, i) == OK && strcmp(mine, bus) == 0) {
			*device = i;
			return OK;
		}
	return INVALID;
}

API int hipGetDevice(int *device) {
	*device = current < 0 ? 0 : current; /* 0: of a thread that has set none */
	return OK;
}

API int hipDeviceSynchronize(void) {
	NEED();
	return be_sync();
}

API int hipDeviceTotalMem(size_t *n, int device) {
	*n = facts.memory;
	return !exists(device) ? INVALID_DEVICE : OK;
}

API int hipDeviceGetAttribute(int *v, int which, int device) {
	if (!exists(device))
		return INVALID_DEVICE;
	switch (which) {
	case 63: *v = facts.units; return OK;
	case 87: *v = facts.wave; return OK;
	case 89: *v = !getenv("LANEFS_SHIM_NO_VMM"); return OK;
	case 10011: *v = facts.large_bar; return OK;
	case 10017: *v = facts.clock_khz; return OK;
	}
	return INVALID;
}

/* ---- HIP: memory ---- */

API int hipMemGetInfo(size_t *f, size_t *total) {
	NEED();
	return be_memory(f, total);
}

API int hipMalloc(void **p, size_t n) { return alloc_device(p, n); }

/* Signals: 8 bytes each, which streams can wait for. */
static void *signals[64];
enum { SIGNALS = sizeof signals / sizeof *signals };

static int alloc_signal(void **p, size_t n) {
	NEED();
	int rc = INVALID;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < SIGNALS && n == 8 && rc != OK && !getenv("LANEFS_SHIM_NO_WAIT"); i++)
		if (!signals[i] && (rc = be_host_alloc(p, n)) == OK)
			signals[i] = *p;
	pthread_mutex_unlock(&lock);
	return rc;
}

/* Whether p was a signal. */
static int free_signal(void *p) {
	int found = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < SIGNALS; i++)
		if (p && signals[i] == p) {
			signals[i] = NULL;
			found = be_host_free(p) == OK;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

API int hipExtMallocWithFlags(void **p, size_t n, unsigned flags) {
	if (flags == 2)
		return alloc_signal(p, n);
	if (flags != 0 && flags != 1 && flags != 3)
		return INVALID;
	/* As HSA does for a Radeon without HSA_FORCE_FINE_GRAIN_PCIE. */
	if (flags == 1 && strncmp(facts.arch, "gfx1", 4) == 0 && !getenv("HSA_FORCE_FINE_GRAIN_PCIE"))
		return INVALID;
	return alloc_device(p, n);
}

API int hipFree(void *p) {
	NEED();
	int rc = be_sync();
	return rc != OK || free_signal(p) ? rc : disown(p);
}

API int hipHostMalloc(void **p, size_t n, unsigned flags) {
	NEED();
	if (n == 0 || flags & ~0x70000003u)
		return INVALID;
	return be_host_alloc(p, n);
}

API int hipHostFree(void *p) {
	NEED();
	int rc = be_sync();
	return rc == OK ? be_host_free(p) : rc;
}

/* What is registered: no byte is twice. */
static struct registered {
	struct registered *next;
	char *at;
	size_t n;
	int io;
} *registrations;
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

/* With LANEFS_SHIM_ENDED, a line for each registration of I/O memory that ends: whether its addresses are a device's still. */
static void io_ended(const char *p) {
	const char *name = getenv("LANEFS_SHIM_ENDED");
	FILE *in = name ? fopen("/proc/self/smaps", "re") : NULL, *out = in ? fopen(name, "ae") : NULL;
	char line[512];
	int inside = 0, io = 0;
	while (in && fgets(line, sizeof line, in)) {
		unsigned long from, to;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			inside = from <= (unsigned long)p && (unsigned long)p < to;
		else if (inside && strncmp(line, "VmFlags:", 8) == 0)
			io = strstr(line, " io") != NULL || strstr(line, " pf") != NULL;
	}
	if (out)
		fputs(io ? "a device's\n" : "no device's\n", out);
	if (in)
		fclose(in);
	if (out)
		fclose(out);
}

API int hipHostRegister(void *p, size_t n, unsigned flags) {
	NEED();
	if (n == 0 || flags & ~15u)
		return INVALID;
	struct registered *r = malloc(sizeof *r);
	int rc = r ? OK : OUT_OF_MEMORY;
	pthread_mutex_lock(&registering);
	for (struct registered *o = registrations; o && rc == OK; o = o->next)
		if ((char *)p < o->at + o->n && o->at < (char *)p + n)
			rc = ALREADY_REGISTERED;
	if (rc == OK)
		rc = be_host_register(p, n, flags);
	if (rc == OK) {
		*r = (struct registered){registrations, p, n, (flags & 4) != 0};
		registrations = r;
		r = NULL;
	}
	pthread_mutex_unlock(&registering);
	free(r);
	return rc;
}

API int hipHostUnregister(void *p) {
	NEED();
	int rc = be_sync();
	if (rc == OK)
		rc = be_host_unregister(p);
	pthread_mutex_lock(&registering);
	for (struct registered **o = &registrations; rc == OK && *o; o = &(*o)->next)
		if ((*o)->at == p) {
			struct registered *gone = *o;
			*o = gone->next;
			if (gone->io)
				io_ended(gone->at);
			free(gone);
			break;
		}
	pthread_mutex_unlock(&registering);
	return rc;
}

API int hipHostGetDevicePointer(void **device, void *host, unsigned flags) {
	NEED();
	return flags != 0 ? INVALID : be_host_address(device, host);
}

/* ---- HIP: virtual memory management ---- */

struct prop { uint32_t type, handles, location, id; void *win32; uint8_t compression, rdma; uint16_t usage; uint32_t reserved; };
struct access { uint32_t location, id, flags; };

/* Which phys is mapped where: a backend's export may need an address. */
struct mapping {
	struct mapping *next;
	void *at;
	phys *p;
	int device;
};
static struct mapping *mappings;

static int check_prop(const struct prop *p) {
	return p->type == 1 && p->handles == 1 && p->location == 1 && exists((int)p->id) && !p->win32 && !p->compression ? OK : INVALID;
}

API int hipMemGetAllocationGranularity(size_t *n, const struct prop *p, int option) {
	*n = facts.granularity;
	return option == 0 ? check_prop(p) : INVALID;
}

API int hipMemAddressReserve(void **p, size_t n, size_t align, void *at, unsigned long long flags) {
	NEED();
	if (n == 0 || n % facts.granularity || align || at || flags)
		return INVALID;
	return be_reserve(p, n);
}

API int hipMemAddressFree(void *p, size_t n) {
	NEED();
	return be_unreserve(p, n);
}

API int hipMemCreate(phys **p, size_t n, const struct prop *prop, unsigned long long flags) {
	NEED();
	if (n == 0 || n % facts.granularity || flags || check_prop(prop) != OK)
		return INVALID;
	return be_create(p, n);
}

API int hipMemRelease(phys *p) {
	NEED();
	return phys_release(p);
}

API int hipMemMap(void *at, size_t n, size_t offset, phys *p, unsigned long long flags) {
	NEED();
	if (offset || flags || n != p->size)
		return INVALID;
	int rc = be_map(at, n, p);
	if (rc != OK)
		return rc;
	struct mapping *m = calloc(1, sizeof *m);
	m->at = at;
	m->p = p;
	m->device = current;
	phys_retain(p); /* a mapping keeps its memory, also after hipMemRelease */
	pthread_mutex_lock(&lock);
	m->next = mappings;
	mappings = m;
	pthread_mutex_unlock(&lock);
	return OK;
}

API int hipMemUnmap(void *at, size_t n) {
	NEED();
	phys *p = NULL;
	pthread_mutex_lock(&lock);
	for (struct mapping **l = &mappings; *l; l = &(*l)->next)
		if ((*l)->at == at) {
			struct mapping *m = *l;
			*l = m->next;
			p = m->p;
			free(m);
			break;
		}
	pthread_mutex_unlock(&lock);
	if (!p)
		return INVALID;
	int rc = be_unmap(at, n);
	int freed = phys_release(p);
	return rc == OK ? freed : rc;
}

API int hipMemSetAccess(void *at, size_t n, const struct access *a, size_t count) {
	NEED();
	if (count != 1 || a->location != 1 || !exists((int)a->id) || a->flags != 3)
		return INVALID;
	return be_access(at, n);
}

API int hipMemExportToShareableHandle(void *handle, phys *p, int type, unsigned long long flags) {
	NEED();
	if (type != 1 || flags)
		return INVALID;
	void *at = NULL;
	pthread_mutex_lock(&lock);
	for (struct mapping *m = mappings; m; m = m->next)
		if (m->p == p)
			at = m->at;
	pthread_mutex_unlock(&lock);
	return be_export(p, at, p->size, handle);
}

API int hipMemImportFromShareableHandle(phys **p, void *handle, int type) {
	NEED();
	if (type != 1)
		return INVALID;
#if SHIM_VERSION >= 70100000
	return be_import((int)(intptr_t)handle, p);
#else
	return be_import(*(int *)handle, p);
#endif
}

/* ---- HIP: memory of other drivers and processes, by DMA-BUF ---- */

struct external_handle { uint32_t type; union { int fd; struct { void *handle; const void *name; } win32; } handle; uint64_t size; uint32_t flags, reserved[16]; };
struct external_buffer { uint64_t offset, size; uint32_t flags, reserved[16]; };
struct external { phys *p; uint64_t size; };

API int hipImportExternalMemory(struct external **out, const struct external_handle *d) {
	NEED();
	if (!out || d->type != 1 || d->flags || d->size == 0)
		return INVALID;
	phys *p;
	if (be_import(d->handle.fd, &p) != OK)
		return OUT_OF_MEMORY; /* as AMD's library */
	*out = calloc(1, sizeof **out);
	**out = (struct external){p, d->size};
	return OK;
}

API int hipExternalMemoryGetMappedBuffer(void **at, struct external *e, const struct external_buffer *d) {
	NEED();
	if (!at || !e || d->flags || d->offset > e->size || d->size > e->size - d->offset)
		return INVALID;
	phys_retain(e->p);
	int rc = adopt(e->p, e->p->size, at);
	*at = rc == OK ? (char *)*at + d->offset : NULL;
	return rc;
}

API int hipDestroyExternalMemory(struct external *e) {
	NEED();
	int rc = phys_release(e->p);
	free(e);
	return rc;
}

/* ---- HIP: legacy IPC ---- */

struct legacy { uint64_t magic, size; uint32_t words[2]; uint32_t pid, reserved[9]; };
_Static_assert(sizeof(struct legacy) == 64, "hipIpcMemHandle_t");

API int hipIpcGetMemHandle(struct legacy *h, void *at) {
	NEED();
	int rc = INVALID;
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at, NULL);
	if (a && a->at == at && !a->opened) {
		rc = OK;
		if (!a->offered && (rc = be_offer(a->p, a->legacy)) == OK) {
			phys_retain(a->p);
			a->offered = 1;
		}
		*h = (struct legacy){.magic = AGENT, .size = a->size, .words = {a->legacy[0], a->legacy[1]}, .pid = (uint32_t)getpid()};
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

/* As HIP's and CUDA's, it opens no handle of the process's own. */
API int hipIpcOpenMemHandle(void **at, struct legacy h, unsigned flags) {
	NEED();
	phys *p;
	if (flags != 1 || h.magic != AGENT)
		return INVALID;
	if (h.pid == (uint32_t)getpid())
		return INVALID_CONTEXT;
	int rc = be_take(h.words, &p);
	if (rc != OK)
		return rc;
	if ((rc = adopt(p, h.size < p->size ? h.size : p->size, at)) != OK)
		return rc;
	pthread_mutex_lock(&lock);
	find(*at, NULL)->opened = 1;
	pthread_mutex_unlock(&lock);
	return OK;
}

API int hipIpcCloseMemHandle(void *at) {
	NEED();
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at, NULL);
	int opened = a && a->opened;
	pthread_mutex_unlock(&lock);
	int rc = opened ? be_sync() : INVALID;
	return rc == OK ? disown(at) : rc;
}

API int hipMemGetAddressRange(void **base, size_t *size, void *at) {
	NEED();
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at, NULL);
	if (a) {
		*base = a->at;
		*size = a->size;
	}
	pthread_mutex_unlock(&lock);
	return a ? OK : INVALID;
}

/* ---- HIP: modules and streams ---- */

API int hipModuleLoadData(void **m, const void *image) {
	NEED();
	return be_module_load(m, image);
}

API int hipModuleUnload(void *m) {
	NEED();
	int rc = be_sync();
	return rc == OK ? be_module_unload(m) : rc;
}

API int hipModuleGetFunction(void **f, void *m, const char *name) {
	NEED();
	return be_module_function(f, m, name);
}

/* Streams that there are, and whose device they are. As with AMD's, the calls for streams refuse what is none, one that a reset has ended for instance (hip::isValid). */
static struct stream { struct stream *next; void *s; int device; } *streams; /* protected by lock */

static int stream_create(void **s, int urgent) {
	int rc = be_stream_create(s, urgent);
	if (rc != OK)
		return rc;
	struct stream *one = malloc(sizeof *one);
	pthread_mutex_lock(&lock);
	*one = (struct stream){streams, *s, current};
	streams = one;
	pthread_mutex_unlock(&lock);
	return OK;
}

/* Takes the stream, or any of a device if it is NULL, out of those that there are. */
static void *stream_take(void *s, int device) {
	void *found = NULL;
	pthread_mutex_lock(&lock);
	for (struct stream **l = &streams; *l; l = &(*l)->next)
		if (s ? (*l)->s == s : (*l)->device == device) {
			struct stream *gone = *l;
			found = gone->s;
			*l = gone->next;
			free(gone);
			break;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

static int stream_is(void *s) {
	int is = (uintptr_t)s <= 2; /* the default ones */
	pthread_mutex_lock(&lock);
	for (struct stream *l = streams; l && !is; l = l->next)
		is = l->s == s;
	pthread_mutex_unlock(&lock);
	return is;
}
#define STREAM(s) do { if (!stream_is(s)) return CONTEXT_IS_DESTROYED; } while (0)

API int hipStreamCreateWithFlags(void **s, unsigned flags) {
	NEED();
	return flags != 1 ? INVALID : stream_create(s, 0);
}

API int hipDeviceGetStreamPriorityRange(int *least, int *most) {
	NEED();
	*least = 1;
	*most = -1;
	return OK;
}

API int hipStreamCreateWithPriority(void **s, unsigned flags, int priority) {
	NEED();
	return flags != 1 || priority < -1 || priority > 1 ? INVALID : stream_create(s, priority < 0);
}

API int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int block, size_t dynamic) {
	NEED();
	return !n || !f || block < 1 || dynamic ? INVALID : be_occupancy(n, f, block);
}

API int hipStreamDestroy(void *s) {
	NEED();
	STREAM(s);
	return be_stream_destroy(stream_take(s, 0));
}

/*
 * The device's memory of hipMalloc and HSA, its streams, and what is registered are no more; events, modules and what is mapped by virtual memory management stay. So it is in AMD's sources (clr,
 * hip::Device::Reset), for one device: with several, what is registered stays, too.
 */
API int hipDeviceReset(void) {
	NEED();
	int rc = be_sync();
	for (void *s; rc == OK && (s = stream_take(NULL, current));)
		rc = be_stream_destroy(s);
	for (struct alloc *a = allocs; rc == OK && a;) {
		struct alloc *next = a->next;
		if (a->device == current)
			rc = disown(a->at);
		a = next;
	}
	while (rc == OK && registrations)
		rc = hipHostUnregister(registrations->at);
	return rc;
}

/* How much is registered, which no call of AMD's says. */
API size_t shim_registered(void) {
	size_t n = 0;
	pthread_mutex_lock(&registering);
	for (struct registered *r = registrations; r; r = r->next)
		n += r->n;
	pthread_mutex_unlock(&registering);
	return n;
}

/* A call that does not return, for a while. */
static void stick(void) {
	while (failing("stick"))
		usleep(10000);
}

API int hipStreamQuery(void *s) {
	NEED();
	STREAM(s);
	stick();
	if (getenv("LANEFS_SHIM_LOST") || failing("lose"))
		return LAUNCH_FAILURE;
	return failing("hang") ? NOT_READY : be_stream_query(s);
}

API int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	unsigned shared, void *s, void **params, void **extra) {
	NEED();
	STREAM(s);
	if (!gx || !gy || !gz || !bx || !by || !bz || shared || extra || !params)
		return INVALID;
	stick();
	if (failing("refuse") || failing("lose"))
		return LAUNCH_FAILURE;
	if (failing("hang"))
		return OK;
	const uint32_t dims[6] = {gx, gy, gz, bx, by, bz};
	return be_launch(f, dims, s, params);
}

/* Whether n bytes are of one allocation, or of none. */
static int within(const void *at, size_t n) {
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at, NULL);
	int ok = !a || (const char *)at + n <= (char *)a->at + a->mapped;
	pthread_mutex_unlock(&lock);
	return ok;
}

API int hipMemcpyAsync(void *dst, const void *src, size_t n, int kind, void *s) {
	NEED();
	STREAM(s);
	if (!within(dst, n) || !within(src, n))
		return INVALID;
	while (failing("copy")) {
		hangs();
		usleep(10000);
	}
	return kind != 4 ? INVALID : be_copy(dst, src, n, s);
}

API int hipMemsetD8Async(void *dst, unsigned char v, size_t n, void *s) {
	NEED();
	STREAM(s);
	return be_fill(dst, v, n, s);
}

API int hipLaunchHostFunc(void *s, void (*f)(void *), void *arg) {
	NEED();
	STREAM(s);
	return be_call(f, arg, s);
}

API int hipStreamWaitValue64(void *s, void *word, uint64_t value, unsigned flags, uint64_t mask) {
	NEED();
	STREAM(s);
	if (flags != 0 || mask != UINT64_MAX)
		return INVALID;
	return be_wait(word, value, s);
}

/*
 * A record is a call in its stream's order, which notes the time. An event may be recorded again before it has happened: what waits for it then waits
 * for the last record.
 */
struct event { uint64_t records, happened, at; int timed; };

static void happen(void *event) {
	struct event *e = event;
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	e->at = (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
	__atomic_add_fetch(&e->happened, 1, __ATOMIC_RELEASE); /* the last access: it may be freed now */
}

static int has_happened(struct event *e) {
	return __atomic_load_n(&e->happened, __ATOMIC_ACQUIRE) == __atomic_load_n(&e->records, __ATOMIC_ACQUIRE);
}

API int hipEventCreateWithFlags(void **e, unsigned flags) {
	NEED();
	struct event *made = flags == 2 || flags == 0 ? calloc(1, sizeof *made) : NULL;
	if (!made)
		return INVALID;
	made->timed = flags == 0;
	*e = made;
	return OK;
}

API int hipEventRecord(void *event, void *s) {
	struct event *e = event;
	NEED();
	STREAM(s);
	__atomic_add_fetch(&e->records, 1, __ATOMIC_RELEASE);
	int rc = be_call(happen, e, s);
	if (rc != OK)
		__atomic_sub_fetch(&e->records, 1, __ATOMIC_RELEASE);
	return rc;
}

/* Milliseconds between two events that have happened. */
API int hipEventElapsedTime(float *ms, void *from, void *to) {
	struct event *a = from, *b = to;
	if (!a->timed || !b->timed || !a->records || !b->records)
		return INVALID_HANDLE;
	if (!has_happened(a) || !has_happened(b))
		return NOT_READY;
	*ms = (float)((double)(b->at - a->at) / 1e6);
	return OK;
}

API int hipEventQuery(void *event) {
	NEED();
	return has_happened(event) ? OK : NOT_READY;
}

API int hipEventSynchronize(void *event) {
	NEED();
	while (!has_happened(event))
		usleep(10);
	return OK;
}

API int hipEventDestroy(void *event) {
	int rc = hipEventSynchronize(event);
	if (rc == OK)
		free(event);
	return rc;
}

API int hipStreamSynchronize(void *s) {
	int rc;
	NEED();
	STREAM(s);
	while ((rc = be_stream_query(s)) == NOT_READY)
		usleep(10);
	return rc;
}

/* What is asked of pointers. Memory that no call here has given is unknown, as ordinary memory is. */
enum { MEMORY_TYPE = 2, BUFFER_ID = 7, MANAGED = 8, ORDINAL = 9, LEGACY_IPC = 10, RANGE_START = 11, RANGE_SIZE = 12 };

static int attribute(void *out, int which, void *at) {
	if (which == MANAGED) {
		*(unsigned *)out = 0;
		return OK;
	}
	int rc = INVALID, device = 0;
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at, NULL);
	char *start = a ? a->at : NULL;
	size_t size = a ? a->size : 0;
	if (a)
		device = a->device;
	for (struct mapping *m = mappings; m && !a && !start; m = m->next)
		if ((char *)at >= (char *)m->at && (char *)at < (char *)m->at + m->p->size) {
			start = m->at;
			size = m->p->size;
			device = m->device;
		}
	if (start) {
		rc = OK;
		switch (which) {
		case MEMORY_TYPE: *(int *)out = SHIM_VERSION < 60000000 ? 1 : 2; break;
		case ORDINAL: *(int *)out = device; break;
		case RANGE_START: *(void **)out = start; break;
		case RANGE_SIZE: *(size_t *)out = size; break;
		case LEGACY_IPC: *(_Bool *)out = a != NULL; break;
		case BUFFER_ID:
			if (a)
				*(uint64_t *)out = a->id;
			else
				rc = INVALID;
			break;
		default: rc = INVALID;
		}
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

API int hipPointerGetAttribute(void *out, int which, void *at) {
	return attribute(out, which, at);
}

/* It succeeds always: what a pointer has not is left as it is. */
API int hipDrvPointerGetAttributes(unsigned n, const int *which, void **out, void *at) {
	if (!n || !which || !out || !at)
		return INVALID;
	for (unsigned i = 0; i < n; i++)
		attribute(out[i], which[i], at);
	return OK;
}

/* ---- HSA ---- */

struct pointer_info { uint32_t size, type; void *agent_base, *host_base; size_t bytes; void *user; uint64_t owner; uint32_t flags; };
struct ipc { uint32_t words[8]; };

API int hsa_init(void) { return initialized == OK ? HSA_OK : HSA_ERROR; }

API int hsa_status_string(int code, const char **text) {
	switch (code) {
	case HSA_OK: *text = "HSA_STATUS_SUCCESS: The function has been executed successfully."; break;
	case HSA_INVALID: *text = "HSA_STATUS_ERROR_INVALID_ARGUMENT: One of the actual arguments does not meet a precondition stated in the documentation."; break;
	case HSA_INVALID_AGENT: *text = "HSA_STATUS_ERROR_INVALID_AGENT: The agent is invalid."; break;
	default: *text = "HSA_STATUS_ERROR: A generic error has occurred."; break;
	}
	return HSA_OK;
}

API int hsa_agent_get_info(uint64_t agent, int what, void *value) {
	if (agent != AGENT)
		return HSA_INVALID_AGENT;
	if (what == 0xa00e) { /* HSA_AMD_AGENT_INFO_HDP_FLUSH */
		static uint32_t reg_flush;
		uint32_t **to = value;
		to[0] = be_flush();
		to[1] = &reg_flush;
		return HSA_OK;
	}
	if (what != 0)
		return HSA_INVALID;
	memset(value, 0, 64);
	strcpy(value, facts.arch);
	return HSA_OK;
}

API int hsa_amd_pointer_info(const void *at, struct pointer_info *p, void *alloc, uint32_t *n, void **accessible) {
	if (!p || p->size != sizeof *p || alloc || n || accessible)
		return HSA_INVALID;
	memset(p, 0, sizeof *p);
	p->size = sizeof *p;
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at, NULL);
	if (a) {
		p->type = 1;
		p->agent_base = a->at;
		p->host_base = facts.large_bar ? be_bar(a->p, a->at) : NULL;
		p->bytes = round_up(a->size, PAGE);
		p->owner = AGENT;
	}
	pthread_mutex_unlock(&lock);
	return HSA_OK;
}

static int export_dmabuf(const void *at, size_t n, int *fd, uint64_t *offset) {
	if (getenv("LANEFS_SHIM_NO_DMABUF"))
		return HSA_ERROR;
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at, NULL);
	int rc = HSA_INVALID;
	if (a && (const char *)at + n <= (char *)a->at + a->mapped && be_current() == OK && be_export(a->p, a->at, a->mapped, fd) == OK) {
		*offset = (const char *)at - (char *)a->at;
		rc = HSA_OK;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

API int hsa_amd_portable_export_dmabuf(const void *at, size_t n, int *fd, uint64_t *offset) { return export_dmabuf(at, n, fd, offset); }

#if SHIM_VERSION >= 70100000
API int hsa_amd_portable_export_dmabuf_v2(const void *at, size_t n, int *fd, uint64_t *offset, uint64_t flags) {
	return flags > 1 ? HSA_INVALID : export_dmabuf(at, n, fd, offset);
}
#endif

API int hsa_amd_portable_close_dmabuf(int fd) { return close(fd) == 0 ? HSA_OK : HSA_INVALID; }

/* Maps what p holds, whose reference it takes over. */
static int attach(phys *p, void **at) { return be_current() == OK && adopt(p, p->size, at) == OK ? HSA_OK : HSA_ERROR; }

API int hsa_amd_interop_map_buffer(uint32_t count, const uint64_t *agents, int fd, uint32_t flags, size_t *n, void **at,
	size_t *metadata_size, const void **metadata) {
	phys *p;
	if (count != 1 || *agents != AGENT || flags || metadata_size || metadata || be_current() != OK || be_import(fd, &p) != OK)
		return HSA_INVALID;
	*n = p->size;
	return attach(p, at);
}

API int hsa_amd_interop_unmap_buffer(void *at) { return be_current() == OK && disown(at) == OK ? HSA_OK : HSA_INVALID; }

API int hsa_amd_ipc_memory_create(void *at, size_t n, struct ipc *h) {
	phys *p = NULL;
	pthread_mutex_lock(&lock);
	struct alloc *a = find(at, NULL);
	if (a && a->at == at && round_up(a->size, PAGE) == n) {
		p = a->p;
		phys_retain(p); /* never released: the last use of a handle is not reported */
	}
	pthread_mutex_unlock(&lock);
	memset(h, 0, sizeof *h);
	h->words[0] = AGENT;
	h->words[1] = (uint32_t)n;
	return p && be_offer(p, h->words + 2) == OK ? HSA_OK : HSA_INVALID;
}

API int hsa_amd_ipc_memory_attach(const struct ipc *h, size_t n, uint32_t count, const uint64_t *agents, void **at) {
	phys *p;
	if (count != 1 || *agents != AGENT || h->words[0] != AGENT || h->words[1] != (uint32_t)n || be_current() != OK || be_take(h->words + 2, &p) != OK)
		return HSA_INVALID;
	return attach(p, at);
}

API int hsa_amd_ipc_memory_detach(void *at) { return hsa_amd_interop_unmap_buffer(at); }
