package fs

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// makeMany makes count empty files in directories of a thousand, on the volume under the mount, and returns their paths.
func makeMany(t *testing.T, m *mounted, count int) (paths []string) {
	t.Helper()
	root, err := m.vol.Root()
	require.NoError(t, err)
	defer root.Put()
	for k := 0; k < count; k += 1000 {
		dir := fmt.Sprintf("d%d", k)
		in, err := root.Mkdir(dir, 0o40755, 0, 0)
		require.NoError(t, err)
		for i := range min(1000, count-k) {
			name := fmt.Sprintf("f%d", i)
			file, err := in.Create(name, 0o100644, 0, 0, 0, 0)
			require.NoError(t, err)
			file.Put()
			paths = append(paths, m.path(dir, name))
		}
		in.Put()
	}
	return paths
}

func liveHeap() int64 {
	var s runtime.MemStats
	for range 3 { // what is in a sync.Pool lives for two collections
		runtime.GC()
	}
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// TestKnownInodesTakeLittleMemory: what the kernel knows takes less than 500 bytes for each inode, and is not loaded.
func TestKnownInodesTakeLittleMemory(t *testing.T) {
	skipRaced(t)
	const count, limit = 20000, 500
	m := newMount(t, Options{})
	paths := makeMany(t, m, count)
	dir, err := os.Open(m.path("d0")) // what a first request makes is no inode's
	require.NoError(t, err)
	require.NoError(t, dir.Close())
	before, knew := liveHeap(), m.srv.Stats().Nodes
	for _, p := range paths {
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(p, &st))
	}
	known := m.srv.Stats().Nodes - knew
	require.GreaterOrEqual(t, known, count)
	each := (liveHeap() - before) / int64(known)
	t.Logf("%d bytes for each of %d inodes", each, known)
	require.Less(t, each, int64(limit))
	m.srv.nodes.mu.Lock()
	defer m.srv.nodes.mu.Unlock()
	require.LessOrEqual(t, len(m.srv.nodes.loaded), maxIdle+8)
}

// TestDroppedNodesAreLoadedAgain: files whose nodes were dropped are what they were. Files that are open, and directories that are read,
// keep their nodes, also without names.
func TestDroppedNodesAreLoadedAgain(t *testing.T) {
	m := newMount(t, Options{})
	require.NoError(t, os.WriteFile(m.path("closed"), []byte("closed"), 0o640))
	closed := inoOf(t, m.path("closed")) // not later: the kernel may ask for it again, and have its node loaded
	require.NoError(t, os.Link(m.path("closed"), m.path("second")))
	require.NoError(t, os.Mkdir(m.path("removed"), 0o755))
	working, err := os.Open(m.path("removed"))
	require.NoError(t, err)
	defer working.Close()
	open, err := os.Create(m.path("open"))
	require.NoError(t, err)
	unlinked, err := os.Create(m.path("unlinked"))
	require.NoError(t, err)
	nameless, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	for _, f := range []int{int(open.Fd()), int(unlinked.Fd()), nameless} {
		_, err := unix.Pwrite(f, []byte("open"), 0)
		require.NoError(t, err)
	}
	// A name that the kernel does not follow to a file: it is open by number only.
	path, err := unix.Open(m.path("second"), unix.O_PATH, 0)
	require.NoError(t, err)
	require.NoError(t, os.Remove(m.path("unlinked")))
	require.NoError(t, os.Remove(m.path("removed")))

	var others []uint64
	for _, p := range makeMany(t, m, maxIdle+100) {
		others = append(others, inoOf(t, p))
	}
	dropOthers := func() { // than those that were used last
		for _, ino := range others {
			n, errno := m.srv.use(ino)
			require.Zero(t, errno)
			n.done()
		}
	}
	loaded := func(ino uint64) bool {
		m.srv.nodes.mu.Lock()
		defer m.srv.nodes.mu.Unlock()
		return m.srv.nodes.loaded[uint32(ino)] != nil
	}
	// close(2) does not wait for RELEASE, until which the file is in use. After that it is the one that was used last.
	dropped := func() {
		t.Helper()
		require.Eventually(t, func() bool {
			dropOthers()
			return !loaded(closed)
		}, time.Minute, time.Millisecond, "it is not dropped")
	}
	dropped()
	require.True(t, m.srv.nodes.knows(closed))

	free := m.vol.Statfs().InodesFree
	got, err := os.ReadFile(m.path("closed"))
	require.NoError(t, err)
	require.Equal(t, "closed", string(got))
	for _, f := range []int{int(open.Fd()), int(unlinked.Fd()), nameless} {
		buf := make([]byte, 8)
		n, err := unix.Pread(f, buf, 0)
		require.NoError(t, err)
		require.Equal(t, "open", string(buf[:n]))
		require.NoError(t, unix.Fchmod(f, 0o604))
	}
	require.NoError(t, unix.Linkat(nameless, "", unix.AT_FDCWD, m.path("named"), unix.AT_EMPTY_PATH))
	dropped()
	require.NoError(t, os.Remove(m.path("closed"))) // of a dropped node
	require.NoError(t, os.Remove(m.path("second")))
	var st unix.Stat_t
	require.NoError(t, unix.Fstatat(path, "", &st, unix.AT_EMPTY_PATH))
	require.Zero(t, st.Nlink)
	dropOthers()
	require.True(t, loaded(closed), "the last reference to the inode would free it")
	require.Equal(t, free, m.vol.Statfs().InodesFree, "the kernel knows them yet")
	for _, f := range []int{nameless, path} {
		require.NoError(t, unix.Close(f))
	}
	require.NoError(t, open.Close())
	require.NoError(t, unlinked.Close())
	require.NoError(t, working.Close())
	require.Eventually(t, func() bool { return m.vol.Statfs().InodesFree == free+3 }, time.Minute, time.Millisecond, "unlinked, removed, closed")
	got, err = os.ReadFile(m.path("named"))
	require.NoError(t, err)
	require.Equal(t, "open", string(got))
}

// TestIdleNodes: a file without names that nobody uses is not among the idle nodes, so a later use of it takes nothing out of their list.
func TestIdleNodes(t *testing.T) {
	v := newVolume(t)
	root, err := v.vol.Root()
	require.NoError(t, err)
	s := &Server{vol: v.vol, nodes: newNodes()}
	s.root = &node{srv: s, in: root}
	var made []*node
	for i := range 4 {
		in, err := root.Create(fmt.Sprint(i), 0o100644, 0, 0, 0, 0)
		require.NoError(t, err)
		made = append(made, intern(s, in))
	}
	require.NoError(t, root.Unlink("0"))
	s.nodes.addNameless(made[0])
	for _, n := range made {
		n.done()
	}
	idle := func() (list []*node) {
		for n := s.nodes.idle.oldest; n != nil; n = n.newer {
			list = append(list, n)
		}
		require.Len(t, list, s.nodes.idle.len)
		return list
	}
	require.Equal(t, made[1:], idle())
	for range 3 {
		n, errno := s.use(uint64(made[0].in.Ino()))
		require.Zero(t, errno)
		require.Same(t, made[0], n)
		require.Equal(t, made[1:], idle())
		n.done()
		require.Equal(t, made[1:], idle())
	}
	s.nodes.clear()
	root.Put()
	v.close()
}
