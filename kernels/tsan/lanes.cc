/*
 * The lanes' kernels, as built for a CPU, under ThreadSanitizer: a lane, its controller and the CPU that feeds it on three
 * threads, over small rings and queues that wrap all the time. The three share only what kernels/layout.h
 * describes, so a report is a missing or misplaced fence. tsan_test.go builds and runs it.
 *
 *     lanes COMMANDS [no-release | no-acquire]
 *
 * ThreadSanitizer does not know fences, so the kernels' fences are translated: stores after a release fence, up to the next
 * load, are stores with release; an acquire fence acquires what the loads before it have seen. The second argument leaves
 * one of the two out: then there must be a report.
 */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" void __tsan_acquire(void *);

static bool no_release, no_acquire;

constexpr int remembered = 64;
static thread_local const void *loaded[remembered];
static thread_local unsigned loads;
static thread_local bool released;

template <typename T> static inline T hooked_load(const T *p) {
	released = false;
	unsigned i = 0;
	while (i < loads && loaded[i] != p)
		i++;
	if (i == remembered)
		abort(); /* a lane polls fewer words: each is remembered until a fence acquires it */
	loaded[i] = p;
	loads = i == loads ? loads + 1 : loads;
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

template <typename T> static inline void hooked_store(T *p, T v) {
	if (released)
		__atomic_store_n(p, v, __ATOMIC_RELEASE);
	else
		__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline void hooked_fence(int order) {
	if (order != __ATOMIC_RELEASE && !no_acquire)
		for (unsigned i = 0; i < loads; i++)
			__tsan_acquire((void *)loaded[i]);
	if (order != __ATOMIC_RELEASE)
		loads = 0;
	if (order != __ATOMIC_ACQUIRE)
		released = !no_release;
}

#define __scoped_atomic_load_n(p, order, scope) hooked_load(p)
#define __scoped_atomic_store_n(p, v, order, scope) hooked_store(p, v)
#define __atomic_thread_fence(order) hooked_fence(order)
#include "../engine.hip"
#undef __atomic_thread_fence

/* With LANEFS_SLOTS, commands are short and silent: lanes take batches of them by the fast path. */
#if defined(LANEFS_SLOTS)
enum { PAGES = 1, DW01 = 0 };
#else
enum { PAGES = 5, DW01 = 1 };
#endif
enum { RING = 16, ENTRIES = 8, CIDS = 7, LIST = 256, PAGE = 4096, BYTES = PAGES * PAGE };

struct cqe {
	uint32_t dw0, dw1;
	uint64_t high; /* DW2 and DW3: what is polled */
};

static struct {
	alignas(4096) uint64_t prp[CIDS][LIST / 8];
	alignas(4096) uint32_t sq[ENTRIES][16];
	alignas(64) cqe cq[ENTRIES];
	alignas(64) uint32_t sq_doorbell;
	alignas(64) uint32_t cq_doorbell;
	alignas(64) uint64_t work[RING][LANEFS_WORK_SLOT / 8];
	alignas(64) uint64_t results[RING][LANEFS_RESULT_SLOT / 8];
	alignas(64) lanefs_cid cids[CIDS];
	alignas(64) lanefs_control control;
	alignas(64) lanefs_status status;
	alignas(64) lanefs_counters counters;
	alignas(64) lanefs_lane lane;
} m;

static int stop;

template <typename T> static T acquired(const T *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

static void fail(const char *what, uint64_t a, uint64_t b) {
	fprintf(stderr, "lanes: %s: %#llx, %#llx\n", what, (unsigned long long)a, (unsigned long long)b);
	exit(3);
}

/* DW0 of a command's completion. */
static uint32_t answer_to(uint32_t cdw10) { return cdw10 * 2654435761u; }

static void *run_lane(void *) {
	const uint32_t dims[6] = {1, 1, 1, 1, 1, 1};
	/* Parks when idle for 10 µs or so, and is launched again: here that is a loop. */
	uint64_t word = 0, args[6] = {(uint64_t)&m.lane, 1, 20000, 2000000, (uint64_t)&word, 0};
	while (!acquired(&stop)) {
		args[5]++;
		lanefs_resident(dims, args);
	}
	return nullptr;
}

static void *run_controller(void *) {
	uint32_t head = 0, tail = 0, phase = 1;
	while (!acquired(&stop)) {
		if (head == acquired(&m.sq_doorbell) || (tail + 1) % ENTRIES == acquired(&m.cq_doorbell)) {
			sched_yield();
			continue;
		}
		const uint32_t *e = m.sq[head];
		uint32_t cid = e[0] >> 16;
		uint64_t prp1 = e[6] | (uint64_t)e[7] << 32, list = e[8] | (uint64_t)e[9] << 32;
		if (cid >= CIDS || list != (PAGES > 1 ? (uint64_t)m.prp[cid] : 0))
			fail("an entry's CID and PRP2", cid, list);
		for (int i = 1; i < PAGES; i++)
			if (m.prp[cid][i - 1] != prp1 + (uint64_t)i * PAGE)
				fail("a PRP list's entry", i, m.prp[cid][i - 1]);
		head = (head + 1) % ENTRIES;
		m.cq[tail].dw0 = DW01 ? answer_to(e[10]) : 0;
		m.cq[tail].dw1 = DW01 ? ~e[10] : 0;
		__atomic_store_n(&m.cq[tail].high, head | 1ull << 16 | (uint64_t)cid << 32 | (uint64_t)phase << 48, __ATOMIC_RELEASE);
		if (++tail == ENTRIES) {
			tail = 0;
			phase ^= 1;
		}
	}
	return nullptr;
}

int main(int argc, char **argv) {
	uint32_t total = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
	no_release = argc > 2 && strcmp(argv[2], "no-release") == 0;
	no_acquire = argc > 2 && strcmp(argv[2], "no-acquire") == 0;
	lanefs_lane *l = &m.lane;
	l->magic = LANEFS_MAGIC;
	l->version = LANEFS_VERSION;
	l->size = sizeof *l;
	l->sqid = 1;
	l->sq = (uint64_t)m.sq;
	l->cq = (uint64_t)m.cq;
	l->sq_doorbell = (uint64_t)&m.sq_doorbell;
	l->cq_doorbell = (uint64_t)&m.cq_doorbell;
	l->work = (uint64_t)m.work;
	l->results = (uint64_t)m.results;
	l->cids = (uint64_t)m.cids;
	l->prp = l->prp_iova = (uint64_t)m.prp;
	l->control = (uint64_t)&m.control;
	l->status = (uint64_t)&m.status;
	l->counters = (uint64_t)&m.counters;
	l->sq_size = l->cq_size = ENTRIES;
	l->ring_size = RING;
	l->cid_count = CIDS;
	l->prp_stride = LIST;
	l->page_size = PAGE;
	l->silent = DW01 ? 0 : ~0ull;
	const uint32_t dims[6] = {1, 1, 1, 1, 1, 1};
	const uint64_t args[2] = {(uint64_t)l, 1};
	lanefs_reset(dims, args);
	if (m.status.state != LANEFS_READY)
		fail("the lane was refused", m.status.state, m.status.failed);

	pthread_t lane, controller;
	pthread_create(&lane, nullptr, run_lane, nullptr);
	pthread_create(&controller, nullptr, run_controller, nullptr);
	uint32_t submitted = 0, answered = 0;
	while (answered < total) {
		for (; submitted < total && submitted - answered < RING; submitted++) {
			lanefs_work w = {};
			w.opcode = 2;
			w.tag = (uint16_t)submitted;
			w.nsid = 1;
			w.len = BYTES;
			w.iova = (uint64_t)(1 + submitted % 1000) * PAGE;
			w.cdw10 = submitted;
			uint32_t dwords[sizeof w / 4];
			memcpy(dwords, &w, sizeof w);
			uint64_t *s = m.work[submitted % RING];
			for (size_t i = 1; i < sizeof w / 4; i++)
				s[i] = (uint64_t)dwords[i] << 32 | (submitted + 1);
			__atomic_store_n((uint32_t *)s, submitted + 1, __ATOMIC_RELEASE);
		}
		const uint64_t *s = m.results[answered % RING];
		if (acquired((const uint32_t *)s) != answered + 1) {
			sched_yield();
			continue;
		}
		lanefs_result r;
		uint32_t dwords[sizeof r / 4] = {answered + 1};
		for (size_t i = 1; i < sizeof r / 4; i++) {
			if ((uint32_t)s[i] != answered + 1)
				fail("a result's word", i, s[i]);
			dwords[i] = (uint32_t)(s[i] >> 32);
		}
		memcpy(&r, dwords, sizeof r);
		/* One controller that works in order: so the results come in order. */
		if (r.engine != LANEFS_OK || r.tag != (uint16_t)answered || r.dw0 != (DW01 ? answer_to(answered) : 0) || r.dw1 != (DW01 ? ~answered : 0))
			fail("a result", answered, r.dw0);
		answered++;
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&m.control.command, (uint32_t)LANEFS_PARK, __ATOMIC_RELEASE);
	pthread_join(lane, nullptr);
	pthread_join(controller, nullptr);
	printf("%u commands, each answered once\n", answered);
	return 0;
}
