/*
 * Run by a test beside this: testmemory FILE OTHER, files of the same bytes as test.c's, OTHER not on LaneFS. Memory that the library has not allocated and that is of every kind: where the
 * kernel would give a read or a write EFAULT, the library gives an error, and what can be used gets the file's bytes. Each kind is a process of its own, so a crash is told. Prints "ok".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cufile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); _exit(1); } } while (0)
#define OK(call) WANT((call).err == CU_FILE_SUCCESS)

enum { N = 1 << 20, PAGE = 4096 };

static const char *file;
static CUfileHandle_t h;
static int fd;

static int right(const unsigned char *p, uint64_t off, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != (off + i) % 251)
			return 0;
	return 1;
}

static CUfileHandle_t reg(int of)
{
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = of};
	CUfileHandle_t r;
	OK(cuFileHandleRegister(&r, &d));
	return r;
}

static unsigned char *map(size_t n, int protection, int flags, int of)
{
	void *p = mmap(NULL, n, protection, flags, of, 0);
	WANT(p != MAP_FAILED);
	return p;
}

static unsigned char *own(size_t n) { return map(n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1); }

static const size_t sizes[] = {512, PAGE, 60000, N};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Memory that takes a read's bytes and gives them to a write. */
static void good(unsigned char *p)
{
	for (int i = 0; i < SIZES; i++) {
		size_t n = sizes[i];
		WANT(cuFileRead(h, p, n, i, 0) == (ssize_t)n && right(p, (uint64_t)i, n));
		WANT(cuFileWrite(h, p, n, i, 0) == (ssize_t)n);
	}
}

/* Memory of which a part cannot be read, or written to. */
static void bad(unsigned char *p, int writable)
{
	for (int i = 0; i < SIZES; i++) {
		if (!writable)
			WANT(cuFileRead(h, p, sizes[i], i, 0) < 0);
		else
			WANT(cuFileRead(h, p, sizes[i], i, 0) < 0 && cuFileWrite(h, p, sizes[i], i, 0) < 0);
	}
}

static void none(void) { bad(map(N, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 1); }

static void read_only(void)
{
	unsigned char *p = own(N);
	good(p);
	WANT(mprotect(p, N, PROT_READ) == 0);
	bad(p, 0);
	WANT(cuFileWrite(h, p, N, SIZES - 1, 0) == N);
}

/* A mapping that is longer than its file: SIGBUS, where the kernel's own copies give EFAULT. */
static void beyond(void)
{
	char name[] = "/tmp/testmemoryXXXXXX";
	int f = mkstemp(name);
	WANT(f >= 0 && unlink(name) == 0);
	bad(map(N, PROT_READ | PROT_WRITE, MAP_SHARED, f), 1);
	int m = memfd_create("m", 0);
	WANT(m >= 0 && ftruncate(m, N) == 0);
	unsigned char *p = map(N, PROT_READ | PROT_WRITE, MAP_SHARED, m);
	good(p);
	WANT(ftruncate(m, 0) == 0);
	bad(p, 1);
}

/* The file itself, and another one of the mount. */
static void same_mount(void)
{
	char name[4096];
	snprintf(name, sizeof name, "%s.mapped", file);
	int f = open(name, O_RDWR | O_CREAT, 0600);
	WANT(f >= 0 && ftruncate(f, N) == 0);
	unsigned char *p = map(N, PROT_READ | PROT_WRITE, MAP_SHARED, f);
	for (int round = 0; round < 3; round++) {
		good(p);
		WANT(madvise(p, N, MADV_DONTNEED) == 0 && posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED) == 0);
	}
	CUfileHandle_t other = reg(f);
	for (int round = 0; round < 3; round++) { /* its own pages */
		WANT(cuFileRead(other, p, N, 0, 0) == N && cuFileWrite(other, p, N, 0, 0) == N);
		WANT(cuFileRead(other, p + PAGE, N / 2, 0, 0) == N / 2 && cuFileWrite(other, p, N / 2, N / 2, 0) == N / 2);
		WANT(msync(p, N, MS_SYNC) == 0);
	}
	unlink(name);
}

static void memfds(void)
{
	int m = memfd_create("m", MFD_ALLOW_SEALING);
	WANT(m >= 0 && ftruncate(m, N) == 0);
	unsigned char *p = map(N, PROT_READ | PROT_WRITE, MAP_SHARED, m);
	WANT(fcntl(m, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0);
	good(p);
	bad(map(N, PROT_READ, MAP_SHARED, m), 0);
}

static void huge(void)
{
	unsigned char *p = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (p != MAP_FAILED)
		good(p);
	if ((p = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0)) != MAP_FAILED) /* there may be no page of it: SIGBUS */
		for (int i = 0; i < SIZES; i++)
			cuFileRead(h, p, sizes[i], i, 0);
}

/* Memory that is replaced beside requests, by every way that leaves memory there. What goes to which pages is the program's matter. */
static _Atomic int stop;
static unsigned char *victim;

static void *replaces(void *arg)
{
	int usable = PROT_READ | PROT_WRITE;
	for (unsigned i = 0; !stop; i++) {
		switch (i % 4) {
		case 0:
			WANT(mmap(victim, N, usable, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == victim);
			break;
		case 1:
			WANT(mmap(victim, N, usable, MAP_PRIVATE | MAP_FIXED, fd, 0) == victim); /* of the file that is read */
			break;
		case 2:
			WANT(madvise(victim, N, MADV_DONTNEED) == 0);
			break;
		case 3:
			WANT(mremap(own(N), N, N, MREMAP_MAYMOVE | MREMAP_FIXED, victim) == victim);
			break;
		}
		usleep(i % 7 * 50);
	}
	return arg;
}

static void replaced(void)
{
	pthread_t t;
	char name[4096];
	snprintf(name, sizeof name, "%s.written", file);
	CUfileHandle_t written = reg(open(name, O_RDWR | O_CREAT, 0600));
	victim = own(N);
	WANT(pthread_create(&t, NULL, replaces, NULL) == 0);
	for (unsigned i = 0; i < 200; i++) {
		size_t n = sizes[i % SIZES];
		ssize_t k = i % 3 ? cuFileRead(h, victim, n, i, 0) : cuFileWrite(written, victim, n, i, 0);
		WANT(k == (ssize_t)n);
	}
	stop = 1;
	WANT(pthread_join(t, NULL) == 0);
	good(victim);
}

/* Memory that goes while requests use it. Up to 16 KiB the kernel copies, and gives EFAULT; larger ones are the program's matter (README.md). */
enum { LITTLE = 16 << 10 };
static int cut;

static void *takes(void *arg)
{
	for (unsigned i = 0; !stop; i++) {
		switch (i % 3) {
		case 0:
			WANT(mprotect(victim, LITTLE, PROT_NONE) == 0 && mprotect(victim, LITTLE, PROT_READ | PROT_WRITE) == 0);
			break;
		case 1:
			WANT(munmap(victim, LITTLE) == 0 && mmap(victim, LITTLE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, cut, 0) == victim);
			break;
		case 2:
			WANT(ftruncate(cut, 0) == 0 && ftruncate(cut, LITTLE) == 0);
			break;
		}
	}
	return arg;
}

static void taken(void)
{
	pthread_t t;
	char name[4096];
	unsigned failed = 0;
	snprintf(name, sizeof name, "%s.taken", file);
	CUfileHandle_t written = reg(open(name, O_RDWR | O_CREAT, 0600));
	victim = mmap((void *)(uintptr_t)(1ull << 40), LITTLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0); /* where nobody else gets memory meanwhile */
	WANT(victim != MAP_FAILED);
	cut = memfd_create("m", 0);
	WANT(cut >= 0 && ftruncate(cut, LITTLE) == 0 && pthread_create(&t, NULL, takes, NULL) == 0);
	for (unsigned i = 0; i < 1500 || !failed; i++) { /* until a call has met it */
		size_t n = i % 2 ? LITTLE : PAGE;
		ssize_t k = i % 3 ? cuFileRead(h, victim, n, i, 0) : cuFileWrite(written, victim, n, i, 0);
		WANT(k == (ssize_t)n || k == -CU_FILE_CUDA_POINTER_INVALID || (i % 3 == 0 && k > 0 && k < (ssize_t)n)); /* of a write by pwrite(2) a part may be done */
		failed += k < 0;
	}
	stop = 1;
	WANT(pthread_join(t, NULL) == 0);
	good(own(N));
	unlink(name);
}

/* Pages that a slow thread of the program gives: the request waits for it, and nobody else's does. */
static _Atomic int asked_for, give_now;

static void *gives(void *arg)
{
	int u = *(int *)arg;
	static char page[PAGE];
	for (;;) {
		struct uffd_msg msg;
		if (read(u, &msg, sizeof msg) != sizeof msg)
			return NULL;
		asked_for++;
		while (!give_now)
			usleep(1000);
		struct uffdio_copy c = {.dst = msg.arg.pagefault.address & ~(uint64_t)(PAGE - 1), .src = (uintptr_t)page, .len = PAGE};
		ioctl(u, UFFDIO_COPY, &c);
	}
}

static void *reads_slow(void *arg)
{
	WANT(cuFileRead(h, arg, N, 0, 0) == N && right(arg, 0, N));
	return NULL;
}

static void user_faults(void)
{
	int u = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (u < 0)
		return; /* it is not to be had here */
	unsigned char *p = own(N), *q = own(N);
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register r = {.range = {(uintptr_t)p, N}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	pthread_t t, slow;
	WANT(ioctl(u, UFFDIO_API, &api) == 0 && ioctl(u, UFFDIO_REGISTER, &r) == 0);
	WANT(pthread_create(&t, NULL, gives, &u) == 0 && pthread_create(&slow, NULL, reads_slow, p) == 0);
	while (!asked_for)
		usleep(1000);
	for (int i = 0; i < 3; i++)
		good(q); /* others' go on */
	give_now = 1;
	WANT(pthread_join(slow, NULL) == 0);
}

static const struct { const char *name; void (*f)(void); } kinds[] = {{"no access", none}, {"read only", read_only}, {"beyond the end", beyond}, {"of the mount", same_mount}, {"memfd", memfds},
	{"huge pages", huge}, {"user faults", user_faults}, {"replaced", replaced}, {"taken away", taken}};

int main(int argc, char **argv)
{
	int status, failed = 0;
	WANT(argc == 3);
	for (unsigned i = 0; i < 2 * sizeof kinds / sizeof *kinds; i++) {
		file = argv[1 + i % 2];
		pid_t child = fork();
		WANT(child >= 0);
		if (child == 0) {
			alarm(400); /* nothing hangs */
			fd = open(file, O_RDWR);
			WANT(fd >= 0);
			h = reg(fd);
			kinds[i / 2].f();
			OK(cuFileDriverClose());
			_exit(0);
		}
		WANT(waitpid(child, &status, 0) == child);
		if (status) {
			fprintf(stderr, "%s, %s: %s %d\n", kinds[i / 2].name, i % 2 ? "another file system" : "LaneFS", WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			failed = 1;
		}
	}
	if (!failed)
		puts("ok");
	return failed;
}
