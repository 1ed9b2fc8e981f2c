/*
 * Run by a test beside this: testsync FILE, with memory of a GPU of the stand-in for libcuda (lab/cuda). For each line "FLAGS HOW OFFSET BYTE" of the standard
 * input it opens the file with these flags, has N of these bytes written there, and says what the write's result is. With "fails" the kernel cannot make them
 * durable.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "testcuda.h"

enum { N = 9000, PARTS = 3 };

static void *context, *stream;
static int fails;

/* The library's, too. */
int fdatasync(int fd)
{
	static int (*real)(int);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fdatasync");
	if (!fails)
		return real(fd);
	errno = EIO;
	return -1;
}

static ssize_t by_batch(CUfileHandle_t h, void *m, off_t offset, unsigned parts)
{
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[PARTS] = {0};
	CUfileIOEvents_t e[PARTS];
	ssize_t sum = 0;
	unsigned n = parts;
	for (unsigned i = 0; i < parts; i++) {
		p[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = h, .opcode = CUFILE_WRITE};
		p[i].u.batch.devPtr_base = m;
		p[i].u.batch.devPtr_offset = (off_t)(i * N / parts);
		p[i].u.batch.file_offset = offset + p[i].u.batch.devPtr_offset;
		p[i].u.batch.size = N / parts;
	}
	OK(cuFileBatchIOSetUp(&b, PARTS));
	OK(cuFileBatchIOSubmit(b, parts, p, 0));
	OK(cuFileBatchIOGetStatus(b, parts, &n, e, NULL));
	WANT(n == parts);
	cuFileBatchIODestroy(b);
	for (unsigned i = 0; i < n; i++) {
		if (e[i].status != CUFILE_COMPLETE)
			return (ssize_t)e[i].ret;
		sum += (ssize_t)e[i].ret;
	}
	return sum;
}

static ssize_t by_stream(CUfileHandle_t h, void *m, off_t offset)
{
	size_t n = N;
	off_t at = 0;
	ssize_t got = -7;
	CUfileError_t e = cuFileWriteAsync(h, m, &n, &offset, &at, &got, (CUstream)stream);
	WANT(cuda.sync(stream) == 0);
	return e.err ? -e.err : got;
}

int main(int argc, char **argv)
{
	char flags[20], how[20];
	long offset;
	int byte;
	void *m;
	WANT(argc == 2);
	alarm(300);
	load(&context, 1);
	WANT(cuda.current(context) == 0 && cuda.malloc(&m, N) == 0 && cuda.create(&stream, NON_BLOCKING) == 0);
	OK(cuFileStreamRegister((CUstream)stream, 0xf));
	while (scanf("%19s %19s %ld %d", flags, how, &offset, &byte) == 4) {
		int f = strcmp(flags, "dsync") == 0 ? O_DSYNC : strcmp(flags, "sync") == 0 ? O_SYNC : strcmp(flags, "direct") == 0 ? O_DIRECT | O_DSYNC : strcmp(flags, "fails") == 0 ? O_DSYNC : 0;
		int fd = open(argv[1], O_RDWR | f);
		WANT(fd >= 0);
		CUfileHandle_t h = reg(fd);
		close(fd);
		fails = strcmp(flags, "fails") == 0;
		memset(m, byte, N);
		errno = 0;
		ssize_t n = strcmp(how, "call") == 0 ? cuFileWrite(h, m, N, offset, 0) : strcmp(how, "batch") == 0 ? by_batch(h, m, offset, PARTS) :
			strcmp(how, "single") == 0 ? by_batch(h, m, offset, 1) : by_stream(h, m, offset);
		printf("%zd\n", n);
		fflush(stdout);
		cuFileHandleDeregister(h);
	}
	OK(cuFileDriverClose());
	return 0;
}
