/*
 * The kernels that programs launch on a stream of their own (sdk/c/stagegpu.c): lanefs_gather, which copies the pieces of a batch, each
 * between host memory that the drive has filled, or is to read, and an address of the program's. It is the daemon's, in an image of its
 * own, because a program has no use for lanes and a driver compiles PTX when it loads it. And lanefs_copier, for small reads of cuFile's interface, not for AMD.
 *
 * Four blocks of 512 threads keep PCI Express busy from 4 KiB pieces on (measured: 48 GB/s).
 */
#define LANEFS_BLOCK 512
#include "kernel.h"
#include "gather.h"
#include "copier.h"

using namespace lanefs;

LANEFS_KERNEL2(lanefs_gather, gather_wave)
#if !defined(__AMDGPU__)
LANEFS_KERNEL5(lanefs_copier, copier)
#endif
