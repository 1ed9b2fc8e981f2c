/*
 * All executions of a lane with its queue pair and its two rings, for a few commands. The lane is the kernels' source as it is built for
 * a CPU. The CPU's side (slot.go, nvmeq/engine) and the controller are written here anew, as weakly ordered as they may be.
 *
 *     lane [-weaken PC,PC...] [-sites] [-most RUNS] [PROGRAM...]
 *
 * The programs are in the table at the end. -weaken takes the order from the accesses at these addresses; -sites lists those that have one.
 */
#include "checker.h"
#include "main.h"

/* The kernels' clock: each look at it takes a tick. */
static uint64_t tick();
#define __builtin_readcyclecounter() tick()
#ifndef ENGINE
#define ENGINE "../engine.hip"
#endif
#include ENGINE

enum { RING = 4, ENTRIES = 4, CIDS = 3, LIST = 64, PAGE = 4096, COMMANDS = 4 };

/* A lane's memory. Only kernels/layout.h says who may touch what. */
struct memory {
	alignas(4096) uint64_t prp[CIDS][LIST / 8];
	alignas(64) uint32_t sq[ENTRIES][16];
	alignas(64) uint64_t cq[ENTRIES][2];
	alignas(64) uint32_t sq_doorbell;
	alignas(64) uint32_t cq_doorbell;
	alignas(64) uint64_t work[RING][LANEFS_WORK_SLOT / 8];
	alignas(64) uint64_t results[RING][LANEFS_RESULT_SLOT / 8];
	alignas(64) lanefs_cid cids[CIDS];
	alignas(64) lanefs_control control;
	alignas(64) lanefs_status status;
	alignas(64) lanefs_counters counters;
	alignas(64) lanefs_lane lane;
	alignas(64) uint32_t ended; /* launches that it has left */
};

/* All that the threads share. */
enum { LANES = 2 };
static struct {
	memory lanes[LANES];
	alignas(64) uint32_t data[COMMANDS]; /* of the commands: the controller writes it, the CPU reads it */
	alignas(64) uint64_t word;           /* of the launches */
	uint32_t begun;                      /* launches */
	uint32_t stop;
	alignas(64) uint64_t ticks[4]; /* a clock for each thread */
} all;
static memory &m = all.lanes[0];

static uint64_t tick() { return ++all.ticks[model::self()]; }

/* What a program is about. */
struct shape {
	uint32_t commands = 0, ring = 0, entries = 0, cids = 0;
	uint32_t pages = 0;      /* of a command's data; three and more need a PRP list */
	bool silent = false;     /* completions have nothing in DW0 and DW1 */
	bool backwards = false;  /* the controller completes what it has fetched last first */
	bool data = false;       /* the CPU looks at the data */
	bool bad = false;        /* work that is answered without a command */
	bool cumulative = false; /* a release passes on what earlier loads have seen: see checker.h */
	uint64_t idle = 1;       /* turns without work after which a launch ends */
	uint32_t lanes = 1;      /* with the same work each */
};
static shape s;

static void setup_lane(memory &m) {
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
	l->sq_size = l->cq_size = s.entries;
	l->ring_size = s.ring;
	l->cid_count = s.cids;
	l->prp_stride = LIST;
	l->page_size = PAGE;
	l->silent = s.silent ? ~0ull : 0;
	reset(l);
	if (m.status.state != LANEFS_READY)
		model::fail("the lane was refused", m.status.state, m.status.failed);
}

static void setup() {
	for (memory &l : all.lanes)
		setup_lane(l);
}

template <typename T> static T acquired(const T *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

/* DW0 of a command's completion, and its data. */
static uint32_t answer_to(uint32_t cdw10) { return cdw10 * 2654435761u; }

/* ---- the CPU ---- */

/* kernels.WorkSlot.Put. There the last store is an exchange, sequentially consistent; a store that releases is enough but for kick. */
static void put(memory &m, uint32_t n, bool exchange = false) {
	lanefs_work w = {};
	w.opcode = 2;
	w.tag = (uint16_t)n;
	w.nsid = 1;
	w.len = s.pages * PAGE;
	w.iova = (uint64_t)(1 + n) * 16 * PAGE + (s.bad ? 1 : 0);
	w.cdw10 = n;
	uint32_t dwords[sizeof w / 4];
	__builtin_memcpy(dwords, &w, sizeof w);
	uint64_t *slot = m.work[n % s.ring];
	for (size_t i = 1; i < sizeof w / 4; i++)
		slot[i] = (uint64_t)dwords[i] << 32 | (n + 1);
	if (exchange)
		__atomic_exchange_n((uint32_t *)slot, n + 1, __ATOMIC_SEQ_CST);
	else
		__atomic_store_n((uint32_t *)slot, n + 1, __ATOMIC_RELEASE);
}

/* kernels.ResultSlot.Take. */
static bool take(memory &m, uint32_t n, lanefs_result *r) {
	const uint64_t *slot = m.results[n % s.ring];
	if (acquired((const uint32_t *)slot) != n + 1)
		return false;
	uint32_t dwords[sizeof *r / 4] = {n + 1};
	for (size_t i = 1; i < sizeof *r / 4; i++) {
		uint64_t w = acquired(slot + i);
		if ((uint32_t)w != n + 1)
			model::fail("a result's word", i, w);
		dwords[i] = (uint32_t)(w >> 32);
	}
	__builtin_memcpy(r, dwords, sizeof *r);
	return true;
}

/* What is known of the results that came. */
struct taken {
	uint32_t n, tags;
};

/* Takes the next result, if it is there, and holds it against its command. */
static bool take_next(memory &m, taken *t, bool may_be_dead = false) {
	lanefs_result r;
	if (!take(m, t->n, &r))
		return false;
	if (r.tag >= s.commands || (t->tags >> r.tag & 1))
		model::fail("a result of no command, or the second one of it", r.tag, t->tags);
	if (r.engine != (s.bad ? LANEFS_BAD_WORK : LANEFS_OK) && !(may_be_dead && r.engine == LANEFS_QUEUE_DEAD))
		model::fail("how a command fared", r.tag, r.engine);
	if (r.engine == LANEFS_OK) {
		if (!s.silent && (r.dw0 != answer_to(r.tag) || r.dw1 != ~(uint32_t)r.tag))
			model::fail("DW0 and DW1", r.tag, r.dw0);
		if (s.data && all.data[r.tag] != answer_to(r.tag))
			model::fail("the data of a command", r.tag, all.data[r.tag]);
	}
	t->tags |= 1u << r.tag;
	t->n++;
	return true;
}

static void cpu() {
	taken t = {};
	for (uint32_t submitted = 0; t.n < s.commands;) {
		model::turn();
		bool did = false;
		for (; submitted < s.commands && submitted - t.n < s.ring; submitted++, did = true)
			put(m, submitted);
		if (!take_next(m, &t) && !did)
			model::again();
	}
	__atomic_store_n(&all.stop, 1, __ATOMIC_RELEASE);
}

/* Gives the queue pair up while commands are on their way. */
static void cpu_fails() {
	for (uint32_t n = 0; n < s.commands; n++)
		put(m, n);
	__atomic_store_n(&m.control.command, (uint32_t)LANEFS_FAIL, __ATOMIC_RELEASE);
	taken t = {};
	while (t.n < s.commands) {
		model::turn();
		if (!take_next(m, &t, true))
			model::again();
	}
	__atomic_store_n(&all.stop, 1, __ATOMIC_RELEASE);
}

/* ---- the controller ---- */

/*
 * A controller, as NVMe has it: it reads entries that the doorbell covers, writes data, then DW0 and DW1, then the dword with the phase,
 * in that order, and no entry of the CQ that the other doorbell has not given back. Ends when the CPU has all results.
 */
static void controller() {
	uint32_t head = 0, tail = 0, phase = 1, n = 0, cids[CIDS], tags[CIDS], busy = 0;
	for (;;) {
		model::turn();
		bool did = false;
		uint32_t rung = acquired(&m.sq_doorbell);
		for (; head != rung; head = (head + 1) % s.entries, did = true) {
			const uint32_t *e = m.sq[head];
			uint32_t cid = e[0] >> 16, tag = e[10];
			uint64_t prp1 = e[6] | (uint64_t)e[7] << 32, prp2 = e[8] | (uint64_t)e[9] << 32;
			if (rung >= s.entries || cid >= s.cids || (busy >> cid & 1) || n == s.cids)
				model::fail("an SQE's CID", cid, busy);
			if ((e[0] & 0xffff) != 2 || e[1] != 1 || tag >= s.commands || prp1 != (uint64_t)(1 + tag) * 16 * PAGE)
				model::fail("an SQE", tag, prp1);
			if (s.pages > 2)
				for (uint32_t i = 1; i < s.pages; i++)
					if (prp2 != (uint64_t)m.prp[cid] || m.prp[cid][i - 1] != prp1 + (uint64_t)i * PAGE)
						model::fail("a PRP list", cid, m.prp[cid][i - 1]);
			busy |= 1u << cid;
			cids[n] = cid;
			tags[n++] = tag;
		}
		if (n != 0 && (tail + 1) % s.entries != acquired(&m.cq_doorbell)) {
			uint32_t i = s.backwards ? n - 1 : 0, cid = cids[i], tag = tags[i];
			for (n--; i < n; i++) {
				cids[i] = cids[i + 1];
				tags[i] = tags[i + 1];
			}
			busy &= ~(1u << cid);
			all.data[tag] = answer_to(tag);
			if (!s.silent)
				m.cq[tail][0] = answer_to(tag) | (uint64_t)~tag << 32;
			__atomic_store_n(&m.cq[tail][1], head | 1ull << 16 | (uint64_t)cid << 32 | (uint64_t)phase << 48, __ATOMIC_RELEASE);
			tail = (tail + 1) % s.entries;
			phase ^= tail == 0;
			did = true;
		}
		if (did)
			continue;
		if (acquired(&all.stop))
			return;
		model::again();
	}
}

/* ---- the lane ---- */

static void lane() {
	lanefs_lane *l = &m.lane;
	while (l->result_next != s.commands) {
		model::turn();
		uint64_t now = 0;
		uint32_t command;
		if (!step<single>(l, &now, 1, &command))
			model::again();
	}
	if (l->failed == LANEFS_OK && l->totals.completions != (s.bad ? 0 : s.commands))
		model::fail("completions", l->totals.completions, l->totals.spurious);
}

/* ---- lanes of a launch, and who wakes them ---- */

/* The thread of a lane's part of launches: each is one call of the kernel. They share the word, as waves of a launch do. */
template <int lane> static void launches() {
	memory &m = all.lanes[lane];
	const uint32_t dims[6] = {1, 1, 1, 1, 1, 1};
	for (uint32_t n = 0;;) {
		model::turn();
		if (acquired(&all.begun) == n) {
			if (acquired(&all.stop))
				return;
			model::again();
		}
		n++;
		const uint64_t args[6] = {(uint64_t)&m.lane, 1, s.idle, ~0ull, (uint64_t)&all.word, n};
		lanefs_resident(dims, args);
		__atomic_store_n(&m.ended, n, __ATOMIC_RELEASE);
	}
}

/* Stream.Done: whether the launch has ended. */
static bool launch_ended() {
	for (uint32_t i = 0; i < s.lanes; i++)
		if (acquired(&all.lanes[i].ended) != all.begun)
			return false;
	return true;
}

static void change_state(memory &m, uint32_t was, uint32_t state) {
	__atomic_compare_exchange_n(&m.status.state, &was, state, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* residentDriver.start: launches the kernel, if the launch that was has ended. */
static bool start() {
	if (!launch_ended())
		return false;
	for (uint32_t i = 0; i < s.lanes; i++) {
		change_state(all.lanes[i], LANEFS_PARKED, LANEFS_DOZING);
		change_state(all.lanes[i], LANEFS_READY, LANEFS_DOZING);
	}
	__atomic_store_n(&all.begun, all.begun + 1, __ATOMIC_RELEASE);
	return true;
}

/* What the CPU knows of a lane that it wakes. */
struct woken {
	taken t;
	uint32_t submitted;
	bool awake; /* RUNNING was read after the last submission: then it is not read again */
};

/* One look at a lane by who submits to it, as SPEC.md says. Returns whether there was anything. */
static bool wake(memory &m, woken *w) {
	bool did = take_next(m, &w->t);
	if (w->submitted < s.commands && w->submitted - w->t.n < s.ring) {
		put(m, w->submitted++, true);
		w->awake = false;
		did = true;
	}
	if (w->submitted == w->t.n || w->awake)
		return did;
	uint32_t state = __atomic_load_n(&m.status.state, __ATOMIC_SEQ_CST);
	if (state == LANEFS_RUNNING)
		return w->awake = true;
	return ((state == LANEFS_PARKED || state == LANEFS_READY) && start()) || did;
}

/* Wakes lanes until all their work is answered. */
static void wake_all(woken (&w)[LANES]) {
	for (bool left = true; left;) {
		model::turn();
		bool did = false;
		left = false;
		for (uint32_t i = 0; i < s.lanes; i++)
			if (w[i].t.n < s.commands) {
				left = true;
				did = wake(all.lanes[i], &w[i]) || did;
			}
		if (left && !did)
			model::again();
	}
	__atomic_store_n(&all.stop, 1, __ATOMIC_RELEASE);
}

static void cpu_wakes() {
	woken w[LANES] = {};
	wake_all(w);
}

/*
 * residentDriver.take and giveBack, with a reset in between: submits, launches, takes the lane out of the launch, resets it, gives it back,
 * and goes on until all work is answered.
 */
static void cpu_holds() {
	woken w[LANES] = {};
	put(m, w[0].submitted++, true);
	start();
	uint32_t number = __atomic_add_fetch(&m.control.command, LANEFS_HOLD, __ATOMIC_SEQ_CST) >> 8;
	for (;;) {
		model::turn();
		if (__atomic_load_n(&m.status.held, __ATOMIC_SEQ_CST) == number || launch_ended())
			break;
		model::again();
	}
	for (uint32_t was = LANEFS_RUNNING; was <= LANEFS_DOZING; was++)
		if (was != LANEFS_PARKED)
			change_state(m, was, LANEFS_PARKED);
	reset(&m.lane);
	__atomic_add_fetch(&m.control.command, LANEFS_HOLD, __ATOMIC_SEQ_CST);
	wake_all(w);
}

/* residentDriver.quiesced: has the launch end, looks at what is the lane's then, and goes on. */
static void cpu_parks() {
	woken w[LANES] = {};
	put(m, w[0].submitted++, true);
	start();
	__atomic_store_n(&m.control.command, (uint32_t)LANEFS_PARK, __ATOMIC_SEQ_CST);
	for (;;) {
		model::turn();
		if (launch_ended())
			break;
		model::again();
	}
	if (m.lane.work_next != m.lane.totals.rejected || m.lane.in_flight != 0)
		model::fail("a parked lane's own state", m.lane.work_next, m.lane.totals.rejected);
	__atomic_store_n(&m.control.command, (uint32_t)LANEFS_RUN, __ATOMIC_SEQ_CST);
	wake_all(w);
}

/* Lanes of one launch, and its word: each wakes, if the launch is open, and falls asleep again; one that never woke would close it. */
static launch launch_one() { return launch_of((uint64_t)&all.word, 1, 0, 1, ~0ull, LANES); }
template <int lane> static void sleeper() {
	launch l = launch_one();
	if (!change<single, WAKE>(&l)) {
		uint64_t word = word_now(&l, load_device(l.word));
		if ((word & launch_closed) != 0 || (word & launch_awake) == 0)
			model::fail("closed under a lane that is awake", word);
		change<single, DOZE>(&l);
	}
	__atomic_store_n(&all.lanes[lane].ended, 1, __ATOMIC_RELEASE);
}
static void sleeper_idle() {
	launch l = launch_one();
	bool closed = change<single, CLOSE_IDLE>(&l);
	uint64_t word = word_now(&l, load_device(l.word));
	if (closed && ((word & launch_closed) == 0 || (word & launch_awake) != 0))
		model::fail("open again", word);
	__atomic_store_n(&all.begun, 1, __ATOMIC_RELEASE);
}
static void sleepers_end() {
	model::turn();
	if (!acquired(&all.lanes[0].ended) || !acquired(&all.lanes[1].ended) || !acquired(&all.begun))
		model::again();
	launch l = launch_one();
	uint64_t word = load_device(l.word);
	if (word != (l.number | launch_closed))
		model::fail("the word in the end", word);
}

/* A reset answers what an earlier queue pair has left in flight, and another thread takes these results. */
static void setup_in_flight() {
	setup();
	for (uint32_t n = 0; n < s.commands; n++)
		put(m, n);
	uint64_t now = 0;
	uint32_t command;
	step<single>(&m.lane, &now, 1, &command);
	if (m.lane.in_flight != s.commands)
		model::fail("commands in flight", m.lane.in_flight);
}
static void resets() { reset(&m.lane); }
static void cpu_takes() {
	taken t = {};
	while (t.n < s.commands) {
		model::turn();
		if (!take_next(m, &t, true))
			model::again();
	}
}

/* ---- the programs ---- */

static const struct {
	model::program p;
	shape s;
} programs[] = {
	{{"one command", setup, {cpu, lane, controller}}, {.commands = 1, .ring = 1, .entries = 2, .cids = 1, .pages = 5, .data = true}},
	{{"queues that wrap", setup, {cpu, lane, controller}}, {.commands = 3, .ring = 2, .entries = 2, .cids = 1, .pages = 1, .data = true}},
	{{"two commands in flight", setup, {cpu, lane, controller}}, {.commands = 2, .ring = 2, .entries = 3, .cids = 2, .pages = 5, .data = true}},
	{{"two commands backwards", setup, {cpu, lane, controller}}, {.commands = 2, .ring = 2, .entries = 3, .cids = 2, .pages = 1, .backwards = true, .data = true}},
	{{"three commands in flight", setup, {cpu, lane, controller}}, {.commands = 3, .ring = 4, .entries = 4, .cids = 3, .pages = 1, .backwards = true, .data = true}},
	{{"a ring that wraps", setup, {cpu, lane, controller}}, {.commands = 3, .ring = 2, .entries = 3, .cids = 2, .pages = 1}},
	{{"four commands", setup, {cpu, lane, controller}}, {.commands = 4, .ring = 2, .entries = 3, .cids = 2, .pages = 1, .data = true}},
	{{"silent commands", setup, {cpu, lane, controller}}, {.commands = 3, .ring = 2, .entries = 3, .cids = 2, .pages = 1, .silent = true}},
	{{"silent commands' data", setup, {cpu, lane, controller}}, {.commands = 2, .ring = 2, .entries = 3, .cids = 2, .pages = 1, .silent = true, .data = true, .cumulative = true}},
	{{"bad work", setup, {cpu, lane}}, {.commands = 3, .ring = 2, .entries = 3, .cids = 2, .pages = 1, .bad = true}},
	{{"a queue pair given up", setup, {cpu_fails, lane, controller}}, {.commands = 2, .ring = 2, .entries = 3, .cids = 2, .pages = 1}},
	{{"reset", setup_in_flight, {resets, cpu_takes}}, {.commands = 2, .ring = 2, .entries = 3, .cids = 2, .pages = 1}},
	{{"wake", setup, {cpu_wakes, launches<0>}}, {.commands = 2, .ring = 2, .entries = 3, .cids = 2, .pages = 1, .bad = true}},
	{{"the last that falls asleep", setup, {sleeper<0>, sleeper<1>, sleeper_idle, sleepers_end}}, {.commands = 1, .ring = 1, .entries = 2, .cids = 1}},
	{{"hold", setup, {cpu_holds, launches<0>}}, {.commands = 2, .ring = 2, .entries = 3, .cids = 2, .pages = 1, .bad = true, .idle = 2}},
	{{"park", setup, {cpu_parks, launches<0>}}, {.commands = 2, .ring = 2, .entries = 3, .cids = 2, .pages = 1, .bad = true}},
};

int main(int argc, char **argv) {
	model::share(&all, sizeof all);
	harness h(argc, argv);
	for (const auto &a : programs)
		if (h.wants(a.p.name)) {
			s = a.s;
			h.run(a.p, a.s.cumulative);
		}
	return h.end();
}
