package doctor

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Facts is what is known of the running kernel.
type Facts struct {
	Release string            `json:"release"`
	Config  string            `json:"config,omitempty"` // the file that the options are from
	Options map[string]string `json:"options"`          // of those asked about: y, m, n, or ? for unknown
}

// option is one that a drive's mount wants, or a rung of a ladder.
type option struct {
	name   string
	signs  []string // files that are there only where the option is on
	symbol string   // likewise a name in /proc/kallsyms
	use    string
}

var options = []option{
	{"FUSE_FS", []string{"dev/fuse"}, "", "mounts"},
	{"IOMMUFD", []string{"dev/iommu"}, "iommufd_ctx_get", "maps memory for a drive, by descriptor too"},
	{"VFIO_PCI", []string{"sys/bus/pci/drivers/vfio-pci"}, "vfio_pci_core_enable", "hands a drive to user space"},
	{"VFIO_DEVICE_CDEV", []string{"dev/vfio/devices"}, "vfio_df_ioctl_bind_iommufd", "opens a drive for IOMMUFD"},
	{"VFIO_IOMMU_TYPE1", []string{"sys/module/vfio_iommu_type1"}, "vfio_iommu_type1_ioctl", "maps memory where there is no IOMMUFD"},
	{"VFIO_PCI_DMABUF", nil, "vfio_pci_core_feature_dma_buf", "exports a BAR as DMA-BUF (Linux 6.19 and newer)"},
	{"PCI_P2PDMA", nil, "pci_p2pdma_distance_many", "DMA between functions"},
}

// symbols of the running kernel that no option tells.
const (
	symDMABUFMap = "iopt_alloc_dmabuf_pages" // IOMMU_IOAS_MAP_FILE takes DMA-BUFs: Linux 6.19 and newer
	symPAL       = "amdgpu_dma_buf_map_phys" // amdgpu offers physical address lists: patched kernels only
	symPALMatch  = "amdgpu_dma_buf_pal_ops"  // likewise
	dmabufLinux  = "6.19"                    // the first with both halves
)

// kernel reads the release and the options: from the kernel itself, else from the file a distribution installs, else from
// what only a kernel with the option shows.
func (x *examiner) kernel() {
	k := &x.Kernel
	k.Release, k.Options = x.text("proc/sys/kernel/osrelease"), map[string]string{}
	x.add(Finding{Area: Kernel, What: "release", OK: k.Release != "", Needed: true, Found: "Linux " + k.Release})
	var config map[string]string
	config, k.Config = x.config()
	for _, o := range options {
		v := x.option(o, config)
		k.Options[o.name] = v
		f := Finding{Area: Kernel, What: o.name, OK: v == "y" || v == "m", Found: map[string]string{
			"y": "yes", "m": "as a module", "n": "no", "?": "unknown: no /proc/config.gz, no /boot/config-" + k.Release + ", and nothing shows it",
		}[v] + " (" + o.use + ")"}
		if v == "n" {
			f.Remedy = "a kernel with CONFIG_" + o.name
			if o.name == "VFIO_PCI_DMABUF" && !atLeast(k.Release, dmabufLinux) {
				f.Remedy = "Linux " + dmabufLinux + " or newer with CONFIG_" + o.name
			}
		}
		x.add(f)
	}
}

func (x *examiner) option(o option, config map[string]string) string {
	for _, s := range o.signs {
		if v := config["CONFIG_"+o.name]; x.exists(s) && v == "" {
			return "y"
		}
	}
	switch v, known := config["CONFIG_"+o.name]; {
	case known:
		return v
	case config != nil:
		return "n"
	case o.symbol != "" && x.symbol(o.symbol):
		return "y"
	}
	return "?"
}

// config is the kernel's configuration and the file it is from; nil when there is none.
func (x *examiner) config() (map[string]string, string) {
	release := x.text("proc/sys/kernel/osrelease")
	for _, name := range []string{"proc/config.gz", "boot/config-" + release, "lib/modules/" + release + "/config", "usr/lib/modules/" + release + "/config"} {
		if c, err := readConfig(x.path(name)); err == nil {
			return c, "/" + name
		}
	}
	return nil, ""
}

func readConfig(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, err
		}
	}
	c := map[string]string{}
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		if name, v, ok := strings.Cut(sc.Text(), "="); ok && strings.HasPrefix(name, "CONFIG_") {
			c[name] = v
		}
	}
	return c, sc.Err()
}

// symbol looks for one of the names above among the kernel's and its loaded modules'. Every user may read the names. The
// list has a few hundred thousand: it is read once.
func (x *examiner) symbol(name string) bool {
	if x.symbols == nil {
		x.symbols = x.readSymbols()
	}
	return x.symbols[name]
}

func (x *examiner) readSymbols() map[string]bool {
	wanted, found := map[string]bool{symDMABUFMap: true, symPAL: true, symPALMatch: true}, map[string]bool{}
	for _, o := range options {
		wanted[o.symbol] = true
	}
	f, err := os.Open(x.path("proc/kallsyms"))
	if err != nil {
		return found
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		_, rest, _ := bytes.Cut(sc.Bytes(), []byte(" ")) // address, kind, name, and a module's name after a tab
		_, rest, _ = bytes.Cut(rest, []byte(" "))
		name, _, _ := bytes.Cut(rest, []byte("\t"))
		if wanted[string(name)] {
			found[string(name)] = true
		}
	}
	return found
}

// dmabufMap says whether IOMMUFD takes DMA-BUFs, and DMA-BUFs come from VFIO.
func (x *examiner) dmabufMap() (bool, string) {
	switch on := x.Kernel.Options["VFIO_PCI_DMABUF"]; {
	case on == "n" && !atLeast(x.Kernel.Release, dmabufLinux):
		return false, fmt.Sprintf("Linux %s or newer, with CONFIG_VFIO_PCI_DMABUF; this is %s", dmabufLinux, x.Kernel.Release)
	case on == "n":
		return false, "a kernel with CONFIG_VFIO_PCI_DMABUF"
	case !atLeast(x.Kernel.Release, dmabufLinux) && !x.symbol(symDMABUFMap):
		return false, fmt.Sprintf("Linux %s or newer; this is %s", dmabufLinux, x.Kernel.Release)
	}
	return true, ""
}

// atLeast compares releases such as "6.19.2-amd64" by their first two numbers.
func atLeast(release, want string) bool {
	a, b := twoNumbers(release), twoNumbers(want)
	return a[0] > b[0] || a[0] == b[0] && a[1] >= b[1]
}

func twoNumbers(release string) (n [2]int) {
	parts := strings.SplitN(release, ".", 3)
	for i := 0; i < len(parts) && i < 2; i++ {
		digits := strings.IndexFunc(parts[i], func(r rune) bool { return r < '0' || r > '9' })
		if digits < 0 {
			digits = len(parts[i])
		}
		n[i], _ = strconv.Atoi(parts[i][:digits])
	}
	return n
}
