/*
 * The interface of NVIDIA's cuFile 1.15 as its API reference describes it: names, values and layouts are NVIDIA's, so that programs made with
 * NVIDIA's header and programs made with this one run with either library. README.md says what this library does of it.
 *
 * Calls that move bytes return how many, or -1 with errno for what a file system reports, or a negative CUfileOpError.
 */
#ifndef LANEFS_CUFILE_H
#define LANEFS_CUFILE_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

struct timespec; /* that of ISO C before 2011 has none */

#if defined(__has_include)
#if __has_include(<cuda.h>) && !defined(LANEFS_NO_CUDA_H)
#include <cuda.h>
#define LANEFS_HAS_CUDA_H
#endif
#endif
#ifndef LANEFS_HAS_CUDA_H
typedef int CUresult;
typedef struct CUstream_st *CUstream;
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CUFILEOP_BASE_ERR 5000

/* X(name, offset from the base, text) */
#define LANEFS_CUFILE_ERRORS(X) \
	X(CU_FILE_DRIVER_NOT_INITIALIZED, 1, "the driver is not open") \
	X(CU_FILE_DRIVER_INVALID_PROPS, 2, "no such property") \
	X(CU_FILE_DRIVER_UNSUPPORTED_LIMIT, 3, "a limit that is not possible") \
	X(CU_FILE_DRIVER_VERSION_MISMATCH, 4, "library and driver are of different versions") \
	X(CU_FILE_DRIVER_VERSION_READ_ERROR, 5, "the driver's version cannot be read") \
	X(CU_FILE_DRIVER_CLOSING, 6, "the driver is being closed") \
	X(CU_FILE_PLATFORM_NOT_SUPPORTED, 7, "not supported here") \
	X(CU_FILE_IO_NOT_SUPPORTED, 8, "not supported for this file") \
	X(CU_FILE_DEVICE_NOT_SUPPORTED, 9, "not supported for this GPU") \
	X(CU_FILE_NVFS_DRIVER_ERROR, 10, "the kernel's driver failed") \
	X(CU_FILE_CUDA_DRIVER_ERROR, 11, "the GPU's driver failed") \
	X(CU_FILE_CUDA_POINTER_INVALID, 12, "no memory is at the pointer") \
	X(CU_FILE_CUDA_MEMORY_TYPE_INVALID, 13, "memory of a wrong type") \
	X(CU_FILE_CUDA_POINTER_RANGE_ERROR, 14, "the range is longer than the memory at the pointer") \
	X(CU_FILE_CUDA_CONTEXT_MISMATCH, 15, "the wrong context") \
	X(CU_FILE_INVALID_MAPPING_SIZE, 16, "more memory than can be pinned") \
	X(CU_FILE_INVALID_MAPPING_RANGE, 17, "the range is longer than the registered buffer") \
	X(CU_FILE_INVALID_FILE_TYPE, 18, "not a file of a usable type") \
	X(CU_FILE_INVALID_FILE_OPEN_FLAG, 19, "the file is open with a flag that is not possible") \
	X(CU_FILE_DIO_NOT_SET, 20, "the file is not open for direct I/O") \
	X(CU_FILE_INVALID_VALUE, 22, "a bad argument") \
	X(CU_FILE_MEMORY_ALREADY_REGISTERED, 23, "the memory is registered already") \
	X(CU_FILE_MEMORY_NOT_REGISTERED, 24, "the memory is not registered") \
	X(CU_FILE_PERMISSION_DENIED, 25, "no permission") \
	X(CU_FILE_DRIVER_ALREADY_OPEN, 26, "the driver is open already") \
	X(CU_FILE_HANDLE_NOT_REGISTERED, 27, "the handle is not registered") \
	X(CU_FILE_HANDLE_ALREADY_REGISTERED, 28, "the file descriptor is registered already") \
	X(CU_FILE_DEVICE_NOT_FOUND, 29, "no such GPU") \
	X(CU_FILE_INTERNAL_ERROR, 30, "an error of the library") \
	X(CU_FILE_GETNEWFD_FAILED, 31, "no descriptor could be had") \
	X(CU_FILE_NVFS_SETUP_ERROR, 33, "the kernel's driver could not be set up") \
	X(CU_FILE_IO_DISABLED, 34, "switched off for this file") \
	X(CU_FILE_BATCH_SUBMIT_FAILED, 35, "a batch was not accepted") \
	X(CU_FILE_GPU_MEMORY_PINNING_FAILED, 36, "memory of the GPU could not be pinned") \
	X(CU_FILE_BATCH_FULL, 37, "the batch is full") \
	X(CU_FILE_ASYNC_NOT_SUPPORTED, 38, "not supported in a stream's order") \
	X(CU_FILE_INTERNAL_BATCH_SETUP_ERROR, 39, "a batch could not be made") \
	X(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, 40, "an error of the library at the submission of a batch") \
	X(CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR, 41, "an error of the library in a batch's status") \
	X(CU_FILE_INTERNAL_BATCH_CANCEL_ERROR, 42, "an error of the library at the end of a batch") \
	X(CU_FILE_NOMEM_ERROR, 43, "out of memory") \
	X(CU_FILE_IO_ERROR, 44, "an I/O error") \
	X(CU_FILE_INTERNAL_BUF_REGISTER_ERROR, 45, "memory could not be registered") \
	X(CU_FILE_HASH_OPR_ERROR, 46, "an error in a table of the library") \
	X(CU_FILE_INVALID_CONTEXT_ERROR, 47, "no usable context") \
	X(CU_FILE_NVFS_INTERNAL_DRIVER_ERROR, 48, "an error in the kernel's driver") \
	X(CU_FILE_BATCH_NOCOMPAT_ERROR, 49, "the compatibility mode is off") \
	X(CU_FILE_IO_MAX_ERROR, 50, "the last error")

typedef enum CUfileOpError {
#define LANEFS_X(name, n, text) name = CUFILEOP_BASE_ERR + n,
	LANEFS_CUFILE_ERRORS(LANEFS_X)
#undef LANEFS_X
	CU_FILE_SUCCESS = 0
} CUfileOpError;

static inline const char *cufileop_status_error(CUfileOpError status)
{
	switch (status) {
	case CU_FILE_SUCCESS:
		return "success";
#define LANEFS_X(name, n, text) \
	case name: \
		return text;
		LANEFS_CUFILE_ERRORS(LANEFS_X)
#undef LANEFS_X
	default:
		return "unknown error";
	}
}

typedef struct CUfileError {
	CUfileOpError err;
	CUresult cu_err; /* with CU_FILE_CUDA_DRIVER_ERROR */
} CUfileError_t;

#define IS_CUFILE_ERR(err) (abs((err)) > CUFILEOP_BASE_ERR)
#define CUFILE_ERRSTR(err) cufileop_status_error((CUfileOpError)abs((err)))
#define IS_CUDA_ERR(status) ((status).err == CU_FILE_CUDA_DRIVER_ERROR)
#define CU_FILE_CUDA_ERR(status) ((status).cu_err)

/* Bits of CUfileDrvProps_t's flags. */
typedef enum CUfileDriverStatusFlags {
	CU_FILE_LUSTRE_SUPPORTED = 0,
	CU_FILE_WEKAFS_SUPPORTED = 1,
	CU_FILE_NFS_SUPPORTED = 2,
	CU_FILE_GPFS_SUPPORTED = 3,
	CU_FILE_NVME_SUPPORTED = 4,
	CU_FILE_NVMEOF_SUPPORTED = 5,
	CU_FILE_SCSI_SUPPORTED = 6,
	CU_FILE_SCALEFLUX_CSD_SUPPORTED = 7,
	CU_FILE_NVMESH_SUPPORTED = 8,
	CU_FILE_BEEGFS_SUPPORTED = 9,
	CU_FILE_NVME_P2P_SUPPORTED = 11,
	CU_FILE_SCATEFS_SUPPORTED = 12
} CUfileDriverStatusFlags_t;

typedef enum CUfileDriverControlFlags {
	CU_FILE_USE_POLL_MODE = 0,
	CU_FILE_ALLOW_COMPAT_MODE = 1
} CUfileDriverControlFlags_t;

typedef enum CUfileFeatureFlags {
	CU_FILE_DYN_ROUTING_SUPPORTED = 0,
	CU_FILE_BATCH_IO_SUPPORTED = 1,
	CU_FILE_STREAMS_SUPPORTED = 2,
	CU_FILE_PARALLEL_IO_SUPPORTED = 3
} CUfileFeatureFlags_t;

typedef struct CUfileDrvProps {
	struct {
		unsigned int major_version, minor_version;
		size_t poll_thresh_size, max_direct_io_size; /* KiB */
		unsigned int dstatusflags, dcontrolflags;
	} nvfs;
	unsigned int fflags;
	unsigned int max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size; /* KiB */
	unsigned int max_batch_io_size;
	unsigned int max_batch_io_timeout_msecs;
} CUfileDrvProps_t;

typedef struct sockaddr sockaddr_t;

typedef struct cufileRDMAInfo {
	int version, desc_len;
	const char *desc_str;
} cufileRDMAInfo_t;

#define CU_FILE_RDMA_REGISTER 1
#define CU_FILE_RDMA_RELAXED_ORDERING (1 << 1)

typedef struct CUfileFSOps {
	const char *(*fs_type)(void *handle);
	int (*getRDMADeviceList)(void *handle, sockaddr_t **hostaddrs);
	int (*getRDMADevicePriority)(void *handle, char *, size_t, off_t, sockaddr_t *hostaddr);
	ssize_t (*read)(void *handle, char *, size_t, off_t, cufileRDMAInfo_t *);
	ssize_t (*write)(void *handle, const char *, size_t, off_t, cufileRDMAInfo_t *);
} CUfileFSOps_t;

enum CUfileFileHandleType {
	CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1,
	CU_FILE_HANDLE_TYPE_OPAQUE_WIN32 = 2,
	CU_FILE_HANDLE_TYPE_USERSPACE_FS = 3
};

typedef struct CUfileDescr_t {
	enum CUfileFileHandleType type;
	union {
		int fd;
		void *handle;
	} handle;
	const CUfileFSOps_t *fs_ops;
} CUfileDescr_t;

typedef void *CUfileHandle_t;
typedef void *CUfileBatchHandle_t;

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileDriverClose(void);
#define cuFileDriverClose cuFileDriverClose_v2
CUfileError_t cuFileDriverClose(void);
long cuFileUseCount(void);
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *props);
CUfileError_t cuFileDriverSetPollMode(bool poll, size_t poll_threshold_size);
CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t max_direct_io_size);
CUfileError_t cuFileDriverSetMaxCacheSize(size_t max_cache_size);
CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t max_pinned_size);
CUfileError_t cuFileGetVersion(int *version);

CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr);
void cuFileHandleDeregister(CUfileHandle_t fh);
CUfileError_t cuFileBufRegister(const void *bufPtr_base, size_t length, int flags);
CUfileError_t cuFileBufDeregister(const void *bufPtr_base);
ssize_t cuFileRead(CUfileHandle_t fh, void *bufPtr_base, size_t size, off_t file_offset, off_t bufPtr_offset);
ssize_t cuFileWrite(CUfileHandle_t fh, const void *bufPtr_base, size_t size, off_t file_offset, off_t bufPtr_offset);

/* Flags of cuFileStreamRegister: what is known at the submission already. */
#define CU_FILE_STREAM_FIXED_BUF_OFFSET 1
#define CU_FILE_STREAM_FIXED_FILE_OFFSET 2
#define CU_FILE_STREAM_FIXED_FILE_SIZE 4
#define CU_FILE_STREAM_PAGE_ALIGNED_INPUTS 8

CUfileError_t cuFileReadAsync(CUfileHandle_t fh, void *bufPtr_base, size_t *size_p, off_t *file_offset_p, off_t *bufPtr_offset_p,
	ssize_t *bytes_read_p, CUstream stream);
CUfileError_t cuFileWriteAsync(CUfileHandle_t fh, void *bufPtr_base, size_t *size_p, off_t *file_offset_p, off_t *bufPtr_offset_p,
	ssize_t *bytes_written_p, CUstream stream);
CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags);
CUfileError_t cuFileStreamDeregister(CUstream stream);

typedef enum CUfileOpcode {
	CUFILE_READ = 0,
	CUFILE_WRITE = 1
} CUfileOpcode_t;

typedef enum CUFILEStatus_enum {
	CUFILE_WAITING = 0x01,
	CUFILE_PENDING = 0x02,
	CUFILE_INVALID = 0x04,
	CUFILE_CANCELED = 0x08,
	CUFILE_COMPLETE = 0x10,
	CUFILE_TIMEOUT = 0x20,
	CUFILE_FAILED = 0x40
} CUfileStatus_t;

typedef enum cufileBatchMode {
	CUFILE_BATCH = 1
} CUfileBatchMode_t;

typedef struct CUfileIOParams {
	CUfileBatchMode_t mode;
	union {
		struct {
			void *devPtr_base;
			off_t file_offset, devPtr_offset;
			size_t size;
		} batch;
	} u;
	CUfileHandle_t fh;
	CUfileOpcode_t opcode;
	void *cookie;
} CUfileIOParams_t;

typedef struct CUfileIOEvents {
	void *cookie;
	CUfileStatus_t status;
	size_t ret; /* bytes, or a negative error */
} CUfileIOEvents_t;

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t *batch_idp, unsigned nr);
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch_idp, unsigned nr, CUfileIOParams_t *iocbp, unsigned int flags);
CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch_idp, unsigned min_nr, unsigned *nr, CUfileIOEvents_t *iocbp, struct timespec *timeout);
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch_idp);
void cuFileBatchIODestroy(CUfileBatchHandle_t batch_idp);

typedef enum CUFileSizeTConfigParameter_t {
	CUFILE_PARAM_PROFILE_STATS,
	CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH,
	CUFILE_PARAM_EXECUTION_MAX_IO_THREADS,
	CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB,
	CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM,
	CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE,
	CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB,
	CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS
} CUFileSizeTConfigParameter_t;

typedef enum CUFileBoolConfigParameter_t {
	CUFILE_PARAM_PROPERTIES_USE_POLL_MODE,
	CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE,
	CUFILE_PARAM_FORCE_COMPAT_MODE,
	CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE,
	CUFILE_PARAM_EXECUTION_PARALLEL_IO,
	CUFILE_PARAM_PROFILE_NVTX,
	CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY,
	CUFILE_PARAM_USE_PCIP2PDMA,
	CUFILE_PARAM_PREFER_IO_URING,
	CUFILE_PARAM_FORCE_ODIRECT_MODE,
	CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION,
	CUFILE_PARAM_STREAM_MEMOPS_BYPASS
} CUFileBoolConfigParameter_t;

typedef enum CUFileStringConfigParameter_t {
	CUFILE_PARAM_LOGGING_LEVEL,
	CUFILE_PARAM_ENV_LOGFILE_PATH,
	CUFILE_PARAM_LOG_DIR
} CUFileStringConfigParameter_t;

typedef enum CUFileArrayConfigParameter_t {
	CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB,
	CUFILE_PARAM_POSIX_POOL_SLAB_COUNT
} CUFileArrayConfigParameter_t;

CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t param, size_t *value);
CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t param, bool *value);
CUfileError_t cuFileGetParameterString(CUFileStringConfigParameter_t param, char *desc_str, int len);
CUfileError_t cuFileGetParameterMinMaxValue(CUFileSizeTConfigParameter_t param, size_t *min_value, size_t *max_value);
CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t param, size_t value);
CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t param, bool value);
CUfileError_t cuFileSetParameterString(CUFileStringConfigParameter_t param, const char *desc_str);
CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t *size_values, const size_t *count_values, int len);
CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t *size_values, size_t *count_values, int len);
CUfileError_t cuFileGetBARSizeInKB(int gpuIndex, size_t *barSize);

typedef struct CUfileOpCounter {
	uint64_t ok, err;
} CUfileOpCounter_t;

typedef struct CUfileStatsLevel1 {
	CUfileOpCounter_t read_ops, write_ops, hdl_register_ops, hdl_deregister_ops, buf_register_ops, buf_deregister_ops;
	uint64_t read_bytes, write_bytes, read_bw_bytes_per_sec, write_bw_bytes_per_sec, read_lat_avg_us, write_lat_avg_us;
	uint64_t read_ops_per_sec, write_ops_per_sec, read_lat_sum_us, write_lat_sum_us;
	CUfileOpCounter_t batch_submit_ops, batch_complete_ops, batch_setup_ops, batch_cancel_ops, batch_destroy_ops;
	CUfileOpCounter_t batch_enqueued_ops, batch_posix_enqueued_ops, batch_processed_ops, batch_posix_processed_ops;
	CUfileOpCounter_t batch_nvfs_submit_ops, batch_p2p_submit_ops, batch_aio_submit_ops, batch_iouring_submit_ops, batch_mixed_io_submit_ops,
		batch_total_submit_ops;
	uint64_t batch_read_bytes, batch_write_bytes, batch_read_bw_bytes, batch_write_bw_bytes, batch_submit_lat_avg_us, batch_completion_lat_avg_us;
	uint64_t batch_submit_ops_per_sec, batch_complete_ops_per_sec, batch_submit_lat_sum_us, batch_completion_lat_sum_us;
	uint64_t last_batch_read_bytes, last_batch_write_bytes;
} CUfileStatsLevel1_t;

typedef struct CUfileStatsLevel2 {
	CUfileStatsLevel1_t basic;
	uint64_t read_size_kb_hist[32], write_size_kb_hist[32]; /* by the power of two of the size in KiB */
} CUfileStatsLevel2_t;

#define CUFILE_GPU_UUID_LEN 16

typedef struct CUfilePerGpuStats {
	char uuid[CUFILE_GPU_UUID_LEN];
	uint64_t read_bytes, read_bw_bytes_per_sec, read_utilization, read_duration_us, n_total_reads, n_p2p_reads, n_nvfs_reads, n_posix_reads;
	uint64_t n_unaligned_reads, n_dr_reads, n_sparse_regions, n_inline_regions, n_reads_err;
	uint64_t writes_bytes, write_bw_bytes_per_sec, write_utilization, write_duration_us, n_total_writes, n_p2p_writes, n_nvfs_writes;
	uint64_t n_posix_writes, n_unaligned_writes, n_dr_writes, n_writes_err;
	uint64_t n_mmap, n_mmap_ok, n_mmap_err, n_mmap_free, reg_bytes;
} CUfilePerGpuStats_t;

typedef struct CUfileStatsLevel3 {
	CUfileStatsLevel2_t detailed;
	uint32_t num_gpus;
	CUfilePerGpuStats_t per_gpu_stats[16];
} CUfileStatsLevel3_t;

CUfileError_t cuFileSetStatsLevel(int level);
CUfileError_t cuFileGetStatsLevel(int *level);
CUfileError_t cuFileStatsStart(void);
CUfileError_t cuFileStatsStop(void);
CUfileError_t cuFileStatsReset(void);
CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t *stats);
CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t *stats);
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t *stats);

#ifdef __cplusplus
}
#endif
#endif
