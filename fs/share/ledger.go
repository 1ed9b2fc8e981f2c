package share

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/residency"
)

// Usage is what a user has of the share now, and how many of the user's requests were refused.
type Usage struct {
	UID         uint32 `json:"uid"`
	Connections int    `json:"connections"`
	Descriptors int    `json:"descriptors"`
	Rings       int    `json:"rings"`
	Handles     int    `json:"handles"`
	Registered  int64  `json:"registered"` // bytes, as are the next two
	Shared      int64  `json:"shared"`
	Held        int64  `json:"held"`
	Refused     int64  `json:"refused"`  // requests that exceeded a limit
	Unlogged    int64  `json:"unlogged"` // log lines that were suppressed
}

// plus adds o, or subtracts it if sign is -1.
func (u Usage) plus(o Usage, sign int) Usage {
	u.Connections += sign * o.Connections
	u.Descriptors += sign * o.Descriptors
	u.Rings += sign * o.Rings
	u.Handles += sign * o.Handles
	u.Registered += int64(sign) * o.Registered
	u.Shared += int64(sign) * o.Shared
	u.Held += int64(sign) * o.Held
	return u
}

// ledger counts what all users have. Memory of the pool is charged to each user that holds it, once for all programs of the user.
type ledger struct {
	limits Limits
	files  int // limit of descriptors of all ordinary users together

	mu    sync.Mutex // protects the fields below; no other lock is taken under it
	users map[uint32]*account
	total Usage // Registered of all users, Descriptors of ordinary users
}

type account struct {
	Usage
	held  map[*residency.Memory]int
	lines float64 // lines that may be logged, as of since
	since time.Time
}

// Rate limit of log lines that one user causes: logBurst at once, and one more every logPause.
const (
	logBurst = 10
	logPause = 10 * time.Second
)

func newLedger(l Limits) *ledger {
	return &ledger{limits: l, files: descriptorLimit() / 2, users: map[uint32]*account{}}
}

func (l *ledger) accountLocked(uid uint32) *account {
	a := l.users[uid]
	if a == nil {
		a = &account{Usage: Usage{UID: uid}, held: map[*residency.Memory]int{}, lines: logBurst, since: time.Now()}
		l.users[uid] = a
	}
	return a
}

// take charges a user for what a request needs. The error names the limit that it exceeds.
func (l *ledger) take(uid uint32, want Usage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accountLocked(uid)
	if err := l.checkLocked(a, want); err != nil {
		a.Refused++
		l.forgetLocked(a)
		return err
	}
	l.enterLocked(a, want, 1)
	return nil
}

func (l *ledger) give(uid uint32, had Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enterLocked(l.accountLocked(uid), had, -1)
}

func (l *ledger) enterLocked(a *account, u Usage, sign int) {
	a.Usage = a.plus(u, sign)
	l.total.Registered += int64(sign) * u.Registered
	if !privileged(a.UID) {
		l.total.Descriptors += sign * u.Descriptors
	}
	l.forgetLocked(a)
}

// forgetLocked forgets a user who has nothing, with the counts of refusals, if there are many users.
func (l *ledger) forgetLocked(a *account) {
	if a.Usage == (Usage{UID: a.UID, Refused: a.Refused, Unlogged: a.Unlogged}) && len(l.users) > maxUsers {
		delete(l.users, a.UID)
	}
}

// maxUsers is how many users without charges are remembered.
const maxUsers = 256

func (l *ledger) checkLocked(a *account, want Usage) error {
	if want.Registered > maxRegistered-l.total.Registered {
		return fmt.Errorf("%d bytes more than the %d that all users' programs have registered would be too many: %w", want.Registered, l.total.Registered, unix.ENOMEM)
	}
	if privileged(a.UID) {
		return nil
	}
	if l.total.Descriptors+want.Descriptors > l.files {
		return fmt.Errorf("all users' programs together have %d of the daemon's descriptors; the limit is %d: %w", l.total.Descriptors, l.files, unix.EMFILE)
	}
	n, most := a.plus(want, 1), l.limits
	for _, c := range []struct {
		now, most    int64
		what, option string
		errno        unix.Errno
	}{
		{int64(n.Connections), int64(most.Connections), "connections", "share_connections", unix.EBUSY},
		{int64(n.Descriptors), int64(most.Descriptors), "descriptors of the daemon's", "share_descriptors", unix.EMFILE},
		{int64(n.Rings), int64(most.Rings), "rings", "share_rings", unix.EMFILE},
		{int64(n.Handles), int64(most.Handles), "files, mappings and registered memories", "share_handles", unix.EMFILE},
		{n.Registered, most.Registered, "bytes of registered memory", "share_registered", unix.ENOMEM},
		{n.Shared, most.Shared, "bytes of rings and notice boards", "share_shared", unix.ENOMEM},
		{n.Held, most.Held, "bytes of the pool", "share_held", unix.ENOMEM},
	} {
		if c.now > c.most {
			return fmt.Errorf("too many %s: uid %d would have %d, and may have %d (-o %s=…): %w", c.what, a.UID, c.now, c.most, c.option, c.errno)
		}
	}
	return nil
}

// hold charges a user for memory of the pool, in the place of reserved bytes that were charged before.
func (l *ledger) hold(uid uint32, m *residency.Memory, reserved int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accountLocked(uid)
	l.enterLocked(a, Usage{Held: reserved}, -1)
	if a.held[m] == 0 {
		want := Usage{Held: m.Size(), Descriptors: 1}
		if err := l.checkLocked(a, want); err != nil {
			a.Refused++
			return err
		}
		l.enterLocked(a, want, 1)
	}
	a.held[m]++
	return nil
}

func (l *ledger) unhold(uid uint32, m *residency.Memory) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accountLocked(uid)
	if a.held[m]--; a.held[m] > 0 {
		return
	}
	delete(a.held, m)
	l.enterLocked(a, Usage{Held: m.Size(), Descriptors: 1}, -1)
}

// mayLog reports whether a line that a user has caused may be logged, and how many lines of the user were suppressed so far.
func (l *ledger) mayLog(uid uint32) (suppressed int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accountLocked(uid)
	now := time.Now()
	a.lines, a.since = min(a.lines+float64(now.Sub(a.since))/float64(logPause), logBurst), now
	if a.lines < 1 {
		a.Unlogged++
		return 0, false
	}
	a.lines--
	return a.Unlogged, true
}

// usage returns what each user has, ordered by user.
func (l *ledger) usage() []Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []Usage{}
	for _, a := range l.users {
		all = append(all, a.Usage)
	}
	slices.SortFunc(all, func(a, b Usage) int { return cmp.Compare(a.UID, b.UID) })
	return all
}
