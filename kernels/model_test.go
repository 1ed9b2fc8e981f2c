package kernels

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/lanefs/lanefs/lab/made"
)

// TestModel runs the lanes' step and rings, and the rings of the share, in all executions that the C11 memory model has for a few
// commands (model/lane.cc, share.cc), by a checker of our own (model/checker.cc), which litmus.cc checks first. LANEFS_MODEL=all, make
// model, does all of it; else it is what takes seconds.
func TestModel(t *testing.T) {
	m := newModel(t)
	require.NoError(t, m.build("litmus"))
	random, programs := "5000", []string(nil)
	if !modelAll {
		random = "50"
		programs = []string{"queues that wrap", "two commands in flight", "three commands in flight", "a ring that wraps", "silent commands' data",
			"a queue pair given up", "reset", "wake", "the last that falls asleep", "park"}
	}
	said, err := m.run("litmus", random)
	require.NoError(t, err, said)
	require.Equal(t, "ok\n", said)
	if modelAll {
		require.NoError(t, m.build("lane", "-DLANEFS_SLOTS=2"))
		said, err = m.run("lane")
		require.NoError(t, err, said)
		t.Logf("lanes with two slots a thread\n%s", said)
	}
	require.NoError(t, m.build("lane"))
	said, err = m.run("lane", programs...)
	require.NoError(t, err, said)
	t.Log(said)
	require.NoError(t, m.build("share"))
	said, err = m.run("share")
	require.NoError(t, err, said)
	t.Log(said)

	// A release fence of C11 does not pass on what a relaxed load has seen; nvme_qp.h's does on all that lanes run on.
	said, err = m.run("lane", "-strict", "silent commands' data")
	require.Error(t, err)
	require.Contains(t, said, "data race")

	t.Run("Orders", func(t *testing.T) {
		m.testOrders(t, "lane")
		if modelAll {
			m.testOrders(t, "share")
		}
	})
	t.Run("Planted", m.testPlanted)
}

// testOrders takes the order from each access that has one, site by site: that must be found, or needless has the reason. make test takes
// those of the step alone.
func (m model) testOrders(t *testing.T, program string) {
	args := []string{"-sites"}
	if !modelAll {
		args = append(args, "queues that wrap", "a queue pair given up")
	}
	said, err := m.run(program, args...)
	require.NoError(t, err, said)
	sites := m.sites(t, program, said)
	names := slices.Sorted(maps.Keys(sites))
	require.NotEmpty(t, names)
	for _, name := range names {
		if !modelAll && !strings.HasPrefix(name, "step: ") {
			continue
		}
		said, err := m.run(program, "-first", "-weaken", strings.Join(sites[name], ","))
		why, ok := needless[name]
		if !ok {
			require.Error(t, err, "%s is not needed, or nothing shows that it is:\n%s", name, said)
			t.Logf("without %s: %s", name, wrongLine.FindString(said))
			continue
		}
		require.NoError(t, err, "%s is needed: %s", name, said)
		if why.with == "" {
			t.Logf("%s: not needed: %s", name, why.reason)
			continue
		}
		require.Contains(t, sites, why.with)
		said, err = m.run(program, "-first", "-weaken", strings.Join(append(sites[name], sites[why.with]...), ","))
		require.Error(t, err, "without %s and %s", name, why.with)
		t.Logf("without %s and %s: %s", name, why.with, wrongLine.FindString(said))
	}
}

var wrongLine = regexp.MustCompile(`.*WRONG.*`)

// needless are orders that no execution of the model needs, by function and text; with is another such that does the same.
var needless = map[string]struct{ with, reason string }{
	"look: release();": {with: "turn: release();"},
	"turn: release();": {with: "look: release();"},
	"look: full();":    {reason: "who reads DOZING or PARKING looks again, and then finds PARKED"},
	"lanefs_ring_submit: uint32_t tail = atomic_load(word(r, SQ_TAIL));": {reason: "the client's own index"},
	"take: atomic_store(word(r, CQ_HEAD), head + n);":                    {reason: "an entry is used again only after the client has submitted more, which says it too"},
}

// testPlanted plants mistakes, each of which must be found. make test takes the first, and sees that the others still fit the sources.
func (m model) testPlanted(t *testing.T) {
	for i, c := range []struct{ name, file, right, wrong, finds string }{
		{"the SQ's doorbell before the SQE", "post.h", "\ttake_cids<T>(lane, n - bad, cids);", "\ttake_cids<T>(lane, n - bad, cids);\n\t{\n\t\tuint32_t tail = lane->sq_tail;\n\t\tadvance(&tail, n - bad, lane->sq_size);\n\t\trelease();\n\t\tstore(at<uint32_t>(lane->sq_doorbell), tail);\n\t}", "data race"},
		{"a result's seq before the result", "answer.h", "\tstore(r + 1, slot_word", "\tstore((uint32_t *)r, seq);\n\tstore(r + 1, slot_word", "."},
		{"the SQ's doorbell before the release", "step.h", "\t\trelease();\n\ttrace.released = stamp<T>();\n\tif (posted)\n\t\tring_sq<T>(lane);", "\t\t;\n\tif (posted)\n\t\tring_sq<T>(lane);\n\trelease();", "data race"},
		{"the same phase after the queue's end", "nvme_qp.h", "\t\tq->cq_phase ^= 1;", "\t\t;", "."},
		{"the CQ's doorbell is not rung", "step.h", "\t\tring_cq<T>(lane);", "\t\t;", "nobody goes on"},
		{"no look at the phase", "nvme_qp.h", "return phase(dw23) == q->cq_phase;", "return (uint32_t)(dw23 >> 32) != 0;", "."},
		{"a failure forgets what is in flight", "step.h", "\tanswer_in_flight<T>(lane, (uint8_t)lane->failed);", "\t;", "nobody goes on"},
		{"the last look before PARKING", "lifecycle.h", "\t\tset_state<T>(status, LANEFS_PARKING);\n\t\tfull(); /* orders the store of PARKING before the load of the next seq */\n\t\tsync_team<T>();\n\t\tbool stay = !must && !held && has_work<T>(lane);", "\t\tbool stay = !must && !held && has_work<T>(lane);\n\t\tset_state<T>(status, LANEFS_PARKING);\n\t\tfull();", "nobody goes on"},
		{"the last that falls asleep does not close", "lifecycle.h", "(how == DOZE ? 1 : 0)", "(how == DOZE ? 2 : 0)", "."},
		{"a launch is closed under a lane", "lifecycle.h", "how == DOZE || how == CLOSE_IDLE) && last", "how == DOZE || how == CLOSE_IDLE) && true", "."},
		{"a hold is answered before the lane is left", "lifecycle.h", "\t\t\tchange<T, REST>(l);\n\t\t\treturn YIELD;", "\t\t\tchange<T, REST>(l);\n\t\t\treturn store(&status->held, command >> 8), YIELD;", "data race"},
		{"the client's index before the entry", "ring.c", "\tfor (unsigned i = 0; i < n; i++)\n\t\tring[(tail + i) & (r->entries - 1)] = q[i];\n\tatomic_store(word(r, SQ_TAIL), tail + n); /* after the entries */", "\tatomic_store(word(r, SQ_TAIL), tail + n);\n\tfor (unsigned i = 0; i < n; i++)\n\t\tring[(tail + i) & (r->entries - 1)] = q[i];", "data race"},
		{"the client sleeps without a last look", "ring.c", "\t\tif ((got = take(r, c, n)))\n\t\t\treturn (int)got;\n\t\tif (ended)", "\t\tif (ended)", "nobody goes on"},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, flag := "lane", planted
			dir := t.TempDir()
			sources := []string{}
			for _, pattern := range []string{"*.h", "*.hip", "../sdk/c/*.h", "../sdk/c/ring.c"} {
				names, err := filepath.Glob(pattern)
				require.NoError(t, err)
				sources = append(sources, names...)
			}
			there := 0
			for _, name := range sources {
				b, err := os.ReadFile(name)
				require.NoError(t, err)
				if filepath.Base(name) == c.file {
					there += strings.Count(string(b), c.right)
					b = []byte(strings.Replace(string(b), c.right, c.wrong, 1))
				}
				require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), b, 0o600))
			}
			require.Equal(t, 1, there, "%q in %s", c.right, c.file)
			if i > 0 && !modelAll {
				return
			}
			flag += fmt.Sprintf("%q", filepath.Join(dir, "engine.hip"))
			if c.file == "ring.c" {
				program, flag = "share", plantedC+fmt.Sprintf("%q", filepath.Join(dir, "ring.c"))
			}
			require.NoError(t, m.build(program, flag, "-Wno-unused-parameter", "-Wno-unused-variable"))
			said, err := m.run(program, "-first")
			require.Error(t, err, said)
			require.Regexp(t, "WRONG.*"+c.finds, said)
			t.Log(wrongLine.FindString(said))
		})
	}
}

// modelAll is set by make model.
var modelAll = os.Getenv("LANEFS_MODEL") == "all"

// model builds and runs the programs of model/.
type model struct{ dir string }

func newModel(t *testing.T) model {
	for _, c := range []string{"clang-19", "llvm-symbolizer-19"} {
		if _, err := exec.LookPath(c); err != nil {
			t.Skipf("%s is missing: apt-get install clang-19 llvm-19", c)
		}
	}
	m := model{t.TempDir()}
	if out, err := exec.Command("clang-19", "-dumpmachine").Output(); err != nil || !strings.HasPrefix(string(out), "x86_64") {
		t.Skip("the checker's coroutines are for x86-64")
	}
	var g errgroup.Group
	for _, part := range []string{"checker", "hooks", "context"} {
		g.Go(func() error { return m.compile(part, "cc", "-O2") })
	}
	require.NoError(t, g.Wait())
	return m
}

func (m model) compile(part, language string, flags ...string) error {
	args := []string{"-std=c++20", "-fno-exceptions", "-fno-rtti"}
	if language == "c" {
		args = []string{"-I../sdk/c"}
	}
	args = append(append(args, "-g", "-Wall", "-Wextra", "-Werror", "-c", filepath.Join("model", part+"."+language)), flags...)
	object := filepath.Join(m.dir, part+".o")
	if !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, planted) || strings.HasPrefix(f, plantedC) }) {
		return made.Compile(object, []string{"engine.hip", "../sdk/c/ring.c"}, "clang-19", args...)
	}
	out, err := exec.Command("clang-19", append(args, "-o", object)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", part, err, out)
	}
	return nil
}

// What a program of model/ is told of sources with a mistake, which are elsewhere each time.
const planted, plantedC = "-DENGINE=", "-DSOURCE="

// build makes a program. Its own parts hand each access to the checker, as they would to ThreadSanitizer.
func (m model) build(program string, flags ...string) error {
	hooked := append([]string{"-O1", "-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0"}, flags...)
	parts := []string{program, "checker", "hooks", "context"}
	var g errgroup.Group
	g.Go(func() error { return m.compile(program, "cc", hooked...) })
	if program == "share" {
		parts = append(parts, "client")
		g.Go(func() error { return m.compile("client", "c", hooked...) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	args := []string{"-no-pie", "-o", filepath.Join(m.dir, program)}
	for _, p := range parts {
		args = append(args, filepath.Join(m.dir, p+".o"))
	}
	if out, err := exec.Command("clang-19", append(args, "-lstdc++")...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return nil
}

func (m model) run(program string, args ...string) (string, error) {
	out, err := exec.Command(filepath.Join(m.dir, program), args...).CombinedOutput()
	return string(out), err
}

var (
	siteLine = regexp.MustCompile(`(?m)^site ([0-9a-f]+) `)
	frame    = regexp.MustCompile(`(?m)^(?:.*?(\w+)(?:<.*>)?\(.*|(\w+))\n(.*):(\d+):\d+$`)
	comment  = regexp.MustCompile(`\s*/\*.*?\*/`)
)

// sites are the accesses of the product's sources that have an order, by function and text; one of them is at many addresses. What
// nvme_qp.h and device.h do for others is the others'.
func (m model) sites(t *testing.T, program, said string) map[string][]string {
	sites := map[string][]string{}
	args := []string{"--obj=" + filepath.Join(m.dir, program)}
	pcs := siteLine.FindAllStringSubmatch(said, -1)
	for _, pc := range pcs {
		at, err := strconv.ParseUint(pc[1], 16, 64)
		require.NoError(t, err)
		args = append(args, fmt.Sprintf("%#x", at-1)) // the call, not what comes after it
	}
	out, err := exec.Command("llvm-symbolizer-19", args...).Output()
	require.NoError(t, err)
	for i, block := range strings.Split(strings.TrimSpace(string(out)), "\n\n") {
		for _, f := range frame.FindAllStringSubmatch(block, -1) {
			name := filepath.Base(f[3])
			if name == "nvme_qp.h" || name == "device.h" {
				continue
			}
			if filepath.Base(filepath.Dir(f[3])) == "model" {
				break // the model's own
			}
			b, err := os.ReadFile(f[3])
			require.NoError(t, err)
			line, err := strconv.Atoi(f[4])
			require.NoError(t, err)
			key := f[1] + f[2] + ": " + strings.TrimSpace(comment.ReplaceAllString(strings.Split(string(b), "\n")[line-1], ""))
			sites[key] = append(sites[key], pcs[i][1])
			break
		}
	}
	return sites
}
