package lanefs_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestNoDescriptors: what the daemon gave and the process could not receive is given back: a session has 8 rings at most.
func TestNoDescriptors(t *testing.T) {
	m := sharetest.New(t, 64*mib, 8*mib)
	f := m.Write("file", random(5, mib))
	_, line := child(t, "crowded", f.Name())
	require.Equal(t, "well\n", line())
}

func crowded(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	s, err := lanefs.Connect(f)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, left := range []int{0, 1, 2} {
		do := map[string]func() error{"a ring": func() error { _, err := s.NewRing(8); return err }}
		if left == 0 {
			do["a map"] = func() error { _, err := s.Map(f, 0, 0); return err }
		}
		if left < 2 {
			do["a session"] = func() error { _, err := lanefs.Connect(f); return err }
		}
		for what, do := range do {
			for range 20 {
				if err := without(left, do); !errors.Is(err, unix.EMFILE) {
					return fmt.Errorf("%s with %d descriptors left: %v", what, left, err)
				}
			}
		}
	}
	for range 8 { // all that a session may have
		if _, err := s.NewRing(8); err != nil {
			return err
		}
	}
	b, err := s.Map(f, 0, 0)
	if err != nil {
		return err
	}
	fmt.Println("well")
	return b.Close()
}

// without calls do with so many descriptors left. do gets those that a dup(2) would.
func without(left int, do func() error) error {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return err
	}
	var held []int
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	}()
	for range left {
		fd, err := unix.Dup(0)
		if err != nil {
			return err
		}
		held = append(held, fd)
	}
	next, err := unix.Dup(0)
	if err != nil {
		return err
	}
	unix.Close(next)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: was.Max}); err != nil {
		return err
	}
	for _, fd := range held {
		unix.Close(fd)
	}
	held = nil
	return do()
}
