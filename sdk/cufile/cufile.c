/* cuFile's interface. What each function does is in the other files; here it gets its name and its trace. */
#define _GNU_SOURCE
#include "core.h"
#include "stats.h"

#include <stdio.h>
#include <string.h>

enum { VERSION = 1150, MAJOR = 1, MINOR = 15 };

#if defined(__aarch64__)
#define CUDA_TARGET "sbsa-linux" /* servers with NVIDIA's Grace and others of Arm's */
#else
#define CUDA_TARGET "x86_64-linux"
#endif
static const char *const directories[] = {"/usr/local/cuda/lib64", "/usr/local/cuda/targets/" CUDA_TARGET "/lib", "/usr/local/cuda-13/lib64", "/usr/local/cuda-12/lib64",
	"/usr/lib/" MULTIARCH, "/usr/lib64", "/usr/local/lib", NULL};
const struct front front = {.prefix = "cuFile", .env = "LANEFS_REAL_CUFILE", .soname = "libcufile.so.0", .beside = "libcudart.so", .directories = directories};

static CUfileError_t out(status s) { return (CUfileError_t){(CUfileOpError)s.err, (CUresult)s.gpu}; }
#define TRACED(s, ...) out(traced(s, __VA_ARGS__))

CUfileError_t cuFileDriverOpen(void) { return TRACED(driver_open(), "DriverOpen()"); }
CUfileError_t cuFileDriverClose_v2(void) { return TRACED(driver_close(), "DriverClose()"); }
#undef cuFileDriverClose
CUfileError_t cuFileDriverClose(void) { return cuFileDriverClose_v2(); }
long cuFileUseCount(void) { return driver_count(); }

static status properties(CUfileDrvProps_t *p)
{
	if (!p)
		return bad(CU_FILE_INVALID_VALUE);
	driver_use();
	memset(p, 0, sizeof *p);
	p->nvfs.major_version = MAJOR;
	p->nvfs.minor_version = MINOR;
	p->nvfs.poll_thresh_size = param_size(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB);
	p->nvfs.max_direct_io_size = param_size(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB);
	p->nvfs.dcontrolflags = (unsigned)param_bool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE) << CU_FILE_USE_POLL_MODE |
		(unsigned)param_bool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE) << CU_FILE_ALLOW_COMPAT_MODE;
	p->fflags = 1u << CU_FILE_BATCH_IO_SUPPORTED | 1u << CU_FILE_STREAMS_SUPPORTED | 1u << CU_FILE_PARALLEL_IO_SUPPORTED;
	p->max_device_cache_size = (unsigned)param_size(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB);
	p->per_buffer_cache_size = (unsigned)param_size(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB);
	p->max_device_pinned_mem_size = (unsigned)param_size(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB);
	p->max_batch_io_size = (unsigned)param_size(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE);
	p->max_batch_io_timeout_msecs = (unsigned)param_size(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS);
	return ok();
}

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *props) { return TRACED(properties(props), "DriverGetProperties()"); }

/* As NVIDIA's library, these do not open the driver. */
static status limit(int which, size_t kib)
{
	if (!driver_is_open())
		return bad(CU_FILE_DRIVER_NOT_INITIALIZED);
	return kib % 4 ? bad(CU_FILE_DRIVER_UNSUPPORTED_LIMIT) : param_set_size(which, kib, 1);
}

static status poll_mode(bool poll, size_t kib)
{
	status s = limit(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, kib);
	return s.err ? s : param_set_bool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, poll, 1);
}

CUfileError_t cuFileDriverSetPollMode(bool poll, size_t n) { return TRACED(poll_mode(poll, n), "DriverSetPollMode(%d, %zu)", poll, n); }
CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t n) { return TRACED(limit(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, n), "DriverSetMaxDirectIOSize(%zu)", n); }
CUfileError_t cuFileDriverSetMaxCacheSize(size_t n) { return TRACED(limit(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, n), "DriverSetMaxCacheSize(%zu)", n); }
CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t n) { return TRACED(limit(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, n), "DriverSetMaxPinnedMemSize(%zu)", n); }

CUfileError_t cuFileGetVersion(int *version)
{
	if (version)
		*version = VERSION;
	return TRACED(version ? ok() : bad(CU_FILE_INVALID_VALUE), "GetVersion()");
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr)
{
	status s = fh && descr ? file_register(fh, (int)descr->type, descr->handle.fd) : bad(CU_FILE_INVALID_VALUE);
	stats_event(DID_HANDLE, s.err != 0, 0);
	return TRACED(s, "HandleRegister(%d)", descr ? descr->handle.fd : -1);
}

void cuFileHandleDeregister(CUfileHandle_t fh)
{
	file_deregister(fh);
	traced(ok(), "HandleDeregister(%p)", fh);
}

CUfileError_t cuFileBufRegister(const void *base, size_t length, int flags)
{
	status s = buffer_register(base, length, flags & (CU_FILE_RDMA_REGISTER | CU_FILE_RDMA_RELAXED_ORDERING)); /* NVIDIA's library takes any, too */
	stats_event(DID_BUFFER, s.err != 0, length);
	return TRACED(s, "BufRegister(%p, %zu bytes)", base, length);
}

CUfileError_t cuFileBufDeregister(const void *base)
{
	status s = buffer_deregister(base);
	stats_event(DID_BUFFER_END, s.err != 0, 0);
	return TRACED(s, "BufDeregister(%p)", base);
}

ssize_t cuFileRead(CUfileHandle_t fh, void *base, size_t size, off_t file_offset, off_t offset) { return move_call(fh, 1, base, size, file_offset, offset); }
ssize_t cuFileWrite(CUfileHandle_t fh, const void *base, size_t size, off_t file_offset, off_t offset) { return move_call(fh, 0, base, size, file_offset, offset); }

CUfileError_t cuFileReadAsync(CUfileHandle_t fh, void *base, size_t *n, off_t *offset, off_t *at, ssize_t *result, CUstream stream)
{
	return TRACED(stream_move(fh, 1, base, n, offset, at, result, (void *)stream), "ReadAsync(%p, %p, stream %p)", fh, base, (void *)stream);
}

CUfileError_t cuFileWriteAsync(CUfileHandle_t fh, void *base, size_t *n, off_t *offset, off_t *at, ssize_t *result, CUstream stream)
{
	return TRACED(stream_move(fh, 0, base, n, offset, at, result, (void *)stream), "WriteAsync(%p, %p, stream %p)", fh, base, (void *)stream);
}

CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags) { return TRACED(stream_register((void *)stream, flags), "StreamRegister(%p, %#x)", (void *)stream, flags); }
CUfileError_t cuFileStreamDeregister(CUstream stream) { return TRACED(stream_deregister((void *)stream), "StreamDeregister(%p)", (void *)stream); }

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t *batch, unsigned nr)
{
	status s = batch_new(batch, nr);
	stats_event(DID_BATCH_SETUP, s.err != 0, 0);
	return TRACED(s, "BatchIOSetUp(%u)", nr);
}

CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch, unsigned nr, CUfileIOParams_t *p, unsigned flags)
{
	(void)flags; /* NVIDIA's library takes any, too */
	status s = batch_submit(batch, nr, p, 0);
	stats_event(DID_BATCH_SUBMIT, s.err != 0, nr);
	return TRACED(s, "BatchIOSubmit(%p, %u)", batch, nr);
}

CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch, unsigned least, unsigned *nr, CUfileIOEvents_t *events, struct timespec *timeout)
{
	return TRACED(batch_status(batch, least, nr, events, timeout), "BatchIOGetStatus(%p)", batch);
}

CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch)
{
	status s = batch_cancel(batch);
	stats_event(DID_BATCH_CANCEL, s.err != 0, 0);
	return TRACED(s, "BatchIOCancel(%p)", batch);
}

void cuFileBatchIODestroy(CUfileBatchHandle_t batch)
{
	batch_end(batch);
	traced(ok(), "BatchIODestroy(%p)", batch);
}

CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t p, size_t *v) { return TRACED(param_get_size((int)p, v), "GetParameterSizeT(%d)", (int)p); }
CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t p, bool *v) { return TRACED(param_get_bool((int)p, v), "GetParameterBool(%d)", (int)p); }
CUfileError_t cuFileGetParameterString(CUFileStringConfigParameter_t p, char *v, int n) { return TRACED(param_get_string((int)p, v, n), "GetParameterString(%d)", (int)p); }
CUfileError_t cuFileGetParameterMinMaxValue(CUFileSizeTConfigParameter_t p, size_t *least, size_t *most) { return TRACED(param_range((int)p, least, most), "GetParameterMinMaxValue(%d)", (int)p); }
CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t p, size_t v) { return TRACED(param_set_size((int)p, v, 0), "SetParameterSizeT(%d, %zu)", (int)p, v); }
CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t p, bool v) { return TRACED(param_set_bool((int)p, v, 0), "SetParameterBool(%d, %d)", (int)p, v); }
CUfileError_t cuFileSetParameterString(CUFileStringConfigParameter_t p, const char *v) { return TRACED(param_set_string((int)p, v), "SetParameterString(%d)", (int)p); }
CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t *s, const size_t *c, int n) { return TRACED(param_set_slabs(s, c, n), "SetParameterPosixPoolSlabArray(%d)", n); }
CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t *s, size_t *c, int n) { return TRACED(param_get_slabs(s, c, n), "GetParameterPosixPoolSlabArray(%d)", n); }

CUfileError_t cuFileSetStatsLevel(int level) { return TRACED(stats_set_level(level), "SetStatsLevel(%d)", level); }
CUfileError_t cuFileStatsStart(void) { return TRACED(stats_switch(1), "StatsStart()"); }
CUfileError_t cuFileStatsStop(void) { return TRACED(stats_switch(0), "StatsStop()"); }
CUfileError_t cuFileStatsReset(void) { return TRACED(stats_reset(), "StatsReset()"); }
CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t *s) { return TRACED(stats_get(1, s, sizeof *s), "GetStatsL1()"); }
CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t *s) { return TRACED(stats_get(2, s, sizeof *s), "GetStatsL2()"); }
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t *s) { return TRACED(stats_get(3, s, sizeof *s), "GetStatsL3()"); }

CUfileError_t cuFileGetStatsLevel(int *level)
{
	if (level)
		*level = stats_level();
	return TRACED(level ? ok() : bad(CU_FILE_INVALID_VALUE), "GetStatsLevel()");
}

/* What is not done. README.md has the list, and a test compares it with this one. */
CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t *size)
{
	(void)size;
	return TRACED(bad(CU_FILE_PLATFORM_NOT_SUPPORTED), "GetBARSizeInKB(%d)", gpu);
}

/* Not of the interface: NVIDIA's library exports them because it launches its kernels by them, and for its own messages. */
#define NOT_DONE(name) \
	CUfileError_t name(void); \
	CUfileError_t name(void) { return TRACED(bad(CU_FILE_PLATFORM_NOT_SUPPORTED), "%s()", #name); }
#define NOT_DONE_IN_CPP(name, symbol) \
	CUfileError_t name(void) __asm__(symbol); \
	CUfileError_t name(void) { return TRACED(bad(CU_FILE_PLATFORM_NOT_SUPPORTED), "%s()", #name); }
NOT_DONE(cuFileCopyGpu)
NOT_DONE(cuFileCopyGpuPosixIORetry)
NOT_DONE(cuFileCopyGpuWrap)
NOT_DONE(cuFileCopyGpuWrapPosixIORetry)
NOT_DONE(cuFileGpuWaitValue32)
NOT_DONE(cuFileInlineGpu)
NOT_DONE(cuFileSparseGpu)
NOT_DONE(cuFileStreamHandleInline)
NOT_DONE(cuFileStreamHandleSparse)
NOT_DONE(cuFileStreamWaitValue32)
NOT_DONE_IN_CPP(logger_debug, "_Z15cuFileLoggerDbgPKcS0_")
NOT_DONE_IN_CPP(logger_error, "_Z15cuFileLoggerErrPKcS0_")
NOT_DONE_IN_CPP(logger_info, "_Z16cuFileLoggerInfoPKcS0_")
NOT_DONE_IN_CPP(logger_warning, "_Z16cuFileLoggerWarnPKcS0_")
NOT_DONE_IN_CPP(logger_trace, "_Z17cuFileLoggerTracePKcS0_")
NOT_DONE_IN_CPP(logger_notice, "_Z18cuFileLoggerNoticePKcS0_")
NOT_DONE_IN_CPP(stub_wait, "_Z40__device_stub__Z20cuFileGpuWaitValue32yjyj")
NOT_DONE_IN_CPP(stub_copy, "_Z47__device_stub__Z13cuFileCopyGpuP13gpu_copy_in_sP13gpu_copy_in_s")
NOT_DONE_IN_CPP(stub_inline, "_Z49__device_stub__Z15cuFileInlineGpuP13gpu_meta_in_sP13gpu_meta_in_s")
NOT_DONE_IN_CPP(stub_sparse, "_Z49__device_stub__Z15cuFileSparseGpuP13gpu_meta_in_sP13gpu_meta_in_s")
NOT_DONE_IN_CPP(stub_retry, "_Z59__device_stub__Z25cuFileCopyGpuPosixIORetryP13gpu_copy_in_sP13gpu_copy_in_s")
