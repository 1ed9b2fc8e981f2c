package diff

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/internal/drive"
)

var (
	through   = Side{Kind: "lanefs"} // as lanefs mounts
	writeBack = Side{Kind: "lanefs", WriteBack: true}
	noFuse    = Side{Kind: "direct"}
	kernel    = Side{Kind: "kernel"}
)

// cases is the matrix of make test: every kind of volume, every profile; as lanefs mounts unless told otherwise, then with the
// write-back cache.
var cases = []struct {
	name string
	Config
}{
	{"names", Config{Profile: ProfileNames, Left: through, Ops: 800, Remount: 300}},
	{"names, 1k", Config{Profile: ProfileNames, Left: through, Ops: 500, Volume: volumes["1k"]}},
	{"names, no journal", Config{Profile: ProfileNames, Left: through, Ops: 400, Volume: volumes["nojournal"]}},
	{"names, ext3", Config{Profile: ProfileNames, Left: through, Ops: 400, Volume: volumes["ext3"]}},
	{"names, inline data", Config{Profile: ProfileNames, Left: through, Ops: 400, Volume: volumes["inline"]}},
	{"names, no probes", Config{Profile: ProfileNames, Left: through, Ops: 600, NoProbe: true}},
	{"names, processes", Config{Profile: ProfileNames, Left: through, Ops: 250, Procs: 3}},
	{"data", Config{Profile: ProfileData, Left: through, Ops: 500, Remount: 200}},
	{"data, 1k", Config{Profile: ProfileData, Left: through, Ops: 400, Volume: volumes["1k"]}},
	{"data, no journal", Config{Profile: ProfileData, Left: through, Ops: 300, Volume: volumes["nojournal"]}},
	{"data, ext3", Config{Profile: ProfileData, Left: through, Ops: 300, Volume: volumes["ext3"]}},
	{"data, inline data", Config{Profile: ProfileData, Left: through, Ops: 300, Volume: volumes["inline"]}},
	{"data, no probes", Config{Profile: ProfileData, Left: through, Ops: 400, NoProbe: true}},
	{"data, processes", Config{Profile: ProfileData, Left: through, Ops: 150, Procs: 3}},
	{"shared", Config{Profile: ProfileShared, Left: through, Ops: 500, Procs: 4, Remount: 200}},
	{"names, write-back", Config{Profile: ProfileNames, Left: writeBack, Ops: 500, Remount: 200}},
	{"names, inline data, write-back", Config{Profile: ProfileNames, Left: writeBack, Ops: 300, Volume: volumes["inline"]}},
	{"names, no probes, write-back", Config{Profile: ProfileNames, Left: writeBack, Ops: 400, NoProbe: true}},
	{"data, write-back", Config{Profile: ProfileData, Left: writeBack, Ops: 400, Remount: 150}},
	{"data, 1k, write-back", Config{Profile: ProfileData, Left: writeBack, Ops: 300, Volume: volumes["1k"]}},
	{"data, ext3, write-back", Config{Profile: ProfileData, Left: writeBack, Ops: 300, Volume: volumes["ext3"]}},
	{"data, inline data, write-back", Config{Profile: ProfileData, Left: writeBack, Ops: 300, Volume: volumes["inline"]}},
	{"data, no probes, write-back", Config{Profile: ProfileData, Left: writeBack, Ops: 300, NoProbe: true}},
	{"data, processes, write-back", Config{Profile: ProfileData, Left: writeBack, Ops: 150, Procs: 3}},
	{"shared, 1k, write-back", Config{Profile: ProfileShared, Left: writeBack, Ops: 500, Procs: 4, Volume: volumes["1k"]}},
	{"direct", Config{Profile: ProfileDirect, Left: noFuse, Ops: 800}},
	{"direct, 1k", Config{Profile: ProfileDirect, Left: noFuse, Ops: 800, Volume: volumes["1k"]}},
	{"direct, no journal", Config{Profile: ProfileDirect, Left: noFuse, Ops: 500, Volume: volumes["nojournal"]}},
}

// TestDifferential runs fixed sequences: make test half of those on the default layout, and a third of those on others.
func TestDifferential(t *testing.T) {
	needMounts(t)
	for n, k := range cases {
		turns := 2
		if k.Volume.Name != "" {
			turns = 3
		}
		if !disktest.Turn(n, turns) {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			c := k.Config
			if c.Volume.Name == "" {
				c.Volume = volumes["default"]
			}
			c.Right, c.Seed = kernel, 1
			check(t, c)
		})
	}
}

// TestFresh runs sequences with a fresh seed.
func TestFresh(t *testing.T) {
	needMounts(t)
	seed := disktest.FreshSeed()
	t.Logf("seed %d", seed)
	for _, c := range []Config{
		// Not with the write-back cache: there the kernel leaves a time that was set as it is when a file is truncated to
		// the size that it has (-volume ext3 -profile names -writeback -seed 23085215 -ops 400), which is open.
		{Profile: ProfileNames, Left: through, Ops: 600, Remount: 250},
		{Profile: ProfileData, Left: through, Ops: 400},
		{Profile: ProfileData, Left: writeBack, Ops: 400},
		{Profile: ProfileDirect, Left: noFuse, Ops: 600},
	} {
		t.Run(fmt.Sprint(c.Profile, " ", c.Left.name()), func(t *testing.T) {
			c.Volume, c.Right, c.Seed = volumes["default"], kernel, seed
			check(t, c)
		})
	}
}

// TestSharedAlone: where there is no other side, each process's outcomes are held against what can be, and the volume against e2fsck and the kernel.
func TestSharedAlone(t *testing.T) {
	needMounts(t)
	check(t, Config{Volume: volumes["default"], Profile: ProfileShared, Left: through, Ops: 60, Procs: 2, Seed: 1})
}

// TestFull fills volumes. The kernel's ext4 runs out of space at other operations, so only the model is compared: what was
// written is read, and e2fsck and the kernel find nothing wrong. Make test takes one of the three fixed sequences, and a fresh one.
func TestFull(t *testing.T) {
	needMounts(t)
	for _, name := range []string{"small", "tiny"} {
		for k, seed := range []uint64{1, 102, 104, disktest.FreshSeed()} {
			if k < 3 && !disktest.Turn(k, 3) {
				continue
			}
			check(t, Config{Volume: volumes[name], Profile: ProfileData, Left: through, Ops: 300, Seed: seed})
		}
		check(t, Config{Volume: volumes[name], Profile: ProfileNames, Left: writeBack, Ops: 500, Seed: 1})
	}
}

// TestFinds compares the kernel's ext4 with itself. Without sabotage there is no difference; with one side sabotaged there is,
// and shrinking leaves a few operations. Make test takes every second of these.
func TestFinds(t *testing.T) {
	needMounts(t)
	for n, k := range []struct {
		sabotage string
		profile  Profile
		noProbe  bool
		seed     uint64
		stage    string
	}{
		{"", ProfileNames, false, 3, ""},
		{"", ProfileData, false, 3, ""},
		{"lost write", ProfileData, false, 6, "operation"}, // this seed reads again what is lost
		{"rmxattr", ProfileNames, false, 3, "operation"},
		{"rename time", ProfileNames, false, 3, "operation"},
		{"sticky", ProfileNames, true, 3, "tree"},
	} {
		if !disktest.Turn(n, 2) {
			continue
		}
		t.Run(k.sabotage+" "+string(k.profile), func(t *testing.T) {
			c := Config{Volume: volumes["default"], Profile: k.profile, Ops: 800, Seed: k.seed, Left: kernel, Right: kernel, Dir: drive.Memory()}
			c.Left.Sabotage = k.sabotage
			c.NoProbe = k.noProbe
			f, err := Run(c)
			require.NoError(t, err)
			if k.sabotage == "" {
				require.Nil(t, f)
				return
			}
			require.NotNil(t, f, "the sabotage was not found")
			tries := 0
			short := Shrink(f, func() bool { tries++; return tries <= 7 })
			t.Log(short.Report())
			require.Equal(t, k.stage, short.Stage)
			require.Equal(t, f.signature(), short.signature())
			require.Less(t, len(short.Config.Keep), c.Ops*3/4)
			again, err := Run(short.Config)
			require.NoError(t, err)
			require.NotNil(t, again, "the short sequence does not fail again")
		})
	}
}

// TestCollapseThroughFuse checks that a difference which the generators avoid still exists. When it fails, they can stop
// avoiding it.
func TestCollapseThroughFuse(t *testing.T) {
	needMounts(t)
	r := &run{Config: Config{Volume: volumes["default"], Left: writeBack, Dir: drive.Memory()}, began: time.Now()}
	dir := t.TempDir()
	v := &volume{Side: writeBack, image: dir + "/image", dir: dir}
	r.sides = []*volume{v}
	require.NoError(t, mkfs(r.Volume, v.image))
	v.dir = t.TempDir()
	require.NoError(t, v.mount(false))
	t.Cleanup(func() { require.NoError(t, v.unmount()) })
	w, err := startWorker(workerConfig{Root: v.dir, Run: r.began})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.stop()) })
	for _, o := range []Op{
		{Kind: OpOpen, Path: "f", Flags: unix.O_RDWR | unix.O_CREAT, Mode: 0o644},
		{Kind: OpPwrite, Len: 100_000, Seed: 1},
		{Kind: OpFallocate, Flags: collapse, Len: 4096},
		{Kind: OpFallocate, Flags: insert, Len: 4096},
	} {
		a, err := w.call(request{Op: &o})
		require.NoError(t, err)
		want := unix.Errno(0)
		if o.Kind == OpFallocate {
			want = unix.EOPNOTSUPP
		}
		require.Equal(t, want, a.Result.Errno, o.String())
	}
}

// TestTimesSurviveSync holds a file open over a sync on a write-back mount: the kernel may send its times before its pages, and
// the pages must not change them.
func TestTimesSurviveSync(t *testing.T) {
	needMounts(t)
	ops := []Op{{Kind: OpOpen, FD: 0, Path: "f", Flags: unix.O_RDWR | unix.O_CREAT, Mode: 0o644}}
	for i := range 20 {
		ops = append(ops, Op{Kind: OpPwrite, Off: int64(i) * 100_000, Len: 100_000, Seed: uint32(i + 1)})
	}
	ops = append(ops, Op{Kind: OpStatx, Path: "f", Late: true}, Op{Kind: OpSync, Late: true}, Op{Kind: OpStatx, Path: "f", Late: true})
	r := &run{Config: Config{Volume: volumes["default"], Left: writeBack, Right: kernel, Dir: drive.Memory()}, began: time.Now(), script: ops}
	f, err := r.do()
	require.NoError(t, err)
	if f != nil {
		t.Fatal(f.Report())
	}
}

// TestSetID has owners and other users do what clears set-ID bits, or is refused because of them.
func TestSetID(t *testing.T) {
	needMounts(t)
	var ops []Op
	for i, mode := range []uint32{0o4777, 0o2777, 0o2767, 0o6777, 0o6666, 0o777} {
		for k, owner := range []int{0, alice} {
			name := fmt.Sprintf("f%d-%d", i, k)
			set := []Op{{Kind: OpChown, Path: name, UID: owner, GID: 0}, {Kind: OpChmod, Path: name, Mode: mode}}
			ops = append(ops, Op{Kind: OpOpen, FD: 0, Path: name, Flags: unix.O_RDWR | unix.O_CREAT, Mode: 0o644}, Op{Kind: OpClose, FD: 0})
			for _, o := range []Op{
				{Kind: OpChown, Path: name, UID: -1, GID: -1}, {Kind: OpTruncate, Path: name, Len: 100},
				{Kind: OpChown, Path: name, UID: owner, GID: -1}, {Kind: OpChown, Path: name, UID: -1, GID: alice},
			} {
				for _, as := range []int{0, alice, nobody} {
					o.As, o.Late = as, true
					ops = append(append(ops, set...), o)
				}
			}
			for _, as := range []int{alice, nobody} {
				ops = append(append(ops, set...), Op{Kind: OpOpen, FD: 1, Path: name, Flags: unix.O_RDWR}, Op{Kind: OpPwrite, FD: 1, Len: 5000, Seed: 1, As: as},
					Op{Kind: OpFstat, FD: 1})
				ops = append(append(ops, set...), Op{Kind: OpFtruncate, FD: 1, Len: 77, As: as, Late: true})
				ops = append(append(ops, set...), Op{Kind: OpFallocate, FD: 1, Len: 7777, As: as, Late: true}, Op{Kind: OpClose, FD: 1})
			}
		}
	}
	for _, left := range []Side{through, writeBack} {
		r := &run{Config: Config{Volume: volumes["default"], Left: left, Right: kernel, Dir: drive.Memory()}, began: time.Now(), script: ops}
		f, err := r.do()
		require.NoError(t, err)
		if f != nil {
			t.Fatal(f.Report())
		}
	}
}
