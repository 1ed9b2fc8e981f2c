package share

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// TestBrokenRing: a ring whose client has written impossible counters ends, and nobody looks at it any more.
func TestBrokenRing(t *testing.T) {
	const submitted, reaped = 0, 192 // offsets of the client's counters
	for _, at := range []int{submitted, reaped} {
		r, bell := loneRing(t, never())
		for range 2 {
			r.done.Go(r.run)
		}
		r.rings.Word32(at).Store(1000)
		wire.RingDoorbell(bell)
		ended := make(chan struct{})
		go func() { defer close(ended); r.done.Wait() }()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			require.FailNow(t, "the ring goes on")
		}
		r.free()
	}
}

// TestNegative: what a completion says of an error.
func TestNegative(t *testing.T) {
	for err, want := range map[error]int64{
		nil:           0,
		unix.EIO:      -int64(unix.EIO),
		os.ErrClosed:  -int64(unix.ESHUTDOWN), // the device's: the mount has ended
		errEnding:     -int64(unix.ESHUTDOWN),
		os.ErrInvalid: -int64(unix.EIO),
	} {
		require.Equal(t, want, negative(err), err)
		if err != nil {
			require.Equal(t, want, negative(fmt.Errorf("a read: %w", err)), err)
		}
	}
}
