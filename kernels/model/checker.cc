/*
 * The model checker. The memory model is RC11 (Lahav, Vafeiadis, Kang, Hur, Dreyer: Repairing Sequential Consistency in C/C++11, PLDI
 * 2017): C11's with sequential consistency mended, and without executions in which a load depends on a later store of its own thread
 * (load buffering, values out of thin air). An execution is a graph of events, which are loads, stores and fences:
 *
 *     po   the order of a thread's events
 *     rf   which store each load reads
 *     co   the order of the stores to one location
 *     hb   what happens before: po, and a load that acquires comes after the store whose release it reads
 *
 * The search is TruSt (Kokologiannakis, Marmanis, Gladstein, Vafeiadis: Truly Stateless, Optimal Dynamic Partial Order Reduction, POPL
 * 2022): each execution is visited once. A graph grows event by event. A load that is added reads each of the stores that it may; a
 * store that is added also changes loads that are there already: such a load reads it, and what was added after the load and is not
 * among the causes of the store goes. Of the graphs that become the same by that only one does it, the one in which all that goes read
 * the latest store.
 *
 * Threads are coroutines. A graph is replayed from the beginning, in an order in which causes come first, so memory that is not atomic
 * has the right contents as long as nothing races; races are looked for with vector clocks on the way. One is an error.
 */
#include "checker.h"
#include "internal.h"

#include <algorithm>
#include <array>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <unordered_set>
#include <vector>

namespace model {

/* ---- events ---- */

enum { THREADS = 4, MOST = 400 }; /* MOST events of a thread */
enum { RELAXED, CONSUME, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST };
constexpr uint32_t INIT = 0; /* as a store: what the location had at first */

/* An event. Its id is 1 + thread * MOST + its place in the thread. */
struct event {
	access kind;
	uint8_t order, thread, size;
	uint16_t at, loc; /* place in the thread; number of the location */
	uint16_t rf, rank; /* a load's store; a store's place in co, from 1 on */
	uint64_t value;
	uintptr_t pc;
};
static uint32_t id_of(const event &e) { return 1 + e.thread * MOST + e.at; }

/* An execution so far, its events in the order in which they were added. */
struct graph {
	std::vector<event> e;
};

using vclock = std::array<uint16_t, THREADS>; /* of each thread, how many events */
static bool covers(const vclock &v, uint32_t thread, uint32_t at) { return v[thread] > at; }
static void join(vclock &v, const vclock &w) {
	for (int i = 0; i < THREADS; i++)
		v[i] = std::max(v[i], w[i]);
}

/* What a replay knows of an event: the clocks of hb, of po and rf together, and of who acquires from it. */
struct seen {
	vclock hb, causes, message;
	bool done;
};

/* ---- the run ---- */

enum status { READY, WAITS_FOR_STORE, ASKS, WAITING, ENDED };
struct thread {
	void (*f)();
	context c;
	status s;
	uint16_t done, turn; /* events that have happened; where the last turn began */
	request asks;
	vclock hb, causes, released, to_acquire;
	std::vector<uint32_t> in_graph; /* places in graph.e */
};

static thread threads[THREADS];
static int thread_count, running = -1;
static context scheduler;
static graph g;
static seen seen_of[1 + THREADS * MOST];
static options opt;
static bool wrong;
static char *why;
static size_t why_size;

/* Memory. */
static uint8_t *arena;
static size_t arena_size;
static std::vector<uint8_t> initial;
static std::vector<uint16_t> loc_of; /* by 4-byte unit: 1 + number of the location */
struct location { uint32_t offset; uint8_t size; uint64_t first; bool stored; };
static std::vector<location> locations;
static bool again_from_start; /* a location turned out to be atomic */

/* For races: when each thread last touched a unit. */
struct unit {
	uint64_t run;
	uint16_t last[4][THREADS]; /* by what: plain load, plain store, atomic load, atomic store; 0 never */
	uintptr_t pc[4][THREADS];
};
static std::vector<unit> units;
static uint64_t run_number;

static std::vector<uintptr_t> weak;
static std::vector<std::pair<uintptr_t, std::pair<access, int>>> sites;

static const char *kinds[] = {"load", "store", "exchange's load", "exchange's store", "fence"};

void share(void *memory, size_t bytes) {
	arena = (uint8_t *)memory;
	arena_size = bytes;
	loc_of.assign(bytes / 4 + 1, 0);
	units.assign(bytes / 4 + 1, unit{});
	locations.assign(1, location{});
}

void weaken(const uintptr_t *pcs, size_t n) { weak.assign(pcs, pcs + n); }

void each_site(void (*f)(uintptr_t, const char *, int)) {
	for (auto &s : sites)
		f(s.first, kinds[(int)s.second.first], s.second.second);
}

static int order_at(uintptr_t pc, access kind, int order) {
	if (order == RELAXED)
		return order;
	bool known = false;
	for (auto &s : sites)
		known = known || (s.first == pc && s.second.first == kind);
	if (!known)
		sites.push_back({pc, {kind, order}});
	return std::find(weak.begin(), weak.end(), pc) != weak.end() ? RELAXED : order;
}

static void explain(const char *format, ...) {
	if (wrong)
		return;
	wrong = true;
	va_list args;
	va_start(args, format);
	size_t n = (size_t)vsnprintf(why, why_size, format, args);
	va_end(args);
	for (int t = 0; t < thread_count && n < why_size; t++) {
		n += (size_t)snprintf(why + n, why_size - n, "\n  thread %d:", t);
		for (size_t i = 0; i < threads[t].in_graph.size() && n < why_size; i++) {
			const event &e = g.e[threads[t].in_graph[i]];
			const char *orders[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};
			if (e.kind == access::fence)
				n += (size_t)snprintf(why + n, why_size - n, "\n    %3u fence %s, at %#lx", e.at, orders[e.order], e.pc);
			else
				n += (size_t)snprintf(why + n, why_size - n, "\n    %3u %s %s +%#x %#llx%s, at %#lx", e.at, kinds[(int)e.kind], orders[e.order],
					locations[e.loc].offset, (unsigned long long)e.value, is_load(e.kind) && e.rf == INIT ? " (the first value)" : "", e.pc);
		}
	}
}

static void leave(status s) {
	threads[running].s = s;
	change(&threads[running].c, &scheduler);
}

void fail(const char *what, uint64_t a, uint64_t b) {
	explain("thread %d: %s: %#llx, %#llx", running, what, (unsigned long long)a, (unsigned long long)b);
	for (;;)
		leave(ENDED);
}

int self() { return running < 0 ? 0 : running; }

void turn() { threads[running].turn = threads[running].done; }

void again() {
	for (;;)
		leave(WAITING);
}

/* ---- races ---- */

enum { PLAIN_LOAD, PLAIN_STORE, ATOMIC_LOAD, ATOMIC_STORE };

/* The running thread touches memory; `clock` is the number of the event that shows others that it has. */
static void touch(uint32_t first, uint32_t end, int how, uint32_t clock, uintptr_t pc) {
	thread &me = threads[running];
	for (uint32_t i = first / 4; i <= (end - 1) / 4; i++) {
		unit &u = units[i];
		if (u.run != run_number) {
			memset(u.last, 0, sizeof u.last);
			u.run = run_number;
		}
		for (int t = 0; t < thread_count; t++) {
			if (t == running)
				continue;
			for (int other = 0; other < 4; other++) {
				bool stores = (how | other) & 1, plain = how < ATOMIC_LOAD || other < ATOMIC_LOAD;
				if (stores && plain && u.last[other][t] > me.hb[t])
					explain("data race at +%#x: thread %d (%s, at %#lx) and thread %d (%s, at %#lx)", i * 4, t, other < 2 ? "plain" : "atomic",
						u.pc[other][t], running, how < 2 ? "plain" : "atomic", pc);
			}
		}
		u.last[how][running] = (uint16_t)clock;
		u.pc[how][running] = pc;
	}
	if (wrong)
		for (;;)
			leave(ENDED);
}

bool is_shared(const void *p) { return running >= 0 && (size_t)((const uint8_t *)p - arena) < arena_size; }

void plain(const void *p, size_t size, bool store, uintptr_t pc) {
	if (!is_shared(p))
		return;
	uint32_t at = (uint32_t)((const uint8_t *)p - arena);
	if (store)
		for (uint32_t i = at / 4; i <= (at + size - 1) / 4; i++)
			if (loc_of[i] != 0 && locations[loc_of[i]].stored) {
				explain("plain store at +%#x, an atomic location, at %#lx: the checker cannot do that", at, pc);
				break;
			}
	touch(at, at + (uint32_t)size, store ? PLAIN_STORE : PLAIN_LOAD, threads[running].done + 1u, pc); /* the next one */
}

/* ---- replay ---- */

/* What happens to clocks and memory when an event of the running thread happens. */
static void happen(event &e) {
	thread &me = threads[e.thread];
	seen &s = seen_of[id_of(e)];
	bool acquires = e.order == ACQUIRE || e.order == CONSUME || e.order >= ACQ_REL, releases = e.order >= RELEASE;
	me.done++;
	me.hb[e.thread] = me.causes[e.thread] = me.done;
	if (is_load(e.kind)) {
		const seen &from = seen_of[e.rf];
		join(me.causes, from.causes);
		join(acquires ? me.hb : me.to_acquire, from.message);
	} else if (e.kind == access::fence) {
		if (acquires)
			join(me.hb, me.to_acquire);
		if (releases) {
			join(me.released, me.hb);
			if (opt.cumulative)
				join(me.released, me.to_acquire);
		}
	}
	s.hb = me.hb;
	s.causes = me.causes;
	s.message = {};
	if (is_store(e.kind)) {
		s.message = releases ? me.hb : me.released;
		if (e.kind == access::exchange_store)
			join(s.message, seen_of[g.e[me.in_graph[e.at - 1u]].rf].message); /* the release sequence goes on */
		memcpy(arena + locations[e.loc].offset, &e.value, e.size);
	}
	s.done = true;
}

static uint16_t rank_of(uint32_t store);
static event &event_of(uint32_t id) { return g.e[threads[(id - 1) / MOST].in_graph[(id - 1) % MOST]]; }
static uint16_t rank_of(uint32_t store) { return store == INIT ? 0 : event_of(store).rank; }

/* The earliest store to loc, by co, that an event after `hb` may read or follow. */
static uint16_t least_rank(uint16_t loc, const vclock &hb, const event *but = nullptr) {
	uint16_t least = 0;
	for (event &e : g.e)
		if (&e != but && e.loc == loc && e.kind != access::fence && covers(hb, e.thread, e.at))
			least = std::max(least, is_store(e.kind) ? e.rank : rank_of(e.rf));
	return least;
}

/* Called by the hooks: the running thread's next event. Returns what it loads. */
static uint64_t next_event(const request &r) {
	thread &me = threads[running];
	if (me.done == MOST) {
		explain("thread %d has more than %d events", running, MOST);
		for (;;)
			leave(ENDED);
	}
	if (me.done >= me.in_graph.size()) {
		me.asks = r;
		leave(ASKS);
	}
	event &e = g.e[me.in_graph[me.done]];
	if (e.kind != r.kind || e.loc != r.loc || e.order != r.order || (is_store(e.kind) && e.value != r.value)) {
		explain("thread %d does not do the same in each run, at %#lx and %#lx", running, e.pc, r.pc);
		for (;;)
			leave(ENDED);
	}
	while (is_load(e.kind) && e.rf != INIT && !seen_of[e.rf].done)
		leave(WAITS_FOR_STORE);
	if (e.kind == access::load || e.kind == access::exchange_load) /* the value of a revisited load */
		e.value = e.rf == INIT ? locations[e.loc].first : event_of(e.rf).value;
	happen(e);
	uint64_t v = e.value;
	if (e.kind != access::fence)
		touch(locations[e.loc].offset, locations[e.loc].offset + e.size, is_store(e.kind) ? ATOMIC_STORE : ATOMIC_LOAD, me.done, e.pc);
	return v;
}

static uint16_t location_at(const void *p, size_t size, bool stored) {
	uint32_t at = (uint32_t)((const uint8_t *)p - arena);
	uint16_t &l = loc_of[at / 4];
	if (l == 0) {
		location n = {at, (uint8_t)size, 0, false};
		memcpy(&n.first, &initial[at], size);
		l = (uint16_t)locations.size();
		locations.push_back(n);
		for (size_t i = at / 4; i < (at + size) / 4; i++)
			loc_of[i] = l;
	}
	if (locations[l].offset != at || locations[l].size != size)
		explain("atomic accesses of different sizes at +%#x", at);
	if (stored && !locations[l].stored) {
		locations[l].stored = true;
		again_from_start = true; /* loads of it were taken for plain ones */
	}
	return l;
}

uint64_t atomic_load(const void *p, size_t size, int order, uintptr_t pc, bool exchange) {
	uint16_t loc = location_at(p, size, exchange);
	if (!locations[loc].stored) { /* nobody stores to it by an atomic access, so this one races or reads what there is */
		plain(p, size, false, pc);
		uint64_t v = 0;
		memcpy(&v, p, size);
		return v;
	}
	access kind = exchange ? access::exchange_load : access::load;
	return next_event({kind, (uint8_t)order_at(pc, kind, order), (uint8_t)size, loc, 0, pc});
}

void atomic_store(void *p, size_t size, uint64_t v, int order, uintptr_t pc, bool exchange) {
	access kind = exchange ? access::exchange_store : access::store;
	next_event({kind, (uint8_t)order_at(pc, kind, order), (uint8_t)size, location_at(p, size, true), v, pc});
}

void atomic_fence(int order, uintptr_t pc) {
	if (running < 0)
		return;
	order = order_at(pc, access::fence, order);
	if (order != RELAXED)
		next_event({access::fence, (uint8_t)order, 0, 0, 0, pc});
}

/* ---- sequential consistency ---- */

/* A relation between the events of the graph, by their places in it. */
struct relation {
	size_t n, words;
	std::vector<uint64_t> bits;
	explicit relation(size_t size) : n(size), words((size + 63) / 64), bits(size * words) {}
	void add(size_t a, size_t b) { bits[a * words + b / 64] |= 1ull << b % 64; }
	bool has(size_t a, size_t b) const { return bits[a * words + b / 64] >> b % 64 & 1; }
	relation then(const relation &r) const {
		relation out(n);
		for (size_t a = 0; a < n; a++)
			for (size_t b = 0; b < n; b++)
				if (has(a, b))
					for (size_t w = 0; w < words; w++)
						out.bits[a * words + w] |= r.bits[b * words + w];
		return out;
	}
	void close() {
		for (size_t b = 0; b < n; b++)
			for (size_t a = 0; a < n; a++)
				if (has(a, b))
					for (size_t w = 0; w < words; w++)
						bits[a * words + w] |= bits[b * words + w];
	}
	void join(const relation &r) {
		for (size_t i = 0; i < bits.size(); i++)
			bits[i] |= r.bits[i];
	}
};

/* Whether the events that are sequentially consistent have an order: psc of RC11 has no cycle. */
static bool is_sequential() {
	/* What one thread alone touches adds nothing: po is there without it. */
	std::vector<uint8_t> by(locations.size());
	size_t count = 0;
	for (const event &e : g.e) {
		count += e.order == SEQ_CST;
		by[e.loc] |= (uint8_t)(1 << e.thread);
	}
	if (count < 2)
		return true;
	std::vector<event> of;
	for (const event &e : g.e)
		if (e.order == SEQ_CST || (e.kind != access::fence && (by[e.loc] & (by[e.loc] - 1)) != 0))
			of.push_back(e);
	size_t n = of.size();
	relation hb(n), eco(n), scb(n);
	for (size_t a = 0; a < n; a++)
		for (size_t b = 0; b < n; b++) {
			const event &x = of[a], &y = of[b];
			if (a == b)
				continue;
			bool po = x.thread == y.thread && x.at < y.at, same = x.loc == y.loc && x.kind != access::fence && y.kind != access::fence;
			if (covers(seen_of[id_of(y)].hb, x.thread, x.at) && !(x.thread == y.thread && !po))
				hb.add(a, b);
			if (po)
				scb.add(a, b);
			if (!same)
				continue;
			if (hb.has(a, b))
				scb.add(a, b);
			if (is_store(x.kind) && is_load(y.kind) && y.rf == id_of(x))
				eco.add(a, b);
			if (is_store(x.kind) && is_store(y.kind) && x.rank < y.rank)
				eco.add(a, b), scb.add(a, b);
			if (is_load(x.kind) && is_store(y.kind) && rank_of(x.rf) < y.rank && !(x.kind == access::exchange_load && y.thread == x.thread && y.at == x.at + 1))
				eco.add(a, b), scb.add(a, b);
			if (x.kind == access::exchange_load && y.kind == access::exchange_store && po && y.at == x.at + 1)
				eco.add(a, b);
		}
	/* scb: po over another location, then hb, then po over another location. */
	relation other(n);
	for (size_t a = 0; a < n; a++)
		for (size_t b = 0; b < n; b++)
			if (of[a].thread == of[b].thread && of[a].at < of[b].at && (of[a].loc != of[b].loc || of[a].kind == access::fence))
				other.add(a, b);
	scb.join(other.then(hb).then(other));
	eco.close();
	relation left(n), right(n), fences(n);
	for (size_t a = 0; a < n; a++) {
		bool sc = of[a].order == SEQ_CST, fence = sc && of[a].kind == access::fence;
		if (sc)
			left.add(a, a), right.add(a, a);
		for (size_t b = 0; b < n; b++) {
			bool to_fence = of[b].order == SEQ_CST && of[b].kind == access::fence;
			if (fence && hb.has(a, b))
				left.add(a, b);
			if (to_fence && hb.has(a, b))
				right.add(a, b);
		}
	}
	relation between = hb.then(eco).then(hb);
	between.join(hb);
	for (size_t a = 0; a < n; a++)
		for (size_t b = 0; b < n; b++)
			if (of[a].order == SEQ_CST && of[b].order == SEQ_CST && of[a].kind == access::fence && of[b].kind == access::fence && between.has(a, b))
				fences.add(a, b);
	relation psc = left.then(scb).then(right);
	psc.join(fences);
	psc.close();
	for (size_t a = 0; a < n; a++)
		if (psc.has(a, a))
			return false;
	return true;
}

/* ---- the search ---- */

static std::vector<graph> left;
static std::unordered_set<std::string> visited; /* by brute force */

/* Starts the threads from the beginning with the events of g. */
static void start() {
	run_number++;
	memcpy(arena, initial.data(), arena_size);
	for (auto &t : threads)
		t.in_graph.clear();
	for (size_t i = 0; i < g.e.size(); i++) {
		auto &in = threads[g.e[i].thread].in_graph;
		if (in.size() <= g.e[i].at)
			in.resize(g.e[i].at + 1u);
		in[g.e[i].at] = (uint32_t)i;
		seen_of[id_of(g.e[i])].done = false;
	}
	for (int i = 0; i < thread_count; i++) {
		thread &t = threads[i];
		t.hb = t.causes = t.released = t.to_acquire = {};
		t.done = t.turn = 0;
		t.s = READY;
		prepare(&t.c, i);
	}
}

static void resume(int i) {
	running = i;
	change(&scheduler, &threads[i].c);
	running = -1;
}

void run_thread() {
	threads[running].f();
	for (;;)
		leave(ENDED);
}

/* Lets all threads run until each asks for an event that is not in g, or cannot go on. */
static void replay() {
	for (bool progress = true; progress && !wrong && !again_from_start;) {
		progress = false;
		for (int i = 0; i < thread_count && !wrong && !again_from_start; i++) {
			thread &t = threads[i];
			if (t.s == WAITS_FOR_STORE) {
				uint32_t rf = g.e[t.in_graph[t.done]].rf;
				if (!seen_of[rf].done)
					continue;
				t.s = READY;
			}
			if (t.s == READY) {
				resume(i);
				progress = true;
			}
		}
	}
}

/* Whether the graph is one that the model has: for what a revisit has made, before anything runs. */
static bool is_consistent() {
	start();
	for (bool progress = true; progress;) {
		progress = false;
		for (auto &t : threads)
			while (t.done < t.in_graph.size()) {
				event &e = g.e[t.in_graph[t.done]];
				if (is_load(e.kind) && e.rf != INIT && !seen_of[e.rf].done)
					break;
				happen(e);
				progress = true;
			}
	}
	for (event &e : g.e) {
		if (e.kind == access::fence)
			continue;
		vclock hb = seen_of[id_of(e)].hb;
		if (hb[e.thread] > e.at)
			hb[e.thread] = e.at; /* without itself */
		uint16_t least = least_rank(e.loc, hb, &e);
		if (is_store(e.kind) ? e.rank <= least : rank_of(e.rf) < least)
			return false;
	}
	return is_sequential();
}

/* Whether a store at this rank of loc comes between an exchange's load and its store. rank - 1 is what it follows. */
static bool splits(const graph &in, uint16_t loc, uint16_t rank) {
	for (size_t i = 0; i < in.e.size(); i++) {
		const event &e = in.e[i];
		if (e.kind == access::exchange_store && e.loc == loc && e.rank == rank)
			return true; /* it follows what its load has read */
	}
	return false;
}

static void insert_rank(graph &in, uint16_t loc, uint16_t rank) {
	for (event &e : in.e)
		if (is_store(e.kind) && e.loc == loc && e.rank >= rank)
			e.rank++;
}

static uint16_t stores_to(const graph &in, uint16_t loc) {
	uint16_t n = 0;
	for (const event &e : in.e)
		n = (uint16_t)(n + (is_store(e.kind) && e.loc == loc));
	return n;
}

static event event_for(int t) {
	const request &r = threads[t].asks;
	event e = {};
	e.kind = r.kind;
	e.order = r.order;
	e.thread = (uint8_t)t;
	e.size = r.size;
	e.at = threads[t].done;
	e.loc = r.loc;
	e.value = r.value;
	e.pc = r.pc;
	return e;
}

/*
 * Whether e, to be removed because the new store a (with causes) changes a load, was added when it had nothing but the latest to read
 * or to follow. Only then is it removed: the same graph with others in its place is visited, too.
 */
static bool is_latest(size_t i, const vclock &causes) {
	const event &e = g.e[i];
	if (e.kind == access::fence)
		return true;
	auto previous = [&](size_t j) { return j <= i || covers(causes, g.e[j].thread, g.e[j].at); };
	uint32_t store = is_load(e.kind) ? e.rf : id_of(e);
	uint16_t rank = rank_of(store);
	bool found = store == INIT;
	for (size_t j = 0; j < g.e.size(); j++) {
		if (!previous(j))
			continue;
		const event &o = g.e[j];
		if (is_store(e.kind) && is_load(o.kind) && o.rf == store)
			return false;
		if (is_store(o.kind) && o.loc == e.loc && o.rank > rank)
			return false;
		found = found || id_of(o) == store;
	}
	return found;
}

/* Puts the graphs on the list in which loads that are there read the new store of thread t. */
static void revisit(const event &a) {
	thread &me = threads[a.thread];
	vclock causes = me.causes;
	for (size_t i = 0; i < g.e.size(); i++) {
		const event &r = g.e[i];
		if (!is_load(r.kind) || r.loc != a.loc || covers(causes, r.thread, r.at))
			continue;
		bool all = true;
		std::vector<bool> goes(g.e.size());
		for (size_t j = i; j < g.e.size() && all; j++)
			if (j == i || !covers(causes, g.e[j].thread, g.e[j].at)) {
				goes[j] = j != i;
				all = is_latest(j, causes);
			}
		if (!all)
			continue;
		graph next;
		std::vector<uint16_t> ranks;
		for (size_t j = 0; j < g.e.size(); j++)
			if (!goes[j])
				next.e.push_back(g.e[j]);
		/* The ranks close up. */
		for (event &e : next.e) {
			if (!is_store(e.kind))
				continue;
			uint16_t below = 0;
			for (size_t j = 0; j < g.e.size(); j++)
				below = (uint16_t)(below + (!goes[j] && is_store(g.e[j].kind) && g.e[j].loc == e.loc && g.e[j].rank < event_of(id_of(e)).rank));
			ranks.push_back((uint16_t)(below + 1));
		}
		size_t k = 0;
		for (event &e : next.e)
			if (is_store(e.kind))
				e.rank = ranks[k++];
		uint16_t n = stores_to(next, a.loc), least = 0, must = 0;
		for (const event &e : next.e)
			if (e.loc == a.loc && e.kind != access::fence && covers(causes, e.thread, e.at)) {
				uint16_t rank = 0;
				uint32_t store = is_store(e.kind) ? id_of(e) : e.rf;
				for (const event &o : next.e)
					if (is_store(o.kind) && id_of(o) == store)
						rank = o.rank;
				if (covers(me.hb, e.thread, e.at))
					least = std::max(least, rank);
				if (a.kind == access::exchange_store && e.thread == a.thread && e.at + 1 == a.at)
					must = (uint16_t)(rank + 1);
			}
		for (uint16_t rank = (uint16_t)(least + 1); rank <= n + 1; rank++) {
			if ((must != 0 && rank != must) || splits(next, a.loc, rank))
				continue;
			graph placed = next;
			insert_rank(placed, a.loc, rank);
			event store = a;
			store.rank = rank;
			placed.e.push_back(store);
			for (event &e : placed.e)
				if (id_of(e) == id_of(r)) {
					e.rf = (uint16_t)id_of(a);
					e.value = a.value;
				}
			left.push_back(placed);
		}
	}
}

/* The graph as a string, for brute force: the same for the same events whatever the order in which they were added. */
static std::string picture(const graph &in) {
	std::string s;
	for (int t = 0; t < thread_count; t++) {
		for (uint32_t at = 0;; at++) {
			const event *e = nullptr;
			for (const event &o : in.e)
				if (o.thread == t && o.at == at)
					e = &o;
			if (!e)
				break;
			char b[64];
			s.append(b, (size_t)snprintf(b, sizeof b, "%d,%d,%d,%d;", (int)e->kind, e->loc, e->rf, is_store(e->kind) ? e->rank : 0));
		}
		s += '|';
	}
	return s;
}

/* Adds e, which may be a load with its rf or a store with its rank, and returns the thread's place for it. */
static void add(const event &e) {
	if (is_store(e.kind))
		insert_rank(g, e.loc, e.rank);
	threads[e.thread].in_graph.push_back((uint32_t)g.e.size());
	seen_of[id_of(e)].done = false;
	g.e.push_back(e);
}

/* The ways to add thread t's next event to g. The latest store comes first. */
static std::vector<event> ways(int t) {
	std::vector<event> out;
	event e = event_for(t);
	thread &me = threads[t];
	if (e.kind == access::fence)
		return {e};
	uint16_t n = stores_to(g, e.loc), least = least_rank(e.loc, me.hb);
	if (is_load(e.kind)) {
		for (int rank = n; rank >= least; rank--) {
			e.rf = INIT;
			for (const event &o : g.e)
				if (is_store(o.kind) && o.loc == e.loc && o.rank == rank)
					e.rf = (uint16_t)id_of(o);
			e.value = e.rf == INIT ? locations[e.loc].first : event_of(e.rf).value;
			out.push_back(e);
		}
		return out;
	}
	uint16_t must = e.kind == access::exchange_store ? (uint16_t)(rank_of(g.e[me.in_graph[e.at - 1u]].rf) + 1) : 0;
	for (int rank = n + 1; rank > least; rank--) {
		if ((must != 0 && rank != must) || splits(g, e.loc, (uint16_t)rank))
			continue;
		e.rank = (uint16_t)rank;
		out.push_back(e);
	}
	return out;
}

/* Whether e, to be added, is the last of its location: then nothing follows it, and it is in no cycle. */
static bool is_last(const event &e) {
	return e.kind == access::fence || (is_load(e.kind) ? rank_of(e.rf) : e.rank - 1) == stores_to(g, e.loc);
}

/* The clocks as they are once e has happened; is_sequential needs them before the thread goes on. */
static bool fits(event e) {
	if (std::none_of(g.e.begin(), g.e.end(), [](const event &o) { return o.order == SEQ_CST; }))
		return true;
	thread saved = threads[e.thread];
	graph before = g;
	add(e);
	seen s = seen_of[id_of(e)];
	uint8_t bytes[8];
	uint8_t *p = arena + locations[e.loc].offset;
	memcpy(bytes, p, e.size);
	happen(g.e.back());
	bool ok = is_sequential();
	memcpy(p, bytes, e.size);
	seen_of[id_of(e)] = s;
	threads[e.thread].done = saved.done;
	threads[e.thread].hb = saved.hb;
	threads[e.thread].causes = saved.causes;
	threads[e.thread].released = saved.released;
	threads[e.thread].to_acquire = saved.to_acquire;
	threads[e.thread].in_graph = saved.in_graph;
	g = before;
	return ok;
}

/* Whether the store e changes nothing: there is what it stores. */
static bool repeats(const event &e) {
	for (const event &o : g.e)
		if (is_store(o.kind) && o.loc == e.loc && o.rank + 1 == e.rank)
			return o.value == e.value;
	return e.rank == 1 && locations[e.loc].first == e.value;
}

/* All threads have ended or wait. */
static void finish(counts *n) {
	bool waits = false, stuck = true;
	for (int i = 0; i < thread_count; i++) {
		thread &t = threads[i];
		if (t.s != WAITING)
			continue;
		waits = true;
		for (size_t k = t.turn; k < t.in_graph.size(); k++) {
			const event &e = g.e[t.in_graph[k]];
			if (is_store(e.kind) && repeats(e))
				continue;
			if (is_store(e.kind))
				explain("thread %d stores in a turn that changes nothing, at %#lx", i, e.pc);
			if (is_load(e.kind) && rank_of(e.rf) != stores_to(g, e.loc))
				stuck = false;
		}
	}
	if (waits && stuck)
		explain("nobody goes on");
	(waits ? n->waiting : n->whole)++;
}

/* Visits g and all that grows out of it but for what is put on the list. */
static void visit(counts *n, bool revisited) {
	if (revisited && !is_consistent())
		return;
	n->runs++;
	start();
	replay();
	if (wrong || again_from_start)
		return;
	for (;;) {
		int t = 0;
		while (t < thread_count && threads[t].s != ASKS)
			t++;
		if (t == thread_count) {
			finish(n);
			return;
		}
		if (opt.exhaustive)
			for (int other = t; other < thread_count; other++) {
				if (threads[other].s != ASKS)
					continue;
				for (event &e : ways(other)) {
					if (!is_last(e) && !fits(e))
						continue;
					graph next = g;
					if (is_store(e.kind))
						insert_rank(next, e.loc, e.rank);
					next.e.push_back(e);
					if (visited.insert(picture(next)).second)
						left.push_back(next);
				}
			}
		if (opt.exhaustive)
			return;
		std::vector<event> all = ways(t);
		bool first = true;
		event chosen = {};
		for (event &e : all) {
			if (!is_last(e) && !fits(e))
				continue;
			if (first) {
				chosen = e;
				first = false;
				continue;
			}
			graph next = g;
			if (is_store(e.kind))
				insert_rank(next, e.loc, e.rank);
			next.e.push_back(e);
			left.push_back(next);
		}
		event asked = event_for(t);
		if (is_store(asked.kind))
			revisit(asked);
		if (first)
			return; /* an exchange that another one has come before */
		add(chosen);
		threads[t].s = READY;
		replay();
		if (wrong || again_from_start)
			return;
	}
}

bool check(const program &p, const options &o, counts *n, char *what, size_t size) {
	opt = o;
	why = what;
	why_size = size;
	wrong = false;
	what[0] = 0;
	memset(arena, 0, arena_size);
	p.setup();
	initial.assign(arena, arena + arena_size);
	thread_count = 0;
	for (auto f : p.threads)
		if (f)
			threads[thread_count++].f = f;
	for (auto &l : loc_of)
		l = 0;
	locations.assign(1, location{});
	do {
		again_from_start = false;
		*n = {};
		left.assign(1, graph{});
		visited.clear();
		bool first = true;
		while (!left.empty() && !wrong && !again_from_start) {
			g = std::move(left.back());
			left.pop_back();
			visit(n, !first);
			first = false;
			if (o.most_runs != 0 && n->runs == o.most_runs && !left.empty()) {
				snprintf(what, size, "more than %llu runs", (unsigned long long)n->runs);
				return false;
			}
		}
	} while (again_from_start && !wrong);
	return !wrong;
}

} // namespace model
