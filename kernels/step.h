/*
 * The step: all that a lane can do now, without waiting.
 *
 *  1. Poll the control word, the CQ and the work ring (poll.h).
 *  2. If the queue pair has failed, answer everything with the reason; steps 3 to 5 fall away.
 *  3. Reap every new completion.
 *  4. Post work while there is some and CIDs are free.
 *  5. If the earliest deadline has passed, answer the commands that missed theirs.
 *  6. One release. It orders the SQEs and PRP lists before the SQ doorbell, the results before their seq, and the
 *     reads of CQEs before the CQ doorbell. The team synchronizes before it: the thread that rings has then seen what the
 *     others stored, and releases that too. On NVIDIA a release takes most of a microsecond, polls are acquires by themselves,
 *     and no word of a result is ever torn; there three things only need it: what was posted, reads of DW0 and DW1, and a
 *     failure, whose details come before the results that report it.
 *  7. Ring the SQ doorbell if anything was posted, publish the results, ring the CQ doorbell if anything was reaped. Results
 *     that need no release are published after step 3. Where each poll is a trip that the next one waits for, a moment passes before
 *     the first that could see an answer.
 *
 * A lane reaps before it posts because that frees CIDs.
 */
#ifndef LANEFS_STEP_H
#define LANEFS_STEP_H

#include "post.h"
#include "reap.h"
#include "ring.h"
#include "trace.h"

namespace lanefs {

/* All together: answers commands whose deadline has passed. Their completions may still come. */
template <typename T> LANEFS_FN void expire(lanefs_lane *lane, uint64_t now) {
	lane->next_deadline = end_expired<T>(lane, LANEFS_TIMEOUT, now, now);
	if (lane->dead_cids == lane->cid_count)
		lane->failed = LANEFS_QUEUE_DEAD;
}

/* All together: answers everything in flight and all work in the ring with the reason of the failure. */
template <typename T> LANEFS_FN void answer_all_failed(lanefs_lane *lane, polled_work<T> *w) {
	answer_in_flight<T>(lane, (uint8_t)lane->failed);
	for (;;) {
		poll_work<T>(lane, w, T::slots, true);
		count_work<T>(lane, w);
		if (w->n == 0)
			return;
		if (!T::acquires)
			acquire(); /* orders the load of seq before that of the tag */
		else
			sync_team<T>(); /* one thread's poll counts what others answer */
#pragma unroll
		for (uint32_t k = 0; k < T::K; k++)
			if (slot<T>(k) < w->n)
				answer(lane, slot<T>(k), {(uint16_t)(work_at(lane, slot<T>(k))[1] >> 48), 0, 0, 0, 0, LANEFS_NO_CID, 0, (uint8_t)lane->failed});
		lane->result_next += w->n;
		lane->work_next += w->n;
		lane->totals.rejected += w->n;
	}
}

/*
 * All together: one step of a lane that lanefs_reset has made ready. `*when` is the time, the same for all; a wave that
 * may poll more than once sets it anew. Returns whether it did anything, and the control word.
 */
template <typename T> LANEFS_FN bool step(lanefs_lane *lane, uint64_t *when, uint32_t tries, uint32_t *command) {
	bool idle = outstanding(lane) == 0;
	polled_work<T> w;
	polled_cq<T> c;
	next_cids<T> cids;
	look_up_cids<T>(lane, &cids);
	*command = poll<T>(lane, &w, &c, tries);
	if (T::one_load && tries > 1)
		*when = time<T>();
	uint64_t now = *when;

	uint32_t first_result = lane->result_next, first_work = lane->work_next;
	uint64_t commands = lane->totals.commands;
	if (LANEFS_COMMAND(*command) == LANEFS_FAIL && lane->failed == LANEFS_OK)
		lane->failed = LANEFS_QUEUE_DEAD;

	bool dw01_read = false;
	uint32_t reaped = reap_new<T>(lane, &c, now, &dw01_read);
	if (T::acquires && reaped != 0 && !dw01_read && lane->failed == LANEFS_OK && !traced) { /* before work is posted, which takes time */
		sync_team<T>();
		publish<T>(lane, first_result);
		first_result = lane->result_next;
	}
	sync_team<T>(); /* CIDs that one thread gave back are there for another to take */
	posting trace = {lane->cid_head, stamp<T>(), 0, 0, 0};
	if (lane->failed == LANEFS_OK) {
		bool more = w.max > first_seqs && w.n == first_seqs; /* probably */
		post_work<T>(lane, &w, now, more || (T::acquires && (T::W > 1 || !idle)), &cids);
		trace.built = stamp<T>();
		if (now >= lane->next_deadline)
			expire<T>(lane, now);
	}
	if (lane->failed != LANEFS_OK) {
		answer_all_failed<T>(lane, &w);
		if (self<T>() == 0) /* the CPU reads it as soon as a result gives the reason */
			store(&at<lanefs_status>(lane->status)->bad_cid, lane->bad_cid);
	}

	if (reaped == 0 && lane->work_next == first_work && lane->result_next == first_result)
		return false;
	sync_team<T>();
	bool posted = lane->totals.commands != commands;
	if (posted || dw01_read || lane->failed != LANEFS_OK || !T::acquires || (traced && reaped != 0))
		release();
	trace.released = stamp<T>();
	if (posted)
		ring_sq<T>(lane);
	trace.rung = stamp<T>();
	trace_posted<T>(lane, trace, (uint32_t)(lane->totals.commands - commands));
	publish<T>(lane, first_result);
	if (reaped != 0)
		ring_cq<T>(lane);
	if (T::one_load && lane->in_flight == (uint32_t)(lane->totals.commands - commands)) /* nothing else is on its way */
		delay_poll();
	return true;
}

/* All together: shows the CPU the state of the lane, but for bad_cid, which step() shows. Counters change only with progress. */
template <typename T> LANEFS_FN void report(lanefs_lane *lane, bool progress, uint64_t now) {
	uint64_t bytes_read = 0, bytes_written = 0;
	if (progress) {
		bytes_read = sum<T>(lane->totals.bytes_read);
		bytes_written = sum<T>(lane->totals.bytes_written);
	}
	if (self<T>() != 0)
		return;
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
	lanefs_counters *c = at<lanefs_counters>(lane->counters);
	const lanefs_counters *t = &lane->totals;
	store(&c->commands, t->commands);
	store(&c->completions, t->completions);
	store(&c->bytes_read, bytes_read);
	store(&c->bytes_written, bytes_written);
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
