package main

import (
	"fmt"
	"hash/crc32"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// testName finds the tests in a source file.
var testName = regexp.MustCompile(`(?m)^func (Test[^a-z]\w*)\(\w+ \*testing\.T\)`)

// testsIn are the names of the tests of the packages, each once.
func testsIn(gocmd string, packages []string) ([]string, error) {
	if len(packages) == 0 {
		return nil, nil
	}
	const files = `{{range .TestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}`
	out, err := command(append([]string{gocmd, "list", "-f", files}, packages...), nil).Output()
	if err != nil {
		return nil, fmt.Errorf("go list of test files: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		source, err := os.ReadFile(line)
		if err != nil {
			return nil, err
		}
		for _, m := range testName.FindAllSubmatch(source, -1) {
			if name := string(m[1]); name != "TestMain" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// turns is how many seeds run a test over /dev/fuse once.
const turns = 4

// others are the tests that the seed leaves out, of those that skip, a pattern of go test, has not left out anyway: of them there are as many as of says. Each test is run
// by one of four seeds, whichever cases of it they take: disktest.Turn goes by other bits. A seed that is no number leaves out none.
func others(names []string, skip, seed string) (left []string, of int) {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return nil, len(names)
	}
	anyway := regexp.MustCompile(skip) // what is about parts of tests has a slash, which no test's name has
	for _, name := range names {
		if skip != "" && anyway.MatchString(name) {
			continue
		}
		of++
		if (uint64(crc32.ChecksumIEEE([]byte(name)))+n>>8)%turns != 0 {
			left = append(left, name)
		}
	}
	return left, of
}

// exactly is a pattern of go test for these tests.
func exactly(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// skipping are go test's flags with one pattern more of what to skip; "" is none.
func skipping(flags []string, pattern string) []string {
	flags = slices.Clone(flags)
	at := slices.Index(flags, "-skip")
	switch {
	case pattern == "":
	case at < 0:
		flags = append(flags, "-skip", pattern)
	default:
		flags[at+1] += "|" + pattern
	}
	return flags
}

// firstHalf matches the tests of a package that takes longer than what runs beside it that run in a job of their own. The others have another.
const firstHalf = "^Test[A-L]"

// inTwo has the tests of those packages of p that are in two in two parts, which run at the same time.
func inTwo(p part, two []string) []part {
	first, second := p, p
	first.packages = slices.DeleteFunc(slices.Clone(p.packages), func(pkg string) bool { return !slices.Contains(two, pkg) })
	if len(first.packages) == 0 {
		return []part{p}
	}
	second.packages = first.packages
	first.name, second.name = strings.TrimSpace(p.name+" (A to L)"), strings.TrimSpace(p.name+" (M to Z)")
	first.flags = append(slices.Clone(p.flags), "-run", firstHalf)
	second.flags = skipping(p.flags, firstHalf)
	p.packages = slices.DeleteFunc(slices.Clone(p.packages), func(pkg string) bool { return slices.Contains(two, pkg) })
	return []part{first, second, p}
}
