/*
 * Descriptors of the library's own. A program may close all that are open (daemons do), and open other files under their numbers, which then must not be read, written or closed. Of a
 * socket it is certain whose it is; an eventfd is told from everything but another one, so the library looks at the session's socket, too.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
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
