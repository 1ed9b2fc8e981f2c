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

// Many daemons may have sockets in one directory. A killed daemon leaves its socket behind, and the next mount removes it. It must never
// remove the socket of a live daemon. So the directory has a lock: a daemon that makes a socket holds it shared, since the socket looks
// dead between bind(2) and listen(2); Sweep holds it exclusively. A socket without a listener is not proof enough: the daemon's own lock,
// which the kernel releases when the process ends and not before, must be free, too.

const (
	socketEnd   = ".share"
	lockName    = ".share-lock"
	lockTimeout = 30 * time.Second
)

// SocketName returns the name of the socket of the mount whose files begin with base.
func SocketName(base string) string { return base + socketEnd }

// listen makes a socket at path with the permissions mode. A file there is removed.
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

// Sweep removes the sockets of dead daemons in dir and returns their paths. take tries to lock the lock of the daemon whose files begin
// with base; free is false if the daemon is alive, and its socket stays.
func Sweep(dir string, take func(base string) (release func(), free bool)) (removed []string, err error) {
	unlock, err := lockDir(dir, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock()
	files, err := os.ReadDir(dir)
	var errs []error
	for _, f := range files {
		base, socket := strings.CutSuffix(f.Name(), socketEnd)
		if !socket {
			continue
		}
		// The lock comes first: to connect to a live daemon would wake it, at each mount of the machine.
		release, free := take(base)
		if !free {
			continue
		}
		name := filepath.Join(dir, f.Name())
		if dead(name) {
			if err := os.Remove(name); err != nil {
				errs = append(errs, err)
			} else {
				removed = append(removed, name)
			}
		}
		release()
	}
	return removed, errors.Join(append(errs, err)...)
}

// dead reports whether path is a socket without a listener. A full queue means that there is a listener.
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

// lockDir locks a directory. how is LOCK_SH or LOCK_EX.
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
