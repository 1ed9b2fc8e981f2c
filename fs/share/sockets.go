package share

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Many daemons may have sockets in one directory. A killed one leaves its own behind; whoever mounts next takes it away. That
// must never be a live one's, so the directory has a lock: shared by who makes a socket, for between bind(2) and listen(2) it
// looks dead; exclusive while dead ones are looked for. That nobody listens is not enough: the daemon's own lock, which the
// kernel takes back when the process ends and not before, must be free, too.

const (
	socketEnd   = ".share"
	lockName    = ".share-lock"
	lockTimeout = 30 * time.Second
)

// SocketName is what the socket of a mount is called whose files begin with base.
func SocketName(base string) string { return base + socketEnd }

// listen makes a socket at path, in the place of what is there, to which those may connect whom mode lets.
func listen(path string, mode os.FileMode) (l *net.UnixListener, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("socket %q: %w", path, err)
		}
	}()
	unlock, err := lockDir(filepath.Dir(path), unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	if l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}); err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Sweep removes the sockets in dir that nobody listens on, and says which. take takes the lock of the daemon whose files
// begin with base; not free: it lives, and what it has stays.
func Sweep(dir string, take func(base string) (release func(), free bool)) (removed []string, err error) {
	unlock, err := lockDir(dir, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock()
	names, err := filepath.Glob(filepath.Join(dir, "*"+socketEnd))
	var errs []error
	for _, name := range names {
		if !dead(name) {
			continue
		}
		release, free := take(strings.TrimSuffix(filepath.Base(name), socketEnd))
		if !free {
			continue
		}
		err := os.Remove(name)
		release()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	return removed, errors.Join(append(errs, err)...)
}

// dead says whether path is a socket that nobody listens on. One whose queue is full has somebody.
func dead(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return false
	}
	return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.ECONNREFUSED)
}

// lockDir takes a directory's lock, in the way that how says.
func lockDir(dir string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("lock %q: %w", f.Name(), err)
		}
	}
}
