/*
 * The backend in plain memory: physical memory is a memfd, a stream a thread, a module the kernels' build for the CPU. An
 * address is the same for all. A kernel gets what the host runtime gives it (kernels/kernel.h).
 */
#define _GNU_SOURCE
#include "backend.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { GRANULARITY = 2 << 20, PAGE = 4096, ARGS = 16, PATIENCE = 300 };
static size_t memory = (size_t)4 << 30;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle; /* of CLOCK_MONOTONIC */
static size_t used;     /* bytes of phys */
static unsigned queued; /* jobs of all streams that have not ended */

/* ---- the device ---- */

static uint64_t ticks(void) {
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	uint64_t t;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#endif
}

static uint64_t nanoseconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

__attribute__((constructor)) static void make_idle(void) {
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&idle, &a);
	pthread_condattr_destroy(&a);
}

int be_init(struct facts *f) {
	uint64_t t = ticks(), ns = nanoseconds();
	usleep(20000);
	t = ticks() - t;
	ns = nanoseconds() - ns;
	if (getenv("LANEFS_SHIM_MEMORY"))
		memory = strtoull(getenv("LANEFS_SHIM_MEMORY"), NULL, 10);
	*f = (struct facts){.name = "LaneFS shim over plain memory", .bus = "0000:00:00.0", .memory = memory, .granularity = GRANULARITY,
		.wave = 1, .units = (int)sysconf(_SC_NPROCESSORS_ONLN), .clock_khz = (int)(t * 1000000 / ns), .large_bar = 1};
#if defined(__x86_64__)
	strcpy(f->arch, "x86_64");
#else
	strcpy(f->arch, "aarch64");
#endif
	return OK;
}

int be_current(void) { return OK; }

int be_memory(size_t *free_bytes, size_t *total) {
	pthread_mutex_lock(&lock);
	*free_bytes = memory - used;
	pthread_mutex_unlock(&lock);
	*total = memory;
	return OK;
}

int be_sync(void) {
	struct timespec end;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += PATIENCE;
	int rc = 0;
	pthread_mutex_lock(&lock);
	while (queued && rc == 0)
		rc = pthread_cond_timedwait(&idle, &lock, &end);
	pthread_mutex_unlock(&lock);
	if (rc)
		fprintf(stderr, "shim: a call that waits for the device has waited for %d s: a resident kernel is not parked\n", PATIENCE);
	return rc ? LAUNCH_TIMEOUT : OK;
}

/*
 * ---- copies ----
 *
 * With LANEFS_SHIM_COPIES device memory has two copies, once it was exported or the CPU was told where it has it: what the GPU has of it in its
 * L2, where kernels read and write, and what is in memory, where a drive reads and writes by the descriptor, and the CPU by the BAR, at
 * an address of its own. Bytes go from one to the other as on a GPU whose L2 does not snoop:
 *
 *     to memory   when a kernel, a fill or a copy has ended: it writes L2 back
 *     to L2       when one begins, which invalidates L2; but what others wrote only if the host data path has been flushed since
 *
 * A kernel's is all of L2, a copy's and a fill's only the bytes that it moves.
 *
 * The flush is a store to a register, of which the next job takes notice. A resident kernel neither begins nor ends. What its fences and atomic
 * accesses do is seen of an image whose accesses are calls, as clang's -fsanitize=thread makes them; the calls are below:
 *
 *     a release            writes L2 back
 *     an acquire           invalidates it
 *     an atomic load       reads memory, past L2, but for bytes that are L2's own
 *     an atomic store      goes through to memory
 *
 * All else that a kernel reads and writes is L2's. A read of what L2 has, and memory has newer, is said once: a GPU may have it from either.
 * With any other image queues in such memory do not work; LANEFS_SHIM_KERNELS names a file that is loaded in the place of every image. With
 * LANEFS_SHIM_COPIES=direct there is no host data path between memory and L2, so that nothing has to be flushed; with LANEFS_SHIM_COPIES=deaf
 * the register does nothing, as if nobody stored to it.
 *
 * Several processes have one GPU: LANEFS_SHIM_DEVICE names the file in which its register is. Copies are in the memory's memfd, one after the
 * other: memory, L2, what has got through the host data path, and what L2 was when it was last the same as that; then a page of facts.
 *
 * Stores are found by comparison: one of the value that was there is none. What a drive or the CPU reads through the host data path is never
 * stale, though AMD's may keep old bytes there, too.
 */

struct device {
	pthread_mutex_t lock; /* of all copies, in all processes */
	uint64_t flushes;
	uint32_t flush_register, ready;
};

struct facts_of_copies {
	uint64_t flushes; /* device.flushes when memory last got through */
	uint64_t n;       /* bytes that are compared; 0: there are no copies yet */
};

struct copies {
	struct copies *next;
	phys *p;
	size_t n;      /* the facts' */
	char *memory;  /* what others have: where the descriptor begins */
	char *l2;      /* what kernels have */
	char *arrived; /* what has got through the host data path */
	char *clean;   /* what l2 was when it was last the same as arrived */
	struct facts_of_copies *facts;
	int touched; /* a resident kernel accesses it, so its fences concern it */
};
static struct copies *all_copies;

/* Where kernels have memory with copies. Looked at without the lock: entries are added and emptied, and not moved. */
static struct range {
	char *at;
	size_t n;
	phys *p;
	struct copies *c; /* NULL: p has none yet */
} ranges[4096];
static unsigned all_ranges;

static int mode(const char *name) {
	const char *v = getenv("LANEFS_SHIM_COPIES");
	return v && (!name || strcmp(v, name) == 0);
}

static int direct(void) {
	static int known;
	if (!known)
		known = 1 + mode("direct");
	return known == 2;
}

static pthread_once_t once_device = PTHREAD_ONCE_INIT;
static struct device *device;

static void open_device(void) {
	const char *name = getenv("LANEFS_SHIM_DEVICE");
	int fd = name ? open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (fd >= 0 && (flock(fd, LOCK_EX) != 0 || ftruncate(fd, PAGE) != 0))
		abort();
	device = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	if (!device->ready) {
		pthread_mutexattr_t a;
		pthread_mutexattr_init(&a);
		pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
		pthread_mutex_init(&device->lock, &a);
		device->ready = 1;
	}
	flock(fd, LOCK_UN); /* the mapping keeps the file open */
	close(fd);
}

static void lock_copies(void) {
	pthread_once(&once_device, open_device);
	if (pthread_mutex_lock(&device->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&device->lock); /* its owner was killed */
}

static void unlock_copies(void) { pthread_mutex_unlock(&device->lock); }

uint32_t *be_flush(void) {
	static uint32_t nothing;
	pthread_once(&once_device, open_device);
	return mode("deaf") ? &nothing : &device->flush_register;
}

/* The bytes of [off, end) that differ go from `from` to all of `to`. */
static void pass(size_t off, size_t end, const char *from, const char *before, char *const *to) {
	for (size_t next; off < end; off = next) {
		next = off / PAGE * PAGE + PAGE;
		if (next > end)
			next = end;
		if (memcmp(from + off, before + off, next - off) == 0)
			continue;
		for (size_t i = off; i < next; i++)
			if (from[i] != before[i]) {
				char b = from[i];
				for (char *const *t = to; *t; t++)
					(*t)[i] = b;
			}
	}
}

static void invalidate_some(struct copies *c, size_t off, size_t end) {
	if (direct())
		pass(off, end, c->memory, c->arrived, (char *const[]){c->arrived, NULL});
	pass(off, end, c->arrived, c->clean, (char *const[]){c->l2, c->clean, NULL});
}

static void write_back_some(struct copies *c, size_t off, size_t end) {
	pass(off, end, c->l2, c->clean, (char *const[]){c->memory, c->arrived, c->clean, NULL});
}

/* The caller holds the lock. */
static void take_notice_of_flush(void) {
	if (__atomic_exchange_n(&device->flush_register, 0, __ATOMIC_ACQ_REL))
		device->flushes++;
	for (struct copies *c = direct() ? NULL : all_copies; c; c = c->next)
		if (c->facts->flushes != device->flushes) {
			pass(0, c->n, c->memory, c->arrived, (char *const[]){c->arrived, NULL});
			c->facts->flushes = device->flushes;
		}
}

static void invalidate(void) {
	lock_copies();
	take_notice_of_flush();
	for (struct copies *c = all_copies; c; c = c->next)
		invalidate_some(c, 0, c->n);
	unlock_copies();
}

static void write_back(void) {
	lock_copies();
	for (struct copies *c = all_copies; c; c = c->next)
		write_back_some(c, 0, c->n);
	unlock_copies();
}

/* Gives p its second copy, if it has none. */
static struct copies *copies_of(phys *p) {
	lock_copies();
	struct copies *c = all_copies;
	while (c && c->p != p)
		c = c->next;
	if (!c) {
		char *all = mmap(NULL, 4 * p->size + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, (int)p->handle, 0);
		if (all == MAP_FAILED)
			abort();
		c = calloc(1, sizeof *c);
		*c = (struct copies){.next = all_copies, .p = p, .memory = all, .l2 = all + p->size, .arrived = all + 2 * p->size,
			.clean = all + 3 * p->size, .facts = (void *)(all + 4 * p->size)};
		if (c->facts->n == 0) { /* all but L2's are zeroes */
			*c->facts = (struct facts_of_copies){.flushes = device->flushes, .n = p->wanted ? p->wanted : p->size};
			write_back_some(c, 0, c->facts->n);
		}
		c->n = c->facts->n;
		all_copies = c;
		for (unsigned i = 0; i < all_ranges; i++)
			if (ranges[i].p == p)
				__atomic_store_n(&ranges[i].c, c, __ATOMIC_RELEASE);
	}
	unlock_copies();
	return c;
}

static void end_copies(phys *p) {
	if (!mode(NULL))
		return;
	lock_copies();
	for (unsigned i = 0; i < all_ranges; i++)
		if (ranges[i].p == p)
			__atomic_store_n(&ranges[i].c, NULL, __ATOMIC_RELEASE);
	for (struct copies **l = &all_copies; *l; l = &(*l)->next)
		if ((*l)->p == p) {
			struct copies *c = *l;
			*l = c->next;
			munmap(c->memory, 4 * p->size + PAGE);
			free(c);
			break;
		}
	unlock_copies();
}

/* A kernel's address becomes memory of p, or, with NULL, of nothing. */
static void note_range(char *at, size_t n, phys *p) {
	lock_copies();
	unsigned i = 0;
	while (i < all_ranges && (p ? ranges[i].n != 0 : ranges[i].at != at))
		i++;
	if (i == sizeof ranges / sizeof *ranges)
		abort();
	if (i < all_ranges || p) {
		struct copies *c = all_copies;
		while (p && c && c->p != p)
			c = c->next;
		ranges[i] = (struct range){at, p ? n : 0, p, p ? c : NULL};
		if (i == all_ranges && p)
			__atomic_store_n(&all_ranges, i + 1, __ATOMIC_RELEASE);
	}
	unlock_copies();
}

/* The copies that an address is of, and where it is in them; NULL: it has none. */
static struct copies *copies_at(const volatile void *p, size_t *off) {
	unsigned n = __atomic_load_n(&all_ranges, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if ((size_t)((const volatile char *)p - ranges[i].at) < ranges[i].n) {
			*off = (const volatile char *)p - ranges[i].at;
			return __atomic_load_n(&ranges[i].c, __ATOMIC_ACQUIRE);
		}
	return NULL;
}

/* What a copy or a fill does to the bytes that it reads, and to those that it has written. */
static void begin_part(const void *at, size_t n) {
	size_t off;
	struct copies *c = at ? copies_at(at, &off) : NULL;
	if (!c)
		return;
	lock_copies();
	take_notice_of_flush();
	invalidate_some(c, off, off + n);
	unlock_copies();
}

static void end_part(const void *at, size_t n) {
	size_t off;
	struct copies *c = copies_at(at, &off);
	if (!c)
		return;
	lock_copies();
	write_back_some(c, off, off + n);
	unlock_copies();
}

#define HOOK __attribute__((visibility("default")))
static int acquires(int order) { return order == __ATOMIC_ACQUIRE || order == __ATOMIC_CONSUME || order >= __ATOMIC_ACQ_REL; }
static int releases(int order) { return order >= __ATOMIC_RELEASE; }

HOOK void __tsan_init(void) {}
static void release_touched(void) {
	lock_copies();
	for (struct copies *c = all_copies; c; c = c->next)
		if (c->touched)
			write_back_some(c, 0, c->n);
	unlock_copies();
}

static void acquire_touched(void) {
	lock_copies();
	take_notice_of_flush();
	for (struct copies *c = all_copies; c; c = c->next)
		if (c->touched)
			invalidate_some(c, 0, c->n);
	unlock_copies();
}

/* Before a kernel's access to memory that has copies: what its fences were, before, concerns it from now on. */
static struct copies *touch(const volatile void *p, size_t *off) {
	struct copies *c = copies_at(p, off);
	if (c && !__atomic_load_n(&c->touched, __ATOMIC_RELAXED)) {
		lock_copies();
		take_notice_of_flush();
		invalidate_some(c, 0, c->n);
		__atomic_store_n(&c->touched, 1, __ATOMIC_RELAXED);
		unlock_copies();
	}
	return c;
}

HOOK void __tsan_atomic_thread_fence(int order) {
	if (releases(order))
		release_touched();
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (acquires(order))
		acquire_touched();
}
HOOK void __tsan_atomic_signal_fence(int order) { (void)order; }

#define ATOMIC(bits) \
	/* Under the lock: what a kernel finds past L2. */ \
	static uint##bits##_t past_l2_##bits(struct copies *c, size_t off) { \
		union { uint##bits##_t v; char b[bits / 8]; } u; \
		u.v = __atomic_load_n((uint##bits##_t *)((direct() ? c->memory : c->arrived) + off), __ATOMIC_ACQUIRE); \
		for (size_t i = 0; i < sizeof u; i++) \
			if (c->l2[off + i] != c->clean[off + i]) \
				u.b[i] = c->l2[off + i]; \
		return u.v; \
	} \
	static void through_##bits(struct copies *c, size_t off, uint##bits##_t v) { \
		char *const to[] = {c->l2, c->clean, c->arrived, c->memory}; \
		for (int i = 0; i < 4; i++) \
			__atomic_store_n((uint##bits##_t *)(to[i] + off), v, __ATOMIC_RELEASE); \
	} \
	/* change of what was there: 0 none, 1 exchange, 2 add, 3 exchange if it is `expected` */ \
	static uint##bits##_t access_##bits(volatile uint##bits##_t *p, int change, uint##bits##_t expected, uint##bits##_t v, int order) { \
		if (releases(order)) \
			release_touched(); \
		size_t off; \
		struct copies *c = touch(p, &off); \
		uint##bits##_t was = 0; \
		if (c) { \
			lock_copies(); \
			was = past_l2_##bits(c, off); \
			if (change == 1 || change == 2 || (change == 3 && was == expected)) \
				through_##bits(c, off, change == 2 ? was + v : v); \
			unlock_copies(); \
		} else if (change == 1) \
			was = __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); \
		else if (change == 2) \
			was = __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); \
		else if (change == 3) { \
			was = expected; \
			__atomic_compare_exchange_n(p, &was, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
		} else \
			was = __atomic_load_n(p, __ATOMIC_SEQ_CST); \
		if (acquires(order)) \
			acquire_touched(); \
		return was; \
	} \
	HOOK uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *p, int order) { \
		return access_##bits((volatile uint##bits##_t *)p, 0, 0, 0, order); \
	} \
	HOOK void __tsan_atomic##bits##_store(volatile uint##bits##_t *p, uint##bits##_t v, int order) { \
		access_##bits(p, 1, 0, v, order == __ATOMIC_SEQ_CST ? __ATOMIC_RELEASE : order); \
	} \
	HOOK uint##bits##_t __tsan_atomic##bits##_exchange(volatile uint##bits##_t *p, uint##bits##_t v, int order) { \
		return access_##bits(p, 1, 0, v, order); \
	} \
	HOOK uint##bits##_t __tsan_atomic##bits##_fetch_add(volatile uint##bits##_t *p, uint##bits##_t v, int order) { \
		return access_##bits(p, 2, 0, v, order); \
	} \
	HOOK uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(volatile uint##bits##_t *p, uint##bits##_t expected, uint##bits##_t v, int order, int other) { \
		(void)other; \
		return access_##bits(p, 3, expected, v, order); \
	}
ATOMIC(32)
ATOMIC(64)

static void reads(const void *p, size_t n) {
	static int said;
	size_t off;
	struct copies *c = touch(p, &off);
	if (!c || __atomic_load_n(&said, __ATOMIC_RELAXED))
		return;
	lock_copies();
	const char *have = direct() ? c->memory : c->arrived;
	for (size_t i = off; i < off + n && i < c->p->size; i++)
		if (c->l2[i] == c->clean[i] && c->l2[i] != have[i] && !said) {
			said = 1;
			fprintf(stderr, "shim: a kernel has read %zu bytes at offset %zu of memory that are stale in L2\n", n, off);
		}
	unlock_copies();
}
static void writes(void *p) {
	size_t off;
	touch(p, &off);
}
#define PLAIN(n) \
	HOOK void __tsan_read##n(void *p) { reads(p, n); } \
	HOOK void __tsan_unaligned_read##n(void *p) { reads(p, n); } \
	HOOK void __tsan_write##n(void *p) { writes(p); } \
	HOOK void __tsan_unaligned_write##n(void *p) { writes(p); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

/* ---- memory ---- */

int be_create(phys **out, size_t n) {
	pthread_mutex_lock(&lock);
	int fits = n <= memory && used <= memory - n;
	if (fits)
		used += n;
	pthread_mutex_unlock(&lock);
	if (!fits)
		return OUT_OF_MEMORY;
	phys *p = calloc(1, sizeof *p);
	int fd = syscall(SYS_memfd_create, "lanefs-shim", MFD_CLOEXEC);
	*p = (phys){.refs = 1, .size = n, .handle = (uint32_t)fd};
	if (fd < 0 || ftruncate(fd, mode(NULL) ? 4 * n + PAGE : n) != 0) {
		be_destroy(p);
		return OUT_OF_MEMORY;
	}
	*out = p;
	return OK;
}

int be_destroy(phys *p) {
	pthread_mutex_lock(&lock);
	used -= p->size;
	pthread_mutex_unlock(&lock);
	end_copies(p);
	close((int)p->handle);
	free(p);
	return OK;
}

static int map(void *at, size_t n, int prot, int flags, int fd, off_t off) {
	return mmap(at, n, prot, flags | MAP_FIXED, fd, off) == MAP_FAILED ? INVALID : OK;
}

int be_reserve(void **at, size_t n) {
	*at = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return *at == MAP_FAILED ? OUT_OF_MEMORY : OK;
}

int be_unreserve(void *at, size_t n) { return munmap(at, n) == 0 ? OK : INVALID; }
int be_map(void *at, size_t n, phys *p) {
	note_range(at, n, p);
	return map(at, n, PROT_NONE, MAP_SHARED, (int)p->handle, mode(NULL) ? p->size : 0);
}
int be_access(void *at, size_t n) { return mprotect(at, n, PROT_READ | PROT_WRITE) == 0 ? OK : INVALID; }
int be_unmap(void *at, size_t n) {
	note_range(at, 0, NULL);
	return map(at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

void *be_bar(phys *p, void *at) { return mode(NULL) ? copies_of(p)->memory : at; }

int be_export(phys *p, void *at, size_t n, int *fd) {
	(void)at, (void)n;
	if (mode(NULL))
		copies_of(p);
	*fd = dup((int)p->handle);
	return *fd >= 0 ? OK : UNKNOWN;
}

int be_import(int fd, phys **out) {
	struct stat s;
	if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &s) != 0)
		return INVALID; /* no memfd */
	size_t n = mode(NULL) ? (s.st_size - PAGE) / 4 : s.st_size;
	if (n == 0 || n % GRANULARITY)
		return INVALID; /* none of ours */
	phys *p = calloc(1, sizeof *p);
	*p = (phys){.refs = 1, .size = n, .handle = (uint32_t)dup(fd)};
	if (mode(NULL))
		copies_of(p);
	pthread_mutex_lock(&lock);
	used += p->size;
	pthread_mutex_unlock(&lock);
	*out = p;
	return OK;
}

/* Offered memory is sent to any process that connects to a socket named after this process. With a device the driver does that. */

static phys *offers[4096];
static unsigned offered;
static int offer_socket = -1;

static socklen_t offer_address(struct sockaddr_un *a, uint32_t pid) {
	memset(a, 0, sizeof *a);
	a->sun_family = AF_UNIX; /* with a zero byte first: no file */
	return offsetof(struct sockaddr_un, sun_path) + 1 + snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "lanefs-shim-%u", pid);
}

static void *serve_offers(void *arg) {
	(void)arg;
	for (;;) {
		int c = accept4(offer_socket, NULL, NULL, SOCK_CLOEXEC);
		uint32_t i;
		if (c < 0)
			continue;
		int asked = recv(c, &i, sizeof i, 0) == sizeof i;
		pthread_mutex_lock(&lock);
		if (asked && i < offered && offers[i]) {
			union { struct cmsghdr h; char b[CMSG_SPACE(sizeof(int))]; } control = {.h = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
			int fd = (int)offers[i]->handle;
			memcpy(CMSG_DATA(&control.h), &fd, sizeof fd);
			struct iovec v = {&i, sizeof i};
			sendmsg(c, &(struct msghdr){.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control}, MSG_NOSIGNAL);
		}
		pthread_mutex_unlock(&lock);
		close(c);
	}
	return NULL;
}

int be_offer(phys *p, uint32_t words[2]) {
	int rc = OK;
	pthread_mutex_lock(&lock);
	if (offer_socket < 0) {
		struct sockaddr_un a;
		socklen_t n = offer_address(&a, getpid());
		pthread_t t;
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (bind(fd, (struct sockaddr *)&a, n) != 0 || listen(fd, 64) != 0)
			rc = UNKNOWN;
		else if (offer_socket = fd, pthread_create(&t, NULL, serve_offers, NULL) != 0)
			rc = UNKNOWN;
	}
	if (rc == OK && offered == sizeof offers / sizeof *offers)
		rc = UNKNOWN;
	if (rc == OK) {
		if (mode(NULL))
			copies_of(p);
		words[0] = offered;
		words[1] = getpid();
		offers[offered] = p;
		__atomic_store_n(&offered, offered + 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

phys *be_withdraw(const uint32_t words[2]) {
	pthread_mutex_lock(&lock);
	phys *p = offers[words[0]];
	offers[words[0]] = NULL;
	pthread_mutex_unlock(&lock);
	return p;
}

int be_take(const uint32_t words[2], phys **out) {
	struct sockaddr_un a;
	socklen_t n = offer_address(&a, words[1]);
	union { struct cmsghdr h; char b[CMSG_SPACE(sizeof(int))]; } control;
	uint32_t i = words[0];
	struct iovec v = {&i, sizeof i};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	int c = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc = INVALID;
	if (connect(c, (struct sockaddr *)&a, n) == 0 && send(c, &i, sizeof i, MSG_NOSIGNAL) == sizeof i && recvmsg(c, &m, MSG_CMSG_CLOEXEC) == sizeof i &&
		CMSG_FIRSTHDR(&m)) {
		int fd;
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
		rc = be_import(fd, out);
		close(fd);
	}
	close(c);
	return rc;
}

/*
 * n bytes of the file that LANEFS_SHIM_HOST names, or of anonymous memory. A PCI function's BAR is mapped as a driver's own
 * memory is (VM_PFNMAP): the process can use it, and its pages cannot be pinned. Freed memory is not reused.
 */
static char *host_map(size_t n) {
	static size_t next;
	const char *name = getenv("LANEFS_SHIM_HOST");
	if (!name)
		return mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = open(name, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return MAP_FAILED;
	size_t length = (n + PAGE - 1) / PAGE * PAGE;
	char *b = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, __atomic_fetch_add(&next, length, __ATOMIC_RELAXED));
	close(fd);
	return b;
}

/* Pinned memory is remembered by its size in a page before it. */
int be_host_alloc(void **out, size_t n) {
	char *b = host_map(n + PAGE);
	if (b == MAP_FAILED)
		return OUT_OF_MEMORY;
	*(size_t *)b = n + PAGE;
	*out = b + PAGE;
	return OK;
}

int be_host_free(void *at) {
	char *b = (char *)at - PAGE;
	return munmap(b, *(size_t *)b) == 0 ? OK : INVALID;
}

int be_host_register(void *at, size_t n, unsigned flags) {
	return (uintptr_t)at % PAGE || n % PAGE || (flags & 4 && getenv("LANEFS_SHIM_NO_IOMEM")) ? INVALID : OK;
}

int be_host_unregister(void *at) {
	(void)at;
	return OK;
}

int be_host_address(void **device, void *host) {
	*device = host;
	return OK;
}

/* ---- modules ---- */

struct module {
	void *lib;
	int fd; /* the loader takes a second object of the same path for the first: the number stays ours */
};

int be_module_load(void **out, const void *image) {
	const char *instead = getenv("LANEFS_SHIM_KERNELS");
	void *file = NULL;
	if (instead) {
		struct stat st;
		int in = open(instead, O_RDONLY | O_CLOEXEC);
		if (in < 0 || fstat(in, &st) != 0 || (file = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, in, 0)) == MAP_FAILED)
			return INVALID_IMAGE;
		close(in);
		image = file;
	}
	const Elf64_Ehdr *h = image;
#if defined(__x86_64__)
	const int machine = EM_X86_64;
#else
	const int machine = EM_AARCH64;
#endif
	if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 || h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_type != ET_DYN || h->e_machine != machine)
		return INVALID_IMAGE;
	size_t n = h->e_shoff + (size_t)h->e_shnum * h->e_shentsize; /* lld puts the section headers last */
	int fd = syscall(SYS_memfd_create, "lanefs-shim-kernels", MFD_CLOEXEC);
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	void *lib = fd >= 0 && write(fd, image, n) == (ssize_t)n ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!lib) {
		close(fd);
		return INVALID_IMAGE;
	}
	struct module *m = malloc(sizeof *m);
	*m = (struct module){lib, fd};
	*out = m;
	return OK;
}

int be_module_unload(void *module) {
	struct module *m = module;
	int rc = dlclose(m->lib) == 0 ? OK : INVALID_HANDLE;
	close(m->fd);
	free(m);
	return rc;
}

int be_module_function(void **f, void *module, const char *name) {
	*f = dlsym(((struct module *)module)->lib, name);
	return *f ? OK : NOT_FOUND;
}

/*
 * ---- streams ----
 *
 * A stream has a thread, which runs its jobs in order. Kernels, and fills, which are kernels on an AMD GPU, also go through a hardware
 * queue, as with ROCm's runtime: there are some for each priority (GPU_MAX_HW_QUEUES; here LANEFS_SHIM_QUEUES, 4), a stream gets the one
 * that the fewest have, and every packet has the barrier bit: it waits for the end of all that were put into the queue before it,
 * whatever their streams. Copies have engines of their own.
 */

enum { MOST_QUEUES = 64 };

struct queue {
	unsigned streams;
	uint64_t next, turn; /* packets put in, packets that have ended */
	pthread_cond_t ended;
};

struct job {
	struct job *next;
	void (*kernel)(const uint32_t *, const uint64_t *); /* NULL: a call, a wait, a copy, or with no src a fill */
	uint32_t dims[6];
	uint64_t args[ARGS];
	void *dst;
	const void *src;
	size_t n;
	unsigned char v;
	void (*call)(void *);
	uint64_t *word, least;
	uint64_t packet;
};

struct stream {
	pthread_cond_t more;
	struct queue *q;
	struct job *first, **last;
	unsigned queued;
	int closed;
};

static struct queue queues[2][MOST_QUEUES];

/* The caller holds the lock. */
static struct queue *take_queue(int urgent) {
	const char *n = getenv("LANEFS_SHIM_QUEUES");
	int count = n ? atoi(n) : 4;
	struct queue *all = queues[urgent], *best = all;
	for (int i = 0; i < count && i < MOST_QUEUES; i++)
		if (all[i].streams < best->streams)
			best = &all[i];
	if (best->next == 0)
		pthread_cond_init(&best->ended, NULL);
	best->streams++;
	return best;
}

static int is_packet(const struct job *j) { return j->kernel || (!j->src && !j->call && !j->word); }

static void *work(void *arg) {
	struct stream *s = arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!s->first && !s->closed)
			pthread_cond_wait(&s->more, &lock);
		struct job *j = s->first;
		if (!j)
			break;
		if (!(s->first = j->next))
			s->last = &s->first;
		while (is_packet(j) && s->q->turn != j->packet)
			pthread_cond_wait(&s->q->ended, &lock);
		pthread_mutex_unlock(&lock);
		if (j->kernel) {
			if (mode(NULL))
				invalidate();
			j->kernel(j->dims, j->args);
			if (mode(NULL))
				write_back();
		} else if (j->call)
			j->call(j->dst);
		else if (j->word)
			while (__atomic_load_n(j->word, __ATOMIC_ACQUIRE) < j->least)
				usleep(10);
		else {
			begin_part(j->src, j->n);
			if (j->src)
				memmove(j->dst, j->src, j->n);
			else
				memset(j->dst, j->v, j->n);
			end_part(j->dst, j->n);
		}
		pthread_mutex_lock(&lock);
		if (is_packet(j)) {
			s->q->turn++;
			pthread_cond_broadcast(&s->q->ended);
		}
		free(j);
		s->queued--;
		if (--queued == 0)
			pthread_cond_broadcast(&idle);
	}
	s->q->streams--;
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&s->more);
	free(s);
	return NULL;
}

/* The host build runs any number of blocks; this many, so that limits are met. */
int be_occupancy(int *blocks, void *f, int block) {
	(void)f;
	*blocks = 2048 / block;
	return OK;
}

int be_stream_create(void **out, int urgent) {
	struct stream *s = calloc(1, sizeof *s);
	s->last = &s->first;
	pthread_cond_init(&s->more, NULL);
	pthread_mutex_lock(&lock);
	s->q = take_queue(urgent);
	pthread_mutex_unlock(&lock);
	pthread_t t;
	if (pthread_create(&t, NULL, work, s) != 0)
		return UNKNOWN;
	pthread_detach(t);
	*out = s;
	return OK;
}

int be_stream_destroy(void *stream) {
	struct stream *s = stream;
	pthread_mutex_lock(&lock);
	s->closed = 1;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&lock);
	return OK;
}

int be_stream_query(void *stream) {
	struct stream *s = stream;
	pthread_mutex_lock(&lock);
	int busy = s->queued != 0;
	pthread_mutex_unlock(&lock);
	return busy ? NOT_READY : OK;
}

static int put(void *stream, struct job job) {
	struct stream *s = stream;
	struct job *j = malloc(sizeof *j);
	*j = job;
	pthread_mutex_lock(&lock);
	if (is_packet(j))
		j->packet = s->q->next++;
	*s->last = j;
	s->last = &j->next;
	s->queued++;
	queued++;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&lock);
	return OK;
}

int be_launch(void *f, const uint32_t dims[6], void *s, void **params) {
	struct job j = {.kernel = (void (*)(const uint32_t *, const uint64_t *))f};
	memcpy(j.dims, dims, sizeof j.dims);
	for (int i = 0; i < ARGS; i++) /* gpu/hip gives them all, set or not */
		j.args[i] = *(uint64_t *)params[i];
	return put(s, j);
}

int be_copy(void *dst, const void *src, size_t n, void *s) { return put(s, (struct job){.dst = dst, .src = src, .n = n}); }
int be_fill(void *dst, unsigned char v, size_t n, void *s) { return put(s, (struct job){.dst = dst, .v = v, .n = n}); }
int be_call(void (*f)(void *), void *arg, void *s) { return put(s, (struct job){.call = f, .dst = arg}); }
int be_wait(uint64_t *word, uint64_t least, void *s) { return put(s, (struct job){.word = word, .least = least}); }
