/*
 * Run by a Go test beside this: testclose FILE, of a mount with device memory, whose byte i is i % 251. The program closes the library's descriptors, and opens others under their numbers.
 * Calls fail at once, nothing happens to the others, and another session can be made. Prints "ok".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)
#include "testclose.h"

enum { N = 1 << 20 };
static unsigned char p[N];

int main(int argc, char **argv)
{
	struct others o;
	WANT(argc == 2);
	alarm(600); /* nothing hangs */
	for (int round = 0; round < 3; round++) {
		int fd = open(argv[1], O_RDWR);
		lanefs *s = lanefs_connect(fd);
		lanefs_stage *st = s ? lanefs_stage_new(s, 0) : NULL;
		lanefs_ring *r = s ? lanefs_ring_new(s, 8) : NULL;
		struct lanefs_buffer b, c;
		struct lanefs_request q = {.op = LANEFS_SYNC};
		struct lanefs_completion done;
		uint32_t file;
		WANT(st && r && lanefs_open(s, fd, &file) == 0 && lanefs_map(s, fd, 0, N, 0, &b) == 0);
		WANT(lanefs_read_into(st, file, p, 0, N, NULL) == N);
		for (int i = 0; i < N; i++)
			WANT(p[i] == i % 251);
		others_open(&o);
		for (int i = 0; i < 3; i++) {
			WANT(lanefs_read_into(st, file, p, 0, N, NULL) == -1 && errno == ECONNRESET);
			WANT(lanefs_write_from(st, file, p, 0, N, NULL) == -1 && errno == ECONNRESET);
			WANT(lanefs_map(s, 0, 0, N, 0, &c) == -1 && errno == ECONNRESET);
			WANT(lanefs_release(s, file) == -1 && errno == ECONNRESET);
			WANT(lanefs_latest(s, &b) != b.generation && lanefs_wait(s, -1) == -1 && errno == ECONNRESET);
			WANT(lanefs_ring_submit(r, &q, 1) == 1 && lanefs_ring_reap(r, &done, 1, -1) == -1 && errno == ECONNRESET);
		}
		lanefs_unmap(s, &b);
		lanefs_ring_free(r);
		lanefs_stage_free(st);
		lanefs_close(s);
		others_close(&o);
	}
	puts("ok");
	return 0;
}
