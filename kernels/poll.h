/*
 * Polling: one look at all that may have come for a lane, which are completions, work items, and the control word.
 *
 * poll() is that look. Its loads do not wait for one another, since each may be a trip over PCIe. A thread loads the CQEs
 * and the work items of its own slots; what is new is then counted by all together. poll_cq() and poll_work() are its
 * parts, which a step uses alone once it knows that there is more.
 *
 * A wave of an NVIDIA GPU makes one load of it while few commands are in flight: each thread has a word of its own to look at,
 *
 *     0 to 15   the next work item, word by word
 *     16        the control word
 *     17 to 19  the seqs of the items after it
 *     20 to 31  DW2 and DW3 of the next completions
 *
 * The words of one instruction go to the CPU's memory and back together; each instruction more makes the trip of 2,100
 * cycles some 170 cycles longer (measured on an H100: docs/PERFORMANCE.md), and a wave that waits for one command would
 * have four.
 */
#ifndef LANEFS_POLL_H
#define LANEFS_POLL_H

#include "team.h"

namespace lanefs {

/* Completions. */

/* What a poll of the CQ found: DW2 and DW3 of each slot's entry, and how many are new from the head on. */
template <typename T> struct polled_cq {
	uint64_t dw23[T::K];
	uint32_t n;
	uint64_t found; /* when, in kernels that trace (trace.h) */
};

/* Completions that may come: of commands that wait for theirs, and of those that timed out. */
LANEFS_FN uint32_t outstanding(const lanefs_lane *lane) { return lane->in_flight + lane->dead_cids; }

/* Whether a batch from the n-th entry on can be there, none of it beyond the end of the queue. */
template <typename T> LANEFS_FN bool cq_contiguous(const lanefs_lane *lane, uint32_t n) {
	return outstanding(lane) >= n + T::slots && contiguous<T>(lane->cq_head + n, lane->cq_size);
}

/* Loads DW2 and DW3 of such a batch. */
template <typename T> LANEFS_FN void poll_cq_contiguous(const lanefs_lane *lane, polled_cq<T> *c, uint32_t n) {
	const uint64_t *p = nvme::cqe_at(lane, n, true) + 1;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		c->dw23[k] = load(p + 2 * k);
}

/* Loads DW2 and DW3 of the next entries, all of them in flight together. */
template <typename T> LANEFS_FN void poll_cq(const lanefs_lane *lane, polled_cq<T> *c) {
	if (T::multi_slot && cq_contiguous<T>(lane, 0)) {
		poll_cq_contiguous<T>(lane, c, 0);
		return;
	}
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		uint32_t s = slot<T>(k);
		c->dw23[k] = nvme::not_new(lane);
		if (s < lane->cq_size && s < outstanding(lane))
			c->dw23[k] = nvme::poll(lane, s, T::acquires);
	}
}

/* All together: counts the new entries. */
template <typename T> LANEFS_FN void count_cq(const lanefs_lane *lane, polled_cq<T> *c) {
	bool fresh[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		fresh[k] = nvme::is_new(lane, c->dw23[k]) && slot<T>(k) < lane->cq_size;
	c->n = leading(ballot_slots<T>(fresh));
}

/* Work items. */

/* The slot of the n-th item from the next one on, and its seq. */
LANEFS_FN const uint64_t *work_at(const lanefs_lane *lane, uint32_t n) {
	return at<const uint64_t>(lane->work) + LANEFS_WORK_SLOT / 8 * (uint64_t)((lane->work_next + n) & (lane->ring_size - 1));
}
LANEFS_FN const uint32_t *seq_at(const lanefs_lane *lane, uint32_t n) { return (const uint32_t *)work_at(lane, n); }

/*
 * What a poll of the work ring found: the seq of each slot, and how many items are there from the next one on. A wave
 * also loads the next item whole, a word a thread: a lone command then costs one trip to the CPU's memory, not two. A
 * thread with several slots looks at several batches at once, since a fence must order their seqs before them, which
 * costs as much as a batch.
 */
template <typename T> struct polled_work {
	static constexpr uint32_t loads = T::multi_slot ? 16 : T::K, max = loads * T::W;
	uint64_t word; /* of the next item */
	uint32_t seq[loads];
	uint32_t n;
};
constexpr uint32_t work_words = LANEFS_WORK_SLOT / 8;

/*
 * How many seqs a step polls before it knows of any item: enough for a caller or two, and little traffic while there is
 * none.
 */
constexpr uint32_t first_seqs = 4;

/*
 * Loads the seqs of up to `max` next items, all in flight together. Unless they are `ordered`, these loads order nothing:
 * a wave's, which come with the next item whole, are made again before the others are read. No two loads are of one line:
 * an NVIDIA GPU has one trip at a time to a line of the CPU's memory.
 */
template <typename T> LANEFS_FN void poll_work(const lanefs_lane *lane, polled_work<T> *w, uint32_t max, bool ordered) {
	bool whole = T::W > 1 && !ordered;
	if (whole)
		w->word = load(work_at(lane, 0) + self<T>() % work_words);
#pragma unroll
	for (uint32_t k = 0; k < w->loads; k++) {
		uint32_t s = slot<T>(k);
		w->seq[k] = lane->work_next; /* the next item's is one more */
		if (s < lane->ring_size && s < max && !(whole && s == 0)) {
			const uint32_t *seq = seq_at(lane, s);
			w->seq[k] = T::acquires && ordered ? load_acquire(seq) : load(seq);
		}
	}
	if (whole && self<T>() == 0)
		w->seq[0] = (uint32_t)w->word;
}

/* All together: counts the items that are there. */
template <typename T> LANEFS_FN void count_work(const lanefs_lane *lane, polled_work<T> *w) {
	bool there[polled_work<T>::loads];
#pragma unroll
	for (uint32_t k = 0; k < w->loads; k++)
		there[k] = w->seq[k] == lane->work_next + slot<T>(k) + 1;
	w->n = leading(ballot_slots<T>(there));
}

/* All of it. */

#if defined(__NVPTX__)

/* The first thread of each kind of word. */
constexpr uint32_t control_thread = work_words, seq_thread = control_thread + 1, cqe_thread = seq_thread + first_seqs - 1;
constexpr uint32_t max_cqes = wave_size - cqe_thread;

/* Whether one load sees all that may have come. */
template <typename T> LANEFS_FN bool fits_one_load(const lanefs_lane *lane) { return T::one_load && outstanding(lane) <= max_cqes; }

/* All together: poll() by one load of the wave, `tries` times at most, until something is there. */
template <typename T> LANEFS_FN uint32_t poll_one_load(const lanefs_lane *lane, polled_work<T> *w, polled_cq<T> *c, uint32_t tries) {
	uint32_t s = self<T>(), n = s - cqe_thread, expected = outstanding(lane);
	bool cqe = s >= cqe_thread, there = cqe && n < expected && n < lane->cq_size;
	const uint64_t *p = at<const uint64_t>(lane->control);
	if (s < work_words)
		p = work_at(lane, 0) + s;
	else if (s >= seq_thread && !cqe)
		p = work_at(lane, s - seq_thread + 1);
	else if (there)
		p = nvme::cqe_at(lane, n) + 1;
	uint64_t turn = nvme::wraps(lane, n) ? nvme::phase_bit : 0, absent = nvme::not_new(lane), v;
	do {
		v = expected != 0 ? load_acquire(p) : load(p);
		if (cqe)
			v = there ? v ^ turn : absent;
		bool found = s == 0 ? (uint32_t)v == lane->work_next + 1 : s == control_thread ? ((uint32_t)v & (0xff | LANEFS_HOLD)) != LANEFS_RUN :
			cqe && nvme::is_new(lane, v);
		if (ballot<T>(found) != 0)
			break;
	} while (--tries != 0);
	uint32_t command = broadcast<T>((uint32_t)v, control_thread);
	w->word = v;
	uint32_t seq = shuffle<T>((uint32_t)v, s == 0 ? 0 : seq_thread + s - 1);
	w->seq[0] = s < first_seqs ? seq : lane->work_next;
	count_work<T>(lane, w);
	uint32_t low = shuffle<T>((uint32_t)v, cqe_thread + s), high = shuffle<T>((uint32_t)(v >> 32), cqe_thread + s);
	c->dw23[0] = s < max_cqes ? (uint64_t)high << 32 | low : absent;
	count_cq<T>(lane, c);
	return command;
}

/*
 * All together: what was just sent travels to the CPU or the controller, and its answer back, longer than a poll takes to
 * get to the CPU's memory. A poll made at once sees nothing, and the next has to wait for it: a lone command then took up
 * to two trips more (docs/PERFORMANCE.md). These are some 0.3 µs.
 */
LANEFS_FN void delay_poll() { spin(600); }

#else

template <typename T> LANEFS_FN bool fits_one_load(const lanefs_lane *) { return false; }
template <typename T> LANEFS_FN uint32_t poll_one_load(const lanefs_lane *, polled_work<T> *, polled_cq<T> *, uint32_t) { return LANEFS_RUN; }
LANEFS_FN void delay_poll() {}

#endif

/*
 * All together: polls all that may have come, and returns the control word. Where that is one load it is made up to
 * `tries` times, until something is there. With nothing outstanding the CQ is left alone.
 */
template <typename T> LANEFS_FN uint32_t poll(const lanefs_lane *lane, polled_work<T> *w, polled_cq<T> *c, uint32_t tries) {
	if (fits_one_load<T>(lane))
		return poll_one_load<T>(lane, w, c, tries);
	bool idle = outstanding(lane) == 0;
	c->n = 0;
	uint32_t command = load(&at<lanefs_control>(lane->control)->command);
	poll_work<T>(lane, w, first_seqs, T::W == 1 && idle);
	if (!idle) {
		poll_cq<T>(lane, c);
		count_cq<T>(lane, c);
	}
	count_work<T>(lane, w);
	return broadcast<T>(command, 0);
}

} // namespace lanefs

#endif
