/*
 * Run by a Go test beside this: testmemory FILE, of a mount with device memory, whose byte i is i % 251. Memory that the library has not allocated: where it is not there, may not be used so,
 * or is taken away in the middle of a call, the call fails with EFAULT, the file is as it was, and the stage can be used on. Each kind is a process of its own, so a crash is told. Prints "ok".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); _exit(1); } } while (0)
#define FAILS(call) do { errno = 0; WANT((call) == -1 && errno == EFAULT && strstr(lanefs_error(), "memory")); } while (0)

enum { N = 1 << 20, PAGE = 4096, KERNEL = 16 << 10 /* up to there the kernel copies */ };

static lanefs *s;
static lanefs_stage *st;
static uint32_t file;

static int right(const unsigned char *p, uint64_t off, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != (off + i) % 251)
			return 0;
	return 1;
}

static unsigned char *own(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	WANT(p != MAP_FAILED);
	return p;
}

static const size_t sizes[] = {1, 512, PAGE, 10000, KERNEL, KERNEL + 1, N};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void good(unsigned char *p)
{
	for (int i = 0; i < SIZES; i++)
		WANT(lanefs_read_into(st, file, p, (uint64_t)i, sizes[i], NULL) == (int64_t)sizes[i] && right(p, (uint64_t)i, sizes[i]) &&
			lanefs_write_from(st, file, p, (uint64_t)i, sizes[i], NULL) == (int64_t)sizes[i]);
}

/* A batch of whose pieces the middle one is none of memory: two of 1000 bytes on either side are. */
static void among(unsigned char *p, int writable)
{
	unsigned char *q = own(3 * PAGE);
	uintptr_t low = (uintptr_t)p < (uintptr_t)q ? (uintptr_t)p : (uintptr_t)q;
	struct lanefs_piece pieces[] = {{0, (uintptr_t)q - low, 1000}, {1000, (uintptr_t)p - low, 1000}, {2000, (uintptr_t)q + 2 * PAGE - low, 1000}};
	int64_t got[3];
	FAILS(lanefs_read_batch(st, file, (void *)low, pieces, 3, NULL, got));
	if (writable)
		FAILS(lanefs_write_batch(st, file, (void *)low, pieces, 3, NULL, got));
	WANT(munmap(q, 3 * PAGE) == 0);
}

static void bad(unsigned char *p)
{
	for (int i = 0; i < SIZES; i++) {
		FAILS(lanefs_read_into(st, file, p, (uint64_t)i, sizes[i], NULL));
		FAILS(lanefs_write_from(st, file, p, (uint64_t)i, sizes[i], NULL));
	}
	among(p, 1);
}

static void none(void)
{
	unsigned char *p = own(N);
	good(p);
	WANT(mprotect(p, N, PROT_NONE) == 0);
	bad(p);
	WANT(munmap(p, N) == 0);
	bad(p);
	bad((unsigned char *)(uintptr_t)(1ull << 63)); /* no address at all */
	good(own(N));
}

static void read_only(void)
{
	unsigned char *p = own(N);
	WANT(lanefs_read_into(st, file, p, 0, N, NULL) == N && mprotect(p, N, PROT_READ) == 0);
	for (int i = 0; i < SIZES; i++) {
		FAILS(lanefs_read_into(st, file, p, 0, sizes[i], NULL));
		WANT(lanefs_write_from(st, file, p, 0, sizes[i], NULL) == (int64_t)sizes[i]);
	}
	among(p, 0);
}

/* A mapping whose file was cut: SIGBUS. */
static void beyond(void)
{
	int m = memfd_create("m", 0);
	unsigned char *p = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_SHARED, m, 0);
	WANT(m >= 0 && ftruncate(m, N) == 0 && p != MAP_FAILED);
	good(p);
	WANT(ftruncate(m, 0) == 0);
	bad(p);
}

/* A thread's stack after the thread's end. */
static unsigned char *there;

static void *ends(void *arg)
{
	(void)arg;
	return NULL;
}

static void stack(void)
{
	pthread_attr_t a;
	pthread_t t;
	WANT(pthread_attr_init(&a) == 0);
	there = own(N);
	WANT(pthread_attr_setstack(&a, there, N) == 0 && pthread_create(&t, &a, ends, NULL) == 0 && pthread_join(t, NULL) == 0);
	good(there);
	WANT(munmap(there, N) == 0);
	bad(there);
}

/* What the daemon reads behind the end of a file into memory that it has is made zero by the library. */
static void registered(void)
{
	int m = memfd_create("m", MFD_ALLOW_SEALING);
	uint32_t handle;
	WANT(m >= 0 && ftruncate(m, N) == 0);
	unsigned char *p = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_SHARED, m, 0);
	WANT(p != MAP_FAILED && lanefs_register_at(s, p, m, LANEFS_MEMFD, 0, N, &handle) == 0);
	memset(p, 'x', N);
	WANT(lanefs_read_into(st, file, p, (2 << 20) - 1000, N, NULL) == 1000 && right(p, (2 << 20) - 1000, 1000));
	for (int i = 1000; i < N; i++)
		WANT(p[i] == 0);
	WANT(mprotect(p, N, PROT_READ) == 0); /* the daemon's own rights are another matter */
	FAILS(lanefs_read_into(st, file, p, (2 << 20) - 1000, N, NULL));
	WANT(munmap(p, N) == 0);
	FAILS(lanefs_read_into(st, file, p, (2 << 20) - 1000, 5000, NULL));
	WANT(lanefs_release(s, handle) == 0);
}

/* Memory that goes while the library copies: a thread that is to give the second page takes all away. */
static int faults;

static void *takes(void *arg)
{
	struct uffd_msg msg;
	unsigned char *p = arg;
	WANT(read(faults, &msg, sizeof msg) == sizeof msg && munmap(p, 4 * PAGE) == 0);
	struct uffdio_range r = {(uintptr_t)p, 4 * PAGE};
	WANT(ioctl(faults, UFFDIO_WAKE, &r) == 0);
	return NULL;
}

static void taken(void)
{
	for (int write = 0; write < 2; write++) {
		unsigned char *p = own(4 * PAGE);
		struct uffdio_api api = {.api = UFFD_API};
		struct uffdio_register r = {.range = {(uintptr_t)p + PAGE, 3 * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
		pthread_t t;
		if ((faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC)) < 0)
			return; /* it is not to be had here */
		memset(p, 1, PAGE);
		WANT(ioctl(faults, UFFDIO_API, &api) == 0 && ioctl(faults, UFFDIO_REGISTER, &r) == 0 && pthread_create(&t, NULL, takes, p) == 0);
		if (write)
			FAILS(lanefs_write_from(st, file, p, 0, 4 * PAGE, NULL));
		else
			FAILS(lanefs_read_into(st, file, p, 0, 4 * PAGE, NULL));
		WANT(pthread_join(t, NULL) == 0 && close(faults) == 0);
	}
	good(own(N));
}

/* The process's first thread has ended. */
static pthread_t first;

static void *alone(void *arg)
{
	(void)arg;
	WANT(pthread_join(first, NULL) == 0);
	good(own(N));
	none();
	_exit(0);
}

static void headless(void)
{
	pthread_t t;
	first = pthread_self();
	WANT(pthread_create(&t, NULL, alone, NULL) == 0);
	pthread_exit(NULL);
}

/* The program has become another user's since, has another root, and may not be looked at by others (as after exec of a set-user-ID program). */
static void nobody(void)
{
	if (chroot("/proc/self/fdinfo") == 0)
		WANT(setgid(65534) == 0 && setuid(65534) == 0);
	WANT(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
	good(own(N));
	none();
	beyond();
}

/* A sandbox that forbids what the kernel is asked to copy by. */
static void sandbox(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog all = {sizeof f / sizeof *f, f};
	WANT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all, 0, 0) == 0);
	good(own(N));
	none();
	beyond();
	/* Pieces that lie together in the stage, and not in memory. */
	unsigned char *p = own(N);
	struct lanefs_piece pieces[] = {{0, 0, 16}, {16, 160, 16}, {32, 320, 100}, {1000, 3008, 500}};
	WANT(lanefs_read_batch(st, file, p, pieces, 4, NULL, NULL) == 632);
	for (int i = 0; i < 4; i++)
		WANT(right(p + pieces[i].memory_offset, pieces[i].file_offset, pieces[i].length));
}

static const struct { const char *name; void (*f)(void); } kinds[] = {{"none", none}, {"read only", read_only}, {"beyond the end", beyond}, {"a stack", stack}, {"registered", registered},
	{"taken away", taken}, {"without the first thread", headless}, {"another user", nobody}, {"a sandbox", sandbox}};

int main(int argc, char **argv)
{
	int status, failed = 0;
	WANT(argc == 2);
	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		pid_t child = fork();
		WANT(child >= 0);
		if (child == 0) {
			alarm(300); /* nothing hangs */
			int fd = open(argv[1], O_RDWR);
			WANT((s = lanefs_connect(fd)) && (st = lanefs_stage_new(s, 0)) && lanefs_open(s, fd, &file) == 0);
			kinds[i].f();
			lanefs_stage_free(st);
			lanefs_close(s);
			_exit(0);
		}
		WANT(waitpid(child, &status, 0) == child);
		if (status) {
			fprintf(stderr, "%s: %s %d\n", kinds[i].name, WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			failed = 1;
		}
	}
	if (!failed)
		puts("ok");
	return failed;
}
