package utab

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func read(t *testing.T, dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, "utab"))
	require.NoError(t, err)
	return string(b)
}

func TestEntries(t *testing.T) {
	dir := t.TempDir()
	all := func(string) bool { return true }
	none := func(string) bool { return false }
	require.NoError(t, Remove(dir, "/image", "/m", none), "there is no table")
	require.NoFileExists(t, filepath.Join(dir, "utab"))
	const other = "SRC=/dev/sda1 TARGET=/home ROOT=/ OPTS=x-systemd.automount\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "utab"), []byte(other), 0o644))
	require.NoError(t, Add(dir, "/an image", "/m\\\t", all))
	require.Equal(t, other+`SRC=/an\040image TARGET=/m\134\011 ROOT=/ OPTS=x-lanefs.wait`+"\n", read(t, dir))
	require.NoError(t, Add(dir, "/an image", "/m\\\t", all))
	require.Equal(t, 2, strings.Count(read(t, dir), "\n"), "once, however often it is mounted")
	st, err := os.Stat(filepath.Join(dir, "utab"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), st.Mode(), "umount(8) of any user reads it")

	// A daemon was killed: its entry goes with the next mount, and nobody else's.
	require.NoError(t, Add(dir, "/b", "/b", func(target string) bool { return target != "/m\\\t" && target != "/home" }))
	require.Equal(t, other+"SRC=/b TARGET=/b ROOT=/ OPTS=x-lanefs.wait\n", read(t, dir))

	// mount(8) adds one of its own for the same mount.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "utab"), []byte(read(t, dir)+"SRC=/b TARGET=/b ROOT=/ OPTS=x-foo\nSRC=/c TARGET=/b ROOT=/ OPTS=x-foo\n"), 0o644))
	was := read(t, dir)
	require.NoError(t, Remove(dir, "/b", "/where a killed daemon's mount was", all))
	require.Equal(t, was, read(t, dir))
	require.NoError(t, Remove(dir, "/b", "/b", none))
	require.Equal(t, other+"SRC=/c TARGET=/b ROOT=/ OPTS=x-foo\n", read(t, dir))
	require.Error(t, Add(filepath.Join(dir, "none"), "/b", "/b", all))
}

// TestTogether: mounts that come and go at the same time lose nobody's entry, and leave no file behind.
func TestTogether(t *testing.T) {
	dir := t.TempDir()
	all := func(string) bool { return true }
	require.NoError(t, Add(dir, "/stays", "/stays", all))
	before := read(t, dir)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			name := "/" + strconv.Itoa(n)
			for range 20 {
				if err := Add(dir, name, name, all); err != nil {
					t.Error(err)
				}
				if err := Remove(dir, name, name, all); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, before, read(t, dir))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "the table and its lock")
}

// TestHeldLock: who holds the lock keeps nobody for ever.
func TestHeldLock(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "utab.lock"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	require.ErrorIs(t, Add(dir, "/b", "/b", func(string) bool { return true }), unix.EWOULDBLOCK)
	require.NoFileExists(t, filepath.Join(dir, "utab"))
}
