package fs

import (
	"errors"
	"syscall"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// errnos is the only table of errors and their errnos. Any other error is EIO.
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
	{ext4.ErrAborted, syscall.EIO}, // whatever has aborted it
	{blockdev.ErrNoSpace, syscall.ENOSPC},
	{blockdev.ErrReadOnly, syscall.EROFS},
	{blockdev.ErrNoMemory, syscall.ENOMEM},
	{ext4.ErrHeld, syscall.ENOSPC}, // wraps its cause, one of the two above
}

// toErrno returns the errno of err in errnos.
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

// fail turns the error of an operation into its errno. Damage and I/O errors are logged.
func (n *node) fail(op string, err error) syscall.Errno {
	errno := toErrno(err)
	if errno == syscall.EIO || errno == syscall.EUCLEAN {
		n.srv.errors.report(op, n.in.Ino(), err)
	}
	return errno
}
