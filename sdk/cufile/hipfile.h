/*
 * The interface of AMD's hipFile 0.2, as its public documentation describes it: names, values and layouts are AMD's. README.md says what
 * this library does of it. Calls that move bytes return how many, or -1 with errno for what a file system reports, or a negative error.
 */
#ifndef LANEFS_HIPFILE_H
#define LANEFS_HIPFILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

struct timespec; /* that of ISO C before 2011 has none */

#if defined(__has_include)
#if __has_include(<hip/hip_runtime_api.h>)
#include <hip/hip_runtime_api.h>
#define LANEFS_HAS_HIP_H
#endif
#endif
#ifndef LANEFS_HAS_HIP_H
typedef int hipError_t;
typedef struct ihipStream_t *hipStream_t;
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define HIPFILE_VERSION_MAJOR 0
#define HIPFILE_VERSION_MINOR 2
#define HIPFILE_VERSION_PATCH 0
#define HIPFILE_BASE_ERR 5000

typedef off_t hoff_t;

typedef enum hipFileOpError {
	hipFileSuccess = 0,
	hipFileDriverNotInitialized = HIPFILE_BASE_ERR + 1,
	hipFileDriverInvalidProps = HIPFILE_BASE_ERR + 2,
	hipFileDriverUnsupportedLimit = HIPFILE_BASE_ERR + 3,
	hipFileDriverVersionMismatch = HIPFILE_BASE_ERR + 4,
	hipFileDriverVersionReadError = HIPFILE_BASE_ERR + 5,
	hipFileDriverClosing = HIPFILE_BASE_ERR + 6,
	hipFilePlatformNotSupported = HIPFILE_BASE_ERR + 7,
	hipFileIONotSupported = HIPFILE_BASE_ERR + 8,
	hipFileDeviceNotSupported = HIPFILE_BASE_ERR + 9,
	hipFileDriverError = HIPFILE_BASE_ERR + 10,
	hipFileHipDriverError = HIPFILE_BASE_ERR + 11,
	hipFileHipPointerInvalid = HIPFILE_BASE_ERR + 12,
	hipFileHipMemoryTypeInvalid = HIPFILE_BASE_ERR + 13,
	hipFileHipPointerRangeError = HIPFILE_BASE_ERR + 14,
	hipFileHipContextMismatch = HIPFILE_BASE_ERR + 15,
	hipFileInvalidMappingSize = HIPFILE_BASE_ERR + 16,
	hipFileInvalidMappingRange = HIPFILE_BASE_ERR + 17,
	hipFileInvalidFileType = HIPFILE_BASE_ERR + 18,
	hipFileInvalidFileOpenFlag = HIPFILE_BASE_ERR + 19,
	hipFileDIONotSet = HIPFILE_BASE_ERR + 20,
	hipFileInvalidValue = HIPFILE_BASE_ERR + 22,
	hipFileMemoryAlreadyRegistered = HIPFILE_BASE_ERR + 23,
	hipFileMemoryNotRegistered = HIPFILE_BASE_ERR + 24,
	hipFilePermissionDenied = HIPFILE_BASE_ERR + 25,
	hipFileDriverAlreadyOpen = HIPFILE_BASE_ERR + 26,
	hipFileHandleNotRegistered = HIPFILE_BASE_ERR + 27,
	hipFileHandleAlreadyRegistered = HIPFILE_BASE_ERR + 28,
	hipFileDeviceNotFound = HIPFILE_BASE_ERR + 29,
	hipFileInternalError = HIPFILE_BASE_ERR + 30,
	hipFileGetNewFDFailed = HIPFILE_BASE_ERR + 31,
	hipFileDriverSetupError = HIPFILE_BASE_ERR + 33,
	hipFileIODisabled = HIPFILE_BASE_ERR + 34,
	hipFileBatchSubmitFailed = HIPFILE_BASE_ERR + 35,
	hipFileGPUMemoryPinningFailed = HIPFILE_BASE_ERR + 36,
	hipFileBatchFull = HIPFILE_BASE_ERR + 37,
	hipFileAsyncNotSupported = HIPFILE_BASE_ERR + 38,
	hipFileIOMaxError = HIPFILE_BASE_ERR + 39
} hipFileOpError_t;

typedef struct hipFileError {
	hipFileOpError_t err;
	hipError_t hip_drv_err; /* with hipFileHipDriverError */
} hipFileError_t;

#define IS_HIPFILE_ERR(e) (abs(e) > HIPFILE_BASE_ERR)
#define HIPFILE_ERRSTR(e) hipFileGetOpErrorString((hipFileOpError_t)abs(e))
#define IS_HIP_DRV_ERR(e) ((e).err == hipFileHipDriverError)
#define HIP_DRV_ERR(e) ((e).hip_drv_err)

const char *hipFileGetOpErrorString(hipFileOpError_t status);

/* Bits of hipFileDriverProps_t's flags. */
typedef enum hipFileDriverStatusFlags {
	hipFileLustreSupported = 0,
	hipFileWekaFSSupported = 1,
	hipFileNFSSupported = 2,
	hipFileGPFSSupported = 3,
	hipFileNVMeSupported = 4,
	hipFileNVMeoFSupported = 5,
	hipFileSCSISupported = 6,
	hipFileScaleFluxCSDSupported = 7,
	hipFileNVMeshSupported = 8,
	hipFileBeeGFSSupported = 9,
	hipFileNVMeP2PSupported = 11,
	hipFileScatefsSupported = 12
} hipFileDriverStatusFlags_t;

typedef enum hipFileDriverControlFlags {
	hipFileUsePollMode = 0,
	hipFileAllowCompatMode = 1
} hipFileDriverControlFlags_t;

typedef enum hipFileFeatureFlags {
	hipFileDynRoutingSupported = 0,
	hipFileBatchIOSupported = 1,
	hipFileStreamsSupported = 2,
	hipFileParallelIOSupported = 3
} hipFileFeatureFlags_t;

typedef struct hipFileDriverProps {
	struct {
		unsigned major_version, minor_version;
		uint64_t poll_thresh_size, max_direct_io_size; /* KiB */
		unsigned driver_status_flags, driver_control_flags;
	} nvfs;
	unsigned feature_flags;
	uint64_t max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size; /* KiB */
	unsigned max_batch_io_count, max_batch_io_timeout_msecs;
} hipFileDriverProps_t;

typedef struct hipFileRDMAInfo {
	int version, desc_len;
	const char *desc_str;
} hipFileRDMAInfo_t;

#define HIPFILE_RDMA_REGISTER 1
#define HIPFILE_RDMA_RELAXED_ORDERING (1 << 1)

typedef struct hipFileFSOps {
	const char *(*fs_type)(void *handle);
	int (*getRDMADeviceList)(void *handle, struct sockaddr **hostaddrs);
	int (*getRDMADevicePriority)(void *handle, char *, size_t, hoff_t, struct sockaddr *hostaddr);
	ssize_t (*read)(void *handle, char *, size_t, hoff_t, hipFileRDMAInfo_t *);
	ssize_t (*write)(void *handle, const char *, size_t, hoff_t, hipFileRDMAInfo_t *);
} hipFileFSOps_t;

typedef enum hipFileFileHandleType {
	hipFileHandleTypeOpaqueFD = 1,
	hipFileHandleTypeOpaqueWin32 = 2,
	hipFileHandleTypeUserspaceFS = 3
} hipFileFileHandleType_t;

typedef struct hipFileDescr {
	hipFileFileHandleType_t type;
	union {
		int fd;
		void *hFile;
	} handle;
	const hipFileFSOps_t *fs_ops;
} hipFileDescr_t;

typedef void *hipFileHandle_t;
typedef void *hipFileBatchHandle_t;

hipFileError_t hipFileDriverOpen(void);
hipFileError_t hipFileDriverClose(void);
int64_t hipFileUseCount(void);
hipFileError_t hipFileDriverGetProperties(hipFileDriverProps_t *props);
hipFileError_t hipFileDriverSetPollMode(bool poll, size_t poll_threshold_size);
hipFileError_t hipFileDriverSetMaxDirectIOSize(size_t max_direct_io_size);
hipFileError_t hipFileDriverSetMaxCacheSize(size_t max_cache_size);
hipFileError_t hipFileDriverSetMaxPinnedMemSize(size_t max_pinned_size);
hipFileError_t hipFileGetVersion(unsigned *major, unsigned *minor, unsigned *patch);

hipFileError_t hipFileHandleRegister(hipFileHandle_t *fh, hipFileDescr_t *descr);
void hipFileHandleDeregister(hipFileHandle_t fh);
hipFileError_t hipFileBufRegister(const void *buffer_base, size_t length, int flags);
hipFileError_t hipFileBufDeregister(const void *buffer_base);
ssize_t hipFileRead(hipFileHandle_t fh, void *buffer_base, size_t size, hoff_t file_offset, hoff_t buffer_offset);
ssize_t hipFileWrite(hipFileHandle_t fh, const void *buffer_base, size_t size, hoff_t file_offset, hoff_t buffer_offset);

#define HIPFILE_STREAM_FIXED_BUF_OFFSET 1
#define HIPFILE_STREAM_FIXED_FILE_OFFSET (1 << 1)
#define HIPFILE_STREAM_FIXED_FILE_SIZE (1 << 2)
#define HIPFILE_STREAM_PAGE_ALIGNED_INPUTS (1 << 3)
#define HIPFILE_STREAM_FLAGS_MASK 0xf

hipFileError_t hipFileReadAsync(hipFileHandle_t fh, void *buffer_base, size_t *size_p, hoff_t *file_offset_p, hoff_t *buffer_offset_p,
	ssize_t *bytes_read_p, hipStream_t stream);
hipFileError_t hipFileWriteAsync(hipFileHandle_t fh, void *buffer_base, size_t *size_p, hoff_t *file_offset_p, hoff_t *buffer_offset_p,
	ssize_t *bytes_written_p, hipStream_t stream);
hipFileError_t hipFileStreamRegister(hipStream_t stream, unsigned flags);
hipFileError_t hipFileStreamDeregister(hipStream_t stream);

typedef enum hipFileOpcode {
	hipFileBatchRead = 0,
	hipFileBatchWrite = 1
} hipFileOpcode_t;

typedef enum hipFileStatus {
	hipFileWaiting = 1 << 0,
	hipFilePending = 1 << 1,
	hipFileInvalid = 1 << 2,
	hipFileCanceled = 1 << 3,
	hipFileComplete = 1 << 4,
	hipFileTimeout = 1 << 5,
	hipFileFailed = 1 << 6
} hipFileStatus_t;

typedef enum hipFileBatchMode {
	hipFileBatch = 1
} hipFileBatchMode_t;

typedef struct hipFileIOParams {
	hipFileBatchMode_t mode;
	union {
		struct {
			void *devPtr_base;
			int64_t file_offset, devPtr_offset;
			size_t size;
		} batch;
	} u;
	hipFileHandle_t fh;
	hipFileOpcode_t opcode;
	void *cookie;
} hipFileIOParams_t;

typedef struct hipFileIOEvents {
	void *cookie;
	hipFileStatus_t status;
	size_t ret; /* bytes, or a negative error */
} hipFileIOEvents_t;

hipFileError_t hipFileBatchIOSetUp(hipFileBatchHandle_t *batch_idp, unsigned max_nr);
hipFileError_t hipFileBatchIOSubmit(hipFileBatchHandle_t batch_idp, unsigned nr, hipFileIOParams_t *iocbp, unsigned flags);
hipFileError_t hipFileBatchIOGetStatus(hipFileBatchHandle_t batch_idp, unsigned min_nr, unsigned *nr, hipFileIOEvents_t *iocbp, struct timespec *timeout);
hipFileError_t hipFileBatchIOCancel(hipFileBatchHandle_t batch_idp);
void hipFileBatchIODestroy(hipFileBatchHandle_t batch_idp);

typedef enum hipFileSizeTConfigParameter_t {
	hipFileParamProfileStats,
	hipFileParamExecutionMaxIOQueueDepth,
	hipFileParamExecutionMaxIOThreads,
	hipFileParamExecutionMinIOThresholdSizeKB,
	hipFileParamExecutionMaxRequestParallelism,
	hipFileParamPropertiesMaxDirectIOSizeKB,
	hipFileParamPropertiesMaxDeviceCacheSizeKB,
	hipFileParamPropertiesPerBufferCacheSizeKB,
	hipFileParamPropertiesMaxDevicePinnedMemSizeKB,
	hipFileParamPropertiesIOBatchsize,
	hipFileParamPollthresholdSizeKB,
	hipFileParamPropertiesBatchIOTimeoutMs
} hipFileSizeTConfigParameter_t;

typedef enum hipFileBoolConfigParameter_t {
	hipFileParamPropertiesUsePollMode,
	hipFileParamPropertiesAllowCompatMode,
	hipFileParamForceCompatMode,
	hipFileParamFsMiscApiCheckAggressive,
	hipFileParamExecutionParallelIO,
	hipFileParamProfileNvtx,
	hipFileParamPropertiesAllowSystemMemory,
	hipFileParamUsePcip2pdma,
	hipFileParamPreferIOUring,
	hipFileParamForceOdirectMode,
	hipFileParamSkipTopologyDetection,
	hipFileParamStreamMemopsBypass
} hipFileBoolConfigParameter_t;

typedef enum hipFileStringConfigParameter_t {
	hipFileParamLoggingLevel,
	hipFileParamEnvLogfilePath,
	hipFileParamLogDir
} hipFileStringConfigParameter_t;

hipFileError_t hipFileGetParameterSizeT(hipFileSizeTConfigParameter_t param, size_t *value);
hipFileError_t hipFileGetParameterBool(hipFileBoolConfigParameter_t param, bool *value);
hipFileError_t hipFileGetParameterString(hipFileStringConfigParameter_t param, char *desc_str, int len);
hipFileError_t hipFileSetParameterSizeT(hipFileSizeTConfigParameter_t param, size_t value);
hipFileError_t hipFileSetParameterBool(hipFileBoolConfigParameter_t param, bool value);
hipFileError_t hipFileSetParameterString(hipFileStringConfigParameter_t param, const char *desc_str);

#ifdef __cplusplus
}
#endif
#endif
