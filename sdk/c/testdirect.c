/*
 * Run by a Go test beside this: testdirect FILE, a file of a mount with device memory, whose byte i is i % 251. Batches without a stage, of memory that is registered, whose requests are
 * carried out one by one, in the order and with what between them that the test wants: it is linked with --wrap=lanefs_ring_submit. Prints "ok".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

enum { MIB = 1 << 20, PART = 16 * MIB, SHORT = PART + 1000, LAST = 2 * PART + MIB, BEFORE = 100 }; /* a piece of LAST bytes has three requests */

static lanefs *s;
static int file;
static const unsigned *order; /* of the requests; NULL: that of the library */
static int grows;             /* the file, between the first two of them */

static void grow(void)
{
	static char more[MIB];
	memset(more, 'm', MIB);
	for (off_t at = SHORT; at < LAST; at += MIB)
		WANT(pwrite(file, more, MIB, at) == MIB);
	WANT(fsync(file) == 0);
}

int __real_lanefs_ring_submit(lanefs_ring *r, const struct lanefs_request *q, unsigned n);
int __wrap_lanefs_ring_submit(lanefs_ring *r, const struct lanefs_request *q, unsigned n);

int __wrap_lanefs_ring_submit(lanefs_ring *r, const struct lanefs_request *q, unsigned n)
{
	struct lanefs_moved before, now;
	if (!order || n == 0)
		return __real_lanefs_ring_submit(r, q, n);
	for (unsigned i = 0; i < n; i++) {
		WANT(lanefs_how_moved(s, &before) == 0 && __real_lanefs_ring_submit(r, &q[order[i]], 1) == 1);
		do
			WANT(lanefs_how_moved(s, &now) == 0);
		while (now.device == before.device);
		if (i == 0 && grows)
			grow();
	}
	return (int)n;
}

static int right(const char *p, uint64_t off, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if ((unsigned char)p[i] != (off + i) % 251)
			return 0;
	return 1;
}

static int all(const char *p, char c, uint64_t n)
{
	while (n > 0 && p[n - 1] == c)
		n--;
	return n == 0;
}

int main(int argc, char **argv)
{
	/* The one in which the file ends is first, so that it is there longer when the others are carried out. */
	static const unsigned in_order[] = {0, 1, 2}, end_first[] = {1, 0, 2}, backwards[] = {1, 2, 0};
	const struct { const unsigned *order; int grows; } cases[] = {{in_order, 0}, {end_first, 1}, {backwards, 1}, {backwards, 0}};
	uint64_t size = LAST + 2 * MIB;
	uint32_t memory, handle;
	struct lanefs_ways ways;

	WANT(argc == 2 && (file = open(argv[1], O_RDWR | O_CLOEXEC)) >= 0 && (s = lanefs_connect(file)));
	lanefs_stage *st = lanefs_stage_new(s, 0);
	int fd = memfd_create("registered", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	WANT(st && fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	WANT(m != MAP_FAILED && lanefs_register_at(s, m, fd, LANEFS_MEMFD, 0, size, &memory) == 0 && lanefs_open(s, file, &handle) == 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		/* One that ends within its second request; and pieces of one request each before and behind it. */
		const struct lanefs_piece p[] = {{7, 0, BEFORE}, {0, MIB, LAST}, {3, MIB + LAST, 1000}};
		int64_t got[3];
		memset(m, 'x', size);
		WANT(ftruncate(file, SHORT) == 0 && fsync(file) == 0);
		order = cases[i].order;
		grows = cases[i].grows;
		WANT(lanefs_read_batch(st, handle, m, p + 1, 1, NULL, got) == SHORT && got[0] == SHORT);
		WANT(right(m + MIB, 0, SHORT) && all(m + MIB + SHORT, 0, LAST - SHORT) && m[MIB - 1] == 'x' && m[MIB + LAST] == 'x');
		order = NULL;
		WANT(ftruncate(file, SHORT) == 0);
		memset(m, 'x', size);
		WANT(lanefs_read_batch(st, handle, m, p, 3, NULL, got) == BEFORE + SHORT + 1000 && got[0] == BEFORE && got[1] == SHORT && got[2] == 1000);
		WANT(right(m, 7, BEFORE) && all(m + BEFORE, 'x', MIB - BEFORE) && right(m + MIB, 0, SHORT) && all(m + MIB + SHORT, 0, LAST - SHORT) && right(m + MIB + LAST, 3, 1000));
	}
	/* More pieces than are under way at once, in all lengths, some behind the end. */
	enum { LOTS = 5000 };
	static struct lanefs_piece p[LOTS];
	static int64_t got[LOTS];
	memset(m, 'x', size);
	for (uint64_t i = 0; i < LOTS; i++)
		p[i] = (struct lanefs_piece){i % 3 ? i * 1000 : SHORT - i % 1000, i * 2000, i % 900};
	WANT(lanefs_read_batch(st, handle, m, p, LOTS, NULL, got) > 0);
	for (uint64_t i = 0; i < LOTS; i++) {
		uint64_t n = SHORT - p[i].file_offset < p[i].length ? SHORT - p[i].file_offset : p[i].length;
		const char *at = m + p[i].memory_offset;
		WANT(got[i] == (int64_t)n && right(at, p[i].file_offset, n) && all(at + n, 0, p[i].length - n) && all(at + p[i].length, 'x', 2000 - p[i].length));
	}
	lanefs_stage_ways(st, &ways);
	WANT(ways.direct == 4 * (1 + 3) + LOTS && ways.host == 0);
	puts("ok");
	lanefs_stage_free(st);
	lanefs_close(s);
	return 0;
}
