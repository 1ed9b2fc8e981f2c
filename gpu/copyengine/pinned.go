package copyengine

import (
	"errors"
	"slices"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
)

// pinned is memory that a copy engine reads and writes directly.
type pinned struct {
	host []byte
	mem  gpu.Memory
}

func (s pinned) start() uintptr { return uintptr(unsafe.Pointer(&s.host[0])) }

// Stage implements Stager. The driver, which may not answer, is called without the lock.
func (e *Engine) Stage(n int64) ([]byte, error) {
	if e.isStuck() { // what there is may be used yet
		return nil, ErrStuck
	}
	if b := e.unused(n); b != nil {
		return b, nil
	}
	var m gpu.Memory
	if err := e.apart(func() (err error) { m, err = e.rt.Alloc(gpu.HostMapped, n); return err }); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enterLocked(pinned{m.Host(), m})
	return m.Host(), nil
}

// unused takes a stage of n bytes at least that was given back, nil if there is none.
func (e *Engine) unused(n int64) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, b := range e.spare {
		if int64(len(b)) >= n {
			e.spare[i] = e.spare[len(e.spare)-1]
			e.spare = e.spare[:len(e.spare)-1]
			return b
		}
	}
	return nil
}

// Leave is called in the place of Unstage after an ErrStuck: the device may use b yet, so nobody gets it again.
func (e *Engine) Leave(b []byte) {
	if !e.isStuck() { // else it is counted
		e.left.Add(int64(len(b)))
	}
}

// Left is how many bytes of host memory are never given back, since the device may use them yet.
func (e *Engine) Left() int64 {
	n := e.left.Load()
	if !e.isStuck() {
		return n
	}
	for _, c := range e.all {
		n += c.bounce.Size()
		if c.list != nil {
			n += c.list.mem.Size()
		}
	}
	for _, s := range e.pinned() {
		n += s.mem.Size()
	}
	return n
}

// Unstage implements Stager.
func (e *Engine) Unstage(b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare = append(e.spare, b)
}

// lookup is the device's address of b, if all of it is pinned.
func (e *Engine) lookup(b []byte) (gpu.Addr, bool) {
	if len(b) == 0 {
		return 0, false
	}
	at, ok := e.lookupOwn(b)
	for i := 0; !ok && i < len(e.beside); i++ {
		at, ok = e.beside[i].lookupOwn(b)
	}
	return at, ok
}

func (e *Engine) lookupOwn(b []byte) (gpu.Addr, bool) {
	x := e.index.Load()
	if x == nil {
		return 0, false
	}
	p := uintptr(unsafe.Pointer(&b[0]))
	i := x.before(p) - 1
	if i < 0 {
		return 0, false
	}
	s := &x.all[i]
	o := p - x.starts[i]
	if o >= uintptr(len(s.host)) || uintptr(len(b)) > uintptr(len(s.host))-o {
		return 0, false
	}
	return s.mem.Addr() + gpu.Addr(o), true
}

// index is pinned memory by address. It is never changed, so no copy waits for another thread's.
type index struct {
	starts []uintptr // of all, which are found here: every copy of a small piece looks
	all    []pinned
}

// before is how many begin at p or before it.
func (x *index) before(p uintptr) int {
	lo, hi := 0, len(x.starts)
	for lo < hi {
		if m := int(uint(lo+hi) >> 1); x.starts[m] <= p {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// pinned is what the index has now.
func (e *Engine) pinned() []pinned {
	if x := e.index.Load(); x != nil {
		return x.all
	}
	return nil
}

// changeLocked makes a new index by a change of what is pinned, which is given the place of memory that begins at p, or would. The caller
// holds mu.
func (e *Engine) changeLocked(p uintptr, change func(all []pinned, i int) []pinned) {
	var x index
	if now := e.index.Load(); now != nil {
		x = *now
	}
	i := x.before(p)
	if i > 0 && x.starts[i-1] == p {
		i--
	}
	x.all = change(slices.Clone(x.all), i)
	x.starts = make([]uintptr, len(x.all))
	for k := range x.all {
		x.starts[k] = x.all[k].start()
	}
	e.index.Store(&x)
}

// enterLocked puts pinned memory into the index. The caller holds mu.
func (e *Engine) enterLocked(s pinned) {
	e.changeLocked(s.start(), func(all []pinned, i int) []pinned { return slices.Insert(all, i, s) })
}

// Pin makes copies from b direct until Unpin. The CPU may not be allowed to write to b, as in a read-only mapping of a file. After an error then is called when the driver does not
// use b, which is never if it has not returned from the call.
func (e *Engine) Pin(b []byte, then func()) error {
	m, err := e.rt.Register(b, gpu.RegisteredReadOnly)
	switch {
	case errors.Is(err, calls.ErrHangs):
		e.left.Add(int64(len(b)))
		return err
	case err != nil:
		then()
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enterLocked(pinned{b, m})
	return nil
}

// Unpin ends Pin. It does not wait for the driver, since one whose device has failed may take long: then is called when the device
// cannot reach b any more, which is never once copies are stuck.
func (e *Engine) Unpin(b []byte, then func()) {
	if e.isStuck() {
		return
	}
	for _, other := range e.beside {
		if other.isStuck() {
			e.left.Add(int64(len(b)))
			return
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var m gpu.Memory
	e.changeLocked(uintptr(unsafe.Pointer(&b[0])), func(all []pinned, i int) []pinned {
		m = all[i].mem
		return slices.Delete(all, i, i+1)
	})
	e.unpins.Go(func() {
		if err := m.Close(); err == nil { // else the device may still reach the pages
			then()
		}
	})
}
