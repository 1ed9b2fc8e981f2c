/*
 * The step: all that a lane can do now, without waiting.
 *
 *  1. Load the control word, DW3 at the CQ's head and the next work item's seq: three loads that do not wait for one
 *     another, since each may be a trip over PCIe.
 *  2. If the queue pair has failed, answer everything that asks (steps 3 to 5 fall away).
 *  3. Reap every new completion.
 *  4. Post work while there is some and CIDs are free.
 *  5. If the earliest deadline has passed, answer the commands that missed theirs.
 *  6. One release. It orders the SQEs and PRP lists before the SQ doorbell, the results before their seq, and the
 *     reads of CQEs before the CQ doorbell.
 *  7. Ring the SQ doorbell if anything was posted, publish the results, ring the CQ doorbell if anything was reaped.
 *
 * A lane reaps before it posts because that frees CIDs.
 */
#ifndef LANEFS_STEP_H
#define LANEFS_STEP_H

#include "post.h"
#include "reap.h"
#include "ring.h"

namespace lanefs {

/* Answers commands whose deadline is over. Their CIDs are lost until lanefs_reset: a completion may still come. */
LANEFS_FN void expire(lanefs_lane *lane, uint64_t now) {
	uint64_t next = ~0ull;
	for (uint32_t cid = 0; cid < lane->cid_count; cid++) {
		lanefs_cid *c = cid_of(lane, cid);
		if (c->state != LANEFS_CID_BUSY)
			continue;
		if (now < c->deadline) {
			next = c->deadline < next ? c->deadline : next;
			continue;
		}
		c->state = LANEFS_CID_DEAD;
		lane->dead_cids++;
		lane->in_flight--;
		lane->totals.timeouts++;
		lanefs_result *r = answer(lane, c->tag, LANEFS_TIMEOUT);
		r->latency = now - c->posted;
		r->cid = (uint16_t)cid;
	}
	lane->next_deadline = next;
	if (lane->dead_cids == lane->cid_count)
		lane->failed = LANEFS_QUEUE_DEAD;
}

/* Answers everything in flight and all work that waits, with the reason of the failure. */
LANEFS_FN void refuse(lanefs_lane *lane, uint32_t seq) {
	answer_in_flight(lane, (uint8_t)lane->failed);
	for (; is_work(lane, seq); seq = load(&next_work(lane)->seq)) {
		acquire(); /* orders the load of seq before that of the tag */
		answer(lane, next_work(lane)->tag, (uint8_t)lane->failed);
		lane->work_next++;
		lane->totals.rejected++;
	}
}

/* One step of a lane that lanefs_reset has made ready. Returns whether it did anything, and the control word. */
LANEFS_FN bool step(lanefs_lane *lane, uint64_t now, uint32_t *command) {
	*command = load(&at<lanefs_control>(lane->control)->command);
	uint32_t dw3 = load_dw3(lane, lane->cq_head);
	uint32_t seq = load(&next_work(lane)->seq);

	uint32_t first_result = lane->result_next, first_work = lane->work_next;
	uint64_t commands = lane->totals.commands;
	if (*command == LANEFS_FAIL && lane->failed == LANEFS_OK)
		lane->failed = LANEFS_QUEUE_DEAD;

	uint32_t reaped = 0;
	if (lane->failed == LANEFS_OK) {
		reaped = count_new(lane, dw3);
		if (reaped != 0)
			acquire(); /* orders the loads of DW3 before those of DW0 to DW2 */
		for (uint32_t n = reaped; n != 0 && lane->failed == LANEFS_OK; n--)
			reap(lane, now);
		while (lane->failed == LANEFS_OK && lane->cid_free != LANEFS_NO_CID && is_work(lane, seq)) {
			acquire(); /* orders the load of seq before those of the item */
			post(lane, now);
			seq = load(&next_work(lane)->seq);
		}
		if (now >= lane->next_deadline)
			expire(lane, now);
	}
	if (lane->failed != LANEFS_OK)
		refuse(lane, seq);

	if (reaped == 0 && lane->work_next == first_work && lane->result_next == first_result)
		return false;
	release();
	if (lane->totals.commands != commands)
		ring_sq(lane);
	publish(lane, first_result);
	if (reaped != 0)
		ring_cq(lane);
	return true;
}

/* Tells the CPU how the lane stands. Counters change only with progress. */
LANEFS_FN void report(lanefs_lane *lane, bool progress, uint64_t now) {
	lanefs_status *s = at<lanefs_status>(lane->status);
	store(&s->progress, (uint32_t)progress);
	store(&s->time, now);
	if (!progress)
		return;
	store(&s->in_flight, lane->in_flight);
	store(&s->dead_cids, lane->dead_cids);
	store(&s->failed, lane->failed);
	store(&s->work_next, lane->work_next);
	store(&s->result_next, lane->result_next);
	store(&s->bad_cid, lane->bad_cid);
	lanefs_counters *c = at<lanefs_counters>(lane->counters);
	const lanefs_counters *t = &lane->totals;
	store(&c->commands, t->commands);
	store(&c->completions, t->completions);
	store(&c->bytes_read, t->bytes_read);
	store(&c->bytes_written, t->bytes_written);
	store(&c->sq_doorbells, t->sq_doorbells);
	store(&c->cq_doorbells, t->cq_doorbells);
	store(&c->errors, t->errors);
	store(&c->timeouts, t->timeouts);
	store(&c->late, t->late);
	store(&c->spurious, t->spurious);
	store(&c->rejected, t->rejected);
}

} // namespace lanefs

#endif
