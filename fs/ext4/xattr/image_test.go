package xattr

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

var images = map[string][]string{
	"default": {"-O", "metadata_csum_seed,orphan_file", "-b", "4096"},
	"1k":      {"-b", "1024"},
	"nocsum":  {"-b", "1024", "-O", "^metadata_csum"},
	"ino128":  {"-b", "2048", "-I", "128"},
	"ino1024": {"-b", "4096", "-I", "1024"},
	"eainode": {"-b", "4096", "-O", "ea_inode"},
}

// attributes are sets of attributes that go to the inode, to the block, or to both.
var attributes = []map[string]string{
	{},
	{"user.a": "1"},
	{"user.": "no rest"},
	{"user.a": "", "user.bb": "xyz", "trusted.t": "tt", "security.s": "\x00\x01\x02"},
	{"user.long": strings.Repeat("v", 300), "user.short": "s"},
	{"user.na\xefve\xff": "\xff\xfe\xfd", "user." + strings.Repeat("n", 255-5): strings.Repeat("w", 201)},
	{"system.posix_acl_access": string(testACL.Xattr()), "user.z": "z"},
}

var testACL = ACL{{TagUserObj, 7, 0}, {TagUser, 5, 1000}, {TagUser, 6, 70000}, {TagGroupObj, 4, 0}, {TagGroup, 1, 9},
	{TagMask, 7, 0}, {TagOther, 0, 0}}

// load reads an inode's attributes from an image.
func load(t *testing.T, m *disktest.Image, ino uint32) (*Format, *Set) {
	t.Helper()
	f := New(m.Superblock)
	n, slot := m.Inode(ino)
	var block []byte
	if n.FileACL != 0 {
		block = m.Block(n.FileACL)
		require.NoError(t, f.VerifyBlock("inode", n.FileACL, block))
	}
	s, err := f.Parse("inode", n.XattrArea(slot), n.FileACL, block)
	require.NoError(t, err)
	for _, a := range s.Body {
		got, err := f.FindBody("inode", n.XattrArea(slot), a.Index, a.Name)
		require.NoError(t, err)
		require.Equal(t, a, got)
	}
	for _, a := range s.Block {
		got, err := f.FindBlock("inode", n.FileACL, block, a.Index, a.Name)
		require.NoError(t, err)
		require.Equal(t, a, got)
		if a.ValueInum == 0 {
			require.Equal(t, a.Hash, entryHash(a.Name, a.Value), "%q", a.Name)
		}
	}
	return f, s
}

// value is what programs see.
func value(t *testing.T, m *disktest.Image, a Attr) string {
	t.Helper()
	switch {
	case a.ValueInum != 0:
		b := m.Content(a.ValueInum)
		require.Len(t, b, a.Size())
		return string(b)
	case a.Index == IndexPosixACLAccess || a.Index == IndexPosixACLDefault:
		acl, err := DecodeACL(a.Value)
		require.NoError(t, err)
		require.Equal(t, a.Value, acl.Encode())
		return string(acl.Xattr())
	}
	return string(a.Value)
}

func values(t *testing.T, m *disktest.Image, s *Set) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, a := range append(append([]Attr(nil), s.Body...), s.Block...) {
		out[a.FullName()] = value(t, m, a)
	}
	require.Len(t, s.Names(), len(out))
	return out
}

func ino(t *testing.T, path string) uint32 {
	t.Helper()
	st, err := os.Lstat(path)
	require.NoError(t, err)
	return uint32(st.Sys().(*syscall.Stat_t).Ino)
}

// TestImages reads attributes that the kernel wrote, changes them, and has the kernel and e2fsck read them.
func TestImages(t *testing.T) {
	for name, args := range images {
		t.Run(name, func(t *testing.T) {
			img := disktest.Make(t, "16M", args...)
			inos := make([]uint32, len(attributes)+1)
			big := map[string]string{"user.big": strings.Repeat("0123456789", 1000), "user.x": "y"}
			sets := attributes
			if name == "eainode" {
				sets = append(sets[:len(sets):len(sets)], big)
			}
			disktest.Mount(t, img, "", func(dir string) {
				for i, set := range sets {
					p := filepath.Join(dir, fmt.Sprint(i))
					require.NoError(t, os.WriteFile(p, nil, 0o640))
					inos[i] = ino(t, p)
					for n, v := range set {
						if n == "user." { // the VFS knows it as no name
							continue
						}
						require.NoError(t, unix.Setxattr(p, n, []byte(v), 0), "%q", n)
					}
				}
			})
			m := disktest.Open(t, img)
			changed := make([]map[string]string, len(sets))
			for i, set := range sets {
				want := map[string]string{}
				for n, v := range set {
					if n != "user." {
						want[n] = v
					}
				}
				f, s := load(t, m, inos[i])
				require.Equal(t, want, values(t, m, s))
				changed[i] = want

				// What the kernel wrote into the block we write the same, but for the order of the values.
				if n, _ := m.Inode(inos[i]); n.FileACL != 0 {
					b := m.Block(n.FileACL)
					c := bytes.Clone(b)
					f.EncodeBlock(s, n.FileACL, c)
					require.Equal(t, b[:16], c[:16])
				}
				// Change them: into the body, and into the block where there is one.
				put := func(n, v string) {
					idx, rest, ok := Split(n)
					require.True(t, ok)
					body, block := len(s.Body), len(s.Block)
					_, err := s.Put(Attr{Index: idx, Name: rest, Value: []byte(v)}, Always)
					if err == nil && block == 0 && len(s.Block) > 0 { // there is no block to put it in
						s.Block = nil
						require.Len(t, s.Body, body)
						return
					}
					require.NoError(t, err)
					want[n] = v
				}
				put("user.new", "new value")
				put("trusted.none", "")
				if _, err := s.Delete(IndexUser, "a"); err == nil {
					delete(want, "user.a")
				}
				n, slot := m.Inode(inos[i])
				f.EncodeBody(s, n.XattrArea(slot))
				m.SetInode(inos[i], &n, slot)
				if n.FileACL != 0 {
					b := m.Block(n.FileACL)
					require.EqualValues(t, 1, Refcount(b))
					f.EncodeBlock(s, n.FileACL, b)
					m.SetBlock(n.FileACL, b)
				}
				_, again := load(t, m, inos[i])
				require.Equal(t, want, values(t, m, again))
			}
			disktest.Fsck(t, img)
			disktest.Mount(t, img, "", func(dir string) {
				for i, want := range changed {
					p := filepath.Join(dir, fmt.Sprint(i))
					got := map[string]string{}
					buf := make([]byte, 1<<16)
					n, err := unix.Listxattr(p, buf)
					require.NoError(t, err)
					for _, name := range strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
						if name != "" {
							v := make([]byte, 1<<16)
							n, err := unix.Getxattr(p, name, v)
							require.NoError(t, err)
							got[name] = string(v[:n])
						}
					}
					require.Equal(t, want, got)
					require.NoError(t, unix.Setxattr(p, "user.kernel", []byte("was here"), 0))
				}
			})
			disktest.Fsck(t, img)
		})
	}
}

// TestSet puts and deletes at random and holds the set against a map, through its encoding.
func TestSet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, size := range [][2]int{{92, 1024}, {0, 1024}, {800, 4096}, {92, 65536}} {
		f := &Format{blockSize: size[1], csum: true, seed: 5, inodes: 100}
		area, block := make([]byte, size[0]), make([]byte, size[1])
		s, err := f.Parse("inode", area, 0, nil)
		require.NoError(t, err)
		want := map[string]string{}
		full := 0
		for range 3000 {
			name := "user." + strings.Repeat("n", r.IntN(12)) + fmt.Sprint(r.IntN(50))
			idx, rest, ok := Split(name)
			require.True(t, ok)
			_, exists := want[name]
			switch r.IntN(4) {
			case 0:
				_, err := s.Delete(idx, rest)
				require.Equal(t, exists, err == nil)
				delete(want, name)
			default:
				v := strings.Repeat("v", r.IntN(60))
				c := Condition(r.IntN(3))
				old, err := s.Put(Attr{Index: idx, Name: rest, Value: []byte(v)}, c)
				switch {
				case exists && c == MustCreate:
					require.ErrorIs(t, err, ErrExist)
				case !exists && c == MustExist:
					require.ErrorIs(t, err, ErrNotExist)
				case err != nil:
					require.ErrorIs(t, err, ErrNoSpace)
					full++
				default:
					require.Equal(t, exists, old != nil)
					if exists {
						require.Equal(t, want[name], string(old.Value))
					}
					want[name] = v
				}
			}
			f.EncodeBody(s, area)
			f.EncodeBlock(s, 7, block)
			require.NoError(t, f.VerifyBlock("inode", 7, block))
			require.Error(t, f.VerifyBlock("inode", 8, block))
			s, err = f.Parse("inode", area, 7, block)
			require.NoError(t, err)
			got := map[string]string{}
			for _, a := range append(append([]Attr(nil), s.Body...), s.Block...) {
				got[a.FullName()] = string(a.Value)
			}
			require.Equal(t, want, got)
		}
		require.Equal(t, size[1] < 65536, full > 0)
	}
}

func TestFindDoesNotAllocate(t *testing.T) {
	f := &Format{blockSize: 1024}
	area := make([]byte, 96)
	s, err := f.Parse("inode", area, 0, nil)
	require.NoError(t, err)
	_, err = s.Put(Attr{Index: IndexUser, Name: "name", Value: []byte("v")}, Always)
	require.NoError(t, err)
	f.EncodeBody(s, area)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := f.FindBody("inode", area, IndexSecurity, "capability"); err != ErrNotExist {
			t.Fatal(err)
		}
		if _, err := f.FindBody("inode", area, IndexUser, "name"); err != nil {
			t.Fatal(err)
		}
	}))
}
