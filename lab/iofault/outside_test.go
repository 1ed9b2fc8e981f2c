package iofault

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/diff"
	"github.com/lanefs/lanefs/lab/faultfs"
	"github.com/lanefs/lanefs/lab/internal/drive"
	"github.com/lanefs/lanefs/lab/internal/files"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// outsideOps are operations as a program on the mount does them, and as the twin does.
var outsideOps = []struct {
	name string
	twin diff.Op
	do   func(dir string, f *os.File) error
}{
	{"truncate", diff.Op{Kind: diff.OpTruncate, Path: "big", Len: 1000},
		func(dir string, _ *os.File) error { return os.Truncate(dir+"/big", 1000) }},
	{"rm", diff.Op{Kind: diff.OpUnlink, Path: "big"},
		func(dir string, _ *os.File) error { return os.Remove(dir + "/big") }},
	{"punch", diff.Op{Kind: diff.OpFallocate, FD: 0, Off: 20_000, Len: 180_000, Flags: unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE},
		func(_ string, f *os.File) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 20_000, 180_000)
		}},
	{"create", diff.Op{Kind: diff.OpMknod, Path: "d/" + long, Mode: unix.S_IFREG | 0o644},
		func(dir string, _ *os.File) error { return unix.Mknod(dir+"/d/"+long, unix.S_IFREG|0o644, 0) }},
	{"rename", diff.Op{Kind: diff.OpRename, Path: "d/n0", Path2: long},
		func(dir string, _ *os.File) error { return os.Rename(dir+"/d/n0", dir+"/"+long) }},
	{"rename over", diff.Op{Kind: diff.OpRename, Path: "d/n0", Path2: "big"},
		func(dir string, _ *os.File) error { return os.Rename(dir+"/d/n0", dir+"/big") }},
	{"write", diff.Op{Kind: diff.OpPwrite, FD: 0, Off: 290_000, Len: 40_000, Seed: 9},
		func(_ string, f *os.File) error {
			b := make([]byte, 40_000)
			diff.Fill(b, 9, 290_000)
			_, err := f.WriteAt(b, 290_000)
			return err
		}},
}

var long = strings.Repeat("long", 50)

// TestOutside mounts an image with the binary, on a file system that makes a sector bad during an operation, for a few tries or
// for good. Then the daemon is unmounted or killed, and the kernel and e2fsck recover the image. LANEFS_OUTSIDE is the number of
// faults.
func TestOutside(t *testing.T) { testOutside(t, false) }

// TestOutsideBlock is the same by a block device, a loop device over the image: with O_DIRECT and io_uring.
func TestOutsideBlock(t *testing.T) { testOutside(t, true) }

func testOutside(t *testing.T, block bool) {
	disktest.Tool(t, "go", "mkfs.ext4", "dumpe2fs", "e2fsck", "fusermount3")
	if why := image.KernelMissing(); why != "" {
		t.Skipf("SKIPPED: the kernel's recovery: %s", why)
	}
	most := 12
	if s := os.Getenv("LANEFS_OUTSIDE"); s != "" {
		var err error
		most, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	seed := disktest.FreshSeed()
	t.Logf("seed %d", seed)
	b := newOutside(t)
	b.block = block
	faults := 0
	for round := 0; faults < most; round++ {
		op := &outsideOps[round%len(outsideOps)]
		s := &script{layout: b.layout, base: b.base, slots: b.slots, steps: []diff.Op{op.twin, {Kind: diff.OpSync}}}
		_, _, err := s.twin()
		require.NoError(t, err)
		require.NoError(t, s.results[0].err)
		rng := chance(seed, round)
		reads := slices.DeleteFunc(slices.Clone(s.commands), func(e blockdev.Event) bool { return e.Op != blockdev.OpRead })
		e := s.commands[rng.IntN(len(s.commands))]
		if rng.IntN(2) == 0 && len(reads) > 0 {
			e = reads[rng.IntN(len(reads))]
		}
		good, killed := rng.IntN(2) == 0, rng.IntN(2) == 0
		name := fmt.Sprintf("%d %s, %v at %d", round, op.name, e.Op, e.Off)
		for is, word := range map[bool]string{good: ", for good", killed: ", killed"} {
			if is {
				name += word
			}
		}
		t.Run(name, func(t *testing.T) {
			if b.try(t, s, op.do, e, good, killed) {
				faults++
			}
		})
		if t.Failed() {
			t.Fatalf("again: LANEFS_SEED=%d LANEFS_OUTSIDE=%d go test -count=1 -run '%s$' ./lab/iofault", seed, most, t.Name())
		}
		require.Less(t, round, 20*most, "faults hit nothing")
	}
	t.Logf("%d faults", faults)
}

// outside is an image on a medium that fails, and the binary that mounts it.
type outside struct {
	layout *Layout
	base   *medium
	slots  []slot
	bin    string
	dir    string
	under  *faultfs.FS
	block  bool // it is mounted by a loop device
}

func newOutside(t *testing.T) *outside {
	dir, err := os.MkdirTemp(drive.Memory(), "lanefs-outside-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &outside{dir: dir, bin: filepath.Join(dir, "lanefs")}
	for _, d := range []string{"mnt", "back", "medium", "kernel"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	require.NoError(t, drive.Build(b.bin))
	b.layout, err = layoutNamed("pieces")
	require.NoError(t, err)
	b.base, err = b.layout.make(dir)
	require.NoError(t, err)
	dev := b.base.device()
	v, err := ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	p := newPlayer(v)
	for _, o := range []diff.Op{
		{Kind: diff.OpOpen, Path: "big", Flags: unix.O_RDWR | unix.O_CREAT, Mode: 0o644},
		{Kind: diff.OpPwrite, Len: 300_000, Seed: 7},
		{Kind: diff.OpMknod, Path: "d/n0", Mode: unix.S_IFREG | 0o600},
	} {
		if r := p.do(&o, false); !errors.Is(r.err, ext4.ErrExist) {
			require.NoError(t, r.err)
		}
	}
	b.slots = p.handles()
	p.close()
	require.NoError(t, v.Close())
	b.base, err = readMedium(dev.File(), b.layout.LBA)
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	b.under, err = faultfs.Mount(filepath.Join(dir, "medium"), filepath.Join(dir, "back"))
	if err != nil {
		t.Skipf("SKIPPED: a mount of FUSE: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, b.under.Close()) })
	return b
}

func (b *outside) mnt() string { return filepath.Join(b.dir, "mnt") }

// try does one fault. It reports whether the fault hit a command.
func (b *outside) try(t *testing.T, s *script, do func(string, *os.File) error, e blockdev.Event, good, killed bool) bool {
	image := filepath.Join(b.dir, "back", "image")
	dev := s.base.device()
	content, err := os.ReadFile(dev.Path())
	require.NoError(t, errors.Join(err, dev.Close()))
	require.NoError(t, os.WriteFile(image, content, 0o600))
	d := b.serve(t)
	defer d.end()
	f, err := os.OpenFile(b.mnt()+"/big", os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()

	before := b.under.Fired()
	b.under.Add(ruleOf(e, good))
	failed := do(b.mnt(), f)
	x := &try{script: s, mode: &Mode{stay: once}, reached: 1, mayMark: true, floor: map[files.ID]int{}}
	if good {
		x.mode = &Mode{stay: sector}
	}
	synced := f.Sync() // syncfs(2) does not reach a FUSE file system
	for _, dir := range []string{b.mnt(), b.mnt() + "/d"} {
		synced = errors.Join(synced, syncDir(dir))
	}
	if failed == nil && synced == nil {
		x.sure = 1
	}
	f.Close()
	readOnly := strings.Contains(d.said(), "the volume is read-only now")
	if killed {
		d.end()
	} else if out, err := d.lanefs("umount", b.mnt()); err == nil && failed == nil && !readOnly {
		x.sure = 1
	} else if err != nil {
		t.Logf("umount: %s", out)
	}
	x.reached = len(x.trees) - 1
	hit := b.under.Fired() > before
	b.settle(t, d)
	x.noted = readOnly && !good
	t.Logf("met: %v, the operation: %v, sync: %v, read-only: %v", hit, failed, synced, readOnly)

	img, err := os.Open(image)
	require.NoError(t, err)
	defer img.Close()
	m, err := readMedium(img, b.layout.LBA)
	require.NoError(t, err)
	x.dev = m.device()
	defer x.dev.Close()
	require.NoError(t, x.judge(depth{lanefs: true, kernel: true}, filepath.Join(b.dir, "kernel")), "log:\n%s", d.said())
	return hit
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// ruleOf makes the first sector of a command of the twin bad.
func ruleOf(e blockdev.Event, good bool) faultfs.Rule {
	const tries = 4 // of a command, by package nvmeq
	r := faultfs.Rule{Off: int64(e.Off), Len: 512, Times: tries}
	switch e.Op {
	case blockdev.OpFlush:
		r = faultfs.Rule{Op: faultfs.OpFsync, Times: 1, Drop: true}
	case blockdev.OpRead:
		r.Op = faultfs.OpRead
	default:
		r.Op = faultfs.OpWrite
	}
	if good {
		r.Times = 0
		if r.Op != faultfs.OpFsync {
			r.Op = faultfs.OpAny
		}
	}
	return r
}
