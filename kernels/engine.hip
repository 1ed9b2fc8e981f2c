/*
 * The kernels of the engine: one source for AMD, NVIDIA and CPUs. names.go has their arguments, kernel.h their entry.
 * Team i works on lane i: thread i, or in the kernels named lanefs_wave_* the i-th wave.
 */
#include "gather.h"
#include "kernel.h"
#include "lifecycle.h"
#include "local.h"
#include "probe.h"

using namespace lanefs;

LANEFS_FN void reset_thread(uint64_t i, uint64_t, uint64_t lanes, uint64_t count) {
	if (i < count)
		reset(at<lanefs_lane>(lanes) + i);
}

template <typename T> LANEFS_FN void step_team(uint64_t i, uint64_t, uint64_t lanes, uint64_t count, uint64_t now) {
	lanefs_lane *p = at<lanefs_lane>(lanes) + i / T::W;
	if (i / T::W >= count || !is_ready(p))
		return;
	LANEFS_LOCAL(T, lane, p);
	uint32_t command;
	bool progress = step<T>(&lane, &now, 1, &command);
	report<T>(&lane, progress, now);
	write_back<T>(p, &lane);
}

template <typename T> LANEFS_FN void batch_team(uint64_t i, uint64_t, uint64_t lanes, uint64_t count, uint64_t ticks) {
	lanefs_lane *p = at<lanefs_lane>(lanes) + i / T::W;
	if (i / T::W >= count || !is_ready(p))
		return;
	LANEFS_LOCAL(T, lane, p);
	batch<T>(&lane, ticks);
	write_back<T>(p, &lane);
}

template <typename T> LANEFS_FN void resident_team(uint64_t i, uint64_t threads, uint64_t lanes, uint64_t count, uint64_t idle, uint64_t limit,
	uint64_t word, uint64_t number) {
	launch l = launch_of(word, number, time<T>(), idle, limit, count);
#if defined(LANEFS_COPIES)
	(void)threads;
	if (i / T::W < count)
		live<T>(at<lanefs_lane>(lanes) + i / T::W, &l);
#else
	if (i == 0)
		live_together<T>(at<lanefs_lane>(lanes), threads < count ? threads : count, &l);
#endif
}

LANEFS_FN void prp_thread(uint64_t i, uint64_t, uint64_t out, uint64_t list, uint64_t list_iova, uint64_t list_bytes, uint64_t page,
	uint64_t iova, uint64_t len) {
	if (i != 0)
		return;
	bool ok = is_addressable(list_iova, list_bytes, page, iova, len);
	prps p = {0, 0};
	if (ok)
		p = build_prps(at<uint64_t>(list), list_iova, page, iova, len);
	at<uint64_t>(out)[0] = p.prp1;
	at<uint64_t>(out)[1] = p.prp2;
	at<uint64_t>(out)[2] = ok;
}

LANEFS_FN void ring_thread(uint64_t i, uint64_t, uint64_t doorbell, uint64_t value) {
	if (i != 0)
		return;
	release(); /* orders what the doorbell is about before it */
	store(at<uint32_t>(doorbell), (uint32_t)value);
}

LANEFS_KERNEL2(lanefs_reset, reset_thread)
LANEFS_KERNEL2(lanefs_ring, ring_thread)
LANEFS_KERNEL3(lanefs_step, step_team<single>)
LANEFS_KERNEL3(lanefs_batch, batch_team<single>)
LANEFS_KERNEL6(lanefs_resident, resident_team<thread>)
LANEFS_KERNEL3(lanefs_wave_step, step_team<wave>)
LANEFS_KERNEL3(lanefs_wave_batch, batch_team<wave>)
LANEFS_KERNEL6(lanefs_wave_resident, resident_team<wave>)
LANEFS_KERNEL7(lanefs_prp, prp_thread)
LANEFS_KERNEL2(lanefs_gather, gather_wave)
LANEFS_KERNEL3(lanefs_write_pattern, write_pattern)
LANEFS_KERNEL4(lanefs_check_pattern, check_pattern)

#if !defined(__HIP__) && !defined(__CUDA__)
#include "layout_table.h"
#endif
