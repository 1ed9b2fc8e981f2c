package pci

// Route is the way that DMA takes between two functions. With the IOMMU on, requests go up to the root complex to be
// translated even where a switch joins the two.
type Route struct {
	SameComplex bool   `json:"same_root_complex"`
	Bridge      string `json:"bridge,omitempty"` // the lowest one above both; empty: only the root complex
	Bridges     int    `json:"bridges"`          // ports and bridges passed
}

// Between is the route between two functions.
func Between(a, b *Function) Route {
	p, q := a.bridges(), b.bridges()
	common := 0
	for common < len(p) && common < len(q) && p[common] == q[common] {
		common++
	}
	r := Route{SameComplex: common > 0, Bridges: len(p) + len(q) - 2*common}
	if common > 1 {
		r.Bridge = p[common-1]
		r.Bridges++
	}
	if common == 0 {
		r.Bridges = max(0, len(p)-1) + max(0, len(q)-1)
	}
	return r
}
