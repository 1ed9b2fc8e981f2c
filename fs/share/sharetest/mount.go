// Package sharetest makes mounts with a share, for tests of package share and of the SDKs. A Mount is an image made by mkfs.ext4, the host
// runtime, the software controller, the engine, the volume, the FUSE mount and the share, in this process.
package sharetest

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/blockdev/namespace/namespacetest"
	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// Mount is a mount with a share. It is closed when the test ends, and e2fsck checks the image.
type Mount struct {
	Dir   string
	Image string
	Pool  *residency.Pool
	Share *share.Server
	FS    *fs.Server
	// Copier is the pool's, of NewUnreached.
	Copier *Copier

	t   testing.TB
	vol *ext4.FS
	dev *namespace.Namespace
	top *device
	end sync.Once
}

// device is the volume's device. A test can hold back requests.
type device struct {
	*namespace.Namespace
	hold atomic.Pointer[hold]
	fail atomic.Pointer[func(*blockdev.Request) bool]
}

type hold struct {
	which         func(*blockdev.Request) bool
	held, release chan struct{}
	once          sync.Once
}

func (d *device) Do(reqs ...*blockdev.Request) error {
	if h := d.hold.Load(); h != nil && slices.ContainsFunc(reqs, h.which) {
		h.once.Do(func() { close(h.held) })
		<-h.release
	}
	which := d.fail.Load()
	if which == nil {
		return d.Namespace.Do(reqs...)
	}
	var first error
	good := make([]*blockdev.Request, 0, len(reqs))
	for _, q := range reqs {
		if !(*which)(q) {
			good = append(good, q)
		} else if q.Err = q.Fail(d.Info(), blockdev.ErrFault); first == nil {
			first = q.Err
		}
	}
	return errors.Join(first, d.Namespace.Do(good...))
}

// Flush is Do of one request, as of any device: that of the namespace would not come by here.
func (d *device) Flush() error { return d.Do(&blockdev.Request{Op: blockdev.OpFlush}) }

// Fail fails the requests for which which returns true, until the test ends.
func (m *Mount) Fail(which func(*blockdev.Request) bool) {
	m.top.fail.Store(&which)
	m.t.Cleanup(func() { m.top.fail.Store(nil) })
}

// Hold holds back calls of Do with a request for which which returns true, until release is called or the test ends. held is closed when
// there was such a call.
func (m *Mount) Hold(which func(*blockdev.Request) bool) (held <-chan struct{}, release func()) {
	h := &hold{which: which, held: make(chan struct{}), release: make(chan struct{})}
	m.top.hold.Store(h)
	release = sync.OnceFunc(func() {
		m.top.hold.CompareAndSwap(h, nil)
		close(h.release)
	})
	m.t.Cleanup(release)
	return h.held, release
}

// New mounts a new volume of size bytes with a pool of pool bytes. The functions in set change the options. It skips the test if FUSE or a
// tool is missing.
func New(t testing.TB, size, pool int64, set ...func(*fs.Options)) *Mount {
	t.Helper()
	return mount(t, size, pool, false, nil, set...)
}

// NewOf is New of a volume that is made with more arguments of mkfs.ext4, such as -d for what is in it. change, if it is not nil, changes the image.
func NewOf(t testing.TB, size, pool int64, mkfs []string, change func(image string), set ...func(*fs.Options)) *Mount {
	t.Helper()
	return mount(t, size, pool, false, &volume{mkfs: mkfs, change: change}, set...)
}

// volume is how a mount and its volume differ from others.
type volume struct {
	mkfs   []string
	change func(image string)
	pages  bool
	used   bool
}

// NewUnreached is New of a mount whose controller reaches no memory of programs or of the pool, as a drive beside a GPU: bytes go through the
// pool's stage.
func NewUnreached(t testing.TB, size, pool int64) *Mount {
	t.Helper()
	return mount(t, size, pool, true, nil)
}

// NewBeside is NewUnreached of a controller that does reach programs' ordinary memory.
func NewBeside(t testing.TB, size, pool int64) *Mount {
	t.Helper()
	return mount(t, size, pool, true, &volume{pages: true})
}

// NewUsed is NewUnreached whose device memory has others' bytes at first and cannot be exported read-only, as a GPU's. Clients get a memfd of it by the name of a POSIX handle.
func NewUsed(t testing.TB, size, pool int64) *Mount {
	t.Helper()
	return mount(t, size, pool, true, &volume{used: true})
}

// used is a runtime with such memory.
type used struct{ gpu.Runtime }

func (u used) Facts() gpu.Facts {
	f := u.Runtime.Facts()
	f.Exports = []gpu.ExportKind{gpu.ExportPOSIX}
	return f
}

func (u used) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	m, err := u.Runtime.Alloc(kind, size)
	if err != nil || kind != gpu.DeviceVMM {
		return m, err
	}
	copy(m.Host(), bytes.Repeat([]byte("secret"), int(size/6+1)))
	return usedMemory{m}, nil
}

type usedMemory struct{ gpu.Memory }

func (m usedMemory) Export(gpu.ExportKind) (gpu.Export, error) {
	e, err := m.Memory.Export(gpu.ExportMemFD)
	e.Kind = gpu.ExportPOSIX
	return e, err
}

// far is a namespace that reaches no memory but what is pinned for it and, with pages, what was imported from a program.
type far struct {
	*namespace.Namespace
	pages bool
}

func (d far) Attach(m gpu.Memory) (blockdev.Buffer, error) {
	if m.Kind() != gpu.HostPinned && !(d.pages && m.Reach().Owner == gpu.OwnerPages && m.Kind() == gpu.DevicePlain) {
		return nil, fmt.Errorf("this controller does not reach %v memory", m.Kind())
	}
	return d.Namespace.Attach(m)
}

// Copier is the pool's copy engine. Fail, where it is set, fails a copy; Before is called before the next one, once.
type Copier struct {
	Fail    atomic.Pointer[error]
	Before  atomic.Pointer[func()]
	rt      gpu.Runtime
	streams copyengine.Pool
}

// Copy implements residency.Copier.
func (c *Copier) Copy(dst, src gpu.Addr, n int64) error {
	if f := c.Before.Swap(nil); f != nil {
		(*f)()
	}
	if err := c.Fail.Load(); err != nil {
		return *err
	}
	return c.streams.Copy(c.rt, dst, src, n)
}

func mount(t testing.TB, size, pool int64, unreached bool, v *volume, set ...func(*fs.Options)) *Mount {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs FUSE: /dev/fuse: %v", err)
	}
	unix.Close(fd)
	for _, tool := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	where := "/dev/shm"
	if _, err := os.Stat(where); err != nil {
		where = ""
	}
	tmp, err := os.MkdirTemp(where, "lanefs-share-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	m := &Mount{t: t, Dir: filepath.Join(tmp, "mnt"), Image: filepath.Join(tmp, "image")}
	require.NoError(t, os.Mkdir(m.Dir, 0o755))
	require.NoError(t, os.WriteFile(m.Image, nil, 0o600))
	require.NoError(t, os.Truncate(m.Image, size))
	args := []string{"-q", "-F", "-m", "0", "-b", "4096", "-O", "metadata_csum_seed,orphan_file", "-E", "lazy_itable_init=1"}
	if v != nil {
		args = append(args, v.mkfs...)
	}
	out, err := exec.Command("mkfs.ext4", append(args, m.Image)...).CombinedOutput()
	require.NoError(t, err, "mkfs.ext4: %s", out)
	if v != nil && v.change != nil {
		v.change(m.Image)
	}

	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	m.dev = namespacetest.OpenLanesOn(t, rt, m.Image, softctl.Options{}, engine.Config{Lanes: 4})
	m.top = &device{Namespace: m.dev}
	m.vol, err = ext4.Open(m.top, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	rc := residency.Config{Runtime: rt, Mapper: m.dev, Size: pool}
	if unreached {
		m.Copier = &Copier{rt: rt}
		t.Cleanup(func() { require.NoError(t, m.Copier.streams.Close()) })
		rc.Mapper, rc.Copier = far{m.dev, v != nil && v.pages}, m.Copier
		if v != nil && v.pages {
			rc.Host = rt
		}
		if v != nil && v.used {
			rc.Runtime = used{rt}
		}
	}
	m.Pool, err = residency.New(rc)
	require.NoError(t, err)
	socket := filepath.Join(tmp, "share")
	opt := fs.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Changed: m.Pool.Changed, Share: socket}
	for _, f := range set {
		f(&opt)
	}
	m.FS, err = fs.Mount(m.Dir, m.vol, opt)
	require.NoError(t, err)
	m.Share, err = share.Serve(share.Config{Socket: socket, Public: true, Mount: m.FS, Pools: []*residency.Pool{m.Pool}})
	require.NoError(t, err)
	return m
}

// Close closes the mount as the daemon does. It fails the test if connections or memory of clients are left.
func (m *Mount) Close() { m.end.Do(m.close) }

func (m *Mount) close() {
	t := m.t
	if m.FS != nil {
		if err := m.FS.Unmount(); err != nil {
			t.Errorf("unmount: %v", err)
			_ = fs.Detach(m.Dir)
		}
	}
	if m.Share != nil {
		require.NoError(t, m.Share.Close())
		require.Zero(t, m.Connections())
	}
	if m.Pool != nil {
		require.NoError(t, m.Pool.Close())
		require.Zero(t, m.Pool.Stats().Used, "device memory that was not freed")
	}
	require.NoError(t, m.vol.Close())
	require.NoError(t, m.dev.Close(), "memory that was not released")
	out, err := exec.Command("e2fsck", "-fn", m.Image).CombinedOutput()
	require.NoError(t, err, "e2fsck -fn:\n%s", bytes.TrimSpace(out))
}

// Connections is how many connections the share has, of all users.
func (m *Mount) Connections() (n int) {
	for _, u := range m.Share.Usage() {
		n += u.Connections
	}
	return n
}

// Path returns the path of a name in the mount.
func (m *Mount) Path(name string) string { return filepath.Join(m.Dir, name) }

// Write makes a file and opens it for reading and writing.
func (m *Mount) Write(name string, content []byte) *os.File {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(m.Path(name), content, 0o644))
	return m.Open(name, os.O_RDWR)
}

// Open opens a file until the test ends.
func (m *Mount) Open(name string, flags int) *os.File {
	m.t.Helper()
	f, err := os.OpenFile(m.Path(name), flags, 0o644)
	require.NoError(m.t, err)
	m.t.Cleanup(func() { f.Close() })
	return f
}
