/*
 * Reaping: completion queue entries [NVMe 3.3.3.2] become results, matched by CID in whatever order they come.
 *
 *     DW0, DW1  command-specific
 *     DW2       SQHD 15:0, SQID 31:16
 *     DW3       CID 15:0, phase 16, status 31:17
 *
 * The phase says that an entry is new, and it is in the last dword. DW2 and DW3 are one aligned 64-bit load, which is the
 * poll; an acquire orders it before the load of DW0 and DW1. The other way round they could be the previous round's. Most
 * commands say nothing there (lanefs_lane.silent), and are spared the acquire and that second trip to memory: what else is
 * read is the lane's own, and what is stored afterwards comes after a release, or after a poll that was an acquire by itself.
 */
#ifndef LANEFS_REAP_H
#define LANEFS_REAP_H

#include "answer.h"

namespace lanefs {

/* The next completions: DW2 and DW3 of each slot's, how many are new from the first on, and whether DW0 and DW1 of any were read. */
template <typename T> struct completed {
	uint64_t high[T::K];
	uint32_t n;
	bool talked;
};

/* Loads DW2 and DW3 of a batch of completions from the n-th on, all of them before the end of the queue. */
template <typename T> LANEFS_FN void poll_straight(lanefs_lane *lane, completed<T> *c, uint32_t n) {
	const uint64_t *p = nvme::cqe_at(lane, n, true) + 1;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		c->high[k] = load(p + 2 * k);
}

/* Whether a batch from the n-th completion on can be there, none of it beyond the end of the queue. */
template <typename T> LANEFS_FN bool is_straight(const lanefs_lane *lane, uint32_t n) {
	return lane->in_flight + lane->dead_cids >= n + T::slots && fits<T>(lane->cq_head + n, lane->cq_size);
}

/* Loads DW2 and DW3 of the next completions, all in flight together. */
template <typename T> LANEFS_FN void poll_cq(lanefs_lane *lane, completed<T> *c) {
	if (T::few && is_straight<T>(lane, 0)) {
		poll_straight<T>(lane, c, 0);
		return;
	}
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		uint32_t s = slot<T>(k);
		c->high[k] = nvme::not_new(lane);
		if (s < lane->cq_size && s < lane->in_flight + lane->dead_cids)
			c->high[k] = nvme::poll(lane, s, T::acquires);
	}
}

/* All together: counts what poll_cq found. */
template <typename T> LANEFS_FN void count_new(lanefs_lane *lane, completed<T> *c) {
	bool fresh[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		fresh[k] = nvme::is_new(lane, c->high[k]) && slot<T>(k) < lane->cq_size;
	c->n = leading(slots_of<T>(fresh));
}

/* The direction of a command's data is in its opcode [NVMe 3.3.3.1, CDW0]: bit 0 from the host, bit 1 to it. */
LANEFS_FN void count_bytes(lanefs_lane *lane, uint32_t opcode, uint32_t len) {
	lane->totals.bytes_written += (opcode & 3) == 1 ? len : 0;
	lane->totals.bytes_read += (opcode & 3) == 2 ? len : 0;
}

/* A CID's record as a completion needs it, in one load. */
struct record {
	quad q;
	LANEFS_FN_MEMBER uint64_t posted() const { return (uint64_t)q[1] << 32 | q[0]; }
	LANEFS_FN_MEMBER uint32_t len() const { return q[2]; }
	LANEFS_FN_MEMBER uint16_t tag() const { return (uint16_t)q[3]; }
	LANEFS_FN_MEMBER uint8_t state() const { return (uint8_t)(q[3] >> 16); }
	LANEFS_FN_MEMBER uint32_t opcode() const { return q[3] >> 24; }
};

LANEFS_FN record record_of(lanefs_lane *lane, uint32_t cid) { return {load_quad((const quad *)cid_of(lane, cid))}; }

/* Whether completions of an opcode say something in DW0 and DW1. */
LANEFS_FN bool is_silent(const lanefs_lane *lane, uint32_t opcode) { return opcode < 64 && (lane->silent >> opcode & 1) != 0; }

LANEFS_FN uint32_t name_in(uint64_t high) { return nvme::cid(high) | nvme::sqid(high) << 16; }
constexpr uint32_t status_bits = 0x7ff << 17; /* SCT and SC, in DW3 */

/* What a batch of completions is about: which slots' commands end with it, and how. */
template <typename T> struct ending {
	record about[T::K];
	uint64_t low[T::K]; /* DW0 and DW1 */
	bool live[T::K], dead[T::K], error[T::K];
};

/* All together: answers the commands that end, frees their CIDs and moves the head on by `took` entries. */
template <typename T> LANEFS_FN void end(lanefs_lane *lane, const completed<T> &c, const ending<T> &e, uint32_t took, uint64_t now, bool straight) {
	uint64_t ended = slots_of<T>(e.live);
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		if (!e.live[k])
			continue;
		uint32_t r = rank(ended, slot<T>(k)), cid = nvme::cid(c.high[k]);
		const record &about = e.about[k];
		answer(lane, r, {about.tag(), (uint16_t)nvme::status(c.high[k]), (uint32_t)e.low[k], (uint32_t)(e.low[k] >> 32), now - about.posted(),
			(uint16_t)cid, (uint16_t)nvme::sqhd(c.high[k]), LANEFS_OK}, straight);
		if (!e.error[k])
			count_bytes(lane, about.opcode(), about.len());
		cid_of(lane, cid)->state = LANEFS_CID_FREE;
		free_slot(lane, lane->cid_tail, r, straight)->free = (uint16_t)cid;
	}
	uint32_t ends = count(ended);
	lane->result_next += ends;
	lane->in_flight -= ends;
	advance(&lane->cid_tail, ends, lane->cid_count);
	lane->totals.errors += count(slots_of<T>(e.error));
	lane->totals.late += count(slots_of<T>(e.dead));
	lane->totals.completions += took;
	nvme::consume(lane, took);
}

/*
 * The way of a full batch whose commands all are in flight and were successful, and say nothing: false, and nothing done, if
 * it is not such a one.
 */
template <typename T> LANEFS_FN bool reap_plain(lanefs_lane *lane, const completed<T> &c, uint64_t now) {
	if (c.n != T::slots || !fits<T>(lane->cid_tail, lane->cid_count) || !fits<T>(lane->result_next & (lane->ring_size - 1), lane->ring_size))
		return false;
	uint32_t strange = 0, status = 0, most = 0;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		strange |= (uint32_t)c.high[k] ^ (uint32_t)lane->sqid << 16;
		status |= (uint32_t)(c.high[k] >> 32);
		most = nvme::cid(c.high[k]) > most ? nvme::cid(c.high[k]) : most;
	}
	if (((strange >> 16) | (status & status_bits)) != 0 || most >= lane->cid_count)
		return false;
	ending<T> e;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		e.about[k] = record_of(lane, nvme::cid(c.high[k]));
	uint32_t odd = 0;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		odd |= (e.about[k].q[3] ^ LANEFS_CID_BUSY << 16) & 0xc0ff0000u; /* the state; an opcode of 64 or more */
	if (odd != 0) /* asks for all of them at once, so their loads wait together */
		return false;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		odd |= (uint32_t)(~(lane->silent >> e.about[k].opcode()) & 1);
#pragma unroll
		for (uint32_t from = 0; from < k; from++)
			odd |= nvme::cid(c.high[k]) == nvme::cid(c.high[from]);
		e.low[k] = 0;
		e.live[k] = true;
		e.dead[k] = e.error[k] = false;
	}
	if (odd != 0)
		return false;
	end<T>(lane, c, e, T::slots, now, true);
	return true;
}

/* All together: answers the commands of the c->n entries at the head, and moves the head on. */
template <typename T> LANEFS_FN void reap(lanefs_lane *lane, completed<T> *c, uint64_t now) {
	if (T::few && reap_plain<T>(lane, *c, now))
		return;
	uint32_t name[T::K];
	ending<T> e;
	bool bad[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		name[k] = name_in(c->high[k]);
		e.about[k] = {quad{0, 0, 0, 0}};
		bad[k] = slot<T>(k) < c->n && (name[k] >> 16 != lane->sqid || nvme::cid(c->high[k]) >= lane->cid_count);
		if (slot<T>(k) < c->n && !bad[k]) {
			e.about[k] = record_of(lane, nvme::cid(c->high[k]));
			bad[k] = e.about[k].state() == LANEFS_CID_FREE;
		}
	}
	uint64_t wrong = slots_of<T>(bad);
	if (T::slots != 1 && c->n > 1)
		wrong |= repeated<T>(name, c->n);
	uint32_t n = c->n, took = n; /* entries that are believed, and that are done with */
	if (wrong != 0) {
		/* One completion named the wrong command, so none of the others can be believed either. */
		n = (uint32_t)__builtin_ctzll(wrong);
		took = n + 1;
		lane->totals.spurious++;
		lane->bad_cid = pick<T>(name, n);
		lane->failed = LANEFS_BAD_CQE;
	}

	bool talks[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		bool mine = slot<T>(k) < n;
		e.dead[k] = mine && e.about[k].state() == LANEFS_CID_DEAD;
		e.live[k] = mine && !e.dead[k];
		e.error[k] = e.live[k] && ((uint32_t)(c->high[k] >> 32) & status_bits) != 0;
		talks[k] = e.live[k] && !is_silent(lane, e.about[k].opcode());
		e.low[k] = 0;
	}
	if (slots_of<T>(talks) != 0) {
		if (!T::acquires)
			acquire(); /* orders the loads of DW3 before those of DW0 and DW1 */
		meet<T>(); /* another thread may have loaded it */
		c->talked = true;
#pragma unroll
		for (uint32_t k = 0; k < T::K; k++)
			if (talks[k])
				e.low[k] = load(nvme::cqe_at(lane, slot<T>(k)));
	}
	end<T>(lane, *c, e, took, now, false);
}

/* All together: reaps what is new, and says how much that was; never more than the queue's size. */
template <typename T> LANEFS_FN uint32_t reap_new(lanefs_lane *lane, completed<T> *c, uint64_t now) {
	uint32_t reaped = 0;
	while (c->n != 0 && lane->failed == LANEFS_OK) {
		uint32_t n = c->n;
		bool more = n == T::slots && reaped + n < lane->cq_size;
		completed<T> next;
		bool ahead = T::few && more && is_straight<T>(lane, n);
		if (ahead)
			poll_straight<T>(lane, &next, n); /* on their way while these are reaped */
		reap<T>(lane, c, now);
		reaped += n;
		if (!more)
			break;
		if (!ahead)
			poll_cq<T>(lane, c);
		else
#pragma unroll
			for (uint32_t k = 0; k < T::K; k++)
				c->high[k] = next.high[k];
		count_new<T>(lane, c);
	}
	return reaped;
}

} // namespace lanefs

#endif
