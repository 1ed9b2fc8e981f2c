/*
 * Every field of layout.h with its offset and size, exported by the host image: what layout.go is checked against.
 * Names are arrays, not pointers, so that the table needs no relocation.
 */
#ifndef LANEFS_LAYOUT_TABLE_H
#define LANEFS_LAYOUT_TABLE_H

#include "layout.h"

struct lanefs_field {
	char owner[16]; /* empty ends the table */
	char field[16]; /* empty for the struct itself */
	uint32_t offset, size;
};

#define LANEFS_S(s) {#s, "", 0, sizeof(struct lanefs_##s)}
#define LANEFS_F(s, f) {#s, #f, offsetof(struct lanefs_##s, f), sizeof(((struct lanefs_##s *)0)->f)}

extern "C" __attribute__((visibility("default"))) const lanefs_field lanefs_layout[];

const lanefs_field lanefs_layout[] = {
	LANEFS_S(work), LANEFS_F(work, seq), LANEFS_F(work, opcode), LANEFS_F(work, flags), LANEFS_F(work, tag),
	LANEFS_F(work, nsid), LANEFS_F(work, len), LANEFS_F(work, iova), LANEFS_F(work, mptr), LANEFS_F(work, cdw10),
	LANEFS_F(work, cdw11), LANEFS_F(work, cdw12), LANEFS_F(work, cdw13), LANEFS_F(work, cdw14), LANEFS_F(work, cdw15),
	LANEFS_F(work, timeout),
	LANEFS_S(result), LANEFS_F(result, seq), LANEFS_F(result, tag), LANEFS_F(result, status), LANEFS_F(result, dw0),
	LANEFS_F(result, dw1), LANEFS_F(result, latency), LANEFS_F(result, cid), LANEFS_F(result, sqhd),
	LANEFS_F(result, engine), LANEFS_F(result, reserved),
	LANEFS_S(cid), LANEFS_F(cid, posted), LANEFS_F(cid, len), LANEFS_F(cid, tag),
	LANEFS_F(cid, state), LANEFS_F(cid, opcode), LANEFS_F(cid, deadline), LANEFS_F(cid, free), LANEFS_F(cid, reserved),
	LANEFS_S(trace), LANEFS_F(trace, seen), LANEFS_F(trace, built), LANEFS_F(trace, released), LANEFS_F(trace, rung),
	LANEFS_F(trace, found), LANEFS_F(trace, answered), LANEFS_F(trace, seq), LANEFS_F(trace, reserved0), LANEFS_F(trace, reserved),
	LANEFS_S(control), LANEFS_F(control, command), LANEFS_F(control, reserved),
	LANEFS_S(status), LANEFS_F(status, state), LANEFS_F(status, progress), LANEFS_F(status, in_flight),
	LANEFS_F(status, dead_cids), LANEFS_F(status, failed), LANEFS_F(status, work_next), LANEFS_F(status, result_next),
	LANEFS_F(status, bad_cid), LANEFS_F(status, time), LANEFS_F(status, held), LANEFS_F(status, reserved0),
	LANEFS_F(status, reserved),
	LANEFS_S(counters), LANEFS_F(counters, commands), LANEFS_F(counters, completions), LANEFS_F(counters, bytes_read),
	LANEFS_F(counters, bytes_written), LANEFS_F(counters, sq_doorbells), LANEFS_F(counters, cq_doorbells),
	LANEFS_F(counters, errors), LANEFS_F(counters, timeouts), LANEFS_F(counters, late), LANEFS_F(counters, spurious),
	LANEFS_F(counters, rejected), LANEFS_F(counters, reserved),
	LANEFS_S(lane), LANEFS_F(lane, magic), LANEFS_F(lane, version), LANEFS_F(lane, size), LANEFS_F(lane, sqid),
	LANEFS_F(lane, reserved0), LANEFS_F(lane, sq), LANEFS_F(lane, cq), LANEFS_F(lane, sq_doorbell),
	LANEFS_F(lane, cq_doorbell), LANEFS_F(lane, work), LANEFS_F(lane, results), LANEFS_F(lane, cids),
	LANEFS_F(lane, prp), LANEFS_F(lane, prp_iova), LANEFS_F(lane, control), LANEFS_F(lane, status),
	LANEFS_F(lane, counters), LANEFS_F(lane, sq_size), LANEFS_F(lane, cq_size), LANEFS_F(lane, ring_size),
	LANEFS_F(lane, cid_count), LANEFS_F(lane, prp_stride), LANEFS_F(lane, page_size), LANEFS_F(lane, silent), LANEFS_F(lane, reserved1),
	LANEFS_F(lane, trace),
	LANEFS_F(lane, sq_tail), LANEFS_F(lane, cq_head), LANEFS_F(lane, cq_phase), LANEFS_F(lane, work_next),
	LANEFS_F(lane, result_next), LANEFS_F(lane, in_flight), LANEFS_F(lane, cid_head), LANEFS_F(lane, dead_cids),
	LANEFS_F(lane, next_deadline), LANEFS_F(lane, failed), LANEFS_F(lane, bad_cid), LANEFS_F(lane, cid_tail),
	LANEFS_F(lane, ready), LANEFS_F(lane, stamps), LANEFS_F(lane, totals),
	{"", "", 0, 0},
};

#endif
