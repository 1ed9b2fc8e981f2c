"""Files that are made under a name of their own, and get their own name when they are complete.

No two programs have the same name, also not threads of one, or programs whose number is the same in containers of their own. What a killed program left is
deleted by the next that makes the file: who makes one holds a lock of it until it has its name.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat

from ._descriptors import Descriptors

_NAME = 255  # bytes of a file's name, at most
_OWN = len(".0123456789abcdef.tmp")


@contextlib.contextmanager
def made(path):
    """A new file beside path: its name and a descriptor. It is deleted at the end, if it still has that name."""
    _sweep(path)
    with Descriptors() as fds:
        name, fd = _new(path, fds)
        try:
            yield name, fd
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)


class Lock:
    """Keeps `delete` from a file, until nobody has this any more. Nothing on file systems without locks, where it deletes nothing, either."""

    def __init__(self, path):
        self._fds = Descriptors()
        self.fd = self._fds.get(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(self.fd, fcntl.LOCK_EX)


def private(fd, path):
    """Hides a new file from others until `like`, if there is one at path, whose owner and mode it is to have then: what is returned says these. None: there is none."""
    try:
        was = os.stat(path)
    except FileNotFoundError:
        return None
    os.fchmod(fd, 0o600)
    return was


def like(fd, was):
    """Gives the file owner and mode of the one that it is to replace. A group that the caller may not give it has no access, for it is another one then."""
    if was is None:
        return
    mode = stat.S_IMODE(was.st_mode)
    for owner in was.st_uid, -1:
        try:
            os.fchown(fd, owner, was.st_gid)
            break
        except PermissionError:
            pass
    else:
        mode &= ~0o070
    os.fchmod(fd, mode)


def sync_directory(path):
    """Makes the name of a file durable."""
    with Descriptors() as fds:
        os.fsync(fds.get(os.open, os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_CLOEXEC))


def _new(path, fds):
    path = os.path.join(os.path.dirname(path), _stem(path))
    while True:
        name = f"{path}.{secrets.token_hex(8)}.tmp"
        try:
            fd = fds.get(os.open, name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with contextlib.suppress(OSError):  # file systems without locks: _sweep deletes nothing there
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return name, fd
        except BaseException:  # of a signal's handler
            if len(fds):
                os.unlink(name)
            raise
        fds.close()  # another's _sweep came before the lock


def _sweep(path):
    directory = os.path.dirname(os.path.abspath(path))
    ours = re.compile(re.escape(_stem(path)) + r"\.[0-9a-f]{16}\.tmp")
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if ours.fullmatch(name):
                delete(os.path.join(directory, name))


def _stem(path):
    """What the names of new files at path begin with: its own name, or, if there is no room behind that, what stands for it."""
    base = os.path.basename(path)
    return base if len(os.fsencode(base)) + _OWN <= _NAME else hashlib.sha256(os.fsencode(base)).hexdigest()


def delete(name):
    """Deletes what a killed program left. Nothing if another has it."""
    with contextlib.suppress(OSError):
        with Descriptors() as fds:
            fcntl.flock(fds.get(os.open, name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name)
