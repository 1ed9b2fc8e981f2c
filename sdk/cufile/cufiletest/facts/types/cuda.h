/* The two types of CUDA's that cufile.h needs, where there is no CUDA. */
typedef int CUresult;
typedef struct CUstream_st *CUstream;
