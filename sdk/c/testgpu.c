/* Run by the tests of cmd/lanefs, by the lab and by the bundle: testgpu FILE KIND, a file of a mount on a GPU, to be read and written, of 3 MiB
 * at least, and the kind of memory that there must be. */
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

/* What the program uses of HIP, as the library finds it. */
static struct {
	int (*set)(int), (*pinned)(void **, size_t, unsigned), (*create)(void **, unsigned), (*query)(void *), (*sync)(void *), (*malloc)(void **, size_t), (*free)(void *);
	int (*handle)(void *, void *);
	int (*copy)(void *, const void *, size_t, int, void *), (*wait)(void *, void *, uint64_t, unsigned, uint64_t), (*signal)(void **, size_t, unsigned);
	int (*event)(void **, unsigned), (*record)(void *, void *), (*happened)(void *), (*destroy)(void *); /* of events */
} hip;

/* CUDA's calls in the form of HIP's. */
static struct {
	void *context;
	int (*init)(unsigned), (*retain)(void **, int), (*current)(void *), (*copy)(void *, const void *, size_t, void *), (*wait)(void *, uint64_t, uint64_t, unsigned);
} cuda;

static int cuda_set(int device) { return device == 0 ? cuda.current(cuda.context) : -1; }
static int cuda_copy(void *to, const void *from, size_t n, int kind, void *stream) { (void)kind; return cuda.copy(to, from, n, stream); }
static int cuda_wait(void *stream, void *word, uint64_t value, unsigned flags, uint64_t mask) { (void)mask; return cuda.wait(stream, (uint64_t)(uintptr_t)word, value, flags); }
static int cuda_signal(void **word, size_t n, unsigned flags) { return hip.pinned(word, n, flags); }

static void load_cuda(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	WANT(lib);
	cuda.init = (int (*)(unsigned))dlsym(lib, "cuInit");
	cuda.retain = (int (*)(void **, int))dlsym(lib, "cuDevicePrimaryCtxRetain");
	cuda.current = (int (*)(void *))dlsym(lib, "cuCtxSetCurrent");
	cuda.copy = (int (*)(void *, const void *, size_t, void *))dlsym(lib, "cuMemcpyAsync");
	cuda.wait = (int (*)(void *, uint64_t, uint64_t, unsigned))dlsym(lib, "cuStreamWaitValue64_v2");
	hip.pinned = (int (*)(void **, size_t, unsigned))dlsym(lib, "cuMemHostAlloc");
	hip.create = (int (*)(void **, unsigned))dlsym(lib, "cuStreamCreate");
	hip.query = (int (*)(void *))dlsym(lib, "cuStreamQuery");
	hip.sync = (int (*)(void *))dlsym(lib, "cuStreamSynchronize");
	hip.handle = (int (*)(void *, void *))dlsym(lib, "cuIpcGetMemHandle");
	hip.malloc = (int (*)(void **, size_t))dlsym(lib, "cuMemAlloc_v2");
	hip.free = (int (*)(void *))dlsym(lib, "cuMemFree_v2");
	hip.event = (int (*)(void **, unsigned))dlsym(lib, "cuEventCreate");
	hip.record = (int (*)(void *, void *))dlsym(lib, "cuEventRecord");
	hip.happened = (int (*)(void *))dlsym(lib, "cuEventQuery");
	hip.destroy = (int (*)(void *))dlsym(lib, "cuEventDestroy_v2");
	hip.set = cuda_set;
	hip.copy = cuda_copy;
	hip.wait = cuda_wait;
	hip.signal = cuda_signal;
	WANT(cuda.init(0) == 0 && cuda.retain(&cuda.context, 0) == 0);
}

static void load_hip(void)
{
	void *lib = dlopen("libamdhip64.so.7", RTLD_NOW);
	WANT(lib);
	hip.set = (int (*)(int))dlsym(lib, "hipSetDevice");
	WANT(((int (*)(unsigned))dlsym(lib, "hipInit"))(0) == 0);
	hip.pinned = (int (*)(void **, size_t, unsigned))dlsym(lib, "hipHostMalloc");
	hip.create = (int (*)(void **, unsigned))dlsym(lib, "hipStreamCreateWithFlags");
	hip.query = (int (*)(void *))dlsym(lib, "hipStreamQuery");
	hip.sync = (int (*)(void *))dlsym(lib, "hipStreamSynchronize");
	hip.handle = (int (*)(void *, void *))dlsym(lib, "hipIpcGetMemHandle");
	hip.malloc = (int (*)(void **, size_t))dlsym(lib, "hipMalloc");
	hip.free = (int (*)(void *))dlsym(lib, "hipFree");
	hip.event = (int (*)(void **, unsigned))dlsym(lib, "hipEventCreateWithFlags");
	hip.record = (int (*)(void *, void *))dlsym(lib, "hipEventRecord");
	hip.happened = (int (*)(void *))dlsym(lib, "hipEventQuery");
	hip.destroy = (int (*)(void *))dlsym(lib, "hipEventDestroy");
	hip.wait = (int (*)(void *, void *, uint64_t, unsigned, uint64_t))dlsym(lib, "hipStreamWaitValue64");
	hip.signal = (int (*)(void **, size_t, unsigned))dlsym(lib, "hipExtMallocWithFlags");
	hip.copy = (int (*)(void *, const void *, size_t, int, void *))dlsym(lib, "hipMemcpyAsync");
}

/* Batches into memory that nobody exported, by the copy engine and by the kernel, in a stream's order. The file is as it was at the end. */
static void batches(lanefs *s, int fd, size_t size)
{
	enum { N = 4000 };
	uint32_t f;
	lanefs_stage *st = lanefs_stage_new(s, 2 << 20);
	void *memory, *host, *stream;
	WANT(st && lanefs_open(s, fd, &f) == 0 && hip.set(0) == 0);
	WANT(hip.malloc(&memory, 2 * size) == 0 && hip.pinned(&host, 2 * size, 0) == 0 && hip.create(&stream, NON_BLOCKING) == 0);
	char *was = malloc(size), *got = host;
	WANT(was && pread(fd, was, size, 0) == (ssize_t)size);

	/* The whole file. What was put on the stream before comes first, what is put there after comes last. */
	memset(got, 'x', 2 * size);
	for (int i = 0; i < COPIES; i++)
		WANT(hip.copy(memory, got, 2 * size, DEFAULT, stream) == 0);
	WANT(lanefs_read_into(st, f, (char *)memory + 5, 0, size, stream) == (int64_t)size);
	WANT(hip.copy(got, memory, 2 * size, DEFAULT, stream) == 0 && hip.sync(stream) == 0);
	WANT(got[4] == 'x' && memcmp(got + 5, was, size) == 0 && got[size + 5] == 'x');
	struct lanefs_rungs r;
	lanefs_stage_rungs(st, &r);
	WANT(r.copies > 0 && r.kernel == 0 && r.host == 0);

	/* Many pieces: by the kernel. */
	static struct lanefs_piece piece[N];
	static int64_t result[N];
	size_t at = 1;
	for (unsigned i = 0; i < N; i++) {
		piece[i] = (struct lanefs_piece){i * 7919u % (size - 3000), at, i * 13 % 1500};
		at += piece[i].length + i % 3;
	}
	WANT(at < 2 * size);
	memset(got, 'x', 2 * size);
	WANT(hip.copy(memory, got, 2 * size, DEFAULT, stream) == 0);
	WANT(lanefs_read_batch(st, f, memory, piece, N, stream, result) > 0);
	WANT(hip.copy(got, memory, 2 * size, DEFAULT, stream) == 0 && hip.sync(stream) == 0);
	for (unsigned i = 0; i < N; i++) {
		WANT(result[i] == (int64_t)piece[i].length && memcmp(got + piece[i].memory_offset, was + piece[i].file_offset, piece[i].length) == 0);
		WANT(!(i % 3) || got[piece[i].memory_offset + piece[i].length] == 'x');
	}
	lanefs_stage_rungs(st, &r);
	WANT(r.kernel >= N && r.host == 0);

	/* To the file, what the stream's copies make of the memory: few pieces, then many. */
	char *now = malloc(size);
	WANT(now);
	for (size_t i = 0; i < size; i++)
		got[i] = (char)~was[i];
	for (int i = 0; i < COPIES; i++)
		WANT(hip.copy(memory, i == COPIES - 1 ? got : was, size, DEFAULT, stream) == 0);
	WANT(lanefs_write_from(st, f, memory, 0, size, stream) == (int64_t)size);
	WANT(pread(fd, now, size, 0) == (ssize_t)size && memcmp(now, got, size) == 0);
	for (unsigned i = 0; i < N; i++)
		piece[i] = (struct lanefs_piece){i * (size / N), i * (size / N), size / N};
	WANT(hip.copy(memory, was, size, DEFAULT, stream) == 0);
	WANT(lanefs_write_batch(st, f, memory, piece, N, stream, NULL) == (int64_t)(size / N * N));
	WANT(pread(fd, now, size, 0) == (ssize_t)size && memcmp(now, was, size / N * N) == 0);
	WANT(pwrite(fd, was, size, 0) == (ssize_t)size);

	/* Pieces in allocations that follow one another, and empty ones, which may be nowhere. */
	enum { MIB2 = 2 << 20, EDGE = 300 << 10, ALLOCATIONS = 8 };
	char *all[ALLOCATIONS], *low = NULL;
	for (int i = 0; i < ALLOCATIONS; i++)
		WANT(hip.malloc((void **)&all[i], MIB2) == 0);
	for (int i = 0; i < ALLOCATIONS; i++)
		for (int k = 0; k < ALLOCATIONS && !low; k++)
			low = all[k] == all[i] + MIB2 ? all[i] : NULL;
	if (low) {
		struct lanefs_piece two[] = {{0, -(uintptr_t)low, 0}, {0, MIB2 - EDGE, EDGE}, {EDGE, MIB2, EDGE}, {0, 0, 0}};
		WANT(lanefs_read_batch(st, f, low, two, 4, stream, result) == 2 * EDGE && result[0] == 0 && result[1] == EDGE && result[2] == EDGE && result[3] == 0);
		WANT(hip.copy(got, low + MIB2 - EDGE, EDGE, DEFAULT, stream) == 0 && hip.copy(got + EDGE, low + MIB2, EDGE, DEFAULT, stream) == 0 && hip.sync(stream) == 0);
		WANT(memcmp(got, was, 2 * EDGE) == 0);
		WANT(lanefs_write_batch(st, f, low, two, 4, stream, NULL) == 2 * EDGE);
		WANT(lanefs_read_batch(st, f, low, two, 1, stream, result) == 0 && lanefs_read_batch(st, f, NULL, two, 1, stream, NULL) == 0);
	}
	for (int i = 0; i < ALLOCATIONS; i++)
		WANT(hip.free(all[i]) == 0);

	WANT(lanefs_read_into(st, f, now, 0, size, stream) == -1 && errno == EINVAL); /* ordinary memory has no stream */
	WANT(lanefs_read_into(st, f, now, 0, size, NULL) == (int64_t)size && memcmp(now, was, size) == 0);

	WANT(lanefs_read_batch(st, f, memory, piece, N, stream, NULL) > 0);
	lanefs_stage_free(st); /* under the copies */
	WANT(hip.query(stream) == 0 && lanefs_release(s, f) == 0 && hip.free(memory) == 0);
	free(was);
	free(now);
}

/* Batches on streams: the calls return at once, and what is on a stream before and after them is. The file is as it was at the end. */
static void async(lanefs *s, int fd, size_t size)
{
	enum { N = 3000, PART = 256 << 10 };
	int waits = !getenv("LANEFS_SHIM_NO_WAIT");
	uint32_t f;
	lanefs_stage *st = lanefs_stage_new(s, 4 * PART);
	void *memory, *host, *stream, *other;
	uint64_t *gate;
	WANT(st && lanefs_open(s, fd, &f) == 0);
	WANT(hip.malloc(&memory, 2 * size) == 0 && hip.pinned(&host, 2 * size, 0) == 0 && hip.create(&stream, NON_BLOCKING) == 0 && hip.create(&other, NON_BLOCKING) == 0);
	char *was = malloc(size), *got = host, *now = malloc(size);
	int64_t done[8] = {INT64_MIN}; /* which it stays until the batch has ended */
	WANT(was && now && pread(fd, was, size, 0) == (ssize_t)size);

	/* Behind a gate on the stream nothing is done, and the call returns. */
	if (waits) {
		WANT(hip.signal((void **)&gate, 8, 2) == 0);
		*gate = 0;
		memset(got, 'x', 2 * size);
		WANT(hip.wait(stream, gate, 1, 0, UINT64_MAX) == 0 && hip.copy(memory, got, 2 * size, DEFAULT, stream) == 0);
		struct lanefs_piece two[] = {{0, 5, PART - 99}, {PART, PART, PART}};
		WANT(lanefs_read_async(st, f, memory, two, 2, stream, NULL, &done[0]) == 0 && done[0] == INT64_MIN);
		two[0].length = 0; /* which is not looked at any more */
		WANT(pwrite(fd, "now", 3, 0) == 3 && fsync(fd) == 0); /* the file is read later */
		memcpy(got, "now", 3);
		WANT(hip.copy(got, memory, 2 * size, DEFAULT, stream) == 0 && hip.query(stream) != 0 && done[0] == INT64_MIN);
		__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
		WANT(hip.sync(stream) == 0 && done[0] == 2 * PART - 99);
		WANT(got[4] == 'x' && memcmp(got + 5, "now", 3) == 0 && memcmp(got + 8, was + 3, PART - 102) == 0 && got[5 + PART - 99] == 'x');
		WANT(memcmp(got + PART, was + PART, PART) == 0 && got[2 * PART] == 'x');
		WANT(pwrite(fd, was, 3, 0) == 3 && fsync(fd) == 0);

		/* An event that is recorded again before it has happened has happened when the last record has: the stage's parts rely on it. */
		void *event;
		char *first = memset(got, 0, 1);
		WANT(hip.event(&event, 0) == 0 && hip.wait(stream, gate, 2, 0, UINT64_MAX) == 0 && hip.record(event, stream) == 0);
		WANT(hip.copy(first, (char *)memory + 5, 1, DEFAULT, stream) == 0 && hip.wait(stream, gate, 3, 0, UINT64_MAX) == 0 && hip.record(event, stream) == 0);
		__atomic_store_n(gate, 2, __ATOMIC_RELEASE);
		while (__atomic_load_n(first, __ATOMIC_ACQUIRE) != 'n') /* of "now" */
			;
		WANT(hip.happened(event) != 0);
		__atomic_store_n(gate, 3, __ATOMIC_RELEASE);
		WANT(hip.sync(stream) == 0 && hip.happened(event) == 0 && hip.destroy(event) == 0);
	}

	/* More than the stage holds; a write that is read again; many pieces; all on one stream, waited for once. */
	for (size_t i = 0; i < size; i++)
		got[i] = (char)~was[i];
	WANT(hip.copy(memory, got, size, DEFAULT, stream) == 0);
	WANT(lanefs_write_async(st, f, memory, &(struct lanefs_piece){0, 0, size}, 1, stream, NULL, &done[0]) == 0);
	WANT(lanefs_read_async(st, f, (char *)memory + size, &(struct lanefs_piece){0, 0, size}, 1, stream, NULL, &done[1]) == 0);
	WANT(hip.copy(memory, was, size, DEFAULT, stream) == 0);
	WANT(lanefs_write_async(st, f, memory, &(struct lanefs_piece){0, 0, size}, 1, stream, NULL, &done[2]) == 0);
	static struct lanefs_piece piece[N];
	static int64_t result[N];
	for (unsigned i = 0; i < N; i++)
		piece[i] = (struct lanefs_piece){i * 7919u % (size - 300), i * 200, 200};
	WANT(lanefs_read_async(st, f, memory, piece, N, stream, result, &done[3]) == 0);
	WANT(hip.copy(got, memory, 2 * size, DEFAULT, stream) == 0 && hip.sync(stream) == 0);
	WANT(done[0] == (int64_t)size && done[1] == (int64_t)size && done[2] == (int64_t)size && done[3] == N * 200);
	for (size_t i = 0; i < size; i++)
		WANT(got[size + i] == (char)~was[i]);
	for (unsigned i = 0; i < N; i++)
		WANT(result[i] == 200 && memcmp(got + i * 200, was + piece[i].file_offset, 200) == 0);
	WANT(pread(fd, now, size, 0) == (ssize_t)size && memcmp(now, was, size) == 0);

	/* Errors are in their place, and the stream goes on. Two streams. A batch of before beside it, and the end of a file. */
	memset(got, 'x', 2 * size);
	WANT(hip.copy(memory, got, 2 * size, DEFAULT, stream) == 0 && hip.sync(stream) == 0);
	WANT(lanefs_read_async(st, f + 77, memory, &(struct lanefs_piece){0, 0, 100}, 1, stream, NULL, &done[0]) == 0);
	WANT(lanefs_read_async(st, f, memory, &(struct lanefs_piece){UINT64_MAX, 0, 100}, 1, stream, NULL, &done[1]) == -1 && errno == EINVAL);
	WANT(lanefs_read_async(st, f, memory, &(struct lanefs_piece){size - 10, 100, 20}, 1, other, result, &done[2]) == 0);
	WANT(lanefs_read_async(st, f, memory, NULL, 0, other, NULL, &done[3]) == 0 && done[3] == 0);
	WANT(lanefs_read_into(st, f, (char *)memory + 200, 7, 100, stream) == 100);
	WANT(hip.sync(other) == 0 && hip.copy(got, memory, 300, DEFAULT, stream) == 0 && hip.sync(stream) == 0);
	WANT(done[0] == -EBADF && done[2] == 10 && result[0] == 10 && memcmp(got + 100, was + size - 10, 10) == 0 && got[115] == 0 && got[120] == 'x');
	WANT(memcmp(got + 200, was + 7, 100) == 0);

	for (int i = 0; i < 6; i++)
		WANT(lanefs_read_async(st, f, (char *)memory + i, &(struct lanefs_piece){0, 0, size}, 1, i % 2 ? other : stream, NULL, &done[i]) == 0);
	lanefs_stage_free(st); /* under them */
	for (int i = 0; i < 6; i++)
		WANT(done[i] == (int64_t)size);
	WANT(hip.sync(stream) == 0 && hip.sync(other) == 0 && lanefs_release(s, f) == 0 && hip.free(memory) == 0);
	free(was);
	free(now);
}

/* A memfd with a legacy IPC handle in it, and what else it may have. */
static int message(const char *handle, uint64_t size, size_t n)
{
	struct { uint64_t magic, size; char handle[64], more[8]; } m = {0x3243504953464c20, size, {0}, {0}};
	memcpy(m.handle, handle, sizeof m.handle);
	int fd = memfd_create("handle", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	WANT(fd >= 0 && write(fd, &m, n) == (ssize_t)n);
	return fd;
}

static int64_t one(lanefs_ring *r, uint32_t op, uint32_t file, uint32_t memory, uint64_t offset, uint64_t length)
{
	struct lanefs_completion c;
	WANT(lanefs_ring_submit(r, &(struct lanefs_request){.op = op, .file = file, .memory = memory, .memory_offset = offset, .length = length}, 1) == 1);
	WANT(lanefs_ring_reap(r, &c, 1, 60000) == 1);
	return c.result;
}

/* Memory that needs no stage, by itself and by force; and what a client may do with handles. The file is as it was at the end. */
static void direct(lanefs *s, int fd, size_t size, const char *self)
{
	enum { N = 100, MESSAGE = 80 };
	uint32_t f, m, twice;
	void *memory, *host, *stream, *at;
	struct lanefs_ways w, before;
	lanefs_stage *st = lanefs_stage_new(s, 0);
	WANT(st && lanefs_open(s, fd, &f) == 0);
	WANT(hip.malloc(&memory, 3 * size) == 0 && hip.pinned(&host, 3 * size, 0) == 0 && hip.create(&stream, NON_BLOCKING) == 0);
	char *was = malloc(size), *got = host, *now = malloc(size);
	WANT(was && now && pread(fd, was, size, 0) == (ssize_t)size);

	/* Memory of lanefs_map that is the program's own. */
	struct lanefs_buffer b;
	WANT(lanefs_map(s, fd, 0, size, LANEFS_PRIVATE | LANEFS_EMPTY, &b) == 0 && lanefs_gpu_map(s, &b, &at) == 0);
	WANT(lanefs_read_into(st, f, (char *)at + 3, 5, size - 100, stream) == (int64_t)size - 100);
	WANT(hip.copy(got, at, size, DEFAULT, stream) == 0 && hip.sync(stream) == 0 && memcmp(got + 3, was + 5, size - 100) == 0 && got[2] == 0 && got[size - 97] == 0);
	lanefs_stage_ways(st, &w);
	WANT(w.direct == 1 && w.legacy == 0 && w.copies == 0 && w.kernel == 0);
	lanefs_unmap(s, &b);

	/* What hipMalloc gave, by legacy IPC: pieces of all alignments, after what is on the stream; beyond the end of the file; a write. */
	setenv("LANEFS_LEGACY", "1", 1);
	struct lanefs_piece piece[N];
	int64_t result[N];
	size_t end = 0;
	for (unsigned i = 0; i < N; i++) {
		piece[i] = (struct lanefs_piece){i * 7919u % (size - 3000), end, i * 131 % 3000};
		end += piece[i].length + i % 3;
	}
	memset(got, 'x', 3 * size);
	for (int i = 0; i < COPIES; i++)
		WANT(hip.copy(memory, got, 3 * size, DEFAULT, stream) == 0);
	WANT(lanefs_read_batch(st, f, memory, piece, N, stream, result) > 0);
	WANT(lanefs_read_into(st, f, (char *)memory + size, size / 2, size, stream) == (int64_t)(size - size / 2));
	WANT(hip.copy(got, memory, 3 * size, DEFAULT, stream) == 0 && hip.sync(stream) == 0);
	for (unsigned i = 0; i < N; i++) {
		WANT(result[i] == (int64_t)piece[i].length && memcmp(got + piece[i].memory_offset, was + piece[i].file_offset, piece[i].length) == 0);
		WANT(!(i % 3) || got[piece[i].memory_offset + piece[i].length] == 'x');
	}
	WANT(memcmp(got + size, was + size / 2, size - size / 2) == 0 && got[2 * size - 1] == 0 && got[2 * size] == 'x');
	for (size_t i = 0; i < size; i++)
		got[i] = (char)~was[i];
	WANT(hip.copy(memory, got, size, DEFAULT, stream) == 0 && lanefs_write_from(st, f, memory, 0, size, stream) == (int64_t)size);
	WANT(pread(fd, now, size, 0) == (ssize_t)size && memcmp(now, got, size) == 0);
	WANT(pwrite(fd, was, size, 0) == (ssize_t)size && fsync(fd) == 0);
	lanefs_stage_ways(st, &w);
	WANT(w.legacy == N + 2 && w.direct == 1 && w.copies == 0 && w.kernel == 0);

	/* Freed, and another in its place: the daemon's is not the new one's. */
	for (int i = 0; i < 3; i++) {
		WANT(hip.free(memory) == 0 && hip.malloc(&memory, 3 * size) == 0);
		memset(got, 0, size);
		WANT(lanefs_read_into(st, f, memory, 0, size, stream) == (int64_t)size);
		WANT(hip.copy(got, memory, size, DEFAULT, stream) == 0 && hip.sync(stream) == 0 && memcmp(got, was, size) == 0);
	}
	before = w;
	unsetenv("LANEFS_LEGACY"); /* small pieces go by the stage */
	WANT(lanefs_read_into(st, f, memory, 0, 4096, stream) == 4096);
	lanefs_stage_ways(st, &w);
	WANT(w.legacy == before.legacy + 3 && w.copies == 1);

	lanefs_stage_free(st); /* which has the memory by its handle, too */

	/* Handles. The same one twice; one that claims more than there is; others that mean nothing. */
	char handle[64], junk[64];
	lanefs_ring *r = lanefs_ring_new(s, 8);
	memset(junk, 0x5a, sizeof junk);
	WANT(r && hip.handle(handle, memory) == 0);
	size_t page = size / 4096 * 4096;
	WANT(lanefs_register(s, message(handle, 3 * size, MESSAGE), LANEFS_LEGACY, 0, page, &m) == 0);
	WANT(lanefs_register(s, message(handle, 3 * size, MESSAGE), LANEFS_LEGACY, 4096, page, &twice) == 0);
	WANT(one(r, LANEFS_READ, f, m, 0, page) == (int64_t)page && lanefs_release(s, m) == 0);
	WANT(one(r, LANEFS_READ, f, twice, 0, page) == (int64_t)page && one(r, LANEFS_READ, f, twice, 1, page) == -EINVAL);
	WANT(hip.copy(got, memory, 2 * size, DEFAULT, stream) == 0 && hip.sync(stream) == 0 && memcmp(got, was, 4096) == 0 && memcmp(got + 4096, was, page) == 0);
	WANT(lanefs_release(s, twice) == 0);
	struct { const char *handle; uint64_t offset, size; size_t n; } bad[] = {
		{handle, 0, (uint64_t)1 << 40, MESSAGE}, {handle, (uint64_t)1 << 40, 4096, MESSAGE}, {junk, 0, 4096, MESSAGE}, {handle, 0, 4096, MESSAGE - 1}, {handle, 0, 4096, MESSAGE + 1}, {handle, 0, 4096, 0}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		WANT(lanefs_register(s, message(bad[i].handle, (uint64_t)1 << 40, bad[i].n), LANEFS_LEGACY, bad[i].offset, bad[i].size, &m) == -1 && errno == EINVAL);
	WANT(lanefs_register(s, fd, LANEFS_LEGACY, 0, 4096, &m) == -1 && errno == EINVAL);

	/* Of memory that was freed before, and of memory that is freed while the daemon has it, which harms nobody else. */
	WANT(lanefs_register(s, message(handle, 3 * size, MESSAGE), LANEFS_LEGACY, 0, page, &twice) == 0);
	WANT(hip.free(memory) == 0);
	(void)one(r, LANEFS_READ, f, twice, 0, page);
	WANT(lanefs_release(s, twice) == 0);
	WANT(lanefs_register(s, message(handle, 3 * size, MESSAGE), LANEFS_LEGACY, 0, page, &m) == -1 && errno == EINVAL);

	/* Of another process, alive and dead. */
	char line[256], text[2 * sizeof handle + 2];
	snprintf(line, sizeof line, "%s %s --handle", self, lanefs_facts(s)->runtime);
	FILE *child = popen(line, "r");
	WANT(child && fgets(text, sizeof text, child));
	for (size_t i = 0; i < sizeof handle; i++) {
		unsigned byte;
		WANT(sscanf(text + 2 * i, "%2x", &byte) == 1);
		handle[i] = (char)byte;
	}
	WANT(lanefs_register(s, message(handle, 1 << 20, MESSAGE), LANEFS_LEGACY, 0, 1 << 20, &m) == 0 && one(r, LANEFS_READ, f, m, 0, 1 << 20) == 1 << 20);
	pclose(child); /* it ends by itself */
	(void)one(r, LANEFS_READ, f, m, 0, 1 << 20);
	WANT(lanefs_release(s, m) == 0);
	WANT(lanefs_register(s, message(handle, 1 << 20, MESSAGE), LANEFS_LEGACY, 0, 1 << 20, &m) == -1 && errno == EINVAL);

	st = lanefs_stage_new(s, 0);
	WANT(st && hip.malloc(&memory, size) == 0 && lanefs_read_into(st, f, memory, 0, size, stream) == (int64_t)size); /* all is well */
	WANT(hip.copy(got, memory, size, DEFAULT, stream) == 0 && hip.sync(stream) == 0 && memcmp(got, was, size) == 0);
	lanefs_ring_free(r);
	lanefs_stage_free(st);
	WANT(hip.free(memory) == 0 && lanefs_release(s, f) == 0);
	free(was);
	free(now);
}

/* Another process's memory: prints its handle, and keeps it for a while. */
static int lend(void (*load)(void))
{
	void *memory;
	char handle[64];
	load();
	WANT(hip.set(0) == 0 && hip.malloc(&memory, 1 << 20) == 0 && hip.handle(handle, memory) == 0);
	for (size_t i = 0; i < sizeof handle; i++)
		printf("%02x", (unsigned char)handle[i]);
	puts("");
	fflush(stdout);
	sleep(1);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[2], "--handle") == 0)
		return lend(strcmp(argv[1], "cuda") == 0 ? load_cuda : load_hip);
	WANT(argc == 3);
	int fd = open(argv[1], O_RDWR);
	struct stat st;
	WANT(fd >= 0 && fstat(fd, &st) == 0);
	size_t size = (size_t)st.st_size;
	lanefs *s = lanefs_connect(fd);
	WANT(s && strcmp(lanefs_facts(s)->runtime, "host") != 0);
	host_memory(s, fd, size);
	struct lanefs_buffer b;
	void *at, *again, *stream;
	WANT(lanefs_map(s, fd, 0, 0, 0, &b) == 0 && b.size == size && !b.data && (int)b.kind == atoi(argv[2]));
	WANT(lanefs_gpu_map(s, &b, &at) == 0 && lanefs_gpu_map(s, &b, &again) == 0 && at == again);

	if (strcmp(lanefs_facts(s)->runtime, "cuda") == 0)
		load_cuda();
	else
		load_hip();
	batches(s, fd, size);
	if (atoi(argv[2]) == LANEFS_POSIX) { /* once will do: they do not depend on it */
		async(s, fd, size);
		if (!getenv("LANEFS_SHIM_NO_WAIT"))
			direct(s, fd, size, argv[0]);
	}
	char *want = malloc(size), *host;
	WANT(want && pread(fd, want, size, 0) == (ssize_t)size);
	WANT(hip.set(0) == 0 && hip.pinned((void **)&host, size, 0) == 0 && hip.create(&stream, NON_BLOCKING) == 0);
	memset(host, 0, size);
	for (int i = 0; i < COPIES; i++)
		WANT(hip.copy(host, at, size, DEFAULT, stream) == 0);
	lanefs_unmap(s, &b); /* under the copies */
	WANT(hip.query(stream) == 0 && memcmp(host, want, size) == 0);

	/* Part of the file, and memory of the program's own that is written to while commit begins. */
	size_t half = size / 2;
	WANT(lanefs_map(s, fd, half, 1, 0, &b) == 0 && lanefs_gpu_map(s, &b, &at) == 0);
	WANT(hip.copy(host, at, 1, DEFAULT, stream) == 0);
	lanefs_unmap(s, &b);
	WANT(host[0] == want[half]);
	WANT(lanefs_map(s, fd, 0, size, LANEFS_PRIVATE | LANEFS_EMPTY, &b) == 0 && lanefs_gpu_map(s, &b, &at) == 0);
	for (size_t i = 0; i < size; i++)
		host[i] = (char)~want[i];
	for (int i = 0; i < COPIES; i++)
		WANT(hip.copy(at, i % 2 ? host : want, size, DEFAULT, stream) == 0);
	WANT(lanefs_commit(s, fd, 0, &b, 0, size) == 0);
	lanefs_unmap(s, &b);
	char *got = malloc(size);
	WANT(got && pread(fd, got, size, 0) == (ssize_t)size && memcmp(got, host, size) == 0);
	WANT(pwrite(fd, want, size, 0) == (ssize_t)size); /* as it was */
	lanefs_close(s);
	puts("ok");
	return 0;
}
