package namespace

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// failing fails the commands that begin at a block, with its status.
func failing(status map[uint64]nvme.Status) func(*engine.Command) error {
	return func(c *engine.Command) error {
		if st, bad := status[c.SLBA]; bad {
			return &nvme.StatusError{Opcode: c.Op, Status: st}
		}
		return nil
	}
}

// TestFull: a medium without room is said once, with what was refused, and once that it refuses nothing any more.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, e := testNamespace(t, limits{transfer: 8, zeroes: 8}, blockdev.Info{})
		var log lockedBuffer
		d.full.pause = 50 * time.Millisecond
		d.full.log = slog.New(slog.NewTextHandler(&log, nil))
		status := map[uint64]nvme.Status{0: nvme.StatusCapacity}
		e.fail = failing(status)
		b, err := d.Alloc(8192)
		require.NoError(t, err)
		defer b.Release()
		require.Zero(t, d.Full())
		for range 3 {
			require.ErrorIs(t, d.Write(0, false, b.Slice(0, 8192)), blockdev.ErrNoSpace)
		}
		require.EqualValues(t, 3, d.Full().Refused)
		require.Equal(t, time.Now(), d.Full().Since)
		time.Sleep(d.full.pause)
		synctest.Wait()
		require.Zero(t, d.Full().Since)
		require.Regexp(t, `^time=\S* level=WARN msg="the backing store is full: [^"]*" err="write of 4096 bytes at 0 \(LBA 0\): nvme: Write.*: Capacity Exceeded .*"\ntime=\S* level=WARN msg="the backing store has refused no write for a while" while=50ms refused=3 since=[-+:.0-9TZ]*\n$`, log.String())

		// Beside another failure it says nothing: neither of one request's commands, nor of one call's requests.
		status[8] = nvme.StatusWriteFault
		err = d.Write(0, false, b.Slice(0, 8192))
		require.Error(t, err)
		require.NotErrorIs(t, err, blockdev.ErrNoSpace)
		for _, offs := range [][2]blockdev.Bytes{{0, 4096}, {4096, 0}} {
			err = d.Do(&blockdev.Request{Op: blockdev.OpWrite, Off: offs[0], Bufs: []blockdev.Slice{b.Slice(0, 512)}}, &blockdev.Request{Op: blockdev.OpWrite, Off: offs[1], Bufs: []blockdev.Slice{b.Slice(0, 512)}})
			require.Error(t, err)
			require.NotErrorIs(t, err, blockdev.ErrNoSpace)
		}
		require.EqualValues(t, 5, d.Full().Refused)
		d.full.close()
	})
}

// TestWriteProtected: the status is ErrReadOnly, and worse than a lack of room, but not than another failure.
func TestWriteProtected(t *testing.T) {
	d, e := testNamespace(t, limits{transfer: 8, zeroes: 8}, blockdev.Info{})
	status := map[uint64]nvme.Status{0: nvme.StatusWriteProtected, 8: nvme.StatusCapacity}
	e.fail = failing(status)
	b, err := d.Alloc(8192)
	require.NoError(t, err)
	defer b.Release()
	err = d.Write(0, false, b.Slice(0, 8192))
	require.ErrorIs(t, err, blockdev.ErrReadOnly)
	require.NotErrorIs(t, err, blockdev.ErrNoSpace)
	status[8] = nvme.StatusWriteFault
	err = d.Write(0, false, b.Slice(0, 8192))
	require.Error(t, err)
	require.NotErrorIs(t, err, blockdev.ErrReadOnly)
}

// lockedBuffer is a buffer that many goroutines may write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // protected by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
