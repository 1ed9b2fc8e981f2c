"""Files that are made under a name of their own, and get their own name when they are complete.

No two programs have the same name, also not threads of one, or programs whose number is the same in containers of their own. What a killed program left is
deleted by the next that makes the file: who makes one holds a lock of it until it has its name.
"""

import contextlib
import fcntl
import os
import re
import secrets


@contextlib.contextmanager
def made(path):
    """A new file beside path: its name and a descriptor. It is deleted at the end, if it still has that name."""
    _sweep(path)
    name, fd = _new(path)
    try:
        yield name, fd
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)
        os.close(fd)


def sync_directory(path):
    """Makes the name of a file durable."""
    fd = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _new(path):
    while True:
        name = f"{path}.{secrets.token_hex(8)}.tmp"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # file systems without locks: _sweep deletes nothing there
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return name, fd
        os.close(fd)  # another's _sweep came before the lock


def _sweep(path):
    directory, base = os.path.split(os.path.abspath(path))
    ours = re.compile(re.escape(base) + r"\.[0-9a-f]{16}\.tmp")
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if ours.fullmatch(name):
                _delete(os.path.join(directory, name))


def _delete(name):
    """Deletes what a killed program left. Nothing if another has it."""
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name)
        finally:
            os.close(fd)
