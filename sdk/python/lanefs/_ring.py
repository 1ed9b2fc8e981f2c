"""Rings: many transfers in flight between files and memory of the program, without a system call for each."""

import errno
import mmap
import os
import select
import struct
import threading
from concurrent.futures import Future

from . import _wire as w
from ._session import GONE_TEXT


def part(buffer, start, length):
    """The length of a part of memory, to its end if None. ValueError if it is not within the memory."""
    length = len(buffer) - start if length is None else length
    if start < 0 or length < 0 or start + length > len(buffer):
        raise ValueError(f"{length} bytes at {start} of memory of {len(buffer)}")
    return length


class Ring:
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
        (self._handle, self.entries, self._completions, _, size), fds = session.call(
            w.RING, w.RING_REQUEST.pack(entries, 0), w.RING_REPLY, rights=3)
        self._memory = mmap.mmap(fds[0], size)
        os.close(fds[0])
        self._submit, self._complete = fds[1], fds[2]
        self._words = memoryview(self._memory).cast("I")
        self._free = list(range(self.entries))
        self._flying = {}
        self._room = threading.Condition()
        self._ended = None  # the error, after the end
        self._closed = False
        self._pid = os.getpid()  # the reaper thread does not exist in a forked child
        self._wake_read, self._wake_write = os.pipe()
        self._reaper = threading.Thread(target=self._reap, daemon=True, name="lanefs-ring")
        self._reaper.start()

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
            The range is not within the memory; a number that is negative; the file or the memory is closed.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's.
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
            The range is not within the memory; a number that is negative; the file or the memory is closed.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's.
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
            No range is given, so none is wrong; the file or the memory is closed.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's.
        """
        return self.submit([(w.SYNC, file.handle, 0, 0, 0, 0)])[0]

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
            A number that is negative or too large; the file or the memory is closed.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's.
        """
        buffer.memory  # not a closed one's, whose handle may be another's now
        return self.submit([(w.READ, file.handle, buffer.handle, offset, buffer.base + start, length) for offset, start, length in ranges])

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
            A number that is negative or too large; the file or the memory is closed.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            The ring is closed, its daemon has ended, or it is another process's.
        """
        buffer.memory.synchronize()
        return self.submit([(w.WRITE, file.handle, buffer.handle, offset, buffer.base + start, length) for offset, start, length in ranges])

    def _start(self, op, file, buffer, offset, start, length):
        length, memory = part(buffer, start, length), buffer.memory  # ValueError: a closed one's handle may be another's now
        if op == w.WRITE:
            memory.synchronize()
        return self.submit([(op, file.handle, buffer.handle, offset, buffer.base + start, length)])[0]

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
            The ring is closed, its daemon has ended, or it is another process's.
        """
        if self._pid != os.getpid():
            raise OSError("the ring is that of the process that forked this one: open the file again")
        futures = []
        try:
            todo = [w.SUBMISSION.pack(0, op, file, memory, 0, at, start, length) for op, file, memory, at, start, length in requests]
        except struct.error as e:
            raise ValueError(f"a request with a number that is negative or too large: {e}") from None
        while todo:
            with self._room:
                while not self._free and not self._ended:
                    self._room.wait()
                if self._ended:
                    raise self._ended
                tail = self._words[w.SQ_TAIL // 4]
                now, todo = todo[:len(self._free)], todo[len(self._free):]
                for entry in now:
                    slot, future = self._free.pop(), Future()
                    future.set_running_or_notify_cancel()  # it cannot be cancelled from here on
                    self._flying[slot] = future
                    futures.append(future)
                    at = w.ENTRIES + (tail % self.entries) * w.SUBMISSION.size
                    self._memory[at:at + w.SUBMISSION.size] = struct.pack("<Q", slot) + entry[8:]
                    tail = (tail + 1) & 0xFFFFFFFF
                self._words[w.SQ_TAIL // 4] = tail  # after the entries; x86 and the interpreter keep the order of stores
                # Python has no fence, so it cannot know whether the daemon sleeps. A signal too many does no harm.
                os.write(self._submit, struct.pack("=Q", 1))
        return futures

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
        poll = select.poll()
        poll.register(self._complete, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        socket = self._session.fileno()
        poll.register(socket, 0)  # reports the end of the daemon
        wait = 0
        while not self._ended:
            done = self._take()
            if not done:
                self._words[w.CLIENT_SLEEPS // 4] = 1
                done = self._take()
            if not done:
                # Without a fence the daemon may have read the word above before it was set. So the wait is short.
                if any(fd == socket for fd, _ in poll.poll(wait)):
                    done = self._take()
                    if not done:
                        self._end(ConnectionError(errno.ECONNRESET, GONE_TEXT))
                        return
                wait = min(wait + 1, 20) if self._flying else 1000
                if w.drain(self._complete):
                    wait = 0
                if not done:
                    continue
            wait = 0
            with self._room:
                ended = [(self._flying.pop(slot, None), result) for slot, result in done]
                self._free.extend(slot for slot, _ in done)
                self._room.notify_all()
            for future, result in ended:
                if future is None:
                    continue
                if result < 0:
                    future.set_exception(OSError(-result, os.strerror(-result)))
                else:
                    future.set_result(result)

    def _end(self, why):
        with self._room:
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
        why = OSError("the ring is closed")
        with self._room:
            if self._closed:
                return
            self._closed = True
            self._ended = self._ended or why
            self._room.notify_all()
        if self._pid == os.getpid():
            self._finish(why)
        self._words.release()
        for fd in (self._submit, self._complete, self._wake_read, self._wake_write):
            os.close(fd)

    def _finish(self, why):
        os.write(self._wake_write, b"x")
        if threading.current_thread() is not self._reaper:  # not if a callback of a future closes the ring
            self._reaper.join()
        self._session.release(self._handle)
        self._end(why)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Plain:
    """The fallback of a ring for a file that is not on LaneFS: ordinary reads and writes, each done at once."""

    def read(self, file, buffer, offset=0, start=0, length=None):
        return _done(_transfer, os.preadv, file._opened(), buffer, offset, start, part(buffer, start, length))

    def write(self, file, buffer, offset=0, start=0, length=None):
        return _done(_transfer, os.pwritev, file._opened(), buffer, offset, start, part(buffer, start, length))

    def sync(self, file):
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
