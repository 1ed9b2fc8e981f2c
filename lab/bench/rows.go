package main

import (
	"os"
	"path/filepath"
	"time"
)

// row is one line of the tables.
type row struct {
	name, unit   string
	seconds      float64 // about how long it takes, with what it does unmeasured
	lessIsBetter bool
	content      bool // needs what was written: a null file system cannot do it
	ofDaemon     bool // the figure is one of the daemon
	optional     bool // runs only if it is named
	filled       bool // needs the file of the sequential rows, which is written first if those did not run
	measure      func(s *system) (done, error)
}

// done is what a row did.
type done struct {
	value float64 // in the row's unit
	ops   float64 // for the costs: requests, files, transactions; 0: none to speak of
}

// run measures a row, and what it costs the daemon.
func (r row) run(s *system) (figure, error) {
	if _, err := os.Stat(filepath.Join(s.mnt, "seq")); r.filled && err != nil {
		if _, err := fio("--filename=seq", "--rw=write", "--bs=1M", "--size=512M", "--end_fsync=1")(s); err != nil {
			return figure{}, err
		}
	}
	before, err := readCounters(s.pid)
	if err != nil {
		return figure{}, err
	}
	d, err := r.measure(s)
	if err != nil {
		return figure{}, err
	}
	f := figure{Value: d.value}
	if d.ops == 0 {
		return f, nil
	}
	after, err := readCounters(s.pid)
	if err != nil {
		return f, err
	}
	cpu, switches := after.since(before)
	f.CPU, f.Switches = float64(cpu)/float64(time.Microsecond)/d.ops, float64(switches)/d.ops
	return f, nil
}

// of adapts a measurement that returns seconds, or a rate, for a number of operations that is always the same.
func of(ops float64, measure func(mnt string) (float64, error)) func(*system) (done, error) {
	return func(s *system) (done, error) {
		v, err := measure(s.mnt)
		return done{v, ops}, err
	}
}

// random draws blocks of 4 KiB of the file of the sequential rows, round the page cache.
func random(args ...string) func(*system) (done, error) {
	return fio(append([]string{"--filename=seq", "--bs=4k", "--size=512M", "--time_based", "--runtime=1500ms", "--direct=1"}, args...)...)
}

// rows are the table's lines, in the order in which they run on one volume.
func (b *bench) rows() []row {
	sequential := func(args ...string) func(*system) (done, error) {
		return fio(append([]string{"--filename=seq", "--bs=1M", "--size=512M"}, args...)...)
	}
	// Eight programs that append small pieces, as logs do.
	small := fio("--rw=write", "--bs=4k", "--size=16M", "--numjobs=8", "--end_fsync=1")
	s := func(name string, seconds float64, measure func(*system) (done, error)) row {
		return row{name: name, unit: "s", seconds: seconds, lessIsBetter: true, measure: measure}
	}
	content := func(r row) row { r.content = true; return r }
	return append([]row{
		{name: "sequential write 1 MiB, fresh image", unit: "MB/s", seconds: 1, measure: sequential("--rw=write", "--end_fsync=1")},
		{name: "sequential write 1 MiB", unit: "MB/s", seconds: 1, filled: true,
			measure: sequential("--rw=write", "--overwrite=1", "--end_fsync=1")},
		{name: "sequential read 1 MiB", unit: "MB/s", seconds: 1, filled: true, measure: sequential("--rw=read")},
		{name: "random read 4 KiB", unit: "IOPS", seconds: 2, filled: true,
			measure: fio("--filename=seq", "--rw=randread", "--bs=4k", "--size=512M", "--io_size=96M")},
		{name: "random write 4 KiB", unit: "IOPS", seconds: 2, filled: true,
			measure: fio("--filename=seq", "--rw=randwrite", "--bs=4k", "--size=512M", "--io_size=96M", "--end_fsync=1")},
		{name: "random read 4 KiB, O_DIRECT", unit: "IOPS", seconds: 2, filled: true, measure: random("--rw=randread")},
		{name: "random write 4 KiB, O_DIRECT", unit: "IOPS", seconds: 2, filled: true, measure: random("--rw=randwrite")},
		{name: "random read 4 KiB, O_DIRECT, 4 jobs", unit: "IOPS", seconds: 2, filled: true, measure: random("--rw=randread", "--numjobs=4")},
		{name: "random write 4 KiB, O_DIRECT, 4 jobs", unit: "IOPS", seconds: 2, filled: true, measure: random("--rw=randwrite", "--numjobs=4")},
		{name: "hog: random read 4 KiB, O_DIRECT", unit: "IOPS", seconds: 3, filled: true, measure: besideHog(random("--rw=randread"))},
		{name: "buffered write 4 KiB, 8 jobs", unit: "IOPS", seconds: 3, measure: small},
		{name: "fsync: random write 4 KiB, each", unit: "IOPS", seconds: 1, measure: fio("--filename=dur", "--rw=randwrite", "--bs=4k", "--size=64M",
			"--io_size=8M", "--fsync=1")},
		{name: "fsync: append 4 KiB, 1 writer", unit: "a second", seconds: 1, measure: of(appends, appendSync(1))},
		{name: "fsync: append 4 KiB, 8 writers", unit: "a second", seconds: 1, measure: of(appends, appendSync(8))},
		s("fsync: 1,000 new files, each", 1, of(synced, createSync)),
		s("create 2,000 files", 1, of(files, createFiles)),
		s("list 2,000 files", 1, of(files, listFiles)),
		s("remove 2,000 files", 1, of(files, removeFiles)),
		s("tar x of 5,000 files, syncfs", 4, b.tar),
		content(s("git clone and status of 5,000 files", 5, b.git)),
		content(s("sqlite3, 10,000 inserts in WAL mode", 3, sqlite)),
		s("cp -a of Go's source tree, syncfs", 6, b.copyTree),
		s("hog: cp -a of a part of it, syncfs", 6, besideHog(b.copyPart)),
		{name: "idle mount", unit: "% of a CPU", seconds: 5, lessIsBetter: true, ofDaemon: true, measure: idle},
		{name: "onset: the longest random read 4 KiB, O_DIRECT, once another program computes", unit: "ms", seconds: 2, lessIsBetter: true, filled: true, optional: true,
			measure: onset},
		{name: "walk 100,000 files after a mount", unit: "s", seconds: 60, lessIsBetter: true, content: true, optional: true, measure: walk},
		{name: "walk: memory of the daemon", unit: "bytes a file", lessIsBetter: true, content: true, ofDaemon: true, optional: true, measure: walked},
	}, many()...)
}
