/*
 * Run by the Go tests beside this: test FILE OTHER [PARTS], a file of a mount with device memory, open to read and write, whose byte i is
 * i % 251, and one of the same bytes that is elsewhere. It is built with NVIDIA's header, too, where there is one. The files are as they were
 * at the end. It prints "ok", and with PARTS "end" waits for the daemon's end, to print "gone".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cufile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)
#define OK(call) do { CUfileError_t e_ = (call); if (e_.err != CU_FILE_SUCCESS) { fprintf(stderr, "%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, (int)e_.err, cufileop_status_error(e_.err)); exit(1); } } while (0)
#define IS(want, call) do { CUfileError_t e_ = (call); if (e_.err != (want)) { fprintf(stderr, "%s:%d: %s: %d, not %d\n", __FILE__, __LINE__, #call, (int)e_.err, (int)(want)); exit(1); } } while (0)

static size_t size;

static int right(const unsigned char *p, uint64_t off, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] != (off + i) % 251)
			return 0;
	return 1;
}

static int all(const unsigned char *p, unsigned char c, size_t n)
{
	while (n > 0 && p[n - 1] == c)
		n--;
	return n == 0;
}

static CUfileHandle_t reg(int fd)
{
	CUfileDescr_t d;
	CUfileHandle_t h = NULL;
	memset(&d, 0, sizeof d);
	d.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
	d.handle.fd = fd;
	OK(cuFileHandleRegister(&h, &d));
	WANT(h);
	return h;
}

/* Reads and writes of a file: every alignment, the end of the file, registered memory and not. */
static void moves(int fd)
{
	CUfileHandle_t h = reg(fd);
	unsigned char *p = malloc(2 * size), *was = malloc(size);
	WANT(p && was && pread(fd, was, size, 0) == (ssize_t)size && right(was, 0, size));
	memset(p, 'x', 2 * size);
	WANT(cuFileRead(h, p, size, 0, 3) == (ssize_t)size && right(p + 3, 0, size) && p[2] == 'x' && p[size + 3] == 'x');
	for (size_t n = 1; n < 300000; n = n * 7 + 1)
		for (off_t at = 0; at < 100000; at = at * 13 + 1)
			WANT(cuFileRead(h, p, n, at, 5) == (ssize_t)n && right(p + 5, (uint64_t)at, n));
	memset(p, 'x', 2 * size);
	WANT(cuFileRead(h, p, 5000, (off_t)size - 1000, 0) == 1000 && right(p, size - 1000, 1000) && all(p + 1000, 'x', 4000));
	WANT(cuFileRead(h, p, 5000, (off_t)size, 0) == 0 && cuFileRead(h, p, 5000, (off_t)size + 100, 0) == 0 && cuFileRead(h, p, 0, 0, 0) == 0);

	OK(cuFileBufRegister(p, size, 0));
	IS(CU_FILE_MEMORY_ALREADY_REGISTERED, cuFileBufRegister(p, size, 0));
	WANT(cuFileRead(h, p, 1000, 77, (off_t)size - 1000) == 1000 && right(p + size - 1000, 77, 1000));
	WANT(cuFileRead(h, p, 1001, 77, (off_t)size - 1000) == -CU_FILE_INVALID_MAPPING_RANGE);
	for (size_t i = 0; i < size; i++)
		p[i] = (unsigned char)~was[i];
	WANT(cuFileWrite(h, p, 4999, 12345, 12345) == 4999);
	WANT(pread(fd, p + size, 5001, 12344) == 5001 && memcmp(p + size + 1, p + 12345, 4999) == 0 && p[size] == was[12344] && p[size + 5000] == was[17344]);
	WANT(cuFileRead(h, p + size, 4999, 12345, 0) == 4999 && memcmp(p + size, p + 12345, 4999) == 0);
	WANT(cuFileWrite(h, p, size, 0, 0) == (ssize_t)size && pread(fd, p + size, size, 0) == (ssize_t)size && memcmp(p, p + size, size) == 0);
	WANT(pwrite(fd, was, size, 0) == (ssize_t)size && cuFileRead(h, p, size, 0, 0) == (ssize_t)size && memcmp(p, was, size) == 0);
	OK(cuFileBufDeregister(p));
	IS(CU_FILE_MEMORY_NOT_REGISTERED, cuFileBufDeregister(p));

	/* A file that grows, and shrinks. */
	WANT(cuFileWrite(h, was, 5000, (off_t)size + 3, 0) == 5000 && cuFileRead(h, p, size, (off_t)size, 0) == 5003);
	WANT(all(p, 0, 3) && memcmp(p + 3, was, 5000) == 0);
	WANT(ftruncate(fd, (off_t)size) == 0 && cuFileRead(h, p, 100, (off_t)size - 1, 0) == 1);
	cuFileHandleDeregister(h);
	WANT(cuFileRead(h, p, 1, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED);
	free(p);
	free(was);
}

/* Handles: twice, of a closed descriptor, of a descriptor that is another file's now. */
static void handles(const char *path, const char *other)
{
	unsigned char b[64];
	CUfileDescr_t d;
	CUfileHandle_t h, again;
	int fd = open(path, O_RDONLY);
	WANT(fd >= 0);
	h = reg(fd);
	memset(&d, 0, sizeof d);
	d.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
	d.handle.fd = fd;
	IS(CU_FILE_HANDLE_ALREADY_REGISTERED, cuFileHandleRegister(&again, &d));
	errno = 0;
	WANT(cuFileWrite(h, b, 1, 0, 0) == -1 && errno == EBADF);
	WANT(cuFileRead(h, b, sizeof b, -1, 0) == -CU_FILE_INVALID_VALUE && cuFileRead(h, b, sizeof b, 0, -1) == -CU_FILE_INVALID_VALUE);
	WANT(cuFileRead(h, NULL, sizeof b, 0, 0) == -CU_FILE_INVALID_VALUE && cuFileRead(h, b, SIZE_MAX, 0, 0) == -CU_FILE_INVALID_VALUE);
	WANT(cuFileRead(h, b, sizeof b, INT64_MAX - 10, 0) == -CU_FILE_INVALID_VALUE); /* it ends beyond all offsets */
	WANT(cuFileRead(NULL, b, 1, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED && cuFileRead((void *)&h, b, 1, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED);
	close(fd);
	int now = open(other, O_RDONLY);
	WANT(now == fd); /* the number is another file's now */
	WANT(cuFileRead(h, b, sizeof b, 100, 0) == sizeof b && right(b, 100, sizeof b));
	again = reg(now);
	WANT(again != h && cuFileRead(again, b, sizeof b, 5, 0) == sizeof b && right(b, 5, sizeof b));
	cuFileHandleDeregister(again);
	cuFileHandleDeregister(h);
	cuFileHandleDeregister(h);
	cuFileHandleDeregister(NULL);
	close(now);

	d.handle.fd = now;
	IS(CU_FILE_INVALID_VALUE, cuFileHandleRegister(&h, &d));
	IS(CU_FILE_INVALID_VALUE, cuFileHandleRegister(&h, NULL));
	IS(CU_FILE_INVALID_VALUE, cuFileHandleRegister(NULL, &d));
	d.handle.fd = open("/", O_RDONLY | O_DIRECTORY);
	IS(CU_FILE_INVALID_FILE_TYPE, cuFileHandleRegister(&h, &d));
	close(d.handle.fd);
	static const int impossible[] = {O_WRONLY | O_APPEND, O_RDONLY | O_NONBLOCK, O_PATH};
	for (int i = 0; i < 3; i++) {
		d.handle.fd = open(path, impossible[i]);
		WANT(d.handle.fd >= 0);
		IS(CU_FILE_INVALID_FILE_OPEN_FLAG, cuFileHandleRegister(&h, &d));
		close(d.handle.fd);
	}
	d.type = CU_FILE_HANDLE_TYPE_OPAQUE_WIN32;
	IS(CU_FILE_IO_NOT_SUPPORTED, cuFileHandleRegister(&h, &d));
	fd = open(path, O_WRONLY);
	h = reg(fd);
	WANT(cuFileRead(h, b, 1, 0, 0) == -1 && errno == EBADF);
	cuFileHandleDeregister(h);
	close(fd);
	/* O_APPEND since it was registered: a write is where it was told to be, or an error. */
	fd = open(path, O_RDWR);
	h = reg(fd);
	b[0] = 7;
	WANT(fcntl(fd, F_SETFL, O_APPEND) == 0);
	ssize_t n = cuFileWrite(h, b, 1, 7, 0);
	WANT(n == 1 || n == -CU_FILE_INVALID_FILE_OPEN_FLAG);
	WANT(lseek(fd, 0, SEEK_END) == (off_t)size);
	cuFileHandleDeregister(h);
	close(fd);
	fd = open(path, O_RDONLY | O_DIRECT);
	h = reg(fd);
	WANT(cuFileRead(h, b, 13, 777, 1) == 13 && right(b + 1, 777, 13));
	cuFileHandleDeregister(h);
	close(fd);
}

/* Memory that is not there, that may not be written to, and that was given back while it was registered. */
static void memory(int fd)
{
	CUfileHandle_t h = reg(fd);
	size_t n = 1 << 20;
	unsigned char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	WANT(p != MAP_FAILED);
	OK(cuFileBufRegister(p, n, 0));
	WANT(cuFileRead(h, p, n, 0, 0) == (ssize_t)n && right(p, 0, n));
	WANT(mprotect(p, n, PROT_READ) == 0);
	WANT(cuFileRead(h, p, n, 0, 0) < 0 && right(p, 0, n));
	WANT(cuFileWrite(h, p, n, 0, 0) == (ssize_t)n);
	WANT(munmap(p + n / 2, n / 2) == 0);
	WANT(cuFileRead(h, p, n, 0, 0) < 0 && cuFileWrite(h, p, n, 0, 0) < 0);
	WANT(munmap(p, n / 2) == 0);
	WANT(cuFileRead(h, p, n, 0, 0) < 0);
	OK(cuFileBufDeregister(p));
	IS(CU_FILE_CUDA_POINTER_INVALID, cuFileBufRegister(p, n, 0));
	IS(CU_FILE_INVALID_VALUE, cuFileBufRegister(NULL, n, 0));
	IS(CU_FILE_INVALID_VALUE, cuFileBufRegister(&h, 0, 0));
	OK(cuFileBufRegister(&h, sizeof h, 64)); /* as NVIDIA's library */
	OK(cuFileBufDeregister(&h));
	cuFileHandleDeregister(h);
}

static void batches(int fd, int other)
{
	enum { N = 64, M = 3000 };
	CUfileHandle_t h[2] = {reg(fd), reg(other)};
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[N + 1];
	CUfileIOEvents_t e[N + 1];
	unsigned char *m = malloc(N * M), seen[N + 1] = {0};
	struct timespec soon = {0, 1000000}, long_time = {60, 0};
	unsigned n;
	memset(p, 0, sizeof p);
	for (uintptr_t i = 0; i <= N; i++) {
		p[i].mode = CUFILE_BATCH;
		p[i].u.batch.devPtr_base = m;
		p[i].u.batch.devPtr_offset = (off_t)(i % N * M);
		p[i].u.batch.file_offset = (off_t)(i * 7919 % (size - M));
		p[i].u.batch.size = M;
		p[i].fh = h[i % 2];
		p[i].opcode = CUFILE_READ;
		p[i].cookie = (void *)i;
	}
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOSetUp(NULL, N));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOSetUp(&b, 0));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOSetUp(&b, 100000));
	OK(cuFileBatchIOSetUp(&b, 5000));
	cuFileBatchIODestroy(b);
	OK(cuFileBatchIOSetUp(&b, N));
	IS(CU_FILE_BATCH_FULL, cuFileBatchIOSubmit(b, N + 1, p, 0));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOSubmit(b, 0, p, 0));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOSubmit(b, 1, NULL, 0));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOSubmit(&n, 1, p, 0));
	n = N;
	OK(cuFileBatchIOGetStatus(b, 0, &n, e, &soon));
	WANT(n == 0);
	for (int round = 0; round < 3; round++) {
		memset(m, 0, N * M);
		memset(seen, 0, sizeof seen);
		OK(cuFileBatchIOSubmit(b, N / 2, p, 0));
		OK(cuFileBatchIOSubmit(b, N / 2, p + N / 2, 0));
		IS(CU_FILE_BATCH_FULL, cuFileBatchIOSubmit(b, 1, p, 0));
		for (unsigned got = 0; got < N; got += n) {
			n = N;
			OK(cuFileBatchIOGetStatus(b, got ? 1 : N / 3, &n, e, &long_time));
			WANT(n > 0 && n <= N);
			for (unsigned i = 0; i < n; i++) {
				uintptr_t k = (uintptr_t)e[i].cookie;
				WANT(k < N && !seen[k] && e[i].status == CUFILE_COMPLETE && e[i].ret == M && right(m + k * M, (uint64_t)p[k].u.batch.file_offset, M));
				seen[k] = 1;
			}
		}
	}
	/* One that cannot be done does not keep the others. */
	p[1].fh = (CUfileHandle_t)&n;
	p[2].u.batch.devPtr_base = (void *)4096;
	p[2].u.batch.devPtr_offset = 0;
	p[3].u.batch.file_offset = (off_t)size - 10;
	OK(cuFileBatchIOSubmit(b, 5, p, 0));
	n = 5;
	OK(cuFileBatchIOGetStatus(b, 5, &n, e, NULL));
	WANT(n == 5);
	for (unsigned i = 0; i < n; i++) {
		uintptr_t k = (uintptr_t)e[i].cookie;
		WANT(e[i].status == (k == 1 ? CUFILE_INVALID : k == 2 ? CUFILE_FAILED : CUFILE_COMPLETE));
		WANT(k == 1 ? (ssize_t)e[i].ret == -CU_FILE_HANDLE_NOT_REGISTERED : k == 2 ? (ssize_t)e[i].ret < 0 : e[i].ret == (k == 3 ? 10 : M));
	}
	p[1].fh = h[1];

	/* Of what is cancelled no status is given, as by NVIDIA's library 1.15, whether it had begun, had ended, or neither. */
	for (int round = 0; round < 3; round++) {
		OK(cuFileBatchIOSubmit(b, 1, p, 0));
		if (round == 1)
			usleep(50000);
		OK(cuFileBatchIOCancel(b));
		n = 1;
		OK(cuFileBatchIOGetStatus(b, 1, &n, e, round ? &long_time : NULL));
		WANT(n == 0);
	}
	OK(cuFileBatchIOSubmit(b, 5, p, 0)); /* all of its room is free again */
	n = 5;
	OK(cuFileBatchIOGetStatus(b, 5, &n, e, NULL));
	WANT(n == 5);
	OK(cuFileBatchIOSubmit(b, 2, p, 0));
	cuFileBatchIODestroy(b);
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOCancel(b));
	cuFileBatchIODestroy(b);
	cuFileHandleDeregister(h[0]);
	cuFileHandleDeregister(h[1]);
	free(m);
}

/* How many batches went to LaneFS as one. */
static uint64_t went_together(void)
{
	static CUfileStatsLevel1_t s;
	OK(cuFileGetStatsL1(&s));
	return s.batch_nvfs_submit_ops.ok;
}

enum { MANY = 100 };

static CUfileIOParams_t request(CUfileHandle_t h, CUfileOpcode_t op, void *base, off_t at, off_t offset, size_t n)
{
	CUfileIOParams_t p;
	memset(&p, 0, sizeof p);
	p.mode = CUFILE_BATCH;
	p.fh = h;
	p.opcode = op;
	p.u.batch.devPtr_base = base;
	p.u.batch.devPtr_offset = at;
	p.u.batch.file_offset = offset;
	p.u.batch.size = n;
	return p;
}

/* Submits at once, waits, and stores the results by the place in p. Returns how many batches they became. */
static uint64_t done(CUfileBatchHandle_t b, CUfileIOParams_t *p, unsigned n, ssize_t *ret)
{
	CUfileIOEvents_t e[MANY];
	unsigned char seen[MANY] = {0};
	uint64_t before = went_together();
	for (unsigned i = 0; i < n; i++)
		p[i].cookie = &p[i];
	OK(cuFileBatchIOSubmit(b, n, p, 0));
	for (unsigned got = 0, k; got < n; got += k) {
		k = MANY;
		OK(cuFileBatchIOGetStatus(b, 1, &k, e, NULL));
		WANT(k > 0);
		for (unsigned i = 0; i < k; i++) {
			ptrdiff_t at = (CUfileIOParams_t *)e[i].cookie - p;
			WANT(at >= 0 && at < n && !seen[at]++);
			ret[at] = (ssize_t)e[i].ret;
			WANT(e[i].status == (ret[at] < 0 ? ret[at] == -CU_FILE_HANDLE_NOT_REGISTERED ? CUFILE_INVALID : CUFILE_FAILED : CUFILE_COMPLETE));
		}
	}
	return went_together() - before;
}

/* Requests of one file in one direction are one batch of LaneFS's, in whatever order their addresses are; and each has its own result. */
static void together(const char *path, int fd, int other)
{
	enum { M = 3000 };
	int again = open(path, O_RDWR);
	CUfileHandle_t h = reg(fd), h2 = reg(other), twin = reg(again);
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[MANY];
	CUfileIOEvents_t e[MANY];
	ssize_t ret[MANY];
	unsigned char *m = malloc(2 * MANY * M), *was = malloc(size), *now = malloc(size), *apart = malloc(M);
	unsigned n;
	WANT(again >= 0 && m && now && apart && was && pread(fd, was, size, 0) == (ssize_t)size);
	OK(cuFileBatchIOSetUp(&b, MANY));

	/* Addresses that fall, offsets that jump, memory of several allocations. */
	for (unsigned i = 0; i < MANY; i++)
		p[i] = request(h, CUFILE_READ, m + (MANY - 1 - i) * M, 7, (off_t)(i * 7919 % (size - M)), M - 7);
	p[50].u.batch.devPtr_base = apart;
	memset(m, 'x', 2 * MANY * M);
	WANT(done(b, p, MANY, ret) == 1);
	for (unsigned i = 0; i < MANY; i++)
		WANT(ret[i] == M - 7 && right((unsigned char *)p[i].u.batch.devPtr_base + 7, (uint64_t)p[i].u.batch.file_offset, M - 7));
	WANT(all(m + (MANY - 1 - 50) * M + 7, 'x', M - 7)); /* between the pieces nothing is written to */

	/* Two files by turns: one batch, and those of the other singly. */
	for (unsigned i = 0; i < MANY; i++)
		p[i] = request(i % 2 ? h : h2, CUFILE_READ, m, (off_t)(i * M), (off_t)(i * 501), M);
	WANT(done(b, p, MANY, ret) == 1);
	for (unsigned i = 0; i < MANY; i++)
		WANT(ret[i] == M && right(m + i * M, i * 501, M));
	/* Both directions by turns: two. */
	for (unsigned i = 0; i < MANY; i++)
		p[i] = request(h, i % 2 ? CUFILE_WRITE : CUFILE_READ, m, (off_t)(i * M), (off_t)(i * M), M);
	for (unsigned i = 0; i < MANY * M; i++)
		m[i] = (unsigned char)~was[i];
	WANT(done(b, p, MANY, ret) == 2 && pread(fd, now, size, 0) == (ssize_t)size);
	for (unsigned i = 0; i < MANY; i++)
		WANT(ret[i] == M && (i % 2 ? now[i * M] == (unsigned char)~was[i * M] && memcmp(now + i * M, m + i * M, M) == 0 : right(m + i * M, i * M, M)));
	WANT(pwrite(fd, was, size, 0) == (ssize_t)size);

	/* What is wrong with one is no matter to the others: memory that is not there, the file's end, nothing at all, a descriptor for writing. */
	for (unsigned i = 0; i < 8; i++)
		p[i] = request(h, CUFILE_READ, m, (off_t)(i * M), (off_t)(i * 501), M);
	p[1].u.batch.devPtr_base = (void *)4096;
	p[2].u.batch.file_offset = (off_t)size - 10;
	p[3].u.batch.file_offset = (off_t)size;
	p[4].u.batch.size = 0;
	p[5].u.batch.file_offset = -1;
	p[6].fh = (CUfileHandle_t)&n;
	memset(m, 'x', 8 * M);
	WANT(done(b, p, 8, ret) == 1);
	WANT(ret[0] == M && right(m, 0, M) && ret[1] == -CU_FILE_CUDA_POINTER_INVALID && ret[2] == 10 && right(m + 2 * M, size - 10, 10));
	WANT(all(m + 2 * M + 10, 'x', M - 10) && ret[3] == 0 && ret[4] == 0 && ret[5] == -CU_FILE_INVALID_VALUE && all(m + 3 * M, 'x', 3 * M));
	WANT(ret[6] == -CU_FILE_HANDLE_NOT_REGISTERED && ret[7] == M && right(m + 7 * M, 7 * 501, M));

	/* Those that have bytes in common go in their order: in the file, also by another handle of it, and in memory. */
	for (int round = 0; round < 8; round++) {
		for (unsigned i = 0; i < 4 * M; i++)
			m[i] = (unsigned char)(i / M + 1);
		p[0] = request(h, CUFILE_WRITE, m, 0, 100, M);
		p[1] = request(round % 2 ? twin : h, CUFILE_WRITE, m, M, 1100, M);
		p[2] = request(h, CUFILE_WRITE, m, 2 * M, 600, M);
		if (!round)
			WANT(done(b, p, 3, ret) == 0); /* never as one */
		p[3] = request(round % 2 ? twin : h, CUFILE_READ, m, 8 * M, 0, 2 * M);  /* sees all of them */
		p[4] = request(h, CUFILE_WRITE, m, 3 * M, 100, 50);                     /* and not this one */
		p[5] = request(h, CUFILE_WRITE, m, 8 * M + 100, (off_t)(20 * M), M);    /* of what 3 has read */
		p[6] = request(h2, CUFILE_READ, m, 8 * M, 0, 2 * M);                    /* after that */
		done(b, p, 7, ret);
		for (int i = 0; i < 7; i++)
			WANT(ret[i] == (i == 3 || i == 6 ? 2 * M : i == 4 ? 50 : M));
		WANT(pread(fd, now, 30 * M, 0) == 30 * M && right(now, 0, 100) && all(now + 100, 4, 50) && all(now + 150, 1, 450) && all(now + 600, 3, M) && all(now + 600 + M, 2, 500));
		WANT(all(now + 20 * M, 1, 500) && all(now + 20 * M + 500, 3, M - 500) && right(m + 8 * M, 0, 2 * M));
		WANT(pwrite(fd, was, size, 0) == (ssize_t)size);
	}

	p[0] = request(h, CUFILE_READ, m, 0, 0, M);
	p[1] = request(h, CUFILE_READ, m, 1, 7, M);
	p[2] = request(h, CUFILE_READ, m, 2, 9, M);
	WANT(done(b, p, 3, ret) == 0 && m[0] == was[0] && m[1] == was[7] && right(m + 2, 9, M));

	/* A descriptor and its duplicate, and each handle, are for themselves. */
	int two = dup(fd);
	CUfileHandle_t copy = reg(two);
	close(two);
	for (unsigned i = 0; i < 4; i++)
		p[i] = request(i % 2 ? copy : h, CUFILE_READ, m, (off_t)(i * M), (off_t)i, M);
	WANT(done(b, p, 4, ret) == 2 && ret[0] == M && ret[1] == M && right(m, 0, M) && right(m + M, 1, M));
	cuFileHandleDeregister(copy);
	WANT(done(b, p, 4, ret) == 1 && ret[0] == M && ret[2] == M && ret[1] == -CU_FILE_HANDLE_NOT_REGISTERED && ret[3] == ret[1]);
	WANT(cuFileRead(h, m, M, 77, 0) == M && right(m, 77, M));

	/* The status: how many at least, at most, how long. */
	struct timespec soon = {0, 1000000}, past = {-1, 0}, odd = {0, 1000000000}, ages = {INT64_MAX, 0};
	for (unsigned i = 0; i < 10; i++)
		p[i] = request(h, CUFILE_READ, m, (off_t)(i * M), 0, M);
	OK(cuFileBatchIOSubmit(b, 10, p, 0));
	n = 4;
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOGetStatus(b, 5, &n, e, NULL));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOGetStatus(b, 1, &n, e, &past));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOGetStatus(b, 1, &n, e, &odd));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOGetStatus(b, 1, &n, NULL, &soon));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOGetStatus(b, 0, NULL, e, &soon));
	OK(cuFileBatchIOGetStatus(b, 4, &n, e, &ages));
	WANT(n == 4);
	n = MANY;
	OK(cuFileBatchIOGetStatus(b, MANY, &n, e, NULL)); /* there are no more than these */
	WANT(n == 6);
	n = MANY;
	OK(cuFileBatchIOGetStatus(b, MANY, &n, e, &soon));
	WANT(n == 0);

	/* What was submitted goes on though its handle is given up; what is cancelled has done all of it or nothing, and does no more. */
	int third = dup(again);
	CUfileHandle_t brief = reg(third);
	memset(m, 'y', MANY * M);
	for (unsigned i = 0; i < MANY; i++) {
		p[i] = request(i < 10 ? brief : h, i < 10 ? CUFILE_READ : CUFILE_WRITE, m, (off_t)(i * M), (off_t)(i * M), M);
		p[i].cookie = &p[i];
	}
	OK(cuFileBatchIOSubmit(b, MANY, p, 0));
	cuFileHandleDeregister(brief);
	OK(cuFileBatchIOCancel(b));
	n = 7;
	OK(cuFileBatchIOGetStatus(b, 1, &n, e, NULL));
	WANT(n == 0);
	memset(m, 'z', MANY * M); /* nothing of it is read or written any more */
	for (unsigned k = 10; k < MANY; k++) {
		WANT(pread(fd, now, M, (off_t)(k * M)) == M);
		WANT(all(now, 'y', M) || right(now, k * M, M));
	}
	WANT(all(m, 'z', MANY * M));
	WANT(pwrite(fd, was, size, 0) == (ssize_t)size);

	/* Destroyed while it is at work: what has begun ends first. */
	for (int round = 0; round < 20; round++) {
		for (unsigned i = 0; i < MANY; i++)
			p[i] = request(i % 2 ? h : h2, CUFILE_READ, m, (off_t)(i * M), (off_t)(i * M), M);
		OK(cuFileBatchIOSubmit(b, MANY, p, 0));
		cuFileBatchIODestroy(b);
		memset(m, 'z', 2 * MANY * M);
		usleep(100);
		WANT(all(m, 'z', 2 * MANY * M));
		OK(cuFileBatchIOSetUp(&b, MANY));
	}
	cuFileBatchIODestroy(b);
	cuFileHandleDeregister(h);
	cuFileHandleDeregister(h2);
	cuFileHandleDeregister(twin);
	close(again);
	close(third);
	free(m);
	free(was);
	free(now);
	free(apart);
}

/* In the order of no stream: ordinary memory is on none. */
static void streams(int fd)
{
	CUfileHandle_t h = reg(fd);
	unsigned char b[5000];
	size_t n = 4000;
	off_t offset = 123, at = 1000;
	ssize_t got = 0;
	OK(cuFileStreamRegister(NULL, 0xf));
	OK(cuFileReadAsync(h, b, &n, &offset, &at, &got, NULL));
	WANT(got == 4000 && right(b + 1000, 123, 4000));
	OK(cuFileWriteAsync(h, b, &n, &offset, &at, &got, NULL));
	WANT(got == 4000);
	offset = (off_t)size - 1;
	OK(cuFileReadAsync(h, b, &n, &offset, &at, &got, NULL));
	WANT(got == 1);
	IS(CU_FILE_INVALID_VALUE, cuFileReadAsync(h, b, NULL, &offset, &at, &got, NULL));
	IS(CU_FILE_HANDLE_NOT_REGISTERED, cuFileReadAsync(b, b, &n, &offset, &at, &got, NULL));
	OK(cuFileStreamDeregister(NULL));
	IS(CU_FILE_INVALID_VALUE, cuFileStreamDeregister(NULL));
	IS(CU_FILE_INVALID_VALUE, cuFileStreamRegister(NULL, 16));
	cuFileHandleDeregister(h);
}

static void driver(void)
{
	CUfileDrvProps_t props;
	int version = 0, level = 9;
	size_t v = 0, least = 0, most = 0, sizes[16], counts[16];
	bool flag = false;
	char text[256];
	static CUfileStatsLevel3_t stats;
	WANT(cuFileUseCount() == 0);
	IS(CU_FILE_DRIVER_NOT_INITIALIZED, cuFileDriverClose());
	IS(CU_FILE_DRIVER_NOT_INITIALIZED, cuFileStatsStart());
	IS(CU_FILE_DRIVER_NOT_INITIALIZED, cuFileDriverSetPollMode(true, 8));
	IS(CU_FILE_DRIVER_NOT_INITIALIZED, cuFileDriverSetMaxDirectIOSize(1024));
	WANT(cuFileUseCount() == 0);
	OK(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 256));
	OK(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &v));
	WANT(v == 256);
	OK(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, true));
	OK(cuFileSetParameterString(CUFILE_PARAM_LOG_DIR, "/tmp"));
	OK(cuFileGetParameterString(CUFILE_PARAM_LOG_DIR, text, sizeof text));
	WANT(strcmp(text, "/tmp") == 0);
	IS(CU_FILE_INVALID_VALUE, cuFileGetParameterString(CUFILE_PARAM_LOG_DIR, text, 4));
	OK(cuFileSetParameterPosixPoolSlabArray((size_t[]){4, 64}, (size_t[]){10, 20}, 2));
	OK(cuFileGetParameterPosixPoolSlabArray(sizes, counts, 2));
	WANT(sizes[1] == 64 && counts[1] == 20);
	IS(CU_FILE_INVALID_VALUE, cuFileGetParameterPosixPoolSlabArray(sizes, counts, 3));
	OK(cuFileGetParameterMinMaxValue(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &least, &most));
	WANT(least == 1 && most >= 256);
	IS(CU_FILE_INVALID_VALUE, cuFileSetParameterSizeT((CUFileSizeTConfigParameter_t)99, 1));
	IS(CU_FILE_INVALID_VALUE, cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 0));
	OK(cuFileDriverOpen());
	WANT(cuFileUseCount() == 1);
	IS(CU_FILE_DRIVER_ALREADY_OPEN, cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 128));
	OK(cuFileGetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, &flag));
	WANT(flag);
	OK(cuFileDriverSetPollMode(true, 8));
	IS(CU_FILE_DRIVER_UNSUPPORTED_LIMIT, cuFileDriverSetPollMode(true, 7));
	OK(cuFileDriverSetPollMode(true, SIZE_MAX / 4096 * 4));
	OK(cuFileDriverSetPollMode(true, 8));
	OK(cuFileDriverSetMaxCacheSize(0));
	OK(cuFileDriverSetMaxPinnedMemSize(0));
	OK(cuFileDriverSetMaxDirectIOSize(1024));
	OK(cuFileDriverSetMaxCacheSize(1024));
	OK(cuFileDriverSetMaxPinnedMemSize(65536));
	OK(cuFileDriverGetProperties(&props));
	WANT(props.nvfs.major_version == 1 && props.nvfs.max_direct_io_size == 1024 && props.nvfs.poll_thresh_size == 8 && props.max_batch_io_size == 256);
	WANT(props.nvfs.dcontrolflags == (1u << CU_FILE_USE_POLL_MODE | 1u << CU_FILE_ALLOW_COMPAT_MODE) && props.fflags & 1u << CU_FILE_BATCH_IO_SUPPORTED);
	IS(CU_FILE_INVALID_VALUE, cuFileDriverGetProperties(NULL));
	OK(cuFileGetVersion(&version));
	WANT(version == 1150);
	IS(CU_FILE_INVALID_VALUE, cuFileGetVersion(NULL));
	IS(CU_FILE_PLATFORM_NOT_SUPPORTED, cuFileGetBARSizeInKB(0, &v));
	WANT(strlen(CUFILE_ERRSTR((int)CU_FILE_INVALID_VALUE)) > 0 && IS_CUFILE_ERR((int)CU_FILE_INVALID_VALUE) && !IS_CUFILE_ERR(EIO));
	IS(CU_FILE_INVALID_VALUE, cuFileSetStatsLevel(4));
	IS(CU_FILE_INVALID_VALUE, cuFileGetStatsL1(&stats.detailed.basic));
	OK(cuFileSetStatsLevel(3));
	OK(cuFileGetStatsLevel(&level));
	WANT(level == 3);
	OK(cuFileStatsStart());
}

/* Of all that was done since driver(). */
static void statistics(void)
{
	static CUfileStatsLevel3_t s;
	CUfileStatsLevel1_t one;
	OK(cuFileStatsStop());
	OK(cuFileGetStatsL3(&s));
	OK(cuFileGetStatsL1(&one));
	CUfileStatsLevel1_t *b = &s.detailed.basic;
	WANT(memcmp(&one, b, sizeof one) == 0 && b->read_ops.ok > 50 && b->read_ops.err > 5 && b->read_bytes > 3 * size && b->write_bytes > size);
	WANT(b->hdl_register_ops.ok >= 8 && b->hdl_register_ops.err >= 5 && b->buf_register_ops.ok == 3 * 2 && b->batch_submit_ops.ok > 5 && b->batch_processed_ops.ok >= 192);
	uint64_t n = 0;
	for (int i = 0; i < 32; i++)
		n += s.detailed.read_size_kb_hist[i];
	WANT(n == b->read_ops.ok && s.num_gpus == 1 && s.per_gpu_stats[0].n_total_reads == b->read_ops.ok + b->read_ops.err);
	OK(cuFileStatsReset());
	OK(cuFileGetStatsL3(&s));
	WANT(b->read_bytes == 0);
}

struct worker { CUfileHandle_t h; unsigned seed; };

/* What is read over and over changes meanwhile: by this program, by another descriptor, in length. */
static void changes(int fd)
{
	enum { N = 17000 }; /* such reads map a window soon */
	CUfileHandle_t h = reg(fd);
	unsigned char *p = malloc(N), *was = malloc(N);
	WANT(p && was && pread(fd, was, N, 4000) == N);
	for (int round = 0; round < 6; round++) {
		for (int i = 0; i < 40 << round % 3; i++)
			WANT(cuFileRead(h, p, N, 4000, 0) == N && memcmp(p, was, N) == 0);
		for (int i = 0; i < N; i++)
			p[i] = (unsigned char)(round + i);
		if (round % 2)
			WANT(pwrite(fd, p, N, 4000) == N);
		else
			WANT(cuFileWrite(h, p, N, 4000, 0) == N);
		memset(p, 0, N);
		WANT(cuFileRead(h, p, N, 4000, 0) == N && p[0] == (unsigned char)round && p[N - 1] == (unsigned char)(round + N - 1));
		WANT(pwrite(fd, was, N, 4000) == N);
	}
	for (int i = 0; i < 200; i++)
		WANT(cuFileRead(h, p, N, (off_t)size - 1000, 0) == 1000);
	WANT(pwrite(fd, was, N, (off_t)size) == N);
	WANT(cuFileRead(h, p, N, (off_t)size - 1000, 0) == N && memcmp(p + 1000, was, N - 1000) == 0);
	WANT(ftruncate(fd, (off_t)size) == 0 && cuFileRead(h, p, N, (off_t)size - 1000, 0) == 1000);
	cuFileHandleDeregister(h);
	free(p);
	free(was);
}

/* Batches one after the other, until the daemon has ended. What it was doing then ends, too. */
static void *until_the_end(void *h)
{
	enum { K = 40, M = 50000 };
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[K];
	CUfileIOEvents_t e[K];
	unsigned char *m = malloc(K * M);
	OK(cuFileBatchIOSetUp(&b, K));
	for (unsigned i = 0; i < K; i++)
		p[i] = request(h, CUFILE_READ, m, (off_t)(i * M), (off_t)(i * 1000), M), p[i].cookie = &p[i];
	for (int alive = 1; alive;) {
		memset(m, 'x', K * M);
		OK(cuFileBatchIOSubmit(b, K, p, 0));
		for (unsigned got = 0, n; got < K; got += n) {
			n = K;
			OK(cuFileBatchIOGetStatus(b, 1, &n, e, NULL));
			for (unsigned i = 0; i < n; i++) {
				size_t k = (size_t)((CUfileIOParams_t *)e[i].cookie - p);
				alive &= e[i].status == CUFILE_COMPLETE;
				WANT(e[i].status == CUFILE_COMPLETE ? e[i].ret == M && right(m + k * M, k * 1000, M) : e[i].status == CUFILE_FAILED && (ssize_t)e[i].ret == -ENOTCONN);
			}
		}
	}
	cuFileBatchIODestroy(b);
	free(m);
	return NULL;
}

static void *thread(void *arg)
{
	struct worker *w = arg;
	unsigned char *p = malloc(200000);
	for (int i = 0; i < 60; i++) {
		size_t n = 1 + (size_t)rand_r(&w->seed) % 200000, off = (size_t)rand_r(&w->seed) % (size - n);
		WANT(cuFileRead(w->h, p, n, (off_t)off, 0) == (ssize_t)n && right(p, off, n));
		if (i % 8 == 0)
			WANT(cuFileWrite(w->h, p, n, (off_t)off, 0) == (ssize_t)n);
	}
	free(p);
	return NULL;
}

static void threads(int fd)
{
	enum { N = 12 }; /* more than there are stages */
	pthread_t t[N];
	struct worker w[N];
	CUfileHandle_t h = reg(fd);
	for (unsigned i = 0; i < N; i++) {
		w[i] = (struct worker){h, i};
		WANT(pthread_create(&t[i], NULL, thread, &w[i]) == 0);
	}
	for (int i = 0; i < N; i++)
		WANT(pthread_join(t[i], NULL) == 0);
	cuFileHandleDeregister(h);
}

static CUfileHandle_t first; /* of this process */
static int inherited;        /* descriptors beyond the standard ones */

/* A child has none of its parent's handles, and can begin anew. */
static void forked(const char *path, int fd)
{
	CUfileHandle_t h = reg(fd);
	unsigned char b[100];
	OK(cuFileBufRegister(b, sizeof b, 0));
	WANT(cuFileRead(h, b, sizeof b, 9, 0) == sizeof b);
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		alarm(60);
		WANT(cuFileRead(h, b, sizeof b, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED && cuFileUseCount() == 0);
		IS(CU_FILE_MEMORY_NOT_REGISTERED, cuFileBufDeregister(b));
		cuFileHandleDeregister(h);
		OK(cuFileDriverOpen());
		int own = open(path, O_RDONLY);
		CUfileHandle_t mine = reg(own);
		WANT(mine != h && mine != first && cuFileRead(first, b, sizeof b, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED && cuFileRead(mine, b, sizeof b, 40, 0) == sizeof b && right(b, 40, sizeof b));
		OK(cuFileDriverClose());
		_exit(0);
	}
	int status;
	WANT(waitpid(child, &status, 0) == child && status == 0);
	WANT(cuFileRead(h, b, sizeof b, 9, 0) == sizeof b && right(b, 9, sizeof b));
	OK(cuFileBufDeregister(b));
	cuFileHandleDeregister(h);
}

/* How many are open, less those that the program was started with. */
static int descriptors(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n - inherited;
}

int main(int argc, char **argv)
{
	WANT(argc >= 3);
	inherited = descriptors() - 3;
	int fd = open(argv[1], O_RDWR), other = open(argv[2], O_RDWR);
	struct stat st;
	WANT(fd >= 0 && other >= 0 && fstat(fd, &st) == 0);
	size = (size_t)st.st_size;
	driver();
	first = reg(fd);
	cuFileHandleDeregister(first);
	moves(fd);
	moves(other);
	handles(argv[1], argv[2]);
	handles(argv[2], argv[1]);
	memory(fd);
	memory(other);
	batches(fd, other);
	together(argv[1], fd, other);
	statistics();
	streams(fd);
	streams(other);
	changes(fd);
	changes(other);
	threads(fd);
	forked(argv[1], fd);

	/* What the program has left goes with the driver. */
	CUfileHandle_t h = reg(fd);
	CUfileBatchHandle_t batch;
	char b[100];
	OK(cuFileBufRegister(b, sizeof b, 0));
	OK(cuFileStreamRegister(NULL, 0));
	OK(cuFileBatchIOSetUp(&batch, 1));
	WANT(descriptors() > 3 + 2);
	OK(cuFileDriverClose());
	WANT(cuFileUseCount() == 0 && cuFileRead(h, b, sizeof b, 0, 0) == -CU_FILE_HANDLE_NOT_REGISTERED);
	WANT(descriptors() == 3 + 2); /* the standard ones, and this program's: no connection to the daemon */
	IS(CU_FILE_MEMORY_NOT_REGISTERED, cuFileBufDeregister(b));
	IS(CU_FILE_INVALID_VALUE, cuFileStreamDeregister(NULL));
	IS(CU_FILE_INVALID_VALUE, cuFileBatchIOCancel(batch));
	h = reg(fd);
	WANT(cuFileUseCount() == 1);
	if (argc > 3) { /* until the daemon ends */
		CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = dup(fd)};
		CUfileHandle_t late;
		close(fd);
		pthread_t in_batches;
		WANT(pthread_create(&in_batches, NULL, until_the_end, h) == 0);
		puts("ok");
		fflush(stdout);
		for (int i = 0; i < 60000 && cuFileRead(h, b, sizeof b, 0, 0) == sizeof b; i++)
			usleep(1000);
		for (int i = 0; i < 2; i++)
			WANT(cuFileRead(h, b, sizeof b, 0, 0) == -1 && errno == ENOTCONN);
		WANT(pthread_join(in_batches, NULL) == 0);
		IS(CU_FILE_DRIVER_NOT_INITIALIZED, cuFileHandleRegister(&late, &d)); /* it is not another file system's for that */
		puts("gone");
	} else {
		puts("ok");
	}
	cuFileHandleDeregister(h);
	OK(cuFileDriverClose());
	return 0;
}
