package share

import (
	"testing"
	"time"
)

// SetHelloTimeout sets how long clients may take for their Hello, until the test ends. It comes before the test's mount.
func SetHelloTimeout(t *testing.T, d time.Duration) {
	was := helloTimeout
	t.Cleanup(func() { helloTimeout = was })
	helloTimeout = d
}
