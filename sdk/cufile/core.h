/*
 * Shared by the files of the library. Its nouns: a file is a handle of the interface; a road is a way that bytes take between a file and the
 * program's memory; the next library is the vendor's own, which gets the files that are not on LaneFS.
 *
 *   cufile.c hipfile.c     the two interfaces, names and types only
 *   file.c buffer.c        handles and registered memory          batch.c stream.c   many at a time, in a stream's order
 *   move.c choose.c many.c  chooses the road of a call, of many that go together
 *   lane.c map.c           LaneFS's: a stage, memory that is shared  next.c plain.c   the next library's, pread and pwrite
 *   device.c copier.c      where a pointer points, copies there   count.c stats.c    what happened
 *
 * What moves bytes returns how many, or -1 with errno (of the file system), or a negative CUfileOpError.
 */
#ifndef LANEFS_CUFILE_CORE_H
#define LANEFS_CUFILE_CORE_H

#define LANEFS_NO_CUDA_H
#include "cufile.h"
#include "stage.h" /* of sdk/c, for how it drives GPUs */

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

/* ---- What the interface brings ---- */

#if defined(__aarch64__)
#define MULTIARCH "aarch64-linux-gnu" /* Debian's folder of libraries */
#else
#define MULTIARCH "x86_64-linux-gnu"
#endif

/* Defined by cufile.c or hipfile.c. */
struct front {
	const char *prefix;            /* of the functions' names */
	const char *env;               /* names the next library */
	const char *soname;
	const char *beside;            /* the beginning of a library's name in whose directory the next one may be */
	const char *const *directories;
	int hip;                       /* whose streams are the program's */
};
HIDDEN extern const struct front front;

/* ---- Results ---- */

typedef struct { int err, gpu; } status;

static inline status ok(void) { return (status){0, 0}; }
static inline status bad(int err) { return (status){err, 0}; }
HIDDEN const char *error_text(int err);

/* ---- Objects that the program names by handles ---- */

enum kind { FILE_OBJECT = 1, BATCH_OBJECT };

/* The first member of an object. A handle that was removed is never valid again, and none of a process is valid in its child. */
struct object {
	uintptr_t id;
	enum kind kind;
	void (*end)(struct object *);  /* called when it is removed and has no users */
};

HIDDEN int object_add(struct object *o, enum kind kind, void (*end)(struct object *)); /* 0, or CU_FILE_NOMEM_ERROR */
HIDDEN void *object_take(void *handle, enum kind kind);                               /* NULL: no such object */
HIDDEN void object_give(void *object);
HIDDEN int object_remove(void *handle, enum kind kind);                               /* whether there was one */
HIDDEN void object_remove_all(void);
HIDDEN void object_each(enum kind kind, int (*f)(struct object *, void *), void *arg); /* until f returns other than 0 */
static inline void *handle_of(struct object *o) { return (void *)o->id; }

/* ---- The driver: what is open ---- */

HIDDEN void driver_use(void); /* as the first call of many functions does */
HIDDEN int driver_is_open(void);
HIDDEN status driver_open(void);
HIDDEN status driver_close(void);
HIDDEN long driver_count(void);

/* ---- Files ---- */

struct mount;
struct window;

/* How a small read of a file of LaneFS's goes. */
enum way { BY_LANES, BY_CACHE, WAYS };

struct choice { uint32_t calls, ns[WAYS] /* about what a way takes for a read */; enum way tried; }; /* atomic */

struct file {
	struct object object;
	int fd;               /* the library's own duplicate */
	int buffered;         /* likewise without O_DIRECT, or -1 */
	int number, flags;    /* of the descriptor that the program gave */
	struct stat st;
	struct mount *mount;  /* NULL: not on LaneFS */
	uint32_t opened;      /* handle of lanefs_open */
	void *next;           /* handle of the next library, or NULL */
	pthread_mutex_t lock; /* protects windows */
	struct window *windows;
	int unseen;           /* atomic: the kernel does not say what is in the page cache */
	struct choice small[2][2][3]; /* by whether they go together, whether the memory is a GPU's, and size */
	char name[128];       /* for traces */
};

HIDDEN status file_register(void **handle, int type, int fd);
HIDDEN void file_deregister(void *handle);
/*
 * -1 with errno: the program has closed this descriptor of the library's, whose number may be another file's. A write asks before, a read when it has the
 * bytes: of a GPU's memory while these are copied, since to ask takes a tenth of the time that a small read does.
 */
HIDDEN int file_lost(const struct file *f, int fd);
HIDDEN int file_lost_any(const struct file *f);
struct statx;
HIDDEN int file_is(const struct file *f, const struct statx *x); /* whether what was asked is about f */

/* ---- Buffers ---- */

struct buffer {
	const char *base;
	size_t length;
	int flags, gpu;       /* gpu: whether a GPU knew the memory */
	int next;             /* registered with the next library */
};

HIDDEN status buffer_register(const void *base, size_t length, int flags);
HIDDEN status buffer_deregister(const void *base);
HIDDEN void buffer_forget_all(void);
HIDDEN int buffer_find(const void *base, struct buffer *out);
HIDDEN void buffer_next(const void *base); /* registers it with the next library as well */

/* ---- Memory ---- */

/* What memory is to be for: to be written to, or only read. UNASKED: whether ordinary memory is there its copies find out. */
enum use { TO_READ, TO_WRITE, UNASKED };
/* Finds out how n bytes at p are reached, and that they can be used so. 0, or a negative CUfileOpError. */
HIDDEN int memory_at(const void *p, size_t n, enum use use, struct target *t);
/* What a call gives whose ordinary memory is not there, or may not be used so. */
HIDDEN int memory_none(const struct target *t);
/* Whether a kernel may write to all of the memory that was asked for. */
static inline int kernels_may(const struct target *t) { return t->device && t->whole && t->kernels; }
/* Whether the thread used p's allocation last and a copy to there may be tried, TO_KNOWN, which the driver refuses if p is nothing of a GPU's by now. */
HIDDEN int memory_known(const void *p, size_t n, struct target *t);

/* Until memory_asked(0) what the thread has found out about an allocation is not asked again: of moves that go together. */
HIDDEN void memory_asked(int once);

/* A stream of the library's own on a GPU, on which work of the program is not waited for. */
HIDDEN void *stream_new(struct gpu *g);
HIDDEN void stream_free(struct gpu *g, void *stream);
HIDDEN int stream_wait(struct gpu *g, void *stream); /* not 0: also if it is captured. g: NULL, the memory is none of a GPU's, but what is on the stream may use it all the same */

/*
 * Pinned memory of one thread's small copies, and a word in it to which the GPU stores a number when a copy has ended: to poll it takes less than to ask
 * the driver.
 */
struct pinned {
	uint64_t device;      /* where the GPU addresses it; 0: it cannot */
	_Atomic uint32_t *word;
	uint64_t word_device;
	uint32_t number;      /* the last one */
	int no_value;         /* the driver stores none */
};

/* A copy on a stream. copy_end waits for it; meanwhile, which is some µs, the CPU can do something else. */
enum copy_kind {
	COPY_ANY,
	TO_DEVICE,
	TO_KNOWN,             /* the same, and the driver is to refuse what is no device memory: never as rows, never by a kernel */
	FROM_DEVICE,
	IN_DEVICE             /* the other memory of those above is the CPU's, pinned */
};
struct copying {
	struct gpu *gpu;
	void *stream;
	struct was was;
	uint64_t begun;       /* ns, of one that waits for the process's turn on the GPU; else 0 */
	const struct pinned *told; /* whose word tells its end; NULL: none */
	int counted;          /* in gpu->copying */
	struct copier *copier; /* the kernel that copies; NULL: the driver does. If it has not what is below is copied by the driver after all */
	enum copy_kind kind;
	void *to;
	const void *from;
	size_t n;
};
/*
 * p: from is in its memory; NULL: it is not such memory. kernel: where a kernel finds from; 0: no kernel may copy. One that writes to what is no memory ends the program's context, where a copy of the
 * driver's is refused: so only if the driver has just said that all of the other memory is one allocation, where kernels may write (kernels_may).
 */
HIDDEN int copy_begin(struct copying *c, struct gpu *g, void *stream, enum copy_kind kind, void *to, const void *from, size_t n, struct pinned *p, uint64_t kernel);
HIDDEN int copy_end(const struct copying *c);
HIDDEN int copy_on(struct gpu *g, void *stream, enum copy_kind kind, void *to, const void *from, size_t n); /* one for which the caller waits by stream_wait */
HIDDEN int copy_now(struct gpu *g, void *stream, enum copy_kind kind, void *to, const void *from, size_t n);

/*
 * A kernel that stays for the thread's small copies to a GPU, which is entered. copier_begin counts the copy, and may have one launched for those to come. NULL: this copy is not for it; from as kernel
 * above. copier_end: the driver's error; -1: the piece has not been copied, and will not be.
 */
struct copier;
HIDDEN struct copier *copier_begin(struct gpu *g, void *to, uint64_t from, size_t n);
HIDDEN int copier_end(struct copier *c);
HIDDEN void copier_ended(void); /* a copy of the thread's has, whatever made it */
HIDDEN int copier_there(struct gpu *g); /* whether there is one now */

/* ---- Roads ---- */

enum road { ROAD_SHARED, ROAD_STAGE, ROAD_CACHE, ROAD_NEXT, ROAD_PLAIN, ROADS };

/* A call on its way. */
struct move {
	int read;
	struct file *file;
	const void *base;     /* as the program gave it, and the offset from it */
	off_t at;
	char *memory;         /* base + at */
	size_t n;
	off_t offset;
	struct target target;
	int known;            /* the target is what the thread used last, and the driver was not asked: for TO_KNOWN only */
	enum road road;       /* set by who moved it */
};

HIDDEN ssize_t move_bytes(struct move *m); /* checks, chooses, moves, counts */
HIDDEN ssize_t move_failed(const struct move *m, ssize_t n); /* a result as the program gets it */
HIDDEN int move_check(struct move *m, off_t *end); /* of one of LaneFS: checks, and cuts a read at the file's end, which is asked for where *end is -1 */

/* What moves that go together need room for: arrays of as many elements as there may be moves. */
struct many {
	struct move **m;
	ssize_t *result;             /* bytes, a negative errno, or a negative CUfileOpError */
	unsigned char *open, *same;  /* many.c's own, as the rest */
	struct window **window;      /* map.c's own: from where a move is being copied */
	struct lanefs_piece *piece;
	int64_t *got;
	size_t *of;                  /* of pieces: which move */
	size_t n, left;              /* left: that are not done */
};

HIDDEN int many_new(struct many *a, size_t most); /* 0, or CU_FILE_NOMEM_ERROR */
HIDDEN void many_free(struct many *a);
HIDDEN void many_done(struct many *a, size_t i, ssize_t result); /* a move has ended */
HIDDEN void move_many(struct many *a, size_t n); /* moves the first n of a->m, of one file of LaneFS in one direction, and counts them */
HIDDEN int move_syncs(const struct move *m); /* whether it is a write that must be durable when it ends: to a descriptor of O_SYNC or O_DSYNC */
HIDDEN int move_sync(const struct move *m); /* makes it so, if it is. 0, or -1 with errno */
HIDDEN ssize_t move_call(void *handle, int read, const void *base, size_t n, off_t offset, off_t at);

HIDDEN struct mount *mount_find(int fd, const struct stat *st); /* NULL with ENOTSUP: not on LaneFS */
HIDDEN void mount_take(struct mount *m); /* one more user */
HIDDEN void mount_give(struct mount *m);
HIDDEN void mount_forget_all(void);
HIDDEN int mount_open(struct mount *m, int fd, uint32_t *opened);
HIDDEN void mount_release(struct mount *m, uint32_t opened);
HIDDEN lanefs *mount_session(struct mount *m);
HIDDEN int mount_gone(struct mount *m);
HIDDEN lanefs_stage *mount_stage(struct mount *m); /* for a stream. NULL: there is none, now */
HIDDEN void mount_stage_free(struct mount *m, lanefs_stage *stage); /* waits for what it has on its stream */
HIDDEN ssize_t lane_move(struct move *m);
/* Pieces of m's file, in m's direction, between it and base, which is memory as m's is: as lanefs_batch_of. */
HIDDEN ssize_t lane_batch(const struct move *m, int fd, void *base, const struct lanefs_piece *piece, const unsigned char *same, size_t n, int64_t *results);
HIDDEN ssize_t lane_failed(const struct failure *f); /* turns how a call of the SDK failed into a result */
/* Whether an errno of the SDK's says that the connection has ended, or that the mount is about to. */
static inline int lane_ended(int code) { return code == ECONNRESET || code == EPIPE || code == ESHUTDOWN; }

/* Reads from memory that is shared with the daemon. -2: this road is not the one to take now. */
HIDDEN ssize_t map_move(struct move *m);
/* A read went by the page cache, than which a copy from a window is quicker, if it is not a small one: it pays for the window, too. The lanes are tried too seldom for that. */
HIDDEN void map_note(struct move *m);
HIDDEN void map_many(struct many *a); /* likewise of those that are open and larger than SMALL_IN_BATCH. Which have ended it says by many_done */
HIDDEN void map_forget(struct file *f);
/* Bytes: up to there a read may go by the page cache. In a batch a pread after another takes longer than the lanes do for larger ones (an H100's
 * machine: 64 of 64 KiB 13 and 9 µs each). Larger ones in a batch are copied from shared memory, where there is some. */
enum { ELSEWHERE = -2, SMALL = 64 << 10, SMALL_IN_BATCH = 16 << 10 };

HIDDEN ssize_t plain_move(struct move *m); /* by pread and pwrite; with ROAD_CACHE by the page cache */

struct chosen {
	enum way way;
	struct choice *of; /* NULL: there was none */
	uint32_t start, n;
};
HIDDEN void choose(const struct move *m, size_t n, struct chosen *c); /* m: the largest of n reads that go together */
HIDDEN void chose(const struct chosen *c, int whole); /* it has ended, and moved all that it was to */
HIDDEN void choose_again(struct file *f); /* what the lanes take is another time from now on: they are tried by the next read */

HIDDEN void *next_library(void); /* loads it; NULL: there is none */
HIDDEN int next_loaded(void);
HIDDEN void *next_function(const char *name); /* without the prefix */
HIDDEN status next_file(struct file *f, int type, int fd);
HIDDEN void next_file_end(struct file *f);
HIDDEN ssize_t next_move(struct move *m);

/* ---- Parameters ---- */

enum { SIZES = 12, BOOLS = 12, STRINGS = 3, STRING = 256, SLABS = 16 };
HIDDEN status param_get_size(int which, size_t *value);
HIDDEN status param_set_size(int which, size_t value, int late);
HIDDEN status param_range(int which, size_t *least, size_t *most);
HIDDEN status param_get_bool(int which, bool *value);
HIDDEN status param_set_bool(int which, bool value, int late);
HIDDEN status param_get_string(int which, char *value, int n);
HIDDEN status param_set_string(int which, const char *value);
HIDDEN status param_set_slabs(const size_t *sizes, const size_t *counts, int n);
HIDDEN status param_get_slabs(size_t *sizes, size_t *counts, int n);
HIDDEN void param_tell_next(void); /* what the program has set */
HIDDEN size_t param_size(int which);
HIDDEN bool param_bool(int which);

/* ---- Streams and batches ---- */

HIDDEN status stream_register(void *stream, unsigned flags);
HIDDEN status stream_deregister(void *stream);
HIDDEN void stream_forget_all(void);
HIDDEN status stream_move(void *handle, int read, void *base, size_t *n, off_t *offset, off_t *at, ssize_t *result, void *stream);

HIDDEN status batch_new(void **handle, unsigned most);
HIDDEN status batch_submit(void *handle, unsigned n, const CUfileIOParams_t *p, unsigned flags);
HIDDEN status batch_status(void *handle, unsigned least, unsigned *n, CUfileIOEvents_t *events, const struct timespec *timeout);
HIDDEN status batch_cancel(void *handle);
HIDDEN void batch_end(void *handle);

/* ---- What happened ---- */

HIDDEN void count_bytes(enum road road, int read, size_t n);
HIDDEN void count_call(int failed);
HIDDEN void count_failed(void); /* of a call that was counted as one that has not */
HIDDEN void count_failed_request(void); /* of a batch */
HIDDEN void count_batch(size_t n); /* requests that went to LaneFS as one */
HIDDEN int tracing(void);
HIDDEN void trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
HIDDEN const char *road_name(enum road road);

/* The time in µs. */
static inline uint64_t now_us(void) { return now_ns() / 1000; }

/* In a loop that waits for another processor. */
static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Traces a call that returns a status, and counts it. */
HIDDEN status traced(status s, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum event { DID_HANDLE, DID_HANDLE_END, DID_BUFFER, DID_BUFFER_END, DID_BATCH_SETUP, DID_BATCH_SUBMIT, DID_BATCH_CANCEL, DID_BATCH_DESTROY };
HIDDEN void stats_event(enum event e, int failed, uint64_t n);
HIDDEN void stats_move(const struct move *m, ssize_t result, uint64_t us);
HIDDEN void stats_batch(const struct move *m, ssize_t result, uint64_t us);
HIDDEN void stats_together(void); /* requests went to LaneFS as one */

#endif
