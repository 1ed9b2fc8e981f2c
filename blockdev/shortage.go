package blockdev

// Shortage says which calls of Alloc fail with ErrNoMemory. The zero value makes all of them fail for ever.
type Shortage struct {
	Skip  int         // let this many calls pass first
	Times int         // then fail this many; 0: all
	Hit   func(n int) // if not nil, called for every call that fails, with its n. It must not call the device
	Count *int        // if not nil, incremented by every call, under the device's lock
}

type shortage struct {
	Shortage
	seen int
}

// Shorten adds a shortage of pinned memory; remove ends it.
func (d *TestDevice) Shorten(s Shortage) (remove func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	mine := &shortage{Shortage: s}
	d.short = append(d.short, mine)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for i, x := range d.short {
			if x == mine {
				d.short = append(d.short[:i:i], d.short[i+1:]...)
				return
			}
		}
	}
}

// shortOf counts an allocation of n bytes and returns its error.
func (d *TestDevice) shortOf(n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	for _, s := range d.short {
		if s.seen++; s.Count != nil {
			*s.Count++
		}
		if s.seen <= s.Skip || s.Times > 0 && s.seen > s.Skip+s.Times {
			continue
		}
		if err == nil && s.Hit != nil {
			s.Hit(n)
		}
		err = ErrNoMemory
	}
	return err
}
