"""Rings: many transfers in flight between files and memory of the program's own, without a system call each."""

import mmap
import os
import select
import struct
import threading
from concurrent.futures import Future

from . import _wire as w


class Ring:
    """A submission and a completion queue, shared with the daemon. Each request is a Future of the number of bytes. Methods
    may be called from any thread."""

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
        self._ended = False
        self._wake_read, self._wake_write = os.pipe()
        self._reaper = threading.Thread(target=self._reap, daemon=True, name="lanefs-ring")
        self._reaper.start()

    def read(self, file, buffer, offset=0, start=0, length=None):
        """Reads length bytes at offset of file to start of a Buffer or private Mapping."""
        return self._start(w.READ, file, buffer, offset, start, length)

    def write(self, file, buffer, offset=0, start=0, length=None):
        """Writes length bytes from start of a Buffer or Mapping to file at offset."""
        return self._start(w.WRITE, file, buffer, offset, start, length)

    def sync(self, file):
        """Makes durable what was written before."""
        return self.submit([(w.SYNC, file.handle, 0, 0, 0, 0)])[0]

    def read_batch(self, file, buffer, ranges):
        """Reads many ranges (offset, start, length) of file. Gives a Future for each."""
        return self.submit([(w.READ, file.handle, buffer.handle, offset, buffer.base + start, length) for offset, start, length in ranges])

    def _start(self, op, file, buffer, offset, start, length):
        length = len(buffer) - start if length is None else length
        if start < 0 or length < 0 or start + length > len(buffer):
            raise ValueError(f"{length} bytes at {start} of memory of {len(buffer)}")
        if op == w.WRITE:
            buffer.memory.synchronize()
        return self.submit([(op, file.handle, buffer.handle, offset, buffer.base + start, length)])[0]

    def submit(self, requests):
        """Submits requests (op, file handle, memory handle, file offset, memory offset, length); waits while the ring is full."""
        futures = []
        todo = list(requests)
        while todo:
            with self._room:
                while not self._free and not self._ended:
                    self._room.wait()
                if self._ended:
                    raise OSError("the ring is closed")
                tail = self._words[w.SQ_TAIL // 4]
                now, todo = todo[:len(self._free)], todo[len(self._free):]
                for op, file, memory, at, start, length in now:
                    slot, future = self._free.pop(), Future()
                    self._flying[slot] = future
                    futures.append(future)
                    w.SUBMISSION.pack_into(self._memory, w.ENTRIES + (tail % self.entries) * w.SUBMISSION.size,
                                           slot, op, file, memory, 0, at, start, length)
                    tail = (tail + 1) & 0xFFFFFFFF
                self._words[w.SQ_TAIL // 4] = tail  # after the entries; x86 and the interpreter keep the order of stores
                # Python has no fence, so whether the daemon is asleep cannot be known: a signal too many does no harm.
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
        wait = 0
        while not self._ended:
            done = self._take()
            if not done:
                self._words[w.CLIENT_SLEEPS // 4] = 1
                done = self._take()
            if not done:
                # Without a fence the daemon may have looked before it could see the word above: so never for long.
                poll.poll(wait)
                wait = min(wait + 1, 20) if self._flying else 1000
                try:
                    os.read(self._complete, 8)
                    wait = 0
                except BlockingIOError:
                    pass
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

    def close(self):
        """Ends the ring. The daemon finishes what is in flight; who waits for it gets an error."""
        with self._room:
            if self._ended:
                return
            self._ended = True
            self._room.notify_all()
        os.write(self._wake_write, b"x")
        self._reaper.join()
        self._session.release(self._handle)
        for future in self._flying.values():
            future.set_exception(OSError("the ring is closed"))
        self._flying.clear()
        self._words.release()
        for fd in (self._submit, self._complete, self._wake_read, self._wake_write):
            os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
