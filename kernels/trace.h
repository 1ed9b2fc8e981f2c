/*
 * When the steps of a command happen (struct lanefs_trace), in kernels that are built with LANEFS_TRACE; in others nothing of this is
 * left. In them the results of a step come after a release that follows the traces, also where a result needs none.
 */
#ifndef LANEFS_TRACE_H
#define LANEFS_TRACE_H

#include "answer.h"

namespace lanefs {

#if defined(LANEFS_TRACE)
constexpr bool traced = true;
#else
constexpr bool traced = false;
#endif

/* All together: the time. */
template <typename T> LANEFS_FN uint64_t stamp() {
	if constexpr (traced)
		return time<T>();
	return 0;
}

/* What one step posts: the position of its first CID in the ring of free ones, and the times. */
struct posting {
	uint32_t first;
	uint64_t seen, built, released, rung;
};

/* All together: notes the times of the n commands that this step has posted. */
template <typename T> LANEFS_FN void trace_posted(lanefs_lane *lane, const posting &p, uint32_t n) {
	if constexpr (traced) {
		if (lane->trace == 0)
			return;
		for (uint32_t i = self<T>(); i < n; i += T::W) { /* the slots keep their CIDs until those are given back */
			lanefs_trace *t = at<lanefs_trace>(lane->stamps) + free_slot(lane, p.first, i)->free;
			t->seen = p.seen;
			t->built = p.built;
			t->released = p.released;
			t->rung = p.rung;
		}
	}
}

/* Writes the trace of the command that ends with the result at a position. */
LANEFS_FN void trace_ended(lanefs_lane *lane, uint32_t cid, uint32_t position, uint64_t found) {
	if constexpr (traced) {
		if (lane->trace == 0)
			return;
		const lanefs_trace *from = at<const lanefs_trace>(lane->stamps) + cid;
		lanefs_trace *to = at<lanefs_trace>(lane->trace) + (position & (lane->ring_size - 1));
		store(&to->seen, from->seen);
		store(&to->built, from->built);
		store(&to->released, from->released);
		store(&to->rung, from->rung);
		store(&to->found, found);
		store(&to->answered, clock());
		store(&to->seq, position + 1);
	}
}

} // namespace lanefs

#endif
