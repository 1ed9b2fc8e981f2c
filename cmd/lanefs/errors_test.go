package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// damagedImage is a volume on which the inode of a file "bad" fails its checksum.
func (p *place) damagedImage() string {
	img, mnt := p.image("image", 32), p.mkdir("whole")
	p.ok("mount", img, mnt)
	require.NoError(p.t, os.WriteFile(filepath.Join(mnt, "bad"), nil, 0o644))
	st, err := os.Stat(filepath.Join(mnt, "bad"))
	require.NoError(p.t, err)
	p.umount(mnt)
	m := disktest.Open(p.t, img)
	group, table, off := m.InodeLocation(uint32(inodeOf(st)))
	block := m.Group(group).InodeTable + uint64(table)
	b := m.Block(block)
	b[off+0x10] ^= 0xff
	m.SetBlock(block, b)
	return img
}

// TestErrorsPanic: the daemon ends when it meets damage, what it leaves is a dead mount, and the volume tells.
func TestErrorsPanic(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.damagedImage(), p.mkdir("mnt")
	p.ok("mount", "-o", "errors=panic", img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	_, err = os.Stat(filepath.Join(mnt, "bad"))
	require.Error(t, err)
	p.eventually("the daemon's end", func() bool { return gone(r.PID) })
	p.eventually("a mount without a daemon", func() bool {
		var st unix.Statfs_t
		return errors.Is(unix.Statfs(mnt, &st), unix.ENOTCONN)
	})
	for _, command := range []string{"stat", "check"} {
		require.Contains(t, p.fails(command, mnt), "lanefs umount "+mnt+" clears the mount away")
	}
	_, said, err := p.run("umount", mnt)
	require.NoError(t, err)
	require.Contains(t, said, "its daemon was dead")
	r2 := p.checked(img)
	require.Contains(t, strings.Join(r2.Reasons, ""), "errors that were met before")
	require.True(t, r2.Errors.Marked, "in the journal")
	disktest.FsckAll(t, img)
}

// TestErrorsReadOnly: without the option the mount stays and takes no more changes, and check says why.
func TestErrorsReadOnly(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.damagedImage(), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	_, err := os.Stat(filepath.Join(mnt, "bad"))
	require.ErrorIs(t, err, unix.EUCLEAN)
	require.ErrorIs(t, os.WriteFile(filepath.Join(mnt, "new"), nil, 0o644), unix.EROFS)
	r := p.checked(mnt)
	require.Contains(t, strings.Join(r.Reasons, ""), "this mount has met an error")
	require.Len(t, r.Damage, 1)
	require.True(t, r.Errors.Marked)
	p.umount(mnt)
	require.Contains(t, tool(t, "dumpe2fs", "-h", img), "with errors")
}
