// Package utab keeps entries in the table in which libmount remembers options that are for programs and not for the kernel
// (libmount/src/tab_update.c of util-linux; one line each: SRC=… TARGET=… ROOT=… OPTS=…, where octal escapes stand for white space).
//
// umount(8) of root asks statfs(2) for the type of what is mounted at an absolute path, which is fuse for all of FUSE, and then finds no helper
// for fuse.lanefs: it returns while the daemon still writes to the device. It reads the table of mounts, and so finds the helper, if the path
// has an entry in this table.
package utab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is where libmount keeps the table.
const Dir = "/run/mount"

// Option is what an entry of ours says.
const Option = "x-lanefs.wait"

// lockTimeout is how long the table's lock is waited for. Every user can open its file and hold it.
const lockTimeout = 2 * time.Second

// Add adds an entry for a mount of source at target to the table in dir, and takes out entries of ours whose target stays returns false for:
// those of daemons that were killed.
func Add(dir, source, target string, stays func(target string) bool) error {
	return change(dir, func(lines []string) []string {
		lines = slices.DeleteFunc(lines, func(l string) bool {
			at := value(l, "TARGET")
			return ours(l) && (at == target || !stays(at))
		})
		return append(lines, fmt.Sprintf("SRC=%s TARGET=%s ROOT=/ OPTS=%s", escape.Replace(source), escape.Replace(target), Option))
	})
}

// Remove takes out what there is of a mount of source at target: our entry, and mount(8)'s, which only umount(8) would. mount(8) --move changes the target of both, so ours goes wherever it
// says that the mount is, unless stays returns true: the source may be mounted again, beside the mount that a killed daemon left.
func Remove(dir, source, target string, stays func(target string) bool) error {
	return change(dir, func(lines []string) []string {
		return slices.DeleteFunc(lines, func(l string) bool {
			at := value(l, "TARGET")
			return value(l, "SRC") == source && (at == target || ours(l) && !stays(at))
		})
	})
}

// change replaces the table, as libmount does: under its lock, by another file.
func change(dir string, with func(lines []string) []string) error {
	lock, err := locked(filepath.Join(dir, "utab.lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	name := filepath.Join(dir, "utab")
	old, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	text := strings.TrimSuffix(string(old), "\n")
	var lines []string
	if text != "" {
		lines = strings.Split(text, "\n")
	}
	if text = strings.Join(with(lines), "\n"); text != "" {
		text += "\n"
	}
	if text == string(old) {
		return nil
	}
	f, err := os.CreateTemp(dir, "utab.")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// locked takes the lock of the table.
func locked(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockTimeout); ; time.Sleep(10 * time.Millisecond) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
	}
}

// ours says whether Add made a line.
func ours(line string) bool { return value(line, "OPTS") == Option }

// value is what a line says of key.
func value(line, key string) string {
	for field := range strings.FieldsSeq(line) {
		if v, ok := strings.CutPrefix(field, key+"="); ok {
			return unescape.Replace(v)
		}
	}
	return ""
}

var (
	escape   = strings.NewReplacer("\\", `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`)
	unescape = strings.NewReplacer(`\134`, "\\", `\040`, " ", `\011`, "\t", `\012`, "\n")
)
