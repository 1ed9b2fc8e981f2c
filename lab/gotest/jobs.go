package main

import (
	"errors"
	"slices"
	"sync"
)

// part is how packages are tested. A package may be in several. A part of fewer packages, which one go test runs one after another, is a job.
type part struct {
	name     string // what its packages are told apart by from those of other parts
	cgo      string
	flags    []string
	rings    string
	packages []string
}

// together is how many packages one go test has that take no time worth a name: each call of the go command loads all packages again.
const together = 6

// jobs are the go tests of all parts, in the order in which they begin: each package in first by itself, in first's order, then the others.
func jobs(parts []part, first []string) []part {
	var all []part
	for _, pkg := range first {
		for _, p := range parts {
			if slices.Contains(p.packages, pkg) {
				p.packages = []string{pkg}
				all = append(all, p)
			}
		}
	}
	for _, p := range parts {
		others := slices.DeleteFunc(slices.Clone(p.packages), func(pkg string) bool { return slices.Contains(first, pkg) })
		for some := range slices.Chunk(others, together) {
			p.packages = some
			all = append(all, p)
		}
	}
	return all
}

// runJobs calls run for each job, width of them at once, in their order but for this: a package's tests never run in two parts at once, since
// they may look for what is the only one of its kind. Those in beside do not: what they share they lock themselves.
func runJobs(left []part, beside []string, width int, run func(part) error) error {
	var mu sync.Mutex
	ended := sync.NewCond(&mu)
	busy := map[string]int{} // jobs, by package
	next := func() (part, bool) {
		for len(left) > 0 {
			i := slices.IndexFunc(left, func(j part) bool { return !slices.ContainsFunc(j.packages, func(p string) bool { return busy[p] > 0 }) })
			if i >= 0 {
				j := left[i]
				left = slices.Delete(left, i, i+1)
				return j, true
			}
			ended.Wait()
		}
		return part{}, false
	}
	var all error
	var wg sync.WaitGroup
	left = slices.Clone(left)
	for range width {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for {
				j, ok := next()
				if !ok {
					return
				}
				alone := slices.DeleteFunc(slices.Clone(j.packages), func(p string) bool { return slices.Contains(beside, p) })
				for _, p := range alone {
					busy[p]++
				}
				mu.Unlock()
				err := run(j)
				mu.Lock()
				all = errors.Join(all, err)
				for _, p := range alone {
					busy[p]--
				}
				ended.Broadcast()
			}
		})
	}
	wg.Wait()
	return all
}
