/*
 * Run by a test beside this: testodd FILE OTHER, files of the same bytes as test.c's, OTHER not on LaneFS, with memory of a GPU of the stand-in for libcuda (lab/cuda). What
 * programs do to descriptors, threads and themselves while calls are under way: dup2, close, rename, exec, pthread_cancel, signals, setuid, chroot, mounts of their own. It runs itself as "testodd FILE child N", with N descriptors. Prints "ok".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testcuda.h"
#include "testfds.h"

enum { N = 9000, THREADS = 4, K = 12 };

static void *context;
static const char *file, *other;
static unsigned inherited; /* descriptors */

static unsigned char *memory(size_t n)
{
	void *p;
	WANT(cuda.current(context) == 0 && cuda.malloc(&p, n) == 0);
	return p;
}

static int opened(const char *path, int flags)
{
	int fd = open(path, flags);
	WANT(fd >= 0);
	return fd;
}

static void reads(CUfileHandle_t h, unsigned char *m, unsigned i)
{
	memset(m, 'x', N);
	WANT(cuFileRead(h, m, N, i, 0) == N && right(m, i, N));
}

/* A batch of K requests of a file, or of two by turns. */
static void in_batch(CUfileHandle_t h, CUfileHandle_t h2, unsigned char *m, unsigned i)
{
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[K];
	CUfileIOEvents_t e[K];
	unsigned n = K;
	memset(m, 'x', K * N);
	for (size_t k = 0; k < K; k++) {
		p[k] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = k % 2 ? h2 : h, .opcode = CUFILE_READ, .cookie = (void *)k};
		p[k].u.batch.devPtr_base = m;
		p[k].u.batch.devPtr_offset = (off_t)(k * N);
		p[k].u.batch.file_offset = (off_t)(i + k * 4001);
		p[k].u.batch.size = N;
	}
	OK(cuFileBatchIOSetUp(&b, K));
	OK(cuFileBatchIOSubmit(b, K, p, 0));
	OK(cuFileBatchIOGetStatus(b, K, &n, e, NULL));
	WANT(n == K);
	for (unsigned j = 0; j < n; j++)
		WANT(e[j].status == CUFILE_COMPLETE && e[j].ret == N && right(m + (size_t)e[j].cookie * N, (uint64_t)i + (size_t)e[j].cookie * 4001, N));
	cuFileBatchIODestroy(b);
}

/* All ways to read, with threads, until stop. */
struct busy { CUfileHandle_t h, other; _Atomic int stop; _Atomic unsigned rounds; pthread_t t[THREADS]; };

static void *works(void *arg)
{
	struct busy *b = arg;
	unsigned char *m = memory(K * N);
	for (unsigned i = 0; !b->stop; i++) {
		if (i % 3)
			reads(b->h, m, i);
		else
			in_batch(b->h, b->other, m, i);
		b->rounds++;
	}
	WANT(cuda.free(m) == 0);
	return NULL;
}

static void busy_begin(struct busy *b)
{
	b->stop = 0;
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_create(&b->t[i], NULL, works, b) == 0);
}

static void more_rounds(struct busy *b)
{
	for (unsigned until = b->rounds + 4 * THREADS; b->rounds < until;)
		usleep(200);
}

static void busy_end(struct busy *b)
{
	more_rounds(b);
	b->stop = 1;
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_join(b->t[i], NULL) == 0);
}

/* ---- The program's descriptor: another file's by dup2 and dup3, closed, the same file's again ---- */

static void numbers(const char *a, const char *b)
{
	int fd = opened(a, O_RDWR), fd2 = opened(b, O_RDWR), null = opened("/dev/null", O_RDWR);
	struct busy x = {.h = reg(fd), .other = reg(fd2)};
	unsigned char *m = memory(N);
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd};
	CUfileHandle_t again;
	busy_begin(&x);
	for (int i = 0; i < 20; i++) {
		WANT(dup2(i % 2 ? fd2 : null, fd) == fd);
		WANT(dup3(null, fd, O_CLOEXEC) == fd);
		more_rounds(&x);
	}
	/* The same name again, under the same number: another descriptor, which may be registered. So may a third, not twice the same. */
	for (int i = 0; i < 3; i++) {
		close(fd);
		WANT(open(a, i ? O_RDONLY : O_RDWR) == fd);
		OK(cuFileHandleRegister(&again, &d));
		IS(CU_FILE_HANDLE_ALREADY_REGISTERED, cuFileHandleRegister(&again, &d));
		reads(again, m, 7);
		errno = 0;
		WANT(cuFileWrite(again, m, N, 7, 0) == (i ? -1 : N) && (!i || errno == EBADF));
		cuFileHandleDeregister(again);
		OK(cuFileHandleRegister(&again, &d));
		IS(CU_FILE_HANDLE_ALREADY_REGISTERED, cuFileHandleRegister(&again, &d));
		cuFileHandleDeregister(again);
	}
	close(fd);
	close(fd2);
	busy_end(&x);
	cuFileHandleDeregister(x.h);
	cuFileHandleDeregister(x.other);
	close(null);
	WANT(cuda.free(m) == 0);
}

/* ---- The file: renamed, replaced, unlinked ---- */

static void names(const char *a)
{
	char one[PATH_MAX], two[PATH_MAX];
	unsigned char *copy = malloc(1 << 20);
	for (size_t i = 0; i < 1 << 20; i++)
		copy[i] = (unsigned char)(i % 251);
	snprintf(one, sizeof one, "%s.one", a);
	snprintf(two, sizeof two, "%s.two", a);
	int fd = open(one, O_RDWR | O_CREAT | O_EXCL, 0600);
	WANT(fd >= 0 && write(fd, copy, 1 << 20) == 1 << 20);
	struct busy x = {.h = reg(fd)};
	x.other = x.h;
	busy_begin(&x);
	for (int i = 0; i < 6; i++) {
		WANT(rename(one, two) == 0);
		more_rounds(&x);
		int replaces = open(one, O_RDWR | O_CREAT | O_EXCL, 0600);
		WANT(replaces >= 0 && write(replaces, "not this", 8) == 8 && close(replaces) == 0);
		WANT(rename(one, two) == 0); /* the file has no name now, and the other one its */
		more_rounds(&x);
		WANT(rename(two, one) == 0);
	}
	WANT(unlink(one) == 0);
	close(fd);
	busy_end(&x);
	unsigned char *m = memory(N);
	memset(m, 'w', N);
	WANT(cuFileWrite(x.h, m, N, 1 << 20, 0) == N && cuFileRead(x.h, m, N, 5, 0) == N && right(m, 5, N) && cuFileRead(x.h, m, N, (1 << 20) + N - 10, 0) == 10 && m[0] == 'w');
	cuFileHandleDeregister(x.h);
	WANT(cuda.free(m) == 0);
	free(copy);
}

/* ---- Other programs are started meanwhile: none of the library's descriptors is theirs ---- */

extern char **environ;

static int be_child(const char *path, unsigned parent_had)
{
	unsigned char b[N];
	WANT(inherited == parent_had);
	load(&context, 1);
	CUfileHandle_t h = reg(opened(path, O_RDONLY));
	WANT(cuFileRead(h, b, N, 3, 0) == N && right(b, 3, N));
	OK(cuFileDriverClose());
	return 0;
}

static void started(void)
{
	int fd = opened(file, O_RDWR | O_CLOEXEC), fd2 = opened(other, O_RDWR | O_CLOEXEC);
	struct busy x = {.h = reg(fd), .other = reg(fd2)};
	char inherits[16], *const argv[] = {"testodd", (char *)(uintptr_t)file, "child", inherits, NULL};
	snprintf(inherits, sizeof inherits, "%u", inherited);
	busy_begin(&x);
	for (int i = 0; i < 12; i++) {
		pid_t child;
		int status;
		if (i % 3 == 0)
			WANT(posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv, environ) == 0);
		else if ((child = i % 3 == 1 ? fork() : vfork()) == 0) {
			execv("/proc/self/exe", argv);
			_exit(127);
		}
		WANT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		more_rounds(&x);
	}
	busy_end(&x);
	cuFileHandleDeregister(x.h);
	cuFileHandleDeregister(x.other);
	close(fd);
	close(fd2);
}

/* ---- Threads that are cancelled in calls (deferred: POSIX lets a thread of the other type call almost nothing, XSH 2.9.5.4) ---- */

struct cancelled { CUfileHandle_t h[2]; int way; void *stream; unsigned char *m, *plain; _Atomic unsigned rounds; };

static void *is_cancelled(void *arg)
{
	struct cancelled *c = arg;
	size_t n = N;
	off_t offset = 5, at = 0;
	static ssize_t got; /* there is one at a time, and what it puts on the stream outlives it */
	WANT(cuda.current(context) == 0);
	for (unsigned i = 0;; i++) {
		c->rounds++;
		int of = i % 2;
		switch (c->way) {
		case 0:
			cuFileRead(c->h[of], c->m, i % 3 ? N : K * N, 5, 0);
			break;
		case 1:
			cuFileWrite(c->h[of], c->plain, N, 0, 0);
			break;
		case 2:
			cuFileRead(c->h[of], c->m + N, 100, 5, 0);
			break;
		case 3:
			cuFileReadAsync(c->h[of], c->m, &n, &offset, &at, &got, (CUstream)c->stream);
			break;
		}
		pthread_testcancel();
	}
	return NULL;
}

static void *is_cancelled_in_batch(void *arg)
{
	struct cancelled *c = arg;
	for (;;) {
		c->rounds++;
		in_batch(c->h[0], c->h[1], c->m, 5);
		pthread_testcancel();
	}
	return NULL;
}

static void cancelled(void)
{
	int fd[2] = {opened(file, O_RDWR), opened(other, O_RDWR)};
	struct cancelled c = {.h = {reg(fd[0]), reg(fd[1])}, .m = memory(K * N), .plain = memory(K * N)};
	for (size_t i = 0; i < N; i++)
		c.plain[i] = (unsigned char)(i % 251);
	WANT(cuda.create(&c.stream, NON_BLOCKING) == 0);
	OK(cuFileStreamRegister((CUstream)c.stream, 0xf));
	for (int k = 0; k < 200; k++) {
		pthread_t t;
		void *result;
		c.way = k % 5;
		c.rounds = 0;
		WANT(pthread_create(&t, NULL, c.way == 4 ? is_cancelled_in_batch : is_cancelled, &c) == 0);
		while (c.rounds < 3)
			sched_yield();
		usleep((useconds_t)(k * 37 % 500));
		WANT(pthread_cancel(t) == 0 && pthread_join(t, &result) == 0 && result == PTHREAD_CANCELED);
	}
	/* Nothing of theirs is kept: as many calls at once as there may be, and all descriptors go. */
	struct busy x = {.h = c.h[0], .other = c.h[1]};
	busy_begin(&x);
	busy_end(&x);
	WANT(cuda.sync(c.stream) == 0);
	OK(cuFileStreamDeregister((CUstream)c.stream));
	OK(cuFileDriverClose());
	WANT(cuda.destroy(c.stream) == 0 && cuda.free(c.m) == 0 && cuda.free(c.plain) == 0);
	close(fd[0]);
	close(fd[1]);
	WANT(descriptors() == inherited);
}

/* ---- Signals: system calls of the library that a handler has interrupted. Those that the program defines are the library's, too ---- */

static const char *_Atomic interrupting; /* of this function every other call */
static _Atomic unsigned calls;

static int interrupted(const char *name)
{
	if (!interrupting || strcmp(name, interrupting) || calls++ % 2)
		return 0;
	errno = EINTR;
	return 1;
}

#define REAL(name) ({ static __typeof__(&name) f_; if (!f_) *(void **)&f_ = dlsym(RTLD_NEXT, #name); f_; })
ssize_t pread(int fd, void *p, size_t n, off_t at) { return interrupted(__func__) ? -1 : REAL(pread)(fd, p, n, at); }
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) { return interrupted(__func__) ? -1 : REAL(pwrite)(fd, p, n, at); }
ssize_t sendmsg(int fd, const struct msghdr *m, int flags) { return interrupted(__func__) ? -1 : REAL(sendmsg)(fd, m, flags); }
ssize_t recvmsg(int fd, struct msghdr *m, int flags) { return interrupted(__func__) ? -1 : REAL(recvmsg)(fd, m, flags); }
int fsync(int fd) { return interrupted(__func__) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return interrupted(__func__) ? -1 : REAL(fdatasync)(fd); }
int poll(struct pollfd *p, nfds_t n, int timeout) { return timeout && interrupted(__func__) ? -1 : REAL(poll)(p, n, timeout); }

/* As the kernel's: a connection that was interrupted goes on, or is not there. */
int connect(int fd, const struct sockaddr *a, socklen_t n) { return interrupted(__func__) ? -1 : REAL(connect)(fd, a, n); }

int open(const char *path, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	return interrupted(__func__) ? -1 : REAL(open)(path, flags, mode);
}

/* The library asks for a file's socket by it. */
long syscall(long number, ...)
{
	long a[6];
	va_list args;
	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	return number == SYS_fgetxattr && interrupted("fgetxattr") ? -1 : REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void handled(int s) { (void)s; }

/* Everything once, from the connection on. */
static void once(int fd, int sync, int mounted, unsigned char *m)
{
	static CUfileStatsLevel3_t l;
	CUfileHandle_t h = reg(fd), s = reg(sync);
	OK(cuFileSetStatsLevel(3));
	OK(cuFileStatsReset());
	OK(cuFileStatsStart());
	reads(h, m, 3);
	WANT(cuFileRead(s, m + 1, 1000, 77, 0) == 1000 && right(m + 1, 77, 1000)); /* by the second descriptor of one that is open with O_DIRECT */
	in_batch(h, h, m, 9);
	for (size_t i = 0; i < N; i++)
		m[i] = (unsigned char)(i % 251);
	WANT(cuFileWrite(h, m, N, 0, 0) == N && cuFileWrite(s, m, 4096, 0, 0) == 4096);
	OK(cuFileStatsStop());
	OK(cuFileGetStatsL3(&l));
	WANT(mounted ? l.per_gpu_stats[0].n_posix_reads + l.per_gpu_stats[0].n_posix_writes == 0 : l.per_gpu_stats[0].n_posix_writes == 2);
	OK(cuFileDriverClose());
}

static void signals(const char *path)
{
	static const char *const all[] = {"pread", "pwrite", "sendmsg", "recvmsg", "fdatasync", "poll", "fgetxattr", "connect", "open"};
	int mounted = path == file, fd = opened(path, O_RDWR), sync = opened(path, O_RDWR | O_DIRECT | O_DSYNC);
	unsigned char *m = memory(K * N);
	for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
		int used = mounted ? strcmp(all[k], "pwrite") && strcmp(all[k], "poll") && strcmp(all[k], "pread") : strcmp(all[k], "open") == 0 || strcmp(all[k], "pread") == 0;
		calls = 0;
		interrupting = all[k];
		once(fd, sync, mounted, m);
		interrupting = NULL;
		WANT(calls >= 2 || !used);
	}
	for (int restart = 0; restart < 2; restart++) {
		struct sigaction a = {.sa_handler = handled, .sa_flags = restart ? SA_RESTART : 0};
		struct itimerval each = {{0, 300}, {0, 300}}, none = {{0, 0}, {0, 0}};
		WANT(sigaction(SIGVTALRM, &a, NULL) == 0 && sigaction(SIGPROF, &a, NULL) == 0);
		setitimer(ITIMER_VIRTUAL, &each, NULL);
		setitimer(ITIMER_PROF, &each, NULL);
		for (int i = 0; i < 40; i++)
			once(fd, sync, mounted, m);
		setitimer(ITIMER_VIRTUAL, &none, NULL);
		setitimer(ITIMER_PROF, &none, NULL);
	}
	/* A signal that the program's threads have blocked is not handled by one of the library's. */
	CUfileHandle_t h = reg(fd);
	CUfileBatchHandle_t b;
	CUfileIOParams_t p = {.mode = CUFILE_BATCH, .fh = h, .opcode = CUFILE_READ, .u.batch = {.devPtr_base = m, .size = N}};
	CUfileIOEvents_t e;
	unsigned n = 1;
	sigset_t usr, pending;
	WANT(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handled}, NULL) == 0);
	OK(cuFileBatchIOSetUp(&b, 1));
	OK(cuFileBatchIOSubmit(b, 1, &p, 0));
	OK(cuFileBatchIOGetStatus(b, 1, &n, &e, NULL));
	sigemptyset(&usr);
	sigaddset(&usr, SIGUSR1);
	WANT(pthread_sigmask(SIG_BLOCK, &usr, NULL) == 0 && kill(getpid(), SIGUSR1) == 0);
	usleep(20000);
	WANT(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) && sigwaitinfo(&usr, NULL) == SIGUSR1);
	WANT(pthread_sigmask(SIG_UNBLOCK, &usr, NULL) == 0);
	cuFileBatchIODestroy(b);
	cuFileHandleDeregister(h);
	close(fd);
	close(sync);
	WANT(cuda.free(m) == 0);
}

/* ---- No descriptors are left: often, and then there are some ---- */

static void no_descriptors(void)
{
	enum { ROUNDS = 40 /* more than the daemon gives rings to a session */ };
	struct rlimit was, few;
	int fd = opened(file, O_RDWR), filler[64];
	unsigned char *m = memory(K * N);
	CUfileHandle_t h = reg(fd);
	WANT(getrlimit(RLIMIT_NOFILE, &was) == 0);
	for (int round = 0; round < ROUNDS + 6; round++) {
		unsigned n = 0, left = (unsigned)round % (round < ROUNDS ? 4 : 6); /* a stage takes more than 3 */
		int first = dup(fd);
		few = (struct rlimit){(rlim_t)first + 12, was.rlim_max};
		close(first);
		WANT(setrlimit(RLIMIT_NOFILE, &few) == 0);
		while (n < 64 && (filler[n] = dup(fd)) >= 0)
			n++;
		for (unsigned i = 0; i < left; i++)
			close(filler[--n]);
		errno = 0;
		ssize_t got = cuFileRead(h, m, K * N, 3, 0); /* too large for the page cache */
		WANT(got == K * N || (got == -1 && errno == EMFILE));
		WANT(left > 3 || got == -1);
		while (n > 0)
			close(filler[--n]);
		WANT(setrlimit(RLIMIT_NOFILE, &was) == 0);
		if (got > 0) { /* there is a stage: begin without one */
			OK(cuFileDriverClose());
			h = reg(fd);
		}
	}
	struct busy x = {.h = h, .other = h};
	busy_begin(&x);
	busy_end(&x);
	OK(cuFileDriverClose());
	close(fd);
	WANT(cuda.free(m) == 0);
}

/* ---- The process: another user, another root, mounts of its own ---- */

static void alone(void (*f)(void))
{
	int status;
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		alarm(60);
		f();
		OK(cuFileDriverClose());
		_exit(0);
	}
	WANT(waitpid(child, &status, 0) == child && status == 0);
}

/* Reads of LaneFS's file by LaneFS. */
static void by_lanefs(CUfileHandle_t h, CUfileHandle_t h2, unsigned char *m)
{
	static CUfileStatsLevel3_t s;
	OK(cuFileSetStatsLevel(3));
	OK(cuFileStatsReset());
	OK(cuFileStatsStart());
	for (unsigned i = 0; i < 5; i++) {
		reads(h, m, i);
		in_batch(h, h, m, i);
	}
	OK(cuFileStatsStop());
	OK(cuFileGetStatsL3(&s));
	WANT(s.per_gpu_stats[0].n_posix_reads == 0 && s.detailed.basic.read_ops.ok >= 5);
	if (h2)
		in_batch(h, h2, m, 7);
}

static void other_user(void)
{
	int fd = opened(file, O_RDWR), late = opened(file, O_RDONLY), direct = opened(file, O_RDWR | O_DIRECT), fd2 = opened(other, O_RDWR);
	unsigned char *m = memory(K * N);
	CUfileHandle_t h = reg(fd), h2 = reg(fd2), d = reg(direct);
	WANT(setgid(65534) == 0 && setuid(65534) == 0);
	by_lanefs(h, h2, m);
	struct busy x = {.h = h, .other = h2};
	busy_begin(&x);
	busy_end(&x);
	WANT(cuFileRead(d, m, 1001, 7, 1) == 1001 && right(m + 1, 7, 1001));
	WANT(open(file, O_RDWR) == -1 && errno == EACCES);
	by_lanefs(reg(late), NULL, m); /* the descriptor is the permission */
	direct = dup(direct);
	d = reg(direct);
	WANT(cuFileRead(d, m, 1001, 7, 1) == 1001 && right(m + 1, 7, 1001));
}

static char empty[] = "/tmp/lanefs-root-XXXXXX";

static void other_root(void)
{
	int fd = opened(file, O_RDWR), late = opened(file, O_RDWR | O_DIRECT), fd2 = opened(other, O_RDWR);
	unsigned char *m = memory(K * N);
	CUfileHandle_t h = reg(fd), h2 = reg(fd2);
	WANT(chroot(empty) == 0 && chdir("/") == 0);
	by_lanefs(h, h2, m);
	struct busy x = {.h = h, .other = h2};
	busy_begin(&x);
	busy_end(&x);
	by_lanefs(reg(late), NULL, m); /* by the connection that is there */
	OK(cuFileDriverClose());
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd};
	IS(CU_FILE_DRIVER_NOT_INITIALIZED, cuFileHandleRegister(&h, &d)); /* the daemon's socket is not in here, and no other way is taken */
	reads(reg(fd2), m, 3);
}

static void own_mounts(void)
{
	unsigned char *m = memory(K * N);
	char dir[] = "/tmp/lanefs-bind-XXXXXX", path[PATH_MAX], link[64];
	WANT(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	by_lanefs(reg(opened(file, O_RDWR)), NULL, m);
	/* The directory somewhere else, then the file alone, read-only. */
	WANT(mkdtemp(dir));
	snprintf(path, sizeof path, "%s", file);
	*strrchr(path, '/') = 0;
	WANT(mount(path, dir, NULL, MS_BIND, NULL) == 0);
	snprintf(path, sizeof path, "%s%s", dir, strrchr(file, '/'));
	int fd = opened(path, O_RDWR);
	CUfileHandle_t h = reg(fd);
	by_lanefs(h, NULL, m);
	WANT(umount2(dir, MNT_DETACH) == 0);
	by_lanefs(h, NULL, m);
	snprintf(path, sizeof path, "%s/file", dir);
	int made = open(path, O_WRONLY | O_CREAT, 0600);
	WANT(made >= 0 && close(made) == 0 && mount(file, path, NULL, MS_BIND, NULL) == 0 && mount("none", path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0);
	by_lanefs(reg(opened(path, O_RDONLY)), NULL, m);
	/* By way of /proc. */
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	by_lanefs(reg(opened(link, O_RDWR)), NULL, m);
	WANT(umount2(path, MNT_DETACH) == 0 && unlink(path) == 0 && rmdir(dir) == 0);
}

/* ---- What is no file ---- */

static void refused(int fd, CUfileOpError why)
{
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd};
	CUfileHandle_t h;
	unsigned before = descriptors();
	WANT(fd >= 0);
	IS(why, cuFileHandleRegister(&h, &d));
	WANT(descriptors() == before);
	close(fd);
}

static void no_files(void)
{
	int ends[2], pair[2];
	char dir[PATH_MAX];
	snprintf(dir, sizeof dir, "%s", file);
	*strrchr(dir, '/') = 0;
	WANT(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	for (int i = 0; i < 2; i++) {
		refused(ends[i], CU_FILE_INVALID_FILE_TYPE);
		refused(pair[i], CU_FILE_INVALID_FILE_TYPE);
		refused(open(i ? file : other, O_PATH), CU_FILE_INVALID_FILE_OPEN_FLAG);
	}
	refused(open(dir, O_RDONLY | O_DIRECTORY), CU_FILE_INVALID_FILE_TYPE);
	refused(open("/dev/null", O_RDWR), CU_FILE_INVALID_FILE_TYPE);
	refused(eventfd(0, 0), CU_FILE_INVALID_FILE_TYPE);
	refused(open("/proc/self/fd", O_PATH), CU_FILE_INVALID_FILE_TYPE);
}

int main(int argc, char **argv)
{
	WANT(argc >= 3);
	inherited = descriptors();
	file = argv[1];
	other = argv[2];
	alarm(400);
	if (argc == 4)
		return be_child(file, (unsigned)atoi(argv[3]));
	load(&context, 1);
	no_files();
	numbers(file, other);
	numbers(other, file);
	names(file);
	names(other);
	signals(file);
	signals(other);
	cancelled();
	no_descriptors();
	started();
	unsigned before;
	OK(cuFileDriverOpen());
	OK(cuFileDriverClose());
	before = descriptors();
	if (geteuid() == 0) {
		alone(other_user);
		WANT(mkdtemp(empty));
		alone(other_root);
		WANT(rmdir(empty) == 0);
		alone(own_mounts);
	}
	WANT(descriptors() == before);
	puts("ok");
	return 0;
}
