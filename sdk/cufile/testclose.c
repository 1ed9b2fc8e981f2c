/*
 * Run by a Go test beside this: testclose FILE OTHER, files of the same bytes as test.c's, OTHER not on LaneFS. The program closes the library's own descriptors, and opens others under
 * their numbers. Calls fail at once, nothing happens to the others, and files can be registered anew. Prints "ok".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cufile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)
#include "testclose.h"

enum { N = 3 << 20, SMALL = 4096 };
static unsigned char b[N];

static CUfileHandle_t reg(const char *path, int flags)
{
	CUfileDescr_t d = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = open(path, flags)};
	CUfileHandle_t h;
	WANT(d.handle.fd >= 0 && cuFileHandleRegister(&h, &d).err == CU_FILE_SUCCESS);
	return h;
}

static void reads(CUfileHandle_t h)
{
	for (int i = 0; i < 40; i++) { /* by each road, windows too */
		size_t n = i % 2 ? N : SMALL;
		memset(b, 0, n);
		WANT(cuFileRead(h, b, n, i, 0) == (ssize_t)n);
		for (size_t k = 0; k < n; k++)
			WANT(b[k] == (k + (size_t)i) % 251);
	}
}

static void batch(CUfileHandle_t h, int want)
{
	CUfileBatchHandle_t id;
	CUfileIOParams_t p[2] = {0};
	CUfileIOEvents_t e[2];
	for (int i = 0; i < 2; i++)
		p[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = h, .opcode = CUFILE_READ, .u.batch = {.devPtr_base = b, .file_offset = 10 * i, .devPtr_offset = SMALL * i, .size = SMALL}};
	WANT(cuFileBatchIOSetUp(&id, 2).err == CU_FILE_SUCCESS && cuFileBatchIOSubmit(id, 2, p, 0).err == CU_FILE_SUCCESS);
	for (unsigned have = 0, n = 2; have < 2; have += n, n = 2) {
		WANT(cuFileBatchIOGetStatus(id, 1, &n, e + have, NULL).err == CU_FILE_SUCCESS);
	}
	for (int i = 0; i < 2; i++)
		WANT((ssize_t)e[i].ret == want);
	cuFileBatchIODestroy(id);
}

int main(int argc, char **argv)
{
	struct others o;
	WANT(argc == 3);
	alarm(600); /* nothing hangs */
	for (int round = 0; round < 2; round++) {
		CUfileHandle_t h = reg(argv[1], O_RDWR), other = reg(argv[2], O_RDWR);
		reads(h);
		reads(other);
		batch(h, SMALL);
		others_open(&o);
		for (int i = 0; i < 6; i++) {
			WANT(cuFileRead(h, b, i % 2 ? N : SMALL, 0, 0) == -1 && errno == ENOTCONN);
			WANT(cuFileWrite(h, b, SMALL, 0, 0) == -1 && errno == ENOTCONN);
			WANT(cuFileRead(other, b, SMALL, 0, 0) == -1 && errno == EBADF);
			WANT(cuFileWrite(other, b, SMALL, 0, 0) == -1 && errno == EBADF);
		}
		batch(h, -ENOTCONN);
		if (round) { /* else the first registration is beside what is lost */
			cuFileHandleDeregister(h);
			cuFileHandleDeregister(other);
			WANT(cuFileDriverClose().err == CU_FILE_SUCCESS);
		}
		CUfileHandle_t again = reg(argv[1], O_RDWR);
		reads(again);
		batch(again, SMALL);
		cuFileHandleDeregister(again);
		if (!round) {
			cuFileHandleDeregister(h);
			cuFileHandleDeregister(other);
			WANT(cuFileDriverClose().err == CU_FILE_SUCCESS);
		}
		others_close(&o);
	}
	puts("ok");
	return 0;
}
