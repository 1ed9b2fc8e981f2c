/*
 * A wave on a CPU, for the kernels that are built with LANEFS_WAVE: its threads are fibers of one thread of the system, which take turns where
 * all meet. To ThreadSanitizer each is a thread. vote, broadcast and shuffle order nothing between them, as in PTX's memory model; sync_team
 * does. So a report is a wave that has not met between what one thread has stored and what another loads.
 *
 * The fibers go round: each runs from one meeting to the next, and leaves what it brings in the slots of that meeting. Slots are double, since
 * the first is at the next meeting before the others have left this one.
 */
#ifndef LANEFS_TSAN_WAVE_H
#define LANEFS_TSAN_WAVE_H

#include <ucontext.h>

extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void *, unsigned no_sync);
void __tsan_acquire(void *);
void __tsan_release(void *);
}

namespace on_cpu {

enum kind : uint32_t { BALLOT = 1, SHUFFLE, SYNC };

struct fiber {
	ucontext_t context;
	void *tsan;
	uint32_t meetings;
};
static fiber fibers[LANEFS_WAVE], main_fiber;
#define WAVE_OWN __attribute__((no_sanitize("thread"), noinline)) /* to ThreadSanitizer the fibers' turns are no order, and no race */
static uint32_t current; /* 0 outside of launches */
static bool never_meets;
static uint32_t brought[2][LANEFS_WAVE], kinds[2][LANEFS_WAVE];
static char met[2], begun, ended;
static void (*body)(uint32_t);

WAVE_OWN static void go(fiber *from, fiber *to) {
	__tsan_switch_to_fiber(to->tsan, 1);
	swapcontext(&from->context, &to->context);
}

/* Brings v to the next meeting, and returns which one it is once all are there. */
WAVE_OWN static uint32_t meet(kind k, uint32_t v) {
	uint32_t me = current, turn = fibers[me].meetings++ % 2;
	brought[turn][me] = v;
	kinds[turn][me] = k;
	current = (me + 1) % LANEFS_WAVE;
	go(&fibers[me], &fibers[current]);
	current = me;
	for (uint32_t i = 0; i < LANEFS_WAVE; i++)
		if (kinds[turn][i] != k) {
			fprintf(stderr, "lanes: thread %u is at a meeting of kind %u, thread %u at one of kind %u\n", me, k, i, kinds[turn][i]);
			exit(3);
		}
	return turn;
}

WAVE_OWN static void live() {
	for (;;) {
		uint32_t me = current;
		__tsan_acquire(&begun);
		body(me);
		__tsan_release(&ended);
		bool last = me + 1 == LANEFS_WAVE;
		current = last ? 0 : me + 1;
		go(&fibers[me], last ? &main_fiber : &fibers[me + 1]);
	}
}

/* Runs f on each thread of a wave. What was done before a launch is before it, and a launch is before what follows it. */
WAVE_OWN static void run(void (*f)(uint32_t)) {
	constexpr size_t stack = 256 << 10;
	if (!main_fiber.tsan) {
		main_fiber.tsan = __tsan_get_current_fiber();
		for (fiber &x : fibers) {
			getcontext(&x.context);
			x.context.uc_stack.ss_sp = malloc(stack);
			x.context.uc_stack.ss_size = stack;
			x.tsan = __tsan_create_fiber(0);
			makecontext(&x.context, live, 0);
		}
	}
	body = f;
	current = 0;
	__tsan_release(&begun);
	go(&main_fiber, &fibers[0]);
	__tsan_acquire(&ended);
}

} // namespace on_cpu

namespace lanefs {

WAVE_OWN uint32_t wave_self() { return on_cpu::current; }

WAVE_OWN uint64_t wave_ballot(bool p) {
	uint32_t turn = on_cpu::meet(on_cpu::BALLOT, p);
	uint64_t all = 0;
	for (uint32_t i = 0; i < LANEFS_WAVE; i++)
		all |= (uint64_t)on_cpu::brought[turn][i] << i;
	return all;
}

WAVE_OWN uint32_t wave_shuffle(uint32_t v, uint32_t from) {
	uint32_t turn = on_cpu::meet(on_cpu::SHUFFLE, v);
	return on_cpu::brought[turn][from % LANEFS_WAVE];
}

WAVE_OWN void wave_sync() {
	char *where = &on_cpu::met[on_cpu::fibers[on_cpu::current].meetings % 2];
	if (!on_cpu::never_meets)
		__tsan_release(where);
	on_cpu::meet(on_cpu::SYNC, 0);
	if (!on_cpu::never_meets)
		__tsan_acquire(where);
}

} // namespace lanefs

#endif
