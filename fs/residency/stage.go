package residency

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lanefs/lanefs/gpu"
)

// A drive may not reach a GPU's memory: nothing maps it for the drive, or the mapping leads elsewhere. Then the bytes pass through the pool's
// stage, host memory that the drive reaches, and a copy engine moves them on. The stage's parts are taken one by one, so that the drive
// fills one while another is copied.

// Copier copies n bytes between two addresses of the pool's runtime, and returns when they have arrived. After an error the copy may still be under way,
// unless that is gpu.ErrNotBegun.
type Copier interface {
	Copy(dst, src gpu.Addr, n int64) error
}

// PartSize is the size of a part of the stage, in bytes.
const PartSize = 4 << 20

// stageParts is how many parts there are at most. They are made when they are needed, and stay. One client has clientParts at most, and all clients of one user leave some to
// other users: who waits for a device that does not answer keeps its parts, however long that is.
const (
	stageParts  = 16
	clientParts = stageParts / 2
	userParts   = stageParts - stageParts/4
)

// Tenant is a client as one that takes parts, of one pool.
type Tenant struct {
	uid uint32
	n   int // protected by stage.mu
}

// NewTenant makes the tenant of a client of user uid.
func NewTenant(uid uint32) *Tenant { return &Tenant{uid: uid} }

// mayLocked says whether a tenant may have one part more; nil may.
func (s *stage) mayLocked(t *Tenant) bool {
	return t == nil || t.n < clientParts && s.users[t.uid] < userParts
}

// countLocked counts parts that a tenant has got or given back.
func (s *stage) countLocked(t *Tenant, n int) {
	if t == nil {
		return
	}
	if s.users == nil {
		s.users = map[uint32]int{}
	}
	t.n += n
	if s.users[t.uid] += n; s.users[t.uid] == 0 {
		delete(s.users, t.uid)
	}
}

// stage is the parts. Its zero value has none.
type stage struct {
	mu     sync.Mutex
	waits  []waiter       // protected by mu: callers that wait until a part was given back or the next may be made, the first first
	idle   []*Part        // protected by mu
	made   int            // protected by mu: those that exist, idle or not
	lost   []*Part        // protected by mu: those of made that a copy may still use
	making bool           // protected by mu: a caller makes one, without mu
	users  map[uint32]int // protected by mu: the parts that each user's clients have
}

// waiter is a caller that waits, and by what it hears.
type waiter struct {
	t *Tenant
	c chan struct{}
}

// waitLocked waits, without mu, for signalLocked. If gone is closed before that it returns ErrGivenUp, and the signal is another's.
func (s *stage) waitLocked(t *Tenant, gone <-chan struct{}) error {
	c := make(chan struct{})
	s.waits = append(s.waits, waiter{t, c})
	s.mu.Unlock()
	var err error
	select {
	case <-c:
	case <-gone:
		err = ErrGivenUp
	}
	s.mu.Lock()
	if err != nil {
		if at := slices.IndexFunc(s.waits, func(w waiter) bool { return w.c == c }); at >= 0 {
			s.waits = slices.Delete(s.waits, at, at+1)
		} else {
			s.signalLocked()
		}
	}
	return err
}

// signalLocked wakes who has waited longest of those that may have a part.
func (s *stage) signalLocked() {
	if at := slices.IndexFunc(s.waits, func(w waiter) bool { return s.mayLocked(w.t) }); at >= 0 {
		close(s.waits[at].c)
		s.waits = slices.Delete(s.waits, at, at+1)
	}
}

// Part is a part of the stage: PartSize bytes of host memory, of one caller until Give.
type Part struct {
	*Memory
	p    *Pool
	t    *Tenant // who has it
	lost bool
}

// Staged says whether transfers of m pass through the stage: its Slice must not be used.
func (m *Memory) Staged() bool { return m.pool != nil }

// Part takes a part of the stage of m's pool for t; nil is the daemon itself, which has no share. It waits for one that is not in use and within t's share, or for one to be made: their
// users wait for the device and the copy engine only. Who makes one holds up nobody who gives one back or finds one, for that takes long: the runtime allocates, and the IOMMU maps. Once gone
// is closed a caller that waits gets ErrGivenUp; nil never is.
func (m *Memory) Part(t *Tenant, gone <-chan struct{}) (*Part, error) {
	s := &m.pool.stage
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.takeLocked(m.pool, t, gone)
	if err == nil {
		q.t = t
		s.countLocked(t, 1)
	}
	return q, err
}

func (s *stage) takeLocked(p *Pool, t *Tenant, gone <-chan struct{}) (*Part, error) {
	for len(s.idle) == 0 || !s.mayLocked(t) {
		if len(s.lost) == stageParts {
			return nil, errors.New("all of the stage is lost to copies that did not end")
		}
		may := s.mayLocked(t)
		if !may || s.made == stageParts || s.making {
			if !may {
				s.signalLocked() // what woke this caller, which may not have it any more, may be another's
			}
			if err := s.waitLocked(t, gone); err != nil {
				return nil, err
			}
			continue
		}
		s.countLocked(t, 1) // meanwhile, so that it stays within its share
		q, err := s.makeLocked(p, gone)
		s.countLocked(t, -1)
		if err == nil {
			s.made++
			s.signalLocked() // the next one
			return q, nil
		}
		if s.made == len(s.lost) { // nobody will give one back
			s.signalLocked() // who hears it likewise
			return nil, err
		}
		if len(s.idle) == 0 {
			if err := s.waitLocked(t, gone); err != nil {
				return nil, err
			}
		}
	}
	q := s.idle[len(s.idle)-1]
	s.idle = s.idle[:len(s.idle)-1]
	return q, nil
}

// makeLocked makes a part. It gives mu up meanwhile.
func (s *stage) makeLocked(p *Pool, gone <-chan struct{}) (*Part, error) {
	s.making = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.making = false
	}()
	q, _, err := await(p.c.Failed, gone, p.makePart, func(q *Part) {
		if q != nil {
			_ = q.Memory.close() // nothing can be done about an error: the memory is lost
		}
	})
	return q, err
}

func (p *Pool) makePart() (*Part, error) {
	g, err := p.c.Runtime.Alloc(gpu.HostPinned, PartSize)
	if err != nil {
		return nil, fmt.Errorf("a stage for memory that the drive does not reach: %w", err)
	}
	b, err := p.c.Mapper.Attach(g)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a stage for memory that the drive does not reach: %w", err), g.Close())
	}
	return &Part{Memory: &Memory{mem: g, buf: b, host: g.Host(), failed: p.c.Failed, left: &p.left}, p: p}, nil
}

// Give gives the part back. One of which a copy has failed after it was begun is not used again: the copy may still be under way, and the part's next
// bytes are another program's.
func (q *Part) Give() {
	s := &q.p.stage
	s.mu.Lock()
	defer s.mu.Unlock()
	s.countLocked(q.t, -1)
	q.t = nil
	if q.lost {
		s.lost = append(s.lost, q)
		for _, w := range s.waits { // all look whether any part is left
			close(w.c)
		}
		s.waits = nil
		return
	}
	s.idle = append(s.idle, q)
	s.signalLocked()
}

// To copies n bytes at from of the part to m at at.
func (q *Part) To(m *Memory, at, from, n int) error {
	return q.copy(m, at, n, m.mem.Addr()+gpu.Addr(at), q.mem.Addr()+gpu.Addr(from))
}

// From copies n bytes of m at at to the part, at to.
func (q *Part) From(m *Memory, at, to, n int) error {
	return q.copy(m, at, n, q.mem.Addr()+gpu.Addr(to), m.mem.Addr()+gpu.Addr(at))
}

func (q *Part) copy(m *Memory, at, n int, dst, src gpu.Addr) error {
	if err := m.check(at, n); err != nil || n == 0 {
		return err
	}
	if err := q.p.c.Copier.Copy(dst, src, int64(n)); err != nil {
		q.lost = q.lost || !errors.Is(err, gpu.ErrNotBegun)
		return fmt.Errorf("between the stage and device memory: %w", err)
	}
	m.pool.staged.Add(int64(n))
	return nil
}

// close frees the parts, none of which is in use. To free one that is lost waits for its copy, as the runtime's calls do; an unmount has
// limits for that.
func (s *stage) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, q := range s.idle {
		errs = append(errs, q.Memory.close())
	}
	for _, q := range s.lost {
		if c, ok := q.p.c.Copier.(interface{ Stuck() error }); ok && c.Stuck() != nil { // its copy may go on for ever
			q.Memory.leave()
			continue
		}
		errs = append(errs, q.Memory.close())
	}
	s.idle, s.lost = nil, nil
	return errors.Join(errs...)
}

// find finds out whether the drive reaches the pool's memory, and keeps why not. A mapping can succeed and lead elsewhere, so prove reads
// into the memory, and looks whether the bytes are there.
func (p *Pool) find(prove func(*Memory) error) error {
	g, err := p.c.Runtime.Alloc(p.kind, p.granule)
	if err != nil {
		return err
	}
	m := &Memory{mem: g, host: g.Host(), mover: p.c.Mover}
	if m.buf, err = p.c.Mapper.Attach(g); err != nil {
		p.unreached = err
		return g.Close()
	}
	if prove != nil {
		p.unreached = prove(m)
	}
	return m.close()
}
