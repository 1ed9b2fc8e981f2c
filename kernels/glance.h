/*
 * A glance: a wave's poll of all that may have come, made by one load. Each thread has a word of its own to look at:
 *
 *     0 to 15   the next work item, word by word, as poll_work has it
 *     16        the control word
 *     17 to 19  the seqs of the items after it
 *     20 to 31  DW2 and DW3 of the next completions, as poll_cq has them
 *
 * The words of one instruction go to the CPU's memory and back together; each instruction more makes the trip of 2,100 cycles some
 * 170 cycles longer (measured on an H100: docs/PERFORMANCE.md), and a wave that waits for one command would have four.
 * More completions than these are polled by poll_cq.
 */
#ifndef LANEFS_GLANCE_H
#define LANEFS_GLANCE_H

#include "post.h"
#include "reap.h"

namespace lanefs {

/* What a step polls of its work before it knows of any: enough for a caller or two, and little traffic while there is none. */
constexpr uint32_t idle_polls = 4;

#if defined(__NVPTX__)

constexpr uint32_t glance_control = work_words, glance_seqs = glance_control + 1, glance_cqes = glance_seqs + idle_polls - 1;
constexpr uint32_t glance_most = wave_size - glance_cqes; /* completions */

/* Whether a glance sees all that a step has to. */
template <typename T> LANEFS_FN bool can_glance(const lanefs_lane *lane) {
	return T::glances && lane->in_flight + lane->dead_cids <= glance_most;
}

/*
 * All together: looks `times` times at most, until something is there. It leaves w, c and the control word as poll_work, poll_cq and the
 * counts would.
 */
template <typename T> LANEFS_FN void glance(lanefs_lane *lane, waiting<T> *w, completed<T> *c, uint32_t *command, uint32_t times) {
	uint32_t s = self<T>(), n = s - glance_cqes, expected = lane->in_flight + lane->dead_cids;
	bool cqe = s >= glance_cqes, there = cqe && n < expected && n < lane->cq_size;
	const uint64_t *p = at<const uint64_t>(lane->control);
	if (s < work_words)
		p = work_at(lane, 0) + s;
	else if (s >= glance_seqs && !cqe)
		p = work_at(lane, s - glance_seqs + 1);
	else if (there)
		p = nvme::cqe_at(lane, n) + 1;
	uint64_t turn = nvme::wraps(lane, n) ? nvme::phase_bit : 0, absent = nvme::not_new(lane), v;
	do {
		v = expected != 0 ? load_acquire(p) : load(p);
		if (cqe)
			v = there ? v ^ turn : absent;
		bool news = s == 0 ? (uint32_t)v == lane->work_next + 1 : s == glance_control ? (uint32_t)v != LANEFS_RUN :
			cqe && nvme::is_new(lane, v);
		if (ballot<T>(news) != 0)
			break;
	} while (--times != 0);
	*command = share<T>((uint32_t)v, glance_control);
	w->first = v;
	uint32_t seq = shuffle<T>((uint32_t)v, s == 0 ? 0 : glance_seqs + s - 1);
	w->seq[0] = s < idle_polls ? seq : lane->work_next;
	count_work<T>(lane, w);
	uint32_t low = shuffle<T>((uint32_t)v, glance_cqes + s), high = shuffle<T>((uint32_t)(v >> 32), glance_cqes + s);
	c->high[0] = s < glance_most ? (uint64_t)high << 32 | low : absent;
	count_new<T>(lane, c);
}

/*
 * All together: what was just sent travels to the CPU or the controller, and its answer back, longer than a glance takes to get to the
 * CPU's memory. One made at once sees nothing, and the next has to wait for it: a lone command then took up to two trips more
 * (docs/PERFORMANCE.md). These are some 0.3 µs.
 */
LANEFS_FN void let_travel() { spin(600); }

#else

LANEFS_FN void let_travel() {}
template <typename T> LANEFS_FN bool can_glance(const lanefs_lane *) { return false; }
template <typename T> LANEFS_FN void glance(lanefs_lane *, waiting<T> *, completed<T> *, uint32_t *, uint32_t) {}

#endif

} // namespace lanefs

#endif
