/*
 * The result ring, and the CIDs whose commands it answers.
 *
 * answer() fills the next result but does not show it; publish() shows all that were filled since, after a release by
 * the caller. So a step needs one release, however many results it has.
 */
#ifndef LANEFS_ANSWER_H
#define LANEFS_ANSWER_H

#include "device.h"

namespace lanefs {

LANEFS_FN lanefs_cid *cid_of(lanefs_lane *lane, uint32_t cid) { return at<lanefs_cid>(lane->cids) + cid; }

/*
 * Free CIDs are used in turn, the longest unused first: a completion that comes twice then meets a free CID and is
 * recognised, instead of answering the command that came after.
 */
LANEFS_FN uint32_t take_cid(lanefs_lane *lane) {
	uint32_t cid = lane->cid_free;
	lane->cid_free = cid_of(lane, cid)->next;
	return cid;
}

LANEFS_FN void free_cid(lanefs_lane *lane, uint32_t cid) {
	lanefs_cid *c = cid_of(lane, cid);
	c->state = LANEFS_CID_FREE;
	c->next = LANEFS_NO_CID;
	if (lane->cid_free == LANEFS_NO_CID)
		lane->cid_free = cid;
	else
		cid_of(lane, lane->cid_last)->next = (uint16_t)cid;
	lane->cid_last = cid;
}

LANEFS_FN lanefs_result *answer(lanefs_lane *lane, uint16_t tag, uint8_t engine) {
	lanefs_result *r = at<lanefs_result>(lane->results) + (lane->result_next & (lane->ring_size - 1));
	lane->result_next++;
	r->tag = tag;
	r->status = 0;
	r->dw0 = 0;
	r->dw1 = 0;
	r->latency = 0;
	r->cid = LANEFS_NO_CID;
	r->sqhd = 0;
	r->engine = engine;
	return r;
}

/* Shows the results from position `from` on. The release before it orders their contents before their seq. */
LANEFS_FN void publish(lanefs_lane *lane, uint32_t from) {
	lanefs_result *results = at<lanefs_result>(lane->results);
	for (; from != lane->result_next; from++)
		store(&results[from & (lane->ring_size - 1)].seq, from + 1);
}

/* Answers every command in flight with `engine`. Their CIDs stay retired: the controller may still hold them. */
LANEFS_FN void answer_in_flight(lanefs_lane *lane, uint8_t engine) {
	for (uint32_t cid = 0; lane->in_flight != 0 && cid < lane->cid_count; cid++) {
		lanefs_cid *c = cid_of(lane, cid);
		if (c->state != LANEFS_CID_BUSY)
			continue;
		c->state = LANEFS_CID_DEAD;
		lane->dead_cids++;
		lane->in_flight--;
		answer(lane, c->tag, engine)->cid = (uint16_t)cid;
	}
}

} // namespace lanefs

#endif
