/*
 * The states of a lane, as the CPU sees them: made ready, stepped, run by a resident kernel, parked.
 *
 *     NEW --reset--> READY --step, batch--> READY
 *                      |
 *                   resident       +-- work was there --+
 *                      v           v                    |
 *                   RUNNING --> PARKING --------------> PARKED --resident--> RUNNING
 *
 * The CPU, having published work for a resident lane, runs a full fence and reads the state: PARKED means launch again,
 * PARKING means look again. The lane, idle, stores PARKING, runs a full fence and polls the work ring once more. Of the two
 * at least one sees the other's store, so no work is left behind.
 */
#ifndef LANEFS_LIFECYCLE_H
#define LANEFS_LIFECYCLE_H

#include "step.h"

namespace lanefs {

/* Whether the CPU's layout of a lane is this kernel's. */
LANEFS_FN bool is_ours(const lanefs_lane *lane) {
	return lane->magic == LANEFS_MAGIC && lane->version == LANEFS_VERSION && lane->size == sizeof(lanefs_lane);
}

/* Whether sizes and addresses are ones that a lane can work with. */
LANEFS_FN bool is_sane(const lanefs_lane *lane) {
	uint64_t page = lane->page_size, stride = lane->prp_stride;
	bool powers = lane->ring_size != 0 && (lane->ring_size & (lane->ring_size - 1)) == 0 && page >= 4096 && (page & (page - 1)) == 0;
	bool queues = lane->sq_size <= 65536 && lane->cq_size <= 65536 && lane->cid_count != 0 && lane->cid_count < LANEFS_NO_CID &&
		lane->cid_count < lane->sq_size && lane->cid_count < lane->cq_size;
	bool lists = stride != 0 && (stride & 7) == 0 && (stride < page ? (stride & (stride - 1)) == 0 : (stride & (page - 1)) == 0) &&
		((lane->prp | lane->prp_iova) & (page - 1)) == 0;
	bool aligned = ((lane->sq | lane->cq | lane->work | lane->results | lane->cids | lane->control | lane->status | lane->counters) & 63) == 0 &&
		((lane->sq_doorbell | lane->cq_doorbell) & 3) == 0;
	return powers && queues && lists && aligned;
}

/* Makes the lane ready for a queue pair that is about to be created. What an earlier one left in flight is answered. */
LANEFS_FN void reset(lanefs_lane *lane) {
	if (!is_ours(lane))
		return; /* the address of the status may be wrong too: the state stays LANEFS_NEW */
	lane->ready = 0;
	lanefs_status *status = at<lanefs_status>(lane->status);
	if (!is_sane(lane)) {
		lane->failed = LANEFS_BAD_LANE;
		store(&status->failed, (uint32_t)LANEFS_BAD_LANE);
		store(&status->state, (uint32_t)LANEFS_NEW);
		return;
	}
	uint32_t first_result = lane->result_next;
	answer_in_flight<single>(lane, LANEFS_QUEUE_DEAD);
	lane->cid_head = 0;
	lane->cid_tail = 0;
	for (uint32_t cid = 0; cid < lane->cid_count; cid++) {
		cid_of(lane, cid)->state = LANEFS_CID_FREE;
		cid_of(lane, cid)->free = (uint16_t)cid;
	}
	nvme::init(lane);
	lane->in_flight = 0;
	lane->dead_cids = 0;
	lane->next_deadline = ~0ull;
	lane->failed = LANEFS_OK;
	lane->bad_cid = 0;
	lane->ready = LANEFS_MAGIC;
	release(); /* orders results before their seq, and the CQ's zeroes before the state by which the CPU creates the queue */
	publish<single>(lane, first_result);
	report<single>(lane, true, 0);
	store(&status->state, (uint32_t)LANEFS_READY);
}

/* Whether reset() has accepted the lane. */
LANEFS_FN bool is_ready(const lanefs_lane *lane) {
	return is_ours(lane) && lane->ready == LANEFS_MAGIC;
}

/* All together: whether there is work. */
template <typename T> LANEFS_FN bool has_work(lanefs_lane *lane) {
	return broadcast<T>(load(seq_at(lane, 0)), 0) == lane->work_next + 1;
}

/* All together: steps until nothing is in flight and no work is left, or `ticks` have passed. */
template <typename T> LANEFS_FN void batch(lanefs_lane *lane, uint64_t ticks) {
	uint64_t start = time<T>(), now = start;
	do {
		uint32_t command;
		if (!step<T>(lane, &now, 1, &command))
			pause(0);
		now = time<T>();
	} while ((lane->in_flight != 0 || has_work<T>(lane)) && now - start < ticks);
	report<T>(lane, true, now);
}

template <typename T> LANEFS_FN void set_state(lanefs_status *status, uint32_t state) {
	if (self<T>() == 0)
		store(&status->state, state);
}

/* Of `idle` being 2 ms, a heartbeat every 31 µs. */
constexpr uint64_t heartbeats = 64;

template <typename T> LANEFS_FN void heartbeat(lanefs_status *status, uint64_t now) {
	if (self<T>() == 0)
		store(&status->time, now);
}

/* Polls without success before a resident lane reports and pauses. */
constexpr uint32_t polls_before_pause = 16;

/* How long a resident lane pauses between polls: of `idle` being 2 ms, at most 16 µs, and 1 µs while it waits for work only. */
LANEFS_FN uint64_t pause_ticks(const lanefs_lane *lane, uint64_t waited, uint64_t idle) {
	uint64_t most = idle / (lane->in_flight != 0 ? 128 : 2048);
	return waited / 16 < most ? waited / 16 : most;
}

/*
 * All together: the resident loop. It leaves when the control word is LANEFS_PARK, after `idle` ticks with nothing to do,
 * and after `limit` ticks in any case. A report takes time and stores over PCIe, so the loop makes one after some steps
 * in a row with nothing to do, when it leaves, and at least every `idle` ticks. The clock in it is a heartbeat, stored more often:
 * by it the CPU sees early that the device runs something else. The loop pauses between polls only after such steps, for a part of
 * the time that has passed since the last progress: polls of many lanes take of the bus what data could have.
 */
template <typename T> LANEFS_FN void resident(lanefs_lane *lane, uint64_t idle, uint64_t limit) {
	lanefs_status *status = at<lanefs_status>(lane->status);
	set_state<T>(status, LANEFS_RUNNING);
	/* When it had something to do, made a report, made progress, stored a heartbeat. */
	uint64_t start = time<T>(), busy = start, reported = start, moved = start, beat = start;
	heartbeat<T>(status, start);
	bool unreported = false; /* progress since the last report */
	constexpr uint32_t tries = T::one_load ? 4 : 1, max_empty = polls_before_pause / tries;
	uint32_t empty = 0; /* steps without progress, in a row */
	for (;;) {
		uint32_t command;
		uint64_t now = time<T>();
		bool progress = step<T>(lane, &now, tries, &command);
		unreported = unreported || progress;
		empty = progress ? 0 : empty + 1;
		moved = progress ? now : moved;
		if (progress || lane->in_flight != 0)
			busy = now;
		if (now - beat >= idle / heartbeats) {
			heartbeat<T>(status, now);
			beat = now;
		}
		if ((unreported && lane->in_flight == 0 && empty >= max_empty) || now - reported >= idle) {
			report<T>(lane, unreported, now);
			reported = now;
			unreported = false;
		}
		bool must = command == LANEFS_PARK || now - start >= limit;
		if (must || now - busy >= idle) {
			set_state<T>(status, LANEFS_PARKING);
			full(); /* orders the store of PARKING before the load of the next seq */
			sync_team<T>();
			if (must || !has_work<T>(lane))
				return;
			set_state<T>(status, LANEFS_RUNNING);
			busy = now;
		}
		if (empty >= max_empty)
			pause(pause_ticks(lane, now - moved, idle));
	}
}

} // namespace lanefs

#endif
