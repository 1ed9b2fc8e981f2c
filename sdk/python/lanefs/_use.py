"""What one thread closes while calls of others use it. A descriptor's number, and a handle's, are another file's once they are closed: so what is closed in the middle of calls ends with the last
of them, and those that come later find it closed."""

import contextlib
import errno
import os
import sys


def inherited(what, remedy="open the file again"):
    """The error of who uses in a child what the process has that forked it."""
    return PermissionError(errno.EPERM, f"the {what} is that of the process that forked this one: {remedy}")


class Here:
    """Base of what is this process's."""

    _elsewhere = "which opens one of its own"

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} of LaneFS is this process's: it is neither copied nor sent to another, {self._elsewhere}")


class Closable(Here):
    """Base of what calls use and any thread may close. A class has `_end`, which frees all, and may be called again."""

    _closed = False

    def __new__(cls, *args, **kwargs):
        self = super().__new__(cls)
        self._token, self._made_by = object(), os.getpid()
        self._own_references = self._references()
        return self

    def _close(self):
        """No call begins any more, and when none is under way, all is freed."""
        self._closed = True
        if not self._used():
            self._end()

    def _references(self):
        return sys.getrefcount(self._token)

    def _used(self):
        return self._references() > self._own_references and self._made_by == os.getpid()  # in a child other threads are no more


class Use:
    """A call's use of a Closable, for with: as long as it lasts it has a reference to the Closable's token, and references are what is counted. An interruption may come between any two lines, and no
    reference outlives it. Whether the Closable is closed the call looks for after this has begun, and then needs not again."""

    __slots__ = ("_of", "_token")

    def __init__(self, of):
        self._of, self._token = of, of._token

    def __enter__(self):
        pass

    def __exit__(self, *_):
        of, self._token = self._of, None
        if of._closed and not of._used():
            with contextlib.suppress(OSError):  # of its end this call is not told
                of._end()
