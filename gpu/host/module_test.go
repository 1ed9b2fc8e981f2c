package host

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The name by which an image is loaded leads other processes to the image as well: a debugger opens it.
func TestPathOf(t *testing.T) {
	fd, err := newMemFD("image", 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, writeAll(fd, []byte("the image")))
	out, err := exec.Command("cat", pathOf(fd)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "the image", string(out))
}
