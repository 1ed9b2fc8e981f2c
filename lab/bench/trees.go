package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// copyTree copies a tree and makes it durable.
func (b *bench) copyTree(s *system) (done, error) {
	return copied(b.tree, filepath.Join(s.mnt, "src"))
}

// copyPart copies what is small enough for a row beside other work: a third of Go's source files.
func (b *bench) copyPart(s *system) (done, error) {
	from := filepath.Join(b.tree, "cmd")
	if _, err := os.Stat(from); err != nil {
		from = b.tree // another tree
	}
	return copied(from, filepath.Join(s.mnt, "part"))
}

func copied(from, to string) (done, error) {
	n, err := count(from)
	if err != nil {
		return done{}, err
	}
	start := time.Now()
	if _, err := drive.Run("cp", "-a", from, to); err != nil {
		return done{}, err
	}
	err = sync(filepath.Dir(to))
	return done{time.Since(start).Seconds(), float64(n)}, err
}

// count says how many names are in a tree.
func count(dir string) (n int, err error) {
	err = filepath.WalkDir(dir, func(string, fs.DirEntry, error) error { n++; return nil })
	return n, err
}

// sync calls syncfs(2) on the file system at dir.
func sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("syncfs %s: %w", dir, err)
	}
	return nil
}
