package rocm_test

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/lanefs/lanefs/kernels/kerneltest"
)

// TestQueuesStall prints when a kernel begins that comes after a resident one on each of many streams.
func TestQueuesStall(t *testing.T) {
	gputest.Reporting(t)
	rt, m := loaded(t, kerneltest.Image, "whose streams have queues of their own")
	echo, err := m.Function(kerneltest.EchoKernel)
	require.NoError(t, err)
	words, err := rt.Alloc(gpu.HostCoherent, 64<<10)
	require.NoError(t, err)
	word := func(i int) *uint32 { return (*uint32)(unsafe.Pointer(&words.Host()[i*64])) }
	one := gpu.Dim3{X: 1, Y: 1, Z: 1}
	// Kernel i echoes word 2i in word 2i+1, once.
	launch := func(s gpu.Stream, i int) {
		require.NoError(t, s.Launch(echo, one, one, uint64(words.Addr())+uint64(128*i), uint64(words.Addr())+uint64(128*i+64), 1, 1<<50))
	}
	answers := func(i int, within time.Duration) bool {
		for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if atomic.LoadUint32(word(2*i+1)) == 1 {
				return true
			}
		}
		return false
	}
	const resident = 16
	var streams []gpu.Stream
	for i := range resident {
		s, err := rt.NewStream()
		require.NoError(t, err)
		streams = append(streams, s)
		launch(s, i)
	}
	urgent, err := gpu.NewUrgentStream(rt)
	require.NoError(t, err)
	streams = append(streams, urgent)
	launch(urgent, resident)
	atomic.StoreUint32(word(2*resident), 1)
	t.Logf("urgent: %v", answers(resident, time.Minute))
	atomic.StoreUint32(word(2*(resident-1)), 1)
	stall := time.Minute // the last of 16 with a queue each begins some time, also on a busy machine
	if os.Getenv("LANEFS_SHIM_QUEUES") == "" {
		stall = 300 * time.Millisecond
	}
	t.Logf("last of 16: %v", answers(resident-1, stall))
	for i := range resident {
		atomic.StoreUint32(word(2*i), 1)
	}
	for _, s := range streams {
		require.NoError(t, s.Wait(time.Minute))
		require.NoError(t, s.Close())
	}
	require.NoError(t, words.Close())
	require.NoError(t, m.Close())
	require.NoError(t, rt.Close())
}

// Streams share a few hardware queues, as with ROCm's runtime: a kernel waits for resident ones of other streams, unless its stream is
// of a priority that they have not.
func TestHardwareQueues(t *testing.T) {
	needShim(t)
	said := child(t, "^TestQueuesStall$")
	if strings.Contains(said, "--- SKIP") {
		t.Skip("over CUDA, whose streams have queues of their own")
	}
	require.Contains(t, said, "urgent: true")
	require.Contains(t, said, "last of 16: false")
	said = child(t, "^TestQueuesStall$", "LANEFS_SHIM_QUEUES=16")
	require.Contains(t, said, "last of 16: true", "a queue each")
}
