/*
 * What a small read into a GPU's memory is made of: smallbench MOUNTED PLAIN SECONDS [THREADS], two files of 16 MiB or more whose 8-byte words are their own
 * offsets, one on a LaneFS mount and one elsewhere, both in the page cache. For 4, 16 and 64 KiB, with 1 and 8 threads, it prints the time of
 *
 *  - a call of the system and of the driver by itself:                            part
 *  - a copy from host memory to the GPU by each way there is:                     copy
 *  - pread and then such a copy, as a library of cuFile's interface must do:      read
 *
 * in µs of a thread, means of SECONDS. The driver finds a way's mistakes: bytes that are not there when it returns are counted for a second
 * stream, and copies are timed while a stream of the program is busy (late, busy). What the driver does not have is left out.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); exit(1); } } while (0)

enum { THREADS = 8, ROOM = 4 << 20, FILE_SIZE = 16 << 20, LARGE = 256 << 20, BUSY = 40, NON_BLOCKING = 1, PORTABLE = 1, WRITE_COMBINED = 4, NO_TIMING = 2, BLOCKING_SYNC = 1 };
enum { MEMORY_TYPE = 2, SYNC_MEMOPS = 6, BUFFER_ID = 7, MANAGED = 8, ORDINAL = 9, LEGACY_IPC = 10, RANGE_START = 11, RANGE_SIZE = 12 };

typedef uint64_t address;

/* ---- The driver ---- */

#define FUNCTIONS(f) \
	f(Init, (unsigned)) f(DevicePrimaryCtxRetain, (void **, int)) f(CtxSetCurrent, (void *)) f(CtxGetCurrent, (void **)) f(CtxPushCurrent_v2, (void *)) \
	f(CtxPopCurrent_v2, (void **)) f(MemAlloc_v2, (address *, size_t)) f(MemHostRegister_v2, (void *, size_t, unsigned)) \
	f(MemHostAlloc, (void **, size_t, unsigned)) f(MemHostGetDevicePointer_v2, (address *, void *, unsigned)) \
	f(StreamCreate, (void **, unsigned)) f(StreamSynchronize, (void *)) f(StreamQuery, (void *)) f(CtxSynchronize, (void)) \
	f(EventCreate, (void **, unsigned)) f(EventRecord, (void *, void *)) f(EventSynchronize, (void *)) f(EventQuery, (void *)) \
	f(MemcpyAsync, (address, address, size_t, void *)) f(MemcpyHtoDAsync_v2, (address, const void *, size_t, void *)) \
	f(MemcpyDtoDAsync_v2, (address, address, size_t, void *)) f(MemcpyHtoD_v2, (address, const void *, size_t)) f(MemcpyHtoD_v2_ptds, (address, const void *, size_t)) f(Memcpy, (address, address, size_t)) \
	f(MemcpyDtoH_v2, (void *, address, size_t)) f(MemcpyDtoHAsync_v2, (void *, address, size_t, void *)) f(MemsetD8Async, (address, unsigned char, size_t, void *)) \
	f(StreamWriteValue32_v2, (void *, address, uint32_t, unsigned)) f(MemGetAddressRange_v2, (address *, size_t *, address)) \
	f(PointerGetAttribute, (void *, int, address)) f(PointerGetAttributes, (unsigned, const int *, void **, address)) f(PointerSetAttribute, (const void *, int, address))

#define DECLARE(name, types) int (*name) types;
static struct { FUNCTIONS(DECLARE) } cu;

static void load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	WANT(lib);
#define FIND(name, types) *(void **)&cu.name = dlsym(lib, "cu" #name);
	FUNCTIONS(FIND)
}

#define CU(name, ...) do { int rc_ = cu.name(__VA_ARGS__); if (rc_) { fprintf(stderr, "%s:%d: cu%s: error %d\n", __FILE__, __LINE__, #name, rc_); exit(1); } } while (0)

/* ---- A thread ---- */

struct worker {
	pthread_t thread;
	struct way const *way;
	const struct source *source; /* NULL: the bytes are in memory already */
	unsigned i;
	size_t n;
	address memory, flag, other; /* other: of the GPU, too, as a file in shared memory is */
	char *pinned, *allocated, *combined, *pageable, *mapped;
	void *stream, *event, *sleepy;
	_Atomic uint32_t *word;  /* the flag's address for the CPU */
	uint32_t tick;
	uint64_t calls;
	double took;
};

static void *context;
static int mounted, plain, sockets[2];
static double seconds;
static unsigned most = THREADS;
static struct worker all[THREADS];
static pthread_barrier_t barrier;
static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- Ways ---- */

/* from is one of the thread's kinds of memory. */
struct way {
	const char *name;
	size_t from;               /* the memory's place in struct worker */
	void (*copy)(struct worker *w, const char *from);
	void *const *needs[2];     /* functions of the driver */
	int early;                 /* the bytes may not be there when it returns */
	int within;                /* it copies what is on the GPU already: no pread before it */
};
#define FROM(kind) offsetof(struct worker, kind)

static char *memory_of(struct worker *w, size_t from) { return *(char **)((char *)w + from); }

static void by_any(struct worker *w, const char *from)
{
	CU(MemcpyAsync, w->memory, (address)(uintptr_t)from, w->n, w->stream);
	CU(StreamSynchronize, w->stream);
}
static void by_async(struct worker *w, const char *from)
{
	CU(MemcpyHtoDAsync_v2, w->memory, from, w->n, w->stream);
	CU(StreamSynchronize, w->stream);
}
static void by_within_any(struct worker *w, const char *from)
{
	(void)from;
	CU(MemcpyAsync, w->memory, w->other, w->n, w->stream);
	CU(StreamSynchronize, w->stream);
}
static void by_within(struct worker *w, const char *from)
{
	(void)from;
	CU(MemcpyDtoDAsync_v2, w->memory, w->other, w->n, w->stream);
	CU(StreamSynchronize, w->stream);
}
static void by_within_flag(struct worker *w, const char *from)
{
	uint32_t tick = ++w->tick;
	(void)from;
	CU(MemcpyDtoDAsync_v2, w->memory, w->other, w->n, w->stream);
	CU(StreamWriteValue32_v2, w->stream, w->flag, tick, 0);
	while (atomic_load_explicit(w->word, memory_order_acquire) != tick)
		__builtin_ia32_pause();
}
static void by_query(struct worker *w, const char *from)
{
	CU(MemcpyHtoDAsync_v2, w->memory, from, w->n, w->stream);
	while (cu.StreamQuery(w->stream))
		;
}
static void by_event(struct worker *w, const char *from)
{
	CU(MemcpyHtoDAsync_v2, w->memory, from, w->n, w->stream);
	CU(EventRecord, w->event, w->stream);
	CU(EventSynchronize, w->event);
}
static void by_sleep(struct worker *w, const char *from)
{
	CU(MemcpyHtoDAsync_v2, w->memory, from, w->n, w->stream);
	CU(EventRecord, w->sleepy, w->stream);
	CU(EventSynchronize, w->sleepy);
}
static void by_flag(struct worker *w, const char *from)
{
	uint32_t tick = ++w->tick;
	CU(MemcpyHtoDAsync_v2, w->memory, from, w->n, w->stream);
	CU(StreamWriteValue32_v2, w->stream, w->flag, tick, 0);
	while (atomic_load_explicit(w->word, memory_order_acquire) != tick)
		__builtin_ia32_pause();
}
static void by_sync(struct worker *w, const char *from) { CU(MemcpyHtoD_v2, w->memory, from, w->n); }
static void by_ptds(struct worker *w, const char *from) { CU(MemcpyHtoD_v2_ptds, w->memory, from, w->n); }
static void by_sync_any(struct worker *w, const char *from) { CU(Memcpy, w->memory, (address)(uintptr_t)from, w->n); }
static void by_sync_context(struct worker *w, const char *from)
{
	CU(MemcpyHtoD_v2, w->memory, from, w->n);
	CU(CtxSynchronize);
}
static void by_poll(struct worker *w, const char *from) /* the copy is under way while the CPU asks after the daemon */
{
	struct pollfd p = {.fd = sockets[0]};
	CU(MemcpyHtoDAsync_v2, w->memory, from, w->n, w->stream);
	WANT(poll(&p, 1, 0) == 0);
	CU(StreamSynchronize, w->stream);
}
static void by_poll_first(struct worker *w, const char *from)
{
	struct pollfd p = {.fd = sockets[0]};
	WANT(poll(&p, 1, 0) == 0);
	CU(MemcpyHtoDAsync_v2, w->memory, from, w->n, w->stream);
	CU(StreamSynchronize, w->stream);
}

#define F(name) (void *const *)&cu.name
static const struct way ways[] = {
	{"any-async, own stream, pinned", FROM(pinned), by_any, {F(MemcpyAsync)}, 0, 0},
	{"async, own stream, pinned", FROM(pinned), by_async, {F(MemcpyHtoDAsync_v2)}, 0, 0},
	{"async, own stream, host-alloc", FROM(allocated), by_async, {F(MemcpyHtoDAsync_v2), F(MemHostAlloc)}, 0, 0},
	{"async, own stream, write-comb.", FROM(combined), by_async, {F(MemcpyHtoDAsync_v2), F(MemHostAlloc)}, 0, 0},
	{"async, own stream, pageable", FROM(pageable), by_async, {F(MemcpyHtoDAsync_v2)}, 0, 0},
	{"async, query, pinned", FROM(pinned), by_query, {F(MemcpyHtoDAsync_v2), F(StreamQuery)}, 0, 0},
	{"async, event, pinned", FROM(pinned), by_event, {F(MemcpyHtoDAsync_v2), F(EventRecord)}, 0, 0},
	{"async, sleeping event, pinned", FROM(pinned), by_sleep, {F(MemcpyHtoDAsync_v2), F(EventRecord)}, 0, 0},
	{"async, flag in memory, pinned", FROM(pinned), by_flag, {F(MemcpyHtoDAsync_v2), F(StreamWriteValue32_v2)}, 0, 0},
	{"async, flag in memory, pageable", FROM(pageable), by_flag, {F(MemcpyHtoDAsync_v2), F(StreamWriteValue32_v2)}, 0, 0},
	{"sync, pinned", FROM(pinned), by_sync, {F(MemcpyHtoD_v2)}, 0, 0},
	{"sync, host-alloc", FROM(allocated), by_sync, {F(MemcpyHtoD_v2), F(MemHostAlloc)}, 0, 0},
	{"sync, pageable", FROM(pageable), by_sync, {F(MemcpyHtoD_v2)}, 1, 0},
	{"sync, thread's stream, pinned", FROM(pinned), by_ptds, {F(MemcpyHtoD_v2_ptds)}, 0, 0},
	{"sync, thread's stream, pageable", FROM(pageable), by_ptds, {F(MemcpyHtoD_v2_ptds)}, 1, 0},
	{"sync any, pinned", FROM(pinned), by_sync_any, {F(Memcpy)}, 0, 0},
	{"sync + context, pageable", FROM(pageable), by_sync_context, {F(MemcpyHtoD_v2)}, 0, 0},
	{"any-async, within the GPU", FROM(pinned), by_within_any, {F(MemcpyAsync)}, 0, 1},
	{"async, within the GPU", FROM(pinned), by_within, {F(MemcpyDtoDAsync_v2)}, 0, 1},
	{"async, within, flag in memory", FROM(pinned), by_within_flag, {F(MemcpyDtoDAsync_v2), F(StreamWriteValue32_v2)}, 0, 1},
	{"async + poll under way, pinned", FROM(pinned), by_poll, {F(MemcpyHtoDAsync_v2)}, 0, 0},
	{"poll + async, pinned", FROM(pinned), by_poll_first, {F(MemcpyHtoDAsync_v2)}, 0, 0},
};
enum { WAYS = sizeof ways / sizeof *ways };

static int can(const struct way *y)
{
	for (int i = 0; i < 2; i++)
		if (y->needs[i] && !*y->needs[i])
			return 0;
	return memory_of(&all[0], y->from) != NULL;
}

/* ---- Parts ---- */

static void part_clock(struct worker *w, const char *from)
{
	struct timespec t;
	(void)w;
	(void)from;
	clock_gettime(CLOCK_MONOTONIC, &t);
}
static void part_lock(struct worker *w, const char *from)
{
	(void)from;
	pthread_mutex_lock(&shared);
	w->tick++;
	pthread_mutex_unlock(&shared);
}
static void part_poll(struct worker *w, const char *from)
{
	struct pollfd p = {.fd = sockets[0]};
	(void)w;
	(void)from;
	WANT(poll(&p, 1, 0) == 0);
}
static void part_statx(struct worker *w, const char *from)
{
	struct statx x;
	(void)w;
	(void)from;
	WANT(statx(mounted, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, &x) == 0);
}
static void part_mounted(struct worker *w, const char *from) { WANT(pread(mounted, (char *)(uintptr_t)from, w->n, 4096) == (ssize_t)w->n); }
static void part_plain(struct worker *w, const char *from) { WANT(pread(plain, (char *)(uintptr_t)from, w->n, 4096) == (ssize_t)w->n); }
static void part_mapped(struct worker *w, const char *from) { memcpy((char *)(uintptr_t)from, w->mapped, w->n); }
static void part_current(struct worker *w, const char *from)
{
	void *c;
	(void)w;
	(void)from;
	CU(CtxGetCurrent, &c);
}
static void part_push(struct worker *w, const char *from)
{
	void *c;
	(void)w;
	(void)from;
	CU(CtxPushCurrent_v2, context);
	CU(CtxPopCurrent_v2, &c);
}
static void attributes(struct worker *w, const int *which, unsigned n)
{
	uint64_t room[6];
	void *to[6];
	for (unsigned i = 0; i < n; i++)
		to[i] = &room[i];
	CU(PointerGetAttributes, n, which, to, w->memory + 100);
}
static void part_six(struct worker *w, const char *from)
{
	static const int which[] = {MEMORY_TYPE, ORDINAL, MANAGED, RANGE_START, RANGE_SIZE, LEGACY_IPC};
	(void)from;
	attributes(w, which, 6);
}
static void part_five(struct worker *w, const char *from)
{
	static const int which[] = {MEMORY_TYPE, ORDINAL, MANAGED, RANGE_START, RANGE_SIZE};
	(void)from;
	attributes(w, which, 5);
}
static void part_id(struct worker *w, const char *from)
{
	static const int which[] = {BUFFER_ID};
	(void)from;
	attributes(w, which, 1);
}
static void part_one_id(struct worker *w, const char *from)
{
	uint64_t id;
	(void)from;
	CU(PointerGetAttribute, &id, BUFFER_ID, w->memory + 100);
}
static void part_one_type(struct worker *w, const char *from)
{
	int type;
	(void)from;
	CU(PointerGetAttribute, &type, MEMORY_TYPE, w->memory + 100);
}
static void part_range(struct worker *w, const char *from)
{
	address at;
	size_t n;
	(void)from;
	CU(MemGetAddressRange_v2, &at, &n, w->memory + 100);
}
static void part_query(struct worker *w, const char *from)
{
	(void)from;
	CU(StreamQuery, w->stream);
}
static void part_settled(struct worker *w, const char *from)
{
	(void)from;
	CU(StreamSynchronize, w->stream);
}
static void part_ready(struct worker *w, const char *from)
{
	(void)from;
	CU(EventQuery, w->event);
}

static const struct way parts[] = {
	{"clock_gettime", FROM(pinned), part_clock, {0}, 0, 0},
	{"a mutex that all have", FROM(pinned), part_lock, {0}, 0, 0},
	{"poll of a socket", FROM(pinned), part_poll, {0}, 0, 0},
	{"statx", FROM(pinned), part_statx, {0}, 0, 0},
	{"cuCtxGetCurrent", FROM(pinned), part_current, {F(CtxGetCurrent)}, 0, 0},
	{"cuCtxPushCurrent, Pop", FROM(pinned), part_push, {F(CtxPushCurrent_v2)}, 0, 0},
	{"cuPointerGetAttributes, six", FROM(pinned), part_six, {F(PointerGetAttributes)}, 0, 0},
	{"  five, without legacy IPC", FROM(pinned), part_five, {F(PointerGetAttributes)}, 0, 0},
	{"  the buffer's number", FROM(pinned), part_id, {F(PointerGetAttributes)}, 0, 0},
	{"cuPointerGetAttribute, number", FROM(pinned), part_one_id, {F(PointerGetAttribute)}, 0, 0},
	{"cuPointerGetAttribute, type", FROM(pinned), part_one_type, {F(PointerGetAttribute)}, 0, 0},
	{"cuMemGetAddressRange", FROM(pinned), part_range, {F(MemGetAddressRange_v2)}, 0, 0},
	{"cuStreamQuery, idle", FROM(pinned), part_query, {F(StreamQuery)}, 0, 0},
	{"cuStreamSynchronize, idle", FROM(pinned), part_settled, {F(StreamSynchronize)}, 0, 0},
	{"cuEventQuery, idle", FROM(pinned), part_ready, {F(EventQuery)}, 0, 0},
};
enum { PARTS = sizeof parts / sizeof *parts };

static const struct way reads[] = {
	{"pread, LaneFS", FROM(pinned), part_mounted, {0}, 0, 0},
	{"pread, elsewhere", FROM(pinned), part_plain, {0}, 0, 0},
	{"pread, LaneFS, write-comb.", FROM(combined), part_mounted, {0}, 0, 0},
	{"memcpy of a mapping of LaneFS's", FROM(pinned), part_mapped, {0}, 0, 0},
};
enum { READS = sizeof reads / sizeof *reads };

struct source { const char *name; void (*get)(struct worker *, const char *); };
static const struct source from_mount = {"LaneFS", part_mounted}, from_plain = {"elsewhere", part_plain};

/* ---- Measuring ---- */

static void *work(void *arg)
{
	struct worker *w = arg;
	CU(CtxSetCurrent, context);
	char *from = memory_of(w, w->way->from);
	for (int i = 0; i < 20; i++)
		w->way->copy(w, from);
	w->calls = 0;
	pthread_barrier_wait(&barrier);
	double start = now(), end;
	do {
		for (int i = 0; i < 16; i++) {
			if (w->source)
				w->source->get(w, from);
			w->way->copy(w, from);
		}
		w->calls += 16;
	} while ((end = now()) - start < seconds);
	w->took = end - start;
	return NULL;
}

static void prove(struct worker *w, uint64_t first)
{
	uint64_t *host = malloc(w->n);
	WANT(host);
	CU(CtxSynchronize);
	CU(MemcpyDtoH_v2, host, w->memory, w->n);
	for (size_t i = 0; i < w->n / 8; i++)
		if (host[i] != first + 8 * i) {
			fprintf(stderr, "WRONG BYTES: %s, word %zu\n", w->way->name, i);
			exit(1);
		}
	free(host);
}

static double measure(const struct way *y, const struct source *source, unsigned threads, size_t n)
{
	double sum = 0;
	pthread_barrier_init(&barrier, NULL, threads);
	for (unsigned i = 0; i < threads; i++) {
		struct worker *w = &all[i];
		w->way = y;
		w->source = source;
		w->n = n;
		if (source)
			CU(MemsetD8Async, w->memory, 0xff, n, w->stream);
		CU(StreamSynchronize, w->stream);
		WANT(pthread_create(&w->thread, NULL, work, w) == 0);
	}
	for (unsigned i = 0; i < threads; i++) {
		WANT(pthread_join(all[i].thread, NULL) == 0);
		sum += all[i].took / (double)all[i].calls * 1e6;
		if (source)
			prove(&all[i], 4096);
	}
	pthread_barrier_destroy(&barrier);
	return sum / threads;
}

static const size_t sizes[] = {4096, 16384, 65536};

static void row(const char *kind, const char *where, const struct way *y, const struct source *source)
{
	if (!can(y) || (source && y->within))
		return;
	printf("%s: %-10s %-34s", kind, where, y->name);
	for (unsigned threads = 1; threads <= most; threads *= THREADS) {
		for (int i = 0; i < 3; i++)
			printf(" %8.2f", measure(y, source, threads, sizes[i]));
		printf(threads == 1 ? " |" : "");
	}
	printf("%s\n", y->early ? "   (may return before the bytes are there)" : "");
	fflush(stdout);
}

/* How often the last bytes of a copy are not there for another stream at once. */
static void late(const struct way *y)
{
	enum { ROUNDS = 2000 };
	struct worker *w = &all[0];
	unsigned missed = 0;
	char *from = memory_of(w, y->from);
	uint64_t *back = (uint64_t *)all[1].pinned;
	if (!can(y) || y->within)
		return;
	w->n = 65536;
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		uint64_t *last = (uint64_t *)(from + w->n) - 1;
		*last = i;
		y->copy(w, from);
		CU(MemcpyDtoHAsync_v2, back, w->memory + w->n - 8, 8, all[1].stream);
		CU(StreamSynchronize, all[1].stream);
		missed += *back != i;
	}
	printf("late: %-34s %u of %d\n", y->name, missed, ROUNDS);
}

/* A copy while a stream of the program, of the kind that waits for the legacy stream, is busy. */
static void busy(const struct way *y, void *stream, address large)
{
	struct worker *w = &all[0];
	double took[5];
	char *from = memory_of(w, y->from);
	if (!can(y))
		return;
	w->n = 4096;
	for (int k = 0; k < 5; k++) {
		for (int i = 0; i < BUSY; i++)
			CU(MemsetD8Async, large, (unsigned char)i, LARGE, stream);
		double start = now();
		y->copy(w, from);
		took[k] = now() - start;
		CU(StreamSynchronize, stream);
	}
	double least = took[0];
	for (int k = 1; k < 5; k++)
		least = took[k] < least ? took[k] : least;
	printf("busy: %-34s %10.1f us\n", y->name, least * 1e6);
}

static void prepare(struct worker *w)
{
	CU(MemAlloc_v2, &w->memory, ROOM);
	CU(MemAlloc_v2, &w->other, ROOM);
	CU(StreamCreate, &w->stream, NON_BLOCKING);
	CU(EventCreate, &w->event, NO_TIMING);
	CU(EventCreate, &w->sleepy, NO_TIMING | BLOCKING_SYNC);
	CU(EventRecord, w->event, w->stream);
	w->pinned = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	w->pageable = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	w->mapped = mmap(NULL, ROOM, PROT_READ, MAP_SHARED, mounted, 4096);
	char *flags = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	WANT(w->pinned != MAP_FAILED && w->pageable != MAP_FAILED && w->mapped != MAP_FAILED && flags != MAP_FAILED);
	memset(w->pageable, 1, ROOM);
	CU(MemHostRegister_v2, w->pinned, ROOM, PORTABLE);
	CU(MemHostRegister_v2, flags, 4096, 3);
	CU(MemHostGetDevicePointer_v2, &w->flag, flags, 0);
	w->word = (_Atomic uint32_t *)flags;
	if (!cu.MemHostAlloc || cu.MemHostAlloc((void **)&w->allocated, ROOM, PORTABLE))
		w->allocated = NULL;
	if (!cu.MemHostAlloc || cu.MemHostAlloc((void **)&w->combined, ROOM, PORTABLE | WRITE_COMBINED))
		w->combined = NULL;
	volatile char sum = 0;
	for (size_t i = 0; i < ROOM; i += 4096)
		sum += w->mapped[i];
}

int main(int argc, char **argv)
{
	WANT(argc >= 4 && (mounted = open(argv[1], O_RDONLY)) >= 0 && (plain = open(argv[2], O_RDONLY)) >= 0);
	seconds = atof(argv[3]);
	if (argc > 4)
		most = (unsigned)atoi(argv[4]);
	WANT(most == 1 || most == THREADS);
	WANT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
	load();
	CU(Init, 0);
	CU(DevicePrimaryCtxRetain, &context, 0);
	CU(CtxSetCurrent, context);
	for (unsigned i = 0; i < THREADS; i++)
		prepare(&all[i]);
	for (int i = 0; i < 2; i++) {
		char *b = malloc(FILE_SIZE);
		WANT(b && pread(i ? plain : mounted, b, FILE_SIZE, 0) == FILE_SIZE); /* into the page cache */
		free(b);
	}
	printf("us of a thread: 4, 16, 64 KiB by 1 thread | by %u\n", most);
	for (int i = 0; i < PARTS; i++)
		row("part", "", &parts[i], NULL);
	for (int i = 0; i < READS; i++)
		row("part", "", &reads[i], NULL);
	for (int i = 0; i < WAYS; i++)
		row("copy", "", &ways[i], NULL);
	for (int i = 0; i < WAYS; i++)
		row("read", from_mount.name, &ways[i], &from_mount);
	for (int i = 0; i < WAYS; i++)
		row("read", from_plain.name, &ways[i], &from_plain);
	if (cu.MemcpyDtoHAsync_v2)
		for (int i = 0; i < WAYS; i++)
			late(&ways[i]);
	void *stream;
	address large;
	CU(StreamCreate, &stream, 0);
	CU(MemAlloc_v2, &large, LARGE);
	for (int i = 0; i < WAYS; i++)
		busy(&ways[i], stream, large);
	uint64_t on = 1;
	if (cu.PointerSetAttribute) { /* what CUDA has for memory whose copies are to have ended */
		for (unsigned i = 0; i < THREADS; i++)
			CU(PointerSetAttribute, &on, SYNC_MEMOPS, all[i].memory);
		for (int i = 0; i < WAYS; i++)
			if (ways[i].early) {
				row("memops", "", &ways[i], NULL);
				late(&ways[i]);
			}
	}
	puts("proved");
	return 0;
}
