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

LANEFS_FN uint64_t *cqe_at(lanefs_lane *lane, uint32_t n) {
	uint32_t i = lane->cq_head;
	advance(&i, n, lane->cq_size);
	return at<uint64_t>(lane->cq) + 2 * (uint64_t)i;
}

/* Loads DW2 and DW3 of the next completions, all in flight together. */
template <typename T> LANEFS_FN void poll_cq(lanefs_lane *lane, completed<T> *c) {
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		uint32_t s = slot<T>(k);
		c->high[k] = (uint64_t)(lane->cq_phase ^ 1) << 48;
		if (s < lane->cq_size && s < lane->in_flight + lane->dead_cids) {
			const uint64_t *p = cqe_at(lane, s) + 1;
			uint64_t v = T::acquires ? load_acquire(p) : load(p);
			c->high[k] = lane->cq_head + s >= lane->cq_size ? v ^ 1ull << 48 : v; /* the phase as before the end of the queue */
		}
	}
}

/* All together: counts what poll_cq found. */
template <typename T> LANEFS_FN void count_new(lanefs_lane *lane, completed<T> *c) {
	bool fresh[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		fresh[k] = (uint32_t)(c->high[k] >> 48 & 1) == lane->cq_phase && slot<T>(k) < lane->cq_size;
	c->n = leading(slots_of<T>(fresh));
}

/* The direction of a command's data is in its opcode [NVMe 3.3.3.1, CDW0]: bit 0 from the host, bit 1 to it. */
LANEFS_FN void count_bytes(lanefs_lane *lane, uint32_t opcode, uint32_t len) {
	if ((opcode & 3) == 1)
		lane->totals.bytes_written += len;
	else if ((opcode & 3) == 2)
		lane->totals.bytes_read += len;
}

/* All together: answers the commands of the c->n entries at the head, and moves the head on. */
template <typename T> LANEFS_FN void reap(lanefs_lane *lane, completed<T> *c, uint64_t now) {
	uint32_t cid[T::K], name[T::K];
	uint64_t posted[T::K], about[T::K];
	bool bad[T::K], dead[T::K], live[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		cid[k] = (uint32_t)(c->high[k] >> 32) & 0xffff;
		name[k] = cid[k] | ((uint32_t)c->high[k] & 0xffff0000u); /* with the SQID */
		posted[k] = about[k] = 0;
		bad[k] = slot<T>(k) < c->n && (name[k] >> 16 != lane->sqid || cid[k] >= lane->cid_count);
		if (slot<T>(k) < c->n && !bad[k]) {
			lanefs_cid *r = cid_of(lane, cid[k]);
			posted[k] = r->posted;
			about[k] = *(uint64_t *)&r->len;
			bad[k] = (uint8_t)(about[k] >> 48) == LANEFS_CID_FREE;
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

	bool error[T::K], talks[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		bool mine = slot<T>(k) < n;
		uint32_t opcode = (uint32_t)(about[k] >> 56);
		dead[k] = mine && (uint8_t)(about[k] >> 48) == LANEFS_CID_DEAD;
		live[k] = mine && !dead[k];
		error[k] = live[k] && (c->high[k] >> 49 & 0x7ff) != 0; /* SCT and SC */
		talks[k] = live[k] && (opcode >= 64 || (lane->silent >> opcode & 1) == 0);
	}
	uint64_t low[T::K] = {};
	if (slots_of<T>(talks) != 0) {
		if (!T::acquires)
			acquire(); /* orders the loads of DW3 before those of DW0 and DW1 */
		c->talked = true;
#pragma unroll
		for (uint32_t k = 0; k < T::K; k++)
			if (talks[k])
				low[k] = load(cqe_at(lane, slot<T>(k)));
	}

	uint64_t ended = slots_of<T>(live);
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		if (!live[k])
			continue;
		uint32_t r = rank(ended, slot<T>(k));
		answer(lane, r, {(uint16_t)(about[k] >> 32), (uint16_t)(c->high[k] >> 49), (uint32_t)low[k], (uint32_t)(low[k] >> 32),
			now - posted[k], (uint16_t)cid[k], (uint16_t)c->high[k], LANEFS_OK});
		if (!error[k])
			count_bytes(lane, (uint32_t)(about[k] >> 56), (uint32_t)about[k]);
		cid_of(lane, cid[k])->state = LANEFS_CID_FREE;
		free_slot(lane, lane->cid_tail, r)->free = (uint16_t)cid[k];
	}
	uint32_t ends = count(ended);
	lane->result_next += ends;
	lane->in_flight -= ends;
	advance(&lane->cid_tail, ends, lane->cid_count);
	lane->totals.errors += count(slots_of<T>(error));
	lane->totals.late += count(slots_of<T>(dead));
	lane->totals.completions += took;
	if (lane->cq_head + took >= lane->cq_size)
		lane->cq_phase ^= 1;
	advance(&lane->cq_head, took, lane->cq_size);
}

/* All together: reaps what is new, and says how much that was; never more than the queue's size. */
template <typename T> LANEFS_FN uint32_t reap_new(lanefs_lane *lane, completed<T> *c, uint64_t now) {
	uint32_t reaped = 0;
	while (c->n != 0 && lane->failed == LANEFS_OK) {
		reap<T>(lane, c, now);
		reaped += c->n;
		if (c->n != T::slots || reaped >= lane->cq_size)
			break;
		poll_cq<T>(lane, c);
		count_new<T>(lane, c);
	}
	return reaped;
}

} // namespace lanefs

#endif
