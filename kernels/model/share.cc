/*
 * All executions of the rings of the share (SPEC.md, "Rings"), for a few requests: the C client is sdk/c/ring.c as it is; the daemon's
 * side, which is Go (fs/share/ring.go, lead.go, wire/ring.go), is written here anew, with the orders of Go's atomics, which are
 * sequentially consistent. It has one goroutine that leads; that two take turns is not modelled.
 *
 *     share [-weaken PC,PC...] [-sites] [-most RUNS] [PROGRAM...]
 */
#include "checker.h"
#include "main.h"

enum { SQ_TAIL = 0, SQ_HEAD = 16, CQ_TAIL = 32, CQ_HEAD = 48, DAEMON_SLEEPS = 64, CLIENT_SLEEPS = 80, ENTRIES = 4096, MOST = 4 };

static struct {
	alignas(64) char ring[ENTRIES + MOST * 64 + 2 * MOST * 32];
	alignas(64) uint32_t doorbell, event; /* signals of the client, and of the daemon */
	uint32_t done;                        /* the client's: completions that came */
} m;

static uint32_t entries, total;

static uint32_t *word(int i) { return (uint32_t *)m.ring + i; }
static uint32_t load(int i) { return __atomic_load_n(word(i), __ATOMIC_SEQ_CST); }
static void store(int i, uint32_t v) { __atomic_store_n(word(i), v, __ATOMIC_SEQ_CST); }
static uint32_t swap(int i, uint32_t v) { return __atomic_exchange_n(word(i), v, __ATOMIC_SEQ_CST); }

/* A signal, by the kernel: what is done before it comes before what is done after it was heard. */
static void signal(uint32_t *s) { __atomic_fetch_add(s, 1, __ATOMIC_ACQ_REL); }
static void wait(uint32_t *s, uint32_t *heard) {
	for (;;) {
		model::turn();
		uint32_t now = __atomic_load_n(s, __ATOMIC_ACQUIRE);
		if (now != *heard) {
			*heard = now;
			return;
		}
		model::again();
	}
}

/* ---- what the client calls ---- */

static uint32_t heard; /* the client's */

extern "C" {
void model_client(char *memory, unsigned entries, unsigned total);
ssize_t model_write(int, const void *, size_t n) {
	signal(&m.doorbell);
	return (ssize_t)n;
}
int lanefs_wait_for(const void *, int, int) {
	wait(&m.event, &heard);
	return 1;
}
void model_done(uint64_t data, int64_t result) {
	if (data == 0 || data > total || (m.done >> data & 1) || result != (int64_t)data)
		model::fail("a completion", data, (uint64_t)result);
	m.done |= 1u << data;
}
int lanefs_gone(const void *) { return 0; }
extern const char lanefs_gone_text[];
const char lanefs_gone_text[] = "";
int lanefs_fail(int, const char *) { return -1; }
int lanefs_call(void *, uint16_t, const void *, size_t, int, void *, size_t, int *, int) { return -1; }
int lanefs_release(void *, uint32_t) { return 0; }
int lanefs_connected(const void *) { return 1; }

/* Descriptors, which no program of the model closes (sdk/c/internal.h). */
struct own { int fd; dev_t dev; ino_t ino; };
own lanefs_own(int fd) { return {fd, 0, 0}; }
int lanefs_is_own(const own *) { return 1; }
void lanefs_close_own(own *) {}
}

static void client() {
	heard = 0;
	model_client(m.ring, entries, total);
}

/* ---- the daemon ---- */

/* Rings.Room and Submitted; ring.pending. */
static uint32_t room() {
	uint32_t tail = load(CQ_TAIL), used = tail - load(CQ_HEAD);
	if (used > 2 * entries)
		model::fail("the completions' indexes", used);
	return 2 * entries - used;
}
static bool pending() {
	uint32_t r = room(), tail = load(SQ_TAIL);
	return tail != load(SQ_HEAD) && r > 0;
}

static void daemon() {
	uint32_t rung = 0;
	for (uint32_t completed = 0; completed < total;) {
		/* ring.take, Rings.Take */
		uint32_t space = room(), head = load(SQ_HEAD), have = load(SQ_TAIL) - head, n = have < space ? have : space;
		if (have > entries)
			model::fail("the submissions' indexes", have);
		uint64_t data[MOST];
		for (uint32_t i = 0; i < n; i++) {
			const char *e = m.ring + ENTRIES + ((head + i) & (entries - 1)) * 64;
			__builtin_memcpy(&data[i], e, 8);
			uint64_t length;
			__builtin_memcpy(&length, e + 40, 8);
			if (data[i] != completed + i + 1 || length != data[i])
				model::fail("a submission", data[i], length);
		}
		if (n != 0)
			store(SQ_HEAD, head + n);
		/* ring.complete, Rings.Complete, WakeClient */
		for (uint32_t i = 0; i < n; i++, completed++) {
			uint32_t tail = load(CQ_TAIL);
			char *c = m.ring + ENTRIES + entries * 64 + (tail & (2 * entries - 1)) * 32;
			__builtin_memcpy(c, &data[i], 8);
			__builtin_memcpy(c + 8, &data[i], 8);
			swap(CQ_TAIL, tail + 1);
		}
		if (n != 0) {
			if (load(CLIENT_SLEEPS) != 0 && swap(CLIENT_SLEEPS, 0) != 0)
				signal(&m.event);
			continue;
		}
		/* ring.spin, run */
		swap(DAEMON_SLEEPS, 1);
		if (!pending())
			wait(&m.doorbell, &rung);
	}
}

static void setup() {}

int main(int argc, char **argv) {
	model::share(&m, sizeof m);
	harness h(argc, argv);
	static const struct {
		model::program p;
		uint32_t entries, total;
	} all[] = {
		{{"one request", setup, {client, daemon}}, 1, 1},
		{{"two requests, one at a time", setup, {client, daemon}}, 1, 2},
		{{"two requests", setup, {client, daemon}}, 2, 2},
	};
	for (const auto &a : all)
		if (h.wants(a.p.name)) {
			entries = a.entries;
			total = a.total;
			h.run(a.p, false);
		}
	return h.end();
}
