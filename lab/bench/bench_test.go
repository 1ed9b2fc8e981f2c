package main

import (
	"encoding/xml"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
	_, ok := results{}.median("row", "system", figure.value)
	require.False(t, ok)
}

func TestParseWay(t *testing.T) {
	s, err := parseWay("lanefs:io_uring=on+writeback_cache", "noatime")
	require.NoError(t, err)
	require.Equal(t, "lanefs io_uring=on,writeback_cache", s.name)
	require.Equal(t, "gpu=host,noatime,io_uring=on,writeback_cache", s.argument)
	s, err = parseWay("lanefs", "")
	require.NoError(t, err)
	require.Equal(t, "gpu=host", s.argument)
	s, err = parseWay("lanefs:gpu=auto", "")
	require.NoError(t, err)
	require.Equal(t, "gpu=auto", s.argument)
	for _, wrong := range []string{"", "xfs", "null:tcp", "kernel:4"} {
		_, err := parseWay(wrong, "")
		require.Error(t, err, wrong)
	}
	_, err = (&bench{ways: "lanefs,lanefs"}).systems()
	require.ErrorContains(t, err, "two columns")
}

func TestParseFio(t *testing.T) {
	// Two jobs at once, one of which took longer.
	d, err := parseFio([]byte(`{"jobs":[{"read":{"io_bytes":4096000,"total_ios":1000,"runtime":400},"job_runtime":500},
		{"read":{"io_bytes":4096000,"total_ios":1000,"runtime":1000},"job_runtime":900}]}`))
	require.NoError(t, err)
	require.Equal(t, done{2000, 2000}, d)
	d, err = parseFio([]byte(`{"jobs":[{"write":{"io_bytes":2097152,"total_ios":2,"runtime":1000}}]}`))
	require.NoError(t, err)
	require.InDelta(t, 2.097, d.value, 0.001)
	for _, wrong := range []string{"", "fio: no", `{"jobs":[]}`, `{"jobs":[{"read":{"io_bytes":1,"total_ios":1,"runtime":0}}]}`} {
		_, err := parseFio([]byte(wrong))
		require.Error(t, err, wrong)
	}
}

func TestCounters(t *testing.T) {
	require.EqualValues(t, 12, contextSwitches([]byte("Name:\tvoluntary\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n")))
	before := counters{time.Second, map[string]int64{"1": 10, "2": 100, "3": 1000}}
	after := counters{3 * time.Second, map[string]int64{"1": 14, "3": 5, "4": 30}} // 2 has ended, 3 too, and its number was given anew
	cpu, n := after.since(before)
	require.Equal(t, 2*time.Second, cpu)
	require.EqualValues(t, 4+5+30, n)

	// Those of this process grow.
	a, err := readCounters(os.Getpid())
	require.NoError(t, err)
	for start := time.Now(); time.Since(start) < 20*time.Millisecond; {
		rand.Int()
	}
	runtime.Gosched()
	b, err := readCounters(os.Getpid())
	require.NoError(t, err)
	cpu, n = b.since(a)
	require.Positive(t, cpu)
	require.GreaterOrEqual(t, n, int64(0))
	_, err = readCounters(1 << 23) // above every PID
	require.Error(t, err)
}

func TestChosen(t *testing.T) {
	rows := []row{{name: "random read", seconds: 2}, {name: "remove", seconds: 1}, {name: "walk", optional: true}}
	require.Len(t, chosen(append([]row{}, rows...), ""), 2)
	require.Len(t, chosen(append([]row{}, rows...), "re,walk"), 2)
	require.Empty(t, chosen(append([]row{}, rows...), "none"))
	require.Equal(t, 2*time.Minute, estimate([]row{{seconds: 6}}, 4, 3))
}

func TestTables(t *testing.T) {
	systems := []*system{{name: "lanefs", kind: lanefs}, {name: "null", kind: null}, {name: "kernel", kind: kernel}}
	rows := []row{{name: "reads", unit: "IOPS"}, {name: "cp", unit: "s", lessIsBetter: true, content: true}}
	r := results{}
	r.add("reads", "lanefs", figure{20000, 30, 2})
	r.add("reads", "null", figure{40000, 15, 1})
	r.add("reads", "kernel", figure{10000, 0, 0})
	r.add("cp", "lanefs", figure{4, 250, 11})
	r.add("cp", "kernel", figure{1, 0, 0})
	require.Equal(t, ""+
		"             lanefs    null  kernel\n"+
		"reads, IOPS  20,000  40,000  10,000\n"+
		"cp, s         4.000       -   1.000\n", r.table(systems, rows).terminal())
	require.Equal(t, ""+
		"|  | null | kernel |\n|---|---|---|\n"+
		"| reads, IOPS | 50 % | 2.00× |\n"+
		"| cp, s | - | 0.25× |\n", r.ratios(systems[0], systems, rows).markdown())
	require.Equal(t, [][]string{{"reads, IOPS", "30.0; 2.00", "15.0; 1.00", "-"}, {"cp, s", "250.0; 11.00", "-", "-"}}, r.costs(systems, rows).lines)
}

// TestPlot: a picture of two machines' figures has a point for each, and a file without figures is refused.
func TestPlot(t *testing.T) {
	dir := t.TempDir()
	rows := []row{{name: "read", unit: "IOPS"}, {name: "copy", unit: "s", lessIsBetter: true}}
	r := results{}
	for name, v := range map[string]float64{"lanefs:io_uring=on": 400, "fuse2fs 1.47.0": 100, "kernel": 200} {
		r.add("read", name, figure{Value: v})
		r.add("copy", name, figure{Value: 1 / v})
	}
	one, out := filepath.Join(dir, "one.json"), filepath.Join(dir, "out.svg")
	require.NoError(t, r.write(one, rows))
	require.NoError(t, plot(out, one, one))
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, 4, strings.Count(string(text), "LaneFS, machine"))
	require.NotContains(t, string(text), "%!")
	require.Contains(t, string(text), "copy: LaneFS, machine 2: 4.00×")
	require.Contains(t, string(text), "read: the kernel's ext4, machine 1: 2.00×")
	require.NoError(t, xml.Unmarshal(text, new(struct{})))
	require.NoError(t, os.WriteFile(one, []byte("[]"), 0o600))
	require.ErrorContains(t, plot(out, one), "no row has figures")
}

// TestPlotOfTables: docs/bench.svg is what the tables of docs/PERFORMANCE.md make; other tables are left out.
func TestPlotOfTables(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.svg")
	require.NoError(t, plot(out, "../../docs/PERFORMANCE.md"))
	want, err := os.ReadFile(out)
	require.NoError(t, err)
	have, err := os.ReadFile("../../docs/bench.svg")
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "make docs draws it")

	all := readTables("| | LaneFS | fuse2fs 1.47 | kernel ext4 | against |\n|---|---|---|---|---|\n| `cp`, s | 2 | 8 | 1,000.5 | 4× |\n\n| | LaneFS, a | LaneFS, b | fuse2fs | kernel |\n|---|---|---|---|---|\n| x, s | 1 | 1 | 1 | 1 |\n")
	require.Equal(t, []line{{Row: "cp", Unit: "s", LessIsBetter: true, Figures: map[string][]figure{
		"lanefs": {{Value: 2}}, "fuse2fs": {{Value: 8}}, "kernel": {{Value: 1000.5}}}}}, all)
}

// TestDocument: the tables of earlier runs stand between the document's marks, each machine's of its own, with what is missed in bold, and the
// picture reads them. A document without marks stays as it is.
func TestDocument(t *testing.T) {
	dir := t.TempDir()
	rows := []row{{name: "random read 4 KiB, O_DIRECT", unit: "IOPS"}, {name: "create 2,000 files", unit: "s", lessIsBetter: true}}
	r := results{}
	for name, v := range map[string]float64{"lanefs io_uring=on": 400, "null io_uring": 500, "fuse2fs 1.47.0": 100, "kernel": 200} {
		r.add(rows[0].name, name, figure{Value: v, CPU: 16})
		r.add(rows[1].name, name, figure{Value: 100 / v})
	}
	one, doc := filepath.Join(dir, "one.json"), filepath.Join(dir, "doc.md")
	require.NoError(t, r.write(one, rows))
	require.NoError(t, os.WriteFile(doc, []byte("a\n"), 0o600))
	require.ErrorContains(t, document(doc, one), "no marks")
	require.NoError(t, os.WriteFile(doc, []byte("a\n"+figuresBegin+"stale\n"+figuresEnd+"b\n"), 0o600))
	require.Error(t, document(doc))
	for range 2 { // what is there is replaced
		require.NoError(t, document(doc, one, one))
	}
	b, err := os.ReadFile(doc)
	require.NoError(t, err)
	text := string(b)
	require.True(t, strings.HasPrefix(text, "a\n") && strings.HasSuffix(text, figuresEnd+"b\n") && !strings.Contains(text, "stale"))
	require.Equal(t, 2, strings.Count(text, "| random read 4 KiB, O_DIRECT, IOPS | 400 | 500 | 100 | 200 | 4.00× | 2.00× | 80 % | 16; 0.0 |\n"))
	require.Contains(t, text, "| random read 4 KiB, O_DIRECT | 2.5: 4.00×, 4.00× | 1.5: 2.00×, 2.00× | 70 %: 80 %, 80 % | 15 µs of CPU: **16 µs**, **16 µs** |\n")
	require.Contains(t, text, "| create 2,000 files | 5: **4.00×**, **4.00×** | 0.25: 2.00×, 2.00× |  |  |\n")
	out := filepath.Join(dir, "out.svg")
	require.NoError(t, plot(out, doc))
	b, err = os.ReadFile(out)
	require.NoError(t, err)
	require.Contains(t, string(b), "create 2,000 files: LaneFS, machine 2: 4.00×")

	// Both ways: the factors are those of the first, and the picture reads the table all the same.
	r.add(rows[0].name, byDevice, figure{Value: 300, CPU: 99})
	require.NoError(t, r.write(one, rows))
	require.NoError(t, document(doc, one))
	b, err = os.ReadFile(doc)
	require.NoError(t, err)
	require.Contains(t, string(b), "| LaneFS | by /dev/fuse | null | fuse2fs 1.47.0 | kernel |")
	require.Contains(t, string(b), "| random read 4 KiB, O_DIRECT, IOPS | 400 | 300 | 500 | 100 | 200 | 4.00× | 2.00× | 80 % | 16; 0.0 |\n")
	require.Contains(t, string(b), "| create 2,000 files, s | 0.250 | - | 0.200 |")
	require.NoError(t, plot(out, doc))
}

// TestAims: each is of a row that there is.
func TestAims(t *testing.T) {
	var names []string
	for _, r := range new(bench).rows() {
		names = append(names, r.name)
	}
	for _, a := range aims {
		require.Contains(t, names, a.row)
	}
}
