package uring_test

import (
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
)

// connection is the number of the FUSE connection that is mounted at dir, which is not asked.
func connection(t testing.TB, dir string) uint32 {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != dir, false })
	require.NoError(t, err)
	require.Len(t, all, 1)
	return uint32(all[0].Minor)
}
