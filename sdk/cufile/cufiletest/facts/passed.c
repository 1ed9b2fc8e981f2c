/* Run by TestVendor: passed FILE, a file that is not on LaneFS. Prints which library has read it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cufile.h"

int main(int argc, char **argv)
{
	char b[100] = {0};
	CUfileHandle_t h;
	CUfileDescr_t d;
	memset(&d, 0, sizeof d);
	d.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
	d.handle.fd = argc > 1 ? open(argv[1], O_RDWR) : -1;
	cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 77);
	if (cuFileDriverOpen().err || cuFileHandleRegister(&h, &d).err || cuFileBufRegister(b, sizeof b, 0).err)
		return 1;
	ssize_t n = cuFileRead(h, b, 10, 0, 5), wrong = cuFileRead(h, b, 10, 13, 5), w = cuFileWrite(h, b, 10, 0, 0);
	printf("%zd %zd %zd %.4s\n", n, wrong, w, b + 5);
	/* A call on a stream is the plain one of that library, which has no other here. */
	size_t size = 7;
	off_t offset = 10, at = 20;
	ssize_t got = 0;
	CUfileError_t e = cuFileReadAsync(h, b, &size, &offset, &at, &got, NULL);
	if (e.err || got != 7 || b[20] == 0 || b[26] == 0 || b[27] != 0)
		return printf("on a stream: %d, %zd\n", e.err, got), 1;
	cuFileHandleDeregister(h);
	cuFileBufDeregister(b);
	return cuFileDriverClose().err != 0;
}
