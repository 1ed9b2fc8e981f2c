package doctor

import (
	"fmt"
	"strings"
)

// Ladder is a list of rungs, the best first.
type Ladder []Rung

// Rung is one way of doing a thing. It is reached when nothing is missing.
type Rung struct {
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Missing []string `json:"missing"` // what to do for it; empty: the machine has it
}

// Reached says whether the machine has all that the rung takes.
func (r Rung) Reached() bool { return len(r.Missing) == 0 }

// Result is the index of the best rung that is reached, -1 for none.
func (l Ladder) Result() int {
	for i, r := range l {
		if r.Reached() {
			return i
		}
	}
	return -1
}

func (x *examiner) ladders() {
	x.Memory = Ladder{
		{"1", "device memory exported as DMA-BUF, mapped by IOMMUFD", append(x.memoryMissing(x.listMissing), x.iommufdMissing()...)},
		{"2", "device memory mapped into the process, followed by type1", append(x.memoryMissing(x.mmapMissing), x.type1Missing()...)},
		{"3", "pinned host memory", x.driveMissing()},
	}
	x.Doorbell = Ladder{
		{"a", "BAR 0 exported by VFIO and mapped by the GPU's driver", x.interopMissing()},
		{"b", "the mapped BAR 0, stored to by the lanes", x.registerMissing()},
		{"c", "a bridge: a CPU thread passes doorbells on", x.driveMissing()},
	}
	for i := range x.Memory {
		x.Memory[i].Missing = distinct(x.Memory[i].Missing)
	}
	for i := range x.Doorbell {
		x.Doorbell[i].Missing = distinct(x.Doorbell[i].Missing)
	}
	x.result("memory", x.Memory)
	x.result("doorbells", x.Doorbell)
}

// result is the finding of a ladder: where the machine stands, and what the rungs above lack.
func (x *examiner) result(what string, l Ladder) {
	at := l.Result()
	f := Finding{Area: Result, What: what, OK: at >= 0, Found: "no rung: image files only"}
	if at >= 0 {
		f.Found = fmt.Sprintf("rung %s: %s", l[at].Name, l[at].What)
	}
	var above []string
	for i, r := range l {
		if at < 0 && i == len(l)-1 || i < at {
			above = append(above, fmt.Sprintf("for rung %s: %s", r.Name, strings.Join(r.Missing, ", ")))
		}
	}
	f.Remedy = strings.Join(above, "; ")
	x.add(f)
}

// driveMissing is what it takes to mount a drive at all.
func (x *examiner) driveMissing() (missing []string) {
	switch {
	case len(x.Drives) == 0:
		return []string{"an NVMe drive"}
	case !x.anyAvailable():
		missing = append(missing, "an unused drive in an IOMMU group")
	}
	if !x.iommufd() && !x.type1() {
		missing = append(missing, "/dev/iommu or /dev/vfio/vfio")
	}
	return missing
}

func (x *examiner) anyAvailable() bool {
	for _, d := range x.Drives {
		if d.Ready || d.Bindable {
			return true
		}
	}
	return false
}

func (x *examiner) iommufdMissing() (missing []string) {
	missing = x.driveMissing()
	if !x.iommufd() {
		missing = append(missing, "IOMMUFD (/dev/iommu, CONFIG_VFIO_DEVICE_CDEV)")
	}
	if ok, want := x.dmabufMap(); !ok {
		missing = append(missing, want)
	}
	return missing
}

func (x *examiner) type1Missing() []string {
	if x.type1() {
		return x.driveMissing()
	}
	return append(x.driveMissing(), "type1 (/dev/vfio/vfio)")
}

// memoryMissing is what the memory that lacks least lacks for a rung, one being enough; lacks says what its driver does.
func (x *examiner) memoryMissing(lacks func(*Memory) []string) (least []string) {
	if len(x.Memories) == 0 {
		return []string{"a GPU"}
	}
	for i := range x.Memories {
		m := &x.Memories[i]
		missing := lacks(m)
		if !m.LargeBAR {
			missing = append(missing, fmt.Sprintf("large BAR of %s", m.Addr))
		}
		switch {
		case m.Kind == plain && !m.Ready:
			missing = append(missing, fmt.Sprintf("lanefs bind %s", m.Addr))
		case m.Kind != plain && m.Runtime == "":
			missing = append(missing, fmt.Sprintf("a runtime for %s", m.Addr))
		}
		if len(x.Drives) > 0 && !x.near(m) {
			missing = append(missing, fmt.Sprintf("a free drive in the root complex of %s", m.Addr))
		}
		if i == 0 || len(missing) < len(least) {
			least = missing
		}
	}
	return least
}

// listMissing: IOMMUFD takes a DMA-BUF whose exporter lists physical addresses; of drivers, upstream only VFIO does.
func (x *examiner) listMissing(m *Memory) []string {
	switch {
	case m.PAL:
		return nil
	case m.Kind == amd:
		return []string{"amdgpu with physical address lists (kernel patches, docs/HARDWARE.md)"}
	case m.Kind == nvidia:
		return []string{"a driver of NVIDIA's that gives IOMMUFD physical address lists: there is none"}
	}
	return []string{fmt.Sprintf("a driver of %s that gives IOMMUFD physical address lists", m.Addr)}
}

// mmapMissing: type1 follows addresses of the process; NVIDIA's DMA-BUFs cannot be mapped into it.
func (x *examiner) mmapMissing(m *Memory) []string {
	switch m.Kind {
	case plain, amd:
		return nil
	}
	return []string{fmt.Sprintf("a driver of %s whose DMA-BUFs can be mapped into a process", m.Addr)}
}

// interopMissing: hsa_amd_interop_map_buffer takes the DMA-BUF; AMD's kernel driver refuses foreign ones unless patched,
// which nothing shows from outside.
func (x *examiner) interopMissing() []string {
	missing := x.iommufdMissing()
	if !x.runtime("hip") {
		return append(missing, "an AMD GPU with its HIP runtime")
	}
	return append(missing, "amdgpu that takes foreign DMA-BUFs (kernel patch, docs/HARDWARE.md)")
}

// registerMissing: CPU lanes store to the mapping itself, CUDA registers it as I/O memory; mainline amdgpu refuses that.
func (x *examiner) registerMissing() []string {
	missing := x.driveMissing()
	if x.runtime("hip") && !x.runtime("cuda") {
		return append(missing, "amdgpu that registers I/O memory: mainline does not")
	}
	return missing
}

func distinct(all []string) []string {
	out := []string{}
	seen := map[string]bool{}
	for _, s := range all {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}
