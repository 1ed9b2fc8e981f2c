/*
 * Many moves of one file in one direction, as one batch of the SDK:
 *
 *  1. Each is checked by itself, and a read is cut at the file's end.                                     begin
 *  2. Large reads of what is in shared memory are copied from there.                                      map_move
 *  3. The rest goes together, those first that are in memory of the same kind as the first of them.       together
 *  4. Where such a batch fails as a whole, each goes alone, to find out which of them fails.              alone
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <stdlib.h>


struct many {
	struct move *const *m;
	size_t n, left;              /* left: that are not done */
	ssize_t *result;             /* these have n elements */
	unsigned char *open;
	struct lanefs_piece *piece;
	int64_t *got;
	size_t *of;                  /* of pieces: which move */
};

static ssize_t failed(ssize_t n) { return n == -1 ? -errno : n; }

static void done(struct many *a, size_t i, ssize_t result)
{
	a->result[i] = result;
	a->open[i] = 0;
	a->left--;
}

static void begin(struct many *a)
{
	for (size_t i = 0; i < a->n; i++) {
		struct move *m = a->m[i];
		m->road = ROAD_STAGE;
		a->open[i] = 1;
		ssize_t n = failed(move_check(m));
		if (n || !m->n)
			done(a, i, n);
		else if (m->read && m->n > SMALL && (n = map_move(m)) != ELSEWHERE)
			done(a, i, failed(n));
	}
}

static int alike(const struct target *a, const struct target *b) { return a->gpu == b->gpu && a->kernels == b->kernels && a->device == b->device; }

/* What a piece's error is to the caller. */
static ssize_t piece_failed(int64_t got)
{
	errno = (int)-got;
	return got == -EIO ? got : failed(lane_failed()); /* the text of an EIO is another call's */
}

static void alone(struct many *a, size_t k)
{
	for (size_t j = 0; j < k; j++) {
		struct move *m = a->m[a->of[j]];
		ssize_t n = lane_move(m);
		done(a, a->of[j], failed(n >= 0 && move_sync(m) ? -1 : n));
	}
}

static void together(struct many *a)
{
	size_t k = 0;
	const struct move *first = NULL;
	char *base = NULL;
	for (size_t i = 0; i < a->n; i++) {
		struct move *m = a->m[i];
		if (!a->open[i] || (first && !alike(&m->target, &first->target)))
			continue;
		if (!first || m->memory < base)
			base = m->memory;
		first = first ? first : m;
		a->of[k++] = i;
	}
	for (size_t j = 0; j < k; j++) {
		struct move *m = a->m[a->of[j]];
		a->piece[j] = (struct lanefs_piece){(uint64_t)m->offset, (uint64_t)(m->memory - base), m->n};
	}
	ssize_t n = lane_batch(first, base, a->piece, k, a->got);
	if (n < 0 && !(n == -1 && errno == ENOTCONN)) {
		alone(a, k);
		return;
	}
	ssize_t all = n < 0 ? -ENOTCONN : failed(move_sync(first));
	for (size_t j = 0; j < k; j++)
		done(a, a->of[j], all ? all : a->got[j] < 0 ? piece_failed(a->got[j]) : (ssize_t)a->got[j]);
	if (k > 1) {
		count_batch(k);
		stats_together();
	}
}

void move_many(struct move *const *m, size_t n, ssize_t *result)
{
	struct many a = {.m = m, .n = n, .left = n, .result = result, .open = malloc(n), .piece = malloc(n * sizeof *a.piece), .got = malloc(n * sizeof *a.got),
		.of = malloc(n * sizeof *a.of)};
	uint64_t start = now_us();
	int room = a.open && a.piece && a.got && a.of, gone = mount_gone(m[0]->file->mount);
	if (room && !gone)
		begin(&a);
	while (room && !gone && a.left)
		together(&a);
	for (size_t i = 0; i < n; i++) {
		if (gone || !room)
			result[i] = gone ? -ENOTCONN : -CU_FILE_NOMEM_ERROR;
		if (result[i] > 0)
			count_bytes(m[i]->road, m[i]->read, (size_t)result[i]);
		stats_move(m[i], result[i], now_us() - start);
	}
	free(a.open);
	free(a.piece);
	free(a.got);
	free(a.of);
}
