package claim

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Other devices and images are looked at, too, to see whether they stand on the same bytes. Their file systems may never answer: one that a program serves which hangs, a server that cannot
// be reached. A thread that asked would be lost, with its privileges and the open files of its process, so there a child process asks: what a file system of that
// kind has to say of a loop device's file, losetup(8), and of a path, stat(1). It is given up after answerTime; where there is no such program, or one that says something else, the
// caller asks after all. A loop device that cannot be asked is known by its file's name only, as
// one that may not be: if it stood on the image's file system, that would have answered, since it just has.

// answerTime is how long they are waited for: so long that a busy machine has started a program and had its answer. Tests have less.
var answerTime = 10 * time.Second

var errNoAnswer = errors.New("its file system does not answer")

// served are types of file systems that ask a program or another machine, besides fuse.* and nfs*.
var served = []string{"fuse", "fuseblk", "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "gpfs", "lustre", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs"}

// mayHang guesses by its name whether a file is on one of them, or of another mount namespace, whose file systems are not seen. Tests have their own guess.
var mayHang = guessHang

func guessHang(path string) bool {
	on := mountOf(path)
	if on == nil {
		return true
	}
	return slices.Contains(served, on.FSType) || strings.HasPrefix(on.FSType, "fuse.") || strings.HasPrefix(on.FSType, "nfs") || !exists(path)
}

// loopInTime is loop for a device that is another's.
func (s system) loopInTime(name string, dev uint64) (l loop, err error) {
	if !mayHang(readLine(filepath.Join(s.sys, "dev/block", number(dev), "loop/backing_file"))) {
		return s.loop(name, dev)
	}
	var major, minor uint32
	err = child(func(said string) error {
		_, err := fmt.Sscanf(said, "%d %d:%d %d %d", &l.ino, &major, &minor, &l.off, &l.size)
		return err
	}, "losetup", "--list", "--raw", "--noheadings", "--output", "BACK-INO,BACK-MAJ:MIN,OFFSET,SIZELIMIT", "/dev/"+name)
	if err != nil && !errors.Is(err, errNoAnswer) {
		return s.loop(name, dev)
	}
	l.dev = unix.Mkdev(major, minor)
	return l, err
}

// stat is stat(2) of a path that another has named.
func stat(path string) (st unix.Stat_t, err error) {
	if !mayHang(path) {
		return st, unix.Stat(path, &st)
	}
	var major, minor uint32
	err = child(func(said string) error {
		_, err := fmt.Sscanf(said, "%d %d %x %x %x", &st.Dev, &st.Ino, &st.Mode, &major, &minor)
		return err
	}, "stat", "-L", "-c", "%d %i %f %t %T", "--", path)
	if err != nil && !errors.Is(err, errNoAnswer) {
		return st, unix.Stat(path, &st)
	}
	st.Rdev = unix.Mkdev(major, minor)
	return st, err
}

// late says when a command's child was given up: for as long again it is not asked anew.
var late sync.Map

// child runs a program and has what it says read.
func child(read func(said string) error, name string, args ...string) error {
	c := exec.Command(name, args...)
	if given, ok := late.Load(c.String()); ok && time.Since(given.(time.Time)) < answerTime {
		return errNoAnswer
	}
	var said bytes.Buffer
	c.Stdout = &said
	if err := c.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	limit := time.NewTimer(answerTime)
	defer limit.Stop()
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return read(said.String())
	case <-limit.C:
		late.Store(c.String(), time.Now())
		_ = c.Process.Kill() // it may have ended, and it may not end before its file system answers
		return errNoAnswer
	}
}
