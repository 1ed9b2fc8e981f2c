/*
 * Reaping: completion queue entries [NVMe 3.3.3.2] become results, matched by CID in whatever order they come.
 *
 *     DW0, DW1  command-specific
 *     DW2       SQHD 15:0, SQID 31:16
 *     DW3       CID 15:0, phase 16, status 31:17
 *
 * The phase says that an entry is new, and it is in the last dword: DW3 is loaded first, then acquire() orders that load
 * before those of DW0 to DW2. The other way round they could be the previous round's.
 */
#ifndef LANEFS_REAP_H
#define LANEFS_REAP_H

#include "answer.h"

namespace lanefs {

LANEFS_FN uint32_t load_dw3(lanefs_lane *lane, uint32_t index) {
	return load(at<uint32_t>(lane->cq) + 4 * (uint64_t)index + 3);
}

/* How many new entries the CQ holds from its head on, given DW3 of the first. It never says more than the queue's size. */
LANEFS_FN uint32_t count_new(lanefs_lane *lane, uint32_t dw3) {
	uint32_t n = 0, index = lane->cq_head, phase = lane->cq_phase;
	while ((dw3 >> 16 & 1) == phase) {
		if (++index == lane->cq_size) {
			index = 0;
			phase ^= 1;
		}
		if (++n == lane->cq_size)
			break;
		dw3 = load_dw3(lane, index);
	}
	return n;
}

/* The direction of a command's data is in its opcode [NVMe 3.3.3.1, CDW0]: bit 0 from the host, bit 1 to it. */
LANEFS_FN void count_bytes(lanefs_lane *lane, const lanefs_cid *c) {
	if ((c->opcode & 3) == 1)
		lane->totals.bytes_written += c->len;
	else if ((c->opcode & 3) == 2)
		lane->totals.bytes_read += c->len;
}

/* Answers the command of the entry at the head, which is new and was acquired, and moves the head on. */
LANEFS_FN void reap(lanefs_lane *lane, uint64_t now) {
	const uint64_t *cqe = at<uint64_t>(lane->cq) + 2 * (uint64_t)lane->cq_head;
	uint64_t low = load(cqe), high = load(cqe + 1);
	if (++lane->cq_head == lane->cq_size) {
		lane->cq_head = 0;
		lane->cq_phase ^= 1;
	}
	lane->totals.completions++;

	uint32_t cid = (uint32_t)(high >> 32) & 0xffff, sqid = (uint32_t)(high >> 16) & 0xffff;
	lanefs_cid *c = cid_of(lane, cid);
	if (sqid != lane->sqid || cid >= lane->cid_count || c->state == LANEFS_CID_FREE) {
		/* One completion named the wrong command, so none of the others can be believed either. */
		lane->totals.spurious++;
		if (lane->failed == LANEFS_OK)
			lane->bad_cid = cid | sqid << 16;
		lane->failed = LANEFS_BAD_CQE;
		return;
	}
	if (c->state == LANEFS_CID_DEAD) {
		lane->totals.late++;
		return;
	}

	lanefs_result *r = answer(lane, c->tag, LANEFS_OK);
	r->status = (uint16_t)(high >> 49);
	r->dw0 = (uint32_t)low;
	r->dw1 = (uint32_t)(low >> 32);
	r->latency = now - c->posted;
	r->cid = (uint16_t)cid;
	r->sqhd = (uint16_t)high;
	if ((r->status & 0x7ff) != 0) /* SCT and SC */
		lane->totals.errors++;
	else
		count_bytes(lane, c);
	free_cid(lane, cid);
	lane->in_flight--;
}

} // namespace lanefs

#endif
