/*
 * An NVMe queue pair, driven by a GPU kernel or by a CPU's thread. This header stands alone: copy it.
 *
 *     SQ        submission queue: sq_size entries (SQE) of 64 bytes. The owner writes at the tail, the controller fetches at the head
 *     CQ        completion queue: cq_size entries (CQE) of 16 bytes. The controller writes at the tail, the owner reads at the head
 *     doorbell  a 32-bit register in the controller's BAR: one takes the SQ's new tail, one the CQ's new head
 *     CID       command identifier: chosen by the owner, unique among its commands in flight, comes back in the CQE
 *     phase     a bit of each CQE. The controller inverts it at each pass through the CQ, which marks a new entry
 *
 * Three verbs, each of its own, so that one doorbell serves many commands:
 *
 *     post      writes an SQE at the tail. The controller does not know of it yet
 *     ring      orders what was written before the doorbell, and stores the tail or the head in it
 *     reap      takes the CQE at the head, if it is new. Completions come in any order of their CIDs
 *
 *     nvme::qp qp = {sq, cq, sq_doorbell, cq_doorbell, 64, 64, 0, 0, 0};
 *     nvme::init(&qp);                                   // then the CPU creates the CQ and the SQ
 *     nvme::post(&qp, nvme::command(2, cid, nsid, prp1, prp2, slba, slba >> 32, blocks - 1));
 *     nvme::ring_sq(&qp);
 *     nvme::cqe done;
 *     while (!nvme::reap(&qp, &done)) {}                 // give it a deadline
 *     nvme::ring_cq(&qp);                                // the entry is the controller's again
 *
 * One thread owns a queue pair at a time. It has at most min(sq_size, cq_size) - 1 commands in flight (posted and not
 * reaped): then neither queue overflows, and neither needs to be asked whether it is full. Addresses are those of the
 * device that runs this.
 *
 * Order. Memory and registers are shared with the controller, so every fence is system-wide. What clang 19 makes of them:
 *
 *                   load (a poll)     acquire                    release                       store (a doorbell)
 *     gfx90a        glc               buffer_invl2, wbinvl1_vol  buffer_wbl2, s_waitcnt        plain
 *     gfx942        sc0 sc1           buffer_inv sc0 sc1         buffer_wbl2 sc0 sc1, waitcnt  sc0 sc1
 *     gfx1100       glc               buffer_gl1_inv, gl0_inv    s_waitcnt_vscnt               plain
 *     gfx1201       scope:SCOPE_SYS   global_inv SCOPE_SYS       global_wb, s_wait_storecnt    scope:SCOPE_SYS
 *     sm_80         ld.volatile       ld.acquire.sys             fence.acq_rel.sys             st.volatile
 *     x86-64        mov               nothing                    nothing                       mov
 *     arm64         ldr               dmb oshld                  dmb osh                       str
 *
 * For HIP (clang), CUDA (clang or nvcc), and C++ (clang or gcc).
 * Specification: NVM Express Base Specification 2.0 [NVMe]: 3.3.3.1 SQE, 3.3.3.2 CQE, 3.1.3.14 and 3.1.3.15 doorbells.
 */
#ifndef NVME_QP_H
#define NVME_QP_H

#include <stdint.h>

/*
 * Where this is compiled for: PTX by clang or nvcc, else an AMD GPU or a CPU. nvcc has neither clang's attributes nor its
 * builtins.
 */
#if defined(__CUDACC__) && !defined(__clang__)
#define NVME_NVCC
#endif
#if defined(__NVPTX__) || defined(NVME_NVCC)
#define NVME_PTX
#endif

#if defined(NVME_NVCC)
#define NVME_FN static __device__ __forceinline__
#elif defined(__HIP__) || defined(__CUDA__)
#define NVME_FN static inline __attribute__((device, always_inline))
#else
#define NVME_FN static inline __attribute__((always_inline))
#endif

#if defined(__AMDGPU__) || defined(__NVPTX__)
#define NVME_GLOBAL __attribute__((address_space(1)))
#else
#define NVME_GLOBAL
#endif

namespace nvme {

/* Memory. */

/* Sixteen bytes: the widest store that all targets have. */
#if defined(NVME_NVCC)
typedef uint4 quad;
#elif defined(__clang__)
typedef uint32_t quad __attribute__((ext_vector_type(4)));
#else
typedef uint32_t quad __attribute__((vector_size(16)));
#endif

/* The device address a as a pointer. Saying that it is global memory spares a GPU the slower flat accesses. */
template <typename T> NVME_FN T *at(uint64_t a) { return (T *)(T NVME_GLOBAL *)a; }

/* The same pointer as PTX's instructions on global memory take it. */
#if defined(NVME_NVCC)
#define NVME_ADDRESS(T, p) __cvta_generic_to_global(p)
#else
#define NVME_ADDRESS(T, p) ((const T NVME_GLOBAL *)(p))
#endif

/* Relaxed and system-scope: goes to memory that the CPU or the controller shares, orders nothing by itself. */
#if defined(__clang__)
template <typename T> NVME_FN T load(const T *p) {
	return __scoped_atomic_load_n(p, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
template <typename T> NVME_FN void store(T *p, T v) {
	__scoped_atomic_store_n(p, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
#elif defined(NVME_NVCC)
#define NVME_LOAD_STORE(type, suffix, constraint) \
	NVME_FN type load(const type *p) { \
		type v; \
		asm volatile("ld.relaxed.sys.global." suffix " %0, [%1];" : "=" constraint(v) : "l"(NVME_ADDRESS(type, p)) : "memory"); \
		return v; \
	} \
	NVME_FN void store(type *p, type v) { \
		asm volatile("st.relaxed.sys.global." suffix " [%0], %1;" : : "l"(NVME_ADDRESS(type, p)), constraint(v) : "memory"); \
	}
NVME_LOAD_STORE(uint32_t, "u32", "r")
NVME_LOAD_STORE(uint64_t, "u64", "l")
#else
template <typename T> NVME_FN T load(const T *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
template <typename T> NVME_FN void store(T *p, T v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
#endif

/*
 * System-wide fences. NVPTX cannot select C11 fences (LLVM 19). Arm's C11 fences reach the inner shareable domain only,
 * and a device may stand in the outer one.
 */

/* All earlier loads and stores come before all later stores. */
NVME_FN void release() {
#if defined(NVME_PTX)
	asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif defined(__aarch64__)
	asm volatile("dmb osh" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_RELEASE);
#endif
	/*
	 * The fence writes L2 back, and waits for that. LLVM 19 leaves the wait out where it knows of no store on its way, though what the
	 * stores left in L2 is; then a doorbell could overtake the SQE.
	 */
#if defined(__AMDGPU__) && defined(__GFX9__)
	asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#elif defined(__AMDGPU__) && defined(__GFX12__)
	asm volatile("s_wait_storecnt 0x0" ::: "memory");
#endif
}

/* All earlier loads come before all later loads and stores. */
NVME_FN void acquire() {
#if defined(NVME_PTX)
	asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif defined(__aarch64__)
	asm volatile("dmb oshld" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

/*
 * A load, system-scope, that comes before all later loads and stores of its thread. On NVIDIA it waits for itself only,
 * where a fence would wait for every store on its way too; elsewhere it is a load and a fence.
 */
#if defined(NVME_PTX)
constexpr bool loads_acquire = true;
#define NVME_LOAD_ACQUIRE(type, suffix, constraint) \
	NVME_FN type load_acquire(const type *p) { \
		type v; \
		asm volatile("ld.acquire.sys.global." suffix " %0, [%1];" : "=" constraint(v) : "l"(NVME_ADDRESS(type, p)) : "memory"); \
		return v; \
	}
#else
constexpr bool loads_acquire = false;
#define NVME_LOAD_ACQUIRE(type, suffix, constraint) \
	NVME_FN type load_acquire(const type *p) { \
		type v = load(p); \
		acquire(); \
		return v; \
	}
#endif
NVME_LOAD_ACQUIRE(uint32_t, "u32", "r")
NVME_LOAD_ACQUIRE(uint64_t, "u64", "l")

/* The queue pair. */

/* A queue pair. The functions below take this, or any struct that has members of these names. */
struct qp {
	uint64_t sq, cq;                   /* addresses of the entries */
	uint64_t sq_doorbell, cq_doorbell; /* addresses of the registers; CAP.DSTRD is in them */
	uint32_t sq_size, cq_size;         /* entries, at least 2 */
	uint32_t sq_tail, cq_head;         /* the next entry to write, the next one to read */
	uint32_t cq_phase;                 /* the phase of a new entry */
};

/* Moves a position in a queue of `size` entries on by n, which is at most `size`. */
NVME_FN void advance(uint32_t *position, uint32_t n, uint32_t size) {
	*position += n;
	if (*position >= size)
		*position -= size;
}

/*
 * Makes a queue pair ready to be created, with both queues empty: the CQ's zeroes are no new entries. The caller releases
 * before it reports that.
 */
template <typename Q> NVME_FN void init(Q *q) {
	quad *entry = at<quad>(q->cq);
	for (uint32_t i = 0; i < q->cq_size; i++)
		entry[i] = quad{0, 0, 0, 0};
	q->sq_tail = 0;
	q->cq_head = 0;
	q->cq_phase = 1;
}

/* Submission [NVMe 3.3.3.1]. */

/* An SQE: dwords 0 to 15. */
struct sqe {
	quad q[4];
};

/*
 * A command without metadata, whose data is at PRP1 and PRP2. cdw0 is opcode 7:0, fuse 9:8, PSDT 15:14; the CID is added
 * to it.
 */
NVME_FN sqe command(uint32_t cdw0, uint32_t cid, uint32_t nsid, uint64_t prp1, uint64_t prp2, uint32_t cdw10 = 0, uint32_t cdw11 = 0,
	uint32_t cdw12 = 0, uint32_t cdw13 = 0, uint32_t cdw14 = 0, uint32_t cdw15 = 0) {
	return {{quad{cdw0 | cid << 16, nsid, 0, 0}, quad{0, 0, (uint32_t)prp1, (uint32_t)(prp1 >> 32)},
		quad{(uint32_t)prp2, (uint32_t)(prp2 >> 32), cdw10, cdw11}, quad{cdw12, cdw13, cdw14, cdw15}}};
}

/* The SQ's entry n places after the tail, n at most sq_size; contiguous: the end of the queue does not lie between them. */
template <typename Q> NVME_FN quad *sqe_at(const Q *q, uint32_t n, bool contiguous = false) {
	uint32_t i = q->sq_tail;
	if (contiguous)
		i += n;
	else
		advance(&i, n, q->sq_size);
	return at<quad>(q->sq) + 4 * (uint64_t)i;
}

/* Four wide stores and nothing between them; the release before the doorbell makes them visible. */
NVME_FN void write(quad *entry, const sqe &e) {
	entry[0] = e.q[0];
	entry[1] = e.q[1];
	entry[2] = e.q[2];
	entry[3] = e.q[3];
}

/* Writes an SQE at the tail and moves the tail on. */
template <typename Q> NVME_FN void post(Q *q, const sqe &e) {
	write(sqe_at(q, 0), e);
	advance(&q->sq_tail, 1, q->sq_size);
}

/* Completion [NVMe 3.3.3.2]. DW2 and DW3 are one aligned 64-bit word, dw23. */

NVME_FN uint32_t sqhd(uint64_t dw23) { return (uint32_t)dw23 & 0xffff; }
NVME_FN uint32_t sqid(uint64_t dw23) { return (uint32_t)dw23 >> 16; }
NVME_FN uint32_t cid(uint64_t dw23) { return (uint32_t)(dw23 >> 32) & 0xffff; }
NVME_FN uint32_t phase(uint64_t dw23) { return (uint32_t)(dw23 >> 48 & 1); }
NVME_FN uint32_t status(uint64_t dw23) { return (uint32_t)(dw23 >> 49); } /* SC 7:0, SCT 10:8, CRD 12:11, M 13, DNR 14 */
constexpr uint64_t phase_bit = 1ull << 48;

/* A CQE in words. */
struct cqe {
	uint64_t dw01, dw23;
};

/* The CQ's entry n places after the head, n at most cq_size; contiguous: the end of the queue does not lie between them. */
template <typename Q> NVME_FN const uint64_t *cqe_at(const Q *q, uint32_t n, bool contiguous = false) {
	uint32_t i = q->cq_head;
	if (contiguous)
		i += n;
	else
		advance(&i, n, q->cq_size);
	return at<const uint64_t>(q->cq) + 2 * (uint64_t)i;
}

/*
 * Whether the n-th entry from the head lies beyond the end of the queue. The controller is on its next pass there, with
 * the other phase.
 */
template <typename Q> NVME_FN bool wraps(const Q *q, uint32_t n) { return q->cq_head + n >= q->cq_size; }

/* Whether an entry is new. The phase is the one that it has on the head's pass. */
template <typename Q> NVME_FN bool is_new(const Q *q, uint64_t dw23) { return phase(dw23) == q->cq_phase; }

/* What no new entry has. */
template <typename Q> NVME_FN uint64_t not_new(const Q *q) { return (uint64_t)(q->cq_phase ^ 1) << 48; }

/*
 * Polls the n-th entry from the head: its dw23, with the phase as on the head's pass. acquires: this load comes before
 * all later ones.
 */
template <typename Q> NVME_FN uint64_t poll(const Q *q, uint32_t n, bool acquires) {
	const uint64_t *p = cqe_at(q, n) + 1;
	uint64_t v = acquires ? load_acquire(p) : load(p);
	return wraps(q, n) ? v ^ phase_bit : v;
}

/* Moves the head on by n entries. Once the doorbell is rung, they are the controller's. */
template <typename Q> NVME_FN void consume(Q *q, uint32_t n) {
	if (q->cq_head + n >= q->cq_size)
		q->cq_phase ^= 1;
	advance(&q->cq_head, n, q->cq_size);
}

/*
 * Takes the entry at the head, if it is new. The phase is in its last dword, so dw23 is loaded first; the acquire orders
 * that load before the one of dw01, which could be the previous pass's otherwise, and before those of the command's data.
 */
template <typename Q> NVME_FN bool reap(Q *q, cqe *c) {
	c->dw23 = poll(q, 0, loads_acquire);
	if (!is_new(q, c->dw23))
		return false;
	if (!loads_acquire)
		acquire();
	c->dw01 = load(cqe_at(q, 0));
	consume(q, 1);
	return true;
}

/*
 * Doorbells [NVMe 3.1.3.14, 3.1.3.15]: one plain 32-bit store, never a read-modify-write. The address is a register in the
 * controller's BAR, or a word that something forwards. The store orders nothing by itself.
 */
template <typename Q> NVME_FN void store_sq_doorbell(const Q *q) { store(at<uint32_t>(q->sq_doorbell), q->sq_tail); }
template <typename Q> NVME_FN void store_cq_doorbell(const Q *q) { store(at<uint32_t>(q->cq_doorbell), q->cq_head); }

/* Shows the controller what was posted. The release orders SQEs, PRP lists and data before the doorbell. */
template <typename Q> NVME_FN void ring_sq(const Q *q) {
	release();
	store_sq_doorbell(q);
}

/* Gives the controller the entries that were reaped. The release orders their loads before the doorbell. */
template <typename Q> NVME_FN void ring_cq(const Q *q) {
	release();
	store_cq_doorbell(q);
}

} // namespace nvme

#endif
