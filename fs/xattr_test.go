package fs

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

func TestXattr(t *testing.T) {
	m := newMount(t, Options{})
	needXattr(t, m)
	path := m.path("file")
	write(t, path, "")
	set := func(name, value string, flags int) error { return unix.Setxattr(path, name, []byte(value), flags) }
	require.NoError(t, set("user.a", "one", unix.XATTR_CREATE))
	require.ErrorIs(t, set("user.a", "two", unix.XATTR_CREATE), unix.EEXIST)
	require.ErrorIs(t, set("user.b", "two", unix.XATTR_REPLACE), unix.ENODATA)
	require.NoError(t, set("user.a", "three", unix.XATTR_REPLACE))
	require.NoError(t, set("user.empty", "", 0))
	require.NoError(t, set("trusted.t", "root's", 0))
	require.NoError(t, set("security.s", "label", 0))
	require.Equal(t, "three", getxattr(t, path, "user.a"))
	require.Equal(t, "", getxattr(t, path, "user.empty"))
	_, err := unix.Getxattr(path, "user.none", nil)
	require.ErrorIs(t, err, unix.ENODATA)
	for _, name := range []string{"system.richacl", "system.none", "none.a"} {
		_, err = unix.Getxattr(path, name, nil)
		require.ErrorIs(t, err, unix.EOPNOTSUPP, name)
		require.ErrorIs(t, set(name, "", 0), unix.EOPNOTSUPP, name)
		require.ErrorIs(t, unix.Removexattr(path, name), unix.EOPNOTSUPP, name)
	}
	_, err = unix.Getxattr(path, "user.a", make([]byte, 2))
	require.ErrorIs(t, err, unix.ERANGE)
	_, err = unix.Listxattr(path, make([]byte, 2))
	require.ErrorIs(t, err, unix.ERANGE)
	buf := make([]byte, 1000)
	n, err := unix.Listxattr(path, buf)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"user.a", "user.empty", "trusted.t", "security.s"},
		strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00"))
	require.NoError(t, unix.Removexattr(path, "user.a"))
	require.ErrorIs(t, unix.Removexattr(path, "user.a"), unix.ENODATA)

	needTool(t, "getfattr")
	require.NoError(t, os.Chmod(path, 0o644))
	cmd := exec.Command("setpriv", "--reuid=65534", "--clear-groups", "getfattr", "-m", "-", path)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "trusted")
	require.Contains(t, string(out), "user.empty")
}

func needXattr(t *testing.T, m *mounted) {
	t.Helper()
	err := unix.Setxattr(m.dir, "user.probe", []byte("x"), 0)
	if err == unix.EOPNOTSUPP {
		t.Skip("SKIPPED: the volume does not do extended attributes yet")
	}
	require.NoError(t, err)
	require.NoError(t, unix.Removexattr(m.dir, "user.probe"))
}

func getxattr(t *testing.T, path, name string) string {
	t.Helper()
	buf := make([]byte, 1000)
	n, err := unix.Getxattr(path, name, buf)
	require.NoError(t, err, name)
	return string(buf[:n])
}

// TestXattrTakesABlock: st_blocks changes when an attribute is added and removed.
func TestXattrTakesABlock(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		f := m.path("file")
		write(t, f, "x")
		sectors := func() int64 {
			var st unix.Stat_t
			require.NoError(t, unix.Stat(f, &st))
			return st.Blocks
		}
		require.NoError(t, unix.Setxattr(f, "user.small", []byte("small"), 0))
		before := sectors()
		require.NoError(t, unix.Setxattr(f, "user.large", make([]byte, 700), 0))
		require.Greater(t, sectors(), before)
		require.NoError(t, unix.Removexattr(f, "user.large"))
		require.Equal(t, before, sectors())
	})
}

// TestACL: the kernel enforces ACLs, files inherit them without regard to the umask, and mode and ACL stay consistent.
func TestACL(t *testing.T) {
	m := newMount(t, Options{})
	needXattr(t, m)
	user := aclOf(ace{ext4.ACLUserObj, 6, 0}, ace{ext4.ACLUser, 4, nobody}, ace{ext4.ACLGroupObj, 0, 0}, ace{ext4.ACLMask, 4, 0},
		ace{ext4.ACLOther, 0, 0})
	path := m.path("file")
	write(t, path, "for one more")
	require.NoError(t, os.Chmod(path, 0o600))
	as := func(args ...string) error {
		return exec.Command("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", "--"}, args...)...).Run()
	}
	require.Error(t, as("cat", path))
	require.NoError(t, unix.Setxattr(path, ext4.XattrACLAccess, user.Xattr(), 0))
	require.EqualValues(t, unix.S_IFREG|0o640, stat(t, path).Mode, "the group bits show the mask")
	require.NoError(t, as("cat", path))
	require.NoError(t, os.Chmod(path, 0o600))
	require.Error(t, as("cat", path), "chmod cleared the mask")
	got, err := ext4.ParseACL([]byte(getxattr(t, path, ext4.XattrACLAccess)))
	require.NoError(t, err)
	require.Equal(t, user.Chmod(0o600), got)
	minimal := aclOf(ace{ext4.ACLUserObj, 7, 0}, ace{ext4.ACLGroupObj, 5, 0}, ace{ext4.ACLOther, 1, 0})
	require.NoError(t, unix.Setxattr(path, ext4.XattrACLAccess, minimal.Xattr(), 0))
	require.EqualValues(t, unix.S_IFREG|0o751, stat(t, path).Mode)
	_, err = unix.Getxattr(path, ext4.XattrACLAccess, nil)
	require.ErrorIs(t, err, unix.ENODATA)

	dir := m.path("dir")
	require.NoError(t, os.Mkdir(dir, 0o755))
	write(t, dir+"/before", "")
	def := aclOf(ace{ext4.ACLUserObj, 7, 0}, ace{ext4.ACLUser, 7, nobody}, ace{ext4.ACLGroupObj, 5, 0}, ace{ext4.ACLMask, 7, 0},
		ace{ext4.ACLOther, 0, 0})
	require.NoError(t, unix.Setxattr(dir, ext4.XattrACLDefault, def.Xattr(), 0))
	umask := unix.Umask(0o077)
	defer unix.Umask(umask)
	write(t, dir+"/file", "")
	require.NoError(t, os.Mkdir(dir+"/sub", 0o775))
	unix.Umask(umask)
	require.EqualValues(t, unix.S_IFREG|0o640, stat(t, dir+"/file").Mode, "0644 without others; the umask plays no part")
	require.EqualValues(t, unix.S_IFDIR|0o770, stat(t, dir+"/sub").Mode)
	require.Equal(t, string(def.Xattr()), getxattr(t, dir+"/sub", ext4.XattrACLDefault))
	require.NoError(t, as("touch", dir+"/sub/new"))
	require.NoError(t, unix.Removexattr(dir, ext4.XattrACLDefault))
	unix.Umask(0o077)
	write(t, dir+"/after", "")
	unix.Umask(umask)
	require.EqualValues(t, unix.S_IFREG|0o600, stat(t, dir+"/after").Mode)
}

type ace [3]uint32

func aclOf(entries ...ace) (a ext4.ACL) {
	for _, e := range entries {
		a = append(a, ext4.ACLEntry{Tag: uint16(e[0]), Perm: uint16(e[1]), ID: e[2]})
	}
	return a
}
