package share

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// SetHelloTimeout sets how long clients may take for their Hello, until the test ends. It comes before the test's mount.
func SetHelloTimeout(t *testing.T, d time.Duration) {
	was := helloTimeout
	t.Cleanup(func() { helloTimeout = was })
	helloTimeout = d
}

// Every second seed of make test has the tests run as on a machine with many processors, where workers of rings wait as threads.
func init() {
	if n, err := strconv.ParseUint(os.Getenv("LANEFS_SEED"), 10, 64); err == nil && n%2 == 1 {
		processors = 2 * threadsLeast
	}
}
