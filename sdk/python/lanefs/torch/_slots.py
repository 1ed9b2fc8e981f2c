"""Parts of a file by way of device memory that is registered with the daemon, which writes to it itself: twice the rate of a stage, which the CPU fills."""

import contextlib
import os
import sys
import threading
import time

import torch

from .._memory import Buffer
from .._ring import Ring

PART = 24 << 20   # bytes, at most: each chunk costs a third of a millisecond of Python, and the daemon reads each part by one copy
AHEAD = 12        # parts of which the read is begun before the one before them is used, at most: of several ranks one may be slower for a while
SPARE = 4         # slots more, at most: the device may still use as many parts, so that its end is hardly ever waited for
ALIGN = 4096      # bytes: where parts begin in the file, so that none has edges, which go another way than the rest
KEEP = 1.0        # seconds for which memory is kept that was used
_LEAST = 256 << 20  # bytes of a file that are worth the memory: to register it takes 5 ms


class _Memory:
    """A buffer, its bytes as a tensor, and a ring for it. They end with the last reference: wherever an exception passes, KeyboardInterrupt for one, none is left, as a ring would
    be that has a thread."""

    def __init__(self, file, size, device):
        self.buffer = self.ring = None
        try:
            self.buffer = Buffer(file, size)
            self.tensor = torch.from_dlpack(self.buffer)
            if self.tensor.device != device:
                raise OSError(f"the mount's memory is on {self.tensor.device}")
            self.ring = Ring(file)
        except BaseException:
            self.close()
            raise

    def close(self):
        ring, self.ring = self.ring, None
        buffer, self.buffer = self.buffer, None
        try:
            if ring is not None:
                ring.close()
        finally:
            if buffer is not None:
                buffer.close()

    _ending = staticmethod(sys.is_finalizing)  # which is there until the end, unlike modules

    def __del__(self):
        if not self._ending():  # then the end of the process frees all
            self.close()


class _Kept:
    """The memory that was used last and its ring, for a moment: a model has many files. A thread that lives as long as that gives it back: to start one for each file takes
    half a millisecond."""

    def __init__(self):
        self._new()
        os.register_at_fork(after_in_child=self._forked)

    def _new(self):
        self._lock, self._entry, self._until, self._thread = threading.Lock(), None, 0.0, None

    def _forked(self):
        self._parents = self._entry  # the memory is never given back here: it is the parent's
        self._new()
        if self._parents is not None:
            with contextlib.suppress(OSError):
                self._parents[1].ring.close()  # which closes what this process has of its descriptors

    def take(self, *key):
        """The memory that was given with that key. None: there is none."""
        with self._lock:
            if self._entry is None or self._entry[0] != key:
                return None
            (_, found), self._entry = self._entry, None
        return found

    def give(self, key, memory):
        """Keeps memory that nothing uses. The key is its session, its size and device."""
        with self._lock:
            old, self._entry, self._until = self._entry, (key, memory), time.monotonic() + KEEP
            if self._thread is None:
                thread = threading.Thread(target=self._wait, name="lanefs-kept", daemon=True)
                try:
                    thread.start()  # it waits for the lock
                    self._thread = thread
                except RuntimeError:  # no thread can be had, so nobody would give it back
                    self._entry = None
                    memory.close()
        self._close(old)

    def drop(self):
        """Gives the memory back, if no load has taken it. Returns whether there was some."""
        with self._lock:
            old, self._entry = self._entry, None
        self._close(old)
        return old is not None

    def _wait(self):
        while True:
            with self._lock:
                left = self._until - time.monotonic() if self._entry is not None else 0
                if left <= 0:
                    old, self._entry, self._thread = self._entry, None, None
                    break
            time.sleep(left)
        self._close(old)

    @staticmethod
    def _close(entry):
        if entry is not None:
            entry[1].close()


kept = _Kept()


class InTurn:
    """Memory for parts, of which each has the slot after the one before it, in `_tensors`."""

    def tensor(self, i):
        return self._tensors[i % len(self._tensors)]

    def before(self, i):
        """The number of the part that has part i's slot before it: less than 0 if none has."""
        return i - len(self._tensors)


_UNKNOWN = None, 0, 0  # a read that has perhaps been begun: an exception came before that was noted


class Slots(InTurn):
    """Memory for the parts of a file that the daemon writes to itself: no stage, and no copy by the CPU."""

    def __init__(self, file, device, part, chunks, ahead):
        self._file, self._reads, self._part = file, {}, part
        self.ahead = ahead
        self._key = file.session, part * slots_for(ahead, chunks), device
        self._memory = kept.take(*self._key) or _Memory(file, *self._key[1:])
        self._tensors = list(self._memory.tensor[:self._memory.buffer.size // part * part].split(part))

    @classmethod
    def of(cls, file, device, part, chunks, most=AHEAD):
        """None where the mount has no memory on the device, or no more of it, or the file is on none: the stage, or what stands for it, does it, too."""
        if file.session is None:
            return None
        for ahead in dict.fromkeys((most, max(1, most // 2))):  # half where there is not enough memory
            again = True
            while again:
                try:
                    return cls(file, device, part, chunks, ahead)
                except (OSError, BufferError, RuntimeError):  # the last is a thread's
                    again = kept.drop()  # what is kept may be what is missing
        return None

    def close(self):
        """Ends the reads that are under way, whatever becomes of them, and gives the memory back. The caller has waited for what the device does with it."""
        reads, self._reads = self._reads, {}
        memory, self._memory, self._tensors = self._memory, None, None
        if _UNKNOWN in reads.values():
            memory.close()  # which ends them, too
            return
        for read, _, _ in reads.values():
            read.exception()
        kept.give(self._key, memory)

    def begin(self, i, offset, n):
        start = i % len(self._tensors) * self._part
        self._reads[i] = _UNKNOWN
        self._reads[i] = self._memory.ring.read(self._file, self._memory.buffer, offset, start, n), offset, n

    def finish(self, i):
        """Waits for the read of part i."""
        if i not in self._reads:
            return
        read, offset, n = self._reads[i]
        try:
            done = read.result()
        finally:
            read = None  # else its error, whose frames have the tensors, would have itself by this one
        del self._reads[i]  # not before it has ended, for KeyboardInterrupt may come instead: the memory is not given back while the daemon writes to it
        if done < n:
            raise EOFError(f"{self._file.path!r} ends at {offset + done}, within {n} bytes at {offset}")


def slots_for(ahead, chunks):
    """How many slots so many parts have, of which so many are read ahead: one at least, for there is no memory of no bytes."""
    return max(1, min(ahead + min(ahead, SPARE), chunks))


def _copy(to, of):
    """Copies bytes on the device. Where PyTorch can do that by one kernel: each copy_ is a call of its own, and goes by a copy engine, of which what is read from the host
    meanwhile has less."""
    if hasattr(torch, "_foreach_copy_"):  # not in PyTorch 1
        torch._foreach_copy_(to, of)
    else:
        for t, o in zip(to, of):
            t.copy_(o)


class Where:
    """Which tensors a range of the file's data belongs to."""

    def __init__(self, entries, tensors):
        self._all = sorted(((start, end, tensors[name].reshape(-1).view(torch.uint8)) for name, (_, _, start, end) in entries.items() if end > start),
                           key=lambda e: e[:2])
        self._next = 0

    def copy(self, chunk, at, n):
        """Copies n bytes of a chunk that begins at at, which is negative for one that begins before the data. Chunks come in order."""
        i, to, of = self._next, [], []
        while i < len(self._all) and self._all[i][0] < at + n:
            start, end, flat = self._all[i]
            low, high = max(start, at), min(end, at + n)
            to.append(flat[low - start:high - start])
            of.append(chunk[low - at:high - at])
            i += 1
            if end <= at + n:
                self._next = i
        if to:
            _copy(to, of)


def length_of(entries):
    """Bytes of the tensors' part of a file with this header."""
    return max((end for _, _, _, end in entries.values()), default=0)


def load(file, base, entries, tensors, device):
    """Reads a safetensors file's tensors to a GPU. Where that is not the way it does nothing, and returns False."""
    size = length_of(entries)
    if not _worth(size, device):
        return False
    before = base % ALIGN  # bytes of the header in the first part
    base, size = base - before, size + before
    parts = -(-size // PART)
    slots = Slots.of(file, device, PART, parts)
    if slots is None:
        return False
    where, used, length = Where(entries, tensors), [], lambda i: min(PART, size - i * PART)
    try:
        for i in range(min(slots.ahead, parts)):
            slots.begin(i, base + i * PART, length(i))
        for i in range(parts):
            slots.finish(i)
            where.copy(slots.tensor(i), i * PART - before, length(i))
            used.append(_mark(device))
            if (then := i + slots.ahead) < parts:
                if (last := slots.before(then)) >= 0:
                    used[last].synchronize()
                slots.begin(then, base + then * PART, length(then))
    finally:
        if used:
            used[-1].synchronize()  # the memory is used again, or unmapped
        slots.close()
    return True


def _worth(size, device):
    return device.type == "cuda" and size >= _LEAST


def _mark(device):
    """An event behind what is on the current stream."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
