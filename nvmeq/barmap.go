package nvmeq

import "github.com/lanefs/lanefs/gpu"

// acquireBAR is BAR 0 as kernels see it. A GPU's driver registers memory once only, so a controller's engines share it;
// each calls releaseBAR when it is done.
func (c *Controller) acquireBAR() (gpu.Memory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.barUsers == 0 {
		m, err := c.rt.Register(c.t.BAR(), true)
		if err != nil {
			return nil, err
		}
		c.bar = m
	}
	c.barUsers++
	return c.bar, nil
}

func (c *Controller) releaseBAR() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.barUsers--; c.barUsers > 0 {
		return nil
	}
	m := c.bar
	c.bar = nil
	return m.Close()
}
