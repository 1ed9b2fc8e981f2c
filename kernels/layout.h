/*
 * The layout that the CPU and the lanes share.
 *
 * A lane is a wave of threads, or one thread, that owns one NVMe I/O queue pair and one work ring. The CPU puts work
 * items into the ring; the lane turns each into a submission queue entry, and answers each with exactly one result,
 * whatever happens to the command. Nothing else writes to the queue pair.
 *
 *     CPU  -- work ring, in order of submission -->  lane  -- SQ, SQ doorbell -->  controller
 *     CPU  <-- result ring, in order of completion --  lane  <-- CQ, CQ doorbell --  controller
 *
 * Both rings have ring_size slots, a power of two. The item at position n (0, 1, 2, ... modulo 2^32) is in slot
 * n % ring_size and is there once the slot's seq is n + 1: one word to poll, and no index shared by both sides. The
 * memory starts zeroed, so nothing looks present before it is.
 *
 * A slot is twice as long as the struct that it holds: dword i of the struct (of lanefs_work or lanefs_result, dword 0 being
 * seq) is the upper half of the slot's 64-bit word i, whose lower half is seq again. Dword 0 has its place in the lower half
 * of word 0, which is stored last; the upper half is 0. An aligned 64-bit access is never torn, so each word carries the mark
 * that it is there: a reader can load all words at once, over PCIe in one trip, and needs no order between them.
 *
 * The writer of a ring never overtakes its reader as long as the CPU keeps (work items submitted - results consumed)
 * at or below ring_size: the results consumed are among the items taken, which are a prefix of those submitted, so the
 * slot that comes up next has been taken. Results are in order of completion, not in the slot of their work item, for
 * the sake of that rule and so that the CPU polls one word however many commands are in flight; tag names its work item.
 *
 * Addresses are device addresses (gpu.Addr) unless called IOVA, which is what the controller sees. Times are ticks of
 * the clock that the lane is given: nanoseconds on the host runtime. All integers are little-endian, as NVMe's are. Each
 * struct is aligned as its attribute says; a lane may use wide loads and stores that trap otherwise.
 * Specification: NVM Express Base Specification 2.0 [NVMe], NVM Command Set Specification 1.0.
 *
 * This file is C and C++; layout.go mirrors it, and a test compares the two by the table in layout_table.h.
 */
#ifndef LANEFS_LAYOUT_H
#define LANEFS_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define LANEFS_MAGIC 0x656e614cu /* "Lane" */
#define LANEFS_VERSION 5u

/* What the CPU asks of a lane, in the lowest byte of lanefs_control.command. */
enum lanefs_command {
	LANEFS_RUN = 0,  /* take work, post, reap */
	LANEFS_PARK = 1, /* a resident kernel leaves after this step, with all its lanes, and keeps what is in flight */
	LANEFS_FAIL = 2, /* the queue pair is gone: answer all that is in flight and all work with LANEFS_QUEUE_DEAD */
};

/*
 * The rest of that word counts holds. While it is odd the lane is the CPU's: a resident kernel answers with that number in
 * lanefs_status.held, and does nothing with the lane until it is even again.
 */
#define LANEFS_COMMAND(word) ((word) & 0xffu)
#define LANEFS_HOLD 0x100u

/* What a lane is doing, in lanefs_status.state. */
enum lanefs_state {
	LANEFS_NEW = 0,     /* lanefs_reset has not run, or refused the lane: see failed */
	LANEFS_READY = 1,   /* no resident kernel runs it; step and batch do */
	LANEFS_RUNNING = 2, /* a resident kernel runs it */
	LANEFS_PARKING = 3, /* a resident kernel is about to leave or to doze, and polls for work once more */
	LANEFS_PARKED = 4,  /* a resident kernel has left, or has given the lane to the CPU, which holds it */
	LANEFS_DOZING = 5,  /* a resident kernel has it and looks for work now and then */
};

/* The engine's own outcome of a work item, in lanefs_result.engine. Anything but LANEFS_OK: status means nothing. */
enum lanefs_engine {
	LANEFS_OK = 0,         /* the controller completed the command; its status is in status */
	LANEFS_TIMEOUT = 1,    /* no completion by the deadline. The command may still run: its buffer may be written to */
	LANEFS_BAD_CQE = 2,    /* a completion named a command that is not in flight: the queue pair is not used any more */
	LANEFS_QUEUE_DEAD = 3, /* the CPU stored LANEFS_FAIL, every CID timed out, or the lane was reset */
	LANEFS_BAD_WORK = 4,   /* not posted: data not dword-aligned, or too long for the lane's PRP lists */
	LANEFS_BAD_LANE = 5,   /* magic, version, or sizes are not what the kernel was built for */
};

/* One command, in a slot of LANEFS_WORK_SLOT bytes. seq is stored last, with release. */
struct lanefs_work {
	uint32_t seq;
	uint8_t opcode; /* CDW0 07:00 */
	uint8_t flags;  /* CDW0 15:08: FUSE and PSDT; lanes write PRPs, so PSDT is 0 */
	uint16_t tag;   /* comes back in the result */
	uint32_t nsid;
	uint32_t len;  /* bytes of data at iova, 0 for none: the lane writes PRP1 and PRP2 from it */
	uint64_t iova; /* of the data, linear, dword-aligned */
	uint64_t mptr; /* metadata pointer, 0 for none */
	uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15; /* the command's own: SLBA, NLB, FUA, ranges */
	uint64_t timeout; /* ticks from posting to LANEFS_TIMEOUT; 0 is no deadline of its own */
} __attribute__((aligned(64)));

/*
 * One answer, in a slot of LANEFS_RESULT_SLOT bytes. seq is stored last; the other words of the slot may still be on
 * their way.
 */
struct lanefs_result {
	uint32_t seq;
	uint16_t tag;
	uint16_t status; /* CQE DW3 31:17: SC 7:0, SCT 10:8, CRD 12:11, M 13, DNR 14; no phase bit */
	uint32_t dw0, dw1; /* CQE DW0 and DW1: command-specific */
	uint64_t latency;  /* ticks from posting to reaping */
	uint16_t cid;
	uint16_t sqhd; /* CQE SQ head pointer */
	uint8_t engine; /* enum lanefs_engine */
	uint8_t reserved[3];
} __attribute__((aligned(32)));

/*
 * The record of a command identifier: the command that uses it. Private to the lane. The record at index i also holds
 * slot i of the ring of free CIDs, which has nothing to do with CID i.
 */
struct lanefs_cid {
	uint64_t posted; /* time; what a completion asks for is in the first 16 bytes, one load */
	uint32_t len;    /* bytes */
	uint16_t tag;
	uint8_t state; /* enum lanefs_cid_state */
	uint8_t opcode;
	uint64_t deadline; /* time, all ones for none */
	uint16_t free;     /* a CID */
	uint8_t reserved[6];
} __attribute__((aligned(32)));

enum lanefs_cid_state {
	LANEFS_CID_FREE = 0,
	LANEFS_CID_BUSY = 1,
	LANEFS_CID_DEAD = 2, /* timed out: its completion may still come; not used again until lanefs_reset */
};

/*
 * When the steps of one command happened, by the lane's own clock (device.h). Only kernels that were built for it write them
 * (traced/traced.hip): those of a mount have no instruction for it. The first four are the same for all that one step has posted.
 */
struct lanefs_trace {
	uint64_t seen;     /* the lane has the work item and begins to build */
	uint64_t built;    /* SQE and PRP list are written */
	uint64_t released; /* they are visible to the controller */
	uint64_t rung;     /* the doorbell is stored */
	uint64_t found;    /* a poll has found the completion */
	uint64_t answered; /* the result is written, and shown next */
	uint32_t seq;      /* that of the result */
	uint32_t reserved0;
	uint64_t reserved;
} __attribute__((aligned(64)));

/* Written by the CPU, read by the lane; a cache line of its own. */
struct lanefs_control {
	uint32_t command; /* enum lanefs_command, and the number of the hold */
	uint32_t reserved[15];
} __attribute__((aligned(64)));

/* Written by the lane at the end of a step, read by the CPU; a cache line of its own. */
struct lanefs_status {
	uint32_t state;       /* enum lanefs_state */
	uint32_t progress;    /* 1 if the last step posted, reaped or answered anything */
	uint32_t in_flight;   /* commands posted and not answered */
	uint32_t dead_cids;   /* retired by timeouts */
	uint32_t failed;      /* enum lanefs_engine: why the lane answers everything with it; 0 while it works */
	uint32_t work_next;   /* position of the next work item the lane will take */
	uint32_t result_next; /* position of the next result the lane will write */
	uint32_t bad_cid;     /* CID and, in the high half, SQID of the completion that caused LANEFS_BAD_CQE */
	uint64_t time;        /* of the last step */
	uint32_t held;        /* the last hold that a resident kernel has answered */
	uint32_t reserved0;
	uint64_t reserved[2];
} __attribute__((aligned(64)));

/* Written by the lane, read by the CPU. They only grow, across lanefs_reset too. */
struct lanefs_counters {
	uint64_t commands;      /* SQEs written */
	uint64_t completions;   /* CQEs reaped, late ones included */
	uint64_t bytes_read;    /* controller to host, of successful commands */
	uint64_t bytes_written; /* host to controller, of successful commands */
	uint64_t sq_doorbells;
	uint64_t cq_doorbells;
	uint64_t errors;   /* completions with a status other than success */
	uint64_t timeouts; /* commands answered with LANEFS_TIMEOUT */
	uint64_t late;     /* completions of commands that had timed out */
	uint64_t spurious; /* completions that named nothing in flight */
	uint64_t rejected; /* work items answered without being posted */
	uint64_t reserved[5];
} __attribute__((aligned(64)));

struct lanefs_lane {
	/* Set by the CPU before lanefs_reset, read by the lane. */
	uint32_t magic;
	uint32_t version;
	uint32_t size; /* of this struct */
	uint16_t sqid;
	uint16_t reserved0;
	uint64_t sq;          /* sq_size entries of 64 bytes */
	uint64_t cq;          /* cq_size entries of 16 bytes, zeroed before the queue is created */
	uint64_t sq_doorbell; /* 32-bit words; CAP.DSTRD is in the address */
	uint64_t cq_doorbell;
	uint64_t work;    /* ring_size slots of lanefs_work, zeroed before the first lanefs_reset */
	uint64_t results; /* ring_size slots of lanefs_result, likewise */
	uint64_t cids;    /* cid_count lanefs_cid */
	uint64_t prp;     /* cid_count PRP lists of prp_stride bytes, linear in IOVA too */
	uint64_t prp_iova;
	uint64_t control;  /* lanefs_control */
	uint64_t status;   /* lanefs_status */
	uint64_t counters; /* lanefs_counters: a copy of totals for the CPU */
	uint32_t sq_size;  /* entries; both at least 2 */
	uint32_t cq_size;
	uint32_t ring_size; /* slots, a power of two */
	uint32_t cid_count; /* commands in flight at most: below sq_size and below cq_size */
	uint32_t prp_stride; /* bytes of PRP list per CID, a power of two up to page_size or a multiple of it */
	uint32_t page_size;  /* bytes: CC.MPS */
	uint64_t silent;     /* bit n: completions of opcode n have nothing in DW0 and DW1, which are not read then */
	uint64_t reserved1[5]; /* a CPU's resident kernel keeps there what others have in registers */
	uint64_t trace;        /* ring_size lanefs_trace, at a result's slot when that result was written; 0 for none */

	/* The lane's own state; lanefs_reset sets it. */
	uint32_t sq_tail;
	uint32_t cq_head;
	uint32_t cq_phase; /* the value of P that marks a new entry */
	uint32_t work_next;
	uint32_t result_next;
	uint32_t in_flight;
	uint32_t cid_head; /* slot of the free ring that is taken next */
	uint32_t dead_cids;
	uint64_t next_deadline; /* no command in flight has an earlier one */
	uint32_t failed;        /* enum lanefs_engine */
	uint32_t bad_cid;
	uint32_t cid_tail; /* slot of the free ring that is filled next */
	uint32_t ready; /* LANEFS_MAGIC once lanefs_reset has accepted the lane */
	uint64_t stamps; /* not state: cid_count lanefs_trace, by CID, which only the lane uses; there if trace is */
	struct lanefs_counters totals;
} __attribute__((aligned(64)));

#define LANEFS_NO_CID 0xffffu

/* Bytes of a ring's slot. */
#define LANEFS_WORK_SLOT 128u
#define LANEFS_RESULT_SLOT 64u

#ifdef __cplusplus
#define LANEFS_ASSERT(e, why) static_assert(e, why)
#else
#define LANEFS_ASSERT(e, why) _Static_assert(e, why)
#endif

LANEFS_ASSERT(sizeof(struct lanefs_work) * 2 == LANEFS_WORK_SLOT, "a work item's slot is two cache lines");
LANEFS_ASSERT(sizeof(struct lanefs_result) * 2 == LANEFS_RESULT_SLOT, "a result's slot is one cache line");
LANEFS_ASSERT(sizeof(struct lanefs_cid) == 32, "lanefs_cid");
LANEFS_ASSERT(sizeof(struct lanefs_trace) == 64, "lanefs_trace is one cache line");
LANEFS_ASSERT(sizeof(struct lanefs_control) == 64, "lanefs_control is one cache line");
LANEFS_ASSERT(sizeof(struct lanefs_status) == 64, "lanefs_status is one cache line");
LANEFS_ASSERT(sizeof(struct lanefs_counters) == 128, "lanefs_counters is two cache lines");
LANEFS_ASSERT(sizeof(struct lanefs_lane) == 384, "lanefs_lane is six cache lines");
LANEFS_ASSERT(offsetof(struct lanefs_work, cdw10) == 32, "the second half of a work item starts with CDW10");
LANEFS_ASSERT(offsetof(struct lanefs_lane, sq_tail) == 192, "the lane's own state starts a cache line");
LANEFS_ASSERT(offsetof(struct lanefs_lane, totals) == 256, "the totals start a cache line");

#endif
