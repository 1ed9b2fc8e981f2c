package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	gosync "sync"
	"time"
)

// The rows of programs that need their data on the medium: databases, mail servers, editors.

const (
	appends = 2000 // of one writer
	synced  = 1000 // files
)

// appendSync returns a measurement of parallel writers. Each appends 4 KiB to a file of its own and calls fsync, repeatedly, as a
// database does with its log. The result is the number of such steps of all writers per second.
func appendSync(writers int) func(mnt string) (float64, error) {
	return func(mnt string) (float64, error) {
		var wg gosync.WaitGroup
		errs := make([]error, writers)
		start := time.Now()
		for w := range writers {
			wg.Go(func() { errs[w] = appendTo(filepath.Join(mnt, fmt.Sprintf("log-%d-%d", writers, w)), appends/writers) })
		}
		wg.Wait()
		return float64(appends/writers*writers) / time.Since(start).Seconds(), errors.Join(errs...)
	}
}

func appendTo(path string, n int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 4096)
	for range n {
		if _, err := f.Write(b); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return f.Close()
}

// createSync makes files of 100 bytes and calls fsync on each before it makes the next.
func createSync(mnt string) (float64, error) {
	dir := filepath.Join(mnt, "synced")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, err
	}
	content := make([]byte, 100)
	start := time.Now()
	for i := range synced {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("file-%04d", i)))
		if err != nil {
			return 0, err
		}
		_, err = f.Write(content)
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return 0, err
		}
	}
	return time.Since(start).Seconds(), nil
}
