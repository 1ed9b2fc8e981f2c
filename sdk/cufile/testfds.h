/* What the tests of what is given back have in common. Included behind WANT. */
#ifndef LANEFS_TESTFDS_H
#define LANEFS_TESTFDS_H

#include <dirent.h>

/* The process's descriptors, and a few entries that are always there. */
static unsigned descriptors(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");
	WANT(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

#endif
