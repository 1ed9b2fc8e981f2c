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
