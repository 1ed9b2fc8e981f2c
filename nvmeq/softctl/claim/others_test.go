package claim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// shortly has what does not answer given up soon.
func shortly(t *testing.T) {
	before := answerTime
	answerTime = 100 * time.Millisecond
	t.Cleanup(func() { answerTime = before })
}

// onPath makes a program of that name, a script, the first that is found.
func onPath(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// asked is a system with a loop device whose file is on a file system that a program serves, and counts how often the caller asks it.
func asked(t *testing.T) (s system, times *int) {
	t.Helper()
	sys, times := t.TempDir(), new(int)
	dir := filepath.Join(sys, "dev/block/7:9/loop")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "backing_file"), []byte("/served/file\n"), 0o644))
	guess := mayHang
	mayHang = func(path string) bool { return path == "/served/file" }
	t.Cleanup(func() { mayHang = guess })
	return system{sys: sys, loop: func(string, uint64) (loop, error) { *times++; return loop{ino: 5}, nil }}, times
}

// TestLoopInTime: of a loop device on a file system that a program serves a child asks, for a while. The caller asks where there is no such child, or none that is understood.
func TestLoopInTime(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		want         loop
		err          error
		times        int
	}{
		{"answers", `echo "12 259:3 4096 8192"`, loop{dev: unix.Mkdev(259, 3), ino: 12, off: 4096, size: 8192}, nil, 0},
		{"hangs", `exec sleep 1000`, loop{}, errNoAnswer, 0},
		{"says something else", `echo NAME BACK-FILE`, loop{ino: 5}, nil, 1},
		{"fails", `exit 1`, loop{ino: 5}, nil, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, times := asked(t)
			onPath(t, "losetup", tc.script)
			if tc.err != nil {
				shortly(t)
			}
			start := time.Now()
			l, err := s.loopInTime("loop9", unix.Mkdev(7, 9))
			require.ErrorIs(t, err, tc.err)
			if err == nil {
				require.Equal(t, tc.want, l)
			} else {
				require.GreaterOrEqual(t, time.Since(start), answerTime)
			}
			require.Equal(t, tc.times, *times)
		})
	}
}

// TestStatInTime: of a path there a child asks, for a while.
func TestStatInTime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o640))
	var want unix.Stat_t
	require.NoError(t, unix.Stat(file, &want))
	guess := mayHang
	mayHang = func(string) bool { return true }
	t.Cleanup(func() { mayHang = guess })
	got, err := stat(file)
	require.NoError(t, err)
	require.Equal(t, [4]uint64{want.Dev, want.Ino, uint64(want.Mode), want.Rdev}, [4]uint64{got.Dev, got.Ino, uint64(got.Mode), got.Rdev})
	got, err = stat("/dev/null")
	require.NoError(t, err)
	require.Equal(t, unix.Mkdev(1, 3), got.Rdev)
	_, err = stat(file + "2")
	require.True(t, errors.Is(err, unix.ENOENT), "%v", err)
	onPath(t, "stat", "exec sleep 1000")
	shortly(t)
	_, err = stat(file)
	require.ErrorIs(t, err, errNoAnswer)
	answerTime = time.Hour
	_, err = stat(file)
	require.ErrorIs(t, err, errNoAnswer, "not asked again at once")
}

// TestMayHang: a file that is here, on a file system of the kernel's, answers. One whose name leads nowhere here may be another mount namespace's.
func TestMayHang(t *testing.T) {
	require.False(t, mayHang("/proc/self/stat"))
	require.False(t, mayHang("/dev/null"))
	require.True(t, mayHang(filepath.Join(t.TempDir(), "file")))
	require.True(t, mayHang("/proc/self/stat (deleted)"))
}
