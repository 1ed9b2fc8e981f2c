package doctor

import (
	"fmt"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// Pair is the way from a drive to a memory.
type Pair struct {
	Drive  pci.Address `json:"drive"`
	Memory pci.Address `json:"memory"`
	pci.Route
}

func (x *examiner) pairs() {
	for _, d := range x.Drives {
		for _, m := range x.Memories {
			p := Pair{d.Addr, m.Addr, pci.Between(d.f, m.f)}
			x.Pairs = append(x.Pairs, p)
			f := Finding{Area: Paths, What: string(d.Addr), OK: p.SameComplex}
			switch {
			case p.Bridge != "":
				f.Found = fmt.Sprintf("and %s meet at the bridge %s, %d bridges on the way", m.Addr, p.Bridge, p.Bridges)
			case p.SameComplex:
				f.Found = fmt.Sprintf("and %s are of one root complex, %d bridges on the way", m.Addr, p.Bridges)
			default:
				f.Found = fmt.Sprintf("and %s are of different root complexes", m.Addr)
				f.Remedy = "peer-to-peer DMA between root complexes is seldom forwarded: use a slot of the other's"
			}
			x.add(f)
		}
	}
}

// near says whether some drive that can be had reaches m within one root complex.
func (x *examiner) near(m *Memory) bool {
	for _, p := range x.Pairs {
		if p.Memory == m.Addr && p.SameComplex && x.available(p.Drive) {
			return true
		}
	}
	return false
}

func (x *examiner) available(a pci.Address) bool {
	for _, d := range x.Drives {
		if d.Addr == a {
			return d.Ready || d.Bindable
		}
	}
	return false
}
