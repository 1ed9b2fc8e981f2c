package nvmeq

import "github.com/lanefs/lanefs/gpu"

// acquireBAR is BAR 0 as kernels see it. A GPU's driver registers memory once only, so a controller's engines share it;
// each calls releaseBAR when it is done.
func (c *Controller) acquireBAR() (gpu.Memory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.barUsers == 0 {
		m, err := c.runtime().Register(c.t.BAR(), true)
		if err != nil {
			return nil, err
		}
		c.bar = m
	}
	c.barUsers++
	return c.bar, nil
}

// forgetBAR leaves the registration to a runtime that has failed.
func (c *Controller) forgetBAR() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bar, c.barUsers = nil, 0
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
