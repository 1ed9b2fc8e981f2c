/*
 * A kernel's copy of its lane: LANEFS_LOCAL(team, lane, p) declares `lane` for the one at p, write_back() stores it there again, and
 * LANEFS_RELOAD(team, lane, p) reads it anew into the copy that `lane` points to.
 *
 * A loop keeps its lane in registers on a GPU, where every access to the lane's own memory would be a trip to L2, and
 * stores the state when it leaves: the fields one by one, because a copy of the whole struct would keep it in
 * scratch memory. On a CPU the lane is in the first-level cache anyway, and there is no copy.
 */
#ifndef LANEFS_LOCAL_H
#define LANEFS_LOCAL_H

#include "team.h"

namespace lanefs {

#if defined(LANEFS_COPIES)
#define LANEFS_LOCAL(T, lane, p) \
	lanefs_lane lane = *(p); \
	if (self<T>() != 0) /* the sums of the team's threads make the lane's */ \
	lane.totals.bytes_read = lane.totals.bytes_written = 0
#define LANEFS_RELOAD(T, lane, p) \
	do { \
		*(lane) = *(p); \
		if (self<T>() != 0) \
			(lane)->totals.bytes_read = (lane)->totals.bytes_written = 0; \
	} while (0)
template <typename T> LANEFS_FN void write_back(lanefs_lane *p, const lanefs_lane *lane) {
	uint64_t bytes_read = sum<T>(lane->totals.bytes_read), bytes_written = sum<T>(lane->totals.bytes_written);
	if (self<T>() != 0)
		return;
	p->sq_tail = lane->sq_tail;
	p->cq_head = lane->cq_head;
	p->cq_phase = lane->cq_phase;
	p->work_next = lane->work_next;
	p->result_next = lane->result_next;
	p->in_flight = lane->in_flight;
	p->cid_head = lane->cid_head;
	p->cid_tail = lane->cid_tail;
	p->dead_cids = lane->dead_cids;
	p->next_deadline = lane->next_deadline;
	p->failed = lane->failed;
	p->bad_cid = lane->bad_cid;
	p->totals.commands = lane->totals.commands;
	p->totals.completions = lane->totals.completions;
	p->totals.bytes_read = bytes_read;
	p->totals.bytes_written = bytes_written;
	p->totals.sq_doorbells = lane->totals.sq_doorbells;
	p->totals.cq_doorbells = lane->totals.cq_doorbells;
	p->totals.errors = lane->totals.errors;
	p->totals.timeouts = lane->totals.timeouts;
	p->totals.late = lane->totals.late;
	p->totals.spurious = lane->totals.spurious;
	p->totals.rejected = lane->totals.rejected;
}
#else
#define LANEFS_LOCAL(T, lane, p) lanefs_lane &lane = *(p)
#define LANEFS_RELOAD(T, lane, p) (void)0
template <typename T> LANEFS_FN void write_back(lanefs_lane *, const lanefs_lane *) {}
#endif

} // namespace lanefs

#endif
