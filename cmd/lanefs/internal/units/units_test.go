package units

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 8 << 20: "8 MiB", 1 << 40: "1 TiB", 80 << 30: "80 GiB"} {
		require.Equal(t, want, Bytes(n))
	}
}
