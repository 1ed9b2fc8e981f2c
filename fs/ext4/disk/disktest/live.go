package disktest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
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
		if out, err := exec.Command("cp", "--sparse=always", from, to).CombinedOutput(); err != nil {
			return fmt.Errorf("cp: %w: %s", err, out)
		}
		copied()
		if same, err := sameBytes(from, to); same || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s has changed under each of %d copies", from, tries)
}

func sameBytes(a, b string) (bool, error) {
	f, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer f.Close()
	g, err := os.Open(b)
	if err != nil {
		return false, err
	}
	defer g.Close()
	p, q := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		n, err := io.ReadFull(f, p)
		m, err2 := io.ReadFull(g, q)
		if !bytes.Equal(p[:n], q[:m]) {
			return false, nil
		}
		for _, e := range []error{err, err2} {
			if e != nil && !errors.Is(e, io.EOF) && !errors.Is(e, io.ErrUnexpectedEOF) {
				return false, e
			}
		}
		if n < len(p) {
			return true, nil
		}
	}
}
