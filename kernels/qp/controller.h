/*
 * An NVMe controller for tests of nvme_qp.h: plain memory, which a thread of the CPU serves.
 */
#ifndef QP_CONTROLLER_H
#define QP_CONTROLLER_H

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

/* A controller that waits for its queue pair, which is to be made ready. */
static nvme::qp start(controller *c, uint32_t sq_size, uint32_t cq_size) {
	memset(c, 0xff, sizeof *c); /* an entry of a CQ that was not made ready looks new */
	c->sq_doorbell = c->cq_doorbell = c->head = c->tail = c->n = 0;
	c->phase = 1;
	return {(uint64_t)c->sq, (uint64_t)c->cq, (uint64_t)&c->sq_doorbell, (uint64_t)&c->cq_doorbell, sq_size, cq_size, 7, 7, 7};
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

/* What serves read_pages: the sizes of the queues, and how many commands ended with an error. */
struct service {
	controller *c;
	nvme::qp q; /* the sizes alone are read */
	uint32_t pages, errors;
};
constexpr uint32_t nsid = 9;
constexpr uint64_t data = 1ull << 40;

/* A thread: completes the reads of read_pages in any order, every third without success. */
static void *serve(void *arg) {
	service *s = (service *)arg;
	controller *c = s->c;
	for (uint32_t served = 0; served < s->pages;) {
		fetch(c, &s->q);
		if (c->n == 0) {
			sched_yield();
			continue;
		}
		uint32_t i = random_below(c->n);
		const uint32_t *e = c->waiting[i];
		CHECK((e[0] & 0xffff) == read_opcode && e[1] == nsid && e[10] % page_blocks == 0 && e[12] == page_blocks - 1);
		CHECK((e[6] | (uint64_t)e[7] << 32) == data + (uint64_t)(e[10] / page_blocks) * page_bytes);
		bool wrong = e[10] / page_blocks % 3 == 0;
		if (complete(c, &s->q, i, 0, wrong ? 0x281 : 0)) {
			s->errors += wrong;
			served++;
		}
	}
	return nullptr;
}

#endif
