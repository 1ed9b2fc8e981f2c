package nullfs

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	n := newNames()
	var dir, f, got fuse.EntryOut
	require.Equal(t, fuse.OK, n.lookup(fuse.FUSE_ROOT_ID, "data", &got))
	require.EqualValues(t, fileSize, got.Attr.Size)
	require.Equal(t, fuse.ENOENT, n.make(file, "below a file", fuse.S_IFREG, &f))
	require.Equal(t, fuse.ENOENT, n.make(99, "below nothing", fuse.S_IFREG, &f))

	require.Equal(t, fuse.OK, n.make(fuse.FUSE_ROOT_ID, "dir", fuse.S_IFDIR|0o755, &dir))
	require.Equal(t, fuse.OK, n.make(dir.NodeId, "b", fuse.S_IFREG|0o600, &f))
	require.Equal(t, fuse.OK, n.make(dir.NodeId, "a", fuse.S_IFREG|0o600, &got))
	require.Equal(t, []string{"a", "b"}, n.listed(dir.NodeId))

	// A file is as large as what was written to it, and is there until the kernel has closed it.
	n.wrote(f.NodeId, 4096)
	n.wrote(f.NodeId, 100)
	require.Equal(t, fuse.OK, n.lookup(dir.NodeId, "b", &got))
	require.EqualValues(t, 4096, got.Attr.Size)
	require.Equal(t, fuse.OK, n.remove(dir.NodeId, "b"))
	require.Equal(t, fuse.ENOENT, n.remove(dir.NodeId, "b"))
	n.wrote(f.NodeId, 8192)
	require.Equal(t, fuse.OK, n.with(f.NodeId, func(d *node) { require.EqualValues(t, 8192, d.size) }))
}
