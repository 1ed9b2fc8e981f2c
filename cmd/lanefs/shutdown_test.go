package main

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStep: each step of the end has a limit, and its name is told while it lasts.
func TestStep(t *testing.T) {
	var log bytes.Buffer
	d := &daemon{log: newLogger(&log)}
	require.Equal(t, waitsForMount, d.waitsFor())
	require.EqualError(t, d.step("this", time.Minute, func() error {
		require.Equal(t, "this", d.waitsFor())
		return errors.New("its error")
	}), "its error")
	stuck := make(chan struct{})
	defer close(stuck)
	err := d.step("that", time.Millisecond, func() error { <-stuck; return nil })
	require.ErrorIs(t, err, errLimit)
	require.ErrorContains(t, err, "waiting for that")
	require.Equal(t, "that", d.waitsFor())
}

// TestLateRequests: each request that comes once the mount is gone is answered, whether an earlier one still has the stack or it is being closed.
// The daemon would not end before a minute was over.
func TestLateRequests(t *testing.T) {
	d := &daemon{cfg: &mountConfig{}, closed: make(chan struct{})}
	close(d.closed)
	answered := func() {
		t.Helper()
		for name := range operations {
			answer := make(chan error, 1)
			go func() {
				_, err := d.handle(request{Op: name}, func(response) bool { return true })
				answer <- err
			}()
			select {
			case <-answer:
			case <-time.After(time.Minute):
				require.Fail(t, "no answer", name)
			}
		}
	}
	require.True(t, d.use())
	d.ended.Store(true)
	idle := make(chan error, 1)
	go func() { idle <- d.awaitRequests() }()
	answered()
	select {
	case <-idle:
		require.Fail(t, "the stack would be closed under a request")
	default:
	}
	d.done()
	require.NoError(t, <-idle)
	require.True(t, d.inUse.TryRLock(), "a request that came a moment before waits for ever")
	d.done()
	answered()
}
