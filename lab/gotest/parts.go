package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// partsOf are the ways in which the packages in all are tested; listed has those of the environment's lists. Each package is in a part on rings, and
// those in $MOUNTS in one over /dev/fuse. With the race detector those in $RACE run under it on rings. Of those in $RACE_SOME the tests that match
// $RACE_TESTS run with it, and not without; of those in $RACE_LESS the tests that match $RACE_LESS_TESTS run without it only. What those in $BESIDE run
// without it on rings they run in two parts. left are tests that are not run over /dev/fuse.
func partsOf(all []string, listed map[string][]string, detect bool, left []string) []part {
	fuse := part{"(/dev/fuse)", "0", skipping(nil, os.Getenv("NOT_TWICE")), "off", listed["MOUNTS"]}
	if len(left) > 0 {
		fuse.flags = skipping(fuse.flags, exactly(left))
	}
	if !detect {
		return append(inTwo(part{"", "0", nil, "on", all}, listed["BESIDE"]), fuse)
	}
	racy, some, less := listed["RACE"], listed["RACE_SOME"], listed["RACE_LESS"]
	var skip []string
	if len(less) > 0 {
		skip = []string{"-skip", os.Getenv("RACE_LESS_TESTS")}
	}
	pure := slices.DeleteFunc(slices.Clone(all), func(p string) bool { return slices.Contains(racy, p) || slices.Contains(some, p) })
	without := slices.Concat(
		inTwo(part{"", "0", nil, "on", pure}, listed["BESIDE"]),
		inTwo(part{"", "0", []string{"-skip", os.Getenv("RACE_TESTS")}, "on", some}, listed["BESIDE"]),
	)
	return append(without, []part{
		{"(race detector)", "1", append([]string{"-race"}, skip...), "on", racy},
		{"(no race detector)", "0", []string{"-run", os.Getenv("RACE_LESS_TESTS")}, "on", less},
		{"(race detector)", "1", []string{"-race", "-run", os.Getenv("RACE_TESTS")}, "on", some},
		fuse,
	}...)
}

// noDetector says why nothing runs under the race detector, or nothing.
func noDetector(gocmd string) (string, error) {
	if os.Getenv("DETECT") == "" {
		return "it takes long: make test DETECT=1 has it, as CI does", nil
	}
	cc, err := command([]string{gocmd, "env", "CC"}, nil).Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	if _, err := exec.LookPath(strings.TrimSpace(string(cc))); err != nil {
		return "it needs a C compiler (make deps)", nil
	}
	return "", nil
}
