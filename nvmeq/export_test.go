package nvmeq

// OpenedBeforePowerLoss makes the controller one that has had an unsafe shutdown since it was opened.
func (c *Controller) OpenedBeforePowerLoss() { c.power.unsafe += " less one" }
