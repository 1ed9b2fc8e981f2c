/*
 * Copies between memory of the library's and memory of the program's that the CPU addresses. The program may give an address that is none, or take its memory away in the middle of
 * a call (munmap, mprotect, a mapped file that is cut): a load or a store ends it then by SIGSEGV or SIGBUS, where read(2) and write(2) give EFAULT. So the kernel copies, from the process to
 * itself, by process_vm_readv and process_vm_writev. They need no descriptor, whose number could be another file's by then. The program's memory is what these calls name the local side, for
 * there all memory that the program may use itself will do; the other side must be ordinary pages.
 *
 * The call takes as long as the question whether memory is there (there.c), and then more for each page than a plain copy: HOST_COPY says up to where that does not matter.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int cannot; /* the kernel does not copy: qemu-user, a sandbox */

static ssize_t kernel(pid_t process, const struct host_copies *c)
{
	return c->out ? process_vm_readv(process, c->program, c->n, c->own, c->m, 0) : process_vm_writev(process, c->program, c->n, c->own, c->m, 0);
}

/* By loads and stores, of memory that was there a moment ago. */
static int plainly(const struct host_copies *c)
{
	size_t k = 0, done = 0;
	for (unsigned i = 0; i < c->n; i++)
		if (!lanefs_there(c->program[i].iov_base, c->program[i].iov_len, c->out))
			return lanefs_fail(EFAULT, lanefs_no_memory_text);
	for (unsigned i = 0; i < c->n; i++) { /* an own one is one or more of the program's */
		char *own = (char *)c->own[k].iov_base + done;
		size_t n = c->program[i].iov_len;
		memcpy(c->out ? c->program[i].iov_base : own, c->out ? own : c->program[i].iov_base, n);
		if ((done += n) == c->own[k].iov_len) {
			k++;
			done = 0;
		}
	}
	return 0;
}

int lanefs_host_copy_end(struct host_copies *c)
{
	int rc = 0;
	if (!c->n)
		return 0;
	ssize_t n = -1;
	if (!__atomic_load_n(&cannot, __ATOMIC_RELAXED)) {
		n = kernel(c->process, c);
		if (n < 0 && errno == ESRCH) /* the process's first thread has ended: any other names it as well */
			n = kernel((pid_t)syscall(SYS_gettid), c);
		if (n < 0 && (errno == ENOSYS || errno == EPERM))
			__atomic_store_n(&cannot, 1, __ATOMIC_RELAXED);
	}
	if (__atomic_load_n(&cannot, __ATOMIC_RELAXED))
		rc = plainly(c);
	else if (n != (ssize_t)c->bytes)
		rc = n >= 0 || errno == EFAULT ? lanefs_fail(EFAULT, lanefs_no_memory_text) : lanefs_fail(errno, NULL);
	lanefs_host_copy_begin(c, c->process, c->out);
	return rc;
}

int lanefs_host_copy_add(struct host_copies *c, void *program, void *own, size_t n)
{
	struct iovec *last = &c->own[c->m ? c->m - 1 : 0];
	if (n == 0)
		return 0;
	if (c->m && (char *)last->iov_base + last->iov_len == own)
		last->iov_len += n;
	else
		c->own[c->m++] = (struct iovec){own, n};
	c->program[c->n++] = (struct iovec){program, n};
	c->bytes += n;
	return c->n == HOST_COPIES ? lanefs_host_copy_end(c) : 0;
}

int lanefs_host_copy(int out, void *program, void *own, size_t n)
{
	struct host_copies c;
	lanefs_host_copy_begin(&c, lanefs_self(), out);
	return lanefs_host_copy_add(&c, program, own, n) || lanefs_host_copy_end(&c) ? -1 : 0;
}

int lanefs_host_zero(void *program, size_t n)
{
	static char zeroes[HOST_COPY];
	struct host_copies c;
	lanefs_host_copy_begin(&c, lanefs_self(), 1);
	for (size_t done = 0; done < n; done += HOST_COPY)
		if (lanefs_host_copy_add(&c, (char *)program + done, zeroes, n - done < HOST_COPY ? n - done : HOST_COPY))
			return -1;
	return lanefs_host_copy_end(&c);
}
