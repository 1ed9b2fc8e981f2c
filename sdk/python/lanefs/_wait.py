"""Waits that the handler of a signal ends. The interpreter runs it between two lines, so a signal that comes after the last line before a wait, or to another thread, ends no system call: the wait would
go on as long as the daemon makes it. So each is cut into slices."""

import concurrent.futures
import itertools
import operator
import socket
import struct
import time

SLICE = 0.1  # seconds


def slices(s):
    """Has calls of a socket that would wait longer than a slice raise BlockingIOError."""
    s.settimeout(None)  # whatever socket.setdefaulttimeout says: no timeout is the caller's
    for option in socket.SO_RCVTIMEO, socket.SO_SNDTIMEO:
        s.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", 0, int(SLICE * 1e6)))


def again(call, *args):
    """What the call of such a socket returns, however long it takes."""
    while True:
        try:
            return call(*args)
        except BlockingIOError:
            pass


def ready(poll, timeout):
    """What the poll object's poll returns. timeout: seconds; None: for ever."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = SLICE if end is None else end - time.monotonic()
        found = poll.poll(1000 * min(SLICE, max(0, left)))
        if found or not left > SLICE and end is not None:
            return found


def free(lock):
    """Waits until a lock is free, of whose holder the wait may be long. The calls are C's, one within the other: nothing comes between taking it here and giving it back."""
    while not list(map(_release, itertools.compress((lock,), map(lock.acquire, (True,), (SLICE,))))):
        pass


def alone(lock, call, *args):
    """What call(*args) returns, while this thread has the lock, an RLock of whose holder the wait may be long. Between taking it and `with`, which then has it at once, it is in a list, from
    which calls of C's give it back."""
    mine = []
    try:
        while not mine:
            mine.extend(itertools.compress((lock,), map(lock.acquire, (True,), (SLICE,))))
        with lock:
            any(map(_release, map(list.pop, (mine,))))
            return call(*args)
    finally:
        any(map(_release, map(list.pop, itertools.repeat(mine, len(mine)))))


_release = operator.methodcaller("release")


def result(future):
    """The result of a future, as its own."""
    while not concurrent.futures.wait((future,), SLICE).done:
        pass
    return future.result()
