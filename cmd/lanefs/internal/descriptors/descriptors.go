// Package descriptors ends a program that may open too few files, with words, before other packages' init functions panic for want of one: go-fuse's makes a pipe, and Go's runtime
// an epoll instance. It is imported for that alone. Go initializes packages in the order of their paths, each after its imports; this one imports nothing but the standard library, so it comes before
// golang.org/x/sys, without which neither go-fuse nor anything else of the program that opens a file is.
package descriptors

import (
	"os"
	"strconv"
	"syscall"
)

// least is how many descriptors go-fuse and the runtime take to begin with: a pipe, an epoll instance and its eventfd.
const least = 4

func init() {
	if err := room(least); err != nil {
		os.Stderr.WriteString(words(err))
		os.Exit(1)
	}
}

// room says with what error n more descriptors cannot be had. os has raised the soft limit by now.
func room(n int) (err error) {
	var all []int
	for range n {
		var fd int
		if fd, err = syscall.Dup(2); err != nil { // Go's runtime sees to it that there is one
			break
		}
		all = append(all, fd)
	}
	for _, fd := range all {
		_ = syscall.Close(fd)
	}
	return err
}

func words(err error) string {
	var limit syscall.Rlimit
	if err == syscall.EMFILE && syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		return "lanefs: too many open files: the limit is " + strconv.FormatUint(limit.Cur, 10) + ", raise it (ulimit -n, or LimitNOFILE of a unit)\n"
	}
	return "lanefs: no more files can be opened: " + err.Error() + "\n"
}
