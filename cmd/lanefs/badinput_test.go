package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBadInput wants one clear line, a status other than 0, and nothing changed: no mount, no daemon's files, the image as
// it was.
func TestBadInput(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "-1") // where there is a GPU, it is not seen
	p := newPlace(t)
	good := p.image("good", 32)
	mnt := p.mkdir("mnt")
	plain := p.path("plain")
	require.NoError(t, os.WriteFile(plain, bytes.Repeat([]byte("not an image "), 100_000)[:1<<20], 0o600))
	short := p.path("short")
	require.NoError(t, os.WriteFile(short, make([]byte, 512), 0o600))
	empty := p.path("empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	truncated := p.image("truncated", 32)
	require.NoError(t, os.Truncate(truncated, 20<<20))
	badsum := p.image("badsum", 32)
	poke(t, badsum, 1024+0x78, "renamed by hand") // s_volume_name: covered by the checksum
	unknown := p.image("unknown", 32)
	tool(t, "debugfs", "-w", "-R", "ssv feature_incompat 0x402022c2", unknown)

	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"not an ext4 image", []string{"mount", plain, mnt}, "not an ext4 volume: its format is none that LaneFS knows"},
		{"smaller than a superblock", []string{"mount", "-o", "lba=512", short, mnt}, "is 512 bytes: too small"},
		{"empty image", []string{"mount", empty, mnt}, "is empty"},
		{"truncated image", []string{"mount", truncated, mnt}, "truncated"},
		{"bad superblock checksum", []string{"mount", badsum, mnt}, "checksum"},
		{"unknown incompat feature", []string{"mount", unknown, mnt}, "0x40000000"},
		{"no such image", []string{"mount", p.path("absent"), mnt}, `absent": no such file or directory`},
		{"a directory as device", []string{"mount", p.dir, mnt}, "is a directory"},
		{"a terminal as device", []string{"mount", "/dev/null", mnt}, "neither an image file nor a block device"},
		{"a PCI address", []string{"mount", "0000:ff:1f.7", mnt}, "no PCI function 0000:ff:1f.7"},
		{"a short PCI address", []string{"mount", "ff:1f.7", mnt}, "no PCI function 0000:ff:1f.7"},
		{"no mount point", []string{"mount", good, p.path("none")}, `none": no such file or directory`},
		{"a mount point that is a file", []string{"mount", good, plain}, "is not a directory"},
		{"a busy mount point", []string{"mount", good, "/proc"}, "is busy"},
		{"an unknown option", []string{"mount", "-o", "ro,frobnicate", good, mnt}, `unknown option "frobnicate"`},
		{"a bad value", []string{"mount", "-o", "lanes=0", good, mnt}, `option "lanes=0"`},
		{"recovery left out of a writable mount", []string{"mount", "-o", "norecovery", good, mnt}, `needs "ro"`},
		{"blocks larger than the volume's", []string{"mount", "-o", "lba=4096", p.image("1k", 32, "-b", "1024"), mnt}, "1024 bytes"},
		{"a namespace that is not there", []string{"mount", "-o", "nsid=7", good, mnt}, "no active namespace 7"},
		{"hip", []string{"mount", "--gpu", "hip", good, mnt}, "hip runtime: "},
		{"cuda as an option", []string{"mount", "-o", "gpu=cuda", good, mnt}, "cuda runtime: "},
		{"an unknown gpu", []string{"mount", "--gpu", "vulkan", good, mnt}, `--gpu "vulkan"`},
		{"too few arguments", []string{"mount", good}, "want DEVICE DIR"},
		{"an unknown flag", []string{"mount", "--frob", good, mnt}, "unknown flag: --frob"},
		{"an unknown command", []string{"frob"}, `unknown command "frob"`},
		{"a mistyped command", []string{"mout", good, mnt}, `did you mean "mount"?`},
		{"a mistyped command of vram", []string{"vram", "unpim", good}, `did you mean "unpin"?`},
		{"a pin of what is on another file system", []string{"vram", "pin", plain}, fmt.Sprintf("lanefs: %q: not on a LaneFS mount", plain)},
		{"too many lanes", []string{"mount", "-o", "lanes=100000", good, mnt}, `option "lanes=100000"`},
		{"no cache", []string{"mount", "-o", "cache=0", good, mnt}, `option "cache=0"`},
		{"the way to a PCI function's IOMMU", []string{"mount", "-o", "vfio=type1", good, mnt}, "is for NVMe functions"},
		{"remount of what is not mounted", []string{"mount", "-o", "remount,ro", good, mnt}, "is not a mount point"},
		{"umount of what is not mounted", []string{"umount", mnt}, "is not a mount point"},
		{"umount of another's", []string{"umount", "/proc"}, "not a LaneFS mount"},
		{"umount of what is not there", []string{"umount", p.path("none")}, `none": no such file or directory`},
		{"another data mode", []string{"mount", "-o", "data=journal", good, mnt}, "want ordered"},
		{"stat of another's", []string{"stat", "/proc"}, "not a LaneFS mount"},
		{"identify without a device", []string{"identify"}, "want DEVICE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := *p
			q.t = t
			before := map[string][32]byte{}
			for _, a := range c.args[1:] {
				if st, err := os.Stat(a); err == nil && st.Mode().IsRegular() {
					before[a] = sum(t, a)
				}
			}
			said := q.fails(c.args...)
			require.Contains(t, said, c.want)
			if do, ok := mountRemedies[c.name]; ok {
				require.Contains(t, said, do, "it says what to do")
			} else {
				require.NotEqual(t, "mount", c.args[0], "a message of mount without a remedy: %s", said)
			}
			for a, s := range before {
				require.Equal(t, s, sum(t, a), "%s changed", a)
			}
			require.False(t, q.mounted(mnt))
			require.Empty(t, p.leftovers(mnt))
		})
	}
}

// TestInUse mounts one image in two ways, and one directory twice.
func TestInUse(t *testing.T) {
	p := newPlace(t)
	img, other := p.image("image", 32), p.image("other", 32)
	a, b := p.mkdir("a"), p.mkdir("b")
	p.ok("mount", img, a)
	// Twice by one name is one file system: see TestMountTwice.
	require.Contains(t, p.fails("mount", "-o", "ro", img, b), "already")
	require.Contains(t, p.fails("mount", other, a), "busy")
	require.NoError(t, os.WriteFile(a+"/still", []byte("here"), 0o600))
	p.ok("umount", a)
	p.ok("mount", img, b)
	p.ok("umount", b)
	fsck(t, img)
}

func poke(t *testing.T, path string, off int64, s string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(s), off)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// mountRemedies is what each message of mount says to do, by the name of its case above.
var mountRemedies = map[string]string{
	"not an ext4 image":                     "if it was an ext4 volume, e2fsck -b",
	"smaller than a superblock":             "name an image, device or partition that mkfs.ext4 has formatted",
	"empty image":                           "make it the size the disk is to have",
	"truncated image":                       "copy it again as a whole",
	"bad superblock checksum":               "run e2fsck",
	"unknown incompat feature":              "mount it with the kernel's ext4",
	"no such image":                         wantDevice,
	"a directory as device":                 wantDevice,
	"a terminal as device":                  wantDevice,
	"a PCI address":                         "lspci -D lists those there are",
	"a short PCI address":                   "lspci -D lists those there are",
	"no mount point":                        "create it first",
	"a mount point that is a file":          "name one",
	"a busy mount point":                    "unmount that, or name another directory",
	"an unknown option":                     "see lanefs mount --help",
	"a bad value":                           "want",
	"recovery left out of a writable mount": `needs "ro"`,
	"blocks larger than the volume's":       "mount it with lba=1024 at most",
	"a namespace that is not there":         "name one of them with nsid=",
	"hip":                                   "gpu=auto",
	"cuda as an option":                     "gpu=auto",
	"an unknown gpu":                        "want auto, host, hip or cuda",
	"too few arguments":                     "want DEVICE DIR",
	"an unknown flag":                       "lanefs help mount lists the flags",
	"too many lanes":                        "want",
	"no cache":                              "want",
	"the way to a PCI function's IOMMU":     "leave it out",
	"remount of what is not mounted":        "mount it first",
	"another data mode":                     "want ordered",
}
