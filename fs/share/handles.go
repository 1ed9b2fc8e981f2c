package share

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// freeNumber returns a number without a handle. 0 is never used. Only a request takes one, and there is one at a time.
func (c *conn) freeNumber() (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.handles)+len(c.releasing) >= wire.Slots-1 {
		return 0, fmt.Errorf("the connection has %d handles: release some: %w", len(c.handles), unix.EMFILE)
	}
	for {
		c.next = c.next%(wire.Slots-1) + 1
		if _, taken := c.handles[c.next]; taken {
			continue
		}
		if _, taken := c.releasing[c.next]; !taken {
			return c.next, nil
		}
	}
}

// add gives h the number. cost is charged until the handle is dropped.
func (c *conn) add(number uint32, h handle, cost *charge) {
	cost.kept = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := h.(*ring); ok {
		for number, o := range c.handles {
			r.addHandle(number, o.handle)
		}
		c.rings[r] = true
	}
	c.handles[number] = owned{h, cost.cost}
	c.count[h.kind()]++
	for r := range c.rings {
		r.addHandle(number, h)
	}
}

// has returns how many handles of a kind there are, those that are being released included.
func (c *conn) has(k kind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[k]
}

// name returns a handle that the request under way uses from now on, until it ends or unname is called. A request names one at most.
func (c *conn) name(number uint32) handle {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.handles[number]
	if !ok {
		return nil
	}
	c.named = number
	return o.handle
}

// unname says that the request does not use it any more.
func (c *conn) unname() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named = 0
	if c.gone.Load() {
		c.endUnusedLocked()
	}
}

// takeLocked takes a handle out: it has no number any more.
func (c *conn) takeLocked(number uint32) owned {
	o := c.handles[number]
	delete(c.handles, number)
	return o
}

// end closes a handle that was taken out, and gives back what it is charged.
func (c *conn) end(o owned) {
	o.close(c)
	c.s.ledger.give(c.UID, o.cost)
}

// forgetLocked reports whether no request of a ring uses a handle; if so, none will.
func (c *conn) forgetLocked(number uint32) bool {
	for r := range c.rings {
		if !r.forget(number) {
			return false
		}
	}
	return true
}

// charge is what a request is charged until it ends or, if it made a handle, until the handle is dropped.
type charge struct {
	c    *conn
	cost Usage
	kept bool
}

func (c *conn) charge(cost Usage) (*charge, error) {
	if err := c.s.ledger.take(c.UID, cost); err != nil {
		return nil, err
	}
	return &charge{c: c, cost: cost}, nil
}

func (g *charge) end() {
	if !g.kept {
		g.c.s.ledger.give(g.c.UID, g.cost)
	}
}

// mapping is a hold on memory of the pool.
type mapping struct {
	hold *residency.Hold
}

func (m *mapping) kind() kind { return mappingKind }

func (m *mapping) close(c *conn) {
	c.s.ledger.unhold(c.UID, m.hold.Memory())
	m.hold.Release()
}

// memory is memory of the program, registered by Register.
type memory struct {
	mem   *residency.Memory
	stage bool // ordinary memory, on a mount whose runtime has another kind
}

func (m *memory) kind() kind { return memoryKind }

func (m *memory) close(*conn) {
	_ = m.mem.Close() // nothing can be done about an error: the memory is lost
}

// file is a file that is open for rings.
type file struct{ ext *fs.External }

func (f *file) kind() kind { return fileKind }

func (f *file) close(*conn) { f.ext.Close() }

// fileOf returns the file of the descriptor that came with a request, and its path.
func (c *conn) fileOf(rights []gate.Right) (f *fs.External, name string, err error) {
	r := rights[0]
	if r.Sort != gate.Own {
		return nil, "", c.s.c.Mount.ErrElsewhere()
	}
	f, err = c.s.c.Mount.External(r.Inode, r.Mode, r.Flags)
	c.tookFile()
	return f, r.Name, err
}

func (c *conn) open(_ *wire.Open, rights []gate.Right) result {
	if c.has(fileKind) >= maxFiles {
		return fail(fmt.Errorf("the connection has %d files: %w", maxFiles, unix.EMFILE))
	}
	cost, err := c.charge(Usage{Handles: 1})
	if err != nil {
		return fail(err)
	}
	defer cost.end()
	f, _, err := c.fileOf(rights)
	if err != nil {
		return fail(err)
	}
	n, err := c.freeNumber()
	if err != nil {
		f.Close()
		return fail(err)
	}
	c.add(n, &file{f}, cost)
	reply := &wire.OpenReply{Handle: n, Size: uint64(f.Size())}
	if f.Readable {
		reply.Access |= 1
	}
	if f.Writable {
		reply.Access |= 2
	}
	return result{reply: reply}
}
