package files

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDiff: every difference is found, from both sides.
func TestDiff(t *testing.T) {
	node := func() *Node {
		return &Node{ID: ID{12, 1}, Mode: 0o100644, Links: 1, Size: 3, Xattrs: map[string]string{"user.a": "1"}, Content: []byte("abc")}
	}
	n := node()
	require.Empty(t, n.Diff(node(), nil))
	for name, change := range map[string]func(*Node){
		"mode": func(m *Node) { m.Mode ^= 0o111 }, "uid": func(m *Node) { m.UID++ }, "gid": func(m *Node) { m.GID++ },
		"links": func(m *Node) { m.Links++ }, "dev": func(m *Node) { m.Dev++ }, "target": func(m *Node) { m.Target = "x" },
		"xattr": func(m *Node) { m.Xattrs["user.a"] = "2" }, "size": func(m *Node) { m.Size++ },
		"shorter": func(m *Node) { m.Content = m.Content[:2] }, "byte": func(m *Node) { m.Content[2]++ },
	} {
		m := node()
		change(m)
		require.NotEmpty(t, n.Diff(m, nil), name)
		require.NotEmpty(t, m.Diff(n, nil), name)
	}
	m := node()
	m.Content[1] = 'x'
	require.Empty(t, n.DiffAttrs(m))
	at := -1
	n.Diff(m, func(k int) string { at = k; return "differs" })
	require.Equal(t, 1, at)
}
