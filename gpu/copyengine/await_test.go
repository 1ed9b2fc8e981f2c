package copyengine

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
)

// standing is a stream that has ended at the fifth look, and whose process stands still in the second.
type standing struct {
	gpu.Stream
	asked int
	still time.Duration
}

func (s *standing) Done() (bool, error) {
	if s.asked++; s.asked == 2 {
		time.Sleep(s.still)
	}
	return s.asked == 5, nil
}

// TestAwaitStopped: a copy is not given up that had no time to go on, since the process stood still.
func TestAwaitStopped(t *testing.T) {
	defer func(d time.Duration) { copyTimeout = d }(copyTimeout)
	copyTimeout = 200 * time.Millisecond
	require.NoError(t, await(&standing{still: 2 * copyTimeout}, mark{}, nil))
}

// marked is a stream whose driver says nothing good, and whose marks are stored by the test.
type marked struct {
	gpu.Stream
	refuses bool
	done    atomic.Bool
	err     error
	asked   int
	marks   []uint32
}

func (s *marked) Mark(_ gpu.Addr, v uint32) error {
	if s.refuses {
		return errors.ErrUnsupported
	}
	s.marks = append(s.marks, v)
	return nil
}

func (s *marked) Done() (bool, error) {
	s.asked++
	return s.done.Load(), s.err
}

// memory is host memory of 64 bytes.
type memory struct {
	gpu.Memory
	words [16]uint32
}

func (m *memory) Host() []byte   { return unsafe.Slice((*byte)(unsafe.Pointer(&m.words)), 64) }
func (m *memory) Addr() gpu.Addr { return 0x1000 }

// What was begun has ended when the mark is there, whatever the driver says; and not by an older mark.
func TestMark(t *testing.T) {
	s, mem := &marked{}, &memory{}
	m := newMark(s, mem, 32)
	for want := uint32(1); want <= 3; want++ {
		end := m.put()
		require.EqualValues(t, 0x1020, end.at)
		last := time.Duration(0)
		require.NoError(t, await(s, end, func(d time.Duration) { // it is followed while it runs
			if last = d; d > 0 {
				atomic.StoreUint32(&mem.words[8], want)
			}
		}))
		require.Positive(t, last)
	}
	require.Equal(t, []uint32{1, 2, 3}, s.marks)

	// A device that has failed stores no mark.
	s.err = errors.New("the device is lost")
	require.ErrorIs(t, await(s, m.put(), nil), s.err)

	// A driver that stores none is asked, and not again for a mark.
	s = &marked{refuses: true}
	m = newMark(s, mem, 32)
	end := m.put()
	require.Zero(t, end)
	require.Zero(t, m)
	s.done.Store(true)
	require.NoError(t, await(s, end, nil))
	require.Equal(t, 1, s.asked)
}
