/*
 * Batches on a stream: the call returns at once, and neither the program's threads nor the GPU's other streams wait.
 *
 *  1. The caller places the pieces in the next parts of the stage, and puts on the stream, for each part:            put
 *     Read: a function that says "reached", a wait for the stage's word, the copies out of the stage.
 *     Write: the copies into the stage, the function, the wait.
 *  2. The library's thread begins a part's requests when the stream has reached it, in the order of the calls.       work
 *  3. When they have ended it stores results, and then the part's ticket in the word: the stream goes on.            finish
 *
 * A part is free for the next batch when its requests have ended and its copies, too. While none is free the caller waits.
 */
#define _GNU_SOURCE
#include "stage.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A batch on a stream, and what it owns. */
struct async {
	struct batch b;
	struct lanefs_piece *piece;
	int64_t *own;         /* results, if the program wants none */
	int64_t *done;        /* of the program */
	struct ending ending;
	unsigned parts;       /* on the stream. Protected by owner.turn, as the next is */
	int placed;           /* there will be no more */
};

static void reached(void *arg)
{
	struct part *p = arg;
	struct owner *o = p->owner;
	pthread_mutex_lock(&o->turn);
	p->reached = 1;
	pthread_cond_broadcast(&o->moved);
	pthread_mutex_unlock(&o->turn);
}

/* What *done becomes by a failure. */
static int64_t told(const struct batch *b, const struct failure *f) { return b->tell ? b->tell(f) : -f->code; }

/* The last of what the program may look at. */
static void done(struct ending e, int64_t *at, int64_t n)
{
	if (e.moved)
		e.moved(e.with, n);
	__atomic_store_n(at, n, __ATOMIC_RELEASE);
}

/* Frees it. The caller calls what is returned when it holds no lock. */
static struct ending settle_account(struct async *a)
{
	struct ending e = a->ending;
	int64_t sum = 0;
	struct failure *f = &a->b.failed;
	for (size_t i = 0; i < a->b.pieces && !f->code; i++) {
		if (a->b.result[i] >= 0)
			sum += a->b.result[i];
		else if (a->own)
			f->code = (int)-a->b.result[i];
	}
	done(e, a->done, f->code ? told(&a->b, f) : sum);
	free(a->own);
	free(a->piece);
	free(a);
	return e;
}

static void call(struct ending e)
{
	if (e.f)
		e.f(e.with);
}

/* Ends a part: its batch, if it is the last one, and the stream's wait. The caller holds turn, and calls what is returned without. */
static struct ending finish(struct owner *o, struct part *p)
{
	struct ending e = {0};
	struct async *a = (struct async *)p->b;
	int last = --a->parts == 0 && a->placed; /* else the caller's thread may still put p's copies on the stream */
	if (last)
		e = settle_account(a);
	atomic_store(o->stage.word, p->ticket); /* after the bytes and the results */
	o->ended++;
	pthread_cond_broadcast(&o->moved);
	return e;
}

/* The stream copies something in any case: not what the part had of another batch. */
static void clear(struct owner *o, struct part *p)
{
	for (unsigned i = 0; i < p->n; i++)
		memset(o->stage.data + p->entry[i].stage, 0, p->entry[i].length);
}

/* Begins a part's requests, unless the daemon has gone. */
static void begin(struct owner *o, struct part *p)
{
	struct batch *b = p->b;
	p->begun = 1;
	if (o->dead) {
		lanefs_fail(ECONNRESET, lanefs_gone_text);
		lanefs_batch_give_up(b);
	}
	if (!b->read && b->target.only_host && lanefs_stage_by_cpu(&o->stage, p, &b->target, 0)) /* CUDA's copies from the CPU's memory to the CPU's would wait in the caller's thread for what is on the stream before them */
		lanefs_batch_give_up(b);
	lanefs_batch_submit(b, p); /* not if the batch has failed */
	if (!p->pending && b->read)
		clear(o, p);
}

/* A wait for a part's stream ends when it is certain that it never gets there. The batch fails. */
static int never(void *part)
{
	struct part *p = part;
	if (!lanefs_stage_stuck(p))
		return 0;
	lanefs_batch_give_up(p->b);
	return 1;
}

/* Waits for what there is to do; p is the next part. The caller holds turn. */
static void next(struct owner *o, struct part *p)
{
	while (o->begun == o->ended && !o->quit)
		pthread_cond_wait(&o->moved, &o->turn);
	const struct asking a = {.f = never, .arg = p};
	while (o->begun != o->ended && !p->reached)
		if (lanefs_await(&a, &o->moved, &o->turn))
			p->reached = 1; /* and what is to be done for it ends at once */
}

static void *work(void *arg)
{
	struct owner *o = arg;
	pthread_mutex_lock(&o->turn);
	for (;;) {
		struct part *p = &o->stage.part[o->ended % PARTS];
		next(o, p);
		if (o->begun == o->ended)
			break;
		for (unsigned i = o->ended; i != o->begun && o->stage.part[i % PARTS].reached; i++) {
			struct part *q = &o->stage.part[i % PARTS];
			if (!q->begun) {
				pthread_mutex_unlock(&o->turn);
				begin(o, q);
				pthread_mutex_lock(&o->turn);
			}
		}
		pthread_mutex_unlock(&o->turn);
		if (lanefs_batch_await(p->b, p) && p->b->read)
			clear(o, p);
		if (p->b->read && p->b->target.only_host && lanefs_stage_by_cpu(&o->stage, p, &p->b->target, 1))
			lanefs_batch_give_up(p->b);
		pthread_mutex_lock(&o->turn);
		struct ending e = finish(o, p);
		pthread_mutex_unlock(&o->turn);
		call(e);
		pthread_mutex_lock(&o->turn);
	}
	pthread_mutex_unlock(&o->turn);
	return NULL;
}

int lanefs_thread(pthread_t *t, void *(*f)(void *), void *arg)
{
	sigset_t all, was;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	int rc = pthread_create(t, NULL, f, arg);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	return rc;
}

/* Starts the stage's thread. */
static int start(struct owner *o)
{
	int rc = o->works ? 0 : lanefs_thread(&o->worker, work, o);
	o->works |= !rc;
	return rc ? lanefs_fail(rc, NULL) : 0;
}

int lanefs_stage_drain(struct owner *o)
{
	int rc = 0;
	pthread_mutex_lock(&o->turn);
	while (!rc && o->begun != o->ended)
		rc = lanefs_await(lanefs_asking(o->stage.s), &o->moved, &o->turn);
	pthread_mutex_unlock(&o->turn);
	return rc;
}

int lanefs_stage_idle(lanefs_stage *st)
{
	struct owner *o = (struct owner *)st;
	pthread_mutex_lock(&o->turn);
	int idle = o->begun == o->ended;
	pthread_mutex_unlock(&o->turn);
	return idle;
}

void lanefs_stage_rest(struct owner *o)
{
	if (!o->works)
		return;
	pthread_mutex_lock(&o->turn);
	o->quit = 1;
	pthread_cond_broadcast(&o->moved);
	pthread_mutex_unlock(&o->turn);
	pthread_join(o->worker, NULL);
	o->works = 0;
}

/*
 * Puts a part's share of the batch on the stream. A read's copies come last, when the worker has the part: a call of the driver may wait for what is on the
 * stream before it, as one does that finds no room there, and so for the worker. A failure after the stream has got something leaves the part to the worker.
 */
static void put(struct owner *o, struct async *a)
{
	struct batch *b = &a->b;
	struct part *p = &o->stage.part[o->begun % PARTS]; /* begun is changed by this thread alone */
	struct was was;
	int rc = 0, copies = !b->target.only_host;
	pthread_mutex_lock(&o->turn);
	while (!rc && o->begun - o->ended == PARTS)
		rc = lanefs_await(lanefs_asking(b->st->s), &o->moved, &o->turn);
	pthread_mutex_unlock(&o->turn);
	if (rc || lanefs_stage_empty(p)) {
		lanefs_batch_give_up(b);
		return;
	}
	lanefs_batch_place(b, p);
	p->reached = p->begun = 0;
	p->ticket = ++o->ticket;
	pthread_mutex_lock(&o->turn);
	a->parts++;
	pthread_mutex_unlock(&o->turn);
	if ((rc = lanefs_gpu_enter(b->target.gpu, &was)) == 0) {
		rc = lanefs_stage_fits(p, &b->target) || (!b->read && copies && lanefs_stage_move(b->st, p, &b->target, 0)) ? -1 : lanefs_stage_gate(b->st, p, &b->target, reached);
		lanefs_gpu_leave(b->target.gpu, &was);
	} else {
		lanefs_gpu_not_entered(b->target.gpu, rc);
		rc = -1;
	}
	if (rc)
		lanefs_batch_give_up(b);
	pthread_mutex_lock(&o->turn);
	if (rc < 0) { /* the stream does not know of the part */
		a->parts--;
	} else {
		o->begun++;
		pthread_cond_broadcast(&o->moved);
	}
	pthread_mutex_unlock(&o->turn);
	if (!rc && b->read && copies && lanefs_stage_move(b->st, p, &b->target, 1))
		lanefs_batch_give_up(b);
}

/* Whether the batch can be put on its stream: 1 or 0; -1, that is none of the GPU's. */
static int can(struct owner *o, struct batch *b)
{
	struct was was;
	int yes = 0;
	if (!b->target.gpu || b->target.waited || lanefs_gpu_enter(b->target.gpu, &was))
		return 0;
	if (lanefs_stage_known(b->st, b->target.gpu) == 0)
		yes = lanefs_stage_waits(b->st, &b->target);
	int saved = errno;
	lanefs_gpu_leave(b->target.gpu, &was);
	errno = saved;
	return yes > 0 ? start(o) == 0 : yes;
}

static struct async *new_async(const struct batch *b, const struct lanefs_piece *piece, int64_t *at)
{
	struct async *a = calloc(1, sizeof *a);
	if (a) {
		*a = (struct async){.b = *b, .done = at, .piece = malloc(b->pieces * sizeof *piece), .own = b->result ? NULL : malloc(b->pieces * sizeof *a->own)};
		a->b.piece = a->piece;
		a->b.result = b->result ? b->result : a->own;
		if (a->piece && a->b.result) {
			memcpy(a->piece, piece, b->pieces * sizeof *piece);
			memset(a->b.result, 0, b->pieces * sizeof *a->b.result);
			return a;
		}
		free(a->own);
		free(a->piece);
		free(a);
	}
	lanefs_fail(ENOMEM, NULL);
	return NULL;
}

int lanefs_async(lanefs_stage *st, int read, uint32_t file, void *base, const struct lanefs_piece *piece, size_t n, void *stream, int64_t *results, int64_t *at,
	int64_t (*tell)(const struct failure *), struct ending ending)
{
	UNCANCELLED;
	struct owner *o = (struct owner *)st;
	struct batch b = {.st = st, .file = file, .read = read, .base = base, .piece = piece, .pieces = n, .result = results, .tell = tell};
	if (lanefs_stage_own(o))
		return -1;
	if (n > 0 && lanefs_batch_check(&b))
		return -1;
	if (n == 0 || b.first == n) {
		if (results)
			memset(results, 0, n * sizeof *results);
		done(ending, at, 0);
		call(ending);
		return 0;
	}
	if (lanefs_stage_take(o))
		return -1;
	int yes = lanefs_batch_target(&b, stream) ? -1 : can(o, &b);
	if (yes <= 0) {
		lanefs_unlock(&o->lock);
		if (yes < 0)
			return -1;
		int64_t got = read ? lanefs_read_batch(st, file, base, piece, n, stream, results) : lanefs_write_batch(st, file, base, piece, n, stream, results);
		struct failure f;
		if (got < 0)
			lanefs_failed(&f);
		if (got < 0 && f.gpu) { /* the GPU's library: the stream is none, or the like, and nothing is on it */
			*at = told(&b, &f);
			return lanefs_fail_as(&f);
		}
		done(ending, at, got < 0 ? told(&b, &f) : got);
		call(ending);
		return 0;
	}
	unsigned before = o->begun; /* changed by who holds lock alone */
	struct async *a = new_async(&b, piece, at);
	if (!a) {
		lanefs_unlock(&o->lock);
		return -1;
	}
	a->ending = ending;
	while (a->b.next < n && !lanefs_batch_failed(&a->b))
		put(o, a);
	pthread_mutex_lock(&o->turn);
	int last = a->parts == 0, none = o->begun == before; /* none of its parts is on the stream: some may have ended already */
	struct failure f = {0};
	struct ending e = {0};
	a->placed = 1;
	if (last) { /* else the stage's thread may be about to give it up */
		f = a->b.failed;
		if (none && f.code) /* the caller tells of it */
			a->ending.moved = NULL;
		e = settle_account(a);
	}
	pthread_mutex_unlock(&o->turn);
	lanefs_unlock(&o->lock);
	if (none && f.code)
		return lanefs_fail_as(&f);
	call(e);
	return 0;
}

int lanefs_read_async(lanefs_stage *st, uint32_t file, void *memory, const struct lanefs_piece *pieces, size_t n, void *stream, int64_t *results, int64_t *done)
{
	return lanefs_async(st, 1, file, memory, pieces, n, stream, results, done, NULL, (struct ending){0});
}

int lanefs_write_async(lanefs_stage *st, uint32_t file, const void *memory, const struct lanefs_piece *pieces, size_t n, void *stream, int64_t *results, int64_t *done)
{
	return lanefs_async(st, 0, file, (void *)(uintptr_t)memory, pieces, n, stream, results, done, NULL, (struct ending){0});
}
