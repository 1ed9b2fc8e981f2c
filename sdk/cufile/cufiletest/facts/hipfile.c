/* Prints the numbers and layouts of hipfile.h, so that two headers can be compared. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "hipfile.h"

#define N(x) printf("%s %lld\n", #x, (long long)(x));
#define S(t) printf("sizeof %s %zu\n", #t, sizeof(t));
#define O(t, m) printf("%s.%s %zu %zu\n", #t, #m, offsetof(t, m), sizeof(((t *)0)->m));

int main(void)
{
	N(hipFileSuccess) N(hipFileDriverNotInitialized) N(hipFileDriverUnsupportedLimit) N(hipFileDriverClosing) N(hipFilePlatformNotSupported) N(hipFileIONotSupported)
	N(hipFileHipDriverError) N(hipFileHipPointerInvalid) N(hipFileHipPointerRangeError) N(hipFileInvalidMappingRange) N(hipFileInvalidFileType) N(hipFileInvalidFileOpenFlag)
	N(hipFileDIONotSet) N(hipFileInvalidValue) N(hipFileMemoryAlreadyRegistered) N(hipFileMemoryNotRegistered) N(hipFilePermissionDenied) N(hipFileDriverAlreadyOpen)
	N(hipFileHandleNotRegistered) N(hipFileHandleAlreadyRegistered) N(hipFileDeviceNotFound) N(hipFileInternalError) N(hipFileGetNewFDFailed) N(hipFileDriverSetupError)
	N(hipFileIODisabled) N(hipFileBatchSubmitFailed) N(hipFileGPUMemoryPinningFailed) N(hipFileBatchFull) N(hipFileAsyncNotSupported) N(hipFileIOMaxError)
	N(hipFileLustreSupported) N(hipFileScatefsSupported) N(hipFileUsePollMode) N(hipFileAllowCompatMode) N(hipFileBatchIOSupported) N(hipFileParallelIOSupported)
	N(hipFileHandleTypeOpaqueFD) N(hipFileHandleTypeUserspaceFS) N(hipFileBatchRead) N(hipFileBatchWrite) N(hipFileWaiting) N(hipFileComplete) N(hipFileFailed) N(hipFileBatch)
	N(HIPFILE_STREAM_FIXED_BUF_OFFSET) N(HIPFILE_STREAM_FIXED_FILE_OFFSET) N(HIPFILE_STREAM_FIXED_FILE_SIZE) N(HIPFILE_STREAM_PAGE_ALIGNED_INPUTS)
	N(hipFileParamProfileStats) N(hipFileParamPropertiesIOBatchsize) N(hipFileParamPropertiesBatchIOTimeoutMs) N(hipFileParamPropertiesUsePollMode)
	N(hipFileParamStreamMemopsBypass) N(hipFileParamLoggingLevel) N(hipFileParamLogDir) N(HIPFILE_VERSION_MAJOR) N(HIPFILE_VERSION_MINOR)
	S(hipFileError_t) S(hipFileDriverProps_t) S(hipFileDescr_t) S(hipFileFSOps_t) S(hipFileIOParams_t) S(hipFileIOEvents_t) S(hoff_t)
	O(hipFileError_t, err) O(hipFileError_t, hip_drv_err) O(hipFileDescr_t, type) O(hipFileDescr_t, handle.fd) O(hipFileDescr_t, fs_ops)
	O(hipFileDriverProps_t, nvfs.major_version) O(hipFileDriverProps_t, nvfs.max_direct_io_size) O(hipFileDriverProps_t, nvfs.driver_control_flags)
	O(hipFileDriverProps_t, feature_flags) O(hipFileDriverProps_t, max_device_cache_size) O(hipFileDriverProps_t, max_device_pinned_mem_size)
	O(hipFileDriverProps_t, max_batch_io_count) O(hipFileDriverProps_t, max_batch_io_timeout_msecs)
	O(hipFileIOParams_t, u.batch.devPtr_base) O(hipFileIOParams_t, u.batch.size) O(hipFileIOParams_t, fh) O(hipFileIOParams_t, opcode) O(hipFileIOParams_t, cookie)
	O(hipFileIOEvents_t, status) O(hipFileIOEvents_t, ret)
	return 0;
}
