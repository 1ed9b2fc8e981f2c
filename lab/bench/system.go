package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

const imageSize = 2 << 30

// system is a way to mount an image.
type system struct {
	name       string
	image, mnt string
	mountArgs  []string // command that mounts
	umountArgs []string
	mounted    bool
}

func (b *bench) systems() []*system {
	newSystem := func(name string, mount, umount func(image, mnt string) []string) *system {
		s := &system{name: name, image: filepath.Join(b.dir, name+".img"), mnt: filepath.Join(b.dir, name)}
		s.mountArgs, s.umountArgs = mount(s.image, s.mnt), umount(s.image, s.mnt)
		return s
	}
	return []*system{
		newSystem("lanefs", func(i, m string) []string {
			if b.options != "" {
				return []string{b.lanefs, "mount", "-o", b.options, i, m}
			}
			return []string{b.lanefs, "mount", i, m}
		}, func(_, m string) []string { return []string{b.lanefs, "umount", m} }),
		newSystem("fuse2fs", func(i, m string) []string { return []string{"fuse2fs", i, m, "-o", "rw"} },
			func(_, m string) []string { return []string{"fusermount3", "-u", m} }),
		newSystem("kernel", func(i, m string) []string { return []string{"mount", "-t", "ext4", "-o", "loop", i, m} },
			func(_, m string) []string { return []string{"umount", m} }),
	}
}

func (s *system) format() error {
	if err := os.MkdirAll(s.mnt, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(s.image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(s.image, imageSize); err != nil {
		return err
	}
	// Initialised inode tables, so that no kernel thread does it during the run.
	_, err := drive.Run("mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "metadata_csum_seed,orphan_file", "-E", "lazy_itable_init=0,lazy_journal_init=0", s.image)
	return err
}

func (s *system) mount() error {
	if _, err := drive.Run(s.mountArgs[0], s.mountArgs[1:]...); err != nil {
		return err
	}
	s.mounted = true
	return nil
}

// unmount returns when the image is free: fuse2fs runs on for a moment after its unmount.
func (s *system) unmount() error {
	if _, err := drive.Run(s.umountArgs[0], s.umountArgs[1:]...); err != nil {
		return err
	}
	s.mounted = false
	if s.name != "fuse2fs" {
		return nil
	}
	for range 600 {
		if !inUse(s.image) {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("fuse2fs still has %s open a minute after its mount is gone", s.image)
}

// inUse looks for a process that has the file open.
func inUse(path string) bool {
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, path) {
			return true
		}
	}
	return false
}

// abandon removes what a failed run left.
func (s *system) abandon() error {
	if !s.mounted {
		return nil
	}
	if err := s.unmount(); err != nil {
		return errors.Join(err, exec.Command("umount", "-l", s.mnt).Run())
	}
	return nil
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
