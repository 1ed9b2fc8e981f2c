/*
 * Copies piece after piece for one thread of a program, without a call of the driver for any: the block stays on the GPU, looks for the next piece in memory of
 * the host, and tells its end there. To begin a copy and to wait for its end takes the driver longer than the copy does, and it does so for
 * one thread at a time (an H200, us: 4, 16 and 64 KiB 7.7, 9.4 and 9.7 by the driver, 4.6, 5.0 and 6.3 so; by eight threads at once 13, 19 and 29, and 5.5, 6.4 and 12.6).
 *
 * The block leaves when nothing has come for `idle` ticks of the clock, or when it has been there for `life`, so that who waits for all of the GPU's work
 * (cuCtxSynchronize, cuMemFree) does not wait longer for it. It says so before, and is there for copier_grace more: a host that has heard of it sends nothing any more, what was on its way then is
 * copied. After it has said that it has left nothing is.
 */
#ifndef LANEFS_COPIER_H
#define LANEFS_COPIER_H

#include "gather.h"

namespace lanefs {

/*
 * A piece, as the host stores it: two words, which may come one after the other. It is there when both have the same number, of which `what` has the low bits.
 * Addresses are multiples of 16 below 2^48, of which the words have the upper 44 bits.
 */
struct copier_piece {
	uint64_t to;   /* where to, and above that the number, 20 bits */
	uint64_t what; /* where from, above that how many sixteen bytes but one, 12 bits, and above that the number, 8 bits */
};
constexpr uint32_t copier_address = 44, copier_quads = 12;

/* What the host and the block share, 128 bytes of the host's memory. */
struct copier_seat {
	copier_piece piece; /* the host's */
	uint64_t unused[6];
	/* The block's: the number of the last piece that is copied, then that of the launch that is there, of the last one that is about to leave, and of the last one that has left. */
	uint32_t done, here, leaving, left;
	uint32_t away; /* for how long this launch's block did not look, at the longest, in ticks: for a millisecond, since another process had the GPU */
	uint32_t unused_too[11];
};
static_assert(sizeof(copier_seat) == 128, "the host lays it out, too");

/* How long a block that is about to leave looks on, in ticks. */
constexpr uint64_t copier_grace = 4000;
/* How many times as long as for others it waits for its first piece: by the way that the host takes until it sees the block a piece may take that long. */
constexpr uint64_t copier_first = 5;
/* How many loads a thread has in flight: 256 threads copy 32 KiB with one trip over PCIe. */
constexpr uint32_t copier_loads = 8;

/* Both words by one load: a thread's loads from the host's memory wait for one another. It comes before all later loads. */
LANEFS_FN copier_piece load_piece(const copier_piece *p) {
	copier_piece v;
#if defined(__NVPTX__)
	asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.to), "=l"(v.what) : "l"((const copier_piece NVME_GLOBAL *)p) : "memory");
#else
	v.to = load(&p->to);
	v.what = load_acquire(&p->what);
#endif
	return v;
}

LANEFS_FN uint32_t copier_number(copier_piece p) { return (uint32_t)(p.to >> copier_address); }
LANEFS_FN bool copier_whole(copier_piece p) { return (uint8_t)copier_number(p) == p.what >> (copier_address + copier_quads); }

/* The i-th thread's part of a piece: all loads of a round are under way before the first one is waited for. */
LANEFS_FN void copier_copy(uint64_t i, uint64_t threads, copier_piece p) {
	constexpr uint64_t mask = ((uint64_t)1 << copier_address) - 1;
	quad *to = at<quad>((p.to & mask) * sizeof(quad));
	const quad *from = at<const quad>((p.what & mask) * sizeof(quad));
	uint64_t quads = (p.what >> copier_address & ((1 << copier_quads) - 1)) + 1;
	for (; i < quads; i += copier_loads * threads) {
		quad v[copier_loads];
#pragma unroll
		for (uint32_t k = 0; k < copier_loads; k++)
			if (i + k * threads < quads)
				v[k] = load_quad(from + i + k * threads);
#pragma unroll
		for (uint32_t k = 0; k < copier_loads; k++)
			if (i + k * threads < quads)
				to[i + k * threads] = v[k];
	}
}

/* The first thread's. Times are the clock's. */
struct copier_state {
	uint64_t begun, looked; /* looked: when it looked for a piece last */
	uint32_t number, away;  /* of the last piece; as in the seat */
	bool leaving, copied;
};

/* The first thread: waits for a piece other than the last one. Whether there is one. */
LANEFS_FN bool copier_wait(copier_seat *seat, copier_state *s, uint32_t launch, uint64_t idle, uint64_t life, copier_piece *found) {
	uint64_t began = clock();
	for (;;) {
		copier_piece p = load_piece(&seat->piece);
		uint64_t now = clock(), apart = now - s->looked;
		if (apart > s->away) {
			s->away = (uint32_t)apart;
			store(&seat->away, s->away);
		}
		s->looked = now;
		if (copier_number(p) != s->number && copier_whole(p)) {
			s->number = copier_number(p);
			s->copied = true;
			*found = p;
			return true;
		}
		uint64_t patience = s->leaving ? copier_grace : s->copied ? idle : copier_first * idle;
		if (now - began <= patience && (s->leaving || now - s->begun <= life))
			continue;
		if (s->leaving)
			return false;
		s->leaving = true;
		store(&seat->leaving, launch);
		began = now;
	}
}

/* The block's threads wait for one another, and what they stored comes before what is after. On a CPU there is one. */
LANEFS_FN void meet() {
#if defined(__NVPTX__)
	__nvvm_bar_sync(0);
#endif
}

#if defined(__NVPTX__)
static __attribute__((shared)) copier_piece copier_found; /* what the first thread has found, for all; number 0: it leaves */
#endif

/* Copies pieces after that of `number`, which the host had asked for before this launch. Numbers are not 0. */
LANEFS_FN void copier(uint64_t i, uint64_t threads, uint64_t seat_at, uint64_t launch, uint64_t number, uint64_t idle, uint64_t life) {
	copier_seat *seat = at<copier_seat>(seat_at);
	uint64_t now = clock();
	copier_state s = {now, now, (uint32_t)number, 0, false, false};
#if !defined(__NVPTX__)
	copier_piece copier_found;
	if (i != 0) /* on a CPU one thread copies all */
		return;
	threads = 1;
#endif
	if (i == 0)
		store(&seat->here, (uint32_t)launch);
	for (;;) {
		if (i == 0 && !copier_wait(seat, &s, (uint32_t)launch, idle, life, &copier_found))
			copier_found = copier_piece{0, 0};
		meet();
		copier_piece p = copier_found;
		if (copier_number(p) == 0)
			break;
		copier_copy(i, threads, p);
		meet(); /* also: all have taken the piece, before the first thread finds another */
		if (i == 0) {
			release();
			store(&seat->done, s.number);
		}
	}
	if (i == 0) {
		release();
		store(&seat->left, (uint32_t)launch);
	}
}

} // namespace lanefs

#endif
