package share

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu/host"
)

// ordinary is a user who is neither root nor the daemon's, one of many.
func ordinary(n int) uint32 { return uint32(os.Geteuid() + 1 + n) }

func newTestLedger() *ledger {
	l := newLedger(Limits{Connections: 10, Descriptors: 20, Rings: 30, Handles: 40, Registered: 50, Shared: 60, Held: 70})
	l.files = 1000
	return l
}

// of is what one user has.
func (l *ledger) of(uid uint32) Usage {
	for _, u := range l.usage() {
		if u.UID == uid {
			return u
		}
	}
	return Usage{UID: uid}
}

// TestLedgerLimits: a user gets what the limit allows and nothing more, each thing by its own limit; others and root are not concerned.
func TestLedgerLimits(t *testing.T) {
	for _, c := range []struct {
		most, one Usage
		option    string
		errno     unix.Errno
	}{
		{Usage{Connections: 10}, Usage{Connections: 1}, "share_connections", unix.EBUSY},
		{Usage{Descriptors: 20}, Usage{Descriptors: 1}, "share_descriptors", unix.EMFILE},
		{Usage{Rings: 30}, Usage{Rings: 1}, "share_rings", unix.EMFILE},
		{Usage{Handles: 40}, Usage{Handles: 1}, "share_handles", unix.EMFILE},
		{Usage{Registered: 50}, Usage{Registered: 1}, "share_registered", unix.ENOMEM},
		{Usage{Shared: 60}, Usage{Shared: 1}, "share_shared", unix.ENOMEM},
		{Usage{Held: 70}, Usage{Held: 1}, "share_held", unix.ENOMEM},
	} {
		l := newTestLedger()
		a, b := ordinary(0), ordinary(1)
		require.NoError(t, l.take(a, c.most))
		err := l.take(a, c.one)
		require.ErrorIs(t, err, c.errno)
		require.ErrorContains(t, err, c.option)
		has := Usage{UID: a, Refused: 1}.plus(c.most, 1)
		require.Equal(t, has, l.of(a), "what is refused is not charged")
		require.NoError(t, l.take(b, c.one))
		require.NoError(t, l.take(0, c.most))
		require.NoError(t, l.take(0, c.most))
		l.give(a, c.one)
		require.NoError(t, l.take(a, c.one))
		require.Equal(t, has, l.of(a))
	}
}

// TestLedgerOfAll: all ordinary users together have so many descriptors, and all users, root too, so many registered bytes.
func TestLedgerOfAll(t *testing.T) {
	l := newTestLedger()
	l.files = 30
	require.NoError(t, l.take(0, Usage{Descriptors: 100}))
	require.NoError(t, l.take(ordinary(0), Usage{Descriptors: 20}))
	require.NoError(t, l.take(ordinary(1), Usage{Descriptors: 10}))
	err := l.take(ordinary(2), Usage{Descriptors: 1})
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorContains(t, err, "all users")
	l.give(ordinary(0), Usage{Descriptors: 1})
	require.NoError(t, l.take(ordinary(2), Usage{Descriptors: 1}))

	require.NoError(t, l.take(0, Usage{Registered: maxRegistered - 10}))
	require.NoError(t, l.take(ordinary(0), Usage{Registered: 10}))
	for _, uid := range []uint32{0, ordinary(1)} {
		err = l.take(uid, Usage{Registered: 1})
		require.ErrorIs(t, err, unix.ENOMEM)
		require.ErrorContains(t, err, "all users")
	}
	l.give(0, Usage{Registered: 1})
	require.NoError(t, l.take(ordinary(1), Usage{Registered: 1}))
}

// TestLedgerHolds: memory is charged to each user who holds it, once, in the place of what was reserved; who may not hold it keeps nothing.
func TestLedgerHolds(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	granule := rt.Facts().Granularity
	pool, err := residency.New(residency.Config{Runtime: rt, Mapper: someReached{granule}, Size: 4 * granule})
	require.NoError(t, err)
	h, err := pool.Alloc(1, nil, nil)
	require.NoError(t, err)
	other, err := pool.Alloc(1, nil, nil)
	require.NoError(t, err)
	m, m2 := h.Memory(), other.Memory()
	l := newTestLedger()
	l.limits.Held = granule
	a, b := ordinary(0), ordinary(1)
	one := func(uid uint32, refused int64) Usage {
		return Usage{UID: uid, Descriptors: 1, Held: granule, Refused: refused}
	}
	require.NoError(t, l.take(a, Usage{Held: granule}))
	require.NoError(t, l.hold(a, m, granule))
	require.Equal(t, one(a, 0), l.of(a))
	require.NoError(t, l.hold(a, m, 0))
	require.NoError(t, l.hold(b, m, 0))
	require.Equal(t, one(a, 0), l.of(a))
	require.Equal(t, one(b, 0), l.of(b))
	require.ErrorIs(t, l.hold(a, m2, 0), unix.ENOMEM)
	require.Equal(t, one(a, 1), l.of(a))
	l.unhold(a, m)
	require.Equal(t, one(a, 1), l.of(a))
	l.unhold(a, m)
	require.Equal(t, Usage{UID: a, Refused: 1}, l.of(a))
	require.Empty(t, l.users[a].held)
	require.NoError(t, l.hold(a, m2, 0))
	require.Equal(t, one(a, 1), l.of(a))
	require.Equal(t, one(b, 0), l.of(b))
	h.Release()
	other.Release()
	require.NoError(t, pool.Close())
	require.NoError(t, rt.Close())
}

// TestLedgerForgets: of many users those who have nothing are forgotten, also if all that they asked for was refused.
func TestLedgerForgets(t *testing.T) {
	l := newTestLedger()
	require.NoError(t, l.take(ordinary(0), Usage{Handles: 1}))
	for n := range 3 * maxUsers {
		if n > 0 && n%2 == 0 {
			require.Error(t, l.take(ordinary(n), Usage{Handles: 41}))
		}
		require.NoError(t, l.take(ordinary(n), Usage{Handles: 1}))
		l.give(ordinary(n), Usage{Handles: 1})
		require.Error(t, l.take(ordinary(n), Usage{Handles: 41}))
	}
	require.Len(t, l.usage(), maxUsers)
	require.EqualValues(t, 1, l.of(ordinary(1)).Refused, "of few all are remembered")
	for n := range maxUsers {
		require.NoError(t, l.take(ordinary(4*maxUsers+n), Usage{Handles: 1}))
	}
	require.Len(t, l.usage(), 2*maxUsers, "who has something is remembered")
	require.Equal(t, 1, l.of(ordinary(0)).Handles)
}

// TestLedgerLog: a user has logBurst lines, then one each logPause, and hears how many were missing. Others have theirs.
func TestLedgerLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLedger()
		a, b := ordinary(0), ordinary(1)
		may := func(uid uint32, suppressed int64, ok bool) {
			t.Helper()
			n, may := l.mayLog(uid)
			require.Equal(t, ok, may)
			require.Equal(t, suppressed, n)
		}
		for range logBurst {
			may(a, 0, true)
		}
		may(a, 0, false)
		may(b, 0, true)
		time.Sleep(logPause - 1)
		may(a, 0, false)
		time.Sleep(logPause/100 + 1) // fractions add up as they will
		may(a, 2, true)
		may(a, 0, false)
		time.Sleep(1000 * logPause)
		for range logBurst {
			may(a, 3, true)
		}
		may(a, 0, false)
		require.EqualValues(t, 4, l.of(a).Unlogged)
	})
}

// TestNumbers: each number names one handle at a time, all but 0 do, and who has all gets no more.
func TestNumbers(t *testing.T) {
	c := &conn{handles: map[uint32]owned{}}
	for range wire.Slots - 1 {
		n, err := c.freeNumber()
		require.NoError(t, err)
		_, taken := c.handles[n]
		require.True(t, 0 < n && n < wire.Slots && !taken, n)
		c.handles[n] = owned{}
	}
	_, err := c.freeNumber()
	require.ErrorIs(t, err, unix.EMFILE)
	for _, n := range []uint32{77, 1, wire.Slots - 1} {
		delete(c.handles, n)
		got, err := c.freeNumber()
		require.NoError(t, err)
		require.Equal(t, n, got)
		c.handles[n] = owned{}
	}
}
