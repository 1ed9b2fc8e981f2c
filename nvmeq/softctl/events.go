package softctl

import "sync"

// event is an asynchronous event as completion dword 0 gives it ([BASE] 5.2.1): type in 2:0, information in 15:8, log
// page in 23:16.
type event uint32

const (
	eventInvalidDoorbell event = 0<<8 | logError<<16     // error: write to invalid doorbell register
	eventInvalidValue    event = 1<<8 | logError<<16     // error: invalid doorbell write value
	eventTemperature     event = 1 | 1<<8 | logSMART<<16 // SMART: temperature threshold
	eventTypes                 = 8                       // width of the type field
	eventsPending              = 32                      // further ones are dropped
	asyncEventLimit            = 4                       // AERL + 1
)

func (e event) kind() int    { return int(e & 7) }
func (e event) page() uint32 { return uint32(e >> 16 & 0xff) }

// eventQueue holds events until the host has a request outstanding for them.
type eventQueue struct {
	mu      sync.Mutex
	pending []event
	masked  [eventTypes]uint32 // log page whose reading unmasks the type, 0 if not masked
}

// add queues an event. Any thread may call it. One that is already queued is not queued again.
func (e *eventQueue) add(ev event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.pending {
		if p == ev {
			return
		}
	}
	if len(e.pending) < eventsPending {
		e.pending = append(e.pending, ev)
	}
}

// take gives the first event of a type that is not masked, and masks its type until its log page is read.
func (e *eventQueue) take() (event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, ev := range e.pending {
		if e.masked[ev.kind()] == 0 {
			e.masked[ev.kind()] = ev.page()
			e.pending = append(e.pending[:i], e.pending[i+1:]...)
			return ev, true
		}
	}
	return 0, false
}

// read is told that a log page was read without Retain Asynchronous Event.
func (e *eventQueue) read(page uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.masked {
		if e.masked[i] == page {
			e.masked[i] = 0
		}
	}
}

func (e *eventQueue) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending, e.masked = nil, [eventTypes]uint32{}
}

// asyncEventRequest keeps the command outstanding until there is an event.
func (c *Controller) asyncEventRequest(cmd *command) Status {
	if len(c.aers) >= asyncEventLimit {
		return asyncEventLimitExceeded
	}
	for _, cid := range c.aers {
		if cid == cmd.cid {
			return commandIDConflict
		}
	}
	c.aers = append(c.aers, cmd.cid)
	return noCompletion
}

// deliverEvents completes outstanding requests with what has happened.
func (c *Controller) deliverEvents(q *subQueue) bool {
	did := false
	for len(c.aers) > 0 {
		ev, ok := c.events.take()
		if !ok {
			break
		}
		cmd := command{cid: c.aers[0]}
		c.aers = c.aers[1:]
		c.complete(q, &cmd, success, uint32(ev))
		did = true
	}
	return did
}
