package diff

import (
	"flag"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/internal/drive"
)

func TestMain(m *testing.M) {
	Child()
	flag.Parse()
	os.Exit(m.Run())
}

// Flags of TestReplay and TestLong.
var (
	flagVolume    = flag.String("volume", "default", "diff: volume to use")
	flagProfile   = flag.String("profile", "names", "diff: data, direct, names or shared")
	flagSeed      = flag.Uint64("seed", 0, "diff: seed of the sequence; 0 skips TestReplay, and is a fresh one for TestLong")
	flagOps       = flag.Int("ops", 500, "diff: length of the sequence")
	flagProcs     = flag.Int("procs", 1, "diff: processes")
	flagProc      = flag.Int("proc", 0, "diff: number of the first process")
	flagRemount   = flag.Int("remount", 0, "diff: remount after so many operations")
	flagKeep      = flag.String("keep", "", "diff: only these operations, such as 1,3-5")
	flagWriteBack = flag.Bool("writeback", false, "diff: mount with the write-back cache")
	flagIOUring   = flag.String("io_uring", "", "diff: on or off: how a mount's requests come; empty: as mounts do by themselves")
	flagNoProbe   = flag.Bool("noprobe", false, "diff: do not look at attributes around each operation")
	flagAlone     = flag.Bool("alone", false, "diff: without the kernel's ext4 beside")
	flagLeft      = flag.String("left", "lanefs", "diff: the side under test: lanefs, direct or kernel")
	flagSabotage  = flag.String("sabotage", "", "diff: make the left side wrong")
	flagShrink    = flag.Duration("shrink", time.Minute, "diff: time to look for a shorter sequence that fails")
	flagFor       = flag.Duration("for", 0, "diff: how long TestLong runs")
)

// volumes are the kinds of volume that runs use, by name.
var volumes = map[string]Volume{
	"default":   {Name: "default", Size: 96 << 20, Mkfs: []string{"-b", "4096", "-N", "20000", "-O", "metadata_csum_seed,orphan_file"}},
	"1k":        {Name: "1k", Size: 96 << 20, Mkfs: []string{"-b", "1024", "-N", "20000"}},
	"2k":        {Name: "2k", Size: 96 << 20, Mkfs: []string{"-b", "2048", "-N", "20000", "-O", "^flex_bg,^64bit"}},
	"nojournal": {Name: "nojournal", Size: 96 << 20, Mkfs: []string{"-b", "4096", "-N", "20000", "-O", "^has_journal"}},
	"ext3":      {Name: "ext3", Size: 96 << 20, Mkfs: []string{"-b", "1024", "-N", "20000", "-O", "^extents,^64bit,^metadata_csum,^flex_bg,^huge_file,^dir_nlink,^extra_isize,uninit_bg", "-I", "128"}, WholeSeconds: true},
	"inline":    {Name: "inline", Size: 96 << 20, Mkfs: []string{"-b", "4096", "-N", "20000", "-O", "inline_data"}, Inline: true},
	"small":     {Name: "small", Size: 2 << 20, Mkfs: []string{"-b", "1024", "-O", "^has_journal"}},
	"tiny":      {Name: "tiny", Size: 8 << 20, Mkfs: []string{"-b", "1024", "-J", "size=1"}},
}

func needVolume(t *testing.T, name string) Volume {
	t.Helper()
	v, ok := volumes[name]
	require.True(t, ok, "no volume %q", name)
	return v
}

// needMounts skips the test if nothing can be mounted here, and says what is missing.
func needMounts(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to mount")
	}
	for _, f := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(f); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
	}
	for _, tool := range []string{"mkfs.ext4", "e2fsck", "dumpe2fs", "cp"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: %s is missing: install it (make deps)", tool)
		}
	}
}

// check runs c. It shrinks a failing sequence for up to -shrink and reports it.
func check(t *testing.T, c Config) {
	t.Helper()
	c.Dir = drive.Memory()
	f, err := Run(c)
	require.NoError(t, err)
	if f != nil {
		t.Logf("looking for a shorter sequence: %s: %v", f.signature(), f.Diffs)
		t.Fatal(Shrink(f, Within(*flagShrink)).Report())
	}
}

// TestReplay runs the sequence that the flags describe. A failure's report prints them.
func TestReplay(t *testing.T) {
	if *flagSeed == 0 {
		t.Skip("no -seed: nothing to replay")
	}
	needMounts(t)
	c := flagConfig(t)
	c.Seed = *flagSeed
	check(t, c)
}

func flagConfig(t *testing.T) Config {
	c := Config{
		Volume: needVolume(t, *flagVolume), Profile: Profile(*flagProfile), Ops: *flagOps, Procs: *flagProcs, Proc: *flagProc, Remount: *flagRemount,
		NoProbe: *flagNoProbe, Left: Side{Kind: *flagLeft, WriteBack: *flagWriteBack, IOUring: *flagIOUring, Sabotage: *flagSabotage}, Right: Side{Kind: "kernel"},
	}
	if c.Profile == ProfileDirect {
		c.Left.Kind = "direct"
	}
	if *flagAlone {
		c.Right.Kind = ""
	}
	if *flagKeep != "" {
		var err error
		c.Keep, err = ParseRanges(*flagKeep)
		require.NoError(t, err)
	}
	return c
}

// TestLong runs fresh sequences as the flags describe for the time of -for, up to the first failure.
func TestLong(t *testing.T) {
	if *flagFor == 0 {
		t.Skip("no -for: the flag says how long this test runs")
	}
	needMounts(t)
	c := flagConfig(t)
	c.Seed = *flagSeed
	if c.Seed == 0 {
		c.Seed = disktest.FreshSeed()
	}
	runs := 0
	for end := time.Now().Add(*flagFor); time.Now().Before(end); c.Seed++ {
		check(t, c)
		runs++
	}
	t.Logf("%d runs of %d operations, the last with seed %d", runs, c.Ops, c.Seed-1)
}
