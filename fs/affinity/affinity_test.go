package affinity

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onThread runs f on a thread that ends with it.
func onThread(t *testing.T, f func(all unix.CPUSet)) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f(now(t))
	}()
	<-done
}

func now(t *testing.T) (set unix.CPUSet) {
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	return set
}

func give(t *testing.T, set unix.CPUSet) { require.NoError(t, unix.SchedSetaffinity(0, &set)) }

// two of the CPUs.
func two(all unix.CPUSet) (a, b int) {
	a = Nowhere
	for cpu := 0; ; cpu++ {
		switch {
		case !all.IsSet(cpu):
		case a == Nowhere:
			a = cpu
		default:
			return a, cpu
		}
	}
}

func TestBind(t *testing.T) {
	onThread(t, func(all unix.CPUSet) {
		a, b := two(all)
		var th Thread
		th.Begin()
		require.Equal(t, Nowhere, th.CPU())
		require.True(t, th.May(a))
		th.Free()
		require.Equal(t, all, now(t))
		for _, cpu := range []int{a, b, b} {
			require.True(t, th.Bind(cpu))
			require.Equal(t, cpu, th.CPU())
			require.Equal(t, only(cpu), now(t))
		}
		th.Free()
		require.Equal(t, Nowhere, th.CPU())
		require.Equal(t, all, now(t))
		require.False(t, th.Bind(1023), "there is none")
		require.Equal(t, all, now(t))
		require.Zero(t, testing.AllocsPerRun(10, func() { th.Bind(a); th.Free() }))
	})
}

// TestOutside: what somebody else gives a thread stays, whether it is bound then or not, and may be given back.
func TestOutside(t *testing.T) {
	onThread(t, func(all unix.CPUSet) {
		a, b := two(all)
		rest := all
		rest.Clear(a)
		var th Thread
		th.Begin()
		require.True(t, th.Bind(a))
		give(t, rest)
		th.Free()
		require.Equal(t, rest, now(t), "while it was bound")
		require.False(t, th.Bind(a))
		require.False(t, th.May(a))
		require.Equal(t, rest, now(t))
		require.True(t, th.Bind(b))
		th.Free()
		require.Equal(t, rest, now(t))
		give(t, all)
		require.True(t, th.Bind(a), "it is allowed again")
		th.Free()
		require.Equal(t, all, now(t))
		give(t, rest)
		require.False(t, th.Bind(a), "while it was free")
		require.True(t, th.Bind(b))
		give(t, all)
		require.True(t, th.Bind(a), "from CPU to CPU")
		th.Free()
		require.Equal(t, all, now(t))
	})
}
