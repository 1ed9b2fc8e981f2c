/*
 * Run by TestEnded: ended FILE, a file of a mount, small reads of which go by the page cache. Here the kernel's calls fail as they do when the daemon has been
 * killed, each in its way. Prints "ok".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cufile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d; %d)\n", __FILE__, __LINE__, #x, errno, code); exit(1); } } while (0)

static int code; /* what the library's calls fail with */

/* The library's, too. */
ssize_t pread(int fd, void *p, size_t n, off_t at)
{
	static ssize_t (*real)(int, void *, size_t, off_t);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "pread");
	if (!code)
		return real(fd, p, n, at);
	errno = code;
	return -1;
}

/* By which the library asks for a file's socket. */
long syscall(long number, ...)
{
	static long (*real)(long, ...);
	long a[6];
	va_list args;
	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "syscall");
	if (number != SYS_fgetxattr || !code)
		return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	errno = code;
	return -1;
}

int main(int argc, char **argv)
{
	static const struct { int code, read, registered; } all[] = {{ENOTCONN, ENOTCONN, CU_FILE_DRIVER_NOT_INITIALIZED}, {ECONNABORTED, ENOTCONN, CU_FILE_DRIVER_NOT_INITIALIZED},
		{ECANCELED, ENOTCONN, CU_FILE_DRIVER_NOT_INITIALIZED}, {EIO, EIO, CU_FILE_SUCCESS}};
	char b[300];
	CUfileHandle_t h, late;
	CUfileBatchHandle_t batch;
	int fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd};
	WANT(fd >= 0 && !cuFileHandleRegister(&h, &d).err && cuFileRead(h, b, 100, 0, 0) == 100 && !cuFileBatchIOSetUp(&batch, 3).err);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		CUfileIOParams_t p[3];
		CUfileIOEvents_t e[3];
		unsigned n = 3;
		code = all[i].code;
		WANT(cuFileRead(h, b, 100, 0, 0) == -1 && errno == all[i].read);
		for (int k = 0; k < 3; k++) {
			p[k] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = h, .opcode = CUFILE_READ};
			p[k].u.batch.devPtr_base = b + 100 * k;
			p[k].u.batch.size = 100;
		}
		WANT(!cuFileBatchIOSubmit(batch, 3, p, 0).err && !cuFileBatchIOGetStatus(batch, 3, &n, e, NULL).err && n == 3);
		for (int k = 0; k < 3; k++)
			WANT(e[k].status == CUFILE_FAILED && (ssize_t)e[k].ret == -all[i].read);
		d.handle.fd = dup(fd);
		cuFileDriverClose(); /* or the connection that is there serves the new one */
		WANT((int)cuFileHandleRegister(&late, &d).err == all[i].registered);
		code = 0;
		cuFileDriverClose();
		d.handle.fd = fd;
		WANT(!cuFileHandleRegister(&h, &d).err && !cuFileBatchIOSetUp(&batch, 3).err && cuFileRead(h, b, 100, 0, 0) == 100);
	}
	puts("ok");
	return 0;
}
