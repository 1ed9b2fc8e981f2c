/* The two types of HIP's that hipfile.h needs, where there is no ROCm. */
typedef int hipError_t;
typedef struct ihipStream_t *hipStream_t;
enum { hipSuccess = 0 };
