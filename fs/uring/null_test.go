package uring_test

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring/nullfs"
)

// mounted is a mount that ends with the test.
type mounted struct {
	*nullfs.Mount
	gone bool
}

func mount(t testing.TB, fs fuse.RawFileSystem, overURing bool) *mounted {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	n, err := nullfs.NewMount(t.TempDir(), fs, overURing, slog.New(slog.NewTextHandler(t.Output(), nil)))
	require.NoError(t, err)
	m := &mounted{Mount: n}
	t.Cleanup(func() { m.unmount(t) })
	return m
}

func (m *mounted) unmount(t testing.TB) {
	if !m.gone {
		// The kernel lets go of what a system call has used a little later.
		require.Eventually(t, func() bool { return unix.Unmount(m.Dir, 0) != unix.EBUSY }, time.Minute, 5*time.Millisecond)
		m.wait(t)
	}
}

// wait fails if the mount does not end.
func (m *mounted) wait(t testing.TB) {
	m.gone = true
	done := make(chan struct{})
	go func() { m.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the mount does not end")
	}
}
