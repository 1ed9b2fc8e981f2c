package fs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// Who makes a request. The kernel sends the user and the group that act and the number of the thread, but neither its
// capabilities nor its other groups. Root is taken for who has every capability; the other groups are in /proc.

// callerOf is who makes the request that ctx belongs to; root when it comes from the kernel itself.
func callerOf(ctx context.Context) fuse.Caller {
	if c, ok := fuse.FromContext(ctx); ok {
		return *c
	}
	return fuse.Caller{}
}

// inGroup says whether the caller is of a group, without asking for capabilities. Of a thread in another PID namespace
// only the acting group is known.
func inGroup(c *fuse.Caller, gid uint32) bool {
	if c.Gid == gid {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(status, []byte("\nGroups:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return slices.ContainsFunc(bytes.Fields(line), func(b []byte) bool {
		n, err := strconv.ParseUint(string(b), 10, 32)
		return err == nil && uint32(n) == gid
	})
}

// mayOf is what the caller may do beyond others: root, and who the superblock names, may take reserved blocks. What the
// kernel writes back of its cache by itself comes in nobody's name and may not, nor may another PID namespace's root, who
// is not told apart from that.
func (s *Server) mayOf(ctx context.Context) ext4.May {
	c := callerOf(ctx)
	if c.Pid == 0 {
		return 0
	}
	if c.Uid == 0 || c.Uid == s.reservedUID || s.reservedGID != 0 && inGroup(&c, s.reservedGID) {
		return ext4.UseReserved
	}
	return 0
}

// withoutPriv is the mode that is left of a's after c, who does not have CAP_FSETID unless c is root, changed the file:
// set-user-ID goes, and so does set-group-ID where the group may execute the file, or where c is not of the group.
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
