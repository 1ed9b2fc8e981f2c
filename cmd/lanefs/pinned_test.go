package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPinnedLimit: what is not asked for depends on the memory that the daemon may have.
func TestPinnedLimit(t *testing.T) {
	const mib = 1 << 20
	for _, v := range []struct{ asked, cache, may, want int64 }{
		{0, 0, math.MaxInt64, 1024 * mib},
		{0, 0, 2048 * mib, 1024 * mib},
		{0, 0, 512 * mib, 256 * mib},
		{0, 0, 100 * mib, 64 * mib},
		{0, 0, 0, 64 * mib},
		{0, 16 * mib, 512 * mib, 256 * mib},
		{0, 100 * mib, 512 * mib, 400 * mib},
		{0, math.MaxInt64, 512 * mib, 1024 * mib},
		{2048 * mib, 0, 512 * mib, 2048 * mib},
		{16 * mib, 512 * mib, 512 * mib, 16 * mib},
	} {
		cfg := &mountConfig{}
		cfg.Pinned, cfg.Cache = v.asked, v.cache
		require.Equal(t, v.want, cfg.pinned(v.may), "%+v", v)
	}
}

// TestSmallGroup: a daemon whose control group may have less memory than the volume has metadata makes do with that.
func TestSmallGroup(t *testing.T) {
	procs := memoryGroup(t, 160<<20) // taken away after the daemon
	p := newPlace(t)
	img, mnt := p.path("image"), p.mkdir("mnt")
	require.NoError(t, os.WriteFile(img, make([]byte, 240<<20), 0o600)) // in memory the image counts for who writes it first, which is not to be the daemon
	tool(t, "mkfs.ext4", "-q", "-F", "-b", "4096", "-N", "30000", "-E", "nodiscard,lazy_itable_init=0", img)
	said, err := p.after("echo $$ >"+procs, "mount", img, mnt)
	require.NoError(t, err, said)
	before, err := p.stat(mnt)
	require.NoError(t, err)
	require.EqualValues(t, 60<<20, before.HeapLimit, "three quarters of what is not pinned")
	value := make([]byte, 3000) // too large for the inode: a block of metadata for each file
	for i := range 25_000 {
		if i%1000 == 0 {
			require.NoError(t, os.Mkdir(filepath.Join(mnt, fmt.Sprint(i/1000)), 0o755))
		}
		name := filepath.Join(mnt, fmt.Sprint(i/1000), fmt.Sprint(i))
		require.NoError(t, os.WriteFile(name, nil, 0o644))
		copy(value, name)
		require.NoError(t, unix.Setxattr(name, "user.x", value, 0))
	}
	after, err := p.stat(mnt)
	require.NoError(t, err)
	require.Equal(t, before.PID, after.PID)
	p.ok("umount", mnt)
	tool(t, "e2fsck", "-fn", img)
}
