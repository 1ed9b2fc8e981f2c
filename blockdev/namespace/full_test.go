package namespace

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/nvmeq"
)

// TestFull: a medium without room is said once, with what was refused, and once that it refuses nothing any more.
func TestFull(t *testing.T) {
	d, e := testNamespace(t, limits{transfer: 8, zeroes: 8}, blockdev.Info{})
	var mu sync.Mutex
	var log []string
	said := func() string { mu.Lock(); defer mu.Unlock(); return strings.Join(log, "\n") }
	d.full.pause = 50 * time.Millisecond
	d.full.logf = func(f string, args ...any) { mu.Lock(); defer mu.Unlock(); log = append(log, fmt.Sprintf(f, args...)) }
	status := map[uint64]nvmeq.Status{0: nvmeq.StatusCapacity}
	e.fail = func(c *nvmeq.Command) error {
		if st, bad := status[c.SLBA]; bad {
			return &nvmeq.StatusError{Opcode: c.Op, Status: st}
		}
		return nil
	}
	b, err := d.Alloc(8192)
	require.NoError(t, err)
	defer b.Release()
	require.Zero(t, d.Full())
	for range 3 {
		require.ErrorIs(t, d.Write(0, false, b.Slice(0, 8192)), blockdev.ErrNoSpace)
	}
	require.EqualValues(t, 3, d.Full().Refused)
	require.WithinDuration(t, time.Now(), d.Full().Since, time.Minute)
	require.Eventually(t, func() bool { return d.Full().Since.IsZero() }, testHang, time.Millisecond)
	require.Regexp(t, `^the backing store is full: write of 4096 bytes at 0 \(LBA 0\): nvme: Write.*: Capacity Exceeded .*\nthe backing store has refused no write for 50ms: 3 were refused since [0-9 :-]*$`, said())

	// Beside another failure it says nothing: neither of one request's commands, nor of one call's requests.
	status[8] = nvmeq.StatusWriteFault
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
}
