package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/share/gate"
)

// A file system ends when the last mount of it goes: bind mounts, also of a single file, and the copies in other mount
// namespaces. The kernel does not tell an unmount which they are.

// remainingUsers says what keeps the file system of m, which is unmounted.
func remainingUsers(m *mountinfo.Info) string {
	var users []string
	if others, err := elsewhere(m); err == nil {
		for _, o := range others {
			users = append(users, "an unmount of "+describe(o))
		}
	}
	for _, h := range otherNamespaces(m) {
		users = append(users, "an unmount in the mount namespace of "+h.String())
	}
	if len(users) == 0 {
		return "the last file that is open in it, or a mount namespace that cannot be seen from here"
	}
	return strings.Join(users, ", ")
}

// seer is a process that sees a file system in a mount namespace other than ours.
type seer struct {
	pid, name string
	at        string // a mount of it there
}

func (h seer) String() string { return fmt.Sprintf("process %s (%s)", h.pid, h.name) }

// otherNamespaces are processes that see the file system of m in a mount namespace other than ours, one for each.
func otherNamespaces(m *mountinfo.Info) (all []seer) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil
	}
	// A daemon, or a process of the user's, says more than its gate or a thread of the kernel's that is in the same namespace. The shorter number comes first, for the rest:
	// who made a namespace is older than who was started in it.
	first := map[string]string{}
	var order []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	slices.SortStableFunc(dirs, func(a, b string) int { return cmp.Compare(len(a), len(b)) }) // each length is in order
	for _, d := range dirs {
		namespace, err := os.Readlink(d + "/ns/mnt")
		if err != nil || namespace == own {
			continue // ended, or another user's
		}
		known, seen := first[namespace]
		if !seen {
			order = append(order, namespace)
		}
		if !seen || aside(known) && !aside(d) {
			first[namespace] = d
		}
	}
	for _, namespace := range order {
		d := first[namespace]
		if at := sees(d, m); at != "" {
			name, _ := os.ReadFile(d + "/comm")
			all = append(all, seer{filepath.Base(d), strings.TrimSpace(string(name)), at})
		}
	}
	return all
}

// aside says whether a process is one that nobody has started.
func aside(proc string) bool {
	name, _ := os.ReadFile(proc + "/comm")
	return kernelThread(proc) || strings.TrimSpace(string(name)) == gate.ProcessName
}

// sees says where the process of a directory in /proc sees the file system of m, "" if nowhere.
func sees(proc string, m *mountinfo.Info) string {
	f, err := os.Open(proc + "/mountinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	same, err := mountinfo.GetMountsFromReader(f, func(other *mountinfo.Info) (skip, stop bool) {
		return fs.Number(other) != fs.Number(m) || other.Source != m.Source, false
	})
	if err != nil || len(same) == 0 {
		return ""
	}
	return same[0].Mountpoint
}

// kernelThread says whether a process has no program. Its command line would say so, too; but that lies in its memory, and
// reading it waits as long as a page fault does.
func kernelThread(proc string) bool {
	_, err := os.Readlink(proc + "/exe")
	return errors.Is(err, os.ErrNotExist)
}
