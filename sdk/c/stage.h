/* What a stage's two files share: stage.c moves between files and the stage, stagegpu.c between the stage and the program's memory. */
#ifndef LANEFS_STAGE_H
#define LANEFS_STAGE_H

#include "gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum { PARTS = 8, ENTRIES = 512, REQUEST = 1 << 20, PIECE = 64 << 10 };

/* A request of a batch: a part of one of its pieces. */
struct entry {
	char *at;        /* in the program's memory */
	uint64_t stage;  /* offset in the stage */
	uint64_t length, file_offset;
	size_t piece;    /* of the batch */
	int64_t got;     /* bytes, or a negative errno */
};

/* What the kernel copies: kernels/gather.h. */
struct copy { uint64_t dst, src, bytes; };

/* How a batch's memory is reached. */
struct target {
	struct gpu *gpu; /* NULL: by the CPU */
	int kernels;     /* whether a kernel may address it */
	int device;      /* whether it is a device's, not managed */
	int host, only_host; /* whether some of it is the CPU's, pinned; whether all is */
	void *stream;
	int waited;      /* the program's stream is of a context of its own, and was waited for: stream is another one, whose end is to be waited for */
	uint64_t start, size; /* of the allocation or, of virtual memory management, the reserved addresses; size 0: not known */
	int whole;       /* all of that is one allocation */
	int lost;        /* the error of a library whose context is lost, so that it does not say whether it knows the memory; 0: none */
	uint64_t id;     /* of the allocation, CUDA's, which never gives one twice; 0: not known */
};

struct batch;

/* An allocation of the program's that the daemon has by legacy IPC. */
enum { LEGACIES = 64 };
struct legacy {
	struct gpu *gpu;      /* NULL: none */
	uint64_t base, size, id;
	uint32_t handle;      /* 0: the library or the daemon refused it */
	uint64_t used;
};

/* A part of the stage. Parts are used in turn. */
struct part {
	struct batch *b;      /* whose entries it has */
	uint64_t start, used; /* offset in the stage, bytes */
	unsigned n, pending;  /* entries, and requests that have no completion */
	int due;              /* what its requests have got is not in the batch's results yet */
	struct entry entry[ENTRIES];
	struct copy *copy;    /* the kernel's table, in the stage */
	struct gpu *gpu;      /* of the events */
	void *event;          /* after the last copy from or to the part */
	void *before;         /* the kernel that made these copies */
	int busy;             /* the event is to be waited for */
	int timed;            /* before was recorded */
	uint64_t ticket;      /* of a batch on a stream, else 0: what the word becomes when the file's side is done */
	int reached, begun;   /* likewise: the stream has got there; the daemon has the requests. reached is protected by owner.turn */
	void *owner;
};

/* A batch on its way. */
struct batch {
	struct lanefs_stage *st;
	struct target target;
	uint32_t file;
	int read;
	int kernel;           /* pieces of up to HOST_COPY bytes, of the CPU's memory, are copied by the kernel: no others have been looked at */
	int now, last;        /* now: the copies have ended, too, when it does; last: they are waited for after this part's */
	char *base;
	const struct lanefs_piece *piece;
	const unsigned char *same; /* of each piece: whether it is of the allocation of the one before it. NULL: not known */
	int one;              /* all are of one */
	int cached, fd;       /* read from this descriptor's page cache, not by the daemon */
	size_t pieces, next;  /* next: the first that is not placed as a whole */
	size_t first;         /* of them that is not empty: its memory tells how all of it is reached */
	unsigned begun;       /* parts, the stage's first one first; of a batch on a stream owner.begun counts them */
	uint64_t room;        /* of the next part, of a read; 0: of the first */
	uint64_t done;        /* bytes of it that are placed */
	int64_t *result;      /* of each piece: bytes, or a negative errno */
	size_t cut;           /* 1 + the last piece that the file's end has cut short; lanefs_batch_add's */
	const struct asking *asking; /* NULL: the stage's own thread waits for it */
	int ended;            /* by the program: its requests are not waited for */
	_Atomic int gave_up;  /* lanefs_batch_give_up was called */
	struct failure failed; /* the first that is not a piece's; code is 0 if there is none. To be read when no thread works on the batch any more */
	int64_t (*tell)(const struct failure *f); /* of a batch on a stream: what its caller is told of a failure. NULL: a negative errno */
};

struct lanefs_stage {
	lanefs *s;
	lanefs_ring *ring;
	uint32_t memory;      /* handle */
	char *data;
	size_t size, each;    /* of the mapping, of a part's data */
	struct gpu *gpu;      /* with which the stage is registered */
	uint64_t device;      /* address of data for its kernels */
	_Atomic uint64_t *word; /* that streams wait for; NULL until it is known whether they can */
	uint64_t word_device;
	int no_wait;          /* they cannot */
	void *tried;          /* an event for streams of which that is to be found out */
	struct gpu *tried_on;
	struct part part[PARTS];
	_Atomic uint64_t kernel, copies, host; /* of lanefs_rungs. A child reads them, too, while its parent's thread has the lock */
	struct legacy legacy[LEGACIES]; /* direct.c */
	uint64_t uses;        /* of them */
	_Atomic uint64_t directs, legacies; /* pieces that went that way */
};

/* The handle that the program has. */
struct owner {
	struct lanefs_stage stage;
	struct guard lock;    /* a batch at a time */
	pid_t pid;
	int dead;             /* requests that the daemon has may still use the stage */
	int late;             /* likewise, of a batch that the program has ended: they are waited for by the next. Protected by lock */

	/* Batches on streams: async.c. Their parts are begun and ended in turn. */
	pthread_mutex_t turn; /* protects the fields below */
	pthread_cond_t moved; /* one of them has changed */
	pthread_t worker;
	int works, quit;
	unsigned begun, ended;
	uint64_t ticket;
};

/* Whether the pieces can be. b->first is one that is not empty; b->pieces: there is none. */
HIDDEN int lanefs_stage_own(const struct owner *o); /* EPERM in a child of the process that made it */
HIDDEN int lanefs_batch_check(struct batch *b);
HIDDEN void lanefs_batch_place(struct batch *b, struct part *p);
HIDDEN void lanefs_batch_submit(struct batch *b, struct part *p);
HIDDEN int lanefs_batch_await(struct batch *b, struct part *p); /* -1: the daemon has gone, or the program ends the wait, so it is not known what the part has */
HIDDEN int lanefs_batch_reap(struct batch *b, struct lanefs_completion *c, unsigned n); /* waits for the next requests that have ended; likewise */

/*
 * Adds what a piece's next request has got, bytes or a negative errno, to the piece's result. Returns how many bytes of the request count. Behind the file's end, where a
 * request of the piece was short, none do, whatever the daemon found there later, because the file had grown. It is told of requests in the order of pieces and bytes.
 */
HIDDEN uint64_t lanefs_batch_add(struct batch *b, size_t piece, uint64_t length, int64_t got);

/* Takes the stage for a batch, when that before it has ended. */
HIDDEN int lanefs_stage_take(struct owner *o);

/*
 * Notes why the batch as a whole fails, if nothing was noted yet. What is under way is waited for all the same. Of a batch on a stream both the
 * caller's thread and the stage's may do so at once.
 */
HIDDEN void lanefs_batch_give_up(struct batch *b);

/* Whether it was called. */
static inline int lanefs_batch_failed(struct batch *b) { return atomic_load(&b->gave_up); }

/*
 * What is called once, by whatever thread of the program's or the library's, when all of a batch on a stream has ended: f without a lock held. moved (may be NULL)
 * before the stream goes on, with what *done becomes; the stage's locks may be held.
 */
struct ending { void (*f)(void *with); void (*moved)(void *with, int64_t done); void *with; };

/* As lanefs_read_async and lanefs_write_async. *done becomes by a failure what tell says. Unless it returns -1 ending is called, perhaps before it returns. */
HIDDEN int lanefs_async(lanefs_stage *st, int read, uint32_t file, void *memory, const struct lanefs_piece *pieces, size_t n, void *stream, int64_t *results, int64_t *done,
	int64_t (*tell)(const struct failure *f), struct ending ending);

/* Waits until no batch is on a stream. The caller holds lock. */
HIDDEN int lanefs_stage_drain(struct owner *o);

/* Whether no batch is on a stream, now. */
HIDDEN int lanefs_stage_idle(lanefs_stage *st);

/* Ends the thread of batches on streams, after them. */
HIDDEN void lanefs_stage_rest(struct owner *o);

/* Whether a stream can wait for the stage's word: 1 or 0; -1, it is none. The GPU is entered, and has the stage. */
HIDDEN int lanefs_stage_waits(struct lanefs_stage *st, const struct target *t);

/* Whether a stream is of the GPU, and there: else its copies could not be waited for. The GPU is entered. */
HIDDEN int lanefs_stage_fits(struct part *p, const struct target *t);

/* Makes the stream tell when it gets here, and then wait for the word to become ticket. */
HIDDEN int lanefs_stage_gate(struct lanefs_stage *st, struct part *p, const struct target *t, void (*reached)(void *));

/* The function lanefs_copier for a GPU that is entered, or NULL. It is loaded by the first that asks. */
HIDDEN void *lanefs_gpu_copier(struct gpu *g);

/* Registers the stage with the GPU, once. */
HIDDEN int lanefs_stage_known(struct lanefs_stage *st, struct gpu *g);

/* Carries out a batch without the stage. Returns 0 if that cannot be, or does not pay. The caller holds lock, and no batch is on a stream. */
HIDDEN int lanefs_direct(struct batch *b);

/* Releases what lanefs_direct has registered. */
HIDDEN void lanefs_direct_end(struct lanefs_stage *st);

/*
 * A batch as lanefs_read_batch and lanefs_write_batch, of memory that is known to be t. Copies have ended when it returns: nothing else is on t's stream.
 * same as in struct batch. fd: of the file, whose page cache is read instead of asking the daemon; or -1.
 */
HIDDEN int64_t lanefs_batch_of(lanefs_stage *st, int read, uint32_t file, int fd, void *memory, const struct lanefs_piece *pieces, const unsigned char *same, size_t n,
	const struct target *t, int64_t *results);

/* Finds out how a batch's memory is reached, and that all of it is, so, and the stream. EINVAL: it is of several devices, or the stream is captured; EFAULT: it is not there. */
HIDDEN int lanefs_batch_target(struct batch *b, void *stream);

/* Fails as t->lost says. */
HIDDEN int lanefs_stage_lost(const struct target *t);

/* Finds out how memory at p is reached. */
HIDDEN int lanefs_stage_target(struct lanefs_stage *st, const void *p, void *stream, struct target *t);

/* Waits for a stream of a library that the program has loaded, whatever GPU is current. 0: also if there is no such library. -1: also if the stream is captured. */
HIDDEN int lanefs_stage_sync(int hip, void *stream);

/* Begins to copy a part's entries, out of the stage (read) or into it, and counts them. */
HIDDEN int lanefs_stage_move(struct lanefs_stage *st, struct part *p, const struct target *t, int read);

/* Copies them by the CPU, and counts them: of memory of the CPU's, pinned or not. Errors: EFAULT, it is not there. */
HIDDEN int lanefs_stage_by_cpu(struct lanefs_stage *st, struct part *p, const struct target *t, int read);

/* Waits until the copies that lanefs_stage_move began have ended. Fails if they are not known to have been made. */
HIDDEN int lanefs_stage_settle(struct part *p);

/* Waits until no copy uses the part any more. Those of a context that is lost do not. */
HIDDEN int lanefs_stage_empty(struct part *p);

/*
 * Whether the stream that lanefs_stage_gate was called for never gets there, since its context is lost: what is on its streams then is dropped, functions of the host
 * are not called (cuda.h, cuLaunchHostFunc). errno and lanefs_error say so.
 */
HIDDEN int lanefs_stage_stuck(struct part *p);

/* Ends what the GPU knows of the stage. No copy is under way. */
HIDDEN void lanefs_stage_forget(struct lanefs_stage *st);

#endif
