package main

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestJobs: what takes long begins first, whatever part it is in, and no package is lost.
func TestJobs(t *testing.T) {
	many := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}
	var got []string
	for _, j := range jobs([]part{{name: "1", packages: many}, {name: "2", packages: []string{"b", "c", "k"}}, {name: "3"}}, []string{"c", "x", "b"}) {
		got = append(got, fmt.Sprint(j.name, j.packages))
	}
	require.Equal(t, []string{"1[c]", "2[c]", "1[b]", "2[b]", "1[a d e f g h]", "1[i]", "2[k]"}, got)
}

// TestBeside: what is beside others runs in all its parts at once, and holds up nothing.
func TestBeside(t *testing.T) {
	var all sync.WaitGroup
	all.Add(3)
	require.NoError(t, runJobs([]part{{packages: []string{"a"}}, {packages: []string{"a"}}, {packages: []string{"a"}}}, []string{"a"}, 3, func(part) error {
		all.Done()
		all.Wait() // for ever, if one waits for another's end
		return nil
	}))
}

// TestRunJobs: each job runs once, in the order of the queue, no package twice at once, and an error of one keeps no other from running.
func TestRunJobs(t *testing.T) {
	in := func(pkg ...string) part { return part{packages: pkg} }
	var mu sync.Mutex
	var order []string
	now := map[string]bool{}
	release := make(chan struct{})
	err := runJobs([]part{in("a"), in("a", "b"), in("c"), in("d"), in("a")}, nil, 2, func(j part) error {
		mu.Lock()
		order = append(order, fmt.Sprint(j.packages))
		for _, p := range j.packages {
			assert.False(t, now[p], p)
			now[p] = true
		}
		first := len(order) == 1
		mu.Unlock()
		switch {
		case first:
			<-release // the other worker goes past what waits for a
		case j.packages[0] == "d":
			close(release)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, p := range j.packages {
			delete(now, p)
		}
		if j.packages[0] == "c" {
			return fmt.Errorf("c's error")
		}
		return nil
	})
	require.EqualError(t, err, "c's error")
	require.Len(t, order, 5)
	require.Equal(t, []string{"[a]", "[c]", "[d]"}, order[:3])
	require.ElementsMatch(t, []string{"[a]", "[a b]", "[c]", "[d]", "[a]"}, order)
	require.NoError(t, runJobs(nil, nil, 2, nil))
}
