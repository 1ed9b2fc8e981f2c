package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestStrictAtime: every read changes the access time, of files, directories and symbolic links, also where the kernel has
// the bytes; without the option it does not.
func TestStrictAtime(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: a file system from which every user can run programs")
	}
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	file, link, dir, program := filepath.Join(mnt, "file"), filepath.Join(mnt, "link"), filepath.Join(mnt, "dir"), filepath.Join(mnt, "true")
	atime := func(path string) time.Time {
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(path, &st))
		return time.Unix(st.Atim.Unix())
	}
	read := map[string]func(){
		file: func() {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, "content", string(b))
		},
		link: func() { _, err := os.Readlink(link); require.NoError(t, err) },
		dir:  func() { _, err := os.ReadDir(dir); require.NoError(t, err) },
		program: func() {
			out, err := exec.Command(program).CombinedOutput()
			require.NoError(t, err, "%s", out)
		},
	}
	for _, strict := range []bool{true, false} {
		option := map[bool]string{true: "strictatime", false: "relatime"}[strict]
		p.ok("mount", "-o", option, img, mnt)
		if strict {
			require.NoError(t, os.WriteFile(file, []byte("content"), 0o644))
			require.NoError(t, os.Symlink("file", link))
			require.NoError(t, os.Mkdir(dir, 0o755))
			b, err := os.ReadFile("/bin/true")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(program, b, 0o755))
		}
		for path, f := range read {
			f()
			for range 2 {
				before := atime(path)
				time.Sleep(20 * time.Millisecond)
				f()
				if strict {
					require.True(t, atime(path).After(before), "%s with %s", path, option)
				} else {
					require.Equal(t, before, atime(path), "%s with %s", path, option)
				}
			}
		}
		// What is read past the cache is what was written, and mapped.
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		require.NoError(t, err)
		m, err := unix.Mmap(int(f.Fd()), 0, 7, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil { // Linux before 6.6 maps no file that is read past the cache
			m[0] = 'C'
			b := make([]byte, 7)
			_, err = f.ReadAt(b, 0)
			require.NoError(t, err)
			require.Equal(t, "Content", string(b))
			_, err = f.WriteAt([]byte("c"), 0)
			require.NoError(t, err)
			require.Equal(t, byte('c'), m[0])
			require.NoError(t, unix.Munmap(m))
		}
		require.NoError(t, f.Close())
		p.ok("umount", mnt)
		fsck(t, img)
	}
	require.Contains(t, p.fails("mount", "-o", "strictatime,writeback_cache", img, mnt), "exclude one another")
}
