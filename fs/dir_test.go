package fs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// TestReadDirWhileDeleting: names that are there all the time are seen once, however many others go while reading.
func TestReadDirWhileDeleting(t *testing.T) {
	names := 10000
	if raced {
		names = 2500
	}
	m := newMount(t, Options{})
	dir := m.path("many")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for i := range names {
		fd, err := unix.Open(fmt.Sprintf("%s/name-%05d", dir, i), unix.O_CREAT|unix.O_WRONLY, 0o644)
		require.NoError(t, err)
		unix.Close(fd)
	}

	d, err := os.Open(dir)
	require.NoError(t, err)
	defer d.Close()
	seen := make(map[string]int)
	removed := make(map[string]bool)
	for {
		batch, _ := d.Readdirnames(70)
		if len(batch) == 0 {
			break
		}
		for _, name := range batch {
			seen[name]++
			var i int
			_, err := fmt.Sscanf(name, "name-%d", &i)
			require.NoError(t, err)
			// Every odd one goes as soon as it is seen, and one far away before it can be.
			for _, victim := range []int{i | 1, (i + names/2) | 1} {
				name := fmt.Sprintf("name-%05d", victim%names)
				if !removed[name] && os.Remove(dir+"/"+name) == nil {
					removed[name] = true
				}
			}
		}
	}
	for name, n := range seen {
		require.Equal(t, 1, n, "%s was read %d times", name, n)
	}
	for i := 0; i < names; i += 2 {
		require.Contains(t, seen, fmt.Sprintf("name-%05d", i), "was there all the time")
	}
	require.NoError(t, os.RemoveAll(dir))
}

// TestSeekDir reads on from every position, in an order of its own.
func TestSeekDir(t *testing.T) {
	m := newMount(t, Options{})
	for i := range 500 {
		require.NoError(t, os.WriteFile(m.path(fmt.Sprint("file", i)), nil, 0o644))
	}
	fd, err := unix.Open(m.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	entries := getdents(t, fd)
	require.GreaterOrEqual(t, len(entries), 502)
	for i := range entries {
		at := i * 7919 % len(entries)
		_, err := unix.Seek(fd, int64(entries[at].Off), unix.SEEK_SET)
		require.NoError(t, err)
		require.Equal(t, entries[at+1:], append([]fuse.DirEntry{}, getdents(t, fd)...), "from entry %d", at)
	}
	_, err = unix.Seek(fd, 0, unix.SEEK_SET)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(m.path("late"), nil, 0o644))
	require.Len(t, getdents(t, fd), len(entries)+1, "rewinding shows what came since")
}

func getdents(t *testing.T, fd int) []fuse.DirEntry {
	t.Helper()
	entries := []fuse.DirEntry{}
	buf := make([]byte, 3000)
	for {
		n, err := unix.ReadDirent(fd, buf)
		require.NoError(t, err)
		if n == 0 {
			return entries
		}
		for b := buf[:n]; len(b) > 0; {
			var e fuse.DirEntry
			b = b[e.Parse(b):]
			entries = append(entries, e)
		}
	}
}

// requestsOf is how many requests of some kinds there were so far.
func requestsOf(m *mounted, kinds ...string) (n uint64) {
	for _, s := range m.srv.Stats().Times {
		if slices.Contains(kinds, s.Kind) {
			n += s.Count
		}
	}
	return n
}

// filledAnew is a mount with a directory of so many empty files, named by numbers, of which the kernel knows nothing yet. more is called before the volume is
// mounted anew.
func filledAnew(t *testing.T, count int, more func(dir string)) (m *mounted, dir string) {
	m = newMount(t, Options{})
	dir = m.path("dir")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for i := range count {
		require.NoError(t, unix.Mknod(fmt.Sprintf("%s/%d", dir, i), unix.S_IFREG|0o644, 0))
	}
	more(dir)
	m.unmount()
	m.volume.open()
	m = mountVolume(t, m.volume, Options{})
	return m, m.path("dir")
}

// TestListWithAttributes: who lists a directory and asks for each file's size then, makes no request for a file; of a very large directory, for
// those beyond dirAttributes.
func TestListWithAttributes(t *testing.T) {
	const beyond = 200
	m, dir := filledAnew(t, dirAttributes+beyond, func(string) {})
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, dirAttributes+beyond)
	before := requestsOf(m, "lookup")
	for _, e := range entries {
		_, err := e.Info()
		require.NoError(t, err)
	}
	require.EqualValues(t, beyond, requestsOf(m, "lookup")-before)
}

// TestOddNames: a name is any bytes but the slash and zero, up to 255 of them.
func TestOddNames(t *testing.T) {
	m := newMount(t, Options{})
	names := []string{
		strings.Repeat("n", 255), strings.Repeat("ö", 127), "日本語", "\xff\xfe\x80", "new\nline", "back\\slash", " ", "...",
		"-rf", "*", "tab\there", "\x01\x7f",
	}
	for _, name := range names {
		require.NoError(t, os.WriteFile(m.path(name), []byte(name), 0o644), "%q", name)
	}
	_, err := os.Create(m.path(strings.Repeat("n", 256)))
	require.ErrorIs(t, err, unix.ENAMETOOLONG)
	entries, err := os.ReadDir(m.dir)
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		if e.Name() != "lost+found" {
			got = append(got, e.Name())
		}
	}
	require.ElementsMatch(t, names, got)
	for _, name := range names {
		b, err := os.ReadFile(m.path(name))
		require.NoError(t, err, "%q", name)
		require.Equal(t, name, string(b))
		require.NoError(t, os.Remove(m.path(name)))
	}
}

// TestListAgain: a directory that is listed again has no attributes in its listing of files that the kernel was told of, and there is still no request for
// each file; a file that was changed since, and one with two names, comes with them.
func TestListAgain(t *testing.T) {
	const count = 50
	m, dir := filledAnew(t, count, func(dir string) { require.NoError(t, os.Link(dir+"/0", dir+"/other")) })
	// The kernel's count says how often it was told of each file.
	times := func() []uint64 {
		by := make([]uint64, count)
		for i := range by {
			var st unix.Stat_t
			require.NoError(t, unix.Lstat(fmt.Sprintf("%s/%d", dir, i), &st))
			m.srv.nodes.mu.Lock()
			by[i] = m.srv.nodes.known[uint32(st.Ino)].refs &^ told
			m.srv.nodes.mu.Unlock()
		}
		return by
	}
	list := func() {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, count+1)
		before := requestsOf(m, "lookup", "getattr")
		for _, e := range entries {
			_, err := e.Info()
			require.NoError(t, err)
		}
		require.Equal(t, before, requestsOf(m, "lookup", "getattr"), "requests for files")
	}
	list()
	first := times()
	for range 3 {
		list()
	}
	again := times()
	require.Greater(t, again[0], first[0], "a file with two names")
	require.Equal(t, first[1:], again[1:])

	require.NoError(t, os.WriteFile(dir+"/7", []byte("changed"), 0o644))
	list()
	changed := times()
	require.Greater(t, changed[7], again[7])
	require.Equal(t, again[8:], changed[8:])
	info, err := os.Stat(dir + "/7")
	require.NoError(t, err)
	require.EqualValues(t, len("changed"), info.Size())
}

// TestListAgainACL: who lists a directory again and asks for each file's access control list, as `ls -l` does, has a request for the files that were changed
// since only: a listing with attributes has the kernel forget the lists.
func TestListAgainACL(t *testing.T) {
	const count = 50
	m, dir := filledAnew(t, count, func(string) {})
	list := func(want error) uint64 {
		before := requestsOf(m, "getxattr")
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, count)
		for _, e := range entries {
			_, err := unix.Getxattr(dir+"/"+e.Name(), ext4.XattrACLAccess, nil)
			if e.Name() == "7" {
				require.Equal(t, want, err)
			} else {
				require.Equal(t, unix.ENODATA, err)
			}
		}
		return requestsOf(m, "getxattr") - before
	}
	require.EqualValues(t, count, list(unix.ENODATA))
	require.Zero(t, list(unix.ENODATA))
	require.Zero(t, list(unix.ENODATA))
	acl := aclOf(ace{ext4.ACLUserObj, 6, 0}, ace{ext4.ACLUser, 6, nobody}, ace{ext4.ACLGroupObj, 4, 0}, ace{ext4.ACLMask, 6, 0}, ace{ext4.ACLOther, 4, 0})
	require.NoError(t, unix.Setxattr(dir+"/7", ext4.XattrACLAccess, acl.Xattr(), 0))
	require.LessOrEqual(t, list(nil), uint64(1))
	require.NoError(t, os.Chmod(dir+"/8", 0o600))
	require.LessOrEqual(t, list(nil), uint64(1))
	require.Zero(t, list(nil))
}
