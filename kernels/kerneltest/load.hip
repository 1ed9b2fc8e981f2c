/*
 * Kernels that measure lanes: commands made on the device, a controller that completes them at once, a feeder of work
 * rings, and an echo of one word. Only tests load this image. Kernels that work together are launched on streams of their
 * own; team i of each serves lane i.
 */
#include "../kernel.h"
#include "../lifecycle.h"
#include "../local.h"

using namespace lanefs;

/* An item that reads or writes a page, with a deadline. */
LANEFS_FN item make(uint32_t tag, uint64_t timeout) {
	uint64_t iova = (uint64_t)(tag + 1) << 12;
	return {{quad{0, 2u | tag << 16, 1, 4096}, quad{(uint32_t)iova, (uint32_t)(iova >> 32), 0, 0}, quad{tag, 0, 7, 0},
		quad{0, 0, (uint32_t)timeout, (uint32_t)(timeout >> 32)}}};
}

/* A program on the device that reads by itself: it posts, rings and reaps, without a CPU and without a work ring. */
template <typename T> LANEFS_FN void self_fed(lanefs_lane *lane, uint64_t total, uint64_t depth, uint64_t timeout) {
	uint64_t made = 0;
	do {
		uint64_t now = time<T>();
		polled_cq<T> c;
		bool dw01_read = false;
		uint32_t first_result = lane->result_next, reaped = 0;
		next_cids<T> cids;
		look_up_cids<T>(lane, &cids);
		if (lane->in_flight != 0) {
			poll_cq<T>(lane, &c);
			count_cq<T>(lane, &c);
			reaped = reap_new<T>(lane, &c, now, &dw01_read);
			sync_team<T>();
		}
		uint64_t before = made;
		for (;;) { /* a team of one thread makes several batches for one doorbell */
			uint32_t room = (uint32_t)depth - lane->in_flight, n = room < T::slots ? room : T::slots;
			if (made + n > total)
				n = (uint32_t)(total - made);
			if (n == 0)
				break;
			item w[T::K];
#pragma unroll
			for (uint32_t k = 0; k < T::K; k++)
				w[k] = make((uint32_t)(made + slot<T>(k)) & 0xffff, timeout);
			post<T>(lane, w, n, now, &cids);
			made += n;
		}
		if (now >= lane->next_deadline)
			expire<T>(lane, now);
		if (reaped == 0 && made == before)
			continue;
		sync_team<T>();
		if (made != before || dw01_read || !T::acquires)
			release();
		if (made != before)
			ring_sq<T>(lane);
		publish<T>(lane, first_result);
		if (reaped != 0)
			ring_cq<T>(lane);
	} while ((made != total || lane->in_flight != 0) && lane->failed == LANEFS_OK);
	report<T>(lane, true, time<T>());
}

template <typename T> LANEFS_FN void load_team(uint64_t i, uint64_t, uint64_t lanes, uint64_t stride, uint64_t total, uint64_t depth,
	uint64_t timeout) {
	lanefs_lane *p = at<lanefs_lane>(lanes + i / T::W * stride);
	if (!is_ready(p))
		return;
	LANEFS_LOCAL(T, lane, p);
	self_fed<T>(&lane, total, depth, timeout);
	write_back<T>(p, &lane);
}

/* A launch of the engine's own for each lane, until the feeder stores LANEFS_PARK. words has a word for each. */
template <typename T> LANEFS_FN void lane_team(uint64_t i, uint64_t, uint64_t lanes, uint64_t stride, uint64_t limit, uint64_t words,
	uint64_t number) {
	lanefs_lane *p = at<lanefs_lane>(lanes + i / T::W * stride);
	launch l = launch_of(words + 8 * (i / T::W), number, time<T>(), limit, limit, 1);
#if defined(__AMDGPU__) || defined(__NVPTX__)
	live<T>(p, &l);
#else
	live_together<T>(p, 1, &l);
#endif
}

/* A controller that completes `total` commands of each queue, in order, without data. out[i] is how many it completed. */
template <typename T> LANEFS_FN void null_team(uint64_t i, uint64_t, uint64_t lanes, uint64_t stride, uint64_t total, uint64_t limit,
	uint64_t out) {
	static_assert(T::K == 1, "a slot a thread");
	const lanefs_lane *lane = at<lanefs_lane>(lanes + i / T::W * stride);
	uint64_t done = 0, start = time<T>();
	uint32_t head = 0, tail = 0, phase = 1, size = lane->sq_size, s = self<T>();
	while (done != total) {
		uint32_t rung = broadcast<T>(load_acquire(at<uint32_t>(lane->sq_doorbell)), 0);
		if (rung == head) {
			if (time<T>() - start > limit)
				break;
			continue;
		}
		uint32_t n = rung > head ? rung - head : rung + size - head;
		n = n < T::W ? n : T::W;
		if (s < n) {
			uint32_t from = head, to = tail, turn = phase;
			advance(&from, s, size);
			if (to + s >= lane->cq_size)
				turn ^= 1;
			advance(&to, s, lane->cq_size);
			uint32_t cid = load(at<uint32_t>(lane->sq) + 16 * (uint64_t)from) >> 16;
			uint32_t next = from + 1 == size ? 0 : from + 1;
			store(at<uint64_t>(lane->cq) + 2 * (uint64_t)to + 1, (uint64_t)(cid | turn << 16) << 32 | (uint32_t)lane->sqid << 16 | next);
		}
		advance(&head, n, size);
		if (tail + n >= lane->cq_size)
			phase ^= 1;
		advance(&tail, n, lane->cq_size);
		done += n;
	}
	if (s == 0)
		at<uint64_t>(out)[i / T::W] = done;
}

/* Feeds a work ring with `total` items, at most `most` of them unanswered, and stores LANEFS_PARK then. out[i] counts answers
 * that were wrong: of another command, or not good. */
template <typename T> LANEFS_FN void feed_team(uint64_t i, uint64_t, uint64_t lanes, uint64_t stride, uint64_t total, uint64_t most,
	uint64_t limit, uint64_t out) {
	static_assert(T::K == 1, "a slot a thread");
	lanefs_lane *lane = at<lanefs_lane>(lanes + i / T::W * stride);
	uint64_t start = time<T>(), submitted = 0, answered = 0, wrong = 0;
	uint32_t s = self<T>(), mask = lane->ring_size - 1;
	while (answered != total && time<T>() - start < limit) {
		uint64_t room = most - (submitted - answered), left = total - submitted;
		uint32_t n = (uint32_t)(room < left ? room : left);
		n = n < T::W ? n : T::W;
		uint32_t position = (uint32_t)submitted + s;
		uint64_t *w = at<uint64_t>(lane->work) + work_words * (uint64_t)(position & mask);
		if (s < n) {
			item made = make(position & 0xffff, 1ull << 40);
#pragma unroll
			for (uint32_t i = 1; i < work_words; i++)
				store(w + i, slot_word(position + 1, made.q[i / 4][i % 4]));
		}
		release(); /* orders the items before their seq */
		if (s < n)
			store((uint32_t *)w, position + 1);
		submitted += n;

		const uint64_t *r = result_at(lane, (uint32_t)answered + s);
		uint32_t seq = (uint32_t)answered + s + 1;
		bool there = load_acquire((const uint32_t *)r) == seq;
		uint64_t about = load(r + 1), engine = load(r + 7);
		there = there && (uint32_t)about == seq && (uint32_t)engine == seq;
		uint32_t got = leading(ballot<T>(there));
		/* The null controller completes in order, so the answers come in order. */
		if (s < got)
			wrong += about >> 32 != (((uint32_t)answered + s) & 0xffff) || engine >> 32 != LANEFS_OK;
		answered += got;
	}
	wrong = sum<T>(wrong) + (total - answered);
	if (s == 0) {
		at<uint64_t>(out)[i / T::W] = wrong;
		store(&at<lanefs_control>(lane->control)->command, (uint32_t)LANEFS_PARK);
	}
}

/* Answers 1, 2, ... rounds at `in` with the same at `out`. */
LANEFS_FN void echo(uint64_t i, uint64_t, uint64_t in, uint64_t out, uint64_t rounds, uint64_t limit) {
	if (i != 0)
		return;
	uint64_t start = clock();
	for (uint32_t n = 1; n <= rounds; n++) {
		while (load(at<uint32_t>(in)) != n)
			if (clock() - start > limit)
				return;
		store(at<uint32_t>(out), n);
	}
}

LANEFS_KERNEL5(lanefs_load, load_team<thread>)
LANEFS_KERNEL5(lanefs_wave_load, load_team<wave>)
LANEFS_KERNEL5(lanefs_lane, lane_team<thread>)
LANEFS_KERNEL5(lanefs_wave_lane, lane_team<wave>)
LANEFS_KERNEL5(lanefs_null, null_team<wave>)
LANEFS_KERNEL6(lanefs_feed, feed_team<wave>)
LANEFS_KERNEL4(lanefs_echo, echo)
