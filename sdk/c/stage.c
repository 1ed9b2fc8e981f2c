/*
 * Batches between a file and any memory of the program, by way of a stage: ordinary memory, registered with the daemon and the GPU.
 *
 *  1. The pieces of a batch are cut into requests, and placed in the next part of the stage.      place
 *  2. Read: the daemon fills the part (submit, reap); then copies on the stream empty it.         lanefs_stage_move
 *     Write: copies on the stream fill the part; when they have ended the daemon empties it.
 *  3. Parts are used in turn, so the daemon and the GPU work on different ones at the same time.
 *
 * A batch of reads returns when the file's bytes are in the stage and the copies are on the stream. A part is not used again before its
 * copies have ended.
 */
#define _GNU_SOURCE
#include "stage.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, TABLE = 64 << 10, LEAST = 1 << 20, USUAL = 64 << 20, MOST = 256 << 20, WIDE = 16, REAP = 64, READ_AHEAD = PARTS - 1, FIRST = 1 << 20 };

lanefs_stage *lanefs_stage_new(lanefs *s, size_t size)
{
	UNCANCELLED;
	if (size == 0)
		size = USUAL;
	if (size < LEAST || size > MOST) {
		lanefs_fail(EINVAL, "a stage has 1 MiB to 256 MiB");
		return NULL;
	}
	struct owner *o = calloc(1, sizeof *o);
	if (!o) {
		lanefs_fail(ENOMEM, NULL);
		return NULL;
	}
	struct lanefs_stage *st = &o->stage;
	st->each = size / PARTS / PAGE * PAGE;
	*st = (struct lanefs_stage){.s = s, .each = st->each, .size = PARTS * (st->each + TABLE) + PAGE, .data = MAP_FAILED};
	pthread_mutex_init(&o->turn, NULL);
	lanefs_cond(&o->moved);
	o->pid = getpid();
	int fd = lanefs_memfd("lanefs-stage");
	if (fd < 0 || lanefs_size(fd, st->size) ||
	    (st->data = mmap(NULL, st->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
		lanefs_fail(errno, errno == EFBIG ? "the program's limit of a file's size (ulimit -f) is below that of a stage" : NULL);
	} else if (lanefs_register(s, fd, LANEFS_MEMFD, 0, st->size, &st->memory) == 0) {
		if ((st->ring = lanefs_ring_new(s, PARTS * ENTRIES))) {
			close(fd);
			for (int i = 0; i < PARTS; i++) {
				st->part[i].owner = o;
				st->part[i].start = i * st->each;
				st->part[i].copy = (void *)(st->data + PARTS * st->each + (size_t)i * TABLE);
			}
			return st;
		}
		int saved = errno;
		lanefs_release(s, st->memory);
		errno = saved;
	}
	int saved = errno;
	if (fd >= 0)
		close(fd);
	if (st->data != MAP_FAILED)
		munmap(st->data, st->size);
	free(o);
	errno = saved;
	return NULL;
}

void lanefs_stage_free(lanefs_stage *st)
{
	UNCANCELLED;
	struct owner *o = (struct owner *)st;
	if (!st)
		return;
	if (o->pid == getpid()) { /* the GPU's objects are the parent's */
		lanefs_stage_rest(o);
		for (int i = 0; i < PARTS; i++)
			lanefs_stage_settle(&st->part[i]);
		lanefs_direct_end(st);
		lanefs_stage_forget(st);
	}
	lanefs_ring_free(st->ring);
	lanefs_release(st->s, st->memory);
	munmap(st->data, st->size);
	free(o);
}

void lanefs_stage_rungs(lanefs_stage *st, struct lanefs_rungs *r)
{
	*r = (struct lanefs_rungs){.kernel = st->kernel, .copies = st->copies, .host = st->host};
}

void lanefs_batch_give_up(struct batch *b)
{
	if (!atomic_exchange(&b->gave_up, 1))
		lanefs_failed(&b->failed);
}

/*
 * Places pieces in a part until it is full. A piece lies at its memory's address modulo 16. The first parts of a read are small, each twice as large as the one
 * before it: until the first is there the bus has nothing to do.
 */
void lanefs_batch_place(struct batch *b, struct part *p)
{
	uint64_t room = b->st->each;
	if (b->read && b->room < room)
		room = b->room = b->room ? b->room * 2 : FIRST;
	if (room > b->st->each)
		room = b->st->each;
	p->b = b;
	p->ticket = 0;
	p->n = 0;
	p->due = 0;
	p->used = 0;
	while (b->next < b->pieces && p->n < ENTRIES) {
		const struct lanefs_piece *q = &b->piece[b->next];
		if (q->length == 0) {
			b->next++;
			continue;
		}
		char *at = b->base + q->memory_offset + b->done;
		uint64_t start = p->used + (((uintptr_t)at - p->used) & (WIDE - 1)), left = q->length - b->done;
		if (start >= room)
			break;
		uint64_t n = left;
		if (b->read && n > REQUEST)
			n = REQUEST; /* the daemon reads requests in parallel, and writes of a file one after the other */
		if (n > room - start)
			n = room - start;
		p->entry[p->n++] = (struct entry){at, p->start + start, n, q->file_offset + b->done, b->next, 0};
		p->used = start + n;
		if ((b->done += n) == q->length) {
			b->next++;
			b->done = 0;
		}
	}
}

uint64_t lanefs_batch_add(struct batch *b, size_t piece, uint64_t length, int64_t got)
{
	uint64_t n = got < 0 || b->cut == piece + 1 ? 0 : (uint64_t)got;
	if (b->result[piece] >= 0)
		b->result[piece] = got < 0 ? got : b->result[piece] + (int64_t)n;
	if (got >= 0 && n < length)
		b->cut = piece + 1;
	return n;
}

/* Adds what a part's requests have got to the results, in the order of the pieces. The rest becomes zero, not what was in the stage. */
static void account(struct batch *b, struct part *p)
{
	for (unsigned i = 0; p->due && i < p->n; i++) {
		const struct entry *e = &p->entry[i];
		uint64_t got = lanefs_batch_add(b, e->piece, e->length, e->got);
		if (b->read)
			memset(b->st->data + e->stage + got, 0, e->length - got);
	}
	p->due = 0;
}

/* Fills a part from the page cache. */
static void fill(struct batch *b, struct part *p)
{
	for (unsigned i = 0; i < p->n; i++) {
		struct entry *e = &p->entry[i];
		uint64_t done = 0;
		ssize_t n = 1;
		while (n > 0 && done < e->length) {
			n = pread(b->fd, b->st->data + e->stage + done, e->length - done, (off_t)(e->file_offset + done));
			if (n < 0 && errno == EINTR)
				n = 1;
			else
				done += n > 0 ? (uint64_t)n : 0;
		}
		e->got = n < 0 ? -errno : (int64_t)done;
	}
}

/* Hands a part's requests to the daemon. */
void lanefs_batch_submit(struct batch *b, struct part *p)
{
	struct lanefs_request q[REAP];
	p->due = 1;
	if (b->cached) {
		fill(b, p);
		return;
	}
	for (unsigned i = 0; i < p->n && !lanefs_batch_failed(b);) {
		unsigned n = 0;
		for (; n < REAP && i + n < p->n; n++) {
			struct entry *e = &p->entry[i + n];
			q[n] = (struct lanefs_request){.data = (uint64_t)(p - b->st->part) << 32 | (i + n), .op = b->read ? LANEFS_READ : LANEFS_WRITE, .file = b->file,
				.memory = b->st->memory, .file_offset = e->file_offset, .memory_offset = e->stage, .length = e->length};
		}
		lanefs_ring_submit(b->st->ring, q, n); /* there is room for all parts */
		p->pending += n;
		i += n;
	}
}

/* Notes how a request ended. */
static void ended(struct lanefs_stage *st, const struct lanefs_completion *c)
{
	uint32_t part = (uint32_t)(c->data >> 32), i = (uint32_t)c->data;
	if (part >= PARTS || !st->part[part].b || i >= st->part[part].n || !st->part[part].pending || c->result > (int64_t)st->part[part].entry[i].length)
		return;
	st->part[part].entry[i].got = c->result;
	st->part[part].pending--;
}

int lanefs_batch_reap(struct batch *b, struct lanefs_completion *c, unsigned max)
{
	static const struct asking nothing;
	struct owner *o = (struct owner *)b->st;
	const struct asking *a = b->asking ? b->asking : &nothing;
	while (!b->ended) {
		int n = lanefs_ring_reap(b->st->ring, c, max, lanefs_slice(a));
		if (n > 0)
			return n;
		if (n < 0 && errno != EINTR) {
			lanefs_batch_give_up(b);
			o->dead = 1;
			return n;
		}
		/* The daemon is there; a signal's handler has run, or it takes long. */
		if (lanefs_asked(a)) {
			lanefs_batch_give_up(b);
			o->late = b->ended = 1;
		}
	}
	return -1;
}

int lanefs_stage_take(struct owner *o)
{
	struct lanefs_completion c[REAP];
	struct batch b = {.st = &o->stage, .asking = lanefs_asking(o->stage.s)};
	if (lanefs_lock(b.asking, &o->lock))
		return -1;
	while (o->late && !o->dead) {
		if (lanefs_ring_in_flight(o->stage.ring) == 0)
			o->late = 0;
		else if (lanefs_batch_reap(&b, c, REAP) < 0 && b.ended) {
			lanefs_unlock(&o->lock);
			return lanefs_fail_as(&b.failed);
		}
	}
	return 0;
}

int lanefs_batch_await(struct batch *b, struct part *p)
{
	struct lanefs_completion c[REAP];
	while (p->pending) {
		int n = lanefs_batch_reap(b, c, REAP);
		if (n < 0) {
			p->pending = 0;
			p->due = 0;
			return -1;
		}
		for (int i = 0; i < n; i++)
			ended(b->st, &c[i]);
	}
	account(b, p);
	return 0;
}

/* The second half of a part's way: to the program's memory, or to the file. */
static void second(struct batch *b, struct part *p)
{
	if (b->read) {
		lanefs_batch_await(b, p);
		if (!lanefs_batch_failed(b) && lanefs_stage_move(b->st, p, &b->target, 1))
			lanefs_batch_give_up(b);
		return;
	}
	if (lanefs_stage_settle(p))
		lanefs_batch_give_up(b);
	lanefs_batch_submit(b, p);
}

static void run(struct batch *b)
{
	struct lanefs_stage *st = b->st;
	unsigned half = 0; /* parts whose second half is begun */
	while (b->next < b->pieces && !lanefs_batch_failed(b)) {
		struct part *p = &st->part[b->begun % PARTS];
		if (!b->read)
			lanefs_batch_await(b, p);
		if (lanefs_stage_empty(p))
			lanefs_batch_give_up(b);
		lanefs_batch_place(b, p);
		b->begun++;
		b->last = b->now && !b->read && b->begun == 1 && b->next == b->pieces;
		if (b->read)
			lanefs_batch_submit(b, p);
		else if (!lanefs_batch_failed(b) && lanefs_stage_move(st, p, &b->target, 0))
			lanefs_batch_give_up(b);
		if (b->begun - half == READ_AHEAD)
			second(b, &st->part[half++ % PARTS]);
	}
	for (; half < b->begun; half++) {
		b->last = b->now && b->read && half + 1 == b->begun;
		second(b, &st->part[half % PARTS]);
	}
	for (int i = 0; i < PARTS; i++) {
		lanefs_batch_await(b, &st->part[i]);
		if (b->now && lanefs_batch_failed(b)) /* no last part has waited for the copies of those before it */
			lanefs_stage_settle(&st->part[i]);
	}
}

int lanefs_batch_check(struct batch *b)
{
	uint64_t left = HOST_COPY;
	b->first = b->pieces;
	b->kernel = 1;
	for (size_t i = 0; i < b->pieces; i++) {
		const struct lanefs_piece *q = &b->piece[i];
		if (q->length == 0)
			continue; /* wherever it is: an empty tensor has no address */
		if (b->first == b->pieces)
			b->first = i;
		b->kernel &= b->now || q->length <= left;
		left -= q->length <= left ? q->length : left;
		if (q->length > INT64_MAX || q->file_offset > INT64_MAX - q->length || (uintptr_t)b->base + q->memory_offset < (uintptr_t)b->base ||
		    (uintptr_t)b->base + q->memory_offset + q->length < (uintptr_t)b->base + q->memory_offset)
			return lanefs_fail(EINVAL, "a piece is beyond the end of any file or memory");
		if ((uintptr_t)b->base + q->memory_offset < PAGE)
			return lanefs_fail(EFAULT, "a piece is at NULL");
	}
	return 0;
}

int lanefs_pieces(const int64_t *file_offsets, const int64_t *memory_offsets, const int64_t *lengths, size_t n, uint64_t size, struct lanefs_piece *pieces)
{
	for (size_t i = 0; i < n; i++) {
		if (file_offsets[i] < 0 || memory_offsets[i] < 0 || lengths[i] < 0)
			return lanefs_fail(EINVAL, "a negative offset or length");
		if ((uint64_t)lengths[i] > size || (uint64_t)memory_offsets[i] > size - (uint64_t)lengths[i])
			return lanefs_fail(EINVAL, "a piece is not within the memory");
		pieces[i] = (struct lanefs_piece){(uint64_t)file_offsets[i], (uint64_t)memory_offsets[i], (uint64_t)lengths[i]};
	}
	return 0;
}

int lanefs_stage_own(const struct owner *o)
{
	return o->pid == lanefs_self() ? 0 : lanefs_fail(EPERM, "the stage is that of the process that forked this one: make another");
}

/* If b.now the memory is known, and the copies have ended when it returns. */
static int64_t carry_out(struct batch b, void *stream)
{
	UNCANCELLED;
	struct owner *o = (struct owner *)b.st;
	int64_t *results = b.result;
	size_t n = b.pieces;
	if (lanefs_stage_own(o))
		return -1;
	if (n == 0)
		return 0;
	if (lanefs_batch_check(&b))
		return -1;
	if (!b.result && !(b.result = malloc(n * sizeof *b.result)))
		return lanefs_fail(ENOMEM, NULL);
	memset(b.result, 0, n * sizeof *b.result);
	if (b.first == n) {
		if (!results)
			free(b.result);
		return 0;
	}
	b.asking = lanefs_asking(b.st->s);
	if (lanefs_stage_take(o)) {
		if (!results)
			free(b.result);
		return -1;
	}
	int rc = lanefs_stage_drain(o);
	if (!rc && o->dead)
		rc = lanefs_fail(ECONNRESET, lanefs_gone_text);
	if (rc || (!b.now && lanefs_batch_target(&b, stream)))
		lanefs_batch_give_up(&b);
	else {
		b.now |= b.target.waited || (b.target.host && !stream); /* whoever named no stream waits for none, and then looks */
		if (b.cached || !lanefs_direct(&b))
			run(&b);
	}
	lanefs_unlock(&o->lock);
	int64_t sum = 0;
	for (size_t i = 0; i < n && !b.failed.code; i++) {
		if (b.result[i] >= 0)
			sum += b.result[i];
		else if (!results)
			b.failed.code = (int)-b.result[i];
	}
	if (b.result != results)
		free(b.result);
	return b.failed.code ? lanefs_fail_as(&b.failed) : sum;
}

static int64_t batch(lanefs_stage *st, int read, uint32_t file, void *base, const struct lanefs_piece *piece, size_t n, void *stream, int64_t *results)
{
	return carry_out((struct batch){.st = st, .file = file, .read = read, .base = base, .piece = piece, .pieces = n, .result = results}, stream);
}

int64_t lanefs_read_batch(lanefs_stage *st, uint32_t file, void *memory, const struct lanefs_piece *pieces, size_t n, void *stream, int64_t *results)
{
	return batch(st, 1, file, memory, pieces, n, stream, results);
}

int64_t lanefs_write_batch(lanefs_stage *st, uint32_t file, const void *memory, const struct lanefs_piece *pieces, size_t n, void *stream, int64_t *results)
{
	return batch(st, 0, file, (void *)(uintptr_t)memory, pieces, n, stream, results);
}

int64_t lanefs_batch_of(lanefs_stage *st, int read, uint32_t file, int fd, void *memory, const struct lanefs_piece *pieces, const unsigned char *same, size_t n,
	const struct target *t, int64_t *results)
{
	return carry_out((struct batch){.st = st, .file = file, .read = read, .base = memory, .piece = pieces, .same = same, .pieces = n, .result = results, .now = 1, .target = *t,
		.cached = fd >= 0, .fd = fd}, t->stream);
}

int64_t lanefs_read_into(lanefs_stage *st, uint32_t file, void *memory, uint64_t offset, uint64_t length, void *stream)
{
	return batch(st, 1, file, memory, &(struct lanefs_piece){offset, 0, length}, 1, stream, NULL);
}

int64_t lanefs_write_from(lanefs_stage *st, uint32_t file, const void *memory, uint64_t offset, uint64_t length, void *stream)
{
	return batch(st, 0, file, (void *)(uintptr_t)memory, &(struct lanefs_piece){offset, 0, length}, 1, stream, NULL);
}

void lanefs_stage_ways(lanefs_stage *st, struct lanefs_ways *w)
{
	*w = (struct lanefs_ways){.kernel = st->kernel, .copies = st->copies, .host = st->host, .direct = st->directs, .legacy = st->legacies};
}
