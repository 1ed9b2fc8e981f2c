package engine

// HoldLane takes a lane out of the resident launch, as asking for its counters does, until the function it returns is called.
func (e *Engine) HoldLane(lane int) (giveBack func(), err error) {
	d, l := e.drv.(*residentDriver), e.lanes[lane]
	if err := d.take(l, launchTimeout); err != nil {
		return nil, err
	}
	return func() { d.giveBack(l) }, nil
}
