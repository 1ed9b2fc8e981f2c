package residency

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestGivenUpRange: who waits for another caller's load ends when nobody wants the range of him any more, and holds nothing then. The load goes on, and
// others get what it reads.
func TestGivenUpRange(t *testing.T) {
	p, _ := newUsed(t, 4)
	synctest.Test(t, func(t *testing.T) {
		device, gone := make(chan struct{}), make(chan struct{})
		holds, errs := make(chan *Hold, 3), make(chan error, 1)
		ask := func(w Want) {
			h, err := p.Map(w)
			if err != nil {
				errs <- err
				return
			}
			holds <- h
		}
		w := want(1, 100, func(m *Memory) error { <-device; return m.Put(0, make([]byte, 100)) })
		go ask(w)
		synctest.Wait()
		go ask(w)
		w.Gone = gone
		go ask(w)
		synctest.Wait()
		require.Empty(t, holds)
		require.Empty(t, errs)
		close(gone)
		synctest.Wait()
		require.Empty(t, holds)
		require.ErrorIs(t, <-errs, ErrGivenUp)
		close(device)
		synctest.Wait()
		require.Len(t, holds, 2)
		for range 2 {
			(<-holds).Release()
		}
		require.Equal(t, 1, p.idle.Len(), "nobody holds it")
	})
}

// TestGivenUpPart: who waits for a part of the stage ends when nobody wants it of him any more. A signal that reaches him nevertheless is passed on.
func TestGivenUpPart(t *testing.T) {
	_, m, _, _, _ := newFar(t, 100)
	synctest.Test(t, func(t *testing.T) {
		var owned []*Part
		for range stageParts {
			q, err := m.Part(nil, nil)
			require.NoError(t, err)
			owned = append(owned, q)
		}
		for range 200 { // whether the part or the end is seen first is chance
			gone, first, later := make(chan struct{}), make(chan error, 1), make(chan *Part, 1)
			give := func(q *Part, err error) error {
				if err == nil {
					later <- q
				}
				return err
			}
			go func() { first <- give(m.Part(nil, gone)) }()
			synctest.Wait()
			go func() { _ = give(m.Part(nil, nil)) }()
			synctest.Wait()
			s := &m.pool.stage
			s.mu.Lock() // so that he finds both
			close(gone)
			s.signalLocked()
			s.idle = append(s.idle, owned[0])
			s.mu.Unlock()
			synctest.Wait()
			require.Len(t, later, 1, "a part that is free has one who waited for it")
			if err := <-first; err == nil {
				owned[0] = <-later
				owned[0].Give()
				synctest.Wait()
			} else {
				require.ErrorIs(t, err, ErrGivenUp)
			}
			owned[0] = <-later
			require.Empty(t, s.waits)
		}
		gone := make(chan struct{})
		ended := make(chan error, 1)
		go func() { _, err := m.Part(nil, gone); ended <- err }()
		synctest.Wait()
		require.Empty(t, ended)
		close(gone)
		require.ErrorIs(t, <-ended, ErrGivenUp)
		require.Empty(t, m.pool.stage.waits)
		for _, q := range owned {
			q.Give()
		}
	})
}

// TestGivenUpMaking: likewise while another caller makes the part that he waits for, and where it could not be made.
func TestGivenUpMaking(t *testing.T) {
	_, m, s, _, _ := newFar(t, 1)
	synctest.Test(t, func(t *testing.T) {
		token := make(chan struct{})
		s.before = func() { <-token }
		owner := take(m, 1)
		gone, ended := make(chan struct{}), make(chan error, 1)
		go func() { _, err := m.Part(nil, gone); ended <- err }()
		synctest.Wait()
		close(gone)
		require.ErrorIs(t, <-ended, ErrGivenUp)
		close(token)
		synctest.Wait()
		q := <-owner
		require.NoError(t, q.err)
		gone = make(chan struct{})
		go func() { _, err := m.Part(nil, gone); ended <- err }() // no more can be made
		synctest.Wait()
		require.Empty(t, ended)
		close(gone)
		err := <-ended
		require.True(t, errors.Is(err, ErrGivenUp), "%v", err)
		q.q.Give()
	})
}
