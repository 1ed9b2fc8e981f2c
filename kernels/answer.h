/*
 * The result ring, and the CIDs whose commands it answers.
 *
 * answer() fills a result but does not show it; publish() shows all that were filled since, after a release by the
 * caller. So a step needs one release, however many results it has.
 */
#ifndef LANEFS_ANSWER_H
#define LANEFS_ANSWER_H

#include "team.h"

namespace lanefs {

LANEFS_FN lanefs_cid *cid_of(lanefs_lane *lane, uint32_t cid) { return at<lanefs_cid>(lane->cids) + cid; }

/*
 * Free CIDs wait in a ring and are used in turn, the longest unused first: a completion that comes twice then meets a
 * free CID and is recognised, instead of answering the command that came after. This is the ring's n-th slot from the
 * position `from`; neither is more than cid_count. contiguous: the end of the ring does not lie between them.
 */
LANEFS_FN lanefs_cid *free_slot(lanefs_lane *lane, uint32_t from, uint32_t n, bool contiguous = false) {
	if (contiguous)
		return cid_of(lane, from) + n;
	uint32_t i = from + n;
	return cid_of(lane, i >= lane->cid_count ? i - lane->cid_count : i);
}

LANEFS_FN uint32_t free_cids(const lanefs_lane *lane) { return lane->cid_count - lane->in_flight - lane->dead_cids; }

/* The free CIDs that are taken next, the first n of them, looked up while other loads are on their way. */
template <typename T> struct next_cids {
	uint32_t cid[T::K];
	uint32_t n;
};

template <typename T> LANEFS_FN void look_up_cids(lanefs_lane *lane, next_cids<T> *next) {
	next->n = T::slots == 1 ? 0 : free_cids(lane); /* one slot: no time is saved */
	if (T::multi_slot) {
		if (next->n >= T::slots && contiguous<T>(lane->cid_head, lane->cid_count))
#pragma unroll
			for (uint32_t k = 0; k < T::K; k++)
				next->cid[k] = free_slot(lane, lane->cid_head, k, true)->free;
		else
			next->n = 0;
		return;
	}
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		next->cid[k] = slot<T>(k) < next->n ? free_slot(lane, lane->cid_head, slot<T>(k))->free : 0;
}

/* One result without its seq. */
struct outcome {
	uint16_t tag, status;
	uint32_t dw0, dw1;
	uint64_t latency;
	uint16_t cid, sqhd;
	uint8_t engine;
};

/* The slot of the result at a position. */
LANEFS_FN uint64_t *result_at(lanefs_lane *lane, uint32_t position) {
	return at<uint64_t>(lane->results) + LANEFS_RESULT_SLOT / 8 * (uint64_t)(position & (lane->ring_size - 1));
}

/* A word of a slot: a dword with the item's seq. */
LANEFS_FN uint64_t slot_word(uint32_t seq, uint32_t dword) { return (uint64_t)dword << 32 | seq; }

/* Fills the n-th result from the next one on, all but its word 0, which keeps a seq that no reader waits for any more. */
LANEFS_FN void answer(lanefs_lane *lane, uint32_t n, const outcome &v, bool contiguous = false) {
	uint32_t position = lane->result_next + n, seq = position + 1;
	uint64_t *r = contiguous ? result_at(lane, lane->result_next) + LANEFS_RESULT_SLOT / 8 * (uint64_t)n : result_at(lane, position);
	store(r + 1, slot_word(seq, (uint32_t)v.tag | (uint32_t)v.status << 16));
	store_pair(r + 2, slot_word(seq, v.dw0), slot_word(seq, v.dw1));
	store_pair(r + 4, slot_word(seq, (uint32_t)v.latency), slot_word(seq, (uint32_t)(v.latency >> 32)));
	store_pair(r + 6, slot_word(seq, (uint32_t)v.cid | (uint32_t)v.sqhd << 16), slot_word(seq, v.engine));
}

/*
 * Shows the results from position `from` on. Where their words may be torn a release before it orders them before their
 * first seq; elsewhere that may arrive before them, since each word has the seq.
 */
template <typename T> LANEFS_FN void publish(lanefs_lane *lane, uint32_t from) {
	for (uint32_t i = from + self<T>(); (int32_t)(lane->result_next - i) > 0; i += T::W)
		store((uint32_t *)result_at(lane, i), i + 1);
}

/*
 * Ends with `engine` every command in flight whose deadline is not after `now`; all of them for now = ~0. Their CIDs are
 * lost until lanefs_reset: the controller may still hold them. Returns the earliest deadline of the others.
 */
template <typename T> LANEFS_FN uint64_t end_expired(lanefs_lane *lane, uint8_t engine, uint64_t now, uint64_t time) {
	uint64_t next = ~0ull;
	for (uint32_t base = 0; base < lane->cid_count; base += T::W) {
		uint32_t cid = base + self<T>();
		lanefs_cid *c = cid_of(lane, cid);
		bool expired = false;
		if (cid < lane->cid_count && c->state == LANEFS_CID_BUSY) {
			expired = c->deadline <= now;
			if (!expired)
				next = c->deadline < next ? c->deadline : next;
		}
		uint64_t all = ballot<T>(expired);
		if (expired) {
			c->state = LANEFS_CID_DEAD;
			answer(lane, rank(all, self<T>()), {c->tag, 0, 0, 0, time < c->posted ? 0 : time - c->posted, (uint16_t)cid, 0, engine});
		}
		lane->result_next += count(all);
		lane->in_flight -= count(all);
		lane->dead_cids += count(all);
		if (engine == LANEFS_TIMEOUT)
			lane->totals.timeouts += count(all);
	}
	return minimum<T>(next);
}

/* Answers every command in flight with `engine`. */
template <typename T> LANEFS_FN void answer_in_flight(lanefs_lane *lane, uint8_t engine) {
	if (lane->in_flight != 0)
		end_expired<T>(lane, engine, ~0ull, 0);
}

} // namespace lanefs

#endif
