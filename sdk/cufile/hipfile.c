/* hipFile's interface. The numbers of errors, statuses and parameters are cuFile's, and so are the structs but for the properties. */
#define _GNU_SOURCE
#include "core.h"
#include "hipfile.h"

#include <string.h>

static const char *const directories[] = {"/opt/rocm/lib", "/usr/lib/" MULTIARCH, "/usr/lib64", "/usr/local/lib", NULL};
const struct front front = {.prefix = "hipFile", .env = "LANEFS_REAL_HIPFILE", .soname = "libhipfile.so.0", .beside = "libamdhip64.so", .directories = directories, .hip = 1};

_Static_assert(sizeof(hipFileIOParams_t) == sizeof(CUfileIOParams_t) && sizeof(hipFileIOEvents_t) == sizeof(CUfileIOEvents_t) &&
	sizeof(hipFileDescr_t) == sizeof(CUfileDescr_t), "layout");
_Static_assert((int)hipFileAsyncNotSupported == (int)CU_FILE_ASYNC_NOT_SUPPORTED && (int)hipFileParamStreamMemopsBypass == (int)CUFILE_PARAM_STREAM_MEMOPS_BYPASS, "numbers");

/* cuFile has more errors than hipFile. */
static hipFileError_t out(status s)
{
	if (s.err == CU_FILE_NOMEM_ERROR || s.err >= (int)hipFileIOMaxError)
		s.err = hipFileInternalError;
	return (hipFileError_t){(hipFileOpError_t)s.err, (hipError_t)s.gpu};
}
#define TRACED(s, ...) out(traced(s, __VA_ARGS__))

static ssize_t moved(ssize_t n) { return n <= -(ssize_t)hipFileIOMaxError ? -(ssize_t)hipFileInternalError : n; }

const char *hipFileGetOpErrorString(hipFileOpError_t e) { return error_text((int)e); }

hipFileError_t hipFileDriverOpen(void) { return TRACED(driver_open(), "DriverOpen()"); }
hipFileError_t hipFileDriverClose(void) { return TRACED(driver_close(), "DriverClose()"); }
int64_t hipFileUseCount(void) { return driver_count(); }

static status properties(hipFileDriverProps_t *p)
{
	if (!p)
		return bad(CU_FILE_INVALID_VALUE);
	driver_use();
	memset(p, 0, sizeof *p);
	p->nvfs.minor_version = HIPFILE_VERSION_MINOR;
	p->nvfs.poll_thresh_size = param_size(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB);
	p->nvfs.max_direct_io_size = param_size(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB);
	p->nvfs.driver_control_flags = (unsigned)param_bool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE) << hipFileUsePollMode |
		(unsigned)param_bool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE) << hipFileAllowCompatMode;
	p->feature_flags = 1u << hipFileBatchIOSupported | 1u << hipFileStreamsSupported | 1u << hipFileParallelIOSupported;
	p->max_device_cache_size = param_size(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB);
	p->per_buffer_cache_size = param_size(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB);
	p->max_device_pinned_mem_size = param_size(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB);
	p->max_batch_io_count = (unsigned)param_size(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE);
	p->max_batch_io_timeout_msecs = (unsigned)param_size(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS);
	return ok();
}

hipFileError_t hipFileDriverGetProperties(hipFileDriverProps_t *props) { return TRACED(properties(props), "DriverGetProperties()"); }

static status limit(int which, size_t kib)
{
	driver_use();
	return kib % 4 ? bad(CU_FILE_DRIVER_UNSUPPORTED_LIMIT) : param_set_size(which, kib, 1);
}

static status poll_mode(bool poll, size_t kib)
{
	status s = limit(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, kib);
	return s.err ? s : param_set_bool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, poll, 1);
}

hipFileError_t hipFileDriverSetPollMode(bool poll, size_t n) { return TRACED(poll_mode(poll, n), "DriverSetPollMode(%d, %zu)", poll, n); }
hipFileError_t hipFileDriverSetMaxDirectIOSize(size_t n) { return TRACED(limit(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, n), "DriverSetMaxDirectIOSize(%zu)", n); }
hipFileError_t hipFileDriverSetMaxCacheSize(size_t n) { return TRACED(limit(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, n), "DriverSetMaxCacheSize(%zu)", n); }
hipFileError_t hipFileDriverSetMaxPinnedMemSize(size_t n) { return TRACED(limit(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, n), "DriverSetMaxPinnedMemSize(%zu)", n); }

hipFileError_t hipFileGetVersion(unsigned *major, unsigned *minor, unsigned *patch)
{
	if (major)
		*major = HIPFILE_VERSION_MAJOR;
	if (minor)
		*minor = HIPFILE_VERSION_MINOR;
	if (patch)
		*patch = HIPFILE_VERSION_PATCH;
	return TRACED(ok(), "GetVersion()");
}

hipFileError_t hipFileHandleRegister(hipFileHandle_t *fh, hipFileDescr_t *descr)
{
	status s = fh && descr ? file_register(fh, (int)descr->type, descr->handle.fd) : bad(CU_FILE_INVALID_VALUE);
	return TRACED(s, "HandleRegister(%d)", descr ? descr->handle.fd : -1);
}

void hipFileHandleDeregister(hipFileHandle_t fh)
{
	file_deregister(fh);
	traced(ok(), "HandleDeregister(%p)", fh);
}

hipFileError_t hipFileBufRegister(const void *base, size_t length, int flags) { return TRACED(buffer_register(base, length, flags), "BufRegister(%p, %zu bytes)", base, length); }
hipFileError_t hipFileBufDeregister(const void *base) { return TRACED(buffer_deregister(base), "BufDeregister(%p)", base); }
ssize_t hipFileRead(hipFileHandle_t fh, void *base, size_t size, hoff_t file_offset, hoff_t offset) { return moved(move_call(fh, 1, base, size, file_offset, offset)); }
ssize_t hipFileWrite(hipFileHandle_t fh, const void *base, size_t size, hoff_t file_offset, hoff_t offset) { return moved(move_call(fh, 0, base, size, file_offset, offset)); }

hipFileError_t hipFileReadAsync(hipFileHandle_t fh, void *base, size_t *n, hoff_t *offset, hoff_t *at, ssize_t *result, hipStream_t stream)
{
	return TRACED(stream_move(fh, 1, base, n, offset, at, result, (void *)stream), "ReadAsync(%p, %p, stream %p)", fh, base, (void *)stream);
}

hipFileError_t hipFileWriteAsync(hipFileHandle_t fh, void *base, size_t *n, hoff_t *offset, hoff_t *at, ssize_t *result, hipStream_t stream)
{
	return TRACED(stream_move(fh, 0, base, n, offset, at, result, (void *)stream), "WriteAsync(%p, %p, stream %p)", fh, base, (void *)stream);
}

hipFileError_t hipFileStreamRegister(hipStream_t stream, unsigned flags) { return TRACED(stream_register((void *)stream, flags), "StreamRegister(%p, %#x)", (void *)stream, flags); }
hipFileError_t hipFileStreamDeregister(hipStream_t stream) { return TRACED(stream_deregister((void *)stream), "StreamDeregister(%p)", (void *)stream); }

hipFileError_t hipFileBatchIOSetUp(hipFileBatchHandle_t *batch, unsigned nr) { return TRACED(batch_new(batch, nr), "BatchIOSetUp(%u)", nr); }
hipFileError_t hipFileBatchIOSubmit(hipFileBatchHandle_t batch, unsigned nr, hipFileIOParams_t *p, unsigned flags) { return TRACED(batch_submit(batch, nr, (const CUfileIOParams_t *)p, flags), "BatchIOSubmit(%p, %u)", batch, nr); }
hipFileError_t hipFileBatchIOGetStatus(hipFileBatchHandle_t batch, unsigned least, unsigned *nr, hipFileIOEvents_t *events, struct timespec *timeout)
{
	return TRACED(batch_status(batch, least, nr, (CUfileIOEvents_t *)events, timeout), "BatchIOGetStatus(%p)", batch);
}
hipFileError_t hipFileBatchIOCancel(hipFileBatchHandle_t batch) { return TRACED(batch_cancel(batch), "BatchIOCancel(%p)", batch); }
void hipFileBatchIODestroy(hipFileBatchHandle_t batch)
{
	batch_end(batch);
	traced(ok(), "BatchIODestroy(%p)", batch);
}

hipFileError_t hipFileGetParameterSizeT(hipFileSizeTConfigParameter_t p, size_t *v) { return TRACED(param_get_size((int)p, v), "GetParameterSizeT(%d)", (int)p); }
hipFileError_t hipFileGetParameterBool(hipFileBoolConfigParameter_t p, bool *v) { return TRACED(param_get_bool((int)p, v), "GetParameterBool(%d)", (int)p); }
hipFileError_t hipFileGetParameterString(hipFileStringConfigParameter_t p, char *v, int n) { return TRACED(param_get_string((int)p, v, n), "GetParameterString(%d)", (int)p); }
hipFileError_t hipFileSetParameterSizeT(hipFileSizeTConfigParameter_t p, size_t v) { return TRACED(param_set_size((int)p, v, 0), "SetParameterSizeT(%d, %zu)", (int)p, v); }
hipFileError_t hipFileSetParameterBool(hipFileBoolConfigParameter_t p, bool v) { return TRACED(param_set_bool((int)p, v, 0), "SetParameterBool(%d, %d)", (int)p, v); }
hipFileError_t hipFileSetParameterString(hipFileStringConfigParameter_t p, const char *v) { return TRACED(param_set_string((int)p, v), "SetParameterString(%d)", (int)p); }
