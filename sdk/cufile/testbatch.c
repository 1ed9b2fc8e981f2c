/*
 * Run by a test of cmd/lanefs: testbatch FILE OTHER DAEMON, files of the same bytes as test.c's, OTHER not on LaneFS, and the process of FILE's mount. Batches
 * while nothing of them can end, because the daemon is stopped; without memory, descriptors and threads to be had; and when it is killed, at the end.
 * Prints "ok".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cufile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)
#define IS(want, call) do { CUfileError_t e_ = (call); if (e_.err != (want)) { fprintf(stderr, "%s:%d: %s: %d, not %d\n", __FILE__, __LINE__, #call, (int)e_.err, (int)(want)); exit(1); } } while (0)
#define OK(call) IS(CU_FILE_SUCCESS, call)
#include "testfds.h"

enum { M = 3000, K = 40 };

static pid_t served_by;
static unsigned char m[K * M];
static CUfileHandle_t h, plain; /* of the file, and of the other */

/* ---- What there is no more of. The library's calls come here, too ---- */

static _Atomic int no_threads;
static _Atomic long memory_for = -1, live; /* so many allocations more; -1: any. How many there are */
static int once; /* and then any again */

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg)
{
	static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
	return no_threads ? EAGAIN : real(t, a, f, arg);
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), __libc_free(void *);

static int none(void)
{
	if (memory_for < 0 || memory_for-- > 0)
		return 0;
	memory_for = once ? -2 : 0;
	errno = ENOMEM;
	return 1;
}

static void *counted(void *p)
{
	live += p != NULL;
	return p;
}

void *malloc(size_t n) { return none() ? NULL : counted(__libc_malloc(n)); }
void *calloc(size_t k, size_t n) { return none() ? NULL : counted(__libc_calloc(k, n)); }
void *realloc(void *p, size_t n) { return none() ? NULL : p ? __libc_realloc(p, n) : counted(__libc_realloc(p, n)); }

void free(void *p)
{
	live -= p != NULL;
	__libc_free(p);
}

/* ---- The daemon ---- */

/* The state of a thread, by the path of its directory in /proc. */
static char state_of(const char *dir)
{
	char path[96], state = 0;
	snprintf(path, sizeof path, "%s/stat", dir);
	FILE *f = fopen(path, "r");
	if (f) {
		WANT(fscanf(f, "%*d (%*[^)]) %c", &state) == 1 || errno == ESRCH); /* it has ended meanwhile */
		fclose(f);
	}
	return state;
}

/* The threads of a process, but for the calling one, that are in another state. */
static unsigned threads_not(char state, pid_t process)
{
	char tasks[32], path[64];
	unsigned n = 0;
	snprintf(tasks, sizeof tasks, "/proc/%d/task", process);
	DIR *d = opendir(tasks);
	WANT(d);
	for (struct dirent *e; (e = readdir(d));) {
		snprintf(path, sizeof path, "%s/%.20s", tasks, e->d_name);
		n += e->d_name[0] != '.' && atoi(e->d_name) != (int)syscall(SYS_gettid) && state_of(path) != state;
	}
	closedir(d);
	return n;
}

/* Stops the daemon. It stands still when all of its threads do, which on a busy machine takes a while. */
static void stop(void)
{
	WANT(kill(served_by, SIGSTOP) == 0);
	while (threads_not('T', served_by))
		usleep(1000);
}

/*
 * Returns when all other threads of this process wait: while the daemon stands still, what was submitted is under way, and who waits for it has begun to. A thread that is
 * only ready to run, as on a busy machine they are for long, does not wait. One may have waited for another, shortly, at one look.
 */
static void asleep(void)
{
	for (int quiet = 0; quiet < 3; usleep(2000))
		quiet = threads_not('S', getpid()) ? 0 : quiet + 1;
}

static void go_on(void) { WANT(kill(served_by, SIGCONT) == 0); }

static void *goes_on_soon(void *arg)
{
	usleep(50000);
	go_on();
	return arg;
}

/* ---- */

static CUfileHandle_t reg(int fd)
{
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd};
	CUfileHandle_t r;
	WANT(fd >= 0);
	OK(cuFileHandleRegister(&r, &d));
	return r;
}

static int fd, plain_fd;

static void reg_both(void)
{
	h = reg(fd);
	plain = reg(plain_fd);
}

static off_t offset_of(size_t i) { return (off_t)(i * 4001); }

static CUfileIOParams_t request(CUfileHandle_t of, size_t i)
{
	CUfileIOParams_t p = {.mode = CUFILE_BATCH, .fh = of, .opcode = CUFILE_READ, .cookie = (void *)i};
	p.u.batch.devPtr_base = m;
	p.u.batch.devPtr_offset = (off_t)(i * M);
	p.u.batch.file_offset = offset_of(i);
	p.u.batch.size = M;
	return p;
}

static int right(size_t i)
{
	for (uint64_t k = 0; k < M; k++)
		if (m[i * M + k] != ((uint64_t)offset_of(i) + k) % 251)
			return 0;
	return 1;
}

static int untouched(void)
{
	for (size_t i = 0; i < sizeof m; i++)
		if (m[i] != 'z')
			return 0;
	return 1;
}

/* n of the file's, or by turns of both. */
static CUfileBatchHandle_t submitted(unsigned n, int both)
{
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[K];
	memset(m, 'z', sizeof m);
	for (unsigned i = 0; i < n; i++)
		p[i] = request(both && i % 2 ? plain : h, i);
	OK(cuFileBatchIOSetUp(&b, K));
	OK(cuFileBatchIOSubmit(b, n, p, 0));
	return b;
}

/* All that is left of the batch has its bytes. */
static void all_right(CUfileBatchHandle_t b, unsigned want)
{
	CUfileIOEvents_t e[K];
	unsigned n = K;
	OK(cuFileBatchIOGetStatus(b, K, &n, e, NULL));
	WANT(n == want);
	for (unsigned i = 0; i < n; i++)
		WANT(e[i].status == CUFILE_COMPLETE && e[i].ret == M && right((size_t)e[i].cookie));
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static _Atomic int signals;

static void handler(int s)
{
	(void)s;
	signals++;
}

static void signals_each(int us)
{
	struct sigaction a = {.sa_handler = us ? handler : SIG_DFL}; /* of alarm, at the end */
	struct itimerval t = {{0, us}, {0, us}};
	if (!us)
		setitimer(ITIMER_REAL, &t, NULL);
	sigaction(SIGALRM, &a, NULL);
	setitimer(ITIMER_REAL, &t, NULL);
}

/* A wait with a limit takes as long as that, whatever signals come. What has not ended then goes on. */
static void limits(void)
{
	static const struct timespec limit[] = {{0, 0}, {0, 200000000}, {0, 999999999}, {1, 1}}, none_at_all[] = {{0, -1}, {-1, 0}, {0, 1000000000}, {-1, 999999999}};
	CUfileIOEvents_t e[K];
	stop();
	CUfileBatchHandle_t b = submitted(K, 0);
	signals_each(7000);
	for (int i = 0; i < 4; i++) {
		struct timespec t = limit[i];
		unsigned n = K;
		int64_t begun = now_ms();
		OK(cuFileBatchIOGetStatus(b, 1, &n, e, &t));
		WANT(n == 0 && now_ms() - begun >= limit[i].tv_sec * 1000 + limit[i].tv_nsec / 1000000 - 1);
		t = none_at_all[i];
		n = K;
		IS(CU_FILE_INVALID_VALUE, cuFileBatchIOGetStatus(b, 1, &n, e, &t));
		WANT(n == K);
	}
	go_on();
	all_right(b, K);
	for (int i = 0; i < 200; i++) { /* signals during reads, and waits for them */
		cuFileBatchIODestroy(b);
		b = submitted(K, i % 2);
		all_right(b, K);
		memset(m, 'z', M);
		WANT(cuFileRead(h, m, M, offset_of(0), 0) == M && right(0));
	}
	cuFileBatchIODestroy(b);
	WANT(signals > 10);
	signals_each(0);
}

/* ---- Cancelled, destroyed, left to the driver's end while a request is under way and a thread waits ---- */

struct wait { CUfileBatchHandle_t b; int limited; CUfileError_t e; unsigned n; _Atomic int ended, how; };

static void *waits(void *arg)
{
	struct wait *w = arg;
	CUfileIOEvents_t e[K];
	struct timespec ages = {100, 0};
	w->n = K;
	w->e = cuFileBatchIOGetStatus(w->b, K, &w->n, e, w->limited ? &ages : NULL);
	return NULL;
}

static void *ends(void *arg)
{
	struct wait *w = arg;
	if (w->how == 0)
		OK(cuFileBatchIOCancel(w->b));
	else if (w->how == 1)
		cuFileBatchIODestroy(w->b);
	else
		OK(cuFileDriverClose());
	w->ended = 1;
	memset(m, 'z', sizeof m); /* it is the program's again */
	return NULL;
}

static void ended(void)
{
	unsigned before = 0;
	for (int i = 0; i < 12; i++) {
		pthread_t waiter, ender;
		struct wait w = {.limited = i % 2, .how = i / 2 % 3};
		int with_waiter = w.how < 2;
		stop();
		w.b = submitted(K, 1);
		if (with_waiter)
			WANT(pthread_create(&waiter, NULL, waits, &w) == 0);
		asleep();
		WANT(pthread_create(&ender, NULL, ends, &w) == 0);
		asleep(); /* else what is under way could end before the call */
		WANT(!w.ended); /* something is under way */
		go_on();
		WANT(pthread_join(ender, NULL) == 0);
		if (with_waiter) {
			WANT(pthread_join(waiter, NULL) == 0);
			WANT(w.e.err ? w.e.err == CU_FILE_INVALID_VALUE && w.how == 1 : w.n == 0);
		}
		usleep(5000);
		WANT(untouched());
		if (w.how == 0) { /* all of its room is free again */
			CUfileIOParams_t p[K];
			for (unsigned k = 0; k < K; k++)
				p[k] = request(k % 3 ? plain : h, k);
			OK(cuFileBatchIOSubmit(w.b, K, p, 0));
			all_right(w.b, K);
			cuFileBatchIODestroy(w.b);
		}
		if (w.how == 2) {
			WANT(!before || descriptors() == before);
			before = descriptors(); /* none is left of the library's */
			reg_both();
		}
	}
}

/* Who has waited for some leaves the others to the thread, which may have looked while it was not its turn. */
static void left_to_thread(void)
{
	for (int i = 0; i < 8; i++) {
		CUfileIOEvents_t e[2];
		struct timespec ages = {100, 0};
		pthread_t t;
		unsigned n = 1, more = 1;
		stop();
		CUfileBatchHandle_t b = submitted(2, 1);
		WANT(pthread_create(&t, NULL, goes_on_soon, NULL) == 0);
		OK(cuFileBatchIOGetStatus(b, 1, &n, e, NULL));
		OK(cuFileBatchIOGetStatus(b, 1, &more, e + 1, &ages));
		WANT(n == 1 && more == 1 && right(0) && right(1) && pthread_join(t, NULL) == 0);
		cuFileBatchIODestroy(b);
	}
}

/* A child has no batches, and does not wait for its parent's. */
static void forked(void)
{
	stop();
	CUfileBatchHandle_t b = submitted(K, 1);
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		CUfileIOEvents_t e[K];
		CUfileIOParams_t p = request(h, 0);
		unsigned n = K;
		alarm(60);
		IS(CU_FILE_INVALID_VALUE, cuFileBatchIOGetStatus(b, 1, &n, e, NULL));
		IS(CU_FILE_INVALID_VALUE, cuFileBatchIOSubmit(b, 1, &p, 0));
		IS(CU_FILE_INVALID_VALUE, cuFileBatchIOCancel(b));
		cuFileBatchIODestroy(b);
		CUfileBatchHandle_t own;
		OK(cuFileBatchIOSetUp(&own, 1));
		OK(cuFileBatchIOSubmit(own, 1, &p, 0));
		n = 1;
		OK(cuFileBatchIOGetStatus(own, 1, &n, e, NULL));
		WANT(n == 1 && e[0].status == CUFILE_INVALID && (ssize_t)e[0].ret == -CU_FILE_HANDLE_NOT_REGISTERED);
		_exit(0);
	}
	int status;
	WANT(waitpid(child, &status, 0) == child && status == 0);
	go_on();
	all_right(b, K);
	cuFileBatchIODestroy(b);
}

/* Memory that goes away before its request's turn. */
static void unmapped(void)
{
	CUfileIOEvents_t e[K];
	CUfileIOParams_t p[3];
	unsigned n = K;
	unsigned char *gone = mmap(NULL, M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	WANT(gone != MAP_FAILED);
	OK(cuFileBufRegister(gone, M, 0));
	CUfileBatchHandle_t b = submitted(1, 0);
	all_right(b, 1);
	stop();
	p[0] = request(h, 0);
	p[0].opcode = CUFILE_WRITE; /* of what is there. The others do not go together with it, and so begin after it */
	OK(cuFileBatchIOSubmit(b, 1, p, 0));
	for (unsigned i = 0; i < 3; i++) {
		p[i] = request(i == 1 ? plain : h, 10 + i);
		if (i < 2) {
			p[i].u.batch.devPtr_base = gone;
			p[i].u.batch.devPtr_offset = 0;
		}
	}
	OK(cuFileBatchIOSubmit(b, 3, p, 0));
	WANT(mmap(gone, M, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == gone); /* in one step: another thread could get the addresses between two */
	go_on();
	OK(cuFileBatchIOGetStatus(b, 4, &n, e, NULL));
	WANT(n == 4);
	for (unsigned i = 0; i < n; i++) {
		size_t k = (size_t)e[i].cookie;
		if (k == 10 || k == 11)
			WANT(e[i].status == CUFILE_FAILED && (ssize_t)e[i].ret == -CU_FILE_CUDA_POINTER_INVALID);
		else
			WANT(e[i].status == CUFILE_COMPLETE && e[i].ret == M && right(k));
	}
	cuFileBatchIODestroy(b);
	OK(cuFileBufDeregister(gone));
}

/* One request alone, and what is refused at once. */
static void alone(const char *file, const char *other)
{
	for (int i = 0; i < 4; i++) {
		int own = open(i / 2 ? other : file, i % 2 ? O_WRONLY : O_RDONLY);
		CUfileHandle_t of = reg(own);
		CUfileBatchHandle_t b;
		CUfileIOParams_t p = request(of, 1);
		CUfileIOEvents_t e;
		struct timespec soon = {0, 0};
		unsigned n = 1;
		memset(m, 'z', sizeof m);
		p.opcode = i % 2 ? CUFILE_READ : CUFILE_WRITE;
		OK(cuFileBatchIOSetUp(&b, 2));
		OK(cuFileBatchIOSubmit(b, 1, &p, 1)); /* any flags, as NVIDIA's library */
		OK(cuFileBatchIOGetStatus(b, 1, &n, &e, NULL));
		WANT(n == 1 && e.status == CUFILE_FAILED && (ssize_t)e.ret == -EBADF && untouched());
		CUfileIOParams_t bad[2] = {request(h, 0), request(h, 1)};
		for (int k = 0; k < 2; k++) {
			bad[1] = request(h, 1);
			if (k == 0)
				bad[1].mode = (CUfileBatchMode_t)(CUFILE_BATCH + 1);
			if (k == 1)
				bad[1].u.batch.devPtr_base = NULL;
			IS(CU_FILE_INVALID_VALUE, cuFileBatchIOSubmit(b, 2, bad, 0));
			n = 1;
			OK(cuFileBatchIOGetStatus(b, 0, &n, &e, &soon));
			WANT(n == 0 && untouched());
		}
		cuFileBatchIODestroy(b);
		cuFileHandleDeregister(of);
		close(own);
	}
}

/* ---- One batch of many threads ---- */

static CUfileBatchHandle_t shared;
static _Atomic unsigned sent, got;
enum { ROUNDS = 300, THREADS = 4 };

static void *shares(void *arg)
{
	size_t me = (size_t)arg;
	for (unsigned i = 0; i < ROUNDS; i++) {
		CUfileIOParams_t p[2] = {request(h, 2 * me), request(plain, 2 * me + 1)};
		CUfileIOEvents_t e[3];
		struct timespec ms = {0, 1000000};
		unsigned n = 3;
		CUfileError_t r = cuFileBatchIOSubmit(shared, 2, p, 0);
		WANT(!r.err || r.err == CU_FILE_BATCH_FULL);
		sent += r.err ? 0 : 2;
		OK(cuFileBatchIOGetStatus(shared, i % 2, &n, e, i % 3 ? &ms : NULL));
		for (unsigned k = 0; k < n; k++)
			WANT(e[k].status == CUFILE_COMPLETE && e[k].ret == M && (size_t)e[k].cookie < 2 * THREADS);
		got += n;
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[THREADS];
	CUfileIOEvents_t e[K];
	unsigned n = K;
	memset(m, 'z', sizeof m);
	OK(cuFileBatchIOSetUp(&shared, 7));
	for (size_t i = 0; i < THREADS; i++)
		WANT(pthread_create(&t[i], NULL, shares, (void *)i) == 0);
	for (size_t i = 0; i < THREADS; i++)
		WANT(pthread_join(t[i], NULL) == 0);
	OK(cuFileBatchIOGetStatus(shared, 7, &n, e, NULL));
	WANT(got + n == sent && sent > 2 * THREADS);
	for (size_t i = 0; i < 2 * THREADS; i++)
		WANT(right(i));
	cuFileBatchIODestroy(shared);
}

/* ---- Nothing to be had ---- */

/* One call of the interface with what it needs, done again when there is enough. */
static CUfileError_t attempt(int what, const char *file, const char *other)
{
	CUfileError_t e = {0};
	CUfileBatchHandle_t b;
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = -1};
	CUfileHandle_t of;
	CUfileIOEvents_t event;
	ssize_t n;
	switch (what) {
	case 0:
		if (!(e = cuFileBatchIOSetUp(&b, K)).err)
			cuFileBatchIODestroy(b);
		break;
	case 1: case 2:
		if ((d.handle.fd = what == 1 ? open(file, O_RDWR | O_DIRECT) : open(other, O_RDWR)) < 0)
			return (CUfileError_t){CU_FILE_GETNEWFD_FAILED, 0};
		if (!(e = cuFileHandleRegister(&of, &d)).err)
			cuFileHandleDeregister(of);
		close(d.handle.fd);
		break;
	case 3:
		if (!(e = cuFileBufRegister(m, sizeof m, 0)).err)
			OK(cuFileBufDeregister(m));
		break;
	case 4:
		if (!(e = cuFileStreamRegister((CUstream)(uintptr_t)4096, 15)).err)
			OK(cuFileStreamDeregister((CUstream)(uintptr_t)4096));
		break;
	case 5: case 6:
		n = cuFileRead(what == 5 ? h : plain, m, M, offset_of(0), 0);
		WANT(n < 0 || (n == M && right(0)));
		WANT(n >= 0 || memory_for == -1 || n == -CU_FILE_NOMEM_ERROR); /* -1: it is not memory that there is none of */
		e.err = n < 0 ? CU_FILE_IO_ERROR : CU_FILE_SUCCESS;
		break;
	case 7: case 8: {
		CUfileIOParams_t p[2] = {request(h, 0), request(h, 1)};
		unsigned k = 1, least = what == 7 ? 1 : 2, done = 0;
		if ((e = cuFileBatchIOSetUp(&b, 2)).err)
			break;
		if (!(e = cuFileBatchIOSubmit(b, least, p, 0)).err)
			for (; done < least; done += k, k = 1) {
				OK(cuFileBatchIOGetStatus(b, 1, &k, &event, NULL));
				WANT(k == 1 && (event.status == CUFILE_FAILED ? (ssize_t)event.ret < 0 : event.ret == M && right((size_t)event.cookie)));
				if (event.status == CUFILE_FAILED)
					e.err = CU_FILE_IO_ERROR;
			}
		cuFileBatchIODestroy(b);
		break;
	}
	}
	return e;
}

enum { WHATS = 9 };

/* Nothing has been used yet: the file has neither a connection nor a stage. */
static void anew(void)
{
	OK(cuFileDriverClose()); /* and so all handles */
	reg_both();
}

static void no_memory(const char *file, const char *other)
{
	for (int what = 0; what < WHATS; what++)
		for (once = 0; once < 2; once++) {
			int failures = 0;
			OK(attempt(what, file, other));
			OK(cuFileDriverClose());
			unsigned before = descriptors();
			long were = live;
			for (long k = 0;; k++) {
				if (what > 2) /* else this is the first use of the mount */
					reg_both();
				memset(m, 'z', sizeof m);
				memory_for = k;
				CUfileError_t e = attempt(what, file, other);
				int enough = memory_for >= 0 && (memory_for > 0 || !e.err);
				memory_for = -1;
				WANT(!e.err || e.err >= CUFILEOP_BASE_ERR);
				failures += e.err != 0;
				cuFileDriverClose(); /* all that was made ends with it, also what is kept for the next call */
				WANT(descriptors() == before && live == were);
				if (!e.err && enough)
					break;
				WANT(k < 1000);
			}
			WANT(failures > 0 || what == 6);
			reg_both();
			OK(attempt(what, file, other));
		}
}

static void no_threads_left(void)
{
	CUfileBatchHandle_t b;
	CUfileIOParams_t p[K];
	for (unsigned i = 0; i < K; i++)
		p[i] = request(i % 2 ? plain : h, i);
	memset(m, 'z', sizeof m);
	OK(cuFileBatchIOSetUp(&b, K));
	no_threads = 1;
	for (int i = 0; i < 3; i++)
		IS(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, cuFileBatchIOSubmit(b, K, p, 0));
	no_threads = 0;
	WANT(untouched());
	OK(cuFileBatchIOSubmit(b, K, p, 0));
	all_right(b, K);
	cuFileBatchIODestroy(b);
}

static void no_descriptors(const char *file, const char *other)
{
	enum { MOST = 100 };
	struct rlimit was, few;
	WANT(getrlimit(RLIMIT_NOFILE, &was) == 0);
	few = (struct rlimit){MOST, was.rlim_max};
	for (int what = 1; what < WHATS; what++)
		for (unsigned left = 0;; left++) {
			int all[MOST];
			unsigned n = 0;
			anew();
			WANT(setrlimit(RLIMIT_NOFILE, &few) == 0);
			while ((all[n] = dup(fd)) >= 0)
				n++;
			WANT(n > left);
			for (unsigned i = 0; i < left; i++)
				close(all[--n]);
			memset(m, 'z', sizeof m);
			CUfileError_t e = attempt(what, file, other);
			WANT(!e.err || e.err >= CUFILEOP_BASE_ERR);
			WANT(what > 2 || left != 1 || e.err == CU_FILE_GETNEWFD_FAILED); /* the program's own, and none for the library's */
			WANT(setrlimit(RLIMIT_NOFILE, &was) == 0);
			while (n > 0)
				close(all[--n]);
			OK(attempt(what, file, other));
			if (!e.err)
				break;
		}
}

/* The daemon is killed while a request is under way: it fails, and so do those behind it. Others are done. */
static void killed(void)
{
	CUfileIOEvents_t e[K];
	unsigned n = K;
	stop();
	CUfileBatchHandle_t b = submitted(K, 1);
	asleep();
	WANT(kill(served_by, SIGKILL) == 0);
	OK(cuFileBatchIOGetStatus(b, K, &n, e, NULL));
	WANT(n == K);
	for (unsigned i = 0; i < n; i++) {
		size_t k = (size_t)e[i].cookie;
		WANT(k % 2 ? e[i].status == CUFILE_COMPLETE && e[i].ret == M && right(k) : e[i].status == CUFILE_FAILED && (ssize_t)e[i].ret == -ENOTCONN);
	}
	for (int i = 0; i < 3; i++) {
		CUfileIOParams_t p = request(h, 0);
		n = 1;
		OK(cuFileBatchIOSubmit(b, 1, &p, 0));
		OK(cuFileBatchIOGetStatus(b, 1, &n, e, NULL));
		WANT(n == 1 && e[0].status == CUFILE_FAILED && (ssize_t)e[0].ret == -ENOTCONN);
	}
	OK(cuFileBatchIOCancel(b));
	cuFileBatchIODestroy(b);
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = dup(fd)};
	CUfileHandle_t late;
	IS(CU_FILE_DRIVER_NOT_INITIALIZED, cuFileHandleRegister(&late, &d));
	/* With the last handle the connection ends, though the driver is open. */
	unsigned before = descriptors();
	cuFileHandleDeregister(h);
	WANT(descriptors() < before - 1);
}

int main(int argc, char **argv)
{
	WANT(argc == 4 && (served_by = atoi(argv[3])) > 0);
	fd = open(argv[1], O_RDWR);
	plain_fd = open(argv[2], O_RDWR);
	reg_both();
	alone(argv[1], argv[2]);
	limits();
	alarm(300);
	left_to_thread();
	ended();
	forked();
	unmapped();
	threads();
	no_threads_left();
	no_memory(argv[1], argv[2]);
	no_descriptors(argv[1], argv[2]);
	killed();
	OK(cuFileDriverClose());
	puts("ok");
	return 0;
}
