// Package lab holds what proves LaneFS. The product imports none of it; a test here holds that.
//
//	diff      random operations on LaneFS and on the kernel's ext4, compared
//	powercut  power cuts at every write, checked by e2fsck and by mounting again
//	iofault   failing reads, writes and flushes in the middle of operations
//	hostile   damaged volumes: e2fsprogs' own, mutated and fuzzed
//	attack    programs of ordinary users that attack a mount
//	media     the binary over an image on a file system that fails (faultfs)
//	rocm      a stand-in for AMD's ROCm, and the tests of gpu/hip on it
//	cuda      a stand-in for NVIDIA's libcuda
//	csdk      the C library and cuFile's interface, made once for the tests of all packages
//	gpu       the bundle for a machine with an NVIDIA GPU
//	vm        a virtual machine with NVMe controllers and an IOMMU
//	deb       the Debian packages in a fresh Debian, and in a virtual machine that boots with mounts
//	bench     LaneFS, fuse2fs and the kernel's ext4 side by side; bench/ring the rings of the SDK
//	demo      the first mount, from mkfs to fsck
//	stress    stress-ng's stressors under the race detector
//	gotest    runs every test and reports: make test
//
// deps installs what they need, fuzz runs the fuzzers.
package lab
