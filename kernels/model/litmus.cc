/*
 * The checker, checked: small programs whose executions are known, each searched twice, by the checker and by brute force, which
 * must find as many; and programs with a mistake, which must be found.
 */
#include "checker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
	alignas(16) uint32_t x, y, z, plain[4];
} m;
uint32_t got[8]; /* not static: else nobody reads it, and the compiler leaves loads out */

template <int order> static uint32_t get(uint32_t *p) { return __atomic_load_n(p, order); }
template <int order> static void put(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, order); }
#define RLX __ATOMIC_RELAXED
#define ACQ __ATOMIC_ACQUIRE
#define REL __ATOMIC_RELEASE
#define SC __ATOMIC_SEQ_CST

static void nothing() {}

/* Store buffering. */
template <int order> static void sb0() { put<order>(&m.x, 1); got[0] = get<order>(&m.y); }
template <int order> static void sb1() { put<order>(&m.y, 1); got[1] = get<order>(&m.x); }
static void sbf0() { put<RLX>(&m.x, 1); __atomic_thread_fence(SC); got[0] = get<RLX>(&m.y); }
static void sbf1() { put<RLX>(&m.y, 1); __atomic_thread_fence(SC); got[1] = get<RLX>(&m.x); }
/* Two stores each. */
static void ww0() { put<RLX>(&m.x, 1); put<RLX>(&m.y, 2); }
static void ww1() { put<RLX>(&m.y, 1); put<RLX>(&m.x, 2); }
/* Coherence: two loads of one location, two stores. */
static void co0() { put<RLX>(&m.x, 1); put<RLX>(&m.x, 2); }
static void co1() { got[0] = get<RLX>(&m.x); got[1] = get<RLX>(&m.x); }
/* Independent reads of independent writes. */
template <int order> static void iriw0() { put<order>(&m.x, 1); }
template <int order> static void iriw1() { put<order>(&m.y, 1); }
template <int order> static void iriw2() { got[0] = get<order>(&m.x); got[1] = get<order>(&m.y); }
template <int order> static void iriw3() { got[2] = get<order>(&m.y); got[3] = get<order>(&m.x); }
/* Load buffering: no load reads a later store of a thread that depends on it. */
static void lb0() { got[0] = get<RLX>(&m.x); put<RLX>(&m.y, 1); }
static void lb1() { got[1] = get<RLX>(&m.y); put<RLX>(&m.x, 1); }
/* Exchanges. */
static void add() { __atomic_fetch_add(&m.x, 1, RLX); }
static void add_sc() { __atomic_fetch_add(&m.x, 1, SC); }
static void swap() {
	uint32_t zero = 0;
	if (!__atomic_compare_exchange_n(&m.x, &zero, 1, false, RLX, RLX))
		put<RLX>(&m.y, 1);
}
static void mixed() { put<RLX>(&m.x, 7); got[0] = get<RLX>(&m.x); }
/* A message, by a flag. */
static void mp0() { m.plain[0] = 7; put<REL>(&m.x, 1); }
static void mp1() { if (get<ACQ>(&m.x)) got[0] = m.plain[0]; }
static void mpf0() { m.plain[0] = 7; __atomic_thread_fence(REL); put<RLX>(&m.x, 1); }
static void mpf1() { if (get<RLX>(&m.x)) { __atomic_thread_fence(ACQ); if (m.plain[0] != 7) model::fail("the message"); } }
static void mp0_wrong() { m.plain[0] = 7; put<RLX>(&m.x, 1); }
static void mp1_wrong() { if (get<RLX>(&m.x)) got[0] = m.plain[0]; }
static void mp2() { __atomic_fetch_add(&m.x, 1, RLX); } /* keeps the release sequence */
static void mp3() { if (get<ACQ>(&m.x) == 2 && get<RLX>(&m.y) == 0) got[0] = m.plain[0]; }
static void mp4() { put<RLX>(&m.x, 2); } /* ends it */
/* Waiting. */
static void wait1() {
	for (;;) {
		model::turn();
		if (get<ACQ>(&m.x) == 1)
			break;
		model::again();
	}
	got[0] = m.plain[0];
}
static void wait2() {
	for (;;) {
		model::turn();
		if (get<ACQ>(&m.x) == 2)
			break;
		model::again();
	}
}
/* Who sleeps and who wakes: one of the two sees the other, with fences. */
static void sleep_fence() {
	put<RLX>(&m.x, 1);
	__atomic_thread_fence(SC);
	if (get<RLX>(&m.y) == 0)
		for (;;) {
			model::turn();
			if (get<RLX>(&m.z) == 1)
				return;
			model::again();
		}
}
static void wake_fence() {
	put<RLX>(&m.y, 1);
	__atomic_thread_fence(SC);
	if (get<RLX>(&m.x) == 1)
		put<RLX>(&m.z, 1);
}
static void wake_wrong() {
	put<RLX>(&m.y, 1);
	__atomic_thread_fence(__ATOMIC_ACQ_REL);
	if (get<RLX>(&m.x) == 1)
		put<RLX>(&m.z, 1);
}

/* A random program of three threads: each does some of these at random. */
static uint32_t code[4][4];
static void act(uint32_t c) {
	uint32_t *p = c / 16 % 2 ? &m.y : &m.x, v = c % 251 + 1;
	switch (c % 16) {
	case 0: case 1: case 2: put<RLX>(p, v); break;
	case 3: put<REL>(p, v); break;
	case 4: put<SC>(p, v); break;
	case 5: case 6: got[7] = get<RLX>(p); break;
	case 7: got[7] = get<ACQ>(p); break;
	case 8: case 9: got[7] = get<SC>(p); break;
	case 10: __atomic_thread_fence(SC); break;
	case 11: __atomic_thread_fence(ACQ); break;
	case 12: __atomic_thread_fence(REL); break;
	case 13: __atomic_exchange_n(p, v, RLX); break;
	case 14: __atomic_fetch_add(p, v, SC); break;
	case 15: if (get<RLX>(p)) put<RLX>(p == &m.x ? &m.y : &m.x, v); break;
	}
}
template <int t> static void random_thread() {
	for (uint32_t c : code[t])
		if (c)
			act(c);
}

static uint64_t seed = 1;
static uint32_t next_random() {
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33);
}

static int bad;

/* executions: how many there are, -1 for what brute force finds. finds: part of what is wrong, nullptr if nothing is. */
static void expect(const model::program &p, int64_t executions, const char *finds) {
	static char what[8192], what_too[8192];
	model::counts n, all;
	bool ok = model::check(p, {}, &n, what, sizeof what);
	model::options force;
	force.exhaustive = true;
	if (finds) {
		if (ok || !strstr(what, finds)) {
			printf("%s: %s is not found: %s\n", p.name, finds, what);
			bad = 1;
		}
		return;
	}
	bool ok_too = model::check(p, force, &all, what_too, sizeof what_too);
	if (!ok || !ok_too || n.whole != all.whole || n.waiting != all.waiting || (executions >= 0 && n.whole != (uint64_t)executions)) {
		printf("%s: %llu executions and %llu that wait, by force %llu and %llu, want %lld: %s %s\n", p.name, (unsigned long long)n.whole,
			(unsigned long long)n.waiting, (unsigned long long)all.whole, (unsigned long long)all.waiting, (long long)executions, what, what_too);
		bad = 1;
	}
}

int main(int argc, char **argv) {
	model::share(&m, sizeof m);
	expect({"store buffering, relaxed", nothing, {sb0<RLX>, sb1<RLX>}}, 4, nullptr);
	expect({"store buffering, SC", nothing, {sb0<SC>, sb1<SC>}}, 3, nullptr);
	expect({"store buffering, fences", nothing, {sbf0, sbf1}}, 3, nullptr);
	expect({"2+2W", nothing, {ww0, ww1}}, 4, nullptr);
	expect({"coherence", nothing, {co0, co1}}, 6, nullptr);
	expect({"IRIW, acquire", nothing, {iriw0<RLX>, iriw1<RLX>, iriw2<ACQ>, iriw3<ACQ>}}, 16, nullptr);
	expect({"IRIW, SC", nothing, {iriw0<SC>, iriw1<SC>, iriw2<SC>, iriw3<SC>}}, 15, nullptr);
	expect({"load buffering", nothing, {lb0, lb1}}, 3, nullptr);
	expect({"increments", nothing, {add, add, add}}, 6, nullptr);
	expect({"increments, SC", nothing, {add_sc, add_sc, add_sc}}, 6, nullptr);
	expect({"compare and exchange", nothing, {swap, swap, swap}}, -1, nullptr);
	expect({"exchanges and stores", nothing, {add, mixed, swap}}, -1, nullptr);
	expect({"message", nothing, {mp0, mp1}}, 2, nullptr);
	expect({"message, fences", nothing, {mpf0, mpf1}}, 2, nullptr);
	expect({"message, release sequence", nothing, {mp0, mp2, mp3}}, -1, nullptr);
	expect({"wait", nothing, {mp0, wait1}}, 1, nullptr);
	expect({"sleep and wake", nothing, {sleep_fence, wake_fence}}, -1, nullptr);
	expect({"no release", nothing, {mp0_wrong, mp1}}, -1, "data race");
	expect({"no acquire", nothing, {mp0, mp1_wrong}}, -1, "data race");
	expect({"no release sequence", nothing, {mp0, mp4, mp3}}, -1, "data race");
	expect({"a wait for ever", nothing, {mp0, wait2}}, -1, "nobody goes on");
	expect({"a wake-up that is lost", nothing, {sleep_fence, wake_wrong}}, -1, "nobody goes on");
	int programs = argc > 1 ? atoi(argv[1]) : 300;
	for (int i = 0; i < programs && !bad; i++) {
		for (auto &t : code)
			for (uint32_t &c : t)
				c = 0;
		for (int t = 0; t < 3; t++)
			for (uint32_t k = 0, n = 1 + next_random() % 3; k < n; k++)
				code[t][k] = next_random() | 1u << 31;
		char name[32];
		snprintf(name, sizeof name, "random program %d", i);
		expect({name, nothing, {random_thread<0>, random_thread<1>, random_thread<2>}}, -1, nullptr);
	}
	if (!bad)
		printf("ok\n");
	return bad;
}
