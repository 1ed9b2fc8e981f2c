package loopmount

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSameName: another image of the same name is on the loop device, as where images are memfds and several are mounted one after another.
func TestSameName(t *testing.T) {
	loop := t.TempDir()
	put := func(name, text string) { require.NoError(t, os.WriteFile(loop+name, []byte(text), 0o600)) }
	require.NoError(t, os.Mkdir(loop+"/loop", 0o700))
	require.NoError(t, detached(loop, imageOf(loop), time.Now()), "there was none")
	put("/loop/backing_file", "/memfd:blockdev (deleted)\n")
	put("/diskseq", "31\n")
	first := imageOf(loop)
	require.ErrorContains(t, detached(loop, first, time.Now()), `"/memfd:blockdev (deleted)"`)
	put("/diskseq", "32\n")
	require.NoError(t, detached(loop, first, time.Now()))
	require.NoError(t, os.Remove(loop+"/loop/backing_file"))
	require.NoError(t, detached(loop, imageOf(loop), time.Now()))
}
