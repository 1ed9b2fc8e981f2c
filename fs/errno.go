package fs

import (
	"errors"
	"sync"
	"syscall"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// errnos is the only place where an error becomes an errno. What is not in it is an I/O error.
var errnos = []struct {
	err   error
	errno syscall.Errno
}{
	{ext4.ErrNotExist, syscall.ENOENT},
	{ext4.ErrNoAttr, syscall.ENODATA},
	{ext4.ErrExist, syscall.EEXIST},
	{ext4.ErrNotDir, syscall.ENOTDIR},
	{ext4.ErrIsDir, syscall.EISDIR},
	{ext4.ErrNotEmpty, syscall.ENOTEMPTY},
	{ext4.ErrInvalid, syscall.EINVAL},
	{ext4.ErrNameTooLong, syscall.ENAMETOOLONG},
	{ext4.ErrNoSpace, syscall.ENOSPC},
	{ext4.ErrTooManyLink, syscall.EMLINK},
	{ext4.ErrTooBig, syscall.EFBIG},
	{ext4.ErrRange, syscall.ERANGE},
	{ext4.ErrReadOnly, syscall.EROFS},
	{ext4.ErrClusters, syscall.EROFS},
	{ext4.ErrNotSup, syscall.EOPNOTSUPP},
	{ext4.ErrPerm, syscall.EPERM},
	{ext4.ErrCrossDevice, syscall.EXDEV},
	{ext4.ErrNoData, syscall.ENXIO},
	{ext4.ErrStale, syscall.ESTALE},
	{ext4.ErrCorrupt, syscall.EUCLEAN},
	{ext4.ErrAborted, syscall.EIO}, // whatever the reason
	{blockdev.ErrNoSpace, syscall.ENOSPC},
	{blockdev.ErrNoMemory, syscall.ENOMEM},
}

// toErrno looks err up in errnos.
func toErrno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	for _, e := range errnos {
		if errors.Is(err, e.err) {
			return e.errno
		}
	}
	return syscall.EIO
}

// errorLog prints each distinct error once, so that a broken volume does not fill the log.
type errorLog struct {
	logf func(format string, args ...any)
	mu   sync.Mutex
	seen map[string]bool // protected by mu
}

// maxLogged bounds what errorLog remembers; what comes after is silent.
const maxLogged = 256

func (l *errorLog) print(op string, ino uint32, err error) {
	if l.logf == nil {
		return
	}
	text := err.Error()
	l.mu.Lock()
	first := !l.seen[text] && len(l.seen) < maxLogged
	if first {
		if l.seen == nil {
			l.seen = make(map[string]bool)
		}
		l.seen[text] = true
	}
	l.mu.Unlock()
	if first {
		l.logf("%s of inode %d: %v", op, ino, err)
	}
}

// fail turns the error of an operation into its errno, and logs what a user should hear of: damage and I/O errors.
func (n *node) fail(op string, err error) syscall.Errno {
	errno := toErrno(err)
	if errno == syscall.EIO || errno == syscall.EUCLEAN {
		n.srv.errors.print(op, n.in.Ino(), err)
	}
	return errno
}
