/*
 * nvme_qp.h on a CPU, against a controller that is plain memory: every entry is where the specification puts it, each completion is
 * reaped once, in whatever order they come, over queues of odd sizes that wrap thousands of times. qp_test.go builds and runs it.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "read.hip"

#define CHECK(c) \
	do \
		if (!(c)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #c); \
			exit(1); \
		} \
	while (0)

constexpr uint32_t most = 16; /* entries */

/* The queues, the registers, and the controller's own positions. */
struct controller {
	alignas(64) uint32_t sq[most][16];
	alignas(64) uint64_t cq[most][2];
	alignas(64) uint32_t sq_doorbell, cq_doorbell;
	uint32_t head, tail, phase; /* of the SQ, of the CQ */
	uint32_t waiting[most][16];  /* commands fetched and not completed */
	uint32_t n;
};

static uint64_t seed = 1;
static uint32_t random_below(uint32_t n) {
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % n;
}

static nvme::qp make(controller *c, uint32_t sq_size, uint32_t cq_size) {
	memset(c, 0xff, sizeof *c); /* an entry of a queue that was not made ready looks new */
	c->sq_doorbell = c->cq_doorbell = c->head = c->tail = c->n = 0;
	c->phase = 1;
	nvme::qp q = {(uint64_t)c->sq, (uint64_t)c->cq, (uint64_t)&c->sq_doorbell, (uint64_t)&c->cq_doorbell, sq_size, cq_size, 7, 7, 7};
	nvme::init(&q);
	return q;
}

/* Fetches what the doorbell shows. */
static void fetch(controller *c, const nvme::qp *q) {
	uint32_t tail = __atomic_load_n(&c->sq_doorbell, __ATOMIC_ACQUIRE);
	CHECK(tail < q->sq_size);
	while (c->head != tail) {
		CHECK(c->n < most);
		memcpy(c->waiting[c->n++], c->sq[c->head], 64);
		memset(c->sq[c->head], 0xff, 64);
		c->head = (c->head + 1) % q->sq_size;
	}
}

/* Completes the i-th command that waits; false if the CQ is full. */
static bool complete(controller *c, const nvme::qp *q, uint32_t i, uint64_t dw01, uint64_t status) {
	uint32_t next = (c->tail + 1) % q->cq_size;
	if (next == __atomic_load_n(&c->cq_doorbell, __ATOMIC_ACQUIRE))
		return false;
	uint64_t dw23 = c->head | 5u << 16 | (uint64_t)(c->waiting[i][0] >> 16) << 32 | (uint64_t)c->phase << 48 | status << 49;
	__atomic_store_n(&c->cq[c->tail][0], dw01, __ATOMIC_RELAXED);
	__atomic_store_n(&c->cq[c->tail][1], dw23, __ATOMIC_RELEASE);
	c->phase ^= next == 0;
	c->tail = next;
	memcpy(c->waiting[i], c->waiting[--c->n], 64);
	return true;
}

static void test_fields() {
	static controller c;
	nvme::qp q = make(&c, 4, 4);
	nvme::cqe done;
	CHECK(q.sq_tail == 0 && q.cq_head == 0 && q.cq_phase == 1 && !nvme::reap(&q, &done));

	nvme::post(&q, nvme::command(0x4102, 0xabcd, 3, 0x1122334455667788, 0x99aabbccddeeff00, 10, 11, 12, 13, 14, 15));
	CHECK(c.sq_doorbell == 0 && q.sq_tail == 1);
	nvme::ring_sq(&q);
	CHECK(c.sq_doorbell == 1);
	const uint32_t want[16] = {0xabcd4102, 3, 0, 0, 0, 0, 0x55667788, 0x11223344, 0xddeeff00, 0x99aabbcc, 10, 11, 12, 13, 14, 15};
	CHECK(memcmp(c.sq[0], want, sizeof want) == 0);

	fetch(&c, &q);
	complete(&c, &q, 0, 0x0123456789abcdef, 0x4281); /* DNR, SCT 2, SC 81h */
	CHECK(nvme::reap(&q, &done) && done.dw01 == 0x0123456789abcdef);
	CHECK(nvme::sqhd(done.dw23) == 1 && nvme::sqid(done.dw23) == 5 && nvme::cid(done.dw23) == 0xabcd && nvme::status(done.dw23) == 0x4281);
	CHECK(c.cq_doorbell == 0 && !nvme::reap(&q, &done));
	nvme::ring_cq(&q);
	CHECK(c.cq_doorbell == 1);
}

/* A thread that looks at several entries at once, as a wave does: beyond the end of the queue too. */
static void test_poll_ahead() {
	static controller c;
	nvme::qp q = make(&c, 8, 4);
	for (uint32_t pass = 0; pass < 10; pass++) {
		for (uint32_t i = 0; i < 3; i++)
			nvme::post(&q, nvme::command(2, i, 1, 0, 0));
		nvme::ring_sq(&q);
		fetch(&c, &q);
		for (uint32_t n = 0; n <= 3; n++) {
			for (uint32_t i = 0; i < 4; i++)
				CHECK(nvme::is_new(&q, nvme::poll(&q, i, i % 2 != 0)) == (i < n));
			if (n < 3)
				CHECK(complete(&c, &q, 0, 0, 0));
		}
		CHECK(!nvme::is_new(&q, nvme::not_new(&q)));
		nvme::consume(&q, 3);
		nvme::ring_cq(&q);
	}
}

/* Commands and completions in random numbers and orders. dw01 is what the command's CDW10 and CDW11 were. */
static void test_wraps(uint32_t sq_size, uint32_t cq_size, uint32_t total) {
	static controller c;
	nvme::qp q = make(&c, sq_size, cq_size);
	uint32_t depth = (sq_size < cq_size ? sq_size : cq_size) - 1, in_flight = 0, posted = 0, reaped = 0;
	uint32_t of[most]; /* CID: the number of its command */
	bool busy[most] = {};
	while (reaped < total) {
		for (uint32_t n = random_below(depth + 1); n != 0 && in_flight < depth && posted < total; n--, in_flight++, posted++) {
			uint32_t cid = random_below(depth);
			while (busy[cid])
				cid = (cid + 1) % depth;
			busy[cid] = true;
			of[cid] = posted;
			nvme::post(&q, nvme::command(1, cid, 1, 0, 0, posted, ~posted));
		}
		nvme::ring_sq(&q);
		fetch(&c, &q);
		CHECK(c.n == in_flight);
		for (uint32_t n = random_below(c.n + 1); n != 0; n--) {
			uint32_t i = random_below(c.n);
			CHECK(complete(&c, &q, i, c.waiting[i][10] | (uint64_t)c.waiting[i][11] << 32, 0));
		}
		uint32_t left = c.n;
		nvme::cqe done;
		for (; nvme::reap(&q, &done); in_flight--, reaped++) {
			uint32_t cid = nvme::cid(done.dw23);
			CHECK(cid < depth && busy[cid] && nvme::sqid(done.dw23) == 5 && nvme::status(done.dw23) == 0);
			CHECK(done.dw01 == (of[cid] | (uint64_t)~of[cid] << 32));
			busy[cid] = false;
		}
		CHECK(in_flight == left);
		nvme::ring_cq(&q);
	}
}

/* The example, with a controller on a thread of its own that completes in any order, and some commands without success. */
static controller shared;
static nvme::qp shared_qp;
static uint32_t errors;
constexpr uint32_t pages = 20000;

static void *serve(void *) {
	for (uint32_t served = 0; served < pages;) {
		fetch(&shared, &shared_qp); /* only its sizes are read here */
		if (shared.n == 0) {
			sched_yield();
			continue;
		}
		uint32_t i = random_below(shared.n);
		const uint32_t *e = shared.waiting[i];
		CHECK((e[0] & 0xffff) == read_opcode && e[1] == 9 && e[10] % page_blocks == 0 && e[12] == page_blocks - 1);
		CHECK((e[6] | (uint64_t)e[7] << 32) == (1ull << 40) + (uint64_t)(e[10] / page_blocks) * page_bytes);
		bool wrong = e[10] % 3 == 0;
		if (complete(&shared, &shared_qp, i, 0, wrong ? 0x281 : 0)) {
			errors += wrong;
			served++;
		}
	}
	return nullptr;
}

static void test_read() {
	shared_qp = make(&shared, 7, 5);
	nvme::qp q = shared_qp;
	pthread_t thread;
	pthread_create(&thread, nullptr, serve, nullptr);
	uint32_t good = 0;
	read_pages(&q, 9, 1ull << 40, pages, ~0ull, &good);
	pthread_join(thread, nullptr);
	CHECK(errors != 0 && good == pages - errors);

	q = make(&shared, 7, 5);
	read_pages(&q, 9, 0, 1, 1000, &good); /* no controller: it gives up */
	CHECK(good == 0);
}

int main() {
	test_fields();
	test_poll_ahead();
	for (uint32_t sq_size = 2; sq_size <= most; sq_size++)
		for (uint32_t cq_size = 2; cq_size <= most; cq_size++)
			test_wraps(sq_size, cq_size, 5000);
	test_read();
	printf("ok\n");
	return 0;
}
