package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const events = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"    a_test.go:3: fine\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":0.1}
{"Action":"run","Package":"m/a","Test":"TestNot"}
{"Action":"output","Package":"m/a","Test":"TestNot","Output":"    a_test.go:9: needs a GPU\n"}
{"Action":"skip","Package":"m/a","Test":"TestNot","Elapsed":0}
{"Action":"pass","Package":"m/a","Elapsed":1.25}
{"Action":"skip","Package":"m/none","Elapsed":0}
`

func reported(t *testing.T, lines string) (out, log string, err error) {
	t.Helper()
	var o, l bytes.Buffer
	r := newReport(&o, &l)
	require.NoError(t, r.read(strings.NewReader(lines), ""))
	err = r.end()
	return o.String(), l.String(), err
}

func TestReportPasses(t *testing.T) {
	out, log, err := reported(t, events)
	require.NoError(t, err)
	require.Equal(t, "ok    m/a  1.2 s\n\nskipped:\n  needs a GPU: TestNot\n1 passed, 0 failed, 1 skipped\n", out)
	require.Contains(t, log, "a_test.go:3: fine")
}

func TestReportFails(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{"a test", `{"Action":"run","Package":"m/b","Test":"TestBad"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"    b_test.go:3: wrong\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad","Elapsed":0.1}
{"Action":"output","Package":"m/b","Output":"FAIL\n"}
{"Action":"fail","Package":"m/b","Elapsed":0.2}
`, "b_test.go:3: wrong"},
		{"a build", `{"ImportPath":"m/c","Action":"build-output","Output":"c.go:1: undefined: x\n"}
{"Action":"start","Package":"m/c"}
{"Action":"output","Package":"m/c","Output":"FAIL\tm/c [build failed]\n"}
{"Action":"fail","Package":"m/c","Elapsed":0,"FailedBuild":"m/c"}
`, "undefined: x"},
		{"a crash", `{"Action":"run","Package":"m/d","Test":"TestStays"}
{"Action":"output","Package":"m/d","Test":"TestStays","Output":"panic: test timed out after 14m0s\n"}
{"Action":"output","Package":"m/d","Output":"FAIL\tm/d\t840s\n"}
{"Action":"fail","Package":"m/d","Elapsed":840}
`, "timed out after 14m0s"},
		{"nothing", "", "0 passed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, _, err := reported(t, c.lines)
			require.Error(t, err)
			require.Contains(t, out, c.want)
			require.Contains(t, out, " failed, ")
		})
	}
}

// TestQuiet: what runs is named when nothing has ended for a while.
func TestQuiet(t *testing.T) {
	var out, log bytes.Buffer
	r := newReport(&out, &log)
	r.stalled = func() []string { return []string{"a thread waits"} }
	now := time.Now()
	r.add(event{Action: "run", Package: "m/a", Test: "TestLong"}, "", now)
	r.tick(now.Add(quiet / 2))
	require.Empty(t, out.String())
	r.tick(now.Add(2 * quiet))
	require.Equal(t, "...   m/a TestLong, for 60 s\n      a thread waits\n", out.String())
}

// TestPaused: a test that waits for others to end does not run, and how long it does counts from when it goes on.
func TestPaused(t *testing.T) {
	var out, log bytes.Buffer
	r := newReport(&out, &log)
	r.stalled = func() []string { return nil }
	now := time.Now()
	r.add(event{Action: "run", Package: "m/a", Test: "TestLater"}, "", now)
	r.add(event{Action: "pause", Package: "m/a", Test: "TestLater"}, "", now)
	r.add(event{Action: "run", Package: "m/a", Test: "TestNow"}, "", now)
	r.tick(now.Add(quiet + time.Second))
	require.Equal(t, "...   m/a TestNow, for 31 s\n", out.String())
	r.add(event{Action: "pass", Package: "m/a", Test: "TestNow"}, "", now)
	r.add(event{Action: "cont", Package: "m/a", Test: "TestLater"}, "", now.Add(time.Minute))
	r.printed, now = now, now.Add(time.Minute+time.Second)
	out.Reset()
	r.tick(now)
	require.Equal(t, "...   m/a TestLater, for 1 s\n", out.String())
}

// TestBuilds: nor is there silence while all that is under way is builds.
func TestBuilds(t *testing.T) {
	var out, log bytes.Buffer
	r := newReport(&out, &log)
	now := time.Now()
	r.tick(now.Add(quiet / 2))
	require.Empty(t, out.String())
	r.tick(now.Add(2 * quiet))
	require.Equal(t, "...   no test runs: the go command builds\n", out.String())
}

// TestParts: a package runs in two parts at the same time; what one says and how it ends is not taken for the other's.
func TestParts(t *testing.T) {
	var out, log bytes.Buffer
	r := newReport(&out, &log)
	now := time.Now()
	for _, part := range []string{"(one)", "(two)"} {
		r.add(event{Action: "run", Package: "m/a", Test: "TestX"}, part, now)
		r.add(event{Action: "output", Package: "m/a", Test: "TestX", Output: "    a_test.go:3: " + part + "\n"}, part, now)
	}
	r.add(event{Action: "fail", Package: "m/a", Test: "TestX"}, "(one)", now)
	r.add(event{Action: "fail", Package: "m/a"}, "(one)", now)
	require.Equal(t, "    a_test.go:3: (one)\nFAIL  m/a (one)  0.0 s\n", out.String())
	require.Len(t, r.running, 1)
	r.add(event{Action: "pass", Package: "m/a", Test: "TestX"}, "(two)", now)
	r.add(event{Action: "pass", Package: "m/a", Elapsed: 2}, "(two)", now)
	require.Error(t, r.end())
	require.Contains(t, out.String(), "ok    m/a (two)  2.0 s\n")
	require.Contains(t, out.String(), "failed tests:\n  m/a (one) TestX\n      a_test.go:3: (one)\n")
	require.NotContains(t, out.String(), "m/a (two) TestX\n")
}

// TestHeart: the sums say what failed, whatever else the test has logged.
func TestHeart(t *testing.T) {
	text := []string{"    a_test.go:1: mounted\n", "    a_test.go:3: \n", "        \tError Trace:\ta_test.go:3\n", "        \tError:      \tShould be true\n"}
	require.Equal(t, "\n      Error Trace:\ta_test.go:3\n      Error:      \tShould be true", heart(append(text, "--- FAIL: TestX (0.00s)\n")))
	require.Empty(t, heart([]string{"--- FAIL: TestX (0.00s)\n"}))
	require.Equal(t, heartLines, strings.Count(heart(slices.Repeat([]string{"    more\n"}, 100)), "\n"))
}

func TestReportSpent(t *testing.T) {
	var o, l bytes.Buffer
	r := newReport(&o, &l)
	require.NoError(t, r.read(strings.NewReader(events), ""))
	r.spent([]string{"m/a", "m/none"}, "", 2*time.Second)
	r.spent([]string{"m/b"}, "(race detector)", 3*time.Second)
	require.NoError(t, r.end())
	require.Contains(t, o.String(), "most CPU time: m/b (race detector) 3 s, m/a and 1 more 2 s; together 5 s\n")
	require.Contains(t, l.String(), "   2.0 s of CPU m/a and 1 more\n")
}
