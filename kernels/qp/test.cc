/*
 * nvme_qp.h on a CPU, against a controller that is plain memory: every entry is where the specification puts it, each
 * completion is reaped once, in whatever order they come, over queues of odd sizes that wrap thousands of times.
 * qp_test.go builds and runs it.
 */
#include "controller.h"

static void test_fields() {
	static controller c;
	nvme::qp q = start(&c, 4, 4);
	nvme::init(&q);
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
	nvme::qp q = start(&c, 8, 4);
	nvme::init(&q);
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
	nvme::qp q = start(&c, sq_size, cq_size);
	nvme::init(&q);
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

/* The example, with the controller on a thread of its own. */
static void test_read() {
	static controller c;
	nvme::qp q = start(&c, 7, 5);
	service s = {&c, q, 20000, 0};
	pthread_t thread;
	nvme::init(&q);
	pthread_create(&thread, nullptr, serve, &s);
	uint32_t good = 0;
	read_pages(&q, nsid, data, s.pages, ~0ull, &good);
	pthread_join(thread, nullptr);
	CHECK(s.errors == (s.pages + 2) / 3 && good == s.pages - s.errors);

	q = start(&c, 7, 5);
	nvme::init(&q);
	read_pages(&q, nsid, data, 1, 1000, &good); /* no controller: it gives up */
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
