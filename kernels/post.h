/*
 * Posting: work items become submission queue entries [NVMe 3.3.3.1]. The doorbell is rung later, once for a batch.
 */
#ifndef LANEFS_POST_H
#define LANEFS_POST_H

#include "answer.h"
#include "poll.h"
#include "prp.h"

namespace lanefs {

/* A work item in registers: struct lanefs_work. */
struct item {
	quad q[4];
	LANEFS_FN_MEMBER uint32_t len() const { return q[0][3]; }
	LANEFS_FN_MEMBER uint64_t iova() const { return (uint64_t)q[1][1] << 32 | q[1][0]; }
	LANEFS_FN_MEMBER uint64_t timeout() const { return (uint64_t)q[3][3] << 32 | q[3][2]; }
	LANEFS_FN_MEMBER uint16_t tag() const { return (uint16_t)(q[0][1] >> 16); }
	LANEFS_FN_MEMBER uint8_t opcode() const { return (uint8_t)q[0][1]; }
};

/* The n-th item from the next one on. */
LANEFS_FN item item_at(const lanefs_lane *lane, uint32_t n) {
	const quad *p = (const quad *)work_at(lane, n);
	item w;
#pragma unroll
	for (uint32_t i = 0; i < 4; i++) {
		quad low = p[2 * i], high = p[2 * i + 1];
		w.q[i] = quad{low[1], low[3], high[1], high[3]};
	}
	return w;
}

/*
 * All together: the items of each thread's slots, as far as there are n. Eight threads load one item, since loads that
 * one thread makes of a line wait for one another; then each gets its own from them by shuffles.
 */
template <typename T> LANEFS_FN void items_at(const lanefs_lane *lane, item (&items)[T::K], uint32_t n) {
#if defined(__NVPTX__)
	if constexpr (T::W > 1) {
		sync_team<T>(); /* one thread has polled an item's seq, others load the item */
		constexpr uint32_t each = 8, at_once = T::W / each, rows = T::W / at_once;
		quad got[rows];
		uint32_t s = self<T>();
#pragma unroll
		for (uint32_t row = 0; row < rows; row++)
			if (row * at_once + s / each < n)
				got[row] = ((const quad *)work_at(lane, row * at_once + s / each))[s % each];
#pragma unroll
		for (uint32_t row = 0; row < rows; row++)
			if (row * at_once < n)
#pragma unroll
				for (uint32_t i = 0; i < work_words; i++) {
					uint32_t v = shuffle<T>(got[row][i % 2 * 2 + 1], s % at_once * each + i / 2);
					if (s / at_once == row)
						items[0].q[i / 4][i % 4] = v;
				}
		return;
	}
#endif
	if (T::multi_slot && n == T::slots) { /* their loads wait together, with no branch between them */
#pragma unroll
		for (uint32_t k = 0; k < T::K; k++)
			items[k] = item_at(lane, slot<T>(k));
		return;
	}
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		if (slot<T>(k) < n)
			items[k] = item_at(lane, slot<T>(k));
}

/* All together: whether the poll found the next item whole. Each of its words has the seq, so they need no order. */
template <typename T> LANEFS_FN bool has_whole_item(const lanefs_lane *lane, const polled_work<T> &w) {
	return T::W > 1 && ballot<T>(self<T>() < work_words && (uint32_t)w.word != lane->work_next + 1) == 0;
}
/* All together: that item. */
template <typename T> LANEFS_FN item whole_item(const polled_work<T> &w) {
	item it;
#pragma unroll
	for (uint32_t i = 0; i < work_words; i++)
		it.q[i / 4][i % 4] = broadcast<T>((uint32_t)(w.word >> 32), i);
	return it;
}

/* The deadline of an item that is posted now: all ones for none. */
LANEFS_FN uint64_t deadline_of(const item &w, uint64_t now) {
	uint64_t deadline = now + w.timeout();
	return w.timeout() == 0 || deadline < now ? ~0ull : deadline;
}

/* Posts one item under a CID, at the n-th free entry of the SQ. */
LANEFS_FN void post_one(lanefs_lane *lane, const item &w, const prps &p, uint32_t cid, uint32_t n, uint64_t now, uint64_t deadline,
	bool contiguous) {
	lanefs_cid *c = cid_of(lane, cid);
	*(quad *)c = quad{(uint32_t)now, (uint32_t)(now >> 32), w.len(), w.tag() | LANEFS_CID_BUSY << 16 | (uint32_t)w.opcode() << 24};
	c->deadline = deadline;

	nvme::write(nvme::sqe_at(lane, n, contiguous), {{quad{(w.q[0][1] & 0xffff) | cid << 16, w.q[0][2], 0, 0},
		quad{w.q[1][2], w.q[1][3], (uint32_t)p.prp1, (uint32_t)(p.prp1 >> 32)},
		quad{(uint32_t)p.prp2, (uint32_t)(p.prp2 >> 32), w.q[2][0], w.q[2][1]}, quad{w.q[2][2], w.q[2][3], w.q[3][0], w.q[3][1]}}});
}

/* All together: takes CIDs for so many items, and looks up the next ones while those are posted. */
template <typename T> LANEFS_FN void take_cids(lanefs_lane *lane, uint32_t items, next_cids<T> *cids) {
	advance(&lane->cid_head, items, lane->cid_count);
	lane->in_flight += items;
	lane->totals.commands += items;
	if (T::multi_slot)
		look_up_cids<T>(lane, cids);
	else
		cids->n = 0;
}

/*
 * The fast path: a full batch of addressable items of a page's length at most, all with the same timeout. Returns false,
 * with nothing done, for any other batch.
 */
template <typename T> LANEFS_FN bool post_fast(lanefs_lane *lane, const item (&w)[T::K], uint32_t n, uint64_t now, next_cids<T> *cids) {
	if (n != T::slots || cids->n < T::slots || !contiguous<T>(lane->sq_tail, lane->sq_size))
		return false;
	uint32_t other = 0, longest = 0;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		other |= (w[k].q[1][0] & 3) | (uint32_t)(w[k].q[1][1] == ~0u); /* the end of all addresses, which data must not pass */
		other |= (w[k].q[3][2] ^ w[0].q[3][2]) | (w[k].q[3][3] ^ w[0].q[3][3]);
		longest = w[k].len() > longest ? w[k].len() : longest;
	}
	if (other != 0 || longest > lane->page_size)
		return false;
	uint32_t cid[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		cid[k] = cids->cid[k];
	take_cids<T>(lane, T::slots, cids);
	uint64_t deadline = deadline_of(w[0], now);
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		post_one(lane, w[k], short_prps(lane->page_size, w[k].iova(), w[k].len()), cid[k], k, now, deadline, true);
	if (deadline < lane->next_deadline)
		lane->next_deadline = deadline;
	advance(&lane->sq_tail, T::slots, lane->sq_size);
	return true;
}

/*
 * All together: posts n items under free CIDs, of which there are as many, and answers those that cannot be posted. The SQ
 * has room: every command not yet fetched holds a CID, and there are fewer CIDs than entries.
 */
template <typename T> LANEFS_FN void post(lanefs_lane *lane, const item (&w)[T::K], uint32_t n, uint64_t now, next_cids<T> *cids) {
	if (T::multi_slot && post_fast<T>(lane, w, n, now, cids))
		return;
	bool good[T::K];
	uint32_t cid[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		uint32_t s = slot<T>(k);
		cid[k] = 0; /* right unless an item before it is bad */
		if (s < n)
			cid[k] = s < cids->n ? cids->cid[k] : free_slot(lane, lane->cid_head, s)->free;
		good[k] = s < n && is_addressable(lane->prp_iova, lane->prp_stride, lane->page_size, w[k].iova(), w[k].len());
	}
	uint64_t posted = ballot_slots<T>(good);
	uint32_t bad = n - count(posted);
	if (bad != 0)
#pragma unroll
		for (uint32_t k = 0; k < T::K; k++) {
			uint32_t s = slot<T>(k);
			if (good[k])
				cid[k] = free_slot(lane, lane->cid_head, rank(posted, s))->free;
			else if (s < n)
				answer(lane, s - rank(posted, s), {w[k].tag(), 0, 0, 0, 0, LANEFS_NO_CID, 0, LANEFS_BAD_WORK});
		}
	take_cids<T>(lane, n - bad, cids);
	uint64_t next = ~0ull;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		if (good[k]) {
			uint64_t deadline = deadline_of(w[k], now), list = (uint64_t)cid[k] * lane->prp_stride;
			prps p = build_prps(at<uint64_t>(lane->prp + list), lane->prp_iova + list, lane->page_size, w[k].iova(), w[k].len());
			post_one(lane, w[k], p, cid[k], rank(posted, slot<T>(k)), now, deadline, false);
			next = deadline < next ? deadline : next;
		}
	if (ballot<T>(next < lane->next_deadline) != 0)
		lane->next_deadline = minimum<T>(next < lane->next_deadline ? next : lane->next_deadline);
	advance(&lane->sq_tail, n - bad, lane->sq_size);
	lane->totals.rejected += bad;
	lane->result_next += bad;
}

/* All together: posts the items that are there, as far as CIDs are free. again: w is to be polled again before it is used. */
template <typename T> LANEFS_FN void post_work(lanefs_lane *lane, polled_work<T> *w, uint64_t now, bool again, next_cids<T> *cids) {
	bool ordered = T::acquires; /* the loads of w's seqs come before those of the items */
	for (;;) {
		uint32_t free = free_cids(lane), n = w->n < free ? w->n : free;
		n = n < T::slots ? n : T::slots;
		if (n == 0)
			return;
		item items[T::K];
		if (n == 1 && has_whole_item<T>(lane, *w)) {
			items[0] = whole_item<T>(*w);
		} else {
			if (again) {
				again = false;
				poll_work<T>(lane, w, w->max, true);
				count_work<T>(lane, w);
				continue;
			}
			if (!ordered)
				acquire();
			items_at<T>(lane, items, n);
		}
		post<T>(lane, items, n, now, cids);
		lane->work_next += n;
		w->n -= n;
		if (T::multi_slot && w->n != 0) {
			ordered = true;
			continue;
		}
		if (n != T::slots)
			return;
		ordered = T::acquires;
		poll_work<T>(lane, w, w->max, true);
		count_work<T>(lane, w);
	}
}

} // namespace lanefs

#endif
