package softctl

import "fmt"

// RemembersFailedFlush implements controller.StickyFlush.
func (c *Controller) RemembersFailedFlush() {}

// Failed is why this controller says no more that anything is durable, nil as long as it does.
func (c *Controller) Failed() error {
	for _, m := range c.files {
		if err := m.Failed(); err != nil {
			return fmt.Errorf("image %q: %w", m.Path(), err)
		}
	}
	return nil
}
