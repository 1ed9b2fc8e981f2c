/*
 * LaneFS in C: files of a LaneFS mount as device memory. Link with -llanefs; no library but libc is needed.
 *
 * The nouns. A session is a connection to the daemon of one mount. A buffer is device memory: a range of a file, shared by all programs
 * that map it, or private memory that the program may write to and commit. A ring moves ranges of files into and out of memory that the
 * program has registered. Offsets and lengths are bytes.
 *
 * On failure functions return -1 (or NULL) and set errno; lanefs_error() has the text. They may be called from any thread, but only one
 * thread at a time may use a ring. None is for the handler of a signal: as malloc, they may wait there for what they have interrupted. Where that is a call of the same session or the
 * same stage it is found out, and the handler's call fails with EDEADLK.
 *
 * "Daemon errors" are those of every call that asks the daemon: ECONNRESET or EPIPE, it has ended; EPROTO, its answer is not one of the protocol; EPERM,
 * the session is that of the process that forked this one; ENOMEM, there is no memory; EMFILE, no descriptor; EINTR, EDEADLK: lanefs_on_wait.
 * "GPU errors" are those of a GPU's library: EIO, a call of it failed, and the text has its name and number; ENOMEM, likewise of memory; ENOENT, the library is not here.
 * What says nothing of errors has none.
 */
#ifndef LANEFS_H
#define LANEFS_H

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX != UINT64_MAX
#error "LaneFS is for programs with addresses of 64 bits"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lanefs lanefs;
typedef struct lanefs_ring lanefs_ring;

/* The kind of device memory and of its descriptors. */
enum lanefs_kind {
	LANEFS_MEMFD = 1,  /* ordinary memory: the host runtime */
	LANEFS_DMABUF = 2,
	LANEFS_POSIX = 3,  /* CUDA's and HIP's handles: cuMemImportFromShareableHandle */
	LANEFS_IPC = 4,    /* a memfd with an IPC handle of HSA in it */
	LANEFS_LEGACY = 5 /* a memfd with a handle of cuIpcGetMemHandle or hipIpcGetMemHandle in it (docs/SPEC.md) */
};

struct lanefs_facts {
	char runtime[8];   /* "host", "cuda", "hip" */
	char device[64];   /* PCI address, or a MIG instance's UUID; empty for the host runtime */
	char name[64];
	enum lanefs_kind kind;
	uint64_t granule;  /* bytes; unit of allocation */
	uint64_t pool_size; /* bytes */
	uint32_t gpus;     /* that the mount has; the rest is about the session's */
};

/*
 * Connects to the daemon of the mount that fd is on.
 *
 * Errors: ENOTSUP, fd is not on a LaneFS mount with a share; EBADF, fd is none; ECONNRESET, the mount's daemon has gone; EACCES, the share is another user's; EBUSY, there are too many
 * connections; EPROTONOSUPPORT, the daemon speaks another version; ENODEV, LANEFS_GPU names a GPU that the mount does not have; daemon errors.
 */
lanefs *lanefs_connect(int fd);

/*
 * Chooses the GPU whose memory the session gives, of a mount with several: by its PCI address (a MIG instance: its UUID), or its place in the
 * mount's option, a number from 0. NULL, as lanefs_connect does it: what LANEFS_GPU in the environment names so, else the GPU that is current for the calling thread,
 * else the first that the process sees; where that is none of the mount's, lanefs_connect leaves it at the mount's first.
 *
 * Errors: EBUSY, the session has memory already; ENODEV, the mount has no such GPU; daemon errors, and with NULL GPU errors.
 */
int lanefs_use(lanefs *s, const char *device);

/* Ends the session and its objects, except memory that is still mapped. In a forked child it frees only the child's copy. */
void lanefs_close(lanefs *s);

const struct lanefs_facts *lanefs_facts(const lanefs *s);

/*
 * Has f called while a call of the session or of its stages waits for the daemon, for another thread's call, or in lanefs_mark_reached for a stream: about ten times a second, and when the handler
 * of a signal has run, in the thread that waits. If it returns other than 0 the call fails at once with EINTR. What it has asked for may be done nevertheless: a
 * commit, pieces of a batch of writes, or of reads into memory of lanefs_register_at or LANEFS_PRIVATE, until that is released or unmapped. Other memory is not touched any more, and the next batch of
 * the stage waits for what is under way. A batch on a stream goes on; of one of which only a part is there the rest fails. Handles that come too late are released.
 *
 * f may do anything but free what the call uses. A call that it makes fails with EDEADLK where it would wait for the one that it interrupts: of the same session, or the same stage. Not
 * called for: lanefs_connect, lanefs_stage_free, lanefs_ring_reap and lanefs_wait, which return by themselves. Set it before other threads use the session. NULL: none, as at first.
 */
void lanefs_on_wait(lanefs *s, int (*f)(void *arg), void *arg);

/* The error text of the calling thread's last failure. */
const char *lanefs_error(void);

/* Flags of lanefs_map. */
#define LANEFS_PRIVATE 1u /* private memory, which may be written to; fd must be open for reading and writing */
#define LANEFS_EMPTY 2u   /* with LANEFS_PRIVATE: zeroes instead of the file's bytes */

struct lanefs_buffer {
	void *data;          /* NULL if the CPU cannot address the memory */
	size_t size;
	uint64_t generation; /* of the file's range when it was read; 0 with LANEFS_PRIVATE */
	uint64_t file_size;  /* when it was read */
	int fd;              /* the memory, for lanefs_gpu_map or another library. Closed by lanefs_unmap, if it is that still */
	enum lanefs_kind kind;
	uint64_t offset;     /* of data in the memory */
	uint64_t memory;     /* size of the memory */
	uint32_t handle;     /* for rings */
	uint64_t fd_offset;  /* of the memory in the object of fd */
	void *mapped, *device, *base, *gpu, *external; /* private to the library */
};

/*
 * Maps length bytes of fd at offset as device memory. length 0 means to the end of the file. fd may be closed afterwards.
 *
 * Errors: EBADF, fd is none, or O_PATH; EXDEV, it is of another mount; EACCES, it is not open for reading, or for LANEFS_PRIVATE for writing; EINVAL,
 * flags are none, or the range is empty or not in the file; ENOMEM, the pool is full, or the user has as much as one may; EMFILE, as many mappings; EIO and
 * other errors of a read of the file; daemon errors.
 */
int lanefs_map(lanefs *s, int fd, uint64_t offset, uint64_t length, unsigned flags, struct lanefs_buffer *b);

/*
 * Maps a buffer on the GPU that its memory belongs to, in CUDA's primary context of the device or on HIP's device. Stores the address
 * for kernels and copies. The GPU's library is opened at run time. Only LANEFS_PRIVATE memory may be written to.
 *
 * Errors: ENOTSUP, the memory is the CPU's (its address is b->data), or of a kind that this library cannot map; EPROTO, the daemon's handle is malformed; GPU errors.
 */
int lanefs_gpu_map(lanefs *s, struct lanefs_buffer *b, void **address);

/*
 * Releases a buffer. If lanefs_gpu_map has mapped it, this first waits for the program's work on the device. A program that has mapped fd
 * itself must wait for the device and unmap it itself.
 */
void lanefs_unmap(lanefs *s, struct lanefs_buffer *b);

/* The present generation of the buffer's range of its file. It differs from b->generation if the file has changed, and after the end of
 * the daemon. */
uint64_t lanefs_latest(const lanefs *s, const struct lanefs_buffer *b);

/*
 * Waits until a buffer may have a new generation. Returns 1, or 0 after timeout milliseconds. After the end of the daemon all have.
 *
 * Errors: EINTR, a signal came.
 */
int lanefs_wait(lanefs *s, int timeout);

/*
 * Writes length bytes at start of b to fd at offset. They are durable when it returns.
 *
 * Errors: EINVAL, the range is not in the buffer, or the buffer is not LANEFS_PRIVATE; EBADF, EXDEV, fd as with lanefs_map; EACCES, it is not open for
 * writing, or with O_APPEND; those of write(2) and fsync(2), ENOSPC and EIO for two; GPU errors; daemon errors.
 */
int lanefs_commit(lanefs *s, int fd, uint64_t offset, const struct lanefs_buffer *b, uint64_t start, uint64_t length);

/*
 * Makes the daemon import memory of the program: size bytes, a multiple of 4096, at offset of fd. Stores a handle.
 *
 * Errors: EINVAL, the range is not in the memory or not of whole pages, or fd is no memory of that kind, or could shrink; EPERM, a legacy IPC handle of neither root nor
 * the mount's user; EOPNOTSUPP, the mount's driver does not import that kind; ENOMEM, EMFILE, the user has as much as one may; EBADF, fd is none; daemon errors.
 */
int lanefs_register(lanefs *s, int fd, enum lanefs_kind kind, uint64_t offset, uint64_t size, uint32_t *handle);

/*
 * Registers memory that the program has mapped at address, so that batches into it and out of it need no stage.
 *
 * Errors: as lanefs_register.
 */
int lanefs_register_at(lanefs *s, const void *address, int fd, enum lanefs_kind kind, uint64_t offset, uint64_t size, uint32_t *handle);

/*
 * Makes the file fd known to rings. The flags with which it was opened say which requests are allowed. Stores a handle.
 *
 * Errors: EBADF, fd is none, or O_PATH; EXDEV, it is of another mount; EINVAL, it is no regular file; EMFILE, there are as many as there may be; daemon errors.
 */
int lanefs_open(lanefs *s, int fd, uint32_t *handle);

/* Requests of the session's rings that succeeded, and their bytes, by how they went. Stages use rings, too. */
struct lanefs_moved {
	uint64_t device, device_bytes; /* between the drive and registered memory of the kind of the daemon's */
	uint64_t stage, stage_bytes;   /* to ordinary memory or from it, on a mount with a GPU */
	uint64_t copied, copied_bytes; /* to a GPU's memory or from it, through a stage of the daemon's and a copy engine */
	uint32_t unreached, reserved;  /* 1: the drive does not reach the GPU's memory, so lanefs_map goes that way, too */
	char why[64];                  /* the beginning of the reason */
};

/*
 * Asks the daemon.
 *
 * Errors: EOPNOTSUPP, it is older than this; daemon errors.
 */
int lanefs_how_moved(lanefs *s, struct lanefs_moved *m);

/*
 * Closes a handle of lanefs_register or lanefs_open, after the requests that name it and were submitted before have been carried out.
 *
 * Errors: EBADF, there is no such handle; daemon errors.
 */
int lanefs_release(lanefs *s, uint32_t handle);

enum lanefs_op {
	LANEFS_READ = 1,  /* file to memory */
	LANEFS_WRITE = 2, /* memory to file */
	LANEFS_SYNC = 3  /* make the file durable */
};

struct lanefs_request {
	uint64_t data;          /* repeated by the completion */
	uint32_t op;
	uint32_t file, memory;  /* handles */
	uint32_t reserved;
	uint64_t file_offset, memory_offset, length; /* any alignment */
	uint64_t reserved2[2];
};

struct lanefs_completion {
	uint64_t data;
	int64_t result; /* bytes, fewer than length only at the end of the file; or a negative errno: EBADF, no such handle; EACCES, not opened for that;
	                   EINVAL, a range not in the memory; EOPNOTSUPP, an op that is none; ESHUTDOWN, the mount ends; those of read(2), write(2), fsync(2) */
	uint64_t reserved[2];
};

/*
 * Makes a ring for up to entries requests in flight, a power of two.
 *
 * Errors: EINVAL, entries is none or too many; EMFILE, there are as many rings as there may be; daemon errors.
 */
lanefs_ring *lanefs_ring_new(lanefs *s, unsigned entries);

/* Submits up to n requests, as many as there is room for, and returns how many. Errors: none; what is wrong with a request its completion says. */
int lanefs_ring_submit(lanefs_ring *r, const struct lanefs_request *q, unsigned n);

/*
 * Takes up to n completions and returns how many. Waits for the first one, timeout milliseconds at most (-1: for ever).
 *
 * Errors: ECONNRESET, the daemon has ended, and there are no more; EINTR, a signal came.
 */
int lanefs_ring_reap(lanefs_ring *r, struct lanefs_completion *c, unsigned n, int timeout);

void lanefs_ring_free(lanefs_ring *r);

/*
 * Batches between a file and any memory of the program: what cudaMalloc, hipMalloc, PyTorch or VMM have given, managed, pinned and plain
 * memory. They go through a stage: size bytes of ordinary memory (0: 64 MiB), registered with the daemon and, at the first use, with
 * the GPU. The memory must be reachable in the device's primary context, which the CUDA runtime and PyTorch use.
 *
 * A stage serves a batch at a time; threads wait for one another. A forked child makes a stage of its own.
 */
typedef struct lanefs_stage lanefs_stage;

/* Errors: EINVAL, size is not 1 MiB to 256 MiB; EFBIG, the program's limit of a file's size (RLIMIT_FSIZE) is below it, without SIGXFSZ; ENOMEM, EMFILE, as with lanefs_register and lanefs_ring_new; daemon errors. */
lanefs_stage *lanefs_stage_new(lanefs *s, size_t size);

/* Waits for the stage's copies on streams, and frees it. */
void lanefs_stage_free(lanefs_stage *st);

struct lanefs_piece {
	uint64_t file_offset, memory_offset, length; /* any alignment; memory_offset counts from the batch's memory */
};

/* Makes n pieces of three columns, as array languages have them, for memory of size bytes (UINT64_MAX: unknown). Errors: EINVAL, a negative number, or a
 * piece that is not within the memory. */
int lanefs_pieces(const int64_t *file_offsets, const int64_t *memory_offsets, const int64_t *lengths, size_t n, uint64_t size, struct lanefs_piece *pieces);

/*
 * Reads n pieces of a file, a handle of lanefs_open. Returns how many bytes, and in results (may be NULL) those of each piece: fewer than
 * its length at the end of the file, the rest of the memory is zero then; or a negative errno. Without results a piece's error is the call's.
 *
 * stream is a CUstream or hipStream_t, NULL the default stream. The memory is written to in the stream's order: after what is on the stream
 * now, and before what is put there after the call. The call waits for the file, not for the stream. Memory of the CPU's that is given without
 * a stream, pinned or not, is written to when the call returns. Pieces must not overlap in memory.
 *
 * A stream of a context that the program has made itself (cuCtxCreate) is waited for, and so are the copies: the call returns when they have ended. On a stream that is being captured
 * into a graph (cudaStreamBeginCapture) nothing is put. Calls on other streams, by any thread, end no capture; lanefs_unmap and lanefs_commit of a GPU's memory do, since they wait for the device.
 *
 * Errors: EINVAL, a piece is beyond the end of any file or memory, pieces are in memory of several devices, memory that no GPU knows is given with a
 * stream, or the stream is captured, or is the default one and waits for one that is; EFAULT, a piece is at NULL, ends beyond its allocation, or memory was freed, is none, or may not be used so: of a batch
 * of more than 16 KiB in ordinary memory the first and the last page are looked at, and what is missing between them, or is taken away meanwhile, ends the program (SIGSEGV, SIGBUS). Some memory may be read then; EPERM, the stage is that of the process that forked this one; ECONNRESET, the daemon has
 * ended; EINTR, EDEADLK: lanefs_on_wait; ENOMEM; GPU errors, also for a stream that is none. Of a piece: those of a completion.
 */
int64_t lanefs_read_batch(lanefs_stage *st, uint32_t file, void *memory, const struct lanefs_piece *pieces, size_t n, void *stream, int64_t *results);

/* Writes likewise what the memory holds after what is on the stream now. The call waits for both. A sync makes it durable. Errors: as lanefs_read_batch. */
int64_t lanefs_write_batch(lanefs_stage *st, uint32_t file, const void *memory, const struct lanefs_piece *pieces, size_t n, void *stream, int64_t *results);

/* A batch of one piece. Errors: as lanefs_read_batch. */
int64_t lanefs_read_into(lanefs_stage *st, uint32_t file, void *memory, uint64_t offset, uint64_t length, void *stream);
int64_t lanefs_write_from(lanefs_stage *st, uint32_t file, const void *memory, uint64_t offset, uint64_t length, void *stream);

/*
 * Batches on a stream. The call returns at once, but where the stage has no room: then it waits for the batches before it on the stage. The file is
 * read or written when the stream gets there, and what follows on the stream finds the bytes in memory, or in the file, and in *done how
 * many they are: or a negative errno, as in results (may be NULL). Both must stay until then; pieces need not. *done is written once, after results, so
 * who has put in it what it cannot become (INT64_MIN) may look whether the batch has ended. -1: nothing was put on the stream.
 *
 * Batches of a stage go in the order of the calls. For streams that do not depend on one another make a stage each. Where a GPU's streams
 * cannot wait for the host, and for memory that no GPU knows, the call does all of it.
 *
 * Errors: as lanefs_read_batch, of what is found before anything is on the stream; the rest is in *done.
 */
int lanefs_read_async(lanefs_stage *st, uint32_t file, void *memory, const struct lanefs_piece *pieces, size_t n, void *stream, int64_t *results, int64_t *done);
int lanefs_write_async(lanefs_stage *st, uint32_t file, const void *memory, const struct lanefs_piece *pieces, size_t n, void *stream, int64_t *results, int64_t *done);

/*
 * A place on a stream, for who must know when a stream has come past a batch, and has no event of the GPU's library: after a read *done is there before the
 * bytes are in memory. Make it before the batch, for an address in its memory, and set it after.
 */
typedef struct lanefs_mark lanefs_mark;

/* A mark of where the stream is now. For memory that no GPU knows it is one that is always reached. Errors: EINVAL, such memory is given with a stream; EPERM, as
 * lanefs_read_batch; EINVAL, the stream is captured, as there; ENOMEM; GPU errors, also for a stream that is none. */
lanefs_mark *lanefs_mark_new(lanefs_stage *st, const void *memory, void *stream);

/* Moves it to where the stream is now. Returns 1 if it is one that is always reached, else 0. Errors: EPERM, as lanefs_mark_reached; EINVAL, the stream is captured; GPU errors. */
int lanefs_mark_set(lanefs_mark *m);

/* Whether the stream has come to the mark: 1 or 0. wait: not before it has. Errors: EPERM, the mark is that of the process that forked this one; EINTR, lanefs_on_wait; GPU errors. */
int lanefs_mark_reached(lanefs_mark *m, int wait);

/* It waits for nothing. */
void lanefs_mark_free(lanefs_mark *m);

/* How requests of a stage, of 1 MiB at most, went on from the stage or came to it. */
struct lanefs_rungs {
	uint64_t kernel; /* many by one launch of a kernel */
	uint64_t copies; /* a copy call each, of the GPU's copy engine */
	uint64_t host;   /* by the CPU, to memory that no GPU knows */
};

void lanefs_stage_rungs(lanefs_stage *st, struct lanefs_rungs *r);

/* The checksum of a value in a slab of lanefs.kv (docs/SPEC.md): size bytes of memory that the CPU addresses. */
uint64_t lanefs_sum(const void *data, size_t size);

/* The same, with pieces of batches that needed no stage. */
struct lanefs_ways {
	uint64_t kernel, copies, host; /* as in lanefs_rungs */
	uint64_t direct;      /* into memory of lanefs_register_at or LANEFS_PRIVATE, or out of it */
	uint64_t legacy;      /* into what cudaMalloc or hipMalloc gave, by legacy IPC and the daemon's copy engine: LANEFS_LEGACY in lanefs(3) */
	uint64_t reserved[3];
};

void lanefs_stage_ways(lanefs_stage *st, struct lanefs_ways *w);

#ifdef __cplusplus
}
#endif
#endif
