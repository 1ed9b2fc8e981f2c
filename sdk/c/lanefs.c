/* The protocol is described in LaneFS's docs/SPEC.md. Numbers on the wire are little-endian, and so is this machine. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "a little-endian machine is needed"
#endif

enum { VERSION = 1, MAX_MESSAGE = 1024, MAX_RIGHTS = 4 };

struct header { uint16_t type, zero; uint32_t length, tag; int32_t status; };
struct hello { char magic[8]; uint16_t least, most; uint32_t zero; };
struct hello_reply { uint16_t version, runtime; uint32_t kind; uint64_t granule, pool_size; uint32_t slots; uint16_t writable, more; char device[64], name[64]; };
struct device { uint32_t index, zero; char device[64]; };
struct device_reply { uint32_t index, kind; uint64_t granule, pool_size; char device[64], name[64]; };
struct map { uint64_t offset, length; uint32_t flags, zero; };
struct map_reply { uint32_t handle, kind; uint64_t offset, length, memory, generation, file_size, fd_offset; };
struct release { uint32_t handle, flags; };
enum { BRIEF = 1, ASK = 2 }; /* of flags */
struct commit { uint32_t handle, zero; uint64_t memory_offset, file_offset, length; };
struct commit_reply { uint64_t written; };
struct reg { uint32_t kind, zero; uint64_t fd_offset, size; };
struct reg_reply { uint32_t handle, zero; };
struct open_request { uint64_t zero; };
struct open_reply { uint32_t handle, access; uint64_t size; };

SIZE(struct header, 16); SIZE(struct hello, 16); SIZE(struct hello_reply, 160); SIZE(struct device, 72); SIZE(struct device_reply, 152); SIZE(struct map, 24); SIZE(struct map_reply, 56);
SIZE(struct release, 8); SIZE(struct commit, 32); SIZE(struct commit_reply, 8); SIZE(struct reg, 24); SIZE(struct reg_reply, 8);
SIZE(struct open_request, 8); SIZE(struct open_reply, 16); SIZE(struct lanefs_moved, 120);

struct lanefs {
	struct own socket, event;
	pid_t owner;           /* process that connected: a forked child must not use the connection */
	struct asking asking;
	struct guard lock;     /* one request at a time */
	uint32_t tag, late;    /* late: requests that were given up before their replies came. Both are protected by lock */
	const _Atomic uint64_t *board;
	size_t board_size;
	struct lanefs_facts facts;
};

const char lanefs_gone_text[] = "the mount's daemon has gone", lanefs_no_memory_text[] = "the memory is not there, or may not be used so: was it freed?";
static _Thread_local char error_text[MAX_MESSAGE];
static _Thread_local int of_gpu;

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U /* Linux 6.3; vm.memfd_noexec=2 asks for it */
#endif

int lanefs_memfd(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	return fd < 0 && errno == EINVAL ? memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

const char *lanefs_error(void) { return error_text; }

int lanefs_fail(int code, const char *text)
{
	snprintf(error_text, sizeof error_text, "%s", text ? text : strerror(code));
	of_gpu = 0;
	errno = code;
	return -1;
}

void lanefs_failed(struct failure *f)
{
	*f = (struct failure){.code = errno ? errno : EIO, .gpu = of_gpu};
	memcpy(f->text, error_text, sizeof f->text - 1); /* the last one is 0 */
}

int lanefs_fail_as(const struct failure *f)
{
	lanefs_fail(f->code, f->text[0] ? f->text : NULL);
	of_gpu = f->gpu;
	return -1;
}

static void close_all(const int *fds, int n)
{
	int saved = errno;
	while (n > 0)
		close(fds[--n]);
	errno = saved;
}

static int transmit(lanefs *s, const void *head, const void *body, size_t n, int pass)
{
	struct iovec iov[2] = {{(void *)head, sizeof(struct header)}, {(void *)body, n}};
	union { struct cmsghdr align; char b[CMSG_SPACE(sizeof(int))]; } control = {0};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
	if (pass != NO_FD) {
		m.msg_control = control.b;
		m.msg_controllen = sizeof control.b;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &pass, sizeof(int));
	}
	ssize_t sent = TOLD(&s->asking, sendmsg(s->socket.fd, &m, MSG_NOSIGNAL));
	if (sent < 0 && errno == EINTR)
		return -1; /* the program's function has ended the wait */
	return sent < 0 ? lanefs_fail(errno, errno == EPIPE || errno == ECONNRESET ? lanefs_gone_text : NULL) : 0;
}

/* Receives a message into packet and its rights into fds. Returns its length. count -1: the process had no descriptor left for one of them, and has none of them. */
static ssize_t receive(int fd, char *packet, int *fds, int *count)
{
	struct iovec iov = {packet, MAX_MESSAGE};
	union { struct cmsghdr align; char b[CMSG_SPACE(16 * sizeof(int))]; } control;
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.b, .msg_controllen = sizeof control.b};
	ssize_t n = AGAIN(recvmsg(fd, &m, MSG_CMSG_CLOEXEC));
	*count = 0;
	if (n <= 0)
		return lanefs_fail(n ? errno : ECONNRESET, lanefs_gone_text);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		int got = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (int i = 0; i < got; i++) {
			int one;
			memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof one);
			if (*count < MAX_RIGHTS)
				fds[(*count)++] = one;
			else
				close(one);
		}
	}
	if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		close_all(fds, *count);
	if (m.msg_flags & MSG_TRUNC)
		return lanefs_fail(EPROTO, "the daemon sent a malformed reply");
	if (m.msg_flags & MSG_CTRUNC)
		*count = -1;
	return n;
}

/* Gives back what the reply to a request has that was given up, or could not be received. Of its own reply the next call thinks likewise. */
static void give_back(lanefs *s, const char *packet, size_t size, const int *fds, int count)
{
	struct header r;
	struct release q = {.flags = BRIEF};
	close_all(fds, count);
	memcpy(&r, packet, sizeof r);
	int type = r.type & ~REPLY;
	if (r.status || size < sizeof r + sizeof q.handle || (type != MAP && type != REGISTER && type != OPEN && type != RING))
		return;
	memcpy(&q.handle, packet + sizeof r, sizeof q.handle); /* their replies begin with it */
	struct header h = {.type = RELEASE, .length = sizeof h + sizeof q, .tag = ++s->tag};
	if (transmit(s, &h, &q, sizeof q, NO_FD) == 0)
		s->late++;
}

/* The reply to the request of a tag. The caller holds lock. */
static ssize_t reply_to(lanefs *s, uint32_t tag, char *packet, int *fds, int *count)
{
	for (;;) {
		struct header r;
		ssize_t size = lanefs_readable(&s->asking, s->socket.fd);
		if (size) {
			s->late++;
			return size;
		}
		if ((size = receive(s->socket.fd, packet, fds, count)) < (ssize_t)sizeof r || !s->late)
			return size;
		memcpy(&r, packet, sizeof r);
		if (r.tag == tag)
			return size;
		s->late--;
		give_back(s, packet, (size_t)size, fds, *count);
	}
}

int lanefs_call(lanefs *s, uint16_t type, const void *body, size_t n, int pass, void *reply, size_t reply_size, int *fds, int want)
{
	UNCANCELLED;
	char packet[MAX_MESSAGE + 1];
	int got[MAX_RIGHTS], count = 0;
	struct header h = {.type = type, .length = (uint32_t)(sizeof h + n)};
	if (s->owner != getpid())
		return lanefs_fail(EPERM, "the session is that of the process that forked this one: connect again");
	if (lanefs_lock(&s->asking, &s->lock))
		return -1;
	h.tag = ++s->tag;
	/* A daemon that refuses a Hello before it has read it closes the socket. Its reply has the reason. */
	int failed = lanefs_is_own(&s->socket) ? transmit(s, &h, body, n, pass) && !(type == HELLO && errno == EPIPE) : lanefs_lost();
	ssize_t size = failed ? -1 : reply_to(s, h.tag, packet, got, &count);
	if (size >= (ssize_t)sizeof h && count < 0)
		give_back(s, packet, (size_t)size, got, count);
	lanefs_unlock(&s->lock);
	if (size < 0)
		return -1;
	struct header r;
	int result = -1;
	if ((size_t)size < sizeof r)
		lanefs_fail(EPROTO, "the daemon sent a malformed reply");
	else {
		memcpy(&r, packet, sizeof r);
		packet[size] = 0;
		if (r.length != (size_t)size || r.type != (type | REPLY) || (r.tag != h.tag && (type != HELLO || !r.status))) /* a Hello may be refused before it was read */
			lanefs_fail(EPROTO, "the daemon does not speak its protocol");
		else if (r.status)
			lanefs_fail(r.status, packet[sizeof r] ? packet + sizeof r : NULL);
		else if (count < 0)
			lanefs_fail(EMFILE, "the process has no descriptors left for the daemon's reply");
		else if (count != want || (size_t)size - sizeof r != reply_size)
			lanefs_fail(EPROTO, "the daemon sent a malformed reply");
		else
			result = 0;
	}
	if (result) {
		close_all(got, count);
		return -1;
	}
	if (reply_size)
		memcpy(reply, packet + sizeof r, reply_size);
	for (int i = 0; i < count; i++)
		fds[i] = got[i];
	return 0;
}

/* The name of the socket of a file's mount. The kernel is asked, not libc: fakeroot and its like put a function in front of libc's that knows
 * nothing of this attribute, and the file would go another way. */
static ssize_t share_of(int fd, char *path, size_t size)
{
	return AGAIN(syscall(SYS_fgetxattr, fd, "system.lanefs.share", path, size));
}

static lanefs *connect_to(const struct sockaddr_un *a, int fd, const char *device, struct asking asking);

lanefs *lanefs_connect(int fd)
{
	UNCANCELLED;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	ssize_t n = share_of(fd, a.sun_path, sizeof a.sun_path - 1);
	if (n < 0) {
		if (lanefs_ended(errno)) /* of a mount whose daemon has gone: who takes that for another file system's goes another way, silently */
			lanefs_fail(ECONNRESET, lanefs_gone_text);
		else
			lanefs_fail(errno == EBADF ? EBADF : ENOTSUP, "the file is not on a LaneFS mount that gives out device memory");
		return NULL;
	}
	return connect_to(&a, fd, NULL, (struct asking){0});
}

lanefs *lanefs_connect_asking(const char *path, const char *device, int (*f)(void *), void *arg)
{
	UNCANCELLED;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof a.sun_path) {
		lanefs_fail(EINVAL, NULL);
		return NULL;
	}
	strcpy(a.sun_path, path);
	return connect_to(&a, -1, device, (struct asking){f, arg});
}

/* fd: a file of the mount, -1: none is known. device: whose memory the session gives, of a mount with several; NULL: lanefs_use knows. */
static lanefs *connect_to(const struct sockaddr_un *a, int fd, const char *device, struct asking asking)
{
	lanefs *s = calloc(1, sizeof *s);
	if (!s) {
		lanefs_fail(ENOMEM, NULL);
		return NULL;
	}
	s->event.fd = -1;
	s->owner = getpid();
	s->socket = lanefs_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	lanefs_on_wait(s, asking.f, asking.arg);
	if (s->socket.fd < 0 || TOLD(&s->asking, connect(s->socket.fd, (const struct sockaddr *)a, sizeof *a))) {
		int code = errno; /* nobody listens any more; or the daemon has ended since it was asked for its socket */
		if (code == EINTR)
			lanefs_fail(code, "the wait was ended by the program");
		else if (code == ECONNREFUSED || (share_of(fd, NULL, 0) < 0 && lanefs_ended(errno)))
			lanefs_fail(ECONNRESET, lanefs_gone_text);
		else
			lanefs_fail(code, "the daemon's socket is not reachable from here (in a container, mount its directory too)");
		lanefs_close(s);
		return NULL;
	}
	struct hello q = {.magic = {'L', 'A', 'N', 'E', 'F', 'S', 'V', 'R'}, .least = VERSION, .most = VERSION};
	struct hello_reply r;
	int fds[2];
	if (lanefs_call(s, HELLO, &q, sizeof q, NO_FD, &r, sizeof r, fds, 2)) {
		lanefs_close(s);
		return NULL;
	}
	s->event = lanefs_own(fds[1]);
	size_t board = 8 * (size_t)r.slots;
	void *b = mmap(NULL, board, PROT_READ, MAP_SHARED, fds[0], 0);
	close(fds[0]);
	if (b == MAP_FAILED) {
		lanefs_fail(errno, NULL);
		lanefs_close(s);
		return NULL;
	}
	s->board = b;
	s->board_size = board;
	static const char *const runtimes[] = {"?", "host", "cuda", "hip"};
	snprintf(s->facts.runtime, sizeof s->facts.runtime, "%s", runtimes[r.runtime < 4 ? r.runtime : 0]);
	memcpy(s->facts.device, r.device, sizeof r.device);
	memcpy(s->facts.name, r.name, sizeof r.name);
	s->facts.device[63] = s->facts.name[63] = 0;
	s->facts.kind = r.kind;
	s->facts.granule = r.granule;
	s->facts.pool_size = r.pool_size;
	s->facts.gpus = 1u + r.more;
	/* A program whose GPU is none of the mount's has stages, and the memory of the first. */
	if (r.more && lanefs_use(s, device) && (device || getenv("LANEFS_GPU"))) {
		lanefs_close(s);
		return NULL;
	}
	return s;
}

int lanefs_use(lanefs *s, const char *device)
{
	char own[64];
	struct device_reply r;
	struct device q = {.index = UINT32_MAX};
	if (!device)
		device = getenv("LANEFS_GPU");
	if (!device || !*device) {
		if (strcmp(s->facts.runtime, "host") == 0)
			device = "0";
		else if (lanefs_gpu_current(strcmp(s->facts.runtime, "hip") == 0, own, sizeof own))
			return -1;
		else
			device = own;
	}
	char *end;
	unsigned long index = strtoul(device, &end, 10);
	if (*device && !*end)
		q.index = index < UINT32_MAX ? (uint32_t)index : UINT32_MAX - 1;
	else
		snprintf(q.device, sizeof q.device, "%s", device);
	if (lanefs_call(s, USE, &q, sizeof q, NO_FD, &r, sizeof r, NULL, 0))
		return -1;
	memcpy(s->facts.device, r.device, sizeof r.device);
	memcpy(s->facts.name, r.name, sizeof r.name);
	s->facts.device[63] = s->facts.name[63] = 0;
	s->facts.kind = r.kind;
	s->facts.granule = r.granule;
	s->facts.pool_size = r.pool_size;
	return 0;
}

void lanefs_close(lanefs *s)
{
	if (!s)
		return;
	int saved = errno;
	lanefs_region_end(s, 0);
	lanefs_take_back(s, 0, -1);
	if (s->board)
		munmap((void *)s->board, s->board_size);
	if (lanefs_connected(s))
		lanefs_close_own(&s->event);
	lanefs_close_own(&s->socket);
	free(s);
	errno = saved;
}

const struct lanefs_facts *lanefs_facts(const lanefs *s) { return &s->facts; }

void lanefs_on_wait(lanefs *s, int (*f)(void *), void *arg)
{
	s->asking = (struct asking){f, arg};
	struct timeval slice = {.tv_usec = f ? 1000 * lanefs_slice(&s->asking) : 0};
	if (lanefs_is_own(&s->socket))
		setsockopt(s->socket.fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof slice);
}

const struct asking *lanefs_asking(const lanefs *s) { return &s->asking; }

/* Maps a file at an address where the processor can use its huge pages, which the daemon's memory has where the kernel makes some: to pin it for a GPU takes a tenth of the time then. */
static void *map_memory(size_t n, int prot, int fd, uint64_t offset)
{
	enum { HUGE = 2 << 20 };
	char *room = n < HUGE ? MAP_FAILED : mmap(NULL, n + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return mmap(NULL, n, prot, MAP_SHARED, fd, (off_t)offset);
	size_t before = (offset - (uintptr_t)room) & (HUGE - 1);
	void *p = mmap(room + before, n, prot, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
	int saved = errno;
	if (p == MAP_FAILED) {
		munmap(room, n + HUGE);
		errno = saved;
		return p;
	}
	if (before)
		munmap(room, before);
	munmap((char *)p + n, HUGE - before);
	return p;
}

int lanefs_map(lanefs *s, int fd, uint64_t offset, uint64_t length, unsigned flags, struct lanefs_buffer *b)
{
	struct map q = {.offset = offset, .length = length, .flags = flags};
	struct map_reply r;
	memset(b, 0, sizeof *b);
	b->fd = -1;
	if (lanefs_call(s, MAP, &q, sizeof q, fd, &r, sizeof r, &b->fd, 1))
		return -1;
	b->size = r.length;
	b->generation = r.generation;
	b->file_size = r.file_size;
	b->kind = r.kind;
	b->offset = r.offset;
	b->memory = r.memory;
	b->handle = r.handle;
	b->fd_offset = r.fd_offset;
	if (lanefs_give(s, b->handle, b->fd)) {
		close(b->fd);
		b->fd = -1;
		lanefs_unmap(s, b);
		return lanefs_fail(ENOMEM, NULL);
	}
	if (r.kind != LANEFS_MEMFD)
		return 0;
	void *p = map_memory(r.memory, flags & LANEFS_PRIVATE ? PROT_READ | PROT_WRITE : PROT_READ, b->fd, r.fd_offset);
	if (p == MAP_FAILED) {
		lanefs_fail(errno, NULL);
		int saved = errno;
		lanefs_unmap(s, b);
		errno = saved;
		return -1;
	}
	b->mapped = p;
	b->data = (char *)p + r.offset;
	if (flags & LANEFS_PRIVATE)
		lanefs_region_add(s, b->data, b->size, b->handle, b->offset); /* else batches go through the stage */
	return 0;
}

void lanefs_unmap(lanefs *s, struct lanefs_buffer *b)
{
	if (b->handle)
		lanefs_region_end(s, b->handle); /* before another thread gets memory at these addresses */
	int used = lanefs_gpu_unmap(b);
	if (b->mapped)
		munmap(b->mapped, b->memory);
	if (b->handle)
		lanefs_take_back(s, b->handle, b->fd);
	if (b->handle && !used) /* else the memory is given to nobody else before the session ends */
		lanefs_release(s, b->handle);
	memset(b, 0, sizeof *b);
	b->fd = -1;
}

int lanefs_connected(const lanefs *s) { return lanefs_is_own(&s->socket); }

int lanefs_wait_for(const lanefs *s, const struct own *d, int timeout)
{
	struct pollfd p[2] = {{.fd = s->socket.fd}, {.fd = d->fd, .events = POLLIN}};
	if (!lanefs_connected(s) || !lanefs_is_own(d))
		return lanefs_lost();
	int n = poll(p, 2, timeout);
	if (n < 0)
		return lanefs_fail(errno, NULL);
	if (!lanefs_is_own(d)) /* meanwhile */
		return lanefs_lost();
	uint64_t one;
	ssize_t got = p[1].revents & POLLIN ? 1 : 0;
	while (got > 0) /* 8 bytes for each signal, and 0 at the daemon's end */
		got = read(d->fd, &one, sizeof one);
	if (got < 0 && errno != EAGAIN && errno != EINTR)
		return lanefs_fail(errno, NULL);
	return n > 0;
}

int lanefs_gone(const lanefs *s)
{
	struct pollfd p = {.fd = s->socket.fd};
	return !lanefs_connected(s) || poll(&p, 1, 0) > 0;
}

uint64_t lanefs_noticed(const lanefs *s, const struct lanefs_buffer *b) { return b->generation ? atomic_load(&s->board[b->handle]) : 0; }

uint64_t lanefs_latest(const lanefs *s, const struct lanefs_buffer *b) { return b->generation && lanefs_gone(s) ? UINT64_MAX : lanefs_noticed(s, b); }

int lanefs_wait(lanefs *s, int timeout) { return lanefs_wait_for(s, &s->event, timeout); }

int lanefs_commit(lanefs *s, int fd, uint64_t offset, const struct lanefs_buffer *b, uint64_t start, uint64_t length)
{
	if (start > b->size || length > b->size - start)
		return lanefs_fail(EINVAL, "the range lies outside the buffer");
	if (lanefs_gpu_wait(b))
		return -1;
	struct commit q = {.handle = b->handle, .memory_offset = b->offset + start, .file_offset = offset, .length = length};
	struct commit_reply r;
	return lanefs_call(s, COMMIT, &q, sizeof q, fd, &r, sizeof r, NULL, 0);
}

int lanefs_register(lanefs *s, int fd, enum lanefs_kind kind, uint64_t offset, uint64_t size, uint32_t *handle)
{
	struct reg q = {.kind = kind, .fd_offset = offset, .size = size};
	struct reg_reply r;
	if (lanefs_call(s, REGISTER, &q, sizeof q, fd, &r, sizeof r, NULL, 0))
		return -1;
	*handle = r.handle;
	return 0;
}

int lanefs_open(lanefs *s, int fd, uint32_t *handle)
{
	struct open_request q = {0};
	struct open_reply r;
	if (lanefs_call(s, OPEN, &q, sizeof q, fd, &r, sizeof r, NULL, 0))
		return -1;
	*handle = r.handle;
	return 0;
}

int lanefs_how_moved(lanefs *s, struct lanefs_moved *m)
{
	struct open_request q = {0};
	if (lanefs_call(s, MOVED, &q, sizeof q, NO_FD, m, sizeof *m, NULL, 0))
		return -1;
	m->why[sizeof m->why - 1] = 0;
	return 0;
}

int lanefs_release(lanefs *s, uint32_t handle)
{
	UNCANCELLED;
	struct release q = {.handle = handle, .flags = BRIEF};
	struct timespec pause = {.tv_nsec = 1000000};
	lanefs_region_end(s, handle);
	for (;;) { /* other threads' calls go on between two of these, though a request that names the handle does not end */
		if (lanefs_call(s, RELEASE, &q, sizeof q, NO_FD, NULL, 0, NULL, 0) == 0)
			return 0;
		if (errno != EINPROGRESS || lanefs_asked(&s->asking))
			return -1;
		nanosleep(&pause, NULL);
		q.flags = ASK;
		if (pause.tv_nsec < 32000000)
			pause.tv_nsec *= 2;
	}
}
