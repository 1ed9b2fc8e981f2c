package copyengine

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
)

// pinned is memory that a copy engine reads and writes directly.
type pinned struct {
	host []byte
	mem  gpu.Memory
}

func (s pinned) start() uintptr { return uintptr(unsafe.Pointer(&s.host[0])) }

// Stage implements Stager.
func (e *Engine) Stage(n int64) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, b := range e.spare {
		if int64(len(b)) >= n {
			e.spare[i] = e.spare[len(e.spare)-1]
			e.spare = e.spare[:len(e.spare)-1]
			return b, nil
		}
	}
	m, err := e.rt.Alloc(gpu.HostMapped, n)
	if err != nil {
		return nil, err
	}
	e.enterLocked(pinned{m.Host(), m})
	return m.Host(), nil
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
	all := e.pinned()
	p := uintptr(unsafe.Pointer(&b[0]))
	i, begins := find(all, p)
	if !begins {
		i--
	}
	if i < 0 {
		return 0, false
	}
	s := &all[i]
	o := p - s.start()
	if o >= uintptr(len(s.host)) || uintptr(len(b)) > uintptr(len(s.host))-o {
		return 0, false
	}
	return s.mem.Addr() + gpu.Addr(o), true
}

// pinned is the index as it is now. It is never changed, so no copy waits for another thread's.
func (e *Engine) pinned() []pinned {
	if all := e.index.Load(); all != nil {
		return *all
	}
	return nil
}

// find is where in an index the memory is that begins at p, or would be.
func find(all []pinned, p uintptr) (int, bool) {
	return slices.BinarySearchFunc(all, p, func(s pinned, p uintptr) int { return cmp.Compare(s.start(), p) })
}

// enterLocked puts pinned memory into the index. The caller holds mu.
func (e *Engine) enterLocked(s pinned) {
	all := slices.Clone(e.pinned())
	i, _ := find(all, s.start())
	all = slices.Insert(all, i, s)
	e.index.Store(&all)
}

// Pin makes copies from b direct until Unpin. The CPU may not be allowed to write to b, as in a read-only mapping of a file.
func (e *Engine) Pin(b []byte) error {
	m, err := e.rt.Register(b, gpu.RegisteredReadOnly)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enterLocked(pinned{b, m})
	return nil
}

// Unpin ends Pin. It does not wait for the driver, since one whose device has failed may take long: then is called when the device
// cannot reach b any more.
func (e *Engine) Unpin(b []byte, then func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := slices.Clone(e.pinned())
	i, _ := find(all, uintptr(unsafe.Pointer(&b[0])))
	m := all[i].mem
	all = slices.Delete(all, i, i+1)
	e.index.Store(&all)
	e.unpins.Go(func() {
		if err := m.Close(); err == nil { // else the device may still reach the pages
			then()
		}
	})
}
