/*
 * LaneFS in C: files of a LaneFS mount as device memory. Link with -llanefs; no library but libc is needed.
 *
 * The nouns. A session is a connection to the daemon of one mount. A buffer is device memory: a range of a file, shared by
 * all who map it, or the program's own to write to and commit. A ring moves ranges of files into and out of memory that the
 * program has registered. Offsets and lengths are bytes.
 *
 * Functions return -1 (or NULL) with errno set where they fail; lanefs_error() says more. They may be called from any
 * thread; a ring belongs to one thread at a time.
 */
#ifndef LANEFS_H
#define LANEFS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lanefs lanefs;
typedef struct lanefs_ring lanefs_ring;

/* What device memory is, and so what its descriptors are. */
enum lanefs_kind {
	LANEFS_MEMFD = 1,  /* ordinary memory: the host runtime */
	LANEFS_DMABUF = 2,
	LANEFS_POSIX = 3,  /* CUDA's and HIP's handles: cuMemImportFromShareableHandle */
	LANEFS_IPC = 4,    /* a memfd with an IPC handle of HSA in it */
};

struct lanefs_facts {
	char runtime[8];   /* "host", "cuda", "hip" */
	char device[64];   /* its PCI address; empty for the host runtime */
	char name[64];
	enum lanefs_kind kind;
	uint64_t granule;  /* of memory */
	uint64_t pool_size;
};

/* Connects to the daemon of the mount that fd is on. ENOTSUP: fd is not on a LaneFS mount that gives out device memory. */
lanefs *lanefs_connect(int fd);

/* Ends the session and all it gave, but for memory that is still mapped. Of a child that was forked, only what it has of it. */
void lanefs_close(lanefs *s);

const struct lanefs_facts *lanefs_facts(const lanefs *s);

/* What the calling thread's last failure was, in words. */
const char *lanefs_error(void);

/* Flags of lanefs_map. */
#define LANEFS_PRIVATE 1u /* memory of one's own, to write to; fd must be open for reading and writing */
#define LANEFS_EMPTY 2u   /* with LANEFS_PRIVATE: zeroes instead of the file's bytes */

struct lanefs_buffer {
	void *data;          /* NULL where the CPU does not reach the memory */
	size_t size;
	uint64_t generation; /* of the file's range, when it was read; 0 with LANEFS_PRIVATE */
	uint64_t file_size;  /* likewise */
	int fd;              /* the memory, for lanefs_gpu_map or another library. Closed by lanefs_unmap */
	enum lanefs_kind kind;
	uint64_t offset;     /* of data in the memory */
	uint64_t memory;     /* size of the memory */
	uint32_t handle;     /* for rings */
	uint64_t fd_offset;  /* of the memory in what fd is */
	void *mapped, *device, *base, *gpu, *external; /* the library's own */
};

/* Gives length bytes of fd from offset in device memory; length 0 is to the end of the file. fd may be closed afterwards. */
int lanefs_map(lanefs *s, int fd, uint64_t offset, uint64_t length, unsigned flags, struct lanefs_buffer *b);

/*
 * Maps a buffer for the GPU that its memory belongs to, in CUDA's primary context of the device or on HIP's device, and gives its
 * address there, for kernels and copies. The GPU's library is opened at run time. Only LANEFS_PRIVATE memory may be written to.
 */
int lanefs_gpu_map(lanefs *s, struct lanefs_buffer *b, void **address);

/*
 * Gives a buffer back. Where lanefs_gpu_map has mapped it, this waits first for all that the program has under way on the device.
 * What the program has mapped of fd by itself it unmaps itself, after it has waited for the device: unmapping does not wait.
 */
void lanefs_unmap(lanefs *s, struct lanefs_buffer *b);

/* The generation that the buffer's range of its file has now: another one than b->generation once the file has changed, or the
 * daemon has gone, so that nobody knows. */
uint64_t lanefs_latest(const lanefs *s, const struct lanefs_buffer *b);

/* Waits until some buffer may have a new generation: 1, or 0 after timeout milliseconds. Once the daemon has gone, all have. */
int lanefs_wait(lanefs *s, int timeout);

/* Writes length bytes from start of b to fd at offset; they are durable when it returns. */
int lanefs_commit(lanefs *s, int fd, uint64_t offset, const struct lanefs_buffer *b, uint64_t start, uint64_t length);

/* Has the daemon import memory of the program's, size bytes at offset of fd, a multiple of 4096. Gives a handle. */
int lanefs_register(lanefs *s, int fd, enum lanefs_kind kind, uint64_t offset, uint64_t size, uint32_t *handle);

/* Lets rings name the file fd. How it was opened says what may be done with it. Gives a handle. */
int lanefs_open(lanefs *s, int fd, uint32_t *handle);

/* Ends a handle of lanefs_register or lanefs_open, after requests that name it. */
int lanefs_release(lanefs *s, uint32_t handle);

enum lanefs_op {
	LANEFS_READ = 1,  /* file to memory */
	LANEFS_WRITE = 2, /* memory to file */
	LANEFS_SYNC = 3,  /* make the file durable */
};

struct lanefs_request {
	uint64_t data;          /* comes back with the completion */
	uint32_t op;
	uint32_t file, memory;  /* handles */
	uint32_t reserved;
	uint64_t file_offset, memory_offset, length; /* of any alignment */
	uint64_t reserved2[2];
};

struct lanefs_completion {
	uint64_t data;
	int64_t result; /* bytes, fewer than asked for only at the end of the file; or an errno, negative */
	uint64_t reserved[2];
};

/* A ring of so many requests in flight, a power of two. */
lanefs_ring *lanefs_ring_new(lanefs *s, unsigned entries);

/* Submits up to n requests, as many as there is room for, and says how many. */
int lanefs_ring_submit(lanefs_ring *r, const struct lanefs_request *q, unsigned n);

/* Takes up to n completions; waits for the first one, at most timeout milliseconds (-1: for ever). ECONNRESET:
 * the daemon has gone, and no more will come. */
int lanefs_ring_reap(lanefs_ring *r, struct lanefs_completion *c, unsigned n, int timeout);

void lanefs_ring_free(lanefs_ring *r);

#ifdef __cplusplus
}
#endif
#endif
