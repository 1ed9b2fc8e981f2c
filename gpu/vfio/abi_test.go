package vfio

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// field is a member of ours and its name in C.
type field struct {
	c      string
	offset uintptr
}

// abi lists every struct that goes to the kernel: its C name, what of it we use, our size and offsets.
var abi = []struct {
	header, c string
	size      uintptr
	fields    []field
}{
	{"vfio", "struct vfio_group_status", unsafe.Sizeof(groupStatus{}), []field{{"flags", unsafe.Offsetof(groupStatus{}.flags)}}},
	{"vfio", "struct vfio_device_info", unsafe.Sizeof(deviceInfo{}), []field{
		{"num_regions", unsafe.Offsetof(deviceInfo{}.numRegions)}, {"cap_offset", unsafe.Offsetof(deviceInfo{}.capOffset)}}},
	{"vfio", "struct vfio_region_info", unsafe.Sizeof(regionInfo{}), []field{
		{"index", unsafe.Offsetof(regionInfo{}.index)}, {"cap_offset", unsafe.Offsetof(regionInfo{}.capOffset)},
		{"size", unsafe.Offsetof(regionInfo{}.size)}, {"offset", unsafe.Offsetof(regionInfo{}.offset)}}},
	{"vfio", "struct vfio_info_cap_header", unsafe.Sizeof(capHeader{}), []field{{"next", unsafe.Offsetof(capHeader{}.next)}}},
	{"vfio", "struct vfio_region_info_cap_sparse_mmap", unsafe.Sizeof(listCap{}), []field{{"nr_areas", unsafe.Offsetof(listCap{}.n)}}},
	{"vfio", "struct vfio_iommu_type1_info_cap_iova_range", unsafe.Sizeof(listCap{}), []field{{"nr_iovas", unsafe.Offsetof(listCap{}.n)}}},
	{"vfio", "struct { struct vfio_irq_set s; int fd; }", unsafe.Sizeof(irqSet{}), []field{
		{"s.count", unsafe.Offsetof(irqSet{}.count)}, {"fd", unsafe.Offsetof(irqSet{}.eventfd)}}},
	{"vfio", "struct vfio_iommu_type1_info", unsafe.Sizeof(type1Info{}), []field{
		{"iova_pgsizes", unsafe.Offsetof(type1Info{}.pageSizes)}, {"cap_offset", unsafe.Offsetof(type1Info{}.capOffset)}}},
	{"vfio", "struct vfio_iommu_type1_dma_map", unsafe.Sizeof(type1Map{}), []field{
		{"vaddr", unsafe.Offsetof(type1Map{}.vaddr)}, {"iova", unsafe.Offsetof(type1Map{}.iova)}, {"size", unsafe.Offsetof(type1Map{}.size)}}},
	{"vfio", "struct vfio_iommu_type1_dma_unmap", unsafe.Sizeof(type1Unmap{}), []field{
		{"iova", unsafe.Offsetof(type1Unmap{}.iova)}, {"size", unsafe.Offsetof(type1Unmap{}.size)}}},
	{"iommufd", "struct vfio_device_bind_iommufd", unsafe.Sizeof(bindIOMMUFD{}), []field{
		{"iommufd", unsafe.Offsetof(bindIOMMUFD{}.iommufd)}, {"out_devid", unsafe.Offsetof(bindIOMMUFD{}.devID)}}},
	{"iommufd", "struct vfio_device_attach_iommufd_pt", unsafe.Sizeof(attachPT{}), []field{{"pt_id", unsafe.Offsetof(attachPT{}.ptID)}}},
	{"iommufd", "struct vfio_device_detach_iommufd_pt", unsafe.Sizeof(detachPT{}), []field{{"flags", unsafe.Offsetof(detachPT{}.flags)}}},
	{"iommufd", "struct { struct vfio_device_feature f; struct vfio_device_feature_dma_buf d; struct vfio_region_dma_range r; }",
		unsafe.Sizeof(dmaBufRequest{}), []field{
			{"d.region_index", unsafe.Offsetof(dmaBufRequest{}.region)}, {"d.open_flags", unsafe.Offsetof(dmaBufRequest{}.openFlags)},
			{"d.nr_ranges", unsafe.Offsetof(dmaBufRequest{}.rangeCount)}, {"r.offset", unsafe.Offsetof(dmaBufRequest{}.offset)},
			{"r.length", unsafe.Offsetof(dmaBufRequest{}.length)}}},
	{"iommufd", "struct iommu_ioas_alloc", unsafe.Sizeof(ioasAlloc{}), []field{{"out_ioas_id", unsafe.Offsetof(ioasAlloc{}.ioas)}}},
	{"iommufd", "struct iommu_ioas_iova_ranges", unsafe.Sizeof(ioasRanges{}), []field{
		{"num_iovas", unsafe.Offsetof(ioasRanges{}.n)}, {"allowed_iovas", unsafe.Offsetof(ioasRanges{}.allowed)},
		{"out_iova_alignment", unsafe.Offsetof(ioasRanges{}.alignment)}}},
	{"iommufd", "struct iommu_iova_range", unsafe.Sizeof(interval{}), []field{{"last", unsafe.Offsetof(interval{}.Last)}}},
	{"iommufd", "struct iommu_ioas_map", unsafe.Sizeof(ioasMap{}), []field{
		{"user_va", unsafe.Offsetof(ioasMap{}.userVA)}, {"length", unsafe.Offsetof(ioasMap{}.length)}, {"iova", unsafe.Offsetof(ioasMap{}.iova)}}},
	{"iommufd", "struct iommu_ioas_unmap", unsafe.Sizeof(ioasUnmap{}), []field{
		{"iova", unsafe.Offsetof(ioasUnmap{}.iova)}, {"length", unsafe.Offsetof(ioasUnmap{}.length)}}},
	{"iommufd", "struct iommu_ioas_map_file", unsafe.Sizeof(ioasMapFile{}), []field{
		{"fd", unsafe.Offsetof(ioasMapFile{}.fd)}, {"start", unsafe.Offsetof(ioasMapFile{}.start)},
		{"length", unsafe.Offsetof(ioasMapFile{}.length)}, {"iova", unsafe.Offsetof(ioasMapFile{}.iova)}}},
}

// grown are structs that have become longer at their end; the kernel goes by argsz.
var grown = map[string]bool{"struct vfio_device_info": true, "struct vfio_iommu_type1_info": true,
	"struct vfio_device_bind_iommufd": true, "struct vfio_device_attach_iommufd_pt": true, "struct vfio_device_detach_iommufd_pt": true}

// numbers are the constants, and their names in C.
var numbers = []struct {
	header, c string
	v         uint64
}{
	{"vfio", "VFIO_GET_API_VERSION", uint64(ioGetAPIVersion)}, {"vfio", "VFIO_CHECK_EXTENSION", uint64(ioCheckExtension)},
	{"vfio", "VFIO_SET_IOMMU", uint64(ioSetIOMMU)}, {"vfio", "VFIO_GROUP_GET_STATUS", uint64(ioGroupGetStatus)},
	{"vfio", "VFIO_GROUP_SET_CONTAINER", uint64(ioGroupSetContainer)}, {"vfio", "VFIO_GROUP_UNSET_CONTAINER", uint64(ioGroupUnset)},
	{"vfio", "VFIO_GROUP_GET_DEVICE_FD", uint64(ioGroupGetDeviceFD)}, {"vfio", "VFIO_DEVICE_GET_INFO", uint64(ioDeviceGetInfo)},
	{"vfio", "VFIO_DEVICE_GET_REGION_INFO", uint64(ioGetRegionInfo)}, {"vfio", "VFIO_DEVICE_SET_IRQS", uint64(ioSetIRQs)},
	{"vfio", "VFIO_DEVICE_RESET", uint64(ioDeviceReset)}, {"vfio", "VFIO_IOMMU_GET_INFO", uint64(ioIOMMUGetInfo)},
	{"vfio", "VFIO_IOMMU_MAP_DMA", uint64(ioMapDMA)}, {"vfio", "VFIO_IOMMU_UNMAP_DMA", uint64(ioUnmapDMA)},
	{"vfio", "VFIO_DEVICE_FEATURE", uint64(ioDeviceFeature)}, {"vfio", "VFIO_API_VERSION", apiVersion},
	{"vfio", "VFIO_TYPE1v2_IOMMU", extType1v2}, {"vfio", "VFIO_GROUP_FLAGS_VIABLE", groupViable},
	{"vfio", "VFIO_DEVICE_FLAGS_RESET", deviceFlagReset}, {"vfio", "VFIO_DEVICE_FLAGS_PCI", deviceFlagPCI},
	{"vfio", "VFIO_REGION_INFO_FLAG_MMAP", regionFlagMmap}, {"vfio", "VFIO_REGION_INFO_FLAG_CAPS", regionFlagCaps},
	{"vfio", "VFIO_REGION_INFO_CAP_SPARSE_MMAP", regionCapAreas}, {"vfio", "VFIO_PCI_CONFIG_REGION_INDEX", regionConfig},
	{"vfio", "VFIO_PCI_ERR_IRQ_INDEX", irqError}, {"vfio", "VFIO_PCI_REQ_IRQ_INDEX", irqRequest},
	{"vfio", "VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER", irqEventFD},
	{"vfio", "VFIO_DEVICE_FEATURE_GET", featureGet}, {"vfio", "VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE", type1CapRanges},
	{"vfio", "VFIO_IOMMU_INFO_PGSIZES", type1InfoPages}, {"vfio", "VFIO_IOMMU_INFO_CAPS", type1InfoCaps},
	{"vfio", "VFIO_DMA_MAP_FLAG_READ", dmaRead}, {"vfio", "VFIO_DMA_MAP_FLAG_WRITE", dmaWrite},
	{"iommufd", "VFIO_DEVICE_FEATURE_DMA_BUF", featureDMABUF},
	{"iommufd", "VFIO_DEVICE_BIND_IOMMUFD", uint64(ioBindIOMMUFD)}, {"iommufd", "VFIO_DEVICE_ATTACH_IOMMUFD_PT", uint64(ioAttachPT)},
	{"iommufd", "VFIO_DEVICE_DETACH_IOMMUFD_PT", uint64(ioDetachPT)},
	{"iommufd", "IOMMU_IOAS_ALLOC", uint64(ioIOASAlloc)},
	{"iommufd", "IOMMU_IOAS_IOVA_RANGES", uint64(ioIOASRanges)}, {"iommufd", "IOMMU_IOAS_MAP", uint64(ioIOASMap)},
	{"iommufd", "IOMMU_IOAS_UNMAP", uint64(ioIOASUnmap)}, {"iommufd", "IOMMU_IOAS_MAP_FILE", uint64(ioIOASMapFile)},
	{"iommufd", "IOMMU_IOAS_MAP_FIXED_IOVA", mapFixed}, {"iommufd", "IOMMU_IOAS_MAP_WRITEABLE", mapWriteable},
	{"iommufd", "IOMMU_IOAS_MAP_READABLE", mapReadable},
}

// TestABI has a C compiler check every size, offset and number. The headers are those of the lab's kernel where it was
// built, else the system's, of which the older ones lack IOMMUFD.
func TestABI(t *testing.T) {
	cc := "cc"
	if _, err := exec.LookPath(cc); err != nil {
		t.Skip("SKIP: no C compiler (cc): the layouts are not checked against the kernel's headers")
	}
	args, have := headers(t)
	var src strings.Builder
	src.WriteString("#include <stddef.h>\n#include <linux/vfio.h>\n")
	if have["iommufd"] {
		src.WriteString("#include <linux/iommufd.h>\n")
	} else {
		t.Log("SKIP of the IOMMUFD half: neither the lab's kernel (make lab) nor the system has a linux/iommufd.h of 6.19")
	}
	checked := 0
	for i, s := range abi {
		if !have[s.header] {
			continue
		}
		checked++
		fmt.Fprintf(&src, "typedef %s t%d;\n", s.c, i)
		if !grown[s.c] {
			fmt.Fprintf(&src, "_Static_assert(sizeof(t%d) == %d, \"size of %s\");\n", i, s.size, s.c)
		}
		for _, f := range s.fields {
			fmt.Fprintf(&src, "_Static_assert(offsetof(t%d, %s) == %d, \"%s of %s\");\n", i, f.c, f.offset, f.c, s.c)
		}
	}
	for _, n := range numbers {
		if have[n.header] {
			checked++
			fmt.Fprintf(&src, "_Static_assert((%s) == %d, \"%s\");\n", n.c, n.v, n.c)
		}
	}
	require.Greater(t, checked, 30)
	file := filepath.Join(t.TempDir(), "abi.c")
	require.NoError(t, os.WriteFile(file, []byte(src.String()), 0o644))
	out, err := exec.Command(cc, append(args, "-fsyntax-only", file)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// headers finds the newest headers and says which halves they can check.
func headers(t *testing.T) (args []string, have map[string]bool) {
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, _ := os.UserHomeDir()
		cache = filepath.Join(home, ".cache")
	}
	dirs, err := filepath.Glob(filepath.Join(cache, "lanefs/lab/kernel-*/include"))
	require.NoError(t, err)
	for _, dir := range append(dirs, "/usr/include") {
		b, err := os.ReadFile(filepath.Join(dir, "linux/vfio.h"))
		if err != nil {
			continue
		}
		_, err = os.Stat(filepath.Join(dir, "linux/iommufd.h"))
		have = map[string]bool{"vfio": true, "iommufd": err == nil && strings.Contains(string(b), "VFIO_DEVICE_FEATURE_DMA_BUF")}
		return []string{"-I" + dir}, have
	}
	t.Skip("SKIP: no linux/vfio.h (apt-get install linux-libc-dev): the layouts are not checked against the kernel's headers")
	return nil, nil
}
