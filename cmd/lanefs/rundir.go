package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The runtime directory holds, for each mount, three files named after its mount point: a lock that its daemon holds as
// long as it lives, the control socket, and the log. It belongs to one user, and no other may enter it. The lock's text
// says which mount it is, by its device number: a bind mount of it has another mount point.

// served is the text of a lock.
type served struct {
	PID    int    `json:"pid"`
	Device string `json:"device"`
	Dir    string `json:"dir"`
	Number string `json:"number,omitempty"` // the mount's device number, as /proc/self/mountinfo has it; empty: not mounted yet
	File   string `json:"file,omitempty"`   // what Device was when it was opened: see fileOf
}

// runDir makes the caller's own.
func runDir() (string, error) {
	dir := runDirs(os.Geteuid())[0]
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return "", runDirError(dir, filepath.Dir(dir), err)
	}
	return dir, checkRunDir(dir)
}

// runDirError is err with what to do: wanted cannot be written.
func runDirError(dir, wanted string, err error) error {
	remedy := "set XDG_RUNTIME_DIR to a directory of your own"
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		remedy = "make room there, of inodes, too (df, df -i)"
	case os.Geteuid() == 0:
		remedy = "in a container with a read-only root mount a tmpfs there: docker run --tmpfs /run"
	}
	return fmt.Errorf("runtime directory %q: %w (%s must be there and writable: %s)", dir, err, wanted, remedy)
}

// runDirs are where a user's daemons may be, the likeliest first.
func runDirs(uid int) []string {
	temporary := filepath.Join(os.TempDir(), "lanefs-"+strconv.Itoa(uid))
	if uid == 0 {
		return []string{"/run/lanefs"}
	}
	var dirs []string
	if x := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(x) && uid == os.Geteuid() {
		dirs = append(dirs, filepath.Join(x, "lanefs"))
	} else if uid != os.Geteuid() {
		dirs = append(dirs, fmt.Sprintf("/run/user/%d/lanefs", uid))
	}
	return append(dirs, temporary)
}

// lookDirs are where a user's daemons are looked for: also those that were started with another XDG_RUNTIME_DIR or TMPDIR than this command has, as after
// su or in a cron job, if that is where they usually are.
func lookDirs(uid int) []string {
	dirs := runDirs(uid)
	if uid == 0 {
		return dirs
	}
	for _, dir := range []string{fmt.Sprintf("/run/user/%d/lanefs", uid), fmt.Sprintf("/tmp/lanefs-%d", uid)} {
		var st unix.Stat_t
		if !slices.Contains(dirs, dir) && unix.Lstat(dir, &st) == nil && int(st.Uid) == uid {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// checkRunDir refuses a directory that another user made or can write to: in /tmp another user could have been first.
func checkRunDir(dir string) error { return checkOwnDir(dir, 0o077) }

// checkOwnDir refuses a directory that others may do things with.
func checkOwnDir(dir string, others os.FileMode) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || st.Mode().Perm()&others != 0 || int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("runtime directory %q must be a directory of mode %#o that belongs to uid %d; remove it", dir, 0o777&^others, os.Geteuid())
	}
	return nil
}

// runName is what the files of a mount on dir begin with.
func runName(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8])
}

// What the names of a mount's files end with.
const (
	lockEnd   = ".lock"
	socketEnd = ".sock"
	logEnd    = ".log"
)

// runFiles are a mount's files in the runtime directory.
type runFiles struct {
	lock   *os.File
	dir    string // the mount point
	file   string // what fileOf says of the device
	Socket string
	Log    string // empty: none of ours
}

// runFile is where a daemon of uid that serves dir has its file with that end.
func runFile(uid int, dir, end string) string {
	return filepath.Join(runDirs(uid)[0], runName(dir)+end)
}

// claimTime is how long a claim waits for a process that has the lock only to see whether a daemon holds it (see held).
const (
	claimTime = time.Second
	claimStep = 10 * time.Millisecond
)

// claim takes the lock of the mount point: one daemon a directory.
func claim(mountpoint string) (*runFiles, error) {
	dir, err := runDir()
	if err != nil {
		return nil, err
	}
	base := filepath.Join(dir, runName(mountpoint))
	for end := time.Now().Add(claimTime); ; time.Sleep(claimStep) {
		f, err := os.OpenFile(base+lockEnd, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, runDirError(dir, dir, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
			}
			if time.Now().Before(end) {
				continue
			}
			if s := readServed(f.Name()); s != nil {
				if all := s.mounts(); len(all) > 0 && all[0].Mountpoint != mountpoint {
					return nil, fmt.Errorf("%q: %q was mounted there by process %d, and the mount is at %q now: lanefs umount that first",
						mountpoint, s.Device, s.PID, all[0].Mountpoint)
				}
			}
			return nil, fmt.Errorf("%q: another lanefs is mounting or serving this directory; lanefs umount it first", mountpoint)
		}
		// The daemon that held the lock before may have removed the file after we opened it.
		mine, err1 := f.Stat()
		there, err2 := os.Stat(f.Name())
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return &runFiles{lock: f, dir: mountpoint, Socket: base + socketEnd, Log: base + logEnd}, nil
		}
		f.Close()
	}
}

// record writes down what is served. dev is 0 as long as nothing is mounted: the device is opened after that.
func (r *runFiles) record(dev uint64, cfg *mountConfig) error {
	if dev == 0 {
		r.file = fileOf(cfg.Device)
	}
	s := served{PID: os.Getpid(), Device: cfg.source(), Dir: cfg.Dir, File: r.file}
	if dev != 0 {
		s.Number = fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
	}
	b, err := json.Marshal(s)
	if err == nil {
		_, err = r.lock.WriteAt(append(b, '\n'), 0)
	}
	if err == nil {
		err = r.lock.Truncate(int64(len(b)) + 1)
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("runtime directory: %w: make room there for a few kilobytes", err)
	case err != nil:
		return fmt.Errorf("runtime directory: %w", err)
	}
	return nil
}

// mostServed is how long the text of a lock may be, in bytes.
const mostServed = 1 << 20

// openLock opens a lock to look at it. Another user may have made the directory in which daemons are looked for, or have a mount there: so what is no file is not
// waited for, and no link is followed.
func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.EINVAL}
	}
	return f, nil
}

// readServed reads the text of a lock: nil if there is none.
func readServed(path string) *served {
	f, err := openLock(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostServed))
	var s served
	if err != nil || json.Unmarshal(b, &s) != nil {
		return nil
	}
	return &s
}

// claimDead takes the locks of a daemon that was killed, by what its files begin with, and gives what they say. free is false where the
// daemon lives, or another begins. Where there is no lock there is no daemon.
func claimDead(base string) (release func(), s *served, free bool) {
	var locks []*os.File
	release = func() {
		for _, f := range locks {
			f.Close()
		}
	}
	for _, dir := range lookDirs(os.Geteuid()) {
		path := filepath.Join(dir, base+lockEnd)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if os.IsNotExist(err) {
			continue
		}
		if err == nil {
			locks = append(locks, f)
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		if err != nil {
			release()
			return nil, nil, false
		}
		if t := readServed(path); t != nil {
			s = t
		}
	}
	return release, s, true
}

// end, deferred, is release when a mount returns. When it panics the files stay: Go's runtime is about to write why to the log, and the command that waits for
// the daemon, or the next mount, takes the others away.
func (r *runFiles) end(keepLog func() bool) {
	if p := recover(); p != nil {
		panic(p)
	}
	r.release(keepLog())
}

// release removes what the mount left, and the lock last. Only the first call does anything: after it the files may be
// another daemon's.
func (r *runFiles) release(keepLog bool) {
	if r.lock == nil {
		return
	}
	os.Remove(r.Socket)
	for _, public := range []bool{false, true} {
		os.Remove(shareSocket(r.dir, public))
	}
	if !keepLog && r.Log != "" {
		os.Remove(r.Log)
	}
	os.Remove(r.lock.Name())
	r.lock.Close()
	r.lock = nil
}
