/* What a stage's two files share: stage.c moves between files and the stage, stagegpu.c between the stage and the program's memory. */
#ifndef LANEFS_STAGE_H
#define LANEFS_STAGE_H

#include "gpu.h"

enum { PARTS = 4, ENTRIES = 1024, REQUEST = 1 << 20, PIECE = 64 << 10 };

/* A request of a batch: a part of one of its pieces. */
struct entry {
	char *at;        /* in the program's memory */
	uint64_t stage;  /* offset in the stage */
	uint64_t length, file_offset;
	size_t piece;    /* of the batch */
};

/* What the kernel copies: kernels/gather.h. */
struct copy { uint64_t dst, src, bytes; };

/* How a batch's memory is reached. */
struct target {
	struct gpu *gpu; /* NULL: by the CPU */
	int kernels;     /* whether a kernel may address it */
	void *stream;
};

/* A part of the stage. Parts are used in turn. */
struct part {
	uint64_t start, used; /* offset in the stage, bytes */
	unsigned n, pending;  /* entries, and requests that have no completion */
	struct entry entry[ENTRIES];
	struct copy *copy;    /* the kernel's table, in the stage */
	struct gpu *gpu;      /* of the event */
	void *event;          /* after the last copy from or to the part */
	int busy;             /* the event is to be waited for */
};

struct lanefs_stage {
	lanefs *s;
	lanefs_ring *ring;
	uint32_t memory;      /* handle */
	char *data;
	size_t size, each;    /* of the mapping, of a part's data */
	struct gpu *gpu;      /* with which the stage is registered */
	uint64_t device;      /* address of data for its kernels */
	struct part part[PARTS];
	struct lanefs_rungs rungs;
};

/* Finds out how memory at p is reached. */
HIDDEN int lanefs_stage_target(struct lanefs_stage *st, const void *p, void *stream, struct target *t);

/* Begins to copy a part's entries, out of the stage (read) or into it, and counts them. */
HIDDEN int lanefs_stage_move(struct lanefs_stage *st, struct part *p, const struct target *t, int read);

/* Waits until the copies that lanefs_stage_move began have ended. */
HIDDEN int lanefs_stage_settle(struct part *p);

/* Ends what the GPU knows of the stage. No copy is under way. */
HIDDEN void lanefs_stage_forget(struct lanefs_stage *st);

#endif
