package ccall

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// function is one of the C library's.
func function(t testing.TB, name string) uintptr {
	lib, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW)
	if err != nil {
		t.Skip("no libc.so.6: " + err.Error())
	}
	fn, err := purego.Dlsym(lib, name)
	require.NoError(t, err)
	return fn
}

func TestArguments(t *testing.T) {
	snprintf := function(t, "snprintf")
	out := make([]byte, 256)
	var c Call
	for n := range Most - 3 + 1 {
		format := append([]byte(strings.Repeat("%lx,", n)), 0)
		args := []uintptr{uintptr(unsafe.Pointer(&out[0])), uintptr(len(out)), uintptr(unsafe.Pointer(&format[0]))}
		var want strings.Builder
		for i := range n {
			args = append(args, uintptr(0xabc00+i))
			want.WriteString("abc" + string("0123456789abcdef"[i/16]) + string("0123456789abcdef"[i%16]) + ",")
		}
		require.Equal(t, uintptr(want.Len()), c.Do(snprintf, args...))
		require.Equal(t, want.String(), string(out[:want.Len()]))
		runtime.KeepAlive(format)
	}
	require.Panics(t, func() { c.Do(snprintf, make([]uintptr, Most+1)...) })
}

func TestResult(t *testing.T) {
	labs := function(t, "labs")
	var c Call
	minus := int64(-1 << 40)
	require.Equal(t, uintptr(1<<40), c.Do(labs, uintptr(minus)))
}

// TestAfter: the first call's int decides, and both are the same thread's.
func TestAfter(t *testing.T) {
	labs := function(t, "labs")
	var c Call
	first, result := c.After(labs, 0, labs, 7)
	require.Zero(t, first)
	require.Equal(t, uintptr(7), result)
	first, result = c.After(labs, 3, labs, 7)
	require.Equal(t, int32(3), first)
	require.Zero(t, result, "the second call was made")
	first, result = c.After(labs, 1<<32, labs, 7)
	require.Zero(t, first, "more than an int was looked at")
	require.Equal(t, uintptr(7), result)
}

// TestTogether: many goroutines, whose stacks move between calls, of functions that sleep and of others.
func TestTogether(t *testing.T) {
	labs, usleep := function(t, "labs"), function(t, "usleep")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			c := new(Call)
			for k := range 200 {
				want := uintptr(i*1000 + k + 1)
				first, result := c.After(usleep, 1, labs, want)
				if first != 0 || result != want {
					t.Errorf("%d and %d instead of 0 and %d", first, result, want)
				}
				grow(100)
			}
		})
	}
	wg.Wait()
}

func grow(n int) {
	var a [128]byte
	if n > 0 {
		grow(n - 1)
	}
	runtime.KeepAlive(&a)
}

func TestAllocatesNothing(t *testing.T) {
	labs := function(t, "labs")
	c := new(Call)
	require.Zero(t, testing.AllocsPerRun(100, func() { c.After(labs, 0, labs, 1, 2, 3, 4, 5, 6, 7, 8) }))
}

func BenchmarkAfter(b *testing.B) {
	labs := function(b, "labs")
	c := new(Call)
	b.ReportAllocs()
	for b.Loop() {
		c.After(labs, 0, labs, 1, 2, 3, 4)
	}
}
