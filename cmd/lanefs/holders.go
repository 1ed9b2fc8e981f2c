package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/lanefs/lanefs/fs"
)

// A mount that was copied into other mount namespaces ends when the last of them lets go of it. An unmount waits for that
// without a word from the kernel about who it is.

// holdersAfter is how long an unmount may take before somebody looks for who holds it up.
const holdersAfter = 10 * time.Second

// nameHolders says on out, once, who holds m up if it is gone from here and ended is not closed soon.
func nameHolders(m *mountinfo.Info, out io.Writer, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(holdersAfter):
		}
		if here, err := fs.MountedAt(m.Mountpoint); err != nil || here != nil && here.ID == m.ID {
			continue
		}
		if who := holders(m); len(who) > 0 {
			fmt.Fprintf(out, "lanefs: %q is unmounted here, but not in the mount namespace of %s: still waiting for that\n",
				m.Mountpoint, strings.Join(who, ", "))
			return
		}
	}
}

// holders are the processes that still see the mount m, one for each mount namespace.
func holders(m *mountinfo.Info) (who []string) {
	seen := map[string]bool{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		namespace, err := os.Readlink(d + "/ns/mnt")
		if err != nil || seen[namespace] {
			continue // ended, or another user's
		}
		seen[namespace] = true
		f, err := os.Open(d + "/mountinfo")
		if err != nil {
			continue
		}
		same, err := mountinfo.GetMountsFromReader(f, func(other *mountinfo.Info) (skip, stop bool) {
			return other.Major != m.Major || other.Minor != m.Minor, false
		})
		f.Close()
		if err != nil || len(same) == 0 {
			continue
		}
		name, _ := os.ReadFile(d + "/comm")
		who = append(who, fmt.Sprintf("process %s (%s)", filepath.Base(d), strings.TrimSpace(string(name))))
	}
	return who
}
