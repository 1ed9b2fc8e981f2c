/*
 * The lanes' kernels, as built for a CPU, under ThreadSanitizer: a lane, its controller and the CPU that feeds it on three
 * threads, over small rings and queues that wrap all the time. The three share only what kernels/layout.h
 * describes, so a report is a missing or misplaced fence. tsan_test.go builds and runs it.
 *
 *     lanes COMMANDS [no-release | no-acquire | no-meeting]
 *     lanes together | apart
 *
 * ThreadSanitizer does not know fences, so the kernels' fences are translated: stores after a release fence, up to the next
 * load, are stores with release; an acquire fence acquires what the loads before it have seen. The second argument leaves
 * one of the two out, or has the threads of a wave (-DLANEFS_WAVE=16, wave.h) not meet: then there must be a report.
 *
 * The second form is one step that finds a CID completed twice, in one batch of completions or in two.
 */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" void __tsan_acquire(void *);

static bool no_release, no_acquire;

#if defined(LANEFS_WAVE)
#include "wave.h"
#endif

constexpr int remembered = 64;
struct fences {
	const void *loaded[remembered];
	unsigned loads;
	bool released;
};

/* The calling thread's. */
static inline fences *mine() {
#if defined(LANEFS_WAVE)
	static fences all[LANEFS_WAVE];
	return &all[lanefs::wave_self()];
#else
	static thread_local fences own;
	return &own;
#endif
}

template <typename T> static inline T hooked_load(const T *p) {
	fences *f = mine();
	f->released = false;
	unsigned i = 0;
	while (i < f->loads && f->loaded[i] != p)
		i++;
	if (i == remembered)
		abort(); /* a lane polls fewer words: each is remembered until a fence acquires it */
	f->loaded[i] = p;
	f->loads = i == f->loads ? f->loads + 1 : f->loads;
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

template <typename T> static inline void hooked_store(T *p, T v) {
	if (mine()->released)
		__atomic_store_n(p, v, __ATOMIC_RELEASE);
	else
		__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline void hooked_fence(int order) {
	fences *f = mine();
	if (order != __ATOMIC_RELEASE && !no_acquire)
		for (unsigned i = 0; i < f->loads; i++)
			__tsan_acquire((void *)f->loaded[i]);
	if (order != __ATOMIC_RELEASE)
		f->loads = 0;
	if (order != __ATOMIC_ACQUIRE)
		f->released = !no_release;
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
#if defined(LANEFS_WAVE)
enum { RING = 64, ENTRIES = 48, BATCH = LANEFS_WAVE };
#elif defined(LANEFS_SLOTS)
enum { RING = 16, ENTRIES = 8, BATCH = LANEFS_SLOTS };
#else
enum { RING = 16, ENTRIES = 8, BATCH = 1 };
#endif
enum { CIDS = ENTRIES - 1, LIST = 256, PAGE = 4096, BYTES = PAGES * PAGE };

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

/* Launches, each of one team. */
static const uint64_t lane_at = (uint64_t)&m.lane;
static uint64_t word, launches;
#if defined(LANEFS_WAVE)
static void resident() {
	launches++;
	on_cpu::run([](uint32_t i) { resident_team<wave>(i, LANEFS_WAVE, lane_at, 1, 2000000, 200000000, (uint64_t)&word, launches); });
}
static void one_step() {
	on_cpu::run([](uint32_t i) { step_team<wave>(i, LANEFS_WAVE, lane_at, 1, 1); });
}
#else
static const uint32_t dims[6] = {1, 1, 1, 1, 1, 1};
static void resident() {
	uint64_t args[6] = {lane_at, 1, 20000, 2000000, (uint64_t)&word, ++launches};
	lanefs_resident(dims, args);
}
static void one_step() {
	const uint64_t args[3] = {lane_at, 1, 1};
	lanefs_step(dims, args);
}
#endif

/* Takes the lane out of the launch that runs, or the next, uses it as lanefs_reset does, and gives it back. */
static void hold() {
	uint32_t number = __atomic_add_fetch(&m.control.command, (uint32_t)LANEFS_HOLD, __ATOMIC_RELEASE) / LANEFS_HOLD;
	while (acquired(&m.status.held) != number)
		sched_yield();
	/* The lane itself is read only: a launch that begins meanwhile copies it, and reads it anew before it uses what the CPU may change. */
	if (*(volatile uint32_t *)&m.lane.work_next != m.lane.result_next + m.lane.in_flight)
		fail("a held lane's positions", m.lane.work_next, m.lane.result_next);
	for (lanefs_cid &c : m.cids)
		if (c.state == LANEFS_CID_FREE)
			c.deadline = 0;
	__atomic_add_fetch(&m.control.command, (uint32_t)LANEFS_HOLD, __ATOMIC_RELEASE);
}

/* Parks when idle for 10 µs or so, and is launched again: here that is a loop. */
static void *run_lane(void *) {
	while (!acquired(&stop))
		resident();
	return nullptr;
}

static void submit(uint32_t position) {
	lanefs_work w = {};
	w.opcode = 2;
	w.tag = (uint16_t)position;
	w.nsid = 1;
	w.len = BYTES;
	w.iova = (uint64_t)(1 + position % 1000) * PAGE;
	w.cdw10 = position;
	uint32_t dwords[sizeof w / 4];
	memcpy(dwords, &w, sizeof w);
	uint64_t *s = m.work[position % RING];
	for (size_t i = 1; i < sizeof w / 4; i++)
		__atomic_store_n(&s[i], (uint64_t)dwords[i] << 32 | (position + 1), __ATOMIC_RELAXED); /* a wave looks at words that may come later */
	__atomic_store_n((uint32_t *)s, position + 1, __ATOMIC_RELEASE);
}

/* The result at a position, if it is there. */
static bool take(uint32_t position, lanefs_result *r) {
	const uint64_t *s = m.results[position % RING];
	if (acquired((const uint32_t *)s) != position + 1)
		return false;
	uint32_t dwords[sizeof *r / 4] = {position + 1};
	for (size_t i = 1; i < sizeof *r / 4; i++) {
		if ((uint32_t)s[i] != position + 1)
			fail("a result's word", i, s[i]);
		dwords[i] = (uint32_t)(s[i] >> 32);
	}
	memcpy(r, dwords, sizeof *r);
	return true;
}

static void complete(uint32_t entry, uint32_t cid) {
	__atomic_store_n(&m.cq[entry].high, 1ull << 16 | (uint64_t)cid << 32 | 1ull << 48, __ATOMIC_RELEASE);
}

/*
 * A step that finds the first command completed a second time, after `good` completions. Those count; the second, and whatever comes after it,
 * does not, and all other commands are answered with the reason.
 */
static void completed_twice(uint32_t good) {
	constexpr uint32_t n = BATCH + 3;
	for (uint32_t i = 0; i < n; i++)
		submit(i);
	for (int i = 0; i < 10; i++)
		one_step();
	if (m.sq_doorbell != n)
		fail("entries posted", m.sq_doorbell, n);
	for (uint32_t i = 0; i < good; i++)
		complete(i, m.sq[i][0] >> 16);
	uint32_t first = m.sq[0][0] >> 16;
	complete(good, first);
	complete(good + 1, m.sq[good][0] >> 16);
	one_step();
	lanefs_result r;
	for (uint32_t i = 0; i < n; i++) {
		if (!take(i, &r))
			fail("results", i, n);
		if (r.engine != (i < good ? LANEFS_OK : LANEFS_BAD_CQE) || r.tag != i)
			fail("a result's engine and tag", r.engine, r.tag);
	}
	if (take(n, &r))
		fail("a result of no command", r.engine, r.tag);
	if (m.counters.completions != good + 1 || m.counters.spurious != 1 || m.status.bad_cid != (first | 1u << 16) || m.status.in_flight != 0)
		fail("completions and the bad CID", m.counters.completions, m.status.bad_cid);
	printf("each command was answered once\n");
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
#if defined(LANEFS_WAVE)
	on_cpu::never_meets = argc > 2 && strcmp(argv[2], "no-meeting") == 0;
#endif
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
	reset(l);
	if (m.status.state != LANEFS_READY)
		fail("the lane was refused", m.status.state, m.status.failed);

	if (argc > 1 && total == 0) {
		completed_twice(strcmp(argv[1], "together") == 0 ? 2 : BATCH + 1); /* another thread of the wave finds it than the first */
		return 0;
	}
	pthread_t lane, controller;
	pthread_create(&lane, nullptr, run_lane, nullptr);
	pthread_create(&controller, nullptr, run_controller, nullptr);
	uint32_t submitted = 0, answered = 0;
	while (answered < total) {
		for (; submitted < total && submitted - answered < RING; submitted++)
			submit(submitted);
		lanefs_result r;
		if (!take(answered, &r)) {
			sched_yield();
			continue;
		}
		/* One controller that works in order: so the results come in order. */
		if (r.engine != LANEFS_OK || r.tag != (uint16_t)answered || r.dw0 != (DW01 ? answer_to(answered) : 0) || r.dw1 != (DW01 ? ~answered : 0))
			fail("a result", answered, r.dw0);
		if (++answered % 50 == 0)
			hold();
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&m.control.command, (uint32_t)LANEFS_PARK, __ATOMIC_RELEASE);
	pthread_join(lane, nullptr);
	pthread_join(controller, nullptr);
	printf("%u commands, each answered once\n", answered);
	return 0;
}
