package disktest

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTurn: seeds that follow each other take all cases, each once; without a seed a run takes all.
func TestTurn(t *testing.T) {
	for k := range 10 {
		taken := 0
		for seed := range 3 {
			t.Setenv("LANEFS_SEED", strconv.Itoa(722903113+seed))
			if Turn(k, 3) {
				taken++
			}
		}
		require.Equal(t, 1, taken, k)
		t.Setenv("LANEFS_SEED", "")
		require.True(t, Turn(k, 3), k)
	}
}
