package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

const imageSize = 2 << 30

// Kinds of systems.
const (
	lanefs  = "lanefs"
	null    = "null"
	fuse2fs = "fuse2fs"
	kernel  = "kernel"
)

// system is a way to mount an image: a column of the tables.
type system struct {
	name, kind string
	argument   string // mount options of LaneFS, the transport of null, the path of fuse2fs
	image, mnt string
	lanefs     string    // the binary
	pid        int       // of the daemon; 0: none
	server     *exec.Cmd // of null
	mounted    bool
	grown      float64 // bytes of the daemon's memory for each file of the row walk
}

func (s *system) format() error {
	if err := os.MkdirAll(s.mnt, 0o755); err != nil {
		return err
	}
	if s.kind == null {
		return nil
	}
	if err := os.WriteFile(s.image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(s.image, imageSize); err != nil {
		return err
	}
	// Initialised inode tables, so that no kernel thread does it during the run.
	_, err := drive.Run("mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "metadata_csum_seed,orphan_file",
		"-E", "lazy_itable_init=0,lazy_journal_init=0", s.image)
	return err
}

func (s *system) mount(b *bench) (err error) {
	switch s.kind {
	case lanefs:
		err = s.mountLaneFS(b)
	case null:
		s.pid, err = s.mountNull(b.transport)
	case fuse2fs:
		if _, err = drive.Run(s.argument, s.image, s.mnt, "-o", "rw"); err == nil {
			s.mounted = true
			if s.pid = user(s.image); s.pid == 0 {
				err = fmt.Errorf("no process has %s open", s.image)
			}
		}
	default:
		_, err = drive.Run("mount", "-t", "ext4", "-o", "loop", s.image, s.mnt)
	}
	s.mounted = s.mounted || err == nil
	return err
}

// mountLaneFS mounts, and notes the transport for null. A mount that does not have the one it was asked for fails.
func (s *system) mountLaneFS(b *bench) error {
	args := []string{"mount"}
	if s.argument != "" {
		args = append(args, "-o", s.argument)
	}
	if _, err := drive.Run(s.lanefs, append(args, s.image, s.mnt)...); err != nil {
		return err
	}
	s.mounted = true
	st, err := drive.ReadStat(s.lanefs, s.mnt)
	if err != nil {
		return err
	}
	s.pid = st.PID
	transport := "fuse"
	if strings.HasPrefix(st.FUSE.Transport, "io_uring") {
		transport = "io_uring"
	}
	if strings.Contains(s.argument, "io_uring=on") && transport != "io_uring" {
		return fmt.Errorf("io_uring is not used: %s", st.FUSE.WhyNot)
	}
	if b.transport == "" {
		b.transport = transport
	}
	return nil
}

// unmount returns when the image is free: fuse2fs runs on for a moment after its unmount.
func (s *system) unmount() (err error) {
	switch s.kind {
	case lanefs:
		_, err = drive.Run(s.lanefs, "umount", s.mnt)
	case fuse2fs:
		_, err = drive.Run("fusermount3", "-u", s.mnt)
	default:
		err = unix.Unmount(s.mnt, 0)
	}
	if err != nil {
		return err
	}
	s.mounted, s.pid = false, 0
	if s.kind == null {
		return s.server.Wait()
	}
	for range 600 {
		if user(s.image) == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("%s still has %s open a minute after its mount is gone", s.name, s.image)
}

// user is a process that has the file open, 0 if there is none.
func user(path string) int {
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == path {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	return 0
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
