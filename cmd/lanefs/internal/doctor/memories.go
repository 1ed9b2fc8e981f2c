package doctor

import (
	"fmt"
	"strings"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// Memory is a function with memory that a drive could reach: a GPU's, or a plain one (ivshmem) that plays a GPU's.
type Memory struct {
	Addr     pci.Address `json:"address"`
	Kind     string      `json:"kind"` // "AMD GPU", "NVIDIA GPU", "GPU", "plain memory"
	Driver   string      `json:"driver,omitempty"`
	BAR      int         `json:"bar"`            // the largest
	BARSize  uint64      `json:"bar_bytes"`      // of the largest BAR
	VRAM     uint64      `json:"vram_bytes"`     // 0: not known
	LargeBAR bool        `json:"large_bar"`      // the BAR shows all of it
	Runtime  string      `json:"runtime"`        // that opens it; empty: none
	Ready    bool        `json:"ready"`          // plain memory: lanefs mount --vram can open it
	PAL      bool        `json:"physical_lists"` // its driver gives IOMMUFD what it takes
	f        *pci.Function
}

// Vendors of GPUs (PCI vendor identifiers).
const (
	vendorAMD    = 0x1002
	vendorNVIDIA = 0x10de
	amd          = "AMD GPU"
	nvidia       = "NVIDIA GPU"
	otherGPU     = "GPU"
	plain        = "plain memory"
)

// smallBAR is what a GPU shows without large BAR.
const smallBAR = 256 << 20

func (x *examiner) memories(all []*pci.Function) {
	gpus := 0
	for _, f := range all {
		m := Memory{Addr: f.Addr, Driver: f.Driver, f: f}
		for _, b := range f.BARs() {
			if b.Size() > m.BARSize {
				m.BAR, m.BARSize = b.Index, b.Size()
			}
		}
		switch {
		case f.GPU() && f.Vendor == vendorAMD:
			m.Kind = amd
		case f.GPU() && f.Vendor == vendorNVIDIA:
			m.Kind = nvidia
		case f.GPU():
			m.Kind = otherGPU
		case f.Memory():
			m.Kind = plain
		default:
			continue
		}
		if m.Kind != plain {
			gpus++
		}
		x.memory(&m)
		x.Memories = append(x.Memories, m)
	}
	if gpus == 0 {
		x.add(Finding{Area: Device, What: "GPUs", Found: "none on the PCI bus", Remedy: "--gpu host needs none"})
	}
}

func (x *examiner) memory(m *Memory) {
	dir := "sys/bus/pci/devices/" + string(m.Addr) + "/"
	if n, ok := x.number(dir + "mem_info_vram_total"); ok && n > 0 { // amdgpu's
		m.VRAM = uint64(n)
	}
	for _, o := range x.opened {
		if strings.EqualFold(o.facts.PCI, string(m.Addr)) {
			m.Runtime, m.VRAM = o.name, max(m.VRAM, uint64(o.facts.Memory))
		}
	}
	m.LargeBAR = m.BARSize > smallBAR
	if m.VRAM > 0 {
		m.LargeBAR = m.BARSize >= m.VRAM
	}
	f := Finding{Area: Device, What: string(m.Addr), Found: m.Kind + driverWords(m.Driver)}
	if m.BARSize > 0 {
		f.Found += fmt.Sprintf(", BAR %d of %s", m.BAR, units.Bytes(int64(m.BARSize)))
	}
	if m.VRAM > 0 {
		f.Found += " for " + units.Bytes(int64(m.VRAM))
	}
	var remedies []string
	if m.Kind == plain {
		m.LargeBAR, m.PAL = m.BARSize > 0, true // VFIO exports it
		_, err := x.vfioNode(m.f)
		if m.Ready = m.Driver == pci.VFIO && err == nil; m.Ready {
			f.Found += "; ready for --vram"
		} else {
			remedies = append(remedies, "lanefs bind "+string(m.Addr))
		}
		f.OK = m.Ready
	} else {
		if !m.LargeBAR {
			f.Found += ": no large BAR"
			remedies = append(remedies, "switch Above 4G Decoding and Resizable BAR on in the firmware")
		}
		if m.Kind == amd {
			m.PAL = x.symbol(symPAL) || x.symbol(symPALMatch)
		}
		if m.Runtime == "" {
			f.Found += "; no runtime of this build opens it"
			remedies = append(remedies, x.driverRemedy(m))
		}
		f.OK = m.LargeBAR && m.Runtime != ""
	}
	f.Remedy = strings.Join(remedies, "; ")
	x.add(f)
}

// driverRemedy says what stands between a GPU and its runtime.
func (x *examiner) driverRemedy(m *Memory) string {
	switch m.Kind {
	case amd:
		switch {
		case m.Driver != "amdgpu":
			return "modprobe amdgpu"
		case !x.exists("dev/kfd"):
			return "a kernel with CONFIG_HSA_AMD: there is no /dev/kfd"
		case x.usable("dev/kfd") != nil:
			return "join the groups render and video: /dev/kfd does not open"
		}
		return "install ROCm's runtime (libamdhip64)"
	case nvidia:
		if m.Driver != "nvidia" || !x.exists("dev/nvidiactl") {
			return "install NVIDIA's driver (nvidia, nvidia-uvm)"
		}
		return "install libcuda.so.1 of the driver"
	}
	return "--gpu host"
}
