package ext4_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/loopmount"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/sparse"
)

// fcWork is what is done to a volume with fast_commit: before is made durable by whole commits, after by fast ones.
type fcWork struct {
	name          string
	before, after func(t *testing.T, p func(string) string)
}

func must(t *testing.T, err error) {
	t.Helper()
	require.NoError(t, err)
}

// save writes a file and makes it durable.
func save(t *testing.T, path string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	must(t, err)
	_, err = f.Write(b)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
}

var fcWorks = []fcWork{
	{"create", nil, func(t *testing.T, p func(string) string) {
		save(t, p("one"), []byte("one"))
		save(t, p("two"), bytes.Repeat([]byte("2"), 70_000))
	}},
	{"overwrite and append", func(t *testing.T, p func(string) string) {
		save(t, p("f"), bytes.Repeat([]byte("f"), 9000))
	}, func(t *testing.T, p func(string) string) {
		f, err := os.OpenFile(p("f"), os.O_RDWR, 0)
		must(t, err)
		for k := range 30 {
			_, err = f.WriteAt(bytes.Repeat([]byte{byte(k)}, 700), int64(k)*7001)
			must(t, err)
			must(t, f.Sync())
		}
		must(t, f.Close())
	}},
	{"truncate and punch", func(t *testing.T, p func(string) string) {
		save(t, p("f"), bytes.Repeat([]byte("f"), 900_000))
		save(t, p("g"), bytes.Repeat([]byte("g"), 900_000))
	}, func(t *testing.T, p func(string) string) {
		f, err := os.OpenFile(p("f"), os.O_RDWR, 0)
		must(t, err)
		must(t, f.Truncate(100_001))
		must(t, f.Sync())
		must(t, f.Truncate(500_000))
		must(t, f.Sync())
		must(t, f.Close())
		f, err = os.OpenFile(p("g"), os.O_RDWR, 0)
		must(t, err)
		must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 100_000, 400_000))
		must(t, f.Sync())
		must(t, f.Close())
	}},
	{"preallocate and fill", nil, func(t *testing.T, p func(string) string) {
		f, err := os.Create(p("f"))
		must(t, err)
		must(t, unix.Fallocate(int(f.Fd()), 0, 0, 1<<20))
		must(t, f.Sync())
		_, err = f.WriteAt(bytes.Repeat([]byte("in"), 20_000), 300_000)
		must(t, err)
		must(t, f.Sync())
		must(t, f.Close())
	}},
	{"link and unlink", func(t *testing.T, p func(string) string) {
		for _, n := range []string{"a", "b", "c"} {
			save(t, p(n), bytes.Repeat([]byte(n), 30_000))
		}
		save(t, p("witness"), nil)
	}, func(t *testing.T, p func(string) string) {
		must(t, os.Link(p("a"), p("a2")))
		save(t, p("a"), []byte("A"))
		must(t, os.Remove(p("b")))
		save(t, p("witness"), []byte("1"))
		must(t, os.Remove(p("a")))
		save(t, p("a2"), []byte("AA"))
		save(t, p("b"), []byte("another b"))
	}},
	{"rename", func(t *testing.T, p func(string) string) {
		must(t, os.Mkdir(p("d"), 0o755))
		for _, n := range []string{"a", "b", "d/c", "over"} {
			save(t, p(n), bytes.Repeat([]byte(n), 3_000))
		}
	}, func(t *testing.T, p func(string) string) {
		must(t, os.Rename(p("a"), p("d/a")))
		save(t, p("d/a"), []byte("moved"))
		must(t, os.Rename(p("b"), p("over")))
		save(t, p("over"), []byte("replaced"))
		must(t, os.Rename(p("d/c"), p("c")))
		save(t, p("c"), []byte("up"))
	}},
	{"many in one directory", nil, func(t *testing.T, p func(string) string) {
		for k := range 200 {
			must(t, os.WriteFile(p(fmt.Sprintf("a file with quite a long name %050d", k)), nil, 0o600))
		}
		save(t, p("last"), []byte("last"))
		for k := 0; k < 200; k += 7 {
			must(t, os.Remove(p(fmt.Sprintf("a file with quite a long name %050d", k))))
		}
		save(t, p("last"), []byte("very last"))
	}},
	{"many removed", func(t *testing.T, p func(string) string) {
		must(t, os.Mkdir(p("d"), 0o755))
		for k := range 1500 {
			must(t, os.WriteFile(p(fmt.Sprintf("d/%d", k)), nil, 0o600))
		}
	}, func(t *testing.T, p func(string) string) {
		for k := range 1400 {
			must(t, os.Remove(p(fmt.Sprintf("d/%d", k))))
		}
		save(t, p("last"), []byte("last"))
	}},
	{"directories", nil, func(t *testing.T, p func(string) string) {
		must(t, os.MkdirAll(p("x/y/z"), 0o755))
		save(t, p("x/y/z/f"), []byte("deep"))
		must(t, os.Mkdir(p("x/w"), 0o700))
		save(t, p("x/w/g"), []byte("g"))
		must(t, os.Remove(p("x/w/g")))
		must(t, os.Remove(p("x/w")))
		save(t, p("x/y/h"), []byte("h"))
	}},
	{"nodes and links", nil, func(t *testing.T, p func(string) string) {
		must(t, os.Symlink("short", p("fast")))
		must(t, unix.Mknod(p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		must(t, unix.Mkfifo(p("fifo"), 0o644))
		save(t, p("f"), []byte("f"))
	}},
	{"open without a name", func(t *testing.T, p func(string) string) {
		save(t, p("gone"), bytes.Repeat([]byte("g"), 50_000))
	}, func(t *testing.T, p func(string) string) {
		f, err := os.OpenFile(p("gone"), os.O_RDWR, 0)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		must(t, os.Remove(p("gone")))
		_, err = f.WriteAt([]byte("still"), 100)
		must(t, err)
		must(t, f.Sync())
		save(t, p("other"), []byte("o"))
		must(t, f.Close())
		save(t, p("other"), []byte("oo"))
	}},
	{"fragments", func(t *testing.T, p func(string) string) {
		save(t, p("f"), nil)
	}, func(t *testing.T, p func(string) string) {
		f, err := os.OpenFile(p("f"), os.O_RDWR, 0)
		must(t, err)
		rng := rand.New(rand.NewPCG(1, 1))
		for range 120 {
			_, err = f.WriteAt([]byte("piece"), int64(rng.IntN(300))*8192)
			must(t, err)
		}
		must(t, f.Sync())
		must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 500_000))
		must(t, f.Sync())
		must(t, f.Close())
	}},
}

// TestFastCommits recovers volumes that were cut off after fast commits of the kernel. What comes out is what was there
// before the cut, and e2fsck has nothing to say. It is also what the kernel's own recovery makes of the volume, where
// that succeeds: Linux 6.18 forgets what a directory made by a fast commit does to link counts, and refuses some areas
// of several blocks altogether ("corrupted journal superblock").
func TestFastCommits(t *testing.T) {
	for k, l := range []struct {
		name string
		args []string
	}{
		{"4k", []string{"-O", "fast_commit,metadata_csum_seed,orphan_file", "-b", "4096", "-J", "size=8"}},
		{"1k", []string{"-O", "fast_commit", "-b", "1024"}},
		{"inline data", []string{"-O", "fast_commit,inline_data", "-b", "2048", "-I", "256", "-J", "size=4"}},
	} {
		for n, w := range fcWorks {
			if !disktest.Turn(k+n, 3) {
				continue
			}
			t.Run(l.name+"/"+w.name, func(t *testing.T) {
				dirty, want := cutOff(t, w, l.args)
				checkRecovery(t, dirty, want)
			})
		}
	}
}

// TestReplayCut cuts the power while the kernel's log and fast commits are replayed, at every write, and recovers from that.
func TestReplayCut(t *testing.T) {
	for _, tc := range []struct{ name, features, block, journal string }{
		{"rename", "fast_commit", "4096", "size=8"},
		{"many in one directory", "fast_commit", "4096", "size=8"},
		{"many removed", "fast_commit", "1024", "size=1,fast_commit_size=4096"}, // an area four times as large as the log
		{"rename", "orphan_file", "4096", "size=8"},
		{"many removed", "^metadata_csum", "1024", "size=4"},
	} {
		t.Run(tc.name+", "+tc.features, func(t *testing.T) {
			var w fcWork
			for _, x := range fcWorks {
				if x.name == tc.name {
					w = x
				}
			}
			dirty, want := cutOff(t, w, []string{"-O", tc.features, "-b", tc.block, "-J", tc.journal})
			again := filepath.Join(t.TempDir(), "again.img")
			rng := rand.New(rand.NewPCG(3, 9))
			for cut := 0; ; cut++ {
				copySparse(t, dirty, again)
				dev, err := blockdev.OpenFile(again, 512)
				require.NoError(t, err)
				dev.CacheWrites()
				heal := dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Skip: cut})
				v, err := ext4.Open(dev, ext4.Options{})
				if err == nil { // every write of the replay was cut once
					heal()
					require.NoError(t, v.Close())
					require.NoError(t, dev.Close())
					require.Greater(t, cut, 3)
					return
				}
				require.NoError(t, dev.Cut(rng))
				require.NoError(t, dev.Close())
				v, done := open(t, again, ext4.Options{})
				requireSame(t, withoutTimes(want), withoutTimes(ourManifest(t, v)))
				done()
				disktest.Fsck(t, again)
			}
		})
	}
}

// cutOff copies a volume from under the kernel after w, with what is there then.
func cutOff(t *testing.T, w fcWork, args []string) (dirty string, want manifest) {
	img := disktest.Make(t, "64M", args...)
	dirty = filepath.Join(t.TempDir(), "dirty.img")
	disktest.Mount(t, img, "commit=1000", func(dir string) {
		p := func(n string) string { return filepath.Join(dir, n) }
		if w.before != nil {
			w.before(t, p)
		}
		save(t, p("start"), nil)
		unix.Sync()
		w.after(t, p)
		disktest.CopyLive(t, img, dirty)
		want = kernelManifest(t, dir)
	})
	if strings.Contains(args[1], "fast_commit") && !strings.Contains(disktest.Debugfs(t, dirty, "logdump"), "tag TAIL") {
		t.Skip("SKIPPED: the kernel made no fast commits of this")
	}
	return dirty, want
}

func checkRecovery(t *testing.T, dirty string, want manifest) {
	theirs := filepath.Join(t.TempDir(), "theirs.img")
	copySparse(t, dirty, theirs)

	ro, done := open(t, dirty, ext4.Options{ReadOnly: true, Log: disktest.Logger(func(line string) {
		require.NotContains(t, line, "replayed")
	})})
	_ = ourManifest(t, ro)
	done()

	var logged []string
	v, done := open(t, dirty, ext4.Options{Log: disktest.Logger(func(line string) { logged = append(logged, line) })})
	require.Contains(t, strings.Join(logged, "\n"), "fast commits were replayed")
	got := ourManifest(t, v)
	done()
	disktest.Fsck(t, dirty)
	requireSame(t, withoutTimes(want), withoutTimes(got))
	disktest.Mount(t, dirty, "ro", func(dir string) { requireSame(t, got, kernelManifest(t, dir)) })
	mnt := t.TempDir()
	if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop", theirs, mnt).CombinedOutput(); err != nil {
		t.Logf("the kernel does not recover this volume itself: %s", out)
	} else {
		require.NoError(t, loopmount.Unmount(mnt))
		disktest.Mount(t, theirs, "ro", func(dir string) {
			requireSame(t, withoutLinks(kernelManifest(t, dir)), withoutLinks(got))
		})
	}
	// Once is enough.
	v, done = open(t, dirty, ext4.Options{Log: disktest.Logger(func(line string) {
		require.NotContains(t, line, "fast commits")
	})})
	requireSame(t, got, ourManifest(t, v))
	done()
}

// withoutTimes leaves out the times of directories, which fast commits do not have.
func withoutTimes(m manifest) manifest { return cutDirs(m, " mtime") }

// withoutLinks leaves out their link counts as well.
func withoutLinks(m manifest) manifest { return cutDirs(m, " links") }

func cutDirs(m manifest, from string) manifest {
	out := manifest{}
	for p, s := range m {
		if strings.HasPrefix(s, "4") {
			s, _, _ = strings.Cut(s, from)
		}
		out[p] = s
	}
	return out
}

func copySparse(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, sparse.Copy(from, to))
}
