package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	gosync "sync"
	"time"
)

// The rows of machines with many CPUs: as many programs at once as CPUs may run.

const eachFiles = 500 // of one program

// each has a function, which does something with eachFiles files, called for as many programs at once as CPUs may run, and returns how many files a second they did it with.
func each(f func(program int) error) (float64, error) {
	var wg gosync.WaitGroup
	errs := make([]error, runtime.NumCPU())
	start := time.Now()
	for p := range errs {
		wg.Go(func() { errs[p] = f(p) })
	}
	wg.Wait()
	return float64(eachFiles*len(errs)) / time.Since(start).Seconds(), errors.Join(errs...)
}

func ofEach(mnt string, program, i int) string {
	return filepath.Join(mnt, fmt.Sprintf("each-%d", program), fmt.Sprintf("file-%05d", i))
}

// createEach has each program make files of 100 bytes in a directory of its own.
func createEach(mnt string) (float64, error) {
	content := make([]byte, 100)
	return each(func(program int) error {
		if err := os.Mkdir(filepath.Dir(ofEach(mnt, program, 0)), 0o755); err != nil {
			return err
		}
		for i := range eachFiles {
			if err := os.WriteFile(ofEach(mnt, program, i), content, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

// statEach has each program ask for the attributes of all programs' files, which it opens, too.
func statEach(mnt string) (float64, error) {
	return each(func(program int) error {
		for i := range eachFiles {
			f, err := os.Open(ofEach(mnt, (program+i)%runtime.NumCPU(), i))
			if err != nil {
				return err
			}
			_, err = f.Stat()
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
		}
		return nil
	})
}

func removeEach(mnt string) (float64, error) {
	return each(func(program int) error {
		for i := range eachFiles {
			if err := os.Remove(ofEach(mnt, program, i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// many are the rows. They run only if they are named.
func many() []row {
	n := runtime.NumCPU()
	jobs := fmt.Sprintf("--numjobs=%d", n)
	files := float64(n * eachFiles)
	rows := []row{
		{name: "random read 4 KiB, O_DIRECT", unit: "IOPS", seconds: 2, filled: true, measure: random("--rw=randread", jobs)},
		{name: "random write 4 KiB, O_DIRECT", unit: "IOPS", seconds: 2, filled: true, measure: random("--rw=randwrite", jobs)},
		{name: "sequential write 1 MiB, a file each", unit: "MB/s", seconds: 2, measure: fio("--filename_format=each.$jobnum", "--rw=write", "--bs=1M", "--size=64M", "--end_fsync=1", jobs)},
		{name: "sequential read 1 MiB, a file each", unit: "MB/s", seconds: 2, measure: fio("--filename_format=each.$jobnum", "--rw=read", "--bs=1M", "--size=64M", jobs)},
		{name: "append 4 KiB and fsync", unit: "a second", seconds: 1, measure: of(appends, appendSync(n))},
		{name: "create files", unit: "a second", seconds: 2, measure: of(files, createEach)},
		{name: "open, stat and close files", unit: "a second", seconds: 1, measure: of(files, statEach)},
		{name: "remove files", unit: "a second", seconds: 1, measure: of(files, removeEach)},
	}
	for i := range rows {
		rows[i].name, rows[i].optional = "many: "+rows[i].name, true
	}
	return rows
}
