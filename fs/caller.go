package fs

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// The caller of a request. The kernel sends the file-system user and group IDs and the thread ID, but neither capabilities nor
// supplementary groups. Root counts as having every capability; the supplementary groups are read in /proc.

// inGroup reports whether the caller is a member of a group. Capabilities do not count. Of a thread in another PID namespace only the
// file-system group ID is known.
func inGroup(c *fuse.Caller, gid uint32) bool {
	if c.Gid == gid {
		return true
	}
	status, ok := statusOf(c.Pid)
	if !ok {
		return false
	}
	_, rest, _ := bytes.Cut(status, []byte("\nGroups:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return slices.ContainsFunc(bytes.Fields(line), func(b []byte) bool {
		n, err := strconv.ParseUint(string(b), 10, 32)
		return err == nil && uint32(n) == gid
	})
}

var (
	readStatus     = os.ReadFile
	statusPatience = 5 * time.Second // a busy machine takes less
)

// statusOf reads /proc/PID/status. The kernel holds the memory of that program meanwhile. If the program ends just then, the read does not return before
// all of its asynchronous requests are answered (exit_aio), and the one for which this is asked may be among them. So the wait is bounded: then nobody is
// left who would miss a group.
func statusOf(pid uint32) (status []byte, ok bool) {
	file, read := readStatus, make(chan []byte, 1)
	go func() {
		b, err := file(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			b = nil
		}
		read <- b
	}()
	select {
	case status = <-read:
		return status, status != nil
	case <-time.After(statusPatience):
		return nil, false
	}
}

// may returns the caller's privileges. Root and the user and group that the superblock names may use reserved blocks. Dirty pages that
// the kernel writes back by itself carry no caller and may not use them. Root of another PID namespace looks the same (PID 0), so it may
// not use them either.
func (s *Server) may(c *fuse.Caller) ext4.May {
	if c.Pid == 0 {
		return 0
	}
	if c.Uid == 0 || c.Uid == s.reservedUID || s.reservedGID != 0 && inGroup(c, s.reservedGID) {
		return ext4.UseReserved
	}
	return 0
}

// withoutPriv returns mode without the set-ID bits that a change of the file by c clears. Set-user-ID is always cleared. Set-group-ID is
// cleared if the group may execute the file, or if c is not in the group and is not root (only root counts as having CAP_FSETID).
// Directories keep both.
func withoutPriv(mode, gid uint32, c *fuse.Caller) uint32 {
	if mode&sIFMT == sIFDIR {
		return mode
	}
	mode &^= sISUID
	if mode&sISGID != 0 && (mode&syscall.S_IXGRP != 0 || c.Uid != 0 && !inGroup(c, gid)) {
		mode &^= sISGID
	}
	return mode
}
