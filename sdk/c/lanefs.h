/*
 * LaneFS in C: files of a LaneFS mount as device memory. Link with -llanefs; no library but libc is needed.
 *
 * The nouns. A session is a connection to the daemon of one mount. A buffer is device memory: a range of a file, shared by all programs
 * that map it, or private memory that the program may write to and commit. A ring moves ranges of files into and out of memory that the
 * program has registered. Offsets and lengths are bytes.
 *
 * On failure functions return -1 (or NULL) and set errno; lanefs_error() has the text. They may be called from any thread, but only one
 * thread at a time may use a ring.
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

/* The kind of device memory and of its descriptors. */
enum lanefs_kind {
	LANEFS_MEMFD = 1,  /* ordinary memory: the host runtime */
	LANEFS_DMABUF = 2,
	LANEFS_POSIX = 3,  /* CUDA's and HIP's handles: cuMemImportFromShareableHandle */
	LANEFS_IPC = 4,    /* a memfd with an IPC handle of HSA in it */
};

struct lanefs_facts {
	char runtime[8];   /* "host", "cuda", "hip" */
	char device[64];   /* PCI address; empty for the host runtime */
	char name[64];
	enum lanefs_kind kind;
	uint64_t granule;  /* bytes; unit of allocation */
	uint64_t pool_size; /* bytes */
};

/* Connects to the daemon of the mount that fd is on. ENOTSUP: fd is not on a LaneFS mount with a share. */
lanefs *lanefs_connect(int fd);

/* Ends the session and its objects, except memory that is still mapped. In a forked child it frees only the child's copy. */
void lanefs_close(lanefs *s);

const struct lanefs_facts *lanefs_facts(const lanefs *s);

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
	int fd;              /* the memory, for lanefs_gpu_map or another library. Closed by lanefs_unmap */
	enum lanefs_kind kind;
	uint64_t offset;     /* of data in the memory */
	uint64_t memory;     /* size of the memory */
	uint32_t handle;     /* for rings */
	uint64_t fd_offset;  /* of the memory in the object of fd */
	void *mapped, *device, *base, *gpu, *external; /* private to the library */
};

/* Maps length bytes of fd at offset as device memory. length 0 means to the end of the file. fd may be closed afterwards. */
int lanefs_map(lanefs *s, int fd, uint64_t offset, uint64_t length, unsigned flags, struct lanefs_buffer *b);

/*
 * Maps a buffer on the GPU that its memory belongs to, in CUDA's primary context of the device or on HIP's device. Stores the address
 * for kernels and copies. The GPU's library is opened at run time. Only LANEFS_PRIVATE memory may be written to.
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

/* Waits until a buffer may have a new generation. Returns 1, or 0 after timeout milliseconds. After the end of the daemon all have. */
int lanefs_wait(lanefs *s, int timeout);

/* Writes length bytes at start of b to fd at offset. They are durable when it returns. */
int lanefs_commit(lanefs *s, int fd, uint64_t offset, const struct lanefs_buffer *b, uint64_t start, uint64_t length);

/* Makes the daemon import memory of the program: size bytes, a multiple of 4096, at offset of fd. Stores a handle. */
int lanefs_register(lanefs *s, int fd, enum lanefs_kind kind, uint64_t offset, uint64_t size, uint32_t *handle);

/* Makes the file fd known to rings. The flags with which it was opened say which requests are allowed. Stores a handle. */
int lanefs_open(lanefs *s, int fd, uint32_t *handle);

/* Closes a handle of lanefs_register or lanefs_open, after requests that name it have ended. */
int lanefs_release(lanefs *s, uint32_t handle);

enum lanefs_op {
	LANEFS_READ = 1,  /* file to memory */
	LANEFS_WRITE = 2, /* memory to file */
	LANEFS_SYNC = 3,  /* make the file durable */
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
	int64_t result; /* bytes, fewer than length only at the end of the file; or a negative errno */
	uint64_t reserved[2];
};

/* Makes a ring for up to entries requests in flight, a power of two. */
lanefs_ring *lanefs_ring_new(lanefs *s, unsigned entries);

/* Submits up to n requests, as many as there is room for, and returns how many. */
int lanefs_ring_submit(lanefs_ring *r, const struct lanefs_request *q, unsigned n);

/* Takes up to n completions and returns how many. Waits for the first one, timeout milliseconds at most (-1: for ever). ECONNRESET: the
 * daemon has ended, and there are no more. */
int lanefs_ring_reap(lanefs_ring *r, struct lanefs_completion *c, unsigned n, int timeout);

void lanefs_ring_free(lanefs_ring *r);

#ifdef __cplusplus
}
#endif
#endif
