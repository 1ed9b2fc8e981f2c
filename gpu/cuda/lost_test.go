package cuda

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

const lostEnv = "LANEFS_TEST_LOST"

// TestLost: a lost context is released as soon as a call finds that, or, if there is none, when it is asked for; no call of the driver comes after that, and host memory
// stays. The stand-in has no memory of the driver's own, as a device that is released may have none.
func TestLost(t *testing.T) {
	if how := os.Getenv(lostEnv); how != "" {
		fmt.Println(lostChild(how))
		os.Exit(0)
	}
	dir := standIn(t)
	for _, how := range []string{"used", "unused", "in a call"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLost$")
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, lostEnv+"="+how)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, "as it must be\n", string(out), how)
	}
}

// lostChild is the test in a process that has the stand-in.
func lostChild(how string) error {
	l, err := open()
	if err != nil {
		return err
	}
	var current uintptr
	var calls, lose, slow driver.Call
	if err := l.lib.Bind("the stand-in", []dynlib.Symbol{calls.Required("fake_cuda_calls"), lose.Required("fake_cuda_lose"), slow.Required("fake_cuda_slow")}); err != nil {
		return err
	}
	count := func(name string) int32 {
		b := append([]byte(name), 0)
		return driver.Raw(calls, uintptr(unsafe.Pointer(&b[0])))
	}
	if err := l.Early(l.primaryCtxRetain, uintptr(unsafe.Pointer(&current)), 0); err != nil {
		return err
	}
	c := driver.Config{API: &l.API, Current: current, Lose: true}
	c.Release = func() error { return l.Early(l.primaryCtxRelease, 0) }
	d := driver.New(c)
	m, err := d.Alloc(gpu.HostMapped, 1<<20)
	if err != nil {
		return err
	}
	m.Host()[1<<19] = 42
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	if done, err := s.Done(); !done || err != nil || d.Lost() != nil {
		return fmt.Errorf("before: %t, %w, %w", done, err, d.Lost())
	}
	const long = 300 * time.Millisecond
	began, ended := time.Now(), make(chan struct{})
	if how != "in a call" {
		close(ended)
	}
	if how == "in a call" {
		other, err := d.NewStream()
		if err != nil {
			return err
		}
		driver.Raw(slow, uintptr(long.Microseconds()))
		was := count("cuStreamSynchronize")
		go func() {
			_, _ = other.Done()
			_ = other.Close()
			close(ended)
		}()
		for count("cuStreamSynchronize") == was { // by which the stand-in's query is
			time.Sleep(time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond) // until it waits
	}
	if err := d.Do(lose); err != nil { // where the context is current
		return err
	}
	if how != "unused" {
		var lost *driver.Error
		if _, err := s.Done(); !errors.As(err, &lost) || lost.Code != 700 {
			return fmt.Errorf("a query says %w", err)
		}
	}
	for end := time.Now().Add(time.Minute); count("cuDevicePrimaryCtxRelease_v2") == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("the context is not released")
		}
	}
	if how == "in a call" && time.Since(began) < long {
		return errors.New("the context is released while a call is under way")
	}
	before := count("cuStreamSynchronize") + count("cuCtxSetCurrent") + count("cuMemHostUnregister") + count("cuMemcpyAsync")
	_, err = s.Done()
	for what, err := range map[string]error{"a query": err, "a copy": s.Copy(m.Addr(), m.Addr()+4096, 4096), "a stream": s.Close(), "waiting": d.Synchronize()} {
		if err == nil {
			return fmt.Errorf("%s works afterwards", what)
		}
	}
	if _, err := d.Alloc(gpu.HostMapped, 4096); err == nil {
		return errors.New("memory is given out afterwards")
	}
	if m.Host()[1<<19] != 42 {
		return errors.New("host memory has other bytes")
	}
	if m.Close() == nil || d.Lost() == nil {
		return errors.New("memory is freed as if nothing were")
	}
	if n := count("cuStreamSynchronize") + count("cuCtxSetCurrent") + count("cuMemHostUnregister") + count("cuMemcpyAsync"); n != before {
		return fmt.Errorf("%d calls after the release", n-before)
	}
	<-ended
	if err := d.Close(); err != nil {
		return err
	}
	if n := count("cuDevicePrimaryCtxRelease_v2"); n != 1 {
		return fmt.Errorf("released %d times", n)
	}
	return errors.New("as it must be")
}
