/* For tests: the program closes all descriptors but its standard ones, and opens others under their numbers, as daemons do. */
#ifndef TESTCLOSE_H
#define TESTCLOSE_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST = 3, OTHERS = 64 };

struct others { int peer[OTHERS]; };

/* By turns a file, a socket and an eventfd. */
static inline void others_open(struct others *o)
{
	close_range(FIRST, ~0u, 0);
	for (int i = FIRST; i < OTHERS; i++) {
		char path[] = "/tmp/lanefs-close-XXXXXX";
		int fd = -1, pair[2];
		o->peer[i] = -1;
		if (i % 3 == 0) {
			fd = mkstemp(path);
			WANT(fd == i && unlink(path) == 0 && write(fd, "others", 6) == 6);
		} else if (i % 3 == 1) {
			WANT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair) == 0);
			WANT(pair[0] == i && (o->peer[i] = fcntl(pair[1], F_DUPFD, OTHERS)) >= 0 && close(pair[1]) == 0);
		} else {
			WANT(eventfd(0, EFD_NONBLOCK) == i);
		}
	}
}

/* They are as they were, and all open. */
static inline void others_close(struct others *o)
{
	char b[100];
	for (int i = FIRST; i < OTHERS; i++) {
		if (i % 3 == 0)
			WANT(pread(i, b, sizeof b, 0) == 6 && memcmp(b, "others", 6) == 0);
		else if (i % 3 == 1)
			WANT(recv(o->peer[i], b, sizeof b, 0) == -1 && errno == EAGAIN && close(o->peer[i]) == 0);
		else
			WANT(read(i, b, 8) == -1 && errno == EAGAIN);
	}
	for (int i = FIRST; i < OTHERS; i++)
		WANT(close(i) == 0);
}

#endif
