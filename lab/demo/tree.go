package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// tally counts what a tree holds.
type tally struct {
	files, dirs, links int
	bytes              int64 // of regular files
	blocks             int64 // the same in whole blocks of the volume
}

func count(root string) (tally, error) {
	var t tally
	seen := map[uint64]bool{} // files with several names count once
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch {
		case e.IsDir():
			t.dirs++
		case e.Type() == fs.ModeSymlink:
			t.links++
		case e.Type().IsRegular():
			t.files++
			st := info.Sys().(*syscall.Stat_t)
			if st.Nlink > 1 && seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
			t.bytes += info.Size()
			t.blocks += (info.Size() + blockSize - 1) / blockSize * blockSize
		}
		return nil
	})
	return t, err
}

// sameTree compares what diff(1) does not: modes, owners, times to the nanosecond, link counts and targets.
func sameTree(a, b string) error {
	return filepath.WalkDir(a, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(a, path)
		if err != nil {
			return err
		}
		other := filepath.Join(b, rel)
		want, err := identity(path)
		if err != nil {
			return err
		}
		got, err := identity(other)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s is %+v, its copy is %+v", path, want, got)
		}
		return nil
	})
}

type attributes struct {
	mode     uint32
	uid, gid uint32
	links    uint64
	size     int64 // not of directories, whose size depends on the file system
	mtime    syscall.Timespec
	rdev     uint64
	target   string
}

func identity(path string) (attributes, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return attributes{}, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	a := attributes{mode: st.Mode, uid: st.Uid, gid: st.Gid, links: uint64(st.Nlink), size: st.Size, mtime: st.Mtim, rdev: uint64(st.Rdev)}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		a.size = 0
		a.links = 0 // some file systems do not count subdirectories
	case syscall.S_IFLNK:
		t, err := os.Readlink(path)
		if err != nil {
			return a, err
		}
		a.target = t
	}
	return a, nil
}
