/*
 * The example on an NVIDIA GPU, its queues in pinned memory of the CPU, one thread of which is the controller:
 *
 *     nvcc -std=c++17 -o test test.cu && ./test
 *
 * The status is 77 where there is no GPU.
 */
#include "controller.h"

__global__ void make_ready(nvme::qp *q) {
	nvme::init(q);
	nvme::release();
}

#define CUDA(call) \
	do \
		if (cudaError_t e = call; e != cudaSuccess) { \
			fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); \
			exit(1); \
		} \
	while (0)

int main() {
	int devices;
	if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
		return 77;
	struct shared {
		controller c;
		nvme::qp q;
		uint32_t good;
	} *m;
	CUDA(cudaHostAlloc(&m, sizeof *m, cudaHostAllocDefault)); /* the same address on both sides */
	for (uint32_t size = 2; size <= most; size++) {
		m->q = start(&m->c, size, most + 2 - size);
		m->good = 0;
		make_ready<<<1, 1>>>(&m->q);
		CUDA(cudaDeviceSynchronize());
		service s = {&m->c, m->q, 2000, 0};
		pthread_t thread;
		pthread_create(&thread, nullptr, serve, &s);
		read_pages<<<1, 1>>>(&m->q, nsid, data, s.pages, 1u << 30, &m->good);
		CUDA(cudaDeviceSynchronize());
		pthread_join(thread, nullptr);
		CHECK(s.errors == (s.pages + 2) / 3 && m->good == s.pages - s.errors);
	}
	printf("ok\n");
	return 0;
}
