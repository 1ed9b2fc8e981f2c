/* Submission and completion rings in memory shared with the daemon: docs/SPEC.md, "Rings". */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct ring_request { uint32_t entries, zero; };
struct ring_reply { uint32_t handle, entries, completions, zero; uint64_t size; };

SIZE(struct ring_request, 8); SIZE(struct ring_reply, 24);
SIZE(struct lanefs_request, 64); SIZE(struct lanefs_completion, 32);

/* Offsets of the rings' words, in 32-bit words; entries begin at ENTRIES bytes. */
enum { SQ_TAIL = 0, SQ_HEAD = 16, CQ_TAIL = 32, CQ_HEAD = 48, DAEMON_SLEEPS = 64, CLIENT_SLEEPS = 80, ENTRIES = 4096 };

struct lanefs_ring {
	lanefs *s;
	uint32_t handle, entries, completions, in_flight;
	struct own submit, complete;
	size_t size;
	char *memory;
};

static _Atomic uint32_t *word(lanefs_ring *r, int i) { return (_Atomic uint32_t *)r->memory + i; }

lanefs_ring *lanefs_ring_new(lanefs *s, unsigned entries)
{
	struct ring_request q = {.entries = entries};
	struct ring_reply a;
	int fds[3];
	lanefs_ring *r = calloc(1, sizeof *r);
	if (!r) {
		lanefs_fail(ENOMEM, NULL);
		return NULL;
	}
	if (lanefs_call(s, RING, &q, sizeof q, NO_FD, &a, sizeof a, fds, 3)) {
		free(r);
		return NULL;
	}
	*r = (lanefs_ring){.s = s, .handle = a.handle, .entries = a.entries, .completions = a.completions, .submit = lanefs_own(fds[1]), .complete = lanefs_own(fds[2]), .size = a.size};
	void *p = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	int saved = errno;
	close(fds[0]);
	if (p == MAP_FAILED) {
		r->memory = NULL;
		lanefs_ring_free(r);
		lanefs_fail(saved, NULL);
		return NULL;
	}
	r->memory = p;
	return r;
}

static void wake(lanefs_ring *r)
{
	uint64_t one = 1;
	/* The exchange is sequentially consistent, as is the daemon's, so it comes after the stores before it. */
	if (!atomic_exchange(word(r, DAEMON_SLEEPS), 0) || !lanefs_is_own(&r->submit) || !lanefs_connected(r->s))
		return; /* who waits for the requests finds that out, too */
	if (write(r->submit.fd, &one, sizeof one) < 0)
		return; /* a full eventfd is signalled already */
}

int lanefs_ring_submit(lanefs_ring *r, const struct lanefs_request *q, unsigned n)
{
	uint32_t tail = atomic_load(word(r, SQ_TAIL));
	unsigned room = r->entries - r->in_flight; /* so there is room for the completions, too */
	if (n > room)
		n = room;
	struct lanefs_request *ring = (struct lanefs_request *)(r->memory + ENTRIES);
	for (unsigned i = 0; i < n; i++)
		ring[(tail + i) & (r->entries - 1)] = q[i];
	atomic_store(word(r, SQ_TAIL), tail + n); /* after the entries */
	r->in_flight += n;
	if (n)
		wake(r);
	return (int)n;
}

static unsigned take(lanefs_ring *r, struct lanefs_completion *c, unsigned n)
{
	uint32_t head = atomic_load(word(r, CQ_HEAD)), have = atomic_load(word(r, CQ_TAIL)) - head;
	const struct lanefs_completion *ring = (const void *)(r->memory + ENTRIES + (size_t)r->entries * sizeof(struct lanefs_request));
	if (n > have)
		n = have;
	if (!n)
		return 0; /* a store would take the line from the daemon at each poll */
	for (unsigned i = 0; i < n; i++)
		c[i] = ring[(head + i) & (r->completions - 1)];
	atomic_store(word(r, CQ_HEAD), head + n);
	r->in_flight -= n;
	return n;
}

/* How long lanefs_ring_reap polls for completions before it sleeps, in ns: longer than a read of a few blocks and a wake-up take. */
enum { SPIN = 50000 };

/* take, polling for a while. */
static unsigned spin(lanefs_ring *r, struct lanefs_completion *c, unsigned n)
{
	uint64_t end = now_ns() + SPIN;
	unsigned got = 0;
	for (int i = 1; !got && (i % 16 || now_ns() < end); i++)
		got = take(r, c, n);
	return got;
}

int lanefs_ring_reap(lanefs_ring *r, struct lanefs_completion *c, unsigned n, int timeout)
{
	for (;;) {
		unsigned got = take(r, c, n);
		if (!got && n && timeout && r->in_flight)
			got = spin(r, c, n);
		if (got || !n)
			return (int)got;
		atomic_store(word(r, CLIENT_SLEEPS), 1);
		int ended = lanefs_gone(r->s); /* before the last look */
		if ((got = take(r, c, n)))
			return (int)got;
		if (ended)
			return lanefs_fail(ECONNRESET, lanefs_gone_text);
		int ready = lanefs_wait_for(r->s, &r->complete, timeout);
		if (ready < 0)
			return -1;
		if (!ready)
			return (int)take(r, c, n);
	}
}

unsigned lanefs_ring_in_flight(const lanefs_ring *r) { return r->in_flight; }

void lanefs_ring_free(lanefs_ring *r)
{
	if (!r)
		return;
	lanefs_release(r->s, r->handle);
	if (r->memory)
		munmap(r->memory, r->size);
	if (lanefs_connected(r->s)) {
		lanefs_close_own(&r->submit);
		lanefs_close_own(&r->complete);
	}
	free(r);
}
