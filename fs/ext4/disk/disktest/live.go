package disktest

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/sparse"
)

// CopyLive copies an image that a kernel has mounted: to is from as it was at one moment. What is read first can be older
// than what is read last, because the kernel commits by a timer, starts inode tables in the background, and writes home for
// every sync(2) on the machine. Such a copy can hold a log whose beginning is overwritten, which is no state that a power
// cut leaves. So it is copied again until nothing has changed from the copy's beginning to the end of a comparison.
func CopyLive(t testing.TB, from, to string) {
	t.Helper()
	require.NoError(t, copyLive(from, to, 100, func() {}))
}

// copyLive calls copied after each copy, before the comparison.
func copyLive(from, to string, tries int, copied func()) error {
	for range tries {
		if err := sparse.Copy(from, to); err != nil {
			return err
		}
		copied()
		err := exec.Command("cmp", "-s", from, to).Run()
		var differ *exec.ExitError
		if !errors.As(err, &differ) || differ.ExitCode() != 1 {
			return err
		}
	}
	return fmt.Errorf("%s has changed under each of %d copies", from, tries)
}
