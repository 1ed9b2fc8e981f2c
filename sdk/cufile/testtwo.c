/*
 * Run by a test of cmd/lanefs: testtwo LIVE DYING cpu|cuda, files of the same bytes as test.c's on two mounts. Calls, batches and streams with files of both are under
 * way when DYING's daemon ends, or its mount is aborted. Those of LIVE end with their bytes, the others with an error. It prints "running", reads a line when it is so, prints
 * "gone", and reads a line when there is a new mount: a file of that works, in the same process. With "cuda" memory is a GPU's, of the stand-in for libcuda. Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "testcuda.h"
#include "testfds.h"

enum { READERS = 2, N = 30000, WRITTEN = 4 << 20 /* from there on files are written to */, LATER = 20 /* rounds after the end */ };

static int on_gpu;
static void *context;
static CUfileHandle_t file[2]; /* LIVE, DYING */
static _Atomic int rounds, dead; /* dead: of the threads of DYING those that have seen its end */
static _Atomic int ended, stop; /* ended: the daemon has */

static unsigned char *memory(size_t n)
{
	void *p = NULL;
	if (on_gpu)
		WANT(cuda.current(context) == 0 && cuda.malloc(&p, n) == 0);
	else
		WANT((p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
	return p;
}

/* What a read that failed may leave. */
static int harmless(const unsigned char *p, uint64_t off, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != 'x' && p[i] != 0 && p[i] != (off + i) % 251)
			return 0;
	return 1;
}

/* ---- Calls ---- */

static size_t size_of(unsigned i) { return i % 3 ? i % 2 ? 4096 : N : 1 << 20; }
static off_t offset_of(unsigned i) { return (off_t)(i * 7919u % (WRITTEN - (1 << 20))); }

static void *reads(void *arg)
{
	int which = (int)(uintptr_t)arg;
	unsigned char *m = memory(1 << 20);
	for (unsigned i = 0; !stop; i++) {
		size_t n = size_of(i);
		off_t off = offset_of(i);
		memset(m, 'x', n);
		errno = 0;
		ssize_t got = cuFileRead(file[which], m, n, off, 0);
		if (got == (ssize_t)n && right(m, (uint64_t)off, n)) {
			rounds++;
			continue;
		}
		WANT(which == 1 && got == -1 && errno == ENOTCONN && harmless(m, (uint64_t)off, n));
		if (!ended)
			continue; /* of an aborted mount the daemon may still take this and that */
		for (int k = 0; k < 4; k++) /* never again */
			WANT(cuFileRead(file[1], m, k % 2 ? n : 4096, off, 0) == -1 && errno == ENOTCONN);
		dead++;
		break;
	}
	return NULL;
}

/* Writes, and reads what it has written. */
static void *writes(void *arg)
{
	int which = (int)(uintptr_t)arg;
	unsigned char *m = memory(2 * N);
	for (unsigned i = 0; !stop; i++) {
		off_t off = WRITTEN + i % 5 * N;
		memset(m, (int)i, N);
		memset(m + N, 'x', N);
		errno = 0;
		ssize_t put = cuFileWrite(file[which], m, N, off, 0), got = put == N ? cuFileRead(file[which], m, N, off, N) : put;
		if (put == N && got == N && memcmp(m, m + N, N) == 0) {
			rounds++;
			continue;
		}
		if (which == 0 || got != -1 || errno != ENOTCONN) {
			fprintf(stderr, "%d: wrote %zd, read %zd, wrote %d, read %d (errno %d, %s)\n", which, put, got, m[0], m[N], errno, strerror(errno));
			exit(1);
		}
		if (!ended)
			continue;
		WANT(cuFileWrite(file[1], m, N, off, 0) == -1 && errno == ENOTCONN);
		dead++;
		break;
	}
	return NULL;
}

/* ---- One stream, by turns ---- */

enum { CALLS = 8 };

static void *own; /* the stream, which stays */

static int on_stream(unsigned char *m, unsigned i)
{
	size_t n[CALLS];
	off_t offset[CALLS], at[CALLS];
	ssize_t got[CALLS];
	CUfileError_t e[CALLS];
	int failed = 0;
	memset(m, 'x', CALLS * N);
	for (unsigned k = 0; k < CALLS; k++) {
		n[k] = N - k;
		offset[k] = offset_of(i + k);
		at[k] = k * N;
		got[k] = -7;
		e[k] = cuFileReadAsync(file[k % 2], m, &n[k], &offset[k], &at[k], &got[k], (CUstream)own);
	}
	WANT(!on_gpu || cuda.sync(own) == 0);
	for (unsigned k = 0; k < CALLS; k++) {
		if (!e[k].err && got[k] == (ssize_t)n[k] && right(m + at[k], (uint64_t)offset[k], n[k]))
			continue;
		if (k % 2 == 0)
			fprintf(stderr, "LIVE: %d, %zd of %zu\n", (int)e[k].err, got[k], n[k]);
		WANT(k % 2 == 1 && (e[k].err ? e[k].err == CU_FILE_IO_ERROR : got[k] == -1) && harmless(m + at[k], (uint64_t)offset[k], n[k]));
		failed++;
	}
	return failed;
}

static void *streams(void *arg)
{
	unsigned char *m = memory(CALLS * N);
	int seen = 0;
	for (unsigned i = 0; !stop; i++) {
		int after = ended, failed = on_stream(m, i);
		WANT(!after || failed == CALLS / 2);
		if (after && !seen++)
			dead++;
		rounds++;
	}
	return arg;
}

/* ---- Batches of both ---- */

enum { K = 24 };

static int in_batch(CUfileBatchHandle_t b, unsigned char *m, unsigned i)
{
	CUfileIOParams_t p[K];
	CUfileIOEvents_t e[K];
	struct timespec ages = {100, 0};
	int failed = 0;
	memset(m, 'x', K * N);
	for (size_t k = 0; k < K; k++) {
		p[k] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = file[k % 2], .opcode = CUFILE_READ, .cookie = (void *)k};
		p[k].u.batch.devPtr_base = m;
		p[k].u.batch.devPtr_offset = (off_t)(k * N);
		p[k].u.batch.file_offset = offset_of(i + (unsigned)k);
		p[k].u.batch.size = i % 2 ? N : 4096;
	}
	OK(cuFileBatchIOSubmit(b, K, p, 0));
	for (unsigned got = 0, n; got < K; got += n) {
		n = K;
		OK(cuFileBatchIOGetStatus(b, K - got, &n, e, i % 3 ? NULL : &ages));
		WANT(n > 0);
		for (unsigned j = 0; j < n; j++) {
			size_t k = (size_t)e[j].cookie, want = p[k].u.batch.size;
			if (e[j].status == CUFILE_COMPLETE && e[j].ret == want && right(m + k * N, (uint64_t)p[k].u.batch.file_offset, want))
				continue;
			WANT(k % 2 == 1 && e[j].status == CUFILE_FAILED && (ssize_t)e[j].ret == -ENOTCONN && harmless(m + k * N, (uint64_t)p[k].u.batch.file_offset, want));
			failed++;
		}
	}
	return failed;
}

static void *batches(void *arg)
{
	unsigned char *m = memory(K * N);
	CUfileBatchHandle_t b;
	int seen = 0;
	OK(cuFileBatchIOSetUp(&b, K));
	for (unsigned i = 0; !stop; i++) {
		int after = ended, failed = in_batch(b, m, i);
		WANT(!after || failed == K / 2);
		if (after && !seen++)
			dead++;
		rounds++;
	}
	cuFileBatchIODestroy(b);
	return arg;
}

/* ---- */

int main(int argc, char **argv)
{
	enum { OF_EACH = READERS + 1, THREADS = 2 * OF_EACH + 2, DYING = OF_EACH + 2 };
	pthread_t t[THREADS];
	char line[16];
	int fd[2];
	WANT(argc == 4);
	alarm(400);
	if ((on_gpu = strcmp(argv[3], "cuda") == 0)) {
		load(&context, 1);
		WANT(cuda.current(context) == 0 && cuda.create(&own, NON_BLOCKING) == 0);
	} else {
		own = NULL;
	}
	unsigned before = descriptors();
	OK(cuFileStreamRegister((CUstream)own, 0xf));
	for (int i = 0; i < 2; i++) {
		WANT((fd[i] = open(argv[1 + i], O_RDWR)) >= 0);
		file[i] = reg(fd[i]);
	}
	for (uintptr_t i = 0; i < 2 * OF_EACH; i++)
		WANT(pthread_create(&t[i], NULL, i < 2 ? writes : reads, (void *)(i % 2)) == 0);
	WANT(pthread_create(&t[2 * OF_EACH], NULL, streams, NULL) == 0 && pthread_create(&t[2 * OF_EACH + 1], NULL, batches, NULL) == 0);
	while (rounds < 10 * THREADS)
		usleep(1000);
	puts("running");
	fflush(stdout);
	WANT(fgets(line, sizeof line, stdin));
	ended = 1;
	while (dead < DYING)
		usleep(1000);
	for (int until = rounds + LATER * THREADS; rounds < until;)
		usleep(1000);
	stop = 1;
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_join(t[i], NULL) == 0);
	/* Later, too, whatever the kernel remembers of the file. */
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = dup(fd[1])};
	CUfileHandle_t late;
	for (int i = 0; i < 3; i++) {
		IS(CU_FILE_DRIVER_NOT_INITIALIZED, cuFileHandleRegister(&late, &d));
		usleep(600 * 1000);
	}
	close(d.handle.fd);
	puts("gone");
	fflush(stdout);
	/* The same name is a file of the new mount. The old handle may be there still: it stays what it is. */
	WANT(fgets(line, sizeof line, stdin));
	CUfileHandle_t old = file[1];
	int again = open(argv[2], O_RDWR);
	unsigned char *m = memory(K * N);
	CUfileBatchHandle_t b;
	WANT(again >= 0);
	file[1] = reg(again);
	WANT(cuFileRead(old, m, N, 0, 0) == -1 && errno == ENOTCONN);
	OK(cuFileBatchIOSetUp(&b, K));
	for (unsigned i = 0; i < 10; i++) {
		WANT(!on_stream(m, i) && !in_batch(b, m, i));
		memset(m, 'a' + (int)i, N);
		WANT(cuFileWrite(file[1], m, N, WRITTEN, 0) == N && cuFileRead(file[1], m, N, WRITTEN, N) == N && memcmp(m, m + N, N) == 0);
		WANT(cuFileRead(file[1], m, 1 << 19, i, 0) == 1 << 19 && right(m, i, 1 << 19));
		if (i == 4)
			cuFileHandleDeregister(old);
	}
	cuFileBatchIODestroy(b);
	OK(cuFileDriverClose());
	for (int i = 0; i < 2; i++)
		close(fd[i]);
	close(again);
	WANT(on_gpu || descriptors() == before);
	puts("ok");
	return 0;
}
