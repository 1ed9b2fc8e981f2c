"""Batches on a GPU's stream, for which the host does not wait, and what they need until the stream has come past them."""

import collections
import ctypes
import errno
import os
import threading
import weakref

from ._session import GONE_TEXT
from ._use import Here

# Prototypes of its own: those of ctypes.pythonapi are shared by all packages.
keep = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_let_go = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))

_behind = collections.deque()  # flights whose batches nobody has any more
_AT_ONCE = 8  # of them looked at by a call: it adds one at most


class Flight:
    """A batch on its way, kept by a reference that belongs to nobody until the stream has come past it. What it holds so outlives the file, the batch's object and, since
    the library's thread still writes then, the interpreter; and in a forked child, which does not learn of it, it stays.

    results: an array; code: a c_int64; mark: where the stream is past it, None if there is no stream; held: what else must stay.
    """

    def __init__(self, results, code=None, mark=None, held=None):
        self.results, self.code, self._mark, self._held = results, code, mark, [held]
        self._set = mark is None
        if mark is None:
            self._held.clear()
        else:
            keep(self)

    def begun(self):
        """It is on the stream."""
        try:
            self._place()
        except OSError:
            pass  # it is tried again, and tells who waits

    def _place(self):
        if not self._set:
            if self._mark.set():
                self.end()
            self._set = True

    def past(self, wait):
        """Whether the stream has come past it."""
        mark = self._mark  # which another thread may drop
        if mark is not None:
            self._place()  # not yet, if its caller was interrupted
            if not mark.reached(wait):
                return False
            self.end()
        return True

    def end(self):
        """Nothing is on the stream, or no more."""
        try:
            self._held.pop()
        except IndexError:
            return  # another thread did it
        self._mark = None
        _let_go(self)


def sweep():
    """Lets go of what streams have come past. The collector of garbage does not do it: where a graph is captured the GPU must not be asked."""
    for _ in range(min(len(_behind), _AT_ONCE)):
        try:
            flight = _behind.popleft()
        except IndexError:
            return  # other threads took them
        try:
            past = flight.past(False)
        except OSError:
            past = False
        if not past:
            _behind.append(flight)


def _dropped(flight):
    if flight._mark is not None:
        _behind.append(flight)


class StreamBatch(Here):
    """A batch on a stream: what `File.read_batch_on` and `File.write_batch_on` give. It can be awaited. Whoever drops it need not wait: memory and results stay until the
    stream has come past it, and one of the next batches, or closing a file, lets go of them.

    Parameters
    ----------
    flight : object
        This package's own matter.
    """

    _elsewhere = "which can have its results"

    def __init__(self, flight):
        self._flight = flight
        if flight._mark is not None:
            weakref.finalize(self, _dropped, flight).atexit = False  # the end of the process frees all

    @property
    def done(self):
        """bool: whether the stream has come past it. It does not wait.

        Raises
        ------
        OSError
            EIO: the GPU's driver fails. EPERM: this process forked from that which made it.
        """
        return self._flight.past(False)

    def wait(self):
        """Waits until the stream has come past it. What comes on the stream after it is not waited for.

        Raises
        ------
        OSError
            For all pieces: ECONNRESET after the end of the daemon; EIO: the GPU's driver fails. EPERM: this process forked from that which made it.
        """
        self._flight.past(True)
        code = self._flight.code
        if code is not None and code.value < 0:
            raise OSError(-code.value, GONE_TEXT if code.value == -errno.ECONNRESET else os.strerror(-code.value))

    def results(self):
        """Waits likewise.

        Returns
        -------
        array.array of int64, shape (n,)
            How many bytes each piece has, or its errno, negative.

        Raises
        ------
        OSError
            As `wait`.
        """
        self.wait()
        return self._flight.results

    def __await__(self):
        """`results`, in a thread, so that an event loop goes on. Who is cancelled while waiting for it goes on at once; memory and results stay, as when it is dropped.

        Yields
        ------
        object
            What the event loop takes; the `await` itself gives what `results` does.

        Raises
        ------
        OSError
            As `wait`.
        RuntimeError
            No event loop of asyncio's runs: trio's does, for one.
        """
        return in_thread(self.results).__await__()


class _Call:
    """A call in a thread of an executor, which another thread may end. The thread that makes it runs the loop that waits for the call."""

    def __init__(self, call, args, loop):
        self._call, self._args = call, args
        self._loop, self._thread = loop, threading.current_thread()
        self._first = threading.Lock()  # taken by who comes first: the thread, or who gives the call up
        self._ends = ctypes.c_int(0)    # whether waits are to end

    def __call__(self):
        if not self._first.acquire(blocking=False):  # given up: who still waits for it has to know that nothing was moved
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
        from ._stage import ends
        with ends(self._ends):
            return self._call(*self._args)

    def give_up(self):
        """It does not begin any more, or waits no more for the daemon. Whether it has not begun."""
        self._ends.value = 1
        return self._first.acquire(blocking=False)

    def outlasts(self):
        """Whether the interpreter's end waits for the loop, so that it may wait for the call, too."""
        return self._loop.is_running() and not self._thread.daemon


_calls = None  # those that have not ended, weakly


def _register():
    """The interpreter's end gives up the calls of in_thread for which nobody waits: a loop that was closed tells them nothing, and their executor waits for its threads, perhaps for as long as the daemon stands still.
    There is no public call for what comes before that wait; the executor registers itself so, too."""
    global _calls
    import concurrent.futures.thread  # noqa: F401: registers itself first, and is called last
    if _calls is None:
        _calls = weakref.WeakValueDictionary()
        getattr(threading, "_register_atexit", lambda _: None)(_give_up)


def _give_up():
    for ref in _calls.valuerefs():  # a list, whatever other threads add and end meanwhile
        call = ref()
        if call is not None and not call.outlasts():
            call.give_up()


async def in_thread(call, *args):
    import asyncio  # late: it is large
    if _calls is None:
        _register()
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("no event loop of asyncio's runs, for which this is: elsewhere, as with trio, have a thread make the call that waits, as by trio.to_thread.run_sync(f.read_batch, ...)") from None
    call = _Call(call, args, loop)
    _calls[id(call)] = call
    done = loop.run_in_executor(None, call)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if call.give_up():  # all threads are busy, perhaps for as long as the daemon stands still
            done.add_done_callback(_ignore)
            raise
        while not done.done():
            try:
                await asyncio.wait([done])
            except asyncio.CancelledError:
                pass  # once is enough
        _ignore(done)
        raise


def _ignore(done):
    if not done.cancelled():
        done.exception()  # nobody is told
