/* Shared by the files of the library. */
#ifndef LANEFS_INTERNAL_H
#define LANEFS_INTERNAL_H

#include "lanefs.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Has f called in a child of a fork. */
#define IN_CHILD(f) \
	__attribute__((constructor)) static void watch_##f(void) { pthread_atfork(NULL, NULL, f); } \
	static void f(void)

/* A lock of the process's, which is free in its child: what another thread of the parent held, nobody there would give back. */
#define PROCESS_LOCK(name) \
	static pthread_mutex_t name; \
	static void free_##name(void) { pthread_mutex_init(&name, NULL); } \
	IN_CHILD(free_##name); \
	static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER

/*
 * In a function: no pthread_cancel ends its thread before it returns. Who waits in there, or calls the system, has locks, requests that are under way, or a stage, which
 * a thread that ends would keep from all others.
 */
#define UNCANCELLED int cancellable_ __attribute__((cleanup(lanefs_cancellable), unused)) = lanefs_uncancelled()
static inline int lanefs_uncancelled(void)
{
	int was;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
	return was;
}
static inline void lanefs_cancellable(int *was) { pthread_setcancelstate(*was, NULL); }

/* A call of the system's, again if a signal's handler has interrupted it. */
#define AGAIN(call) ({ __typeof__(call) n_; do n_ = (call); while (n_ < 0 && errno == EINTR); n_; })

/* getpid(2), without a system call. */
HIDDEN pid_t lanefs_self(void);

/* Starts a thread of the library's, which gets none of the program's signals. As pthread_create. */
HIDDEN int lanefs_thread(pthread_t *t, void *(*f)(void *), void *arg);

/* The time, in ns (CLOCK_MONOTONIC). */
static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#define SIZE(type, n) _Static_assert(sizeof(type) == (n), #type)

/* Types of messages. */
enum { HELLO = 1, MAP, RELEASE, COMMIT, PIN, REGISTER, OPEN, RING, MOVED, USE, REPLY = 0x8000 };

enum { NO_FD = -2 }; /* no descriptor to pass; -1 is an invalid descriptor of the caller */

HIDDEN extern const char lanefs_gone_text[], lanefs_no_memory_text[];

/* A memfd that can be sealed, and not be executed; -1: errno says why there is none. */
HIDDEN int lanefs_memfd(const char *name);

/* Makes a call that may go beyond a limit of a file's size fail with EFBIG, where SIGXFSZ would end the program (limit.c). errno is 0 before the call. */
struct limit { sigset_t before; int had, blocked; };
HIDDEN void lanefs_limit_begin(struct limit *l);
HIDDEN void lanefs_limit_end(struct limit *l);

/* ftruncate(2), write(2) and pwrite(2) in that way. */
HIDDEN int lanefs_size(int fd, uint64_t size);
HIDDEN ssize_t lanefs_put(int fd, const void *p, size_t n);
HIDDEN ssize_t lanefs_put_at(int fd, const void *p, size_t n, off_t offset);

/* Stores the error text of a failed call (NULL: that of errno), sets errno, and returns -1. */
HIDDEN int lanefs_fail(int code, const char *text);

/* How the thread's last call failed. gpu: the GPU's library did, not a file or the daemon. */
struct failure { int code, gpu; char text[256]; };
HIDDEN void lanefs_failed(struct failure *f);

/* Fails again, as f says. */
HIDDEN int lanefs_fail_as(const struct failure *f);

/* A descriptor of the library's own; fd -1: none. */
struct own { int fd; dev_t dev; ino_t ino; };
HIDDEN struct own lanefs_own(int fd);

/* Whether the number is still that descriptor's. */
HIDDEN int lanefs_is_own(const struct own *d);
HIDDEN void lanefs_close_own(struct own *d);

/* Notes a descriptor that the program gets to see, with the memory of a handle, and closes it, if the number is still its own and the program has it still as fd. Handle 0: forgets all of the session's. */
HIDDEN int lanefs_give(const lanefs *s, uint32_t handle, int fd);
HIDDEN void lanefs_take_back(const lanefs *s, uint32_t handle, int fd);

/* -1, ECONNRESET: the program has closed descriptors of a session. */
HIDDEN int lanefs_lost(void);

/* Whether n bytes at p, which no GPU knows, are memory that may be written to, or only read. It takes 0.2 us for each page, and 0.7 at least. Where the kernel cannot be asked the answer is yes. */
HIDDEN int lanefs_there(const void *p, size_t n, int write);

/* Copies by the kernel between memory of the library's and memory of the program's, which may not be there (hostcopy.c). How many bytes at most go so, and not by loads and stores; how many places of the program's memory at a time. */
enum { HOST_COPY = 16 << 10, HOST_COPIES = 64 };

/* Copies that are collected. process is the calling process, out says that the program's memory is written to. */
struct host_copies {
	pid_t process;
	int out;
	unsigned n, m;
	size_t bytes;
	struct iovec program[HOST_COPIES], own[HOST_COPIES];
};

static inline void lanefs_host_copy_begin(struct host_copies *c, pid_t process, int out)
{
	c->process = process;
	c->out = out;
	c->n = c->m = 0;
	c->bytes = 0;
}

/* Adds a copy of n bytes, and makes all when there are HOST_COPIES; end makes the rest. Errors: EFAULT, the program's memory is not there, or may not be used so. A part may have been copied. */
HIDDEN int lanefs_host_copy_add(struct host_copies *c, void *program, void *own, size_t n);
HIDDEN int lanefs_host_copy_end(struct host_copies *c);

/* One copy, to the program's memory (out) or from it. Errors: EFAULT. */
HIDDEN int lanefs_host_copy(int out, void *program, void *own, size_t n);

/* Makes n bytes of the program's memory zero, of any number. Errors: EFAULT. */
HIDDEN int lanefs_host_zero(void *program, size_t n);

/* What the program asks of waits: lanefs_on_wait. f is NULL if it asks nothing. */
struct asking { int (*f)(void *); void *arg; };
HIDDEN const struct asking *lanefs_asking(const lanefs *s);

/* -1, EINTR: the program ends the wait. */
HIDDEN int lanefs_asked(const struct asking *a);

/* A call of a session's socket, which ends with EAGAIN after a slice, again until the caller's function ends it: with EINTR. */
#define TOLD(a, call) ({ __typeof__(call) n_; do n_ = (call); while (n_ < 0 && (errno == EINTR || (errno == EAGAIN && (a)->f)) && !lanefs_asked(a)); n_; })

/* As lanefs_connect, to a daemon's socket: f and arg as with lanefs_on_wait, from the beginning. device: whose memory the session gives, of a mount with several; NULL: as lanefs_connect. */
HIDDEN lanefs *lanefs_connect_asking(const char *path, const char *device, int (*f)(void *), void *arg);

/* The milliseconds of a slice of a wait; -1, for ever, if the program asks nothing. */
HIDDEN int lanefs_slice(const struct asking *a);

/* A lock that may be held for long; zeroed: nobody holds it. */
struct guard { _Atomic uint32_t taken; _Atomic(pthread_t) holder; /* 0: none */ };

/* Errors: EINTR; EDEADLK, the thread holds it: what it asked in a wait calls again, or a handler of a signal does. Without asking no EINTR. */
HIDDEN int lanefs_lock(const struct asking *a, struct guard *g);
HIDDEN void lanefs_unlock(struct guard *g);

/* Initializes a condition for lanefs_await. */
HIDDEN void lanefs_cond(pthread_cond_t *c);

/* Waits for a condition, for a slice at most. Slices go by CLOCK_MONOTONIC: a wait would last for as long as another clock is set back in the middle of it. */
HIDDEN int lanefs_await(const struct asking *a, pthread_cond_t *c, pthread_mutex_t *m);

/* Waits until fd is readable, or has ended. */
HIDDEN int lanefs_readable(const struct asking *a, int fd);

/* Makes one request. want is how many rights its reply has; they go to fds. */
HIDDEN int lanefs_call(lanefs *s, uint16_t type, const void *body, size_t n, int pass, void *reply, size_t reply_size, int *fds, int want);

/* How many requests have no completion. */
HIDDEN unsigned lanefs_ring_in_flight(const lanefs_ring *r);

/* Waits for d or for the end of the daemon. Returns 1, or 0 after timeout milliseconds. */
HIDDEN int lanefs_wait_for(const lanefs *s, const struct own *d, int timeout);

/* Notes that the program has the memory of a handle at an address, and ends that: of all handles of the session if handle is 0. */
HIDDEN int lanefs_region_add(lanefs *s, const void *at, uint64_t size, uint32_t handle, uint64_t offset);
HIDDEN void lanefs_region_end(lanefs *s, uint32_t handle);

/* As lanefs_latest, but for a daemon that has ended: no system call. */
HIDDEN uint64_t lanefs_noticed(const lanefs *s, const struct lanefs_buffer *b);

/* Whether the daemon has ended, or the program has closed the connection to it. */
HIDDEN int lanefs_gone(const lanefs *s);

/* Whether the session still has its connection. */
HIDDEN int lanefs_connected(const lanefs *s);

/* The PCI address, or of a MIG instance the UUID, of the GPU that is current for the thread, or of the process's first. ENOENT: its library is not here. */
HIDDEN int lanefs_gpu_current(int hip, char *device, int size);

/* Waits for the program's work on the device of a buffer that is mapped there. */
HIDDEN int lanefs_gpu_wait(const struct lanefs_buffer *b);

/* Waits likewise, and unmaps what lanefs_gpu_map mapped. -1: it could not be waited for, kernels may still use the memory, and it stays mapped. */
HIDDEN int lanefs_gpu_unmap(struct lanefs_buffer *b);

/*
 * Whether an errno of the kernel's, for a file of a mount, says that the daemon has gone: ENOTCONN after its end, ECONNABORTED of a call that waited for it,
 * ECANCELED of one that was on its way to it by io_uring.
 */
static inline int lanefs_ended(int code) { return code == ENOTCONN || code == ECONNABORTED || code == ECANCELED; }

#endif
