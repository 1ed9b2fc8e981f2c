package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const walkFiles, walkDir = 100_000, 1000 // files in all, and in a directory

// walk makes files without content, mounts the volume anew, and reads all names and attributes, as find -size does. It notes how much
// the daemon has grown. The dentries that the kernel keeps keep the daemon's inodes.
func walk(s *system) (done, error) {
	top := filepath.Join(s.mnt, "walk")
	for i := range walkFiles {
		dir := filepath.Join(top, fmt.Sprint(i/walkDir))
		if i%walkDir == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return done{}, err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%06d", i)), nil, 0o644); err != nil {
			return done{}, err
		}
	}
	if err := errors.Join(s.unmount(), s.mount(&bench{})); err != nil {
		return done{}, err
	}
	before, err := s.memory()
	if err != nil {
		return done{}, err
	}
	start := time.Now()
	seen := 0
	err = filepath.WalkDir(top, func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			_, err = d.Info()
			seen++
		}
		return err
	})
	elapsed := time.Since(start).Seconds()
	if want := walkFiles + walkFiles/walkDir + 1; err == nil && seen != want {
		err = fmt.Errorf("%d names of %d", seen, want)
	}
	if err != nil {
		return done{}, err
	}
	after, err := s.memory()
	s.grown = float64(after-before) / float64(seen)
	return done{value: elapsed}, err // without costs: the daemon is another than before
}

// walked is what the walk before has cost the daemon.
func walked(s *system) (done, error) {
	if s.pid != 0 && s.grown == 0 {
		return done{}, errors.New("comes after a walk")
	}
	return done{value: s.grown}, nil
}

// memory is the daemon's resident memory in bytes, 0 without one.
func (s *system) memory() (int64, error) {
	if s.pid == 0 {
		return 0, nil
	}
	return resident(s.pid)
}
