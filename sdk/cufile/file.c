/* Files that the program has registered. The library holds a descriptor of its own, so what happens to the program's is no matter. */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { NOT_POSSIBLE = O_APPEND | O_NONBLOCK | O_PATH };

int file_is(const struct file *f, const struct statx *x) { return x->stx_ino == f->st.st_ino && makedev(x->stx_dev_major, x->stx_dev_minor) == f->st.st_dev; }

/* Whether a descriptor is of f's file. Of one on a mount the daemon is not asked. */
static int is_of(const struct file *f, int fd)
{
	struct statx x;
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &x))
		return errno != EBADF; /* the file system has failed */
	return file_is(f, &x);
}

int file_lost(const struct file *f, int fd)
{
	if (is_of(f, fd))
		return 0;
	errno = f->mount ? ENOTCONN : EBADF;
	return -1;
}

int file_lost_any(const struct file *f) { return file_lost(f, f->fd) || (f->buffered >= 0 && file_lost(f, f->buffered)); }

static void end(struct object *o)
{
	struct file *f = (struct file *)o;
	map_forget(f);
	if (f->mount) {
		mount_release(f->mount, f->opened);
		mount_give(f->mount);
	}
	if (f->next)
		next_file_end(f);
	if (f->buffered >= 0 && is_of(f, f->buffered))
		close(f->buffered);
	if (f->fd >= 0 && is_of(f, f->fd))
		close(f->fd);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

/* Whether two descriptors are one open of a file, as dup makes them: 1 or 0; -1, the kernel does not tell (Linux before 6.10, and a sandbox without kcmp). */
static int one_open(int a, int b)
{
	enum { DUPFD_QUERY = 1027, KCMP_FILE = 0 };
	int yes = fcntl(a, DUPFD_QUERY, b);
	if (yes >= 0)
		return yes;
	long differ = syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, (unsigned long)a, (unsigned long)b);
	return differ < 0 ? -1 : differ == 0;
}

/* The same descriptor. One that was closed may be registered when its number is another file's, or the same file's that was opened again. */
static int same(struct object *o, void *arg)
{
	struct file *a = (struct file *)o, **b = arg;
	if (a->number != (*b)->number || a->st.st_dev != (*b)->st.st_dev || a->st.st_ino != (*b)->st.st_ino || one_open(a->fd, a->number) == 0)
		return 0;
	*b = NULL;
	return 1;
}

static status look(struct file *f, int fd)
{
	if (fstat(fd, &f->st)) /* a mount without its daemon says so when what the kernel knows of the file is too old */
		return bad(lanefs_ended(errno) ? CU_FILE_DRIVER_NOT_INITIALIZED : CU_FILE_INVALID_VALUE);
	if ((f->flags = fcntl(fd, F_GETFL)) < 0)
		return bad(CU_FILE_INVALID_VALUE);
	if (!S_ISREG(f->st.st_mode) && !S_ISBLK(f->st.st_mode))
		return bad(CU_FILE_INVALID_FILE_TYPE);
	if (f->flags & NOT_POSSIBLE)
		return bad(CU_FILE_INVALID_FILE_OPEN_FLAG);
	struct file *other = f;
	object_each(FILE_OBJECT, same, &other);
	return other ? ok() : bad(CU_FILE_HANDLE_ALREADY_REGISTERED);
}

static void name(struct file *f)
{
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", f->fd);
	ssize_t n = readlink(link, f->name, sizeof f->name - 1);
	f->name[n > 0 ? n : 0] = 0;
	/* Direct I/O is for what is aligned. The rest goes by a second open file. */
	if (f->flags & O_DIRECT)
		f->buffered = AGAIN(open(link, (f->flags & (O_ACCMODE | O_SYNC | O_DSYNC)) | O_CLOEXEC));
}

/* Finds out whose file it is. */
static status owner(struct file *f, int type, int fd)
{
	f->mount = mount_find(f->fd, &f->st);
	if (f->mount) {
		if (mount_open(f->mount, f->fd, &f->opened) == 0)
			return ok();
		int code = errno;
		mount_give(f->mount);
		f->mount = NULL;
		return bad(lane_ended(code) ? CU_FILE_DRIVER_NOT_INITIALIZED : code == EMFILE || code == ENOMEM ? CU_FILE_NOMEM_ERROR : CU_FILE_IO_NOT_SUPPORTED);
	}
	if (errno != ENOTSUP) /* on LaneFS, but it does not answer: to go another way would be silent */
		return bad(errno == EACCES || errno == EPERM ? CU_FILE_PERMISSION_DENIED : errno == EMFILE || errno == ENFILE ? CU_FILE_GETNEWFD_FAILED : errno == ENOMEM ? CU_FILE_NOMEM_ERROR :
			CU_FILE_DRIVER_NOT_INITIALIZED);
	return next_file(f, type, fd);
}

status file_register(void **handle, int type, int fd)
{
	UNCANCELLED;
	if (!handle || type != CU_FILE_HANDLE_TYPE_OPAQUE_FD)
		return bad(handle ? CU_FILE_IO_NOT_SUPPORTED : CU_FILE_INVALID_VALUE);
	struct file *f = calloc(1, sizeof *f);
	if (!f)
		return bad(CU_FILE_NOMEM_ERROR);
	f->fd = f->buffered = -1;
	f->number = fd;
	pthread_mutex_init(&f->lock, NULL);
	driver_use();
	status s = look(f, fd);
	if (!s.err && (f->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0)
		s = bad(CU_FILE_GETNEWFD_FAILED);
	if (!s.err) {
		name(f);
		s = owner(f, type, fd);
	}
	if (!s.err)
		s = bad(object_add(&f->object, FILE_OBJECT, end));
	if (s.err)
		end(&f->object);
	else
		*handle = handle_of(&f->object);
	return s;
}

void file_deregister(void *handle)
{
	UNCANCELLED;
	stats_event(DID_HANDLE_END, !object_remove(handle, FILE_OBJECT), 0);
}
