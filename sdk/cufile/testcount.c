/*
 * Run by a test beside this: testcount FILE FILLER, files of a mount, the first of 5 MiB and more, the other not there, with memory of a GPU of the stand-in for libcuda (lab/cuda). Calls on a
 * stream move 2 MiB, then 1 MiB of 2 that were asked for, since the file is cut before the stream gets there, then nothing, since there is no room. What lanefs run says of it is
 * the test's. The program ends as soon as the stream is through. testcount FILE FILLER batch needs no GPU: two requests of a batch read, one has no handle, and one finds no room.
 * Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "testcuda.h"

enum { MIB = 1 << 20 };

static struct call { size_t n; off_t offset, at; ssize_t got; } call[3];

/* Leaves no room on the volume. */
static void fill(int filler)
{
	for (off_t at = 0, step = 64 * MIB; step >= 512;) {
		if (posix_fallocate(filler, at, step) == 0)
			at += step;
		else
			step /= 2;
	}
}

static void batch(int fd, int filler)
{
	static char m[4][MIB];
	CUfileHandle_t h = reg(fd), full = reg(filler);
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[4];
	CUfileIOEvents_t e[4];
	unsigned n = 4, failed = 0;
	for (unsigned i = 0; i < n; i++)
		p[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .opcode = CUFILE_READ, .fh = h, .u.batch = {m[i], i * MIB, 0, MIB}};
	p[1].fh = NULL;
	p[3].opcode = CUFILE_WRITE;
	p[3].fh = full;
	p[3].u.batch.file_offset = 1LL << 30;
	fill(filler);
	OK(cuFileBatchIOSetUp(&b, n));
	OK(cuFileBatchIOSubmit(b, n, p, 0));
	OK(cuFileBatchIOGetStatus(b, n, &n, e, NULL));
	WANT(n == 4);
	for (unsigned i = 0; i < n; i++)
		failed += e[i].status != CUFILE_COMPLETE;
	WANT(failed == 2);
	cuFileBatchIODestroy(b);
}

int main(int argc, char **argv)
{
	int (*wait)(void *, uint64_t *, uint64_t, unsigned);
	uint64_t gate = 0;
	void *context[1], *own, *m;
	alarm(100);
	if (argc == 4) {
		batch(open(argv[1], O_RDWR), open(argv[2], O_RDWR | O_CREAT, 0600));
		return write(STDOUT_FILENO, "ok\n", 3) != 3;
	}
	WANT(argc == 3);
	load(context, 1);
	*(void **)&wait = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamWaitValue64_v2");
	int fd = open(argv[1], O_RDWR), filler = open(argv[2], O_RDWR | O_CREAT, 0600);
	WANT(fd >= 0 && filler >= 0 && wait && cuda.current(context[0]) == 0 && cuda.malloc(&m, 2 * MIB) == 0 && cuda.create(&own, NON_BLOCKING) == 0);
	CUfileHandle_t h = reg(fd);
	OK(cuFileStreamRegister((CUstream)own, 0xf));
	for (int i = 0; i < 3; i++) {
		struct call *c = &call[i];
		*c = (struct call){2 * MIB, i == 2 ? MIB : 0, 0, -7};
		gate = i == 0;
		WANT(wait(own, &gate, 1, 0) == 0);
		OK(i < 2 ? cuFileReadAsync(h, m, &c->n, &c->offset, &c->at, &c->got, (CUstream)own) : cuFileWriteAsync(h, m, &c->n, &c->offset, &c->at, &c->got, (CUstream)own));
		if (i == 1)
			WANT(ftruncate(fd, MIB) == 0);
		if (i == 2)
			fill(filler);
		__atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
		WANT(cuda.sync(own) == 0);
		WANT(c->got == (i == 0 ? 2 * MIB : i == 1 ? MIB : -1));
	}
	WANT(write(STDOUT_FILENO, "ok\n", 3) == 3);
	_exit(0);
}
