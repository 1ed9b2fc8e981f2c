/*
 * Posting: a work item becomes a submission queue entry [NVMe 3.3.3.1]. The doorbell is rung later, once for a batch.
 */
#ifndef LANEFS_POST_H
#define LANEFS_POST_H

#include "answer.h"
#include "prp.h"

namespace lanefs {

LANEFS_FN lanefs_work *next_work(lanefs_lane *lane) {
	return at<lanefs_work>(lane->work) + (lane->work_next & (lane->ring_size - 1));
}

/* Whether the work item that comes next is there, given its seq. */
LANEFS_FN bool is_work(lanefs_lane *lane, uint32_t seq) { return seq == lane->work_next + 1; }

/*
 * Takes the next work item, which is there and was acquired, and posts it under a free CID, which exists. The SQ has
 * room: every command not yet fetched holds a CID, and there are fewer CIDs than entries.
 */
LANEFS_FN void post(lanefs_lane *lane, uint64_t now) {
	lanefs_work w = *next_work(lane);
	lane->work_next++;
	uint32_t cid = lane->cid_free;
	uint64_t list = (uint64_t)cid * lane->prp_stride;
	prps p = build_prps(at<uint64_t>(lane->prp + list), lane->prp_iova + list, lane->prp_stride, lane->page_size, w.iova, w.len);
	if (!p.ok) {
		lane->totals.rejected++;
		answer(lane, w.tag, LANEFS_BAD_WORK);
		return;
	}
	take_cid(lane);

	lanefs_cid *c = cid_of(lane, cid);
	uint64_t deadline = now + w.timeout;
	if (w.timeout == 0 || deadline < now)
		deadline = ~0ull;
	c->posted = now;
	c->deadline = deadline;
	c->len = w.len;
	c->tag = w.tag;
	c->state = LANEFS_CID_BUSY;
	c->opcode = w.opcode;
	if (deadline < lane->next_deadline)
		lane->next_deadline = deadline;

	/* Four wide stores and nothing between them; the batch's release makes them visible. */
	quad *sqe = at<quad>(lane->sq) + 4 * (uint64_t)lane->sq_tail;
	sqe[0] = quad{(uint32_t)w.opcode | (uint32_t)w.flags << 8 | cid << 16, w.nsid, 0, 0};
	sqe[1] = quad{(uint32_t)w.mptr, (uint32_t)(w.mptr >> 32), (uint32_t)p.prp1, (uint32_t)(p.prp1 >> 32)};
	sqe[2] = quad{(uint32_t)p.prp2, (uint32_t)(p.prp2 >> 32), w.cdw10, w.cdw11};
	sqe[3] = quad{w.cdw12, w.cdw13, w.cdw14, w.cdw15};

	if (++lane->sq_tail == lane->sq_size)
		lane->sq_tail = 0;
	lane->in_flight++;
	lane->totals.commands++;
}

} // namespace lanefs

#endif
