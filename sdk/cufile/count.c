/*
 * How many bytes took which road. Where LANEFS_ROADS names a file of ROADS_SIZE bytes, all processes that inherit it add to it, so the numbers
 * outlive them; lanefs run reads it at the end. A process that may not, as one of another user, says so at its first call. LANEFS_TRACE has each call printed, one line on standard error.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The same as in cmd/lanefs/runroads.go. */
struct roads {
	char magic[8];
	_Atomic uint64_t processes, calls, failed; /* that loaded the library; calls of the interface */
	struct { _Atomic uint64_t read, written; } road[ROADS];
	_Atomic uint64_t batches, batched; /* of the SDK, for batches of the interface, and their requests */
	_Atomic uint64_t failed_requests; /* of batches of the interface */
};
_Static_assert(sizeof(struct roads) == 136, "layout");

static const char magic[] = "LFSROAD4"; /* another layout has another name, and another size: what is of another version is left alone */
static struct roads own, *roads = &own;
static int lines, refused; /* refused: why the file of LANEFS_ROADS is not open, as an errno */

__attribute__((constructor)) static void attach(void)
{
	const char *path = secure_getenv("LANEFS_ROADS"), *t = getenv("LANEFS_TRACE");
	int saved = errno, fd;
	lines = t && *t && strcmp(t, "0") != 0;
	if (!path || (fd = open(path, O_RDWR | O_CLOEXEC)) < 0) {
		refused = path && errno != ENOENT ? errno : 0; /* it is there until lanefs run has ended */
		errno = saved;
		return;
	}
	struct stat st;
	void *p = fstat(fd, &st) == 0 && st.st_size == sizeof *roads ? mmap(NULL, sizeof *roads, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
	close(fd);
	errno = saved;
	if (p == MAP_FAILED)
		return;
	if (memcmp(p, magic, sizeof roads->magic) != 0) {
		munmap(p, sizeof *roads);
		return;
	}
	roads = p;
	roads->processes++;
}

void count_bytes(enum road road, int read, size_t n)
{
	if (read)
		roads->road[road].read += n;
	else
		roads->road[road].written += n;
}

void count_call(int failed)
{
	static _Atomic int told;
	if (refused && !atomic_exchange(&told, 1)) {
		int saved = errno;
		fprintf(stderr, "lanefs: %s calls of process %d are not counted: LANEFS_ROADS: %s\n", front.prefix, (int)getpid(), strerror(refused));
		errno = saved;
	}
	roads->calls++;
	if (failed)
		roads->failed++;
}

void count_failed(void) { roads->failed++; }

void count_failed_request(void) { roads->failed_requests++; }

void count_batch(size_t n)
{
	roads->batches++;
	roads->batched += n;
}

const char *road_name(enum road road)
{
	static const char *const names[] = {"LaneFS, shared memory", "LaneFS, stage", "LaneFS, page cache", "the vendor's library", "pread and pwrite"};
	return names[road];
}

int tracing(void) { return lines; }

static void line(const char *format, va_list args)
{
	char text[512];
	int n = snprintf(text, sizeof text, "lanefs: %s", front.prefix), k = vsnprintf(text + n, sizeof text - (size_t)n - 1, format, args), saved = errno;
	n += k < (int)sizeof text - n - 1 ? k : (int)sizeof text - n - 2;
	text[n++] = '\n';
	if (lanefs_put(STDERR_FILENO, text, (size_t)n) < 0) { /* there is nobody to tell */
	}
	errno = saved;
}

void trace(const char *format, ...)
{
	va_list args;
	if (!lines)
		return;
	va_start(args, format);
	line(format, args);
	va_end(args);
}

status traced(status s, const char *format, ...)
{
	UNCANCELLED;
	count_call(s.err != 0);
	if (lines) {
		char what[384];
		va_list args;
		va_start(args, format);
		vsnprintf(what, sizeof what, format, args);
		va_end(args);
		if (s.err)
			trace("%s = %d, %s", what, s.err, error_text(s.err));
		else
			trace("%s = 0", what);
	}
	return s;
}

const char *error_text(int err) { return err < 0 ? strerror(-err) : cufileop_status_error((CUfileOpError)err); }
