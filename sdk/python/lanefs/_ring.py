"""Rings: many transfers in flight between files and memory of the program, without a system call for each."""

import collections
import errno
import mmap
import os
import platform
import select
import struct
import sys
import threading
import time
from concurrent.futures import Future

from . import _wait
from . import _wire as w
from ._integer import integer
from ._session import GONE_TEXT, LOST_TEXT
from ._use import Here, Use, inherited


def part(buffer, start, length):
    """Where a part of memory begins, and its length, to the memory's end if None. ValueError if it is not within the memory."""
    start = integer(start)
    length = len(buffer) - start if length is None else integer(length)
    if start < 0 or length < 0 or start + length > len(buffer):
        raise ValueError(f"{length} bytes at {start} of memory of {len(buffer)}")
    return start, length


_SLOT, _ONE = struct.Struct("<Q"), struct.pack("=Q", 1)
# Taking a lock is a locked instruction of x86, after which a load sees what others stored before they looked for what was stored before it.
_LOCKS_ARE_FENCES = platform.machine() in ("x86_64", "AMD64")
_SPIN_NS = 50_000  # how long _carry_out polls: longer than a read of a few blocks and a wake-up take


class _Waiting:
    """What a Future is, for a caller that waits at once."""

    __slots__ = ("value", "error", "lock")

    def __init__(self):
        self.value = self.error = None
        self.lock = threading.Lock()  # held until the request has ended
        self.lock.acquire()

    def set_result(self, value):
        self.value = value
        self.lock.release()

    def set_exception(self, error):
        self.error = error
        self.lock.release()

    def result(self):
        _wait.free(self.lock)
        if self.error is not None:
            raise self.error
        return self.value


class Ring(Here):
    """A submission and a completion queue, shared with the daemon. Methods may be called from any thread.

    Each request is a concurrent.futures.Future of the number of bytes, fewer than asked for only at the end of the file, or of an OSError: EBADF, EACCES, EINVAL,
    EIO, ENOSPC, ECONNRESET after the end of the daemon.

    Parameters
    ----------
    file : File
        Of the mount.
    entries : int
        How many requests may be in flight: a power of two.

    Raises
    ------
    OSError
        EINVAL: entries is none. EMFILE: the mount's limits. ECONNRESET: the daemon has ended.
    """

    def __init__(self, file, entries=256):
        session = self._session = file.session
        try:
            request = w.RING_REQUEST.pack(entries, 0)
        except struct.error:
            raise OSError(errno.EINVAL, f"a ring of {entries!r} entries: want a power of two") from None
        reply = self._reply = session.call(w.RING, request, w.RING_REPLY, rights=3)
        try:
            _, self.entries, self._completions, _, size = reply.fields
            self._memory = w.mapped(reply.fds[0], size, mmap.PROT_READ | mmap.PROT_WRITE)
            os.close(reply.fds.pop(0))
            reply.fds.extend(os.pipe())
            self._submit, self._complete, self._wake_read, self._wake_write = reply.fds
            self._begin()
        except BaseException as e:  # no descriptor is left for the pipe, or no thread can be had, or a signal's handler has raised something
            self._end_reaper(e)
            reply.release()
            reply.give()
            raise

    def _begin(self):
        self._words = self._memory.cast("I")
        self._free = list(range(self.entries))
        self._flying = {}
        self._lock = threading.RLock()  # with takes it at once; of a Condition it does so in Python, where a signal may come
        self._room = threading.Condition(self._lock)
        self._fence = threading.Lock()  # for _wake, which holds _lock
        self._taking = threading.RLock()  # held, once, by who takes completions: the reaper, or _carry_out. Locked before _lock
        self._ended = None  # the error, after the end
        self._closed = False
        self._pid = os.getpid()  # the reaper thread does not exist in a forked child
        self._untold = collections.deque()  # completions that the reaper has taken and not told
        os.set_blocking(self._wake_read, False)
        self._reaper = threading.Thread(target=self._reap, daemon=True, name="lanefs-ring")
        self._reaper.start()

    def _end_reaper(self, why):
        """Ends the thread of a ring that does not come to be, if that has begun."""
        self._ended, reaper = why, vars(self).get("_reaper")
        if reaper is not None and reaper.is_alive():
            self._write(self._wake_write, b"x")
            reaper.join()

    def read(self, file, buffer, offset=0, start=0, length=None):
        """Begins to read a range of a file to memory.

        Parameters
        ----------
        file : File
        buffer : Buffer or Mapping
            Where to; a Mapping must be private.
        offset, start, length : int
            Bytes: where in the file; where in the memory; how many, to the memory's end if None.

        Returns
        -------
        concurrent.futures.Future of int
            How many bytes.

        Raises
        ------
        ValueError
            The range is not within the memory; a number that is negative; the file or the memory is closed, or of another mount or GPU than the ring.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's. EDEADLK: by a signal's handler, in the middle of such a call.
        """
        return self._start(w.READ, file, buffer, offset, start, length)

    def write(self, file, buffer, offset=0, start=0, length=None):
        """Begins to write a range of memory to a file.

        Parameters
        ----------
        file : File
        buffer : Buffer or Mapping
            Where from. What the GPU is doing with it is waited for.
        offset, start, length : int
            Bytes: where in the file; where in the memory; how many, to the memory's end if None.

        Returns
        -------
        concurrent.futures.Future of int
            How many bytes.

        Raises
        ------
        ValueError
            The range is not within the memory; a number that is negative; the file or the memory is closed, or of another mount or GPU than the ring.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's. EDEADLK: by a signal's handler, in the middle of such a call.
        """
        return self._start(w.WRITE, file, buffer, offset, start, length)

    def sync(self, file):
        """Begins to make durable what was written before.

        Parameters
        ----------
        file : File

        Returns
        -------
        concurrent.futures.Future of int
            0.

        Raises
        ------
        ValueError
            The file is closed, or of another mount or GPU than the ring.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's. EDEADLK: by a signal's handler, in the middle of such a call.
        """
        with Use(file):
            return self.submit([(w.SYNC, self._handle_of(file), 0, 0, 0, 0)])[0]

    def read_batch(self, file, buffer, ranges):
        """Begins to read many ranges of a file to memory.

        Parameters
        ----------
        file : File
        buffer : Buffer or Mapping
            As with `read`.
        ranges : iterable of (offset, start, length)
            Bytes: where in the file, where in the memory, how many.

        Returns
        -------
        list of concurrent.futures.Future of int
            How many bytes, for each.

        Raises
        ------
        ValueError
            A number that is negative or too large; the file or the memory is closed, or of another mount or GPU than the ring.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's. EDEADLK: by a signal's handler, in the middle of such a call.
        """
        with Use(file), Use(buffer):
            buffer.memory  # not a closed one's, whose handle may be another's now
            f, b = self._handle_of(file), self._handle_of(buffer)
            return self.submit([(w.READ, f, b, offset, buffer.base + integer(start), length) for offset, start, length in ranges])

    def write_batch(self, file, buffer, ranges):
        """Begins to write many ranges of memory to a file.

        Parameters
        ----------
        file : File
        buffer : Buffer or Mapping
            As with `write`.
        ranges : iterable of (offset, start, length)
            Bytes: where in the file, where in the memory, how many.

        Returns
        -------
        list of concurrent.futures.Future of int
            How many bytes, for each.

        Raises
        ------
        ValueError
            A number that is negative or too large; the file or the memory is closed, or of another mount or GPU than the ring.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's. EDEADLK: by a signal's handler, in the middle of such a call.
        """
        with Use(file), Use(buffer):
            buffer.memory.synchronize()
            f, b = self._handle_of(file), self._handle_of(buffer)
            return self.submit([(w.WRITE, f, b, offset, buffer.base + integer(start), length) for offset, start, length in ranges])

    def _start(self, op, file, buffer, offset, start, length):
        with Use(file), Use(buffer):
            (start, length), memory = part(buffer, start, length), buffer.memory  # ValueError: a closed one's handle may be another's now
            if op == w.WRITE:
                memory.synchronize()
            return self.submit([(op, self._handle_of(file), self._handle_of(buffer), offset, buffer.base + start, length)])[0]

    def _handle_of(self, of):
        """The handle of a file or of memory, of which the caller has a Use. In another session the number is something else's."""
        handle = of.handle
        if of.session is not self._session:
            raise ValueError("the ring, the file and the memory are not of one session: of the same mount, and with several GPUs of the same one")
        return handle

    def submit(self, requests):
        """Submits requests. It waits while the ring is full.

        Parameters
        ----------
        requests : iterable of (op, file, memory, file offset, memory offset, length)
            Integers: the operation, two handles, and three times bytes (docs/SPEC.md).

        Returns
        -------
        list of concurrent.futures.Future of int
            How many bytes, for each.

        Raises
        ------
        ValueError
            A number that is negative or too large. Nothing was submitted.
        OSError
            The ring is closed, its daemon has ended, or it is another process's. EDEADLK: by a signal's handler, in the middle of such a call.
        """
        if self._pid != os.getpid():
            raise inherited("ring")
        self._alive()
        futures = []
        try:
            todo = [w.SUBMISSION.pack(0, op, file, memory, 0, at, start, length) for op, file, memory, at, start, length in requests]
        except struct.error as e:
            raise ValueError(f"a request with a number that is negative or too large: {e}") from None
        wait, reaps = 0, threading.current_thread() is self._reaper  # then a callback of a future submits, and nobody else makes room
        while todo:
            with self._lock:
                while not self._free and not self._ended and not reaps:
                    self._room.wait(_wait.SLICE)
                if self._ended:
                    raise self._ended
                now, todo = todo[:len(self._free)], todo[len(self._free):]
                for _ in now:
                    future = Future()
                    future.set_running_or_notify_cancel()  # it cannot be cancelled from here on
                    futures.append(future)
                if now:
                    self._put(now, futures[len(futures) - len(now):])
            if todo and reaps:
                wait = self._turn(wait)
        return futures

    _ending = staticmethod(sys.is_finalizing)  # which is there until the end, unlike modules

    def _alive(self):
        """OSError where a request would never end."""
        if self._ending():
            raise OSError("the ring ended with the interpreter, as all threads but this one")
        if self._taking._is_owned() or self._lock._is_owned():
            raise OSError(errno.EDEADLK, "called in the middle of such a call of the same thread, by the handler of a signal")

    def _put(self, entries, futures):
        """Submits what there is room for. The caller holds _lock."""
        tail = self._words[w.SQ_TAIL // 4]
        for entry, future in zip(entries, futures):
            slot = self._free.pop()
            self._flying[slot] = future
            at = w.ENTRIES + (tail % self.entries) * w.SUBMISSION.size
            self._memory[at:at + w.SUBMISSION.size] = entry
            _SLOT.pack_into(self._memory, at, slot)
            tail = (tail + 1) & 0xFFFFFFFF
        self._words[w.SQ_TAIL // 4] = tail  # after the entries; x86 and the interpreter keep the order of stores
        self._wake()

    def _wake(self):
        """Wakes the daemon, if it sleeps. Without a fence Python cannot know whether it does; a signal too many does no harm."""
        if _LOCKS_ARE_FENCES:
            with self._fence:  # no signal's handler comes in between
                pass
            if not self._words[w.DAEMON_SLEEPS // 4]:
                return
        try:
            self._words[w.DAEMON_SLEEPS // 4] = 0  # the daemon may sleep again meanwhile, and is signalled
            self._write(self._submit, _ONE)
        except BaseException:  # of a signal's handler: the daemon would sleep on, and nobody would wake it
            self._words[w.DAEMON_SLEEPS // 4] = 1
            raise

    def _write(self, fd, data):
        """Writes to a descriptor of the ring's. If the program has closed it the reaper finds that out, too."""
        if not self._session._lost:
            os.write(fd, data)

    def _carry_out(self, op, file, buffer, offset, start, length):
        """`read` or `write`, and waits. To wake the reaper, and have it wake the caller, takes longer than a small read: so the caller polls for a while.

        Parameters
        ----------
        op : int
            READ or WRITE of docs/SPEC.md.
        file, buffer, offset, start, length
            As with `read`.

        Returns
        -------
        int
            How many bytes.

        Raises
        ------
        ValueError, NotLaneFS, OSError
            As `read`, and those of the request.
        """
        waiting = None
        if self._pid == os.getpid():
            with Use(file), Use(buffer):
                waiting = self._poll_for(op, file, buffer, offset, start, length)
        return waiting.result() if waiting else _wait.result(self._start(op, file, buffer, offset, start, length))

    def _poll_for(self, op, file, buffer, offset, start, length):
        """Submits a request and takes completions until it has ended, or for _SPIN_NS. None: another thread takes completions, or the ring is full or has ended."""
        self._alive()
        (start, length), memory = part(buffer, start, length), buffer.memory
        if op == w.WRITE:
            memory.synchronize()
        try:
            entry = w.SUBMISSION.pack(0, op, self._handle_of(file), self._handle_of(buffer), 0, offset, buffer.base + start, length)
        except struct.error as e:
            raise ValueError(f"a request with a number that is negative or too large: {e}") from None
        waiting, others = _Waiting(), []
        try:
            if not self._taking.acquire(blocking=False):
                return None
            words, tail, head, begun = self._words, w.CQ_TAIL // 4, w.CQ_HEAD // 4, False
            try:
                with self._lock:
                    if self._ended or not self._free:
                        return None
                    begun = True
                    words[w.CLIENT_SLEEPS // 4] = 0  # the daemon need not wake the reaper
                    self._put((entry,), (waiting,))
                end = time.monotonic_ns() + _SPIN_NS
                while waiting.lock.locked() and time.monotonic_ns() < end:
                    if words[tail] != words[head]:
                        self._split(waiting, others)
            finally:  # also if the handler of a signal raises
                if begun:
                    words[w.CLIENT_SLEEPS // 4] = 1
                    self._split(waiting, others)
                if begun and self._flying:  # the reaper looks for those, without a fence of its own
                    self._write(self._wake_write, b"x")
        finally:
            if self._taking._is_owned():
                self._taking.release()
            _tell(others)
        return waiting

    def _split(self, waiting, others):
        """Takes completions, tells waiting, and adds the others' futures and results to others."""
        for ended in self._pop(self._take()):
            if ended[0] is waiting:
                _tell((ended,))
            else:
                others.append(ended)

    def _take(self):
        words, done = self._words, []
        head, tail = words[w.CQ_HEAD // 4], words[w.CQ_TAIL // 4]
        base = w.ENTRIES + self.entries * w.SUBMISSION.size
        while head != tail:
            done.append(w.COMPLETION.unpack_from(self._memory, base + (head % self._completions) * w.COMPLETION.size))
            head = (head + 1) & 0xFFFFFFFF
        words[w.CQ_HEAD // 4] = head
        return done

    def _reap(self):
        with Use(self._session):  # whose descriptor reports the end of the daemon, and of the session
            self._poll = poll = select.poll()
            poll.register(self._complete, select.POLLIN)
            poll.register(self._wake_read, select.POLLIN)
            try:
                self._socket = self._session.fileno()
            except OSError as e:
                self._end(e)
                return
            poll.register(self._socket, 0)
            wait = 0
            while not self._ended:
                wait = self._turn(wait)
                while self._untold:
                    _tell((self._untold.popleft(),))

    def _turn(self, wait):
        """Takes completions, to be told. If there are none it waits for some, or for wait ms. It returns what the next wait is."""
        with self._taking:
            done = self._take()
            if not done:
                self._words[w.CLIENT_SLEEPS // 4] = 1
                done = self._take()
            self._untold.extend(self._pop(done))
        if done:
            return 0
        # Without a fence the daemon may have read the word above before it was set. So the wait is short.
        ready = self._poll.poll(wait)
        if self._session._lost:
            self._end(ConnectionError(errno.ECONNRESET, LOST_TEXT))
            return 0
        if any(fd == self._socket for fd, _ in ready):
            with self._taking:
                done = self._take()
                self._untold.extend(self._pop(done))
            if not done:
                self._end(ConnectionError(errno.ECONNRESET, GONE_TEXT))
            return 0
        wait = min(wait + 1, 20) if self._flying else 1000
        return 0 if w.drain(self._complete) | w.drain(self._wake_read) else wait

    def _pop(self, done):
        """The futures and results of completions, which have ended."""
        if not done:
            return done
        with self._lock:
            ended = [(self._flying.pop(slot, None), result) for slot, result in done]
            self._free.extend(slot for slot, _ in done)
            self._room.notify_all()
        return ended

    def _end(self, why):
        with self._lock:
            self._ended = self._ended or why
            futures = list(self._flying.values())
            self._flying.clear()
            self._room.notify_all()
        for future in futures:
            future.set_exception(why)

    def close(self):
        """Ends the ring. The daemon finishes the requests in flight. Futures without a result by then get an error. Repeated calls do nothing.

        Raises
        ------
        OSError
            As close(2).
        """
        if self._ending():  # the reaper is no more, and locks may be held for ever. The end of the process frees all
            return
        if self._pid != os.getpid():  # locks may be held for ever here, by threads that only the parent has
            if not self._closed:
                self._closed = True
                self._let_go()
            return
        why = OSError("the ring is closed")
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ended = self._ended or why
            self._room.notify_all()
        self._finish(why)
        with self._taking:  # not while _carry_out looks at them
            self._let_go()

    def _let_go(self):
        self._words.release()
        if self._session._lost:
            del self._reply.fds[:]  # others may have the numbers
            return
        self._reply.give()

    def _finish(self, why):
        self._write(self._wake_write, b"x")
        while threading.current_thread() is not self._reaper and self._reaper.is_alive():  # not if a callback of a future closes the ring
            self._reaper.join(_wait.SLICE)
        self._reply.release()
        self._end(why)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _tell(ended):
    """Gives futures their results. _taking is not held: a callback of a future may do anything."""
    for future, result in ended:
        if future is None:
            continue
        if result < 0:
            future.set_exception(OSError(-result, os.strerror(-result)))
        else:
            future.set_result(result)


class Plain:
    """The fallback of a ring for a file that is not on LaneFS: ordinary reads and writes, each done at once."""

    def read(self, file, buffer, offset=0, start=0, length=None):
        with Use(file), Use(buffer):
            return _done(_transfer, os.preadv, file._opened(), buffer, integer(offset), *part(buffer, start, length))

    def write(self, file, buffer, offset=0, start=0, length=None):
        with Use(file), Use(buffer):
            return _done(_transfer, os.pwritev, file._opened(), buffer, integer(offset), *part(buffer, start, length))

    def _carry_out(self, op, *args):
        return (self.read if op == w.READ else self.write)(*args).result()

    def sync(self, file):
        with Use(file):
            fd = file._opened()
            return _done(lambda: os.fsync(fd) or 0)

    def read_batch(self, file, buffer, ranges):
        return [self.read(file, buffer, *r) for r in ranges]

    def write_batch(self, file, buffer, ranges):
        return [self.write(file, buffer, *r) for r in ranges]

    def close(self):
        pass


def _done(f, *args):
    future = Future()
    try:
        future.set_result(f(*args))
    except OSError as e:
        future.set_exception(e)
    return future


def _transfer(call, fd, buffer, offset, start, length):
    view, done = buffer.memoryview()[start:start + length], 0
    if view.readonly and call is os.preadv:
        raise PermissionError(errno.EACCES, "a mapping that is not private is not read into")
    while done < length:
        n = call(fd, [view[done:]], offset + done)
        if n == 0:
            break  # the end of the file
        done += n
    return done
