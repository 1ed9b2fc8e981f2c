package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPartsOf: with the detector and without it each package runs on rings, and those with mounts over /dev/fuse; under the detector are those that
// are said to be, and nothing without it.
func TestPartsOf(t *testing.T) {
	all := []string{"pure", "racy", "less", "some"}
	listed := map[string][]string{"RACE": {"racy", "less"}, "RACE_LESS": {"less"}, "RACE_SOME": {"some"}, "MOUNTS": {"racy", "some"}}
	for name, want := range map[string]string{"RACE_TESTS": "^TestTogether$", "RACE_LESS_TESTS": "^TestLong$", "NOT_TWICE": "^TestOther$"} {
		t.Setenv(name, want)
	}
	type way struct {
		rings, flags string
		raced        bool
	}
	ways := func(detect bool) map[string][]way {
		of := map[string][]way{}
		for _, p := range partsOf(all, listed, detect, nil) {
			flags := slices.Clone(p.flags)
			raced := len(flags) > 0 && flags[0] == "-race"
			require.Equal(t, map[bool]string{true: "1", false: "0"}[raced], p.cgo)
			if raced {
				flags = flags[1:]
			}
			for _, pkg := range p.packages {
				w := way{rings: p.rings, raced: raced}
				if len(flags) > 0 {
					w.flags = flags[0] + " " + flags[1]
				}
				of[pkg] = append(of[pkg], w)
			}
		}
		return of
	}
	fuse := way{"off", "-skip ^TestOther$", false}
	require.Equal(t, map[string][]way{
		"pure": {{"on", "", false}}, "less": {{"on", "", false}},
		"racy": {{"on", "", false}, fuse}, "some": {{"on", "", false}, fuse},
	}, ways(false))
	require.Equal(t, map[string][]way{
		"pure": {{"on", "", false}},
		"racy": {{"on", "-skip ^TestLong$", true}, fuse},
		"less": {{"on", "-skip ^TestLong$", true}, {"on", "-run ^TestLong$", false}},
		"some": {{"on", "-skip ^TestTogether$", false}, {"on", "-run ^TestTogether$", true}, fuse},
	}, ways(true))
}

// TestPartsLeftOut: what is left out is so over /dev/fuse only.
func TestPartsLeftOut(t *testing.T) {
	t.Setenv("NOT_TWICE", "^TestOther$")
	for _, p := range partsOf([]string{"some", "more"}, map[string][]string{"MOUNTS": {"some"}}, false, []string{"TestA", "TestB"}) {
		var want []string
		if p.rings == "off" {
			want = []string{"-skip", "^TestOther$|^(TestA|TestB)$"}
		}
		require.Equal(t, want, p.flags, p.name)
	}
}

// TestPartsInTwo: of a package whose tests run in two parts each test is in one of them, and what is left out stays so in both.
func TestPartsInTwo(t *testing.T) {
	listed := map[string][]string{"BESIDE": {"big"}, "RACE_SOME": {"big"}, "MOUNTS": {"big"}}
	for name, want := range map[string]string{"RACE_TESTS": "^TestTogether$", "NOT_TWICE": "^TestOther$"} {
		t.Setenv(name, want)
	}
	of := func(detect bool) map[string]string {
		flags := map[string]string{}
		for _, p := range partsOf([]string{"small", "big"}, listed, detect, nil) {
			if slices.Contains(p.packages, "big") {
				require.Equal(t, []string{"big"}, p.packages)
				flags[p.name] = strings.Join(p.flags, " ")
			} else {
				require.NotContains(t, flags, "small")
			}
		}
		return flags
	}
	require.Equal(t, map[string]string{"(A to L)": "-run ^Test[A-L]", "(M to Z)": "-skip ^Test[A-L]", "(/dev/fuse)": "-skip ^TestOther$"}, of(false))
	require.Equal(t, map[string]string{"(A to L)": "-skip ^TestTogether$ -run ^Test[A-L]", "(M to Z)": "-skip ^TestTogether$|^Test[A-L]",
		"(race detector)": "-race -run ^TestTogether$", "(/dev/fuse)": "-skip ^TestOther$"}, of(true))
}

// TestNoDetector: it is not used unless it is asked for, which the report says.
func TestNoDetector(t *testing.T) {
	t.Setenv("DETECT", "")
	why, err := noDetector("go")
	require.NoError(t, err)
	require.Contains(t, why, "make test DETECT=1")
	t.Setenv("DETECT", "1")
	t.Setenv("CC", "no-such-compiler")
	why, err = noDetector("go")
	require.NoError(t, err)
	require.Contains(t, why, "C compiler")
	t.Setenv("CC", "/bin/true")
	why, err = noDetector("go")
	require.NoError(t, err)
	require.Empty(t, why)
}
