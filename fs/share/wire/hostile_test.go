package wire

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestImpossibleIndexes: each index that the other side writes ends the ring where it is one too far, and not before.
func TestImpossibleIndexes(t *testing.T) {
	const n = 8
	s, err := NewShared("rings", RingsSize(n), false)
	require.NoError(t, err)
	defer s.Close()
	r, err := NewRings(s, n)
	require.NoError(t, err)
	for _, c := range []struct {
		what string
		ours int // the index that the caller writes
		at   int // the other side's
		to   uint32
		do   func() error
	}{
		{"Take", sqHead, sqTail, n, func() error { _, err := r.Take(nil); return err }},
		{"Submit", sqTail, sqHead, ^uint32(n - 1), func() error { _, err := r.Submit(nil); return err }},
		{"Room", cqTail, cqHead, ^uint32(2*n - 1), func() error { _, err := r.Room(); return err }},
		{"Reap", cqHead, cqTail, 2 * n, func() error { _, err := r.Reap(nil); return err }},
	} {
		s.Word32(c.ours).Store(0)
		s.Word32(c.at).Store(c.to)
		require.NoError(t, c.do(), c.what)
		if int32(c.to) > 0 {
			s.Word32(c.at).Store(c.to + 1)
		} else {
			s.Word32(c.at).Store(c.to - 1)
		}
		require.ErrorIs(t, c.do(), ErrRing, c.what)
	}
	large, err := NewShared("rings", RingsSize(2*MaxEntries), false)
	require.NoError(t, err)
	defer large.Close()
	_, err = NewRings(large, 2*MaxEntries)
	require.Error(t, err)
}

// TestLimits: what is one too long, or means nothing.
func TestLimits(t *testing.T) {
	require.ErrorIs(t, Body(make([]byte, 9), &Release{}), ErrMalformed)
	long := Text(strings.Repeat("x", 64))
	require.Zero(t, long[63])
	status, _ := Failure(errors.New("?"), 0)
	require.EqualValues(t, unix.EIO, status, "a failure is never a success")
	require.False(t, MapEmpty.Valid())
	require.True(t, (MapPrivate | MapEmpty).Valid())
	s, err := NewShared("sealed", 4096, false)
	require.NoError(t, err)
	defer s.Close()
	_, err = unix.FcntlInt(uintptr(s.FD), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
	require.ErrorIs(t, err, unix.EPERM, "seals are the daemon's")
}
