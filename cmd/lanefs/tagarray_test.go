package main

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/md/mdtest"
)

// TestTagsOfArrays: what is on an array has its tags, as mount(8) has them of the kernel's array, when all its members are there; a set with a member
// missing, or there twice, is refused by name. Images stand for functions, which are asked likewise.
func TestTagsOfArrays(t *testing.T) {
	p := newPlace(t)
	const mib = 1 << 20
	disk := func(name string) *os.File {
		f, err := os.Create(p.path(name))
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		require.NoError(t, f.Truncate(24*mib))
		return f
	}
	ask := func(names ...string) (all []tagged) {
		for _, n := range names {
			there, err := tagsOf(p.path(n))
			require.NoError(t, err)
			all = append(all, there...)
		}
		return all
	}
	list := func(names ...string) string {
		var all []string
		for _, n := range names {
			if !arrayPartName.MatchString(n) {
				n = p.path(n)
			}
			all = append(all, n)
		}
		return strings.Join(all, ",")
	}
	finds := func(all []tagged, want string, tags map[string]string) {
		t.Helper()
		arrays, why := arraysOf(all)
		require.Empty(t, why)
		for tag, value := range tags {
			w, ok, err := choose(append(slices.Clone(all), arrays...), tag, value)
			require.NoError(t, err)
			require.True(t, ok, "%s=%s", tag, value)
			require.Equal(t, where{Device: want}, w, "%s=%s", tag, value)
		}
	}
	refuses := func(all []tagged, want string) {
		t.Helper()
		arrays, why := arraysOf(all)
		require.Empty(t, arrays)
		require.Len(t, why, 1)
		require.ErrorContains(t, why[0], want)
	}
	file := p.path("raw")
	p.dirs = append(p.dirs, file)

	// The volume is on all of a linear array of an image and a partition of another, of which the second is the first member.
	linear := mdtest.Array{Set: 1, Minor: 2, Level: -1, Disks: 2}
	require.NoError(t, linear.Write(disk("a0"), 24*mib, 1))
	parted := disk("a1")
	partitioned(t, parted.Name(), "label: gpt\nstart=2048, size=32768\n")
	require.NoError(t, linear.Write(at{parted, 1 * mib}, 16*mib, 0))
	p.ok("raw", "--gpu", "host", list("a0", "a1")+"-part1", file)
	tool(t, "mkfs.ext4", "-q", "-F", "-L", tagLabel, "-U", tagUUID, file)
	p.ok("umount", file)
	tags := map[string]string{"LABEL": tagLabel, "UUID": strings.ToUpper(tagUUID), "ID": "md-name-lab:test"}
	finds(ask("a0", "a1"), list("a0", "a1")+"-part1", tags)
	finds(ask("a1", "a0"), list("a1")+"-part1,"+list("a0"), map[string]string{"ID": "md-uuid-01010101:01010101:01010101:01010101"})
	refuses(ask("a0"), fmt.Sprintf(`no array is made of %s: the md array "lab:test" (01010101:01010101:01010101:01010101) has 2 members, and number 0 is missing`, p.path("a0")))
	refuses(ask("a1"), p.path("a1")+"-part1: the md array \"lab:test\" (01010101:01010101:01010101:01010101) has 2 members, and number 1 is missing")
	require.NoError(t, linear.Write(disk("a2"), 24*mib, 1))
	refuses(ask("a0", "a1", "a2"), fmt.Sprintf("%s and %s are both member 1", p.path("a0"), p.path("a2")))

	// The volume is on a partition of an array, whose first member has the table where its own would be.
	striped := mdtest.Array{Set: 2, Minor: 0, Chunk: 128, Disks: 2}
	for role, name := range []string{"b0", "b1"} {
		require.NoError(t, striped.Write(disk(name), 24*mib, role))
	}
	p.ok("raw", "--gpu", "host", list("b0", "b1"), file)
	partitioned(t, file, "label: dos\nlabel-id: 0x1234abcd\nsize=8M, type=83\nsize=16M\n")
	tool(t, "mkfs.ext4", "-q", "-F", "-L", "of striped", "-E", "offset=9437184", file, "16M")
	p.ok("umount", file)
	finds(ask("b0", "b1"), list("b0", "b1", "p2"), map[string]string{"LABEL": "of striped", "PARTUUID": "1234ABCD-02", "ID": "md-name-lab:test-part2"})
	finds(ask("a0", "b1", "a1", "b0"), list("b1", "b0", "p1"), map[string]string{"PARTUUID": "1234abcd-01"})
	_, ok, err := choose(ask("b0"), "PARTUUID", "1234abcd-01")
	require.NoError(t, err)
	require.False(t, ok, "the table is the array's")

	// What LaneFS assembles no array of, and an array of one.
	require.NoError(t, mdtest.Array{Set: 3, Level: 1, Disks: 2}.Write(disk("c0"), 24*mib, 0))
	refuses(ask("c0"), "is of level raid1, and LaneFS assembles raid0 and linear")
	require.NoError(t, mdtest.Array{Set: 4, Minor: 2, Level: -1, Disks: 1}.Write(disk("d0"), 24*mib, 0))
	tool(t, "mkfs.ext4", "-q", "-F", "-L", "of one", "-E", "offset=8192", p.path("d0"), "16M")
	arrays, why := arraysOf(ask("d0"))
	require.Empty(t, why)
	w, ok, err := choose(arrays, "LABEL", "of one")
	require.NoError(t, err)
	require.True(t, ok)
	for _, raw := range []bool{false, true} {
		cfg := askOnly()
		cfg.Raw = raw
		cfg.use(w)
		require.Equal(t, p.path("d0"), cfg.source(), "as where the member is named")
		s, err := openDevice(&cfg, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.NotNil(t, volumeOn(s.disk()), "raw %v", raw)
		require.NoError(t, s.Close())
	}

	// Two members on one device: LaneFS has that once.
	both := disk("e0")
	partitioned(t, both.Name(), "label: gpt\nstart=2048, size=16384\nstart=18432, size=16384\n")
	for role, first := range []int64{2048, 18432} {
		require.NoError(t, mdtest.Array{Set: 5, Minor: 2, Level: -1, Disks: 2}.Write(at{both, first * 512}, 16384*512, role))
	}
	refuses(ask("e0"), "are on one device, and LaneFS assembles arrays whose members have a device each")
	one := p.path("e0")
	require.Contains(t, p.fails("mount", "--gpu", "host", one+"-part1,"+one+"-part2", p.mkdir("mnt")), fmt.Sprintf("%s-part1 and %s-part2 are on one device", one, one))

	// The place that is found is one that a command takes.
	w = where{Device: list("b1", "b0", "p2")}
	require.True(t, w.isArray())
	var cfg mountConfig
	require.NoError(t, cfg.take(w.Device))
	require.Len(t, cfg.Members, 2)
	require.Equal(t, 2, cfg.Part)
}
