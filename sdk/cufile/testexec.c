/*
 * Run by a test of cmd/lanefs: testexec FILE OTHER N M [exec|vfork PROGRAM …] reads N MiB of FILE, which is on LaneFS, and M of OTHER, prints "ok", and then
 * becomes another program, or starts one and waits for it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cufile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)

enum { MIB = 1 << 20 };

static void reads(const char *path, int n)
{
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = open(path, O_RDONLY)};
	CUfileHandle_t h;
	unsigned char *p = malloc(MIB);
	CUfileError_t e = cuFileHandleRegister(&h, &d);
	WANT(p && d.handle.fd >= 0 && e.err == CU_FILE_SUCCESS);
	for (int i = 0; i < n; i++) {
		WANT(cuFileRead(h, p, MIB, (off_t)i * MIB, 0) == MIB);
		for (size_t k = 0; k < MIB; k++)
			WANT(p[k] == ((size_t)i * MIB + k) % 251);
	}
	cuFileHandleDeregister(h);
	free(p);
}

int main(int argc, char **argv)
{
	WANT(argc >= 5);
	reads(argv[1], atoi(argv[3]));
	reads(argv[2], atoi(argv[4]));
	puts("ok");
	fflush(stdout);
	if (argc == 5)
		return 0;
	if (strcmp(argv[5], "exec") == 0) {
		execvp(argv[6], argv + 6);
		WANT(0);
	}
	int status;
	pid_t child = vfork();
	if (child == 0) {
		execvp(argv[6], argv + 6);
		_exit(127);
	}
	WANT(waitpid(child, &status, 0) == child);
	return WEXITSTATUS(status);
}
