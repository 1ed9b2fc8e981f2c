/* A vendor's library for the tests: files are read as 'V', and it says on standard error what it was asked. It calls a function of its own name,
 * as NVIDIA's does, which must not come to LaneFS's. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "cufile.h"

static int batch_size;
static char handle;

CUfileError_t cuFileDriverOpen(void)
{
	fprintf(stderr, "vendor: open, batches of %d\n", batch_size);
	return (CUfileError_t){CU_FILE_SUCCESS, 0};
}

CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t param, size_t value)
{
	if (param == CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE)
		batch_size = (int)value;
	return (CUfileError_t){CU_FILE_SUCCESS, 0};
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr)
{
	cuFileDriverOpen();
	if (descr->type != CU_FILE_HANDLE_TYPE_OPAQUE_FD || descr->handle.fd < 3)
		return (CUfileError_t){CU_FILE_INVALID_VALUE, 0};
	*fh = &handle;
	return (CUfileError_t){CU_FILE_SUCCESS, 0};
}

void cuFileHandleDeregister(CUfileHandle_t fh) { fprintf(stderr, "vendor: deregister %d\n", fh == &handle); }
CUfileError_t cuFileBufRegister(const void *base, size_t length, int flags)
{
	fprintf(stderr, "vendor: buffer of %zu bytes, %d %d\n", length, base != NULL, flags);
	return (CUfileError_t){CU_FILE_SUCCESS, 0};
}
CUfileError_t cuFileBufDeregister(const void *base)
{
	fprintf(stderr, "vendor: no buffer %d\n", base != NULL);
	return (CUfileError_t){CU_FILE_SUCCESS, 0};
}

ssize_t cuFileRead(CUfileHandle_t fh, void *base, size_t size, off_t file_offset, off_t offset)
{
	if (fh != &handle || file_offset == 13)
		return -CU_FILE_IO_DISABLED;
	memset((char *)base + offset, 'V', size);
	return (ssize_t)size;
}

ssize_t cuFileWrite(CUfileHandle_t fh, const void *base, size_t size, off_t file_offset, off_t offset)
{
	return fh == &handle && base && file_offset >= 0 && offset >= 0 ? (ssize_t)size : -1;
}

CUfileError_t cuFileDriverClose_v2(void)
{
	fprintf(stderr, "vendor: close\n");
	return (CUfileError_t){CU_FILE_SUCCESS, 0};
}
