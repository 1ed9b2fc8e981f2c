/*
 * Reaping: completion queue entries become results, matched by CID in whatever order they come.
 *
 *     DW0, DW1  command-specific
 *     DW2       SQHD 15:0, SQID 31:16
 *     DW3       CID 15:0, phase 16, status 31:17
 *
 * A poll (poll.h) loads DW2 and DW3; an acquire orders that load before the one of DW0 and DW1, which could be the
 * previous pass's otherwise. Most commands have nothing in DW0 and DW1 (lanefs_lane.silent), and are spared the acquire
 * and that second trip to memory: what else is read is the lane's own, and what is stored afterwards comes after a
 * release, or after a poll that was an acquire by itself.
 */
#ifndef LANEFS_REAP_H
#define LANEFS_REAP_H

#include "answer.h"
#include "poll.h"
#include "trace.h"

namespace lanefs {

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

/* Whether completions of an opcode have nothing in DW0 and DW1. */
LANEFS_FN bool is_silent(const lanefs_lane *lane, uint32_t opcode) { return opcode < 64 && (lane->silent >> opcode & 1) != 0; }

LANEFS_FN uint32_t cid_and_sqid(uint64_t dw23) { return nvme::cid(dw23) | nvme::sqid(dw23) << 16; }
constexpr uint32_t status_bits = 0x7ff << 17; /* SCT and SC, in DW3 */

/*
 * A batch of completions matched with their commands: which of them end one, which came after its timeout, which have an
 * error.
 */
template <typename T> struct matched {
	record command[T::K];
	uint64_t dw01[T::K];
	bool ends[T::K], late[T::K], error[T::K];
};

/* All together: answers the commands that end, frees their CIDs and moves the head on by `consumed` entries. */
template <typename T> LANEFS_FN void end(lanefs_lane *lane, const polled_cq<T> &c, const matched<T> &m, uint32_t consumed, uint64_t now,
	bool contiguous) {
	uint64_t all = ballot_slots<T>(m.ends);
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		if (!m.ends[k])
			continue;
		uint32_t r = rank(all, slot<T>(k)), cid = nvme::cid(c.dw23[k]);
		const record &command = m.command[k];
		answer(lane, r, {command.tag(), (uint16_t)nvme::status(c.dw23[k]), (uint32_t)m.dw01[k], (uint32_t)(m.dw01[k] >> 32),
			now - command.posted(), (uint16_t)cid, (uint16_t)nvme::sqhd(c.dw23[k]), LANEFS_OK}, contiguous);
		trace_ended(lane, cid, lane->result_next + r, c.found);
		if (!m.error[k])
			count_bytes(lane, command.opcode(), command.len());
		cid_of(lane, cid)->state = LANEFS_CID_FREE;
		free_slot(lane, lane->cid_tail, r, contiguous)->free = (uint16_t)cid;
	}
	uint32_t n = count(all);
	lane->result_next += n;
	lane->in_flight -= n;
	advance(&lane->cid_tail, n, lane->cid_count);
	lane->totals.errors += count(ballot_slots<T>(m.error));
	lane->totals.late += count(ballot_slots<T>(m.late));
	lane->totals.completions += consumed;
	nvme::consume(lane, consumed);
}

/*
 * The fast path: a full batch of silent commands, all of them in flight and successful. Returns false, with nothing done,
 * for any other batch.
 */
template <typename T> LANEFS_FN bool reap_fast(lanefs_lane *lane, const polled_cq<T> &c, uint64_t now) {
	if (c.n != T::slots || !contiguous<T>(lane->cid_tail, lane->cid_count) ||
		!contiguous<T>(lane->result_next & (lane->ring_size - 1), lane->ring_size))
		return false;
	uint32_t other_sqid = 0, status = 0, max_cid = 0;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		other_sqid |= (uint32_t)c.dw23[k] ^ (uint32_t)lane->sqid << 16;
		status |= (uint32_t)(c.dw23[k] >> 32);
		max_cid = nvme::cid(c.dw23[k]) > max_cid ? nvme::cid(c.dw23[k]) : max_cid;
	}
	if (((other_sqid >> 16) | (status & status_bits)) != 0 || max_cid >= lane->cid_count)
		return false;
	matched<T> m;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		m.command[k] = record_of(lane, nvme::cid(c.dw23[k]));
	uint32_t other = 0;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		other |= (m.command[k].q[3] ^ LANEFS_CID_BUSY << 16) & 0xc0ff0000u; /* the state; an opcode of 64 or more */
	if (other != 0) /* one branch for all of them, so their loads wait together */
		return false;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		other |= (uint32_t)(~(lane->silent >> m.command[k].opcode()) & 1);
#pragma unroll
		for (uint32_t from = 0; from < k; from++)
			other |= nvme::cid(c.dw23[k]) == nvme::cid(c.dw23[from]);
		m.dw01[k] = 0;
		m.ends[k] = true;
		m.late[k] = m.error[k] = false;
	}
	if (other != 0)
		return false;
	end<T>(lane, c, m, T::slots, now, true);
	return true;
}

/*
 * All together: answers the commands of the c->n entries at the head, and moves the head on. Sets *dw01_read if it read
 * any DW0 and DW1.
 */
template <typename T> LANEFS_FN void reap(lanefs_lane *lane, const polled_cq<T> &c, uint64_t now, bool *dw01_read) {
	if (T::multi_slot && reap_fast<T>(lane, c, now))
		return;
	uint32_t name[T::K];
	matched<T> m;
	bool bad[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		name[k] = cid_and_sqid(c.dw23[k]);
		m.command[k] = {quad{0, 0, 0, 0}};
		bad[k] = slot<T>(k) < c.n && (name[k] >> 16 != lane->sqid || nvme::cid(c.dw23[k]) >= lane->cid_count);
		if (slot<T>(k) < c.n && !bad[k]) {
			m.command[k] = record_of(lane, nvme::cid(c.dw23[k]));
			bad[k] = m.command[k].state() == LANEFS_CID_FREE;
		}
	}
	uint64_t wrong = ballot_slots<T>(bad);
	if (T::slots != 1 && c.n > 1)
		wrong |= duplicates<T>(name, c.n);
	uint32_t n = c.n, consumed = n; /* entries that are trusted, and that are done with */
	if (wrong != 0) {
		/* One completion named the wrong command, so none of the later ones can be trusted either. */
		n = (uint32_t)__builtin_ctzll(wrong);
		consumed = n + 1;
		lane->totals.spurious++;
		lane->bad_cid = broadcast_slot<T>(name, n);
		lane->failed = LANEFS_BAD_CQE;
	}

	bool has_dw01[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		bool mine = slot<T>(k) < n;
		m.late[k] = mine && m.command[k].state() == LANEFS_CID_DEAD;
		m.ends[k] = mine && !m.late[k];
		m.error[k] = m.ends[k] && ((uint32_t)(c.dw23[k] >> 32) & status_bits) != 0;
		has_dw01[k] = m.ends[k] && !is_silent(lane, m.command[k].opcode());
		m.dw01[k] = 0;
	}
	if (ballot_slots<T>(has_dw01) != 0) {
		if (!T::acquires)
			acquire(); /* orders the loads of DW3 before those of DW0 and DW1 */
		sync_team<T>(); /* another thread may have loaded it */
		*dw01_read = true;
#pragma unroll
		for (uint32_t k = 0; k < T::K; k++)
			if (has_dw01[k])
				m.dw01[k] = load(nvme::cqe_at(lane, slot<T>(k)));
	}
	end<T>(lane, c, m, consumed, now, false);
}

/* All together: reaps what is new, and returns how much that was; never more than the queue's size. dw01_read is reap's. */
template <typename T> LANEFS_FN uint32_t reap_new(lanefs_lane *lane, polled_cq<T> *c, uint64_t now, bool *dw01_read) {
	uint32_t reaped = 0;
	while (c->n != 0 && lane->failed == LANEFS_OK) {
		uint32_t n = c->n;
		bool more = n == T::slots && reaped + n < lane->cq_size;
		polled_cq<T> next;
		bool ahead = T::multi_slot && more && cq_contiguous<T>(lane, n);
		if (ahead)
			poll_cq_contiguous<T>(lane, &next, n); /* on their way while these are reaped */
		c->found = stamp<T>();
		reap<T>(lane, *c, now, dw01_read);
		reaped += n;
		if (!more)
			break;
		sync_team<T>(); /* a CID that one thread gave back may be completed again: another finds that it is free */
		if (!ahead)
			poll_cq<T>(lane, c);
		else
#pragma unroll
			for (uint32_t k = 0; k < T::K; k++)
				c->dw23[k] = next.dw23[k];
		count_cq<T>(lane, c);
	}
	return reaped;
}

} // namespace lanefs

#endif
