/* Run by the Go test beside this: test FILE OTHER, a file of a mount with device memory, open to read and write, whose byte i
 * is i % 251, and one that is elsewhere. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

static int right(const unsigned char *p, uint64_t off, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] != (off + i) % 251)
			return 0;
	return 1;
}

static void rings(lanefs *s, int fd, uint64_t size)
{
	enum { N = 3000, BLOCK = 4096 };
	int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	WANT(memory >= 0 && ftruncate(memory, (off_t)N * BLOCK) == 0);
	unsigned char *p = mmap(NULL, (size_t)N * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	WANT(p != MAP_FAILED);
	uint32_t m, f;
	WANT(lanefs_register(s, memory, LANEFS_MEMFD, 0, (uint64_t)N * BLOCK, &m) == 0);
	WANT(lanefs_open(s, fd, &f) == 0);
	lanefs_ring *r = lanefs_ring_new(s, 256);
	WANT(r);
	unsigned sent = 0, done = 0;
	char seen[N] = {0};
	while (done < N) {
		struct lanefs_request q[16];
		unsigned n = 0;
		for (; n < 16 && sent + n < N; n++) {
			uint64_t i = sent + n;
			q[n] = (struct lanefs_request){.data = i, .op = LANEFS_READ, .file = f, .memory = m, .file_offset = i * 7919 % (size - BLOCK), .memory_offset = i * BLOCK, .length = BLOCK};
		}
		int k = lanefs_ring_submit(r, q, n);
		WANT(k >= 0);
		sent += (unsigned)k;
		struct lanefs_completion c[32];
		k = lanefs_ring_reap(r, c, 32, k ? 0 : 60000);
		WANT(k >= 0);
		for (int i = 0; i < k; i++) {
			WANT(c[i].data < N && !seen[c[i].data] && c[i].result == BLOCK);
			seen[c[i].data] = 1;
			WANT(right(p + c[i].data * BLOCK, c[i].data * 7919 % (size - BLOCK), BLOCK));
		}
		done += (unsigned)k;
	}
	struct lanefs_request bad[] = {{.data = 1, .op = 77, .file = f, .memory = m}, {.data = 2, .op = LANEFS_READ, .file = f, .memory = 9999, .length = 1},
				       {.data = 3, .op = LANEFS_READ, .file = f, .memory = m, .memory_offset = (uint64_t)N * BLOCK, .length = 1}};
	int64_t want[] = {0, -EOPNOTSUPP, -EBADF, -EINVAL};
	WANT(lanefs_ring_submit(r, bad, 3) == 3);
	for (int i = 0; i < 3;) {
		struct lanefs_completion c;
		WANT(lanefs_ring_reap(r, &c, 1, 60000) == 1 && c.data <= 3 && c.result == want[c.data]);
		i++;
	}
	memset(p, 'w', 5000);
	struct lanefs_request w = {.data = 5, .op = LANEFS_WRITE, .file = f, .memory = m, .file_offset = 3, .memory_offset = 1, .length = 4999}, y = {.data = 6, .op = LANEFS_SYNC, .file = f};
	struct lanefs_completion c;
	WANT(lanefs_ring_submit(r, &w, 1) == 1 && lanefs_ring_reap(r, &c, 1, 60000) == 1 && c.result == 4999);
	WANT(lanefs_ring_submit(r, &y, 1) == 1 && lanefs_ring_reap(r, &c, 1, 60000) == 1 && c.result == 0);
	char back[5002];
	WANT(pread(fd, back, sizeof back, 3) == sizeof back && memcmp(back, p, 4999) == 0 && (unsigned char)back[4999] == 5002 % 251);
	struct lanefs_moved moved;
	WANT(lanefs_how_moved(s, &moved) == 0 && moved.device >= 2 && moved.device_bytes >= 4999 && !moved.stage && !moved.copied && !moved.unreached && !moved.why[0]);
	lanefs_ring_free(r);
	WANT(lanefs_release(s, m) == 0 && lanefs_release(s, f) == 0 && lanefs_release(s, f) == -1 && errno == EBADF);
	munmap(p, (size_t)N * BLOCK);
	close(memory);
}

/* Pieces of three columns. */
/* What is submitted before a release is carried out. */
static void releases(lanefs *s, int fd)
{
	enum { N = 1024, BLOCK = 4096 };
	static struct lanefs_request q[N];
	static struct lanefs_completion c[N];
	lanefs_ring *r = lanefs_ring_new(s, N);
	int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	WANT(r && memory >= 0 && ftruncate(memory, BLOCK) == 0);
	for (int round = 0; round < 20; round++) {
		uint32_t m, f;
		WANT(lanefs_register(s, memory, LANEFS_MEMFD, 0, BLOCK, &m) == 0 && lanefs_open(s, fd, &f) == 0);
		for (int i = 0; i < N; i++)
			q[i] = (struct lanefs_request){.op = LANEFS_READ, .file = f, .memory = m, .file_offset = i, .length = BLOCK};
		WANT(lanefs_ring_submit(r, q, N) == N && lanefs_release(s, round % 2 ? m : f) == 0);
		int n = lanefs_ring_reap(r, c, N, 0);
		WANT(n == N && "all have ended");
		for (int i = 0; i < n; i++)
			WANT(c[i].result == BLOCK);
		WANT(lanefs_ring_submit(r, q, 1) == 1 && lanefs_ring_reap(r, c, 1, 60000) == 1 && c[0].result == -EBADF);
		WANT(lanefs_release(s, round % 2 ? f : m) == 0);
	}
	lanefs_ring_free(r);
	close(memory);
}

static void columns(void)
{
	const int64_t good[] = {7, 0, INT64_MAX}, zero[3] = {0};
	struct lanefs_piece p[3];
	WANT(lanefs_pieces(good, zero, good, 3, UINT64_MAX, p) == 0 && p[0].file_offset == 7 && !p[0].memory_offset && p[0].length == 7 && p[2].length == INT64_MAX);
	for (int column = 0; column < 3; column++)
		for (int known = 0; known < 2; known++) {
			int64_t bad[] = {0, 0, -1};
			WANT(lanefs_pieces(column == 0 ? bad : zero, column == 1 ? bad : zero, column == 2 ? bad : zero, 3, known ? 100 : UINT64_MAX, p) == -1 && errno == EINVAL);
			WANT(strstr(lanefs_error(), "negative"));
		}
	/* Within 100 bytes: to the end, and one more. */
	for (int more = 0; more < 2; more++) {
		int64_t start[] = {100, 60, 0}, n[] = {0, 40 + more, 100};
		WANT(lanefs_pieces(zero, start, n, 3, 100, p) == -more && (!more || errno == EINVAL));
		n[1] = 40;
		n[2] += more;
		WANT(lanefs_pieces(zero, start, n, 3, 100, p) == -more && (!more || (errno == EINVAL && strstr(lanefs_error(), "within"))));
		start[0] += more;
		n[2] = 100;
		WANT(lanefs_pieces(zero, start, n, 3, 100, p) == -more);
	}
}

/* Batches into plain memory and out of it. The file is as it was at the end. */
static void batches(lanefs *s, int fd, uint64_t size)
{
	enum { N = 5000, STAGE = 1 << 20 };
	uint32_t f;
	WANT(lanefs_open(s, fd, &f) == 0);
	WANT(!lanefs_stage_new(s, 5000) && errno == EINVAL);
	lanefs_stage *st = lanefs_stage_new(s, STAGE);
	WANT(st);
	unsigned char *p = malloc(2 * size), *was = malloc(size);
	WANT(p && was && pread(fd, was, size, 0) == (ssize_t)size);

	/* The whole file, many times the stage, and more than there is. */
	memset(p, 'x', 2 * size);
	WANT(lanefs_read_into(st, f, p + 3, 0, size + 100, NULL) == (int64_t)size && memcmp(p + 3, was, size) == 0 && p[2] == 'x');
	for (int i = 0; i < 100; i++)
		WANT(p[3 + size + (unsigned)i] == 0);
	WANT(p[3 + size + 100] == 'x');

	/* Pieces of every size and alignment, more than the parts have entries. */
	struct lanefs_piece piece[N];
	static int64_t result[N];
	uint64_t at = 0, sum = 0;
	for (unsigned i = 0; i < N; i++) {
		piece[i] = (struct lanefs_piece){i * 7919 % (size - 3000), at, i * 13 % 1500};
		at += piece[i].length + i % 3;
		sum += piece[i].length;
	}
	WANT(at < 2 * size);
	memset(p, 'x', 2 * size);
	WANT(lanefs_read_batch(st, f, p, piece, N, NULL, result) == (int64_t)sum);
	for (unsigned i = 0; i < N; i++) {
		WANT(result[i] == (int64_t)piece[i].length && memcmp(p + piece[i].memory_offset, was + piece[i].file_offset, piece[i].length) == 0);
		WANT(!(i % 3) || p[piece[i].memory_offset + piece[i].length] == 'x');
	}

	/* A piece that is beyond the end, and what is no piece. */
	struct lanefs_piece ends[] = {{size - 10, 0, 20}, {size + 5, 20, 5}, {0, 25, 5}};
	WANT(lanefs_read_batch(st, f, p, ends, 3, NULL, result) == 15 && result[0] == 10 && result[1] == 0 && result[2] == 5);
	WANT(lanefs_read_batch(st, f, p, NULL, 0, NULL, NULL) == 0);
	WANT(lanefs_read_into(st, f, p, UINT64_MAX, 1, NULL) == -1 && errno == EINVAL);
	for (int i = 0; i < 2; i++) { /* memory before the batch's, and memory that ends there */
		struct lanefs_piece wraps = {0, i ? (uint64_t)-10 - (uintptr_t)(p + 100) : (uint64_t)-10, i ? 20 : 10};
		WANT(lanefs_read_batch(st, f, p + 100, &wraps, 1, NULL, NULL) == -1 && errno == EINVAL && lanefs_write_batch(st, f, p + 100, &wraps, 1, NULL, NULL) == -1 && errno == EINVAL);
	}
	WANT(lanefs_read_into(st, f, p, 0, (uint64_t)INT64_MAX + 1, NULL) == -1 && errno == EINVAL);
	WANT(lanefs_read_into(st, f, NULL, 0, 1, NULL) == -1 && errno == EFAULT && strstr(lanefs_error(), "NULL"));
	WANT(lanefs_write_from(st, f, (char *)NULL + 4095, 0, 1, NULL) == -1 && errno == EFAULT);
	WANT(lanefs_read_into(st, f, p, 0, 1, p) == -1 && errno == EINVAL && strstr(lanefs_error(), "stream"));
	WANT(lanefs_read_into(st, f + 77, p, 0, 1, NULL) == -1 && errno == EBADF);
	WANT(lanefs_read_batch(st, f + 77, p, ends, 1, NULL, result) == 0 && result[0] == -EBADF);

	/* Back, at other places; and what was there. */
	for (uint64_t i = 0; i < size; i++)
		p[i] = (unsigned char)~was[i];
	WANT(lanefs_write_from(st, f, p, 0, size, NULL) == (int64_t)size);
	unsigned char *now = malloc(size);
	WANT(now && pread(fd, now, size, 0) == (ssize_t)size && memcmp(now, p, size) == 0);
	for (unsigned i = 0; i < 3; i++)
		ends[i] = (struct lanefs_piece){1000 * i + 1, 5000 * i, 999};
	WANT(lanefs_write_batch(st, f, was, ends, 3, NULL, result) == 3 * 999);
	WANT(pread(fd, now, size, 0) == (ssize_t)size && memcmp(now + 1001, was + 5000, 999) == 0 && memcmp(now + 3000, p + 3000, size - 3000) == 0);
	WANT(lanefs_write_from(st, f, was, 0, size, NULL) == (int64_t)size);

	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		int ok = lanefs_read_into(st, f, p, 0, 1, NULL) == -1 && errno == EPERM;
		lanefs_stage_free(st);
		_exit(!ok);
	}
	int status;
	struct lanefs_rungs r;
	WANT(waitpid(child, &status, 0) == child && status == 0);
	lanefs_stage_rungs(st, &r);
	WANT(r.host > N && r.kernel == 0 && r.copies == 0);
	WANT(lanefs_read_into(st, f, p, 1, 4096, NULL) == 4096 && memcmp(p, was + 1, 4096) == 0);
	lanefs_stage_free(st);
	lanefs_stage_free(NULL);
	WANT(lanefs_release(s, f) == 0);
	free(p);
	free(was);
	free(now);
}

static volatile sig_atomic_t ticks;
static void tick(int sig) { ticks += sig == SIGALRM; }

/* A program whose timers go off while it waits for batches: they are whole all the same, and so are the next. */
static void signals(lanefs *s, int fd, uint64_t size)
{
	uint32_t f;
	lanefs_stage *st = lanefs_stage_new(s, 0);
	unsigned char *p = malloc(size), *want = malloc(size);
	struct sigaction on = {.sa_handler = tick}, was;
	WANT(p && want && pread(fd, want, size, 0) == (ssize_t)size && st && lanefs_open(s, fd, &f) == 0 && sigaction(SIGALRM, &on, &was) == 0);
	struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
	struct lanefs_rungs r;
	WANT(lanefs_read_into(st, f, p, 0, size, NULL) == (int64_t)size);
	lanefs_stage_rungs(st, &r);
	WANT(r.host == (size + (1 << 20) - 1) >> 20); /* requests of 1 MiB, which the daemon carries out side by side */
	WANT(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int i = 0; i < 2000 && (i < 100 || ticks < 400); i++) {
		memset(p, 'x', 4096);
		WANT(lanefs_read_into(st, f, p, 0, size, NULL) == (int64_t)size);
	}
	WANT(setitimer(ITIMER_REAL, &never, NULL) == 0 && sigaction(SIGALRM, &was, NULL) == 0);
	WANT(memcmp(p, want, size) == 0 && ticks > 0);
	lanefs_stage_free(st);
	WANT(lanefs_release(s, f) == 0);
	free(want);
	free(p);
}

/* What another thread does as soon as the library has unmapped something: it gets memory at that address, and reads a file into it. */
static struct { lanefs_stage *stage; uint32_t file; char *at; size_t n; int reads; } other_thread;

int munmap(void *p, size_t n)
{
	int rc = (int)syscall(SYS_munmap, p, n), saved = errno;
	if (rc == 0 && p == other_thread.at) {
		other_thread.at = NULL;
		unsigned char *mine = mmap(p, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		WANT(mine == p);
		WANT(lanefs_read_into(other_thread.stage, other_thread.file, mine, 0, other_thread.n, NULL) == (int64_t)other_thread.n && right(mine, 0, other_thread.n));
		WANT(syscall(SYS_munmap, mine, n) == 0);
		other_thread.reads++;
	}
	errno = saved;
	return rc;
}

/* Memory that comes to lie where a private mapping was is not taken for it. */
static void successor(lanefs *s, int fd)
{
	struct lanefs_buffer b;
	struct lanefs_ways was, ways;
	lanefs_stage *st = lanefs_stage_new(s, 0);
	WANT(st && lanefs_open(s, fd, &other_thread.file) == 0 && lanefs_map(s, fd, 0, 10000, LANEFS_PRIVATE, &b) == 0);
	WANT(lanefs_read_into(st, other_thread.file, b.data, 0, 10000, NULL) == 10000);
	lanefs_stage_ways(st, &was);
	WANT(was.direct == 1);
	other_thread.stage = st;
	other_thread.n = 10000;
	other_thread.at = b.mapped;
	lanefs_unmap(s, &b);
	WANT(other_thread.reads == 1);
	lanefs_stage_ways(st, &ways);
	WANT(ways.direct == 1 && ways.host > was.host);
	lanefs_stage_free(st);
	WANT(lanefs_release(s, other_thread.file) == 0);
}

/* A child reads the parent's buffers and does not disturb the parent. */
static void forked(lanefs *s, int fd)
{
	struct lanefs_buffer b;
	WANT(lanefs_map(s, fd, 0, 0, 0, &b) == 0);
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		int ok = right((unsigned char *)b.data + 10000, 10000, 100) && lanefs_latest(s, &b) == b.generation;
		struct lanefs_buffer own;
		ok = ok && lanefs_map(s, fd, 0, 0, 0, &own) == -1 && errno == EPERM;
		lanefs_unmap(s, &b);
		lanefs_close(s);
		_exit(!ok);
	}
	int status;
	WANT(waitpid(child, &status, 0) == child && status == 0);
	WANT(pwrite(fd, "", 1, 0) == 1 && lanefs_latest(s, &b) != b.generation); /* still tracked */
	lanefs_unmap(s, &b);
}

int main(int argc, char **argv)
{
	WANT(argc == 3);
	int fd = open(argv[1], O_RDWR), other = open(argv[2], O_RDONLY);
	WANT(fd >= 0 && other >= 0);
	WANT(!lanefs_connect(other) && errno == ENOTSUP && strstr(lanefs_error(), "LaneFS"));
	WANT(!lanefs_connect(-1) && errno == EBADF);
	lanefs_close(NULL);
	lanefs_ring_free(NULL);
	lanefs *s = lanefs_connect(fd);
	WANT(s && strcmp(lanefs_facts(s)->runtime, "host") == 0 && lanefs_facts(s)->kind == LANEFS_MEMFD);
	struct stat st;
	WANT(fstat(fd, &st) == 0);
	uint64_t size = (uint64_t)st.st_size;

	struct lanefs_buffer b, part;
	WANT(lanefs_map(s, fd, 0, 0, 0, &b) == 0 && b.size == size && b.file_size == size && right(b.data, 0, size));
	WANT(lanefs_map(s, fd, 4097, 100000, 0, &part) == 0 && part.size == 100000 && right(part.data, 4097, 100000));
	WANT(lanefs_map(s, fd, size, 1, 0, &part) == -1 && errno == EINVAL && strstr(lanefs_error(), "not in the file"));
	WANT(lanefs_map(s, other, 0, 0, 0, &part) == -1 && errno == EXDEV);
	WANT(lanefs_latest(s, &b) == b.generation && lanefs_wait(s, 0) == 0);

	struct lanefs_buffer own;
	WANT(lanefs_map(s, fd, 0, 10000, LANEFS_PRIVATE, &own) == 0 && right(own.data, 0, 10000));
	WANT(lanefs_commit(s, fd, 0, &own, 9999, 2) == -1 && errno == EINVAL);
	WANT(lanefs_commit(s, fd, 0, &own, 0, 10000) == 0); /* the same bytes, which the daemon does not compare */
	WANT(lanefs_latest(s, &b) > b.generation && lanefs_wait(s, 60000) == 1);
	lanefs_unmap(s, &own);
	lanefs_unmap(s, &b);
	WANT(lanefs_map(s, -1, 0, 0, 0, &part) == -1 && errno == EBADF && !strstr(lanefs_error(), "gone"));
	WANT(lanefs_map(s, 12345, 0, 0, 0, &part) == -1 && errno == EBADF && !strstr(lanefs_error(), "gone"));
	WANT(lanefs_map(s, fd, 0, 0, 8, &part) == -1 && errno == EINVAL);
	WANT(lanefs_map(s, fd, 0, UINT64_MAX, 0, &part) == -1 && errno == EINVAL);
	successor(s, fd);
	forked(s, fd);
	rings(s, fd, size);
	releases(s, fd);
	columns();
	batches(s, fd, size);
	signals(s, fd, size);

	/* The daemon ends while this holds a buffer and waits for a ring. */
	WANT(lanefs_map(s, fd, 0, 0, 0, &b) == 0 && lanefs_latest(s, &b) == b.generation);
	while (lanefs_wait(s, 0) == 1)
		;
	lanefs_ring *r = lanefs_ring_new(s, 8);
	struct lanefs_completion c;
	WANT(r && lanefs_ring_reap(r, &c, 1, 0) == 0);
	uint32_t f;
	lanefs_stage *stage = lanefs_stage_new(s, 0);
	WANT(stage && lanefs_open(s, fd, &f) == 0);
	close(fd);
	puts("ok");
	fflush(stdout);
	WANT(lanefs_ring_reap(r, &c, 1, -1) == -1 && errno == ECONNRESET);
	WANT(lanefs_wait(s, -1) == 1 && lanefs_latest(s, &b) != b.generation);
	WANT(right((unsigned char *)b.data + 10000, 10000, 100));
	/* The connection ends before its rings do: a request may still be answered. */
	for (int i = 0; i < 1000 && (lanefs_read_into(stage, f, &c, 0, sizeof c, NULL) != -1 || errno != ECONNRESET); i++)
		usleep(10000);
	for (int i = 0; i < 2; i++)
		WANT(lanefs_read_into(stage, f, &c, 0, sizeof c, NULL) == -1 && errno == ECONNRESET);
	lanefs_stage_free(stage);
	lanefs_ring_free(r);
	lanefs_unmap(s, &b);
	lanefs_close(s);
	puts("gone");
	return 0;
}
