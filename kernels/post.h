/*
 * Posting: work items become submission queue entries [NVMe 3.3.3.1]. The doorbell is rung later, once for a batch.
 */
#ifndef LANEFS_POST_H
#define LANEFS_POST_H

#include "answer.h"
#include "prp.h"

namespace lanefs {

/* The slot of the n-th item from the next one on. */
LANEFS_FN const uint64_t *work_at(const lanefs_lane *lane, uint32_t n) {
	return at<const uint64_t>(lane->work) + LANEFS_WORK_SLOT / 8 * (uint64_t)((lane->work_next + n) & (lane->ring_size - 1));
}

LANEFS_FN const uint32_t *seq_at(const lanefs_lane *lane, uint32_t n) { return (const uint32_t *)work_at(lane, n); }

/*
 * What there is of the next work items: the seq of each slot's, and how many are there from the first on. A wave also loads the
 * first item whole, a word a thread: a lone command then costs one trip to the CPU's memory, not two. A thread with several slots
 * looks at some batches' at once, since it must order their seqs before them by a fence, which costs as much as a batch.
 */
template <typename T> struct waiting {
	static constexpr uint32_t looks = T::few ? 16 : T::K, most = looks * T::W;
	uint64_t first;
	uint32_t seq[looks];
	uint32_t n;
};
constexpr uint32_t work_words = LANEFS_WORK_SLOT / 8;

/*
 * Loads the seqs of up to `most` next items, all in flight together. Unless they are `sure`, they order nothing: a wave's, which
 * come with the first item whole, are made again before the others are read. No two loads are of one line: an NVIDIA GPU has
 * one trip at a time to a line of the CPU's memory.
 */
template <typename T> LANEFS_FN void poll_work(lanefs_lane *lane, waiting<T> *w, uint32_t most, bool sure) {
	bool whole = T::W > 1 && !sure;
	if (whole)
		w->first = load(work_at(lane, 0) + self<T>() % work_words);
#pragma unroll
	for (uint32_t k = 0; k < w->looks; k++) {
		uint32_t s = slot<T>(k);
		w->seq[k] = lane->work_next; /* the next item's is one more */
		if (s < lane->ring_size && s < most && !(whole && s == 0)) {
			const uint32_t *seq = seq_at(lane, s);
			w->seq[k] = T::acquires && sure ? load_acquire(seq) : load(seq);
		}
	}
	if (whole && self<T>() == 0)
		w->seq[0] = (uint32_t)w->first;
}

/* All together: counts what poll_work found. */
template <typename T> LANEFS_FN void count_work(lanefs_lane *lane, waiting<T> *w) {
	bool there[waiting<T>::looks];
#pragma unroll
	for (uint32_t k = 0; k < w->looks; k++)
		there[k] = w->seq[k] == lane->work_next + slot<T>(k) + 1;
	w->n = leading(slots_of<T>(there));
}

/* A work item in registers: struct lanefs_work. */
struct item {
	quad q[4];
	LANEFS_FN_MEMBER uint32_t len() const { return q[0][3]; }
	LANEFS_FN_MEMBER uint64_t iova() const { return (uint64_t)q[1][1] << 32 | q[1][0]; }
	LANEFS_FN_MEMBER uint64_t timeout() const { return (uint64_t)q[3][3] << 32 | q[3][2]; }
	LANEFS_FN_MEMBER uint16_t tag() const { return (uint16_t)(q[0][1] >> 16); }
	LANEFS_FN_MEMBER uint8_t opcode() const { return (uint8_t)q[0][1]; }
};

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
 * All together: item slot k of each thread, as far as there are n. Eight threads load one item, since loads that one thread
 * makes of a line wait for one another; then each gets its own from them.
 */
template <typename T> LANEFS_FN void items_at(const lanefs_lane *lane, item (&items)[T::K], uint32_t n) {
#if defined(__NVPTX__)
	if constexpr (T::W > 1) {
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
	if (T::few && n == T::slots) { /* their loads wait together, with no branch between them */
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

/* All together: the first item, if poll_work has found all its words. Each says so itself, so they need no order. */
template <typename T> LANEFS_FN bool is_whole(const lanefs_lane *lane, const waiting<T> &w) {
	return T::W > 1 && ballot<T>(self<T>() < work_words && (uint32_t)w.first != lane->work_next + 1) == 0;
}
template <typename T> LANEFS_FN item first_item(const waiting<T> &w) {
	item it;
#pragma unroll
	for (uint32_t i = 0; i < work_words; i++)
		it.q[i / 4][i % 4] = share<T>((uint32_t)(w.first >> 32), i);
	return it;
}

/* When an item that is posted now is late. */
LANEFS_FN uint64_t deadline_of(const item &w, uint64_t now) {
	uint64_t deadline = now + w.timeout();
	return w.timeout() == 0 || deadline < now ? ~0ull : deadline;
}

/* Posts one item under a CID, at the n-th free entry of the SQ. */
LANEFS_FN void post_one(lanefs_lane *lane, const item &w, const prps &p, uint32_t cid, uint32_t n, uint64_t now, uint64_t deadline,
	bool straight) {
	lanefs_cid *c = cid_of(lane, cid);
	*(quad *)c = quad{(uint32_t)now, (uint32_t)(now >> 32), w.len(), w.tag() | LANEFS_CID_BUSY << 16 | (uint32_t)w.opcode() << 24};
	c->deadline = deadline;

	nvme::write(nvme::sqe_at(lane, n, straight), {{quad{(w.q[0][1] & 0xffff) | cid << 16, w.q[0][2], 0, 0},
		quad{w.q[1][2], w.q[1][3], (uint32_t)p.prp1, (uint32_t)(p.prp1 >> 32)},
		quad{(uint32_t)p.prp2, (uint32_t)(p.prp2 >> 32), w.q[2][0], w.q[2][1]}, quad{w.q[2][2], w.q[2][3], w.q[3][0], w.q[3][1]}}});
}

/* All together: CIDs and entries of the SQ are taken, by as many items. The next CIDs are looked up while those are posted. */
template <typename T> LANEFS_FN void take(lanefs_lane *lane, uint32_t items, spare<T> *next_cids) {
	advance(&lane->cid_head, items, lane->cid_count);
	lane->in_flight += items;
	lane->totals.commands += items;
	if (T::few)
		look_up<T>(lane, next_cids);
	else
		next_cids->n = 0;
}

/*
 * The way of a full batch of items of a page's length at most, that are addressable and have the same timeout: false, and
 * nothing done, if it is not such a one.
 */
template <typename T> LANEFS_FN bool post_plain(lanefs_lane *lane, const item (&w)[T::K], uint32_t n, uint64_t now, spare<T> *next_cids) {
	if (n != T::slots || next_cids->n < T::slots || !fits<T>(lane->sq_tail, lane->sq_size))
		return false;
	uint32_t odd = 0, longest = 0;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		odd |= (w[k].q[1][0] & 3) | (uint32_t)(w[k].q[1][1] == ~0u); /* the end of all addresses, which data must not pass */
		odd |= (w[k].q[3][2] ^ w[0].q[3][2]) | (w[k].q[3][3] ^ w[0].q[3][3]);
		longest = w[k].len() > longest ? w[k].len() : longest;
	}
	if (odd != 0 || longest > lane->page_size)
		return false;
	uint32_t cid[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		cid[k] = next_cids->cid[k];
	take<T>(lane, T::slots, next_cids);
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
template <typename T> LANEFS_FN void post(lanefs_lane *lane, const item (&w)[T::K], uint32_t n, uint64_t now, spare<T> *next_cids) {
	if (T::few && post_plain<T>(lane, w, n, now, next_cids))
		return;
	bool good[T::K];
	uint32_t cid[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		uint32_t s = slot<T>(k);
		cid[k] = 0; /* right unless an item before it is bad */
		if (s < n)
			cid[k] = s < next_cids->n ? next_cids->cid[k] : free_slot(lane, lane->cid_head, s)->free;
		good[k] = s < n && is_addressable(lane->prp_iova, lane->prp_stride, lane->page_size, w[k].iova(), w[k].len());
	}
	uint64_t posted = slots_of<T>(good);
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
	take<T>(lane, n - bad, next_cids);
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
		lane->next_deadline = least<T>(next < lane->next_deadline ? next : lane->next_deadline);
	advance(&lane->sq_tail, n - bad, lane->sq_size);
	lane->totals.rejected += bad;
	lane->result_next += bad;
}

/* All together: posts what is there, as far as CIDs are free. `again` says that w is to be polled again before it is used. */
template <typename T> LANEFS_FN void post_work(lanefs_lane *lane, waiting<T> *w, uint64_t now, bool again, spare<T> *next_cids) {
	bool ordered = T::acquires; /* the loads of w's seqs come before those of the items */
	for (;;) {
		uint32_t free = free_cids(lane), n = w->n < free ? w->n : free;
		n = n < T::slots ? n : T::slots;
		if (n == 0)
			return;
		item items[T::K];
		if (n == 1 && is_whole<T>(lane, *w)) {
			items[0] = first_item<T>(*w);
		} else {
			if (again) {
				again = false;
				poll_work<T>(lane, w, w->most, true);
				count_work<T>(lane, w);
				continue;
			}
			if (!ordered)
				acquire();
			items_at<T>(lane, items, n);
		}
		post<T>(lane, items, n, now, next_cids);
		lane->work_next += n;
		w->n -= n;
		if (T::few && w->n != 0) {
			ordered = true;
			continue;
		}
		if (n != T::slots)
			return;
		ordered = T::acquires;
		poll_work<T>(lane, w, w->most, true);
		count_work<T>(lane, w);
	}
}

} // namespace lanefs

#endif
