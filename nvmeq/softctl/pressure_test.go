package softctl

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// setPressure has the pressure be low, or not, until the test ends.
func setPressure(t *testing.T, low bool) {
	was := cpuPressure
	cpuPressure = newPressure("")
	cpuPressure.looked.Store(1 << 62)
	cpuPressure.low.Store(low)
	t.Cleanup(func() { cpuPressure = was })
}

func TestPressure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cpu")
	p := newPressure(path)
	look := func(total string, low bool) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "some avg10=0.00 avg60=1.23 avg300=0.00 total=%s\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", total), 0o600))
		p.look(100 * time.Millisecond)
		require.Equal(t, low, p.low.Load())
	}
	look("7", false) // the first, with nothing to compare
	look("1000000", false)
	look("1024999", true)
	look("1049999", false)
	look("1050000", true)
	look("", false)
	look("1050000", false)
	look("1050000", true)
	require.NoError(t, os.Remove(path))
	p.look(time.Second)
	require.False(t, p.isLow(), "a kernel that does not count")
	p = newPressure(path)
	look("0", false)
	look("0", true)
	require.EqualValues(t, -1, someTotal(nil))
	require.EqualValues(t, -1, someTotal([]byte("some avg10=0.00\n")))
	require.EqualValues(t, -1, someTotal([]byte("some avg10=0.00 total=-7\n")))
	require.EqualValues(t, -1, someTotal([]byte("full avg10=0.00 total=7\n")))
}

// It is looked at again only after a while.
func TestPressureSeldom(t *testing.T) {
	p := newPressure("/proc/pressure/cpu")
	p.isLow()
	looked := p.looked.Load()
	for time.Since(pressureBegan) < time.Duration(looked)+pressureEvery/2 {
		p.isLow()
		if now := p.looked.Load(); now != looked {
			require.GreaterOrEqual(t, now-looked, int64(pressureEvery))
			break
		}
	}
}
