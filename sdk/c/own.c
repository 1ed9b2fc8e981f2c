/*
 * Descriptors of the library's own. A program may close all that are open (daemons do), and open other files under their numbers, which then must not be read, written or closed. Of a
 * socket it is certain whose it is; an eventfd is told from everything but another one, so the library looks at the session's socket, too.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct own lanefs_own(int fd)
{
	struct stat st = {0};
	if (fd >= 0)
		fstat(fd, &st);
	return (struct own){fd, st.st_dev, st.st_ino};
}

int lanefs_is_own(const struct own *d)
{
	struct stat st;
	return d->fd >= 0 && fstat(d->fd, &st) == 0 && st.st_dev == d->dev && st.st_ino == d->ino;
}

int lanefs_lost(void) { return lanefs_fail(ECONNRESET, "the program has closed the session's descriptors: connect again"); }

void lanefs_close_own(struct own *d)
{
	int saved = errno;
	if (lanefs_is_own(d))
		close(d->fd);
	d->fd = -1;
	errno = saved;
}

/* Descriptors that a program gets to see, and the library closes: of its buffers. */
struct given {
	struct given *next;
	const lanefs *s;
	uint32_t handle;
	struct own d;
};

PROCESS_LOCK(lock);
static struct given *all; /* protected by lock */

int lanefs_give(const lanefs *s, uint32_t handle, int fd)
{
	struct given *g = malloc(sizeof *g);
	if (!g)
		return lanefs_fail(ENOMEM, NULL);
	*g = (struct given){.s = s, .handle = handle, .d = lanefs_own(fd)};
	pthread_mutex_lock(&lock);
	g->next = all;
	all = g;
	pthread_mutex_unlock(&lock);
	return 0;
}

void lanefs_take_back(const lanefs *s, uint32_t handle, int fd)
{
	pthread_mutex_lock(&lock);
	for (struct given **p = &all; *p;) {
		struct given *g = *p;
		if (g->s != s || (handle && g->handle != handle)) {
			p = &g->next;
			continue;
		}
		*p = g->next;
		if (g->d.fd == fd)
			lanefs_close_own(&g->d);
		free(g);
		if (handle)
			break;
	}
	pthread_mutex_unlock(&lock);
}
