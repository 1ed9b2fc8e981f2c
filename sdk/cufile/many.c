/*
 * Many moves of one file in one direction, as one batch of the SDK:
 *
 *  1. Each is checked by itself, and a read is cut at the file's end. The driver is asked once about an allocation, the mount once for the size.  begin
 *  2. Larger reads of what is in shared memory are copied from there, and waited for together.                                                   map_many
 *  3. The rest goes together, those first that are in memory of the same kind as the first of them, in the memory's order: what follows          together
 *     one another there lies so in the stage, too, and is one copy. Small reads go by the daemon or by the page cache, whichever was quicker.
 *  4. Where such a batch fails as a whole, each goes alone, to find out which of them fails.                                                     alone
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <stdlib.h>

void many_free(struct many *a)
{
	free(a->m);
	free(a->result);
	free(a->open);
	free(a->same);
	free(a->window);
	free(a->piece);
	free(a->got);
	free(a->of);
}

int many_new(struct many *a, size_t n)
{
	*a = (struct many){.m = malloc(n * sizeof *a->m), .result = malloc(n * sizeof *a->result), .open = malloc(n), .same = malloc(n), .window = malloc(n * sizeof *a->window),
		.piece = malloc(n * sizeof *a->piece), .got = malloc(n * sizeof *a->got), .of = malloc(n * sizeof *a->of)};
	if (a->m && a->result && a->open && a->same && a->window && a->piece && a->got && a->of)
		return 0;
	many_free(a);
	return CU_FILE_NOMEM_ERROR;
}

static ssize_t failed(ssize_t n) { return n != -1 ? n : lanefs_ended(errno) ? -ENOTCONN : -errno; }

void many_done(struct many *a, size_t i, ssize_t result)
{
	a->result[i] = result;
	a->open[i] = 0;
	a->left--;
}

static void begin(struct many *a)
{
	off_t end = -1;
	memory_asked(1);
	for (size_t i = 0; i < a->n; i++) {
		struct move *m = a->m[i];
		m->road = ROAD_STAGE;
		a->open[i] = 1;
		ssize_t n = failed(move_check(m, &end));
		if (n || !m->n)
			many_done(a, i, n);
	}
	memory_asked(0);
	if (a->m[0]->read)
		map_many(a);
}

static int alike(const struct target *a, const struct target *b) { return a->gpu == b->gpu && a->kernels == b->kernels && a->device == b->device; }

/* What a piece's error is to the caller: the file's, not the GPU's. */
static ssize_t piece_failed(int64_t got) { return failed(lane_failed(&(struct failure){.code = (int)-got})); }

static void alone(struct many *a, size_t k)
{
	for (size_t j = 0; j < k; j++) {
		struct move *m = a->m[a->of[j]];
		ssize_t n = lane_move(m);
		many_done(a, a->of[j], failed(n >= 0 && move_sync(m) ? -1 : n));
	}
}

/* Sorts by the place in memory (Shell's way, which needs no room, and is quick where there is some order). */
static void sort(const struct many *a, size_t k)
{
	for (size_t gap = k / 2; gap; gap /= 2)
		for (size_t i = gap; i < k; i++) {
			size_t one = a->of[i], j = i;
			for (; j >= gap && a->m[a->of[j - gap]]->memory > a->m[one]->memory; j -= gap)
				a->of[j] = a->of[j - gap];
			a->of[j] = one;
		}
}

/* The next that go together: how many. */
static size_t take(struct many *a)
{
	size_t k = 0;
	for (size_t i = 0; i < a->n; i++)
		if (a->open[i] && (!k || alike(&a->m[i]->target, &a->m[a->of[0]]->target)))
			a->of[k++] = i;
	sort(a, k);
	char *base = a->m[a->of[0]]->memory;
	const struct target *before = NULL;
	for (size_t j = 0; j < k; j++) {
		struct move *m = a->m[a->of[j]];
		a->piece[j] = (struct lanefs_piece){(uint64_t)m->offset, (uint64_t)(m->memory - base), m->n};
		a->same[j] = before && before->whole && before->id && before->id == m->target.id;
		before = &m->target;
	}
	return k;
}

/* How k reads go: the largest says. */
static void choose_way(const struct many *a, size_t k, struct chosen *c)
{
	const struct move *largest = a->m[a->of[0]];
	for (size_t j = 1; j < k; j++)
		if (a->m[a->of[j]]->n > largest->n)
			largest = a->m[a->of[j]];
	choose(largest, k, c);
}

static void counted(size_t k)
{
	if (k < 2)
		return;
	count_batch(k);
	stats_together();
}

/* Reads by the page cache into memory of the CPU's need no stage. */
static void by_cache(struct many *a, size_t k)
{
	for (size_t j = 0; j < k; j++) {
		struct move *m = a->m[a->of[j]];
		m->road = ROAD_CACHE;
		many_done(a, a->of[j], failed(move_failed(m, plain_move(m))));
	}
	counted(k);
}

static void together(struct many *a)
{
	struct chosen c;
	size_t k = take(a);
	const struct move *first = a->m[a->of[0]];
	choose_way(a, k, &c);
	int cache = c.way == BY_CACHE, whole = 1;
	if (cache && !first->target.gpu) {
		by_cache(a, k);
		chose(&c, 1);
		return;
	}
	ssize_t n = lane_batch(first, !cache ? -1 : first->file->buffered >= 0 ? first->file->buffered : first->file->fd, a->m[a->of[0]]->memory, a->piece, a->same, k, a->got);
	if (n < 0 && !(n == -1 && errno == ENOTCONN)) {
		alone(a, k);
		return;
	}
	ssize_t all = n < 0 || (cache && mount_gone(first->file->mount)) ? -ENOTCONN : failed(move_sync(first));
	for (size_t j = 0; j < k; j++) {
		struct move *m = a->m[a->of[j]];
		m->road = cache ? ROAD_CACHE : ROAD_STAGE;
		whole &= a->got[j] == (int64_t)m->n;
		many_done(a, a->of[j], all ? all : a->got[j] < 0 ? piece_failed(a->got[j]) : (ssize_t)a->got[j]);
	}
	chose(&c, whole && !all);
	counted(k);
}

void move_many(struct many *a, size_t n)
{
	uint64_t start = now_us(), bytes[ROADS] = {0};
	int gone = file_lost_any(a->m[0]->file) || mount_gone(a->m[0]->file->mount), read = a->m[0]->read;
	a->n = a->left = n;
	if (!gone)
		begin(a);
	while (!gone && a->left)
		together(a);
	uint64_t us = now_us() - start;
	for (size_t i = 0; i < n; i++) {
		if (gone)
			a->result[i] = -ENOTCONN;
		if (a->result[i] > 0)
			bytes[a->m[i]->road] += (uint64_t)a->result[i];
		stats_move(a->m[i], a->result[i], us);
	}
	for (enum road r = 0; r < ROADS; r++)
		if (bytes[r])
			count_bytes(r, read, bytes[r]);
}
