/*
 * Mapping GPU memory of which the program has a descriptor. CUDA's driver and HIP are opened at run time. Their functions and structs for
 * virtual memory have the same names and layouts. Only AMD has DMA-BUFs as HIP's external memory, and HSA's IPC handles.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CURRENT = -1 }; /* the device was the thread's already */
enum { DESTROYED = 709 }; /* CUDA_ERROR_CONTEXT_IS_DESTROYED, hipErrorContextIsDestroyed */
enum { BUFFER_ID = 7 };   /* HIP_POINTER_ATTRIBUTE_BUFFER_ID */
enum { UNKNOWN = 1 };     /* hipErrorInvalidValue: of an address that is no memory's of HIP's */
enum { RELAXED = 2 };  /* CU_STREAM_CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed */
enum { MALLOC_PAGE = 4096, OPAQUE_FD = 1, POSIX_FD = 1, DEVICE = 1, READ_WRITE = 3, VALUE_SINCE = 70100000 };

struct access { int location, id, flags; };                                                   /* CUmemAccessDesc, hipMemAccessDesc */
struct external_handle { int type; union { int fd; void *win32[2]; } handle; uint64_t size; unsigned flags, reserved[16]; };
struct external_buffer { uint64_t offset, size; unsigned flags, reserved[16]; };              /* hipExternalMemory*Desc */
struct pointer_info { uint32_t size, type; void *agent, *host; size_t bytes; void *user; uint64_t owner; uint32_t flags; };
struct ipc { char magic[8]; uint64_t size; uint32_t handle[8]; };                             /* docs/SPEC.md; hsa_amd_ipc_memory_t */
_Static_assert(sizeof(struct external_handle) == 104 && sizeof(struct external_buffer) == 88 && sizeof(struct ipc) == 48 && sizeof(struct pointer_info) == 56, "layout");

PROCESS_LOCK(lock);
static struct gpu *gpus; /* protected by lock */

void *lanefs_gpu_function(struct gpu *g, const char *name)
{
	char full[64];
	snprintf(full, sizeof full, "%s%s", g->hip ? "hip" : "cu", name);
	return dlsym(g->lib, full);
}

#define HSA(g, name, types, ...) ({ int (*f_) types = (int (*) types)dlsym(g, name); f_ ? f_(__VA_ARGS__) : -1; })

int lanefs_gpu_lost(int code)
{
	/* CUDA_ERROR_DEINITIALIZED, ECC_UNCORRECTABLE, ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, CONTEXT_IS_DESTROYED, ASSERT, and from HARDWARE_STACK_ERROR to LAUNCH_FAILED. HIP's numbers are the same. */
	static const int codes[] = {4, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};
	for (unsigned i = 0; i < sizeof codes / sizeof *codes; i++)
		if (code == codes[i])
			return 1;
	return 0;
}

int lanefs_gpu_bad(struct gpu *g, const char *what, int code)
{
	struct failure f = {code == 2 ? ENOMEM : EIO, 1, ""};
	const char *name = NULL, *prefix = g->hip ? "hip" : "cu";
	if (code != -1)
		CALL(g, g->hip ? "DrvGetErrorName" : "GetErrorName", (int, const char **), code, &name);
	if (code == -1)
		snprintf(f.text, sizeof f.text, "the GPU's library has no %s%s", prefix, what);
	else
		snprintf(f.text, sizeof f.text, "%s%s: error %d%s%s%s", prefix, what, code, name ? ", " : "", name ? name : "", code == DESTROYED ? g->hip ? ": the program has reset the device (hipDeviceReset), or destroyed the stream" : ": the program has reset the device (cudaDeviceReset), or destroyed the context" :
			lanefs_gpu_lost(code) ? ": the GPU's context is lost, by a kernel of this program as a rule; only a new process gets another" : "");
	return lanefs_fail_as(&f);
}

static void *load(const char *const *names)
{
	for (; *names; names++) {
		void *lib = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
		if (lib)
			return lib;
	}
	return NULL;
}

enum { UUID = 16, UUID_TEXT = 41 };

/* The UUID of a MIG instance, as MIG-…; empty: it is none, but all of a GPU. Several are at one PCI address. */
static void mig(struct gpu *g, int device, char *text)
{
	unsigned char whole[UUID] = {0}, u[UUID] = {0};
	text[0] = 0;
	if (g->hip || CALL(g, "DeviceGetUuid", (void *, int), whole, device) || CALL(g, "DeviceGetUuid_v2", (void *, int), u, device) || memcmp(whole, u, UUID) == 0)
		return;
	snprintf(text, UUID_TEXT, "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
		u[11], u[12], u[13], u[14], u[15]);
}

/* The device of that name: a PCI address, or what mig gives. */
static int find(struct gpu *g, const char *device)
{
	char text[UUID_TEXT];
	int n = 0, rc;
	if (strncmp(device, "MIG-", 4)) {
		rc = CALL(g, "DeviceGetByPCIBusId", (int *, const char *), &g->ordinal, device);
		return rc ? lanefs_gpu_bad(g, "DeviceGetByPCIBusId", rc) : 0;
	}
	if ((rc = CALL(g, "DeviceGetCount", (int *), &n)))
		return lanefs_gpu_bad(g, "DeviceGetCount", rc);
	for (g->ordinal = 0; g->ordinal < n; g->ordinal++) {
		mig(g, g->ordinal, text);
		if (strcmp(text, device) == 0)
			return 0;
	}
	return lanefs_fail(ENODEV, "the memory is of a MIG instance that this process does not see");
}

static int start(struct gpu *g, const char *device)
{
	static const char *const cuda[] = {"libcuda.so.1", NULL};
	static const char *const hip[] = {"libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so.7", "/opt/rocm/lib/libamdhip64.so.6", "libamdhip64.so", NULL};
	g->lib = load(g->hip ? hip : cuda);
	if (!g->lib)
		return lanefs_fail(ENOENT, g->hip ? "the memory is an AMD GPU's, and libamdhip64 is not here" : "the memory is an NVIDIA GPU's, and libcuda.so.1 is not here");
	int rc = CALL(g, "Init", (unsigned), 0);
	if (rc)
		return lanefs_gpu_bad(g, "Init", rc);
	return device ? find(g, device) : 0;
}

static int is_cuda(struct dl_phdr_info *info, size_t n, void *found)
{
	(void)n;
	const char *base = strrchr(info->dlpi_name, '/');
	return *(int *)found = strncmp(base ? base + 1 : info->dlpi_name, "libcuda.so", 10) == 0;
}

void lanefs_cuda_init(void)
{
	static _Atomic int done; /* a child has it of its parent */
	int found = 0;
	if (done)
		return;
	dl_iterate_phdr(is_cuda, &found); /* no lock is held: a thread that loads a library may be here. A dlopen that fails would leave its message in memory */
	struct gpu g = {.lib = found ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : NULL};
	if (g.lib && CALL(&g, "Init", (unsigned), 0) == 0)
		done = 1;
}

int lanefs_gpu_current(int hip, char *device, int size)
{
	struct gpu g = {.hip = hip};
	if (start(&g, NULL))
		return -1;
	if (CALL(&g, hip ? "GetDevice" : "CtxGetDevice", (int *), &g.ordinal))
		g.ordinal = 0; /* CUDA's threads begin without one */
	char text[UUID_TEXT];
	int rc = CALL(&g, "DeviceGetPCIBusId", (char *, int, int), device, size, g.ordinal);
	if (rc)
		return lanefs_gpu_bad(&g, "DeviceGetPCIBusId", rc);
	mig(&g, g.ordinal, text);
	if (text[0])
		snprintf(device, (size_t)size, "%s", text);
	return 0;
}

/* Asks for the number of the context, which drivers before 12.0 do not have, or of the sentinel. */
static int number(struct gpu *g, unsigned long long *id)
{
	if (g->hip)
		return g->context ? CALL(g, "PointerGetAttribute", (void *, int, void *), id, BUFFER_ID, g->context) : -1;
	return CALL(g, "CtxGetId", (void *, unsigned long long *), g->context, id);
}

int lanefs_gpu_is(struct gpu *g)
{
	unsigned long long id = 0;
	if (g->gone || !g->id)
		return !g->gone;
	int rc = number(g, &id);
	if (rc == DESTROYED || (!rc && id != g->id) || (g->hip && rc == UNKNOWN)) /* and not, for one, if it is lost */
		g->gone = 1;
	return !g->gone;
}

/* The caller holds the lock. What is gone stays in the list, for those who have it. */
static struct gpu *listed(int hip, int ordinal)
{
	struct gpu *g = gpus;
	while (g && (g->hip != hip || g->ordinal != ordinal || !lanefs_gpu_is(g)))
		g = g->next;
	return g;
}

/* Allocates the sentinel of a device of HIP's. Without one no reset is noticed. */
static void watch(struct gpu *g)
{
	struct was was;
	if (lanefs_gpu_enter(g, &was))
		return;
	if (CALL(g, "Malloc", (void **, size_t), &g->context, MALLOC_PAGE))
		g->context = NULL;
	lanefs_gpu_leave(g, &was);
}

/* The GPU of the list, or g, which becomes one of it. The caller holds the lock. */
static struct gpu *keep(struct gpu *g)
{
	struct gpu *old = listed(g->hip, g->ordinal);
	if (old) {
		free(g);
		return old;
	}
	/* The primary context is what the CUDA runtime and PyTorch use. After a reset this call makes it. */
	int rc = g->hip ? 0 : CALL(g, "DevicePrimaryCtxRetain", (void **, int), &g->context, g->ordinal);
	if (rc) {
		lanefs_gpu_bad(g, "DevicePrimaryCtxRetain", rc);
		free(g);
		return NULL;
	}
	if (g->hip)
		watch(g);
	if (number(g, &g->id))
		g->id = 0;
	g->next = gpus;
	return gpus = g;
}

struct gpu *lanefs_gpu_find(int hip, const char *device, int ordinal)
{
	pthread_mutex_lock(&lock);
	struct gpu *g = device ? NULL : listed(hip, ordinal);
	pthread_mutex_unlock(&lock);
	if (g)
		return g;
	if (!(g = calloc(1, sizeof *g))) {
		lanefs_fail(ENOMEM, NULL);
		return NULL;
	}
	*g = (struct gpu){.hip = hip, .ordinal = ordinal};
	pthread_mutex_lock(&lock);
	if (start(g, device)) {
		free(g);
		g = NULL;
	} else {
		g = keep(g);
	}
	pthread_mutex_unlock(&lock);
	return g;
}

/* A library without the call has no captures. */
void lanefs_gpu_relax(struct gpu *g, struct was *was)
{
	was->capture = RELAXED;
	was->relaxed = CALL(g, "ThreadExchangeStreamCaptureMode", (int *), &was->capture) == 0 && was->capture != RELAXED;
}

void lanefs_gpu_restore(struct gpu *g, const struct was *was)
{
	int mode = was->capture;
	if (was->relaxed)
		CALL(g, "ThreadExchangeStreamCaptureMode", (int *), &mode);
}

int lanefs_gpu_enter_context(struct gpu *g, void *context, struct was *was)
{
	void *current = NULL;
	int rc = 0, device = g->ordinal;
	was->device = CURRENT;
	if (!lanefs_gpu_is(g))
		return DESTROYED;
	if (!context)
		context = g->context;
	if (g->hip) {
		CALL(g, "GetDevice", (int *), &device);
		rc = CALL(g, "SetDevice", (int), g->ordinal);
		was->device = device == g->ordinal ? CURRENT : device;
	} else if (CALL(g, "CtxGetCurrent", (void **), &current) || current != context) {
		was->device = 0;
		rc = CALL(g, "CtxPushCurrent_v2", (void *), context);
	}
	if (!rc)
		lanefs_gpu_relax(g, was);
	return rc;
}

int lanefs_gpu_enter(struct gpu *g, struct was *was) { return lanefs_gpu_enter_context(g, NULL, was); }

int lanefs_gpu_not_entered(struct gpu *g, int code) { return lanefs_gpu_bad(g, g->hip ? "SetDevice" : "CtxPushCurrent_v2", code); }

void lanefs_gpu_leave(struct gpu *g, const struct was *was)
{
	void *popped;
	lanefs_gpu_restore(g, was);
	if (was->device == CURRENT)
		return;
	if (g->hip)
		CALL(g, "SetDevice", (int), was->device);
	else
		CALL(g, "CtxPopCurrent_v2", (void **), &popped);
}

int lanefs_gpu_event(struct gpu *g, void **event, unsigned flags)
{
	const char *what = g->hip ? "EventCreateWithFlags" : "EventCreate";
	int rc = CALL(g, what, (void **, unsigned), event, flags);
	return rc ? lanefs_gpu_bad(g, what, rc) : 0;
}

int lanefs_gpu_record(struct gpu *g, void *event, void *stream)
{
	int rc = CALL(g, "EventRecord", (void *, void *), event, stream);
	return rc ? lanefs_gpu_bad(g, "EventRecord", rc) : 0;
}

void lanefs_gpu_event_end(struct gpu *g, void *event)
{
	if (lanefs_gpu_is(g))
		CALL(g, g->hip ? "EventDestroy" : "EventDestroy_v2", (void *), event);
}

static void unmap_handle(struct gpu *g, struct lanefs_buffer *b)
{
	CALL(g, "MemUnmap", (void *, size_t), b->base, b->memory);
	CALL(g, "MemAddressFree", (void *, size_t), b->base, b->memory);
}

/* A handle of virtual memory management. Such memory is of no context: what is mapped outlives a reset (an H200, driver 580). */
static int map_handle(struct gpu *g, struct lanefs_buffer *b)
{
	void *handle = NULL, *at = NULL;
	int fd = b->fd, version = 0, rc;
	const char *what = "MemImportFromShareableHandle";
	if (g->hip)
		CALL(g, "RuntimeGetVersion", (int *), &version);
	/* HIP before 7.1 reads the descriptor at an address. */
	void *source = g->hip && version < VALUE_SINCE ? (void *)&fd : (void *)(intptr_t)fd;
	if ((rc = CALL(g, what, (void **, void *, int), &handle, source, POSIX_FD)))
		return lanefs_gpu_bad(g, what, rc);
	what = "MemAddressReserve";
	if ((rc = CALL(g, what, (void **, size_t, size_t, void *, unsigned long long), &at, b->memory, 0, NULL, 0)) == 0) {
		what = "MemMap";
		if ((rc = CALL(g, what, (void *, size_t, size_t, void *, unsigned long long), at, b->memory, 0, handle, 0)) == 0) {
			const struct access a = {DEVICE, g->ordinal, READ_WRITE};
			what = "MemSetAccess";
			if ((rc = CALL(g, what, (void *, size_t, const struct access *, size_t), at, b->memory, &a, 1)))
				CALL(g, "MemUnmap", (void *, size_t), at, b->memory);
		}
		if (rc)
			CALL(g, "MemAddressFree", (void *, size_t), at, b->memory);
	}
	CALL(g, "MemRelease", (void *), handle); /* the mapping keeps the memory */
	if (rc)
		return lanefs_gpu_bad(g, what, rc);
	b->base = at;
	b->device = at;
	return 0;
}

/* A DMA-BUF. It is mapped by HIP, not HSA, because HIP's copies accept only memory that HIP has mapped. */
static int map_dmabuf(struct gpu *g, struct lanefs_buffer *b)
{
	const struct external_handle h = {.type = OPAQUE_FD, .handle.fd = b->fd, .size = b->fd_offset + b->memory};
	const struct external_buffer all = {.size = h.size};
	int rc = CALL(g, "ImportExternalMemory", (void **, const struct external_handle *), &b->external, &h);
	if (rc)
		return lanefs_gpu_bad(g, "ImportExternalMemory", rc);
	if ((rc = CALL(g, "ExternalMemoryGetMappedBuffer", (void **, void *, const struct external_buffer *), &b->base, b->external, &all))) {
		CALL(g, "DestroyExternalMemory", (void *), b->external);
		return lanefs_gpu_bad(g, "ExternalMemoryGetMappedBuffer", rc);
	}
	b->device = (char *)b->base + b->fd_offset;
	return 0;
}

/* Finds the device's HSA agent: the owner of memory that HIP allocates on the device. */
static int agent(struct gpu *g, void *hsa, uint64_t *owner)
{
	void *page;
	struct pointer_info info = {.size = sizeof info};
	int rc = CALL(g, "Malloc", (void **, size_t), &page, MALLOC_PAGE);
	if (rc)
		return lanefs_gpu_bad(g, "Malloc", rc);
	rc = HSA(hsa, "hsa_amd_pointer_info", (void *, struct pointer_info *, void *, void *, void *), page, &info, NULL, NULL, NULL);
	CALL(g, "Free", (void *), page);
	*owner = info.owner;
	return rc ? lanefs_fail(EIO, "hsa_amd_pointer_info failed") : 0;
}

/* An IPC handle in a memfd. */
static int map_ipc(struct gpu *g, struct lanefs_buffer *b)
{
	static const char *const names[] = {"libhsa-runtime64.so.1", "/opt/rocm/lib/libhsa-runtime64.so.1", NULL};
	struct ipc m;
	uint64_t owner;
	void *hsa = load(names);
	if (!hsa)
		return lanefs_fail(ENOENT, "the memory is an AMD GPU's, and libhsa-runtime64.so.1 is not here");
	if (pread(b->fd, &m, sizeof m, 0) != sizeof m || memcmp(m.magic, " LFSIPC1", sizeof m.magic) || m.size < b->fd_offset + b->memory)
		return lanefs_fail(EPROTO, "the daemon sent a malformed IPC handle");
	if (HSA(hsa, "hsa_init", (void)))
		return lanefs_fail(EIO, "hsa_init failed");
	if (agent(g, hsa, &owner))
		return -1;
	if (HSA(hsa, "hsa_amd_ipc_memory_attach", (const void *, size_t, uint32_t, const uint64_t *, void **), m.handle, m.size, 1, &owner, &b->base))
		return lanefs_fail(EIO, "hsa_amd_ipc_memory_attach failed");
	b->external = hsa;
	b->device = (char *)b->base + b->fd_offset;
	return 0;
}

int lanefs_gpu_map(lanefs *s, struct lanefs_buffer *b, void **address)
{
	if (b->device) {
		*address = (char *)b->device + b->offset;
		return 0;
	}
	if (b->kind == LANEFS_MEMFD)
		return lanefs_fail(ENOTSUP, "the mount runs without a GPU: its memory is the buffer's data");
	const struct lanefs_facts *f = lanefs_facts(s);
	struct gpu *g = lanefs_gpu_find(strcmp(f->runtime, "hip") == 0, f->device, 0);
	if (!g)
		return -1;
	struct was was;
	int rc = lanefs_gpu_enter(g, &was);
	if (rc)
		return lanefs_gpu_not_entered(g, rc);
	if (b->kind == LANEFS_POSIX)
		rc = map_handle(g, b);
	else if (g->hip && b->kind == LANEFS_DMABUF)
		rc = map_dmabuf(g, b);
	else if (g->hip && b->kind == LANEFS_IPC)
		rc = map_ipc(g, b);
	else
		rc = lanefs_fail(ENOTSUP, "memory of a kind that this library cannot map");
	lanefs_gpu_leave(g, &was);
	if (rc)
		return -1;
	b->gpu = g;
	*address = (char *)b->device + b->offset;
	if (!b->generation) /* it may be written to */
		lanefs_region_add(s, *address, b->size, b->handle, b->offset); /* else batches go through the stage */
	return 0;
}

int lanefs_gpu_serves(lanefs *s, struct gpu *g)
{
	const struct lanefs_facts *f = lanefs_facts(s);
	return strcmp(f->runtime, g->hip ? "hip" : "cuda") == 0 && lanefs_gpu_find(g->hip, f->device, 0) == g;
}

/* Waits for all that the program has on the device. While a stream is captured the driver refuses that, and ends the capture. */
static int synchronize(struct gpu *g)
{
	return g->hip ? CALL(g, "DeviceSynchronize", (void)) : CALL(g, "CtxSynchronize", (void));
}

int lanefs_gpu_wait(const struct lanefs_buffer *b)
{
	struct gpu *g = b->gpu;
	struct was was;
	int rc;
	if (!b->device || !lanefs_gpu_is(g)) /* a reset has ended the work */
		return 0;
	if ((rc = lanefs_gpu_enter(g, &was)))
		return lanefs_gpu_not_entered(g, rc);
	rc = synchronize(g);
	lanefs_gpu_leave(g, &was);
	return rc ? lanefs_gpu_bad(g, g->hip ? "DeviceSynchronize" : "CtxSynchronize", rc) : 0;
}

int lanefs_gpu_unmap(struct lanefs_buffer *b)
{
	struct gpu *g = b->gpu;
	struct was was;
	int rc;
	if (!b->device)
		return 0;
	if (!lanefs_gpu_is(g)) {
		unmap_handle(g, b);
		b->device = NULL;
		return 0;
	}
	if ((rc = lanefs_gpu_enter(g, &was)) == 0 && (rc = synchronize(g))) /* unmapping does not wait for kernels and copies that still use the memory */
		lanefs_gpu_leave(g, &was);
	if (rc)
		return lanefs_gpu_lost(rc) ? 0 : -1; /* with its context the mapping is lost, too */
	switch (b->kind) {
	case LANEFS_DMABUF:
		CALL(g, "Free", (void *), b->base);
		CALL(g, "DestroyExternalMemory", (void *), b->external);
		break;
	case LANEFS_IPC:
		HSA(b->external, "hsa_amd_ipc_memory_detach", (void *), b->base);
		break;
	default:
		unmap_handle(g, b);
	}
	lanefs_gpu_leave(g, &was);
	b->device = NULL;
	return 0;
}
