/*
 * Small reads of LaneFS's files. Through the kernel's page cache (pread, and a copy where the memory is a GPU's) one costs a microsecond when
 * the pages are there, and more than the lanes when they are not; what a copy within a GPU, a ring or a FUSE request costs differs from machine to
 * machine. So each file notes how long both ways have taken, by size and kind of memory, and takes the one that was quicker. A call now and then
 * tries the other: so seldom that it costs a COSTS-th part more. If both are about as quick, many calls in a row try it: what it takes when all threads go
 * that way one call does not show, which waits for the others' locks. A thread that waits for a CPU, or a way that is set up when it is used for the first
 * time, takes a thousand times as long as a read: such samples must not count for long. LANEFS_CUFILE_SMALL=cache or lanes leaves no choice.
 */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { AGAIN = 32, SELDOM = 8192, COSTS = 64, TOGETHER = 64, LEARN = 16, FEW = 8 * WAYS };

static int forced = -1;

__attribute__((constructor)) static void begin_choose(void)
{
	const char *e = getenv("LANEFS_CUFILE_SMALL");
	if (e && strcmp(e, "cache") == 0)
		forced = BY_CACHE;
	if (e && strcmp(e, "lanes") == 0)
		forced = BY_LANES;
}

/* Up to 4 KiB, 16 KiB, 64 KiB. */
static struct choice *choice_of(const struct move *m, size_t n)
{
	int size = m->n <= 4096 ? 0 : m->n <= 16384 ? 1 : 2;
	return &m->file->small[n > 1][m->target.gpu != NULL][size];
}

/* After how many calls the other way is tried again. */
static uint32_t again(uint32_t mine, uint32_t other)
{
	uint32_t every = AGAIN;
	while (every < SELDOM && (uint64_t)every * mine < (uint64_t)COSTS * (other - mine))
		every *= 2;
	return every;
}

void choose(const struct move *m, size_t many, struct chosen *c)
{
	c->of = NULL;
	c->n = (uint32_t)many;
	c->way = BY_LANES;
	if (!m->read || m->n == 0 || m->n > (many > 1 ? SMALL_IN_BATCH : SMALL))
		return;
	if (forced >= 0) {
		c->way = (enum way)forced;
		return;
	}
	c->of = choice_of(m, many);
	uint32_t n = __atomic_fetch_add(&c->of->calls, 1, __ATOMIC_RELAXED);
	uint32_t lanes = __atomic_load_n(&c->of->ns[BY_LANES], __ATOMIC_RELAXED), cache = __atomic_load_n(&c->of->ns[BY_CACHE], __ATOMIC_RELAXED);
	uint32_t mine = cache <= lanes ? cache : lanes, other = cache <= lanes ? lanes : cache, together = other - mine < mine / 2 ? TOGETHER : 1;
	uint32_t at = n % (again(mine, other) * together);
	c->way = cache <= lanes ? BY_CACHE : BY_LANES;
	if (n < FEW) { /* by turns */
		c->way = (enum way)(n % WAYS);
	} else if (at == 0) {
		c->way = (enum way)(WAYS - 1 - c->way);
		__atomic_store_n(&c->of->tried, c->way, __ATOMIC_RELAXED);
	} else if (at < together) { /* even if that is the quicker one by now */
		c->way = __atomic_load_n(&c->of->tried, __ATOMIC_RELAXED);
	}
	c->start = (uint32_t)now_ns();
}

/*
 * What a way takes, after one sample more. One that is far below says that the mean is of another time, or of a first call; one that is far above says
 * little. Others count alike: eight threads that wait for one another's lock take 9 or 30 us, and who follows the short ones chooses the slower way.
 */
static uint32_t learn(uint32_t mean, uint32_t ns)
{
	if (ns < mean / 4 || !mean)
		return ns;
	if (ns / 2 > mean)
		ns = 2 * mean;
	return mean + (uint32_t)(((int64_t)ns - mean) / LEARN);
}

void choose_again(struct file *f)
{
	struct choice *all = &f->small[0][0][0];
	for (size_t i = 0; i < sizeof f->small / sizeof *all; i++)
		__atomic_store_n(&all[i].ns[BY_LANES], 0, __ATOMIC_RELAXED);
}

void chose(const struct chosen *c, int whole)
{
	if (!c->of || !whole)
		return;
	uint32_t ns = ((uint32_t)now_ns() - c->start) / c->n, *at = &c->of->ns[c->way], mean = __atomic_load_n(at, __ATOMIC_RELAXED);
	if (__atomic_load_n(&c->of->calls, __ATOMIC_RELAXED) <= FEW) /* the shortest: what is set up by the first calls would be in the mean for thousands of them */
		mean = !mean || ns < mean ? ns : mean;
	else
		mean = learn(mean, ns);
	/* A sample that another thread's replaces is no loss. */
	__atomic_store_n(at, mean, __ATOMIC_RELAXED);
}
