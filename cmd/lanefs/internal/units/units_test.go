package units

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 8 << 20: "8 MiB", 1 << 40: "1 TiB", 80 << 30: "80 GiB"} {
		require.Equal(t, want, Bytes(n))
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0 ns", 999: "999 ns", 1500: "1.50 µs", 12345: "12.3 µs", 123456 * time.Nanosecond: "123 µs",
		2 * time.Millisecond: "2.00 ms", 75 * time.Second: "75.0 s"} {
		require.Equal(t, want, Duration(d))
	}
}
