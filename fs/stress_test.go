package fs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestStress runs several workers at once in the same few directories. It finds a wrong reference
// count, a race, a deadlock, or damage that e2fsck sees.
func TestStress(t *testing.T) {
	const workers, steps = 8, 400
	modes(t, func(t *testing.T, m *mounted) {
		for i := range 3 {
			require.NoError(t, os.Mkdir(m.path(fmt.Sprint("d", i)), 0o755))
		}
		var wg sync.WaitGroup
		errs := make(chan error, workers)
		for w := range workers {
			wg.Go(func() {
				if err := stress(m, w, steps); err != nil {
					errs <- fmt.Errorf("worker %d: %w", w, err)
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	})
}

// expected errors come from what another worker did first, such as making a directory of what should be linked.
var expected = []error{unix.EPERM, unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.EISDIR, unix.ENOTDIR, unix.EINVAL, unix.ENODATA, io.EOF}

func stress(m *mounted, worker, steps int) error {
	rng := rand.New(rand.NewSource(int64(worker)))
	shared := func() string { return m.path(fmt.Sprint("d", rng.Intn(3)), fmt.Sprint("f", rng.Intn(20))) }
	own := m.path(fmt.Sprint("own", worker))
	var want []byte
	for step := range steps {
		var err error
		switch rng.Intn(14) {
		case 0:
			err = os.WriteFile(shared(), bytes.Repeat([]byte{byte(step)}, rng.Intn(70000)), 0o644)
		case 1:
			_, err = os.ReadFile(shared())
		case 2:
			err = os.Remove(shared())
		case 3:
			err = os.Rename(shared(), shared())
		case 4:
			err = unix.Renameat2(unix.AT_FDCWD, shared(), unix.AT_FDCWD, shared(), unix.RENAME_EXCHANGE)
		case 5:
			err = os.Link(shared(), shared())
		case 6:
			err = os.Mkdir(shared(), 0o755)
		case 7:
			_, err = os.ReadDir(m.path(fmt.Sprint("d", rng.Intn(3))))
		case 8:
			err = os.Symlink("somewhere", shared())
		case 9:
			err = os.Chmod(shared(), 0o644)
		case 10:
			err = openUnlinked(shared())
		case 11:
			err = os.Truncate(shared(), int64(rng.Intn(100000)))
		default:
			// A file of its own, which no other worker changes.
			n := rng.Intn(50000)
			off := rng.Intn(len(want) + 1)
			data := make([]byte, n)
			rng.Read(data)
			want = append(want[:off], data...)
			err = rewrite(own, want, off)
		}
		if err != nil && !isExpected(err) {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	return nil
}

func isExpected(err error) bool {
	for _, e := range expected {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func openUnlinked(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	os.Remove(path)
	if _, err := f.WriteAt([]byte("unlinked"), 10000); err != nil {
		return err
	}
	_, err = f.ReadAt(make([]byte, 100), 9990)
	return err
}

func rewrite(path string, want []byte, off int) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(want[off:], int64(off)); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(want))); err != nil {
		return err
	}
	got, err := io.ReadAll(f)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("%s does not hold what was written", path)
	}
	return err
}
