package iouring

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestLayout holds the structures against the kernel's: sizes and offsets are those that gcc 12 gives for include/uapi/linux/io_uring.h of
// Linux 6.18.
func TestLayout(t *testing.T) {
	require.EqualValues(t, 120, unsafe.Sizeof(params{}))
	require.EqualValues(t, 40, unsafe.Offsetof(params{}.sq))
	require.EqualValues(t, 80, unsafe.Offsetof(params{}.cq))
	require.EqualValues(t, 64, unsafe.Sizeof(SQE{}))
	require.EqualValues(t, 8, unsafe.Offsetof(SQE{}.Off))
	require.EqualValues(t, 16, unsafe.Offsetof(SQE{}.Addr))
	require.EqualValues(t, 24, unsafe.Offsetof(SQE{}.Len))
	require.EqualValues(t, 28, unsafe.Offsetof(SQE{}.OpFlags))
	require.EqualValues(t, 32, unsafe.Offsetof(SQE{}.UserData))
	require.EqualValues(t, 40, unsafe.Offsetof(SQE{}.BufIndex))
	require.EqualValues(t, 48, unsafe.Offsetof(SQE{}.Addr3))
	require.EqualValues(t, 128, unsafe.Sizeof(WideSQE{}))
	require.EqualValues(t, 8, unsafe.Offsetof(WideSQE{}.CmdOp))
	require.EqualValues(t, 16, unsafe.Offsetof(WideSQE{}.Addr))
	require.EqualValues(t, 24, unsafe.Offsetof(WideSQE{}.Len))
	require.EqualValues(t, 32, unsafe.Offsetof(WideSQE{}.UserData))
	require.EqualValues(t, 48, unsafe.Offsetof(WideSQE{}.Cmd))
	require.EqualValues(t, 16, unsafe.Sizeof(CQE{}))
	require.EqualValues(t, 24, unsafe.Sizeof(eventsArg{}))
	require.EqualValues(t, 32, unsafe.Sizeof(rsrcRegister{}))
	require.EqualValues(t, 16, unsafe.Offsetof(rsrcRegister{}.data))
	require.EqualValues(t, 32, unsafe.Sizeof(rsrcUpdate{}))
	require.EqualValues(t, 24, unsafe.Offsetof(rsrcUpdate{}.nr))
	require.EqualValues(t, 16+256*8, unsafe.Sizeof(probe{}))
	require.EqualValues(t, 16, unsafe.Offsetof(probe{}.ops))
}

// TestRing: entries come back with what they were given, over many turns of both rings, wide or not.
func TestRing(t *testing.T) {
	for _, wide := range []bool{false, true} {
		r, err := New(Options{Entries: 4, Wide: wide, Limit: 10 * time.Millisecond})
		if err != nil {
			t.Skipf("SKIPPED: no io_uring here: %v", err)
		}
		start := time.Now()
		r.Await()
		require.False(t, r.Ready())
		require.GreaterOrEqual(t, time.Since(start), 10*time.Millisecond)
		next, seen := uint64(1), uint64(0)
		for range 100 {
			for range 4 {
				r.Next().UserData = next // a NOP
				next++
			}
			require.NoError(t, r.Enter(true))
			r.Await() // at once: completions are there
			for c, ok := r.Reap(); ok; c, ok = r.Reap() {
				seen++
				require.Equal(t, CQE{UserData: seen}, c)
			}
		}
		require.EqualValues(t, 400, seen)
		r.Close()
	}
}
