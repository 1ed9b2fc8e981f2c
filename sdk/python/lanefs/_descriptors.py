"""Descriptors that have an owner from the moment they exist: KeyboardInterrupt comes between any two lines, and what no variable had yet would stay open."""

import ctypes
import itertools
import os
import weakref


class Descriptors:
    """Descriptors, which are closed by `close`, at the end of `with`, or with the last reference to this. Nothing comes between a call that gets one and its owner, as the interpreter is not asked
    in between: the calls are C's, one within the other."""

    def __init__(self):
        self._fds, self._slots = [], []
        weakref.finalize(self, _close, self._fds, self._slots).atexit = False  # the end of the process frees all

    def get(self, call, *args):
        """What call(*args) returns: a function of os, not one of Python's."""
        self._fds.extend(map(call, *([a] for a in args)))
        return self._fds[-1]

    def slot(self):
        """A c_int for a function of another library, which stores a descriptor there. -1: it has stored none."""
        self._slots.append(ctypes.c_int(-1))
        return self._slots[-1]

    def __len__(self):
        return len(self._fds) + sum(s.value >= 0 for s in self._slots)

    def close(self):
        """Repeated calls do nothing."""
        _close(self._fds, self._slots)

    def forget(self):
        """They are the program's, which has closed them."""
        self._fds.clear()
        self._slots.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _close(fds, slots):
    while slots:
        fd = slots.pop().value
        if fd >= 0:
            fds.append(fd)
    try:
        any(map(os.close, map(list.pop, itertools.repeat(fds, len(fds)))))
    except IndexError:
        pass  # another thread closes them, too
