package jbd2

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// said collects what a journal tells its user.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) logger() *slog.Logger {
	return disktest.Logger(func(line string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lines = append(s.lines, line)
	})
}

func (s *said) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

func full(r *blockdev.Request) error {
	return &blockdev.Error{Op: r.Op, Off: r.Off, Err: blockdev.ErrNoSpace}
}

// fullFrom refuses writes from the skip-th on.
func fullFrom(skip int) func(*blockdev.Request) error {
	return func(r *blockdev.Request) error {
		if r.Op != blockdev.OpWrite {
			return nil
		}
		if skip--; skip >= 0 {
			return nil
		}
		return full(r)
	}
}

// changeMany changes blocks of all kinds in one transaction, one of them so that it looks like the log's own.
func changeMany(t *testing.T, m *mounted, v uint64) TID {
	t.Helper()
	h, err := m.j.Begin(60)
	require.NoError(t, err)
	for b := Block(10); b < 60; b++ {
		set(t, m.c, h, b, v)
	}
	buf, err := m.c.Get(60)
	require.NoError(t, err)
	buf.Lock()
	be.PutUint32(buf.Data(), magic)
	be.PutUint64(buf.Data()[8:], v)
	h.Dirty(buf)
	buf.Unlock()
	buf.Put()
	h.Forget(Block(61))
	require.NoError(t, h.End())
	return m.j.Latest()
}

func requireMany(t *testing.T, img []byte, v uint64, what string) {
	t.Helper()
	for b := Block(10); b < 60; b++ {
		require.Equal(t, v, valueIn(img, b), "%s: block %d", what, b)
	}
	p := img[60*crashBS:]
	require.Equal(t, v, be.Uint64(p[8:]), "%s: the escaped block", what)
	require.EqualValues(t, uint32(magic), be.Uint32(p), "%s: the escaped block", what)
}

// TestFullMediumHoldsCommit: the medium has no room from the k-th write of a commit on, for every k. What waits for the commit gets the error,
// nothing is committed by halves whatever a power cut leaves, and when there is room it goes on by itself or when asked.
func TestFullMediumHoldsCommit(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 6))
	for k := 0; ; k++ {
		var log said
		d, m := newLogged(t, Config{Log: log.logger()})
		require.NoError(t, m.j.WaitCommit(changeMany(t, m, 70)))
		tid := changeMany(t, m, 71)
		d.setRefuse(fullFrom(k))
		err := m.j.WaitCommit(tid)
		if err == nil { // k is as many as a commit writes
			d.setRefuse(nil)
			require.Greater(t, k, 2)
			require.NoError(t, m.j.Close())
			require.NoError(t, m.c.Close())
			return
		}
		what := fmt.Sprintf("without room from write %d on", k)
		for range 3 {
			require.ErrorIs(t, err, ErrHeld, what)
			require.ErrorIs(t, err, blockdev.ErrNoSpace, what)
			require.NotErrorIs(t, err, ErrAborted, what)
			require.NotNil(t, m.j.Held())
			for range 5 {
				d.mu.Lock()
				e := newTestDeviceFrom(d.crashLocked(rng), 512)
				d.mu.Unlock()
				img := recovered(t, e)
				now := valueIn(img, 10)
				require.Contains(t, []uint64{70, 71}, now, what)
				requireMany(t, img, now, what)
			}
			_, err := m.j.Begin(1)
			require.ErrorIs(t, err, ErrHeld, "%s: changes are refused, or memory would grow", what)
			require.Nil(t, m.j.TryBegin(1))
			require.ErrorIs(t, m.j.Commit(), blockdev.ErrNoSpace)
			d.setRefuse(fullFrom(rng.IntN(k + 1)))
			err = m.j.WaitCommit(tid)
			if err == nil {
				break
			}
		}
		d.setRefuse(nil)
		if k%2 == 0 {
			require.NoError(t, m.j.WaitCommit(tid), what)
		} else {
			put(t, m.c, m.j, 100, 1) // Begin has it tried, too
		}
		require.Nil(t, m.j.Held())
		requireMany(t, recovered(t, d), 71, what)
		require.NoError(t, m.j.WaitCommit(changeMany(t, m, 72)))
		requireMany(t, recovered(t, d), 72, what)
		require.NoError(t, m.j.Close())
		require.NoError(t, m.c.Close())
		requireMany(t, d.durable, 72, what)
		require.Regexp(t, "^commits wait, and changes are refused error=commit 3: .*the medium has no room left\ncommits go on after a wait waited=.*s$", log.all())
	}
}

// TestHeldCommitTriedAgain: a held commit is tried again without a call.
func TestHeldCommitTriedAgain(t *testing.T) {
	d, m := newLogged(t, Config{Interval: 10 * time.Millisecond})
	d.setRefuse(fullFrom(0))
	tid := put(t, m.c, m.j, 7, 70)
	require.Eventually(t, func() bool { return m.j.Held() != nil }, waitLong, waitStep)
	d.setRefuse(nil)
	require.Eventually(t, func() bool { return m.j.Committed(tid) }, waitLong, waitStep)
	require.Nil(t, m.j.Held())
	require.EqualValues(t, 70, valueIn(recovered(t, d), 7))
	require.NoError(t, m.j.Close())
	require.NoError(t, m.c.Close())
}

// TestFullMediumHoldsCheckpoint: no block can be written home. The log takes what it can, then commits wait; nothing that was
// acknowledged is lost by a power cut at any time, and all of it goes home when there is room.
func TestFullMediumHoldsCheckpoint(t *testing.T) {
	d, m := newLogged(t, Config{Interval: 50 * time.Millisecond})
	home := func(r *blockdev.Request) error { // all but the log
		if r.Op == blockdev.OpWrite && int64(r.Off) < crashMeta*crashBS {
			return full(r)
		}
		return nil
	}
	d.setRefuse(home)
	acked := uint64(0)
	var err error
	for v := uint64(1); err == nil; v++ {
		require.Less(t, v, uint64(100), "the log never gets full")
		var h *Handle
		if h, err = m.j.Begin(60); err != nil {
			break
		}
		for b := Block(10); b < 60; b++ {
			set(t, m.c, h, b, v)
		}
		tid := h.TID()
		require.NoError(t, h.End())
		if err = m.j.WaitCommit(tid); err == nil {
			acked = v
			img := recovered(t, d)
			for b := Block(10); b < 60; b++ {
				require.Equal(t, v, valueIn(img, b))
			}
		}
	}
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorIs(t, err, blockdev.ErrNoSpace)
	require.Greater(t, acked, uint64(5), "the log takes what it can")
	require.ErrorIs(t, m.j.Checkpoint(), blockdev.ErrNoSpace)
	require.Equal(t, acked, valueIn(recovered(t, d), 10))
	d.setRefuse(nil)
	require.NoError(t, m.j.Checkpoint())
	require.Equal(t, acked+1, onMedium(d, crashBS, 10))
	put(t, m.c, m.j, 10, 1000)
	require.NoError(t, m.j.Close())
	require.EqualValues(t, 1000, onMedium(d, crashBS, 10))
	require.NoError(t, m.c.Close())
}

// TestCloseOfFullMedium says what is left behind, and leaves a volume that recovers to what was acknowledged.
func TestCloseOfFullMedium(t *testing.T) {
	for _, inLog := range []bool{true, false} {
		d, m := newLogged(t, Config{})
		require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 7, 70)))
		want := uint64(70)
		if inLog {
			require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 7, 71)))
			want = 71
		} else {
			put(t, m.c, m.j, 7, 71)
		}
		d.setRefuse(fullFrom(0))
		require.ErrorIs(t, m.j.Checkpoint(), blockdev.ErrNoSpace)
		require.ErrorIs(t, m.j.Close(), blockdev.ErrNoSpace)
		require.NoError(t, m.c.Close())
		d.setRefuse(nil)
		require.Equal(t, want, valueIn(recovered(t, d), 7))
	}
}

// TestFullMediumInPlace: likewise where there is no log.
func TestFullMediumInPlace(t *testing.T) {
	d := newTestDevice(1<<20, 512)
	c, j := inPlaceOn(t, d, Config{})
	tid := put(t, c, j, 7, 70)
	d.setRefuse(fullFrom(0))
	for range 3 {
		err := j.WaitCommit(tid)
		require.ErrorIs(t, err, ErrHeld)
		require.ErrorIs(t, err, blockdev.ErrNoSpace)
	}
	d.setRefuse(nil)
	require.NoError(t, j.WaitCommit(tid))
	require.EqualValues(t, 70, onMedium(d, 4096, 7))
	require.NoError(t, j.Close())
	require.NoError(t, c.Close())
}

// TestFailedFlushIsTheEnd: whichever flush fails, of fsync, of a commit or of a checkpoint, and whatever it says, nothing is said to be
// durable from then on, though the next flush would succeed.
func TestFailedFlushIsTheEnd(t *testing.T) {
	once := func(op blockdev.Op, fua bool, err error) func(*blockdev.Request) error {
		return func(r *blockdev.Request) error {
			if r.Op != op || r.FUA != fua {
				return nil
			}
			e := err
			err = nil
			return e
		}
	}
	for name, why := range map[string]error{"fault": errInjected, "no room": full(&blockdev.Request{Op: blockdev.OpFlush}), "memory": blockdev.ErrNoMemory} {
		t.Run(name, func(t *testing.T) {
			for _, act := range []struct {
				what string
				op   blockdev.Op
				fua  bool
				do   func(m *mounted, tid TID) error
			}{
				{"fsync of data", blockdev.OpFlush, false, func(m *mounted, _ TID) error { return m.j.Sync(m.j.Latest() - 1) }},
				{"commit", blockdev.OpFlush, false, func(m *mounted, tid TID) error { return m.j.Sync(tid) }},
				{"the commit block", blockdev.OpWrite, true, func(m *mounted, tid TID) error { return m.j.Sync(tid) }},
				{"checkpoint", blockdev.OpFlush, false, func(m *mounted, tid TID) error { return m.j.sink.(*logSink).drain() }},
			} {
				if act.fua && name != "fault" {
					continue
				}
				d, m := newLogged(t, Config{})
				require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 7, 70)))
				tid := put(t, m.c, m.j, 7, 71)
				d.setRefuse(once(act.op, act.fua, why))
				require.ErrorIs(t, act.do(m, tid), why, act.what)
				require.Eventually(t, func() bool { return m.j.Err() != nil }, waitLong, waitStep, act.what)
				for range 3 {
					require.ErrorIs(t, m.j.Sync(tid), ErrAborted, act.what)
					require.ErrorIs(t, m.j.Sync(tid-1), ErrAborted, act.what)
					require.ErrorIs(t, m.j.Commit(), ErrAborted, act.what)
				}
				require.ErrorIs(t, m.j.Close(), why, act.what)
				require.NoError(t, m.c.Close())
				require.NotZero(t, valueIn(recovered(t, d), 7))
			}
		})
	}
}
