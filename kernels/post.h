/*
 * Posting: work items become submission queue entries [NVMe 3.3.3.1]. The doorbell is rung later, once for a batch.
 */
#ifndef LANEFS_POST_H
#define LANEFS_POST_H

#include "answer.h"
#include "prp.h"

namespace lanefs {

LANEFS_FN lanefs_work *work_at(lanefs_lane *lane, uint32_t n) {
	return at<lanefs_work>(lane->work) + ((lane->work_next + n) & (lane->ring_size - 1));
}

/* What there is of the next work items: the seq of each slot's, and how many are there from the first on. */
template <typename T> struct waiting {
	uint32_t seq[T::K];
	uint32_t n;
};

/*
 * Loads the seqs of up to `most` next items, all in flight together. `later` says that something else is to be loaded
 * before anyone looks: then these loads order nothing, and are made again before an item is read.
 */
template <typename T> LANEFS_FN void poll_work(lanefs_lane *lane, waiting<T> *w, uint32_t most, bool later) {
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		uint32_t s = slot<T>(k);
		w->seq[k] = lane->work_next; /* the next item's is one more */
		if (s < lane->ring_size && s < most) {
			const uint32_t *seq = &work_at(lane, s)->seq;
			w->seq[k] = T::acquires && !later ? load_acquire(seq) : load(seq);
		}
	}
}

/* All together: counts what poll_work found. */
template <typename T> LANEFS_FN void count_work(lanefs_lane *lane, waiting<T> *w) {
	bool there[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		there[k] = w->seq[k] == lane->work_next + slot<T>(k) + 1;
	w->n = leading(slots_of<T>(there));
}

/* A work item in registers: struct lanefs_work as four wide loads give it. */
struct item {
	quad q[4];
	LANEFS_FN_MEMBER uint32_t len() const { return q[0][3]; }
	LANEFS_FN_MEMBER uint64_t iova() const { return (uint64_t)q[1][1] << 32 | q[1][0]; }
	LANEFS_FN_MEMBER uint64_t timeout() const { return (uint64_t)q[3][3] << 32 | q[3][2]; }
	LANEFS_FN_MEMBER uint16_t tag() const { return (uint16_t)(q[0][1] >> 16); }
	LANEFS_FN_MEMBER uint8_t opcode() const { return (uint8_t)q[0][1]; }
};

LANEFS_FN item item_at(lanefs_lane *lane, uint32_t n) {
	const quad *p = (const quad *)work_at(lane, n);
	return {{p[0], p[1], p[2], p[3]}};
}

/* Posts one item under a CID, at the n-th free entry of the SQ. It returns the command's deadline. */
LANEFS_FN uint64_t post_one(lanefs_lane *lane, const item &w, uint32_t cid, uint32_t n, uint64_t now) {
	uint64_t list = (uint64_t)cid * lane->prp_stride;
	prps p = build_prps(at<uint64_t>(lane->prp + list), lane->prp_iova + list, lane->page_size, w.iova(), w.len());
	uint64_t deadline = now + w.timeout();
	if (w.timeout() == 0 || deadline < now)
		deadline = ~0ull;
	lanefs_cid *c = cid_of(lane, cid);
	*(quad *)c = quad{(uint32_t)now, (uint32_t)(now >> 32), (uint32_t)deadline, (uint32_t)(deadline >> 32)};
	*(uint64_t *)&c->len = (uint64_t)w.opcode() << 56 | (uint64_t)LANEFS_CID_BUSY << 48 | (uint64_t)w.tag() << 32 | w.len();

	uint32_t tail = lane->sq_tail;
	advance(&tail, n, lane->sq_size);
	/* Four wide stores and nothing between them; the batch's release makes them visible. */
	quad *sqe = at<quad>(lane->sq) + 4 * (uint64_t)tail;
	sqe[0] = quad{(w.q[0][1] & 0xffff) | cid << 16, w.q[0][2], 0, 0};
	sqe[1] = quad{w.q[1][2], w.q[1][3], (uint32_t)p.prp1, (uint32_t)(p.prp1 >> 32)};
	sqe[2] = quad{(uint32_t)p.prp2, (uint32_t)(p.prp2 >> 32), w.q[2][0], w.q[2][1]};
	sqe[3] = quad{w.q[2][2], w.q[2][3], w.q[3][0], w.q[3][1]};
	return deadline;
}

/*
 * All together: posts n items under free CIDs, of which there are as many, and answers those that cannot be posted. The SQ
 * has room: every command not yet fetched holds a CID, and there are fewer CIDs than entries.
 */
template <typename T> LANEFS_FN void post(lanefs_lane *lane, const item (&w)[T::K], uint32_t n, uint64_t now) {
	bool good[T::K];
	uint32_t cid[T::K];
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++) {
		uint32_t s = slot<T>(k);
		cid[k] = s < n ? free_slot(lane, lane->cid_head, s)->free : 0; /* right unless an item before it is bad */
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
	uint64_t next = ~0ull;
#pragma unroll
	for (uint32_t k = 0; k < T::K; k++)
		if (good[k]) {
			uint64_t deadline = post_one(lane, w[k], cid[k], rank(posted, slot<T>(k)), now);
			next = deadline < next ? deadline : next;
		}
	if (ballot<T>(next < lane->next_deadline) != 0)
		lane->next_deadline = least<T>(next < lane->next_deadline ? next : lane->next_deadline);
	uint32_t took = n - bad;
	advance(&lane->cid_head, took, lane->cid_count);
	advance(&lane->sq_tail, took, lane->sq_size);
	lane->in_flight += took;
	lane->totals.commands += took;
	lane->totals.rejected += bad;
	lane->result_next += bad;
}

/* All together: posts what is there, as far as CIDs are free. `again` says that w is to be polled again before it is used. */
template <typename T> LANEFS_FN void post_work(lanefs_lane *lane, waiting<T> *w, uint64_t now, bool again) {
	for (;;) {
		uint32_t free = free_cids(lane), n = w->n < free ? w->n : free;
		if (n == 0)
			return;
		if (again) {
			again = false;
			poll_work<T>(lane, w, T::slots, false);
			count_work<T>(lane, w);
			continue;
		}
		if (!T::acquires)
			acquire(); /* orders the loads of seq before those of the items */
		item items[T::K];
#pragma unroll
		for (uint32_t k = 0; k < T::K; k++)
			if (slot<T>(k) < n)
				items[k] = item_at(lane, slot<T>(k));
		post<T>(lane, items, n, now);
		lane->work_next += n;
		if (n != T::slots)
			return;
		poll_work<T>(lane, w, T::slots, false);
		count_work<T>(lane, w);
	}
}

} // namespace lanefs

#endif
