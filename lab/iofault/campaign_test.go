package iofault

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/internal/drive"
	"github.com/lanefs/lanefs/lab/internal/files"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// busy is how long a campaign may take that has not come to what it must have tried, on a busy machine.
const busy = 10 * time.Minute

// TestCampaign is a short campaign: the same first seeds every time, then fresh ones. A long one is make fault-test.
func TestCampaign(t *testing.T) {
	disktest.Tool(t, "mkfs.ext4", "dumpe2fs", "debugfs", "e2fsck")
	c := Campaign{Kinds: 3, Dir: drive.Memory(), Logf: t.Logf, Kernel: 0.2, LaneFS: 0.2, Most: 30, Windows: 10}
	why := image.KernelMissing()
	if why != "" {
		c.Kernel = 0
	}
	c.Time, c.Tries = 10*time.Second, 120 // an idle machine would do 300 to 360
	if testing.Short() {
		c.Time = 4 * time.Second
	}
	faults, recovered := 0, 0
	run := func(seed uint64) {
		c.Seed = seed
		t.Logf("seeds from %d", seed)
		s, err := c.Run()
		require.NoError(t, err)
		t.Log(s)
		for i := range s.Kinds {
			t.Errorf("%v", &s.Kinds[i])
		}
		faults += s.Faults
		recovered += s.Kernel
	}
	run(1)
	run(disktest.FreshSeed())
	for !t.Failed() && (faults == 0 || c.Kernel > 0 && recovered == 0 && !testing.Short()) && c.Time < busy {
		c.Time *= 2
		run(1)
	}
	require.True(t, c.Kernel == 0 || testing.Short() || recovered > 0, "the kernel recovered none")
	require.NotZero(t, faults, "no fault hit anything")
	t.Run("kernel", func(t *testing.T) {
		if why != "" {
			t.Skipf("SKIPPED: the kernel's recovery of volumes after faults: %s", why)
		}
	})
}

// TestSame checks that the comparisons of trees find differences.
func TestSame(t *testing.T) {
	file := func(ino uint64, content string) *files.Node {
		return &files.Node{ID: files.ID{Ino: ino, Generation: 1}, Mode: 0o100644, Links: 1, Size: int64(len(content)), Content: []byte(content)}
	}
	before := Tree{"/a": file(1, "aaaaaa"), "/b": file(2, "bbbbbb")}
	after := Tree{"/a": file(1, "AAAAAAAA"), "/b": file(2, "bbbbbb")}
	both := []Tree{before, after}
	require.Empty(t, before.same(before))
	require.NotEmpty(t, before.same(after))
	for content, ok := range map[string]bool{"aaaaaa": true, "AAAAAAAA": true, "AAAaaaA": true, "AAAAAA\x00\x00": true, // a hole at the end
		"aaaaa": false, "AAAAAAAAA": false, "aabaaa": false, "a\x00aaaa": false} {
		d := Tree{"/a": file(9, content), "/b": file(8, "bbbbbb")}.partly(before, both, nil)
		require.Equal(t, ok, d == "", "%q: %s", content, d)
	}
	require.NotEmpty(t, Tree{"/a": file(9, "aaaaaa")}.partly(before, both, nil), "a name is missing")
	require.NotEmpty(t, Tree{"/a": file(9, "aaaaaa"), "/b": file(8, "bbbbbb"), "/c": file(7, "")}.partly(before, both, nil), "a name too many")
	require.NotEmpty(t, Tree{"/a": file(9, "aaaaaa"), "/b": file(8, "bbbbbb")}.partly(before, both, map[files.ID]int{{Ino: 1, Generation: 1}: 1}), "the new bytes were fsynced")
	odd := file(9, "aaaaaa")
	odd.Links = 2
	require.NotEmpty(t, Tree{"/a": odd, "/b": file(8, "bbbbbb")}.partly(before, both, nil))
}

// TestOwn checks that bytes of another file are found.
func TestOwn(t *testing.T) {
	file := func(content string) *files.Node {
		return &files.Node{ID: files.ID{Ino: uint64(content[0]), Generation: 1}, Mode: 0o100644, Size: int64(len(content)), Content: []byte(content)}
	}
	history := []Tree{{"/a": file("aaa")}, {"/a": file("bbbb"), "/b": file("zzzz")}}
	for content, ok := range map[string]bool{"aaa": true, "aba": true, "bbbb": true, "aa\x00b": true, "aaz": false, "aaaa": false} {
		d := Tree{"/a": file(content)}.own(history)
		require.Equal(t, ok, d == "", "%q: %s", content, d)
	}
}

// TestModes checks that every mode suits some command, and that no two have the same name.
func TestModes(t *testing.T) {
	seen := map[string]bool{}
	for i := range Modes {
		m := &Modes[i]
		require.False(t, seen[m.Name], m.Name)
		seen[m.Name] = true
		found, err := modeNamed(m.Name)
		require.NoError(t, err)
		require.Same(t, m, found)
		require.True(t, m.memory() || len(m.ops) > 0)
	}
	_, err := modeNamed("no such mode")
	require.Error(t, err)
}
