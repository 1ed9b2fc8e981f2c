/*
 * Small copies to and within a GPU by a kernel that stays (kernels/copier.h): the CPU writes down where to, where from and how much, the GPU finds it, copies, and says
 * so, and no call of the driver is made for any of it. Such calls take longer than the copy, and threads wait for one another in them.
 *
 * A kernel that stays is in the way of who waits for all of the GPU's work, and takes room that other kernels may need. So there is one only while a thread does nothing but
 * read: it is launched when DENSE copies followed one another, each after NEAR at most; it leaves when none has come for IDLE, and after LIFE in any case. Until it is there,
 * and while it is not, copies go the other ways (device.c). So they do for PAUSE and longer where BAD in a row were no good: other work fills the GPU, another process takes
 * turns with this one on it, launches are waited for (CUDA_LAUNCH_BLOCKING). One alone may have met a call of another thread that holds up the GPU, as those do that pin memory.
 *
 * Nothing is copied late. The kernel says that it has left when it has looked for the last time; then the copy that it did not take is the caller's to make, and a later launch
 * is told not to take it. LANEFS_CUFILE_COPIER=0 does without, =now has one launched by the first copy, and waits for it longer before the driver is asked: for tests.
 */
#define _GNU_SOURCE
#include "idle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DENSE = 16, THREADS = 256, QUAD = 16, PAGE = 4096, PORTABLE_MAPPED = 3 };
enum { NEAR = 8 * 1000, IDLE = 10 * 1000, LIFE = 200 * 1000, HERE = 50 * 1000, AWAY = 200 * 1000, SOON = 100 * 1000 }; /* ns */
enum { PER_BYTE = 8 /* bytes a ns: pread of a large piece takes so much longer */, BAD = 4, DOUBLED = 6 };
static const uint64_t PAUSE = 1000 * 1000 * 1000; /* ns; each time twice as long, DOUBLED times */

/* What the kernel and this library share: copier_seat. The numbers of pieces are never 0. */
enum { ADDRESS = 44, QUADS = 12, ALL = 48, NUMBERS = 1 << 20 };
struct seat {
	_Atomic uint64_t to, what, unused[6];
	_Atomic uint32_t done, here, leaving, left, away, unused_too[11];
};
_Static_assert(sizeof(struct seat) == 128, "the kernel lays it out, too");

/* A thread's. */
struct copier {
	struct item it;
	void *stream;
	struct seat *seat;
	uint64_t device;          /* the seat, for the GPU */
	uint32_t launch, number;  /* the last ones; 0: none */
	uint64_t launched;        /* when */
	unsigned copies, late;    /* of that launch; late: it was not there within HERE */
	unsigned bad;             /* launches in a row that were */
};

static void end(struct item *it)
{
	struct copier *c = (struct copier *)it;
	if (c->seat)
		munmap(c->seat, PAGE);
	free(c);
}

IDLE(copiers, end);
static _Thread_local unsigned dense;     /* copies that followed one another, about so */
static _Thread_local uint64_t ended;     /* when the last one did */
static int off, at_once;

__attribute__((constructor)) static void begin_copier(void)
{
	const char *e = getenv("LANEFS_CUFILE_COPIER");
	off = e && strcmp(e, "0") == 0;
	at_once = e && strcmp(e, "now") == 0;
}

static struct copier *own(void) { return (struct copier *)idle_own(&copiers); }

/* The GPU is entered. */
static struct copier *new_copier(struct gpu *g)
{
	struct copier *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->it.gpu = g;
	c->seat = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (c->seat == MAP_FAILED)
		c->seat = NULL;
	else
		madvise(c->seat, PAGE, MADV_DONTFORK); /* its page must stay this process's */
	if (c->seat && (c->stream = stream_new(g)) && CALL(g, "MemHostRegister_v2", (void *, size_t, unsigned), c->seat, PAGE, PORTABLE_MAPPED) == 0) {
		if (CALL(g, "MemHostGetDevicePointer_v2", (uint64_t *, void *, unsigned), &c->device, c->seat, 0) == 0)
			return c;
		CALL(g, "MemHostUnregister", (void *), c->seat);
	}
	if (c->stream)
		stream_free(g, c->stream);
	end(&c->it);
	return NULL;
}

/* The thread's, made if need be. */
static struct copier *mine(struct gpu *g)
{
	struct copier *c = own();
	if (c && c->it.gpu == g)
		return c;
	c = (struct copier *)idle_take(&copiers, g, 0);
	if (!c && !(c = new_copier(g)))
		return NULL;
	if (idle_keep(&copiers, &c->it)) {
		idle_put(&copiers, &c->it);
		return NULL;
	}
	return c;
}

static uint32_t of(const _Atomic uint32_t *word) { return atomic_load_explicit(word, memory_order_acquire); }
static int has_left(const struct copier *c) { return of(&c->seat->left) == c->launch; }
static int leaves(const struct copier *c) { return of(&c->seat->leaving) == c->launch || has_left(c); }
static int is_here(const struct copier *c) { return c->launch && of(&c->seat->here) == c->launch && !leaves(c); }
static uint64_t from_when(struct gpu *g) { return atomic_load_explicit(&g->copier_from, memory_order_relaxed); }

/* No launches for a while. */
static void no_good(struct gpu *g, uint64_t now)
{
	unsigned n = atomic_fetch_add_explicit(&g->copier_pauses, 1, memory_order_relaxed);
	atomic_store_explicit(&g->copier_from, now + (PAUSE << (n < DOUBLED ? n : DOUBLED)), memory_order_relaxed);
}

/* What the last launch has shown, which leaves or has left. */
static void learn(struct copier *c, uint64_t now)
{
	c->bad = c->late || !c->copies || of(&c->seat->away) > AWAY ? c->bad + 1 : 0;
	if (c->bad == BAD) {
		c->bad = 0;
		no_good(c->it.gpu, now);
	} else if (!c->bad && atomic_load_explicit(&c->it.gpu->copier_pauses, memory_order_relaxed)) {
		atomic_store_explicit(&c->it.gpu->copier_pauses, 0, memory_order_relaxed);
	}
}

/* Launches the kernel. If the last one is about to leave this one comes after it. */
static void launch(struct copier *c, size_t n, uint64_t now)
{
	void *f = lanefs_gpu_copier(c->it.gpu);
	uint64_t number = c->number, idle_for = IDLE + n / PER_BYTE, life = LIFE, next = c->launch + 1 ? c->launch + 1 : 1;
	void *args[] = {&c->device, &next, &number, &idle_for, &life};
	if (!f || CALL(c->it.gpu, "LaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
		f, 1, 1, 1, THREADS, 1, 1, 0, c->stream, args, NULL)) {
		no_good(c->it.gpu, now);
		return;
	}
	c->launch = (uint32_t)next;
	c->launched = now_ns();
	c->copies = c->late = 0;
}

/* Has a kernel launched, if that may pay for the next copies. */
static void may_launch(struct gpu *g, size_t n, uint64_t now)
{
	struct copier *c;
	if ((dense < DENSE && !at_once) || now < from_when(g) || now < atomic_load_explicit(&g->busy, memory_order_relaxed) || !(c = mine(g)))
		return;
	if (c->launch && !leaves(c)) { /* it has not begun yet */
		c->late |= now - c->launched > HERE && of(&c->seat->here) != c->launch;
		return;
	}
	if (c->launched)
		learn(c, now);
	c->launched = 0;
	if (now >= from_when(g))
		launch(c, n, now);
}

static int is_there(const struct copier *c, struct gpu *g) { return c && c->it.gpu == g && is_here(c); }

int copier_there(struct gpu *g) { return is_there(own(), g); }

struct copier *copier_begin(struct gpu *g, void *to, uint64_t from, size_t n)
{
	uint64_t at = (uint64_t)(uintptr_t)to;
	if (off || g->hip || n == 0 || n > SMALL || ((at | from | n) & (QUAD - 1)) || (at | from) >> ALL)
		return NULL;
	uint64_t now = now_ns();
	dense = now - ended < NEAR + n / PER_BYTE ? dense + 1 : dense / 2;
	struct copier *c = own();
	if (!is_there(c, g)) {
		may_launch(g, n, now);
		return NULL;
	}
	if (!from)
		return NULL;
	if (++c->number == NUMBERS)
		c->number = 1;
	atomic_store_explicit(&c->seat->to, (uint64_t)c->number << ADDRESS | at / QUAD, memory_order_relaxed);
	atomic_store_explicit(&c->seat->what, (uint64_t)(uint8_t)c->number << (ADDRESS + QUADS) | (uint64_t)(n / QUAD - 1) << ADDRESS | from / QUAD, memory_order_release);
	c->copies++;
	return c;
}

void copier_ended(void) { ended = now_ns(); }

static int copied(const struct copier *c) { return of(&c->seat->done) == c->number; }

/* The piece is not copied, and no kernel is there that could. */
static int lost(struct copier *c)
{
	atomic_store_explicit(&c->seat->done, c->number, memory_order_relaxed);
	return -1;
}

int copier_end(struct copier *c)
{
	enum { LOOKS = 64 };
	uint64_t until = 0;
	for (unsigned i = 1; !copied(c); i++) {
		if (has_left(c) && !copied(c))
			return lost(c);
		relax();
		if (i % LOOKS)
			continue;
		uint64_t now = now_ns();
		if (!until)
			until = now + (at_once ? PAUSE : SOON);
		if (now < until)
			continue;
		/* Another process has the GPU, or the context is lost, which the driver knows. The kernel leaves soon after this piece. */
		int rc = CALL(c->it.gpu, "StreamSynchronize", (void *), c->stream);
		if (rc)
			return rc;
		if (!copied(c))
			return lost(c);
	}
	return 0;
}
