package pci

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hung is a file system with one file, whose attributes it gives when it may.
type hung struct {
	gofs.Inode
	may chan struct{}
}

func (h *hung) OnAdd(ctx context.Context) {
	h.AddChild("file", h.NewPersistentInode(ctx, &hungFile{may: h.may}, gofs.StableAttr{Ino: 2, Mode: unix.S_IFREG}), true)
}

type hungFile struct {
	gofs.Inode
	may    chan struct{}
	opened bool
}

func (f *hungFile) Open(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	f.opened = true
	return nil, 0, 0
}

func (f *hungFile) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if f.opened {
		<-f.may
	}
	out.Mode = unix.S_IFREG | 0o644
	return 0
}

// TestUsersBesideHung: a file that a program has open on a file system which does not answer holds up nobody who looks for the users of a device.
func TestUsersBesideHung(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root, to mount a file system without fusermount3")
	}
	dir, none, may := t.TempDir(), time.Duration(0), make(chan struct{})
	s, err := gofs.Mount(dir, &hung{may: may}, &gofs.Options{EntryTimeout: &none, AttrTimeout: &none, MountOptions: fuse.MountOptions{DirectMount: true}})
	if err != nil {
		t.Skipf("SKIPPED: no FUSE: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, s.Unmount()) })
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	require.NoError(t, err)
	defer null.Close()
	f, err := os.Open(filepath.Join(dir, "file"))
	require.NoError(t, err)
	program := exec.Command("sleep", "1000")
	program.Stdin, program.Stdout = f, null
	require.NoError(t, program.Start())
	t.Cleanup(func() { program.Process.Kill(); program.Wait() })
	require.NoError(t, f.Close())
	answer := time.AfterFunc(time.Minute, func() { close(may) })

	users, err := System{}.openBy([]Node{{Name: "null", Dev: "1:3"}})
	if answer.Stop() {
		close(may)
	} else {
		t.Error("it waited for the file system")
	}
	require.NoError(t, err)
	require.Contains(t, users, User{"null", "is open in process " + strconv.Itoa(program.Process.Pid) + " (sleep)"})
}
