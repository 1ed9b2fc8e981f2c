package doctor

import (
	"fmt"
	"strings"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// Runtime is one that could run the lanes.
type Runtime struct {
	Name   string // "host", "cuda", "hip"
	Needed bool   // nothing can be mounted without it
	Open   func() (gpu.Runtime, error)
	// Further opens the device with an ordinal from 1 on; an error ends the row. Nil, and with the host runtime: there is one.
	Further func(n int) (gpu.Runtime, error)
}

// opened is what is kept of a runtime that works.
type opened struct {
	name  string
	facts gpu.Facts
}

// lanes opens each runtime and loads the kernels into it, as a mount does.
func (x *examiner) lanes() {
	for _, r := range x.runtimes {
		f := Finding{Area: Lanes, What: r.Name + " runtime", Needed: r.Needed}
		facts, missing, err := try(r.Open)
		switch {
		case err != nil && r.Needed:
			f.Found, f.Remedy = err.Error(), "use a build for this CPU"
		case err != nil:
			f.Found, f.Remedy = err.Error(), "install the GPU's driver and runtime; --gpu host needs neither"
		default:
			f.OK, f.Found = true, fmt.Sprintf("%s (%s)%s, %s; the kernels load", facts.Name, facts.Arch, place(&facts), facts.Runtime)
			if len(missing) > 0 {
				f.Found += "; " + strings.Join(missing, "; ")
			}
			x.opened = append(x.opened, opened{r.Name, facts})
		}
		x.add(f)
		if f.OK && r.Further != nil && !r.Needed {
			x.further(r)
		}
	}
	x.add(Finding{Area: Lanes, What: "software controller", Needed: true, OK: true,
		Found: "built in: serves image files and block devices, simulated"})
}

// further lists the devices beside the first.
func (x *examiner) further(r Runtime) {
	for n := 1; ; n++ {
		facts, _, err := try(func() (gpu.Runtime, error) { return r.Further(n) })
		if err != nil {
			return
		}
		x.opened = append(x.opened, opened{r.Name, facts})
		x.add(Finding{Area: Lanes, What: fmt.Sprintf("%s:%d", r.Name, n), OK: true,
			Found: fmt.Sprintf("%s (%s)%s; --gpu %s:0,%d takes it beside the first", facts.Name, facts.Arch, place(&facts), r.Name, n)})
	}
}

// place is where a device is, and by what name --gpu takes it.
func place(f *gpu.Facts) string {
	if f.PCI == "" || strings.HasPrefix(f.PCI, "host:") {
		return ""
	}
	if f.UUID == "" {
		return " at " + f.PCI
	}
	return " at " + f.PCI + ", " + f.UUID
}

func try(open func() (gpu.Runtime, error)) (facts gpu.Facts, missing []string, err error) {
	rt, err := open()
	if err != nil {
		return facts, nil, err
	}
	defer rt.Close()
	facts = rt.Facts()
	if m, ok := rt.(interface{ Missing() []string }); ok {
		missing = m.Missing()
	}
	image, err := kernels.Image(facts.Arch)
	if err != nil {
		return facts, nil, err
	}
	m, err := rt.Load(image)
	if err != nil {
		return facts, nil, err
	}
	return facts, missing, m.Close()
}

func (x *examiner) runtime(name string) bool {
	for _, o := range x.opened {
		if o.name == name {
			return true
		}
	}
	return false
}
