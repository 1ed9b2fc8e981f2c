package powercut

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/internal/files"
)

// workload makes a small run and the tree that its volume has at the end.
func workload(t *testing.T, seed uint64) (*Run, *Tree) {
	disktest.Tool(t, "mkfs.ext4", "dumpe2fs", "e2fsck")
	dir := t.TempDir()
	l, err := layoutNamed("1k")
	require.NoError(t, err)
	image := filepath.Join(dir, "image")
	before, err := (&templates{dir: dir, workers: 2}).get(&l, image)
	require.NoError(t, err)
	r := &Run{Seed: seed, Layout: l, Workers: 2, Ops: 120, Before: before}
	require.NoError(t, r.execute(image))
	b, err := newBench(r, dir)
	require.NoError(t, err)
	defer b.close()
	require.NoError(t, b.replay.Cut(r.recording.Len(), 0))
	path, err := b.put("end.img")
	require.NoError(t, err)
	tree, err := ours(path, &l, nil)
	require.NoError(t, err)
	return r, tree
}

// clone is a copy in which nodes can be changed.
func (t *Tree) clone() *Tree {
	c := &Tree{Nodes: map[uint64]*files.Node{}, Root: t.Root}
	for ino, n := range t.Nodes {
		m := *n
		m.Entries, m.Xattrs, m.Content = maps.Clone(n.Entries), maps.Clone(n.Xattrs), bytes.Clone(n.Content)
		c.Nodes[ino] = &m
	}
	return c
}

// nodes lists the inodes below the first worker's directory for which f returns true.
func (t *Tree) nodes(f func(*files.Node) bool) (found []uint64) {
	var visit func(ino uint64)
	visit = func(ino uint64) {
		n := t.Nodes[ino]
		if f(n) {
			found = append(found, ino)
		}
		for _, name := range slices.Sorted(maps.Keys(n.Entries)) {
			visit(n.Entries[name])
		}
	}
	visit(t.Nodes[t.Root].Entries[workerName(0)])
	return found
}

// TestCheckRefuses checks that the check can fail: it finds every kind of damage to a correct tree.
func TestCheckRefuses(t *testing.T) {
	for seed := uint64(1); ; seed++ {
		r, tree := workload(t, seed)
		big := tree.nodes(func(n *files.Node) bool { // with bytes at the start that can be lost
			return n.Type() == unix.S_IFREG && len(n.Content) > 2048 && !bytes.Equal(n.Content[:512], make([]byte, 512))
		})
		dirs := tree.nodes(func(n *files.Node) bool { return n.Type() == unix.S_IFDIR && len(n.Entries) > 0 })
		if len(big) < 2 || len(dirs) < 2 || r.Closed < 0 || bytes.Equal(tree.Nodes[big[0]].Content[:512], tree.Nodes[big[1]].Content[:512]) {
			require.Less(t, seed, uint64(20), "no workload with enough in it")
			continue
		}
		cut := r.recording.Len()
		require.NoError(t, r.check(tree, cut))
		for what, damage := range map[string]func(c *Tree){
			"one bit":              func(c *Tree) { c.Nodes[big[0]].Content[700] ^= 1 },
			"a lost block":         func(c *Tree) { clear(c.Nodes[big[0]].Content[:512]) },
			"another file's bytes": func(c *Tree) { copy(c.Nodes[big[0]].Content[:512], c.Nodes[big[1]].Content) },
			"what lay there before": func(c *Tree) {
				fill(c.Nodes[big[0]].Content[512:1024], stamp{worker: garbage, file: 77}, 512)
			},
			"size":           func(c *Tree) { n := c.Nodes[big[0]]; n.Size--; n.Content = n.Content[:n.Size] },
			"links":          func(c *Tree) { c.Nodes[big[0]].Links++ },
			"mode":           func(c *Tree) { c.Nodes[big[0]].Mode ^= 0o10 },
			"owner":          func(c *Tree) { c.Nodes[big[0]].UID++ },
			"xattr":          func(c *Tree) { c.Nodes[big[0]].Xattrs["user.more"] = "x" },
			"a missing name": func(c *Tree) { n := c.Nodes[dirs[1]].Entries; delete(n, slices.Sorted(maps.Keys(n))[0]) },
			"one more name":  func(c *Tree) { c.Nodes[dirs[0]].Entries["more"] = big[0] },
			"a gone worker":  func(c *Tree) { delete(c.Nodes[c.Root].Entries, workerName(1)) },
			"a shared name":  func(c *Tree) { c.Nodes[c.Nodes[c.Root].Entries[sharedName]].Entries[workerName(1)+"-more"] = big[0] },
		} {
			c := tree.clone()
			damage(c)
			require.Error(t, r.check(c, cut), what)
			require.Error(t, tree.same(c), what)
			require.Error(t, c.same(tree), what)
		}
		return
	}
}

// TestCheckKnowsWhatIsDurable: a tree from an earlier cut is refused once an fsync or sync that it lacks has completed.
func TestCheckKnowsWhatIsDurable(t *testing.T) {
	refused := 0
	for seed := uint64(30); seed < 33; seed++ {
		r, _ := workload(t, seed)
		dir := t.TempDir()
		b, err := newBench(r, dir)
		require.NoError(t, err)
		defer b.close()
		rng := rand.New(rand.NewPCG(1, seed))
		for range 8 {
			at := rng.IntN(r.recording.Len())
			require.NoError(t, b.replay.Cut(at, 0))
			path, err := b.put("cut.img")
			require.NoError(t, err)
			tree, err := ours(path, &r.Layout, nil)
			require.NoError(t, err)
			require.NoError(t, r.check(tree, at))
			if r.check(tree, r.recording.Len()) != nil {
				refused++
			}
		}
	}
	require.Greater(t, refused, 12)
}

// TestSaved: a run that was saved and loaded has the same models.
func TestSaved(t *testing.T) {
	r, tree := workload(t, 5)
	dir := filepath.Join(t.TempDir(), "saved")
	require.NoError(t, r.Save(dir))
	got, err := Load(dir)
	require.NoError(t, err)
	require.Equal(t, r.recording, got.recording)
	for i, m := range r.models {
		require.Equal(t, m.ops, got.models[i].ops)
	}
	require.NoError(t, got.check(tree, got.recording.Len()))
	require.NoError(t, Replay(dir, Cut{At: got.recording.Len() / 2, Seed: 3}, "", false))
	_, err = Load(t.TempDir())
	require.Error(t, err)
}
