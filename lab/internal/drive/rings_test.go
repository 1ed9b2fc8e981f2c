package drive

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOfferRings: the switch is on for the run, and then as it was. Where there is none, or it cannot be changed, the run says so.
func TestOfferRings(t *testing.T) {
	defer func(before string) { ringsParameter = before }(ringsParameter)
	ringsParameter = filepath.Join(t.TempDir(), "parameter")
	back, err := OfferRings()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, back())
	require.NoFileExists(t, ringsParameter)
	for _, before := range []string{"N\n", "Y\n"} {
		require.NoError(t, os.WriteFile(ringsParameter, []byte(before), 0o600))
		back, err = OfferRings()
		require.NoError(t, err)
		b, err := os.ReadFile(ringsParameter)
		require.NoError(t, err)
		require.Equal(t, "Y", string(b[:1]))
		require.NoError(t, back())
		b, err = os.ReadFile(ringsParameter)
		require.NoError(t, err)
		require.Equal(t, before, string(b))
	}
}
