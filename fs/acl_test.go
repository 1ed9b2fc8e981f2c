package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// atEachCommit repeats work while transactions are committed one after the other. look examines the volume as a power cut would leave it
// after each of 40 commits.
func atEachCommit(t *testing.T, m *mounted, work func(i int) error, look func(name string, in *ext4.Inode) error) {
	t.Helper()
	var mu sync.Mutex
	var errs []error
	looked, enough := 0, make(chan struct{})
	m.dev.Observe(func(e blockdev.Event) {
		mu.Lock()
		defer mu.Unlock()
		if !e.FUA || looked == 40 || len(errs) > 0 {
			return
		}
		looked++ // the committer is here, and waits: nothing else writes
		if err := lookAtAll(m.volume.path, look); err != nil {
			errs = append(errs, fmt.Errorf("after commit %d: %w", looked, err))
		}
		if looked == 40 || len(errs) > 0 {
			close(enough)
		}
	})
	defer m.dev.Observe(nil)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
				err = m.vol.Sync()
			}
		}
		<-stop
		stopped <- err
	}()
	err := func() error {
		for i := 0; ; i++ {
			select {
			case <-enough:
				return nil
			default:
			}
			if err := work(i); err != nil {
				return err
			}
		}
	}()
	close(stop)
	require.NoError(t, errors.Join(err, <-stopped))
	mu.Lock()
	defer mu.Unlock()
	require.NoError(t, errors.Join(errs...))
}

// lookAtAll shows look every name in the root directory as it would be after a power cut now.
func lookAtAll(image string, look func(name string, in *ext4.Inode) error) (err error) {
	dev, err := blockdev.OpenFile(image, 512)
	if err != nil {
		return err
	}
	defer dev.Close()
	v, err := ext4.Open(dev, ext4.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer v.Close()
	root, err := v.Root()
	if err != nil {
		return err
	}
	defer root.Put()
	var names []string
	if err := root.ReadDir(0, func(e ext4.DirEntry) bool {
		names = append(names, e.Name)
		return true
	}); err != nil {
		return err
	}
	for _, name := range names {
		in, err := root.Lookup(name)
		if err != nil {
			return err
		}
		err = look(name, in)
		in.Put()
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

// newACLMount is a mount of a volume that commits nothing by itself.
func newACLMount(t *testing.T) *mounted {
	t.Helper()
	needFuse(t)
	v := newVolume(t)
	require.NoError(t, v.vol.Close())
	var err error
	v.vol, err = ext4.Open(v.dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), CommitInterval: time.Hour})
	require.NoError(t, err)
	m := mountVolume(t, v, Options{})
	needXattr(t, m)
	return m
}

// TestInheritedACLAfterCut: after a power cut no file is without the ACLs that it inherits from its directory.
func TestInheritedACLAfterCut(t *testing.T) {
	m := newACLMount(t)
	// The mask withholds what the group's own entry gives, and shows as the mode's group bits.
	def := aclOf(ace{ext4.ACLUserObj, 7, 0}, ace{ext4.ACLUser, 6, nobody}, ace{ext4.ACLGroupObj, 7, 0}, ace{ext4.ACLMask, 6, 0},
		ace{ext4.ACLOther, 0, 0})
	require.NoError(t, unix.Setxattr(m.dir, ext4.XattrACLDefault, def.Xattr(), 0))
	atEachCommit(t, m, func(i int) error {
		name := func(kind string) string { return m.path(fmt.Sprint(kind, i)) }
		fd, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_WRONLY, 0o640)
		if err != nil {
			return err
		}
		return errors.Join(
			os.WriteFile(name("file"), nil, 0o640),
			os.Mkdir(name("directory"), 0o750),
			unix.Mkfifo(name("fifo"), 0o640),
			os.Symlink("target", name("symlink")),
			unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, name("tmpfile"), unix.AT_SYMLINK_FOLLOW),
			unix.Close(fd))
	}, func(name string, in *ext4.Inode) error {
		kind := strings.TrimRight(name, "0123456789")
		wantMode := map[string]uint32{"file": 0o640, "directory": 0o750, "fifo": 0o640, "tmpfile": 0o640}[kind]
		if wantMode == 0 {
			return nil
		}
		access, bits := def.Inherit(uint16(wantMode))
		if got := in.Attr().Mode & 0o7777; got != uint32(bits) {
			return fmt.Errorf("mode %#o instead of %#o", got, bits)
		}
		if got, err := in.Getxattr(ext4.XattrACLAccess); err != nil || string(got) != string(access.Xattr()) {
			return fmt.Errorf("access ACL %q: %w", got, err)
		}
		if kind == "directory" {
			if got, err := in.Getxattr(ext4.XattrACLDefault); err != nil || string(got) != string(def.Xattr()) {
				return fmt.Errorf("default ACL %q: %w", got, err)
			}
		}
		return nil
	})
}

// TestACLAndModeAfterCut: after a power cut the mode of a file matches its ACL, and set-group-ID is clear if the change that clears
// it is there.
func TestACLAndModeAfterCut(t *testing.T) {
	m := newACLMount(t)
	path := m.path("file")
	write(t, path, "")
	lists := []ext4.ACL{
		aclOf(ace{ext4.ACLUserObj, 6, 0}, ace{ext4.ACLUser, 6, nobody}, ace{ext4.ACLGroupObj, 7, 0}, ace{ext4.ACLMask, 6, 0}, ace{ext4.ACLOther, 0, 0}),
		aclOf(ace{ext4.ACLUserObj, 7, 0}, ace{ext4.ACLUser, 1, nobody}, ace{ext4.ACLGroupObj, 4, 0}, ace{ext4.ACLMask, 5, 0}, ace{ext4.ACLOther, 1, 0}),
		aclOf(ace{ext4.ACLUserObj, 6, 0}, ace{ext4.ACLGroupObj, 4, 0}, ace{ext4.ACLOther, 4, 0}),
	}
	atEachCommit(t, m, func(i int) error {
		return errors.Join(unix.Setxattr(path, ext4.XattrACLAccess, lists[i%len(lists)].Xattr(), 0), os.Chmod(path, os.FileMode(0o700|i%8<<3)))
	}, func(name string, in *ext4.Inode) error {
		value, err := in.Getxattr(ext4.XattrACLAccess)
		if errors.Is(err, ext4.ErrNoAttr) {
			return nil
		}
		if err != nil {
			return err
		}
		a, err := ext4.ParseACL(value)
		if err != nil {
			return err
		}
		if bits, _ := a.Mode(); uint32(bits) != in.Attr().Mode&0o777 {
			return fmt.Errorf("mode %#o, but the ACL says %#o", in.Attr().Mode&0o777, bits)
		}
		return nil
	})
}
