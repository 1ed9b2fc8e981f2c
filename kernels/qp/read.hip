/*
 * nvme_qp.h in a kernel of your own: one thread reads pages of a namespace, with as many commands in flight as the queues hold.
 * An example: build.sh compiles it for each target, test.cc runs it on a CPU, test.cu on an NVIDIA GPU.
 */
#include "../nvme_qp.h"

#if defined(__HIP__) || defined(__CUDA__) || defined(__CUDACC__)
#define KERNEL extern "C" __attribute__((global))
#else
#define KERNEL extern "C"
#endif

constexpr uint32_t read_opcode = 2, page_blocks = 8, page_bytes = 4096; /* a namespace with blocks of 512 bytes */

/*
 * Reads the first `count` pages of a namespace, page i to data + i * page_bytes, which is the controller's address. Gives
 * up once it has polled `polls` times in a row without a completion. *good is how many reads succeeded.
 */
KERNEL void read_pages(nvme::qp *q, uint32_t nsid, uint64_t data, uint32_t count, uint64_t polls, uint32_t *good) {
	uint32_t depth = (q->sq_size < q->cq_size ? q->sq_size : q->cq_size) - 1;
	depth = depth < 64 ? depth : 64;
	uint64_t busy = 0; /* a bit for each CID, of which there are `depth` */
	uint32_t cid = 0, posted = 0, reaped = 0;
	*good = 0;
	for (uint64_t waited = 0; reaped < count && waited < polls;) {
		uint32_t before = posted;
		for (; posted < count && posted - reaped < depth; posted++) {
			while (busy >> cid & 1)
				cid = cid + 1 == depth ? 0 : cid + 1;
			busy |= 1ull << cid;
			uint64_t page = data + (uint64_t)posted * page_bytes;
			nvme::post(q, nvme::command(read_opcode, cid, nsid, page, 0, posted * page_blocks, 0, page_blocks - 1));
		}
		if (posted != before)
			nvme::ring_sq(q); /* once for all of them */

		nvme::cqe done;
		before = reaped;
		for (; nvme::reap(q, &done); reaped++) {
			busy &= ~(1ull << nvme::cid(done.dw23));
			*good += (nvme::status(done.dw23) & 0x7ff) == 0; /* SCT and SC */
		}
		if (reaped != before)
			nvme::ring_cq(q);
		waited = reaped != before ? 0 : waited + 1;
	}
}
