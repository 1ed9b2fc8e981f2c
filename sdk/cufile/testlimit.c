/*
 * Run by a test beside this: testlimit FILE OTHER, with memory of a GPU of the stand-in for libcuda (lab/cuda). FILE is on a mount with device memory, OTHER is not; byte i of both is
 * i % 251. With a limit of a file's size a stage cannot be had, and OTHER cannot be written beyond it: the calls say EFBIG, and the program lives. Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "testcuda.h"

enum { N = 300000, LIMIT = 1 << 16 };

static void *context, *stream;

static void limit(rlim_t n)
{
	struct rlimit r;
	WANT(getrlimit(RLIMIT_FSIZE, &r) == 0);
	r.rlim_cur = n;
	WANT(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

static CUfileHandle_t opened(const char *path)
{
	int fd = open(path, O_RDWR);
	WANT(fd >= 0);
	CUfileHandle_t h = reg(fd);
	close(fd);
	return h;
}

static ssize_t by_batch(CUfileHandle_t h, void *m, CUfileOpcode_t op, CUfileStatus_t *status)
{
	CUfileBatchHandle_t b;
	CUfileIOParams_t p = {.mode = CUFILE_BATCH, .fh = h, .opcode = op};
	CUfileIOEvents_t e;
	unsigned n = 1;
	p.u.batch.devPtr_base = m;
	p.u.batch.size = N;
	OK(cuFileBatchIOSetUp(&b, 1));
	CUfileError_t rc = cuFileBatchIOSubmit(b, 1, &p, 0);
	ssize_t got = -1;
	*status = CUFILE_FAILED;
	if (rc.err == CU_FILE_SUCCESS) {
		OK(cuFileBatchIOGetStatus(b, 1, &n, &e, NULL));
		WANT(n == 1);
		*status = e.status;
		got = (ssize_t)e.ret;
	}
	cuFileBatchIODestroy(b);
	return got;
}

static ssize_t by_stream(CUfileHandle_t h, void *m, int read)
{
	size_t n = N;
	off_t offset = 0, at = 0;
	ssize_t got = -7;
	CUfileError_t e = read ? cuFileReadAsync(h, m, &n, &offset, &at, &got, (CUstream)stream) : cuFileWriteAsync(h, m, &n, &offset, &at, &got, (CUstream)stream);
	WANT(cuda.sync(stream) == 0);
	if (e.err)
		return e.err > 0 ? -(ssize_t)e.err : (ssize_t)e.err;
	return got;
}

static void failed(CUfileHandle_t h, void *m)
{
	CUfileStatus_t status;
	for (int read = 0; read < 2; read++) {
		errno = 0;
		ssize_t n = read ? cuFileRead(h, m, N, 0, 0) : cuFileWrite(h, m, N, 0, 0);
		WANT(n == -1 && errno == EFBIG);
		n = by_batch(h, m, read ? CUFILE_READ : CUFILE_WRITE, &status);
		WANT(n == -EFBIG && status == CUFILE_FAILED);
		WANT(by_stream(h, m, read) == -1);
	}
}

int main(int argc, char **argv)
{
	unsigned char *m;
	WANT(argc == 3);
	alarm(300);
	load(&context, 1);
	WANT(cuda.current(context) == 0 && cuda.malloc((void **)&m, N) == 0 && cuda.create(&stream, NON_BLOCKING) == 0);
	limit(LIMIT);
	OK(cuFileStreamRegister((CUstream)stream, 0xf));
	CUfileHandle_t h = opened(argv[1]), other = opened(argv[2]);
	failed(h, m);

	memset(m, 0, N);
	WANT(cuFileRead(other, m, N, 0, 0) == N && right(m, 0, N));
	ssize_t n = cuFileWrite(other, m, N, 0, 0);
	WANT(n == LIMIT); /* as pwrite(2) */
	errno = 0;
	WANT(cuFileWrite(other, m, N, LIMIT, 0) == -1 && errno == EFBIG);

	limit(RLIM_INFINITY);
	memset(m, 0, N);
	WANT(cuFileRead(h, m, N, 0, 0) == N && right(m, 0, N));
	WANT(cuFileWrite(h, m, N, 0, 0) == N && by_stream(h, m, 1) == N && by_stream(h, m, 0) == N);
	CUfileStatus_t status;
	WANT(by_batch(h, m, CUFILE_READ, &status) == N && status == CUFILE_COMPLETE && right(m, 0, N));
	cuFileHandleDeregister(h);
	cuFileHandleDeregister(other);
	puts("ok");
	return 0;
}
