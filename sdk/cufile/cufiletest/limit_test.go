package cufiletest

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/sharetest"
)

// TestLimit: in a program with a limit of a file's size the calls fail with EFBIG where they need a stage, or write beyond it; SIGXFSZ does not end the program, and without the
// limit all is as it was.
func TestLimit(t *testing.T) {
	test, dir := besideCUDA(t, "testlimit")
	m := sharetest.New(t, 128*mib, 64*mib)
	file, other := files(t, m)
	cmd := exec.Command(test, file, other)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_MAP=0", "LANEFS_REAL_CUFILE=", "LANEFS_TRACE=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &errs)
	require.Equal(t, "ok\n", string(out))
}
