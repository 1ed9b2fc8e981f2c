package fs

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMeasuresEach: every request that rawFS answers is timed.
func TestMeasuresEach(t *testing.T) {
	measure, err := os.ReadFile("measure.go")
	require.NoError(t, err)
	answered := regexp.MustCompile(`(?m)^func \(r \*rawFS\) (\w+)\(_ <-chan struct\{\}.*\) \(?.*fuse\.Status\)? \{`)
	found := 0
	for _, name := range []string{"raw.go", "rawdirs.go", "rawfiles.go", "rawnames.go", "rawxattrs.go"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range answered.FindAllSubmatch(text, -1) {
			found++
			require.Contains(t, string(measure), "func (m measuredFS) "+string(m[1])+"(", "rawFS.%s", m[1])
		}
	}
	require.Greater(t, found, 25)
}

// TestRequestTimes: what a program did is in the histograms, whichever way its requests came.
func TestRequestTimes(t *testing.T) {
	m := newMount(t, Options{})
	require.NoError(t, os.WriteFile(m.dir+"/file", make([]byte, 10000), 0o600))
	f, err := os.OpenFile(m.dir+"/file", os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	require.NoError(t, os.Mkdir(m.dir+"/dir", 0o700))
	_, err = os.ReadFile(m.dir + "/file")
	require.NoError(t, err)
	got := map[string]uint64{}
	for _, s := range m.srv.Stats().Times {
		got[s.Kind] = s.Count
		require.Equal(t, "fuse", s.Layer)
		require.LessOrEqual(t, s.P50, s.P99)
		require.LessOrEqual(t, s.P99, s.Max)
	}
	for _, kind := range []string{"create", "write", "fsync", "mkdir", "lookup"} {
		require.NotZero(t, got[kind], "%s: %v", kind, got)
	}
	require.EqualValues(t, 1, got["mkdir"])
	of := map[string]uint64{}
	for _, s := range m.vol.Stats().Times {
		of[s.Kind] = s.Count
	}
	require.NotZero(t, of["change"])
	require.NotZero(t, of["commit"])
	require.EqualValues(t, 1, of["sync"])
}
