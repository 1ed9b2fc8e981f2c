/*
 * The kernels of the engine: one source for AMD, NVIDIA and CPUs. layout.go says what each takes; kernel.h how they are
 * entered. Thread i works on lane i.
 */
#include "kernel.h"
#include "lifecycle.h"
#include "probe.h"

using namespace lanefs;

/*
 * A loop keeps its lane in registers on a GPU, where every access to the lane's own memory would be a trip to L2, and
 * writes the state back when it leaves: the fields one by one, because a copy of the whole struct would keep it in
 * scratch memory. On a CPU the lane is in the first-level cache anyway.
 */
#if defined(__AMDGPU__) || defined(__NVPTX__)
#define LANEFS_LOCAL(lane, p) lanefs_lane lane = *(p)
LANEFS_FN void write_back(lanefs_lane *p, const lanefs_lane *lane) {
	p->sq_tail = lane->sq_tail;
	p->cq_head = lane->cq_head;
	p->cq_phase = lane->cq_phase;
	p->work_next = lane->work_next;
	p->result_next = lane->result_next;
	p->in_flight = lane->in_flight;
	p->cid_free = lane->cid_free;
	p->cid_last = lane->cid_last;
	p->dead_cids = lane->dead_cids;
	p->next_deadline = lane->next_deadline;
	p->failed = lane->failed;
	p->bad_cid = lane->bad_cid;
	p->totals.commands = lane->totals.commands;
	p->totals.completions = lane->totals.completions;
	p->totals.bytes_read = lane->totals.bytes_read;
	p->totals.bytes_written = lane->totals.bytes_written;
	p->totals.sq_doorbells = lane->totals.sq_doorbells;
	p->totals.cq_doorbells = lane->totals.cq_doorbells;
	p->totals.errors = lane->totals.errors;
	p->totals.timeouts = lane->totals.timeouts;
	p->totals.late = lane->totals.late;
	p->totals.spurious = lane->totals.spurious;
	p->totals.rejected = lane->totals.rejected;
}
#else
#define LANEFS_LOCAL(lane, p) lanefs_lane &lane = *(p)
LANEFS_FN void write_back(lanefs_lane *, const lanefs_lane *) {}
#endif

LANEFS_FN void reset_thread(uint64_t i, uint64_t, uint64_t lanes, uint64_t count) {
	if (i < count)
		reset(at<lanefs_lane>(lanes) + i);
}

LANEFS_FN void step_thread(uint64_t i, uint64_t, uint64_t lanes, uint64_t count, uint64_t now) {
	lanefs_lane *lane = at<lanefs_lane>(lanes) + i;
	if (i >= count || !is_ready(lane))
		return;
	uint32_t command;
	bool progress = step(lane, now, &command);
	report(lane, progress, now);
}

LANEFS_FN void batch_thread(uint64_t i, uint64_t, uint64_t lanes, uint64_t count, uint64_t ticks) {
	lanefs_lane *p = at<lanefs_lane>(lanes) + i;
	if (i >= count || !is_ready(p))
		return;
	LANEFS_LOCAL(lane, p);
	batch(&lane, ticks);
	write_back(p, &lane);
}

LANEFS_FN void resident_thread(uint64_t i, uint64_t, uint64_t lanes, uint64_t count, uint64_t idle, uint64_t limit) {
	lanefs_lane *p = at<lanefs_lane>(lanes) + i;
	if (i >= count || !is_ready(p))
		return;
	LANEFS_LOCAL(lane, p);
	resident(&lane, idle, limit);
	report(&lane, true, clock());
	write_back(p, &lane);
	release(); /* orders the lane's state before PARKED: whoever launches the lane again finds it whole */
	store(&at<lanefs_status>(p->status)->state, (uint32_t)LANEFS_PARKED);
}

LANEFS_FN void prp_thread(uint64_t i, uint64_t, uint64_t out, uint64_t list, uint64_t list_iova, uint64_t list_bytes, uint64_t page,
	uint64_t iova, uint64_t len) {
	if (i != 0)
		return;
	prps p = build_prps(at<uint64_t>(list), list_iova, list_bytes, page, iova, len);
	at<uint64_t>(out)[0] = p.prp1;
	at<uint64_t>(out)[1] = p.prp2;
	at<uint64_t>(out)[2] = p.ok;
}

LANEFS_KERNEL2(lanefs_reset, reset_thread)
LANEFS_KERNEL3(lanefs_step, step_thread)
LANEFS_KERNEL3(lanefs_batch, batch_thread)
LANEFS_KERNEL4(lanefs_resident, resident_thread)
LANEFS_KERNEL7(lanefs_prp, prp_thread)
LANEFS_KERNEL3(lanefs_write_pattern, write_pattern)
LANEFS_KERNEL4(lanefs_check_pattern, check_pattern)

#if !defined(__HIP__) && !defined(__CUDA__)
#include "layout_table.h"
#endif
