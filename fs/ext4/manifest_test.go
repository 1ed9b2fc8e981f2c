package ext4_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// A manifest says everything about a tree that two drivers must agree on: a line for each path.
type manifest map[string]string

type facts struct {
	mode, uid, gid, links uint32
	size                  int64
	major, minor          uint32
	mtime                 time.Time
	content               string // hash, or a link's target
}

func (f facts) String() string {
	if f.mode&unix.S_IFMT == unix.S_IFDIR {
		f.size = 0 // sizes of directories depend on the driver
	}
	return fmt.Sprintf("%o %d:%d links %d size %d dev %d,%d mtime %d.%09d %s", f.mode, f.uid, f.gid, f.links, f.size,
		f.major, f.minor, f.mtime.Unix(), f.mtime.Nanosecond(), f.content)
}

func contentOf(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// requireSame fails the test if two trees differ, and says where.
func requireSame(t testing.TB, want, got manifest) {
	t.Helper()
	var diff []string
	for p, w := range want {
		if g := got[p]; g != w {
			diff = append(diff, fmt.Sprintf("%q: want %q, got %q", p, w, g))
		}
	}
	for p, g := range got {
		if _, ok := want[p]; !ok {
			diff = append(diff, fmt.Sprintf("%q: want nothing, got %q", p, g))
		}
	}
	if len(diff) > 0 {
		slices.Sort(diff)
		t.Fatalf("%d paths differ:\n%s", len(diff), strings.Join(diff[:min(len(diff), 10)], "\n"))
	}
}

// pieces is memory that files are read into, one piece after the other: as much new memory as a file is long costs more than to read it.
type pieces []byte

func (p pieces) of(path string, to io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{f}, p)
	return err
}

// kernelManifest walks a mounted directory.
func kernelManifest(t testing.TB, root string) manifest {
	m, pieces := manifest{}, make(pieces, 1<<20)
	require.NoError(t, filepath.Walk(root, func(p string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		f := facts{mode: st.Mode, uid: st.Uid, gid: st.Gid, links: uint32(st.Nlink), size: st.Size,
			mtime: time.Unix(st.Mtim.Unix())}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			h := sha256.New()
			if err := pieces.of(p, h); err != nil {
				return err
			}
			f.content = fmt.Sprintf("%x", h.Sum(nil))
		case unix.S_IFLNK:
			if f.content, err = os.Readlink(p); err != nil {
				return err
			}
		case unix.S_IFBLK, unix.S_IFCHR:
			f.major, f.minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
		}
		rel, _ := filepath.Rel(root, p)
		if rel != "lost+found" {
			m[rel] = f.String()
		}
		return nil
	}))
	return m
}

// ourManifest walks a volume through this package.
func ourManifest(t testing.TB, v *ext4.FS) manifest {
	m := manifest{}
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	walk(t, m, ".", root)
	return m
}

func walk(t testing.TB, m manifest, path string, i *ext4.Inode) {
	a := i.Attr()
	f := facts{mode: a.Mode, uid: a.UID, gid: a.GID, links: a.Links, size: a.Size, major: a.Major, minor: a.Minor,
		mtime: a.Mtime}
	var names []string
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		h := sha256.New()
		for off := int64(0); off < a.Size; off += 1 << 20 {
			d, err := i.Read(off, 1<<20)
			require.NoError(t, err, path)
			h.Write(d.Bytes())
			d.Release()
		}
		f.content = fmt.Sprintf("%x", h.Sum(nil))
	case unix.S_IFLNK:
		var err error
		f.content, err = i.Readlink()
		require.NoError(t, err, path)
	case unix.S_IFDIR:
		cookie := uint64(0)
		for {
			n := 0
			require.NoError(t, i.ReadDir(cookie, func(e ext4.DirEntry) bool {
				cookie = e.Cookie
				if e.Name != "." && e.Name != ".." {
					names = append(names, e.Name)
				}
				n++
				return n < 100
			}), path)
			if n == 0 {
				break
			}
		}
	}
	if path != "lost+found" {
		m[path] = f.String()
	}
	for _, n := range names {
		c, err := i.Lookup(n)
		require.NoError(t, err, filepath.Join(path, n))
		walk(t, m, filepath.Join(path, n), c)
		c.Put()
	}
}

// open mounts the volume in an image file, and closes it at the end of the test unless that was done.
func open(t testing.TB, img string, opt ext4.Options) (v *ext4.FS, done func()) {
	t.Helper()
	v, _, done = openOn(t, img, opt)
	return v, done
}

// openOn is open, with the device.
func openOn(t testing.TB, img string, opt ext4.Options) (v *ext4.FS, dev *blockdev.TestDevice, done func()) {
	t.Helper()
	dev, err := blockdev.OpenFile(img, 512)
	require.NoError(t, err)
	if opt.Log == nil {
		opt.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	v, err = ext4.Open(dev, opt)
	if err != nil {
		dev.Close()
	}
	require.NoError(t, err)
	closed := false
	done = func() {
		if !closed {
			closed = true
			require.NoError(t, v.Close())
			require.NoError(t, dev.Close())
		}
	}
	t.Cleanup(done)
	return v, dev, done
}
