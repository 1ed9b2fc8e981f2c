package engine

import "errors"

// HoldLane takes a lane out of the resident launch, as asking for its counters does, until the function it returns is called.
func (e *Engine) HoldLane(lane int) (giveBack func(), err error) {
	d, l := e.drv.(*residentDriver), e.lanes[lane]
	if err := d.take(l, launchTimeout); err != nil {
		return nil, err
	}
	return func() { d.giveBack(l) }, nil
}

// BreakLane has a lane be one whose queue pair could not be rebuilt.
func (e *Engine) BreakLane(lane int) {
	l := e.lanes[lane]
	l.drive.Lock()
	l.broken = errors.New("as a test wants it")
	l.handOver()
}
