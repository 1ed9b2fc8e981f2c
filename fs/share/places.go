package share

import (
	"sync"
	"sync/atomic"
)

// places are for workers beyond the first of each ring: as many as all rings together may have. One client may have a quarter of them, and all clients of one
// user leave a quarter to other users: workers that wait for a device that does not answer keep theirs, however long that is. A ring that finds none, for one of
// these reasons, gets that of a worker with nothing to do, of another ring whose place would do: else programs that had much to do once would keep all of
// them for as long as they live.
type places struct {
	threads      atomic.Int32 // workers that wait as threads: see queue
	client, user int          // how many one may have

	mu    sync.Mutex // a leaf
	left  int        // protected by mu, as all that follows and all holders
	all   *holder
	users map[uint32]*holder
}

// holder is who has places: a client, a user, or all. What a worker that has nothing to do receives from wanted has its place, and the worker ends.
type holder struct {
	n      int
	users  int // clients of a user
	wanted chan struct{}
}

func newHolder() *holder { return &holder{wanted: make(chan struct{})} }

// tenant is a client as one that has places.
type tenant struct {
	p          *places
	uid        uint32
	mine, user *holder
}

// wants is by what a worker with nothing to do hears that its place is wanted.
type wants [3]<-chan struct{}

func newPlaces(all, client int) *places {
	return &places{client: client, user: all - all/4, left: all, all: newHolder(), users: map[uint32]*holder{}}
}

// tenant makes one, for which leave is called once it has no worker any more.
func (p *places) tenant(uid uint32) *tenant {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.users[uid]
	if u == nil {
		u = newHolder()
		p.users[uid] = u
	}
	u.users++
	return &tenant{p: p, uid: uid, mine: newHolder(), user: u}
}

func (t *tenant) leave() {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	if t.user.users--; t.user.users == 0 {
		delete(t.p.users, t.uid)
	}
}

// wants is what the tenant's workers listen to.
func (t *tenant) wants() wants { return wants{t.mine.wanted, t.user.wanted, t.p.all.wanted} }

// take says whether there is a place. It does not wait.
func (t *tenant) take() bool {
	p := t.p
	p.mu.Lock()
	defer p.mu.Unlock()
	from := p.all
	switch {
	case t.mine.n >= p.client:
		from = t.mine
	case t.user.n >= p.user:
		from = t.user
	case p.left > 0:
		p.left--
		t.countLocked(1)
		return true
	}
	select {
	case from.wanted <- struct{}{}:
		t.countLocked(1) // the worker counts what it has lost
		return true
	default:
		return false
	}
}

// give gives a place back. lost is about one that another ring has got.
func (t *tenant) give() {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.p.left++
	t.countLocked(-1)
}

func (t *tenant) lost() {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.countLocked(-1)
}

func (t *tenant) countLocked(n int) {
	t.mine.n += n
	t.user.n += n
}
