"""Slabs: caches of blocks by key, in one preallocated file of a LaneFS mount.

    slab = lanefs.kv.Slab("/mnt/cache/kv.slab", slot_size=2 << 20, slots=5000)
    slab.put_batch(keys, tensor, offsets, lengths)     # keys and blocks of a tensor on the GPU
    slab.commit()                                      # durable from here on
    found = slab.get_batch(keys, tensor, offsets)      # one batch; None for each that is not there

A block that was put is found at once by this Slab, and after `commit` also by whoever opens the slab after a kill or a loss of power. What
was not committed is then not found. No block is ever found with other bytes than were put: see docs/SPEC.md, "Slabs".
"""

import collections
import contextlib
import errno
import fcntl
import hashlib
import operator
import os
import threading
import time
import weakref

from . import _file, _slab, _stage
from ._integer import integer
from ._sum import sums
from ._use import Here, inherited

__all__ = ["Full", "Slab"]

_WITHIN = "called by the handler of a signal, in the middle of a put of the same thread that has the slots"
_POLL = 0.001  # seconds between looks at the puts of other threads


class Full(OSError):
    """All slots have blocks, and the slab was told not to evict."""


def _digest(key):
    """What stands for a key in the slab: 32 bytes. Keys of different types are different."""
    if isinstance(key, str):
        kind, raw = b"s", key.encode()
    elif isinstance(key, (bytes, bytearray, memoryview)):
        kind, raw = b"b", bytes(key)
    else:
        try:
            kind, raw = b"i", b"%d" % operator.index(key)
        except TypeError:
            raise TypeError(f"a key is bytes, text or an integer, not {type(key).__name__}") from None
    return hashlib.blake2b(raw, digest_size=32, person=b"lanefs.kv" + kind).digest()


class _Block:
    """What a key names."""
    __slots__ = ("slot", "length", "sum", "committed", "generation")

    def __init__(self, slot, length, total, committed, generation=0):
        self.slot, self.length, self.sum, self.committed = slot, length, total, committed
        self.generation = generation  # as the slab was opened with


class _Held(list):
    """Slots of a put under way: neither free nor a block's."""
    __hash__ = object.__hash__

    def __init__(self):
        self.thread = threading.get_ident()

    def __eq__(self, other):
        return self is other


class _Locked(_file.File):
    """A slab's file, and a lock of it. As they have its descriptor, children of a fork have its lock, as long as they live: so who took it gives it back."""

    _has = None  # the descriptor, if it is locked

    def lock(self, kind):
        fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
        self._has = self.fd

    def _end(self):
        fd, self._has = self._has, None
        if fd is not None and self._made_by == os.getpid() and not (self.session and self.session._lost):
            with contextlib.suppress(OSError):  # the program has closed it
                fcntl.flock(fd, fcntl.LOCK_UN)
        super()._end()


class Slab(Here):
    """An open slab. Methods may be called from any thread.

    Parameters
    ----------
    path : str or os.PathLike
    slot_size : int, optional
        Bytes; the longest block that a slot takes. Rounded up to 4096. Needed to make a slab; of one that is there it must agree.
    slots : int, optional
        How many blocks the slab has room for. Likewise.
    mode : {"r+", "r"}
        "r" opens one that is there and only reads. One process at a time has a slab open to write, and then no other has it open.
    evict : bool
        Whether a put that finds no free slot takes those of blocks least recently used. Else it raises Full.
    verify : bool
        Whether puts store checksums, and gets compare them. Without, damage by the medium is not seen; a kill or a loss of power does no damage.
    fallback : bool
        Whether a file elsewhere than on a LaneFS mount will do, with a warning; memory is then the CPU's.

    Attributes
    ----------
    slot_size, slots : int
        Bytes, and how many.
    damaged : int
        Blocks that were found damaged since the slab was opened, and given up.

    Raises
    ------
    FileNotFoundError
        There is no file, and slot_size or slots is missing, or mode is "r".
    ValueError
        The file is not a slab, one that is cut within its index, or one of another slot size or number of slots; a size that is not positive; a mode that is none.
    BlockingIOError
        Another process, or another Slab, has it open; or the children of a process that was killed have, which it had forked meanwhile.
    lanefs.NotLaneFS
        The file is not on a LaneFS mount, and fallback is false.
    OSError
        The file cannot be made (ENOSPC) or read.
    """

    _elsewhere = "which opens it when this one has closed it"

    def __init__(self, path, slot_size=None, slots=None, mode="r+", *, evict=True, verify=True, fallback=False):
        self._f = None
        if mode not in ("r", "r+"):
            raise ValueError(f"mode {mode!r}: want 'r' or 'r+'")
        slot_size, slots = (n if n is None else integer(n) for n in (slot_size, slots))
        for name, n in (("slot_size", slot_size), ("slots", slots)):
            if n is not None and not 0 < n < 1 << 48:
                raise ValueError(f"{name} of {n}")
        path = os.fsdecode(path)
        if mode == "r+" and slot_size is not None and slots is not None and not os.path.exists(path):
            if not fallback:
                _file.need_mount(path)  # before a large file is made in the wrong place
            try:
                _slab.create(path, _slab.Layout.new(slot_size, slots))
            except FileExistsError:
                pass  # another process was faster
        self.path, self._evicts, self._verify, self._pid = path, evict, verify, os.getpid()
        self._write, self._late, self.damaged = mode == "r+", False, 0  # late: of an interrupted put something may be under way yet
        self._lock = threading.RLock()    # protects all below; held for no reads or writes of blocks, and once: see _only
        self._commit = threading.RLock()  # one commit at a time; before _lock
        self._room = threading.RLock()    # one call at a time makes room, so that others do not take what it frees; before _commit
        self._held = weakref.WeakSet()    # of puts; protected by _lock
        f = _Locked(path, mode, fallback)
        try:
            try:
                f.lock(fcntl.LOCK_EX if self._write else fcntl.LOCK_SH)
            except BlockingIOError:
                raise BlockingIOError(errno.EWOULDBLOCK, "the slab is open elsewhere: one process at a time may write; the children that a killed one had forked have it open until they end, too", path) from None
            self._layout = _slab.Layout.parse(os.pread(f.fd, _slab.ALIGN, 0), path)
            self.slot_size, self.slots = self._layout.slot_size, self._layout.slots
            if slots not in (None, self.slots) or slot_size is not None and -(-slot_size // _slab.ALIGN) * _slab.ALIGN != self.slot_size:
                raise ValueError(f"{path!r} has {self.slots} slots of {self.slot_size} bytes, not {slots} of {slot_size}")
            if self._layout.data > f.size:  # before memory is taken for what a damaged header says
                raise ValueError(f"{path!r} has {f.size} bytes, and a slab of {self.slots} slots needs {self._layout.data} for its index alone")
            self._load(f)
        except BaseException:
            f.close()
            raise
        self._f = f
        if self._write and self._dirty:
            try:
                self.commit()  # older blocks of a key go before anything happens to the newest
            except BaseException:
                self._f = None
                f.close()
                raise

    def _load(self, f):
        """Reads the index: of each key its newest block that lies within the file."""
        n = self.slots * _slab.ENTRY.size
        self._index = bytearray(n)  # as on the medium
        view, at = memoryview(self._index), 0
        while at < n:
            got = os.preadv(f.fd, [view[at:at + (1 << 20)]], self._layout.index + at)
            if got == 0:
                break  # cut: the rest is free
            at += got
        size, newest, self._next = f.size, {}, 1
        for slot in range(self.slots):
            raw = bytes(view[slot * _slab.ENTRY.size:(slot + 1) * _slab.ENTRY.size])
            e = None if raw == _slab.FREE else self._layout.parse_entry(slot, raw)
            if e is None:
                continue
            generation, length, total, key = e
            self._next = max(self._next, generation + 1)
            if self._layout.slot(slot) + length <= size and (key not in newest or newest[key].generation < generation):
                newest[key] = _Block(slot, length, total, True, generation)
        self._blocks = collections.OrderedDict(sorted(newest.items(), key=lambda kv: kv[1].generation))  # least recently used first
        used = {b.slot for b in newest.values()}
        # A slot whose entry is not zero on the medium, older versions and damage, is only used after a commit has made it so.
        self._dirty = [s for s in range(self.slots) if s not in used and any(view[s * _slab.ENTRY.size:(s + 1) * _slab.ENTRY.size])]
        dirty = set(self._dirty)
        self._free = [s for s in range(self.slots - 1, -1, -1) if s not in used and s not in dirty]
        self._pending = {}  # key: block, put since the last commit
        self._torn = []     # slots whose entries the last commit did not get to the medium for certain; protected by _commit

    def _need(self, write=False):
        if self._f is None:
            raise ValueError(f"the slab {self.path!r} is closed")
        if self._pid != os.getpid():
            raise inherited("slab", "open it again when that has closed it")
        self._f._opened()  # or the descriptor's number may be another file's
        if write and not self._write:
            raise PermissionError(errno.EACCES, "the slab is open to read only", self.path)
        return self._f

    @staticmethod
    def _only(lock):
        """The lock, for with. OSError if this thread has it: a signal's handler would wait for itself, or find the slab half changed."""
        if lock._is_owned():
            raise OSError(errno.EDEADLK, "called in the middle of such a call of the same thread, by the handler of a signal")
        return lock

    # Puts.

    def put(self, key, memory, start=0, length=None, stream=None):
        """Puts one block, in the place of the one that the key had.

        Parameters
        ----------
        key : bytes, str or int
        memory : tensor, array, bytes or int
            As with `File.write_from`.
        start, length : int
            Bytes: where in the memory, and how many, slot_size at most; length None: to the memory's end.
        stream : optional
            As with `put_batch`.

        Raises
        ------
        ValueError
            A block longer than a slot, or not within the memory; an address without a length; the slab is closed.
        TypeError
            A key of another type; what is no memory, or memory of references or pointers: of NumPy's objects, for one.
        Full, PermissionError, OSError
            As `put_batch`.
        """
        if length is None:
            length = _stage.rest(memory, start, _stage.target(memory, stream, False)[1])
        self.put_batch([key], memory, [start], [length], stream)

    def put_batch(self, keys, memory, offsets, lengths, stream=None):
        """Puts blocks, in the place of those that the keys had.

        Parameters
        ----------
        keys : sequence of bytes, str or int
            Each once.
        memory : tensor, array, bytes or int
            As with `File.write_batch`: of the CPU or of a GPU.
        offsets, lengths : sequence of int, shape (n,)
            Bytes: where each block lies in the memory, and how long it is, slot_size at most.
        stream : optional
            What is on the stream now is done before the memory is read. By default PyTorch's current one.

        Raises
        ------
        Full
            There are not enough slots that are free or may be evicted, nor will there be when the puts of other threads that are under way have ended: they are waited for.
            Nothing was put.
        ValueError
            A key twice; a block longer than a slot, or not within the memory; the slab is closed.
        TypeError
            A key of another type; what is no memory, or memory of references or pointers: of NumPy's objects, for one.
        PermissionError
            The slab is open to read only.
        OSError
            The file cannot be written. Nothing was put.
        """
        f = self._need(True)
        names, offsets, lengths = [_digest(k) for k in keys], *(_stage.integers(n).tolist() for n in (offsets, lengths))
        if not len(names) == len(offsets) == len(lengths):
            raise ValueError(f"{len(names)} keys, {len(offsets)} offsets, {len(lengths)} lengths")
        if len(set(names)) != len(names):
            raise ValueError("a key twice in a batch")
        if lengths and not 0 <= min(lengths) <= max(lengths) <= self.slot_size:
            raise ValueError(f"a block of {max(lengths)} bytes, and slots have {self.slot_size}")
        _, size, _, hold = _stage.target(memory, stream, False)  # until this returns: the memory is looked at more than once
        _stage.pieces(offsets, offsets, lengths, size)  # ValueError before anything is taken
        totals = sums(memory, offsets, lengths, stream) if self._verify else [None] * len(names)
        left = _Held()
        try:
            self._take(len(names), left)
            slots = left[::-1]
            with _file.Use(f):  # who closes the slab meanwhile lets others have it when this has ended
                done = f.write_batch(memory, [self._layout.slot(s) for s in slots], offsets, lengths, stream=stream)
            for n, want in zip(done, lengths):
                if n != want:
                    raise OSError(-n if n < 0 else errno.EIO, os.strerror(-n if n < 0 else errno.EIO), self.path)
            with self._only(self._lock):
                for name, length, total in zip(names, lengths, totals):
                    self._forget(name)
                    block = _Block(left[-1], length, total, False)
                    self._blocks[name], self._pending[name], left[-1:] = block, block, []
        except BaseException:  # KeyboardInterrupt, too, among the blocks
            self._late = True
            with self._lock:
                self._free[len(self._free):], left[:] = left, []
            raise

    def _take(self, n, into):
        """Moves n free slots to an empty list.

         1. if nobody waits for some, and there are enough, they are taken
         2. else one call after the other evicts blocks, if it may, and commits, which frees the slots of what was evicted and replaced
         3. where that is not enough it waits for other threads' puts: each ends with a block, which may be evicted, or gives its slots back
        """
        with self._only(self._lock):
            mine = self._mine()
        if not mine:
            with self._only(self._room):
                return self._take_next(n, into)
        if not self._only(self._room).acquire(blocking=False):  # who has it may wait for what this thread has
            raise OSError(errno.EDEADLK, _WITHIN, self.path)
        try:
            return self._take_next(n, into)
        finally:
            self._room.release()

    def _take_next(self, n, into):
        while True:
            with self._only(self._lock):
                self._held.add(into)
                if len(self._free) >= n:
                    return self._pop(n, into)
                wait = self._make_room(n)
            if wait:
                self._need(True)
                time.sleep(_POLL)  # no put under way waits for a lock that this thread holds
            else:
                self.commit()

    def _mine(self):
        """How many slots this thread's puts under way have: not 0 only for the handler of a signal. Under the lock."""
        return sum(len(h) for h in self._held if h.thread == threading.get_ident())

    def _make_room(self, n):
        """Evicts what is needed for n slots to be free after a commit. True: there may be enough when other threads' puts have ended. Under the lock."""
        short = n - len(self._free) - len(self._dirty)
        if short <= 0:
            return False
        if self._evicts and short <= len(self._blocks):
            for name in list(self._blocks)[:max(short, self.slots // 64)]:  # some more, for each time costs a flush
                self._forget(name)
            return False
        under_way = self.slots - len(self._free) - len(self._dirty) - len(self._blocks)
        if n > self.slots or not under_way:
            raise Full(errno.ENOSPC, f"{n} blocks, and {len(self._free) + len(self._dirty)} of {self.slots} slots are free", self.path)
        if under_way == self._mine():
            raise OSError(errno.EDEADLK, _WITHIN, self.path)
        return True

    def _pop(self, n, into):
        """Likewise, the last ones, at once: nothing comes in between. Under the lock."""
        rest = len(self._free) - n
        into[:], self._free[rest:] = self._free[rest:], []

    def _forget(self, name):
        """A key has no block any more. Its slot is free at once if the medium knows nothing of it. Under the lock."""
        old = self._blocks.get(name)
        if old is None:
            return False
        # In one go: who is interrupted in between has neither lost the slot nor a block that no commit would know of.
        (self._dirty if old.committed else self._free).append((self._pending.pop(name, None), self._blocks.pop(name).slot)[1])
        return True

    def evict(self, key):
        """Removes a block. Until the next commit it may be there again after a kill.

        Parameters
        ----------
        key : bytes, str or int

        Returns
        -------
        bool
            Whether there was one.

        Raises
        ------
        PermissionError
            The slab is open to read only.
        ValueError
            The slab is closed.
        TypeError
            A key of another type.
        OSError
            The slab is that of the process that forked this one. EDEADLK, as of all methods: called by the handler of a signal, in the middle of such a call.
        """
        self._need(True)
        with self._only(self._lock):
            return self._forget(_digest(key))

    def commit(self):
        """Makes all puts and evictions before it durable.

         1. sync: the blocks' bytes are on the medium
         2. write the entries of the blocks, and zeroes for the entries of slots that shall be free
         3. sync: the entries are on the medium; only now may the slots be used again

        Raises
        ------
        OSError
            The file cannot be written or synchronized. What was put is still found by this Slab; another commit tries again.
        PermissionError
            The slab is open to read only.
        ValueError
            The slab is closed.
        """
        self._need(True)  # before the lock, which in a child may be held for ever
        with self._only(self._commit):
            self._need(True)
            if self._torn:  # what the last commit may have left half done; first, or an older block could outlive a newer one
                self._entries({}, self._torn)
            with self._only(self._lock):
                pending, dirty = dict(self._pending), list(self._dirty)
            if pending or dirty:
                with _file.Use(self._f):
                    os.fsync(self._f._opened())
                self._entries(pending, dirty)

    def _entries(self, pending, dirty):
        """Steps 2 and 3 of a commit."""
        with _file.Use(self._f):  # another thread may close the slab: the descriptor's number is another file's then
            self._write_entries(self._f._opened(), pending, dirty)

    def _write_entries(self, fd, pending, dirty):
        size, pages, live = _slab.ENTRY.size, set(), {}
        try:
            with self._only(self._lock):
                generation, self._next = self._next, self._next + 1
                for name, b in pending.items():
                    if self._pending.get(name) is not b:
                        continue  # replaced or evicted since step 1: its slot is free already
                    live[name] = b  # first: this may be interrupted anywhere
                    b.committed = True  # from here on its slot is not free before another commit
                    del self._pending[name]
                    self._index[b.slot * size:(b.slot + 1) * size] = self._layout.entry(b.slot, generation, b.length, b.sum, name)
                    pages.add(b.slot * size // _slab.ALIGN)
                for s in dirty:
                    self._index[s * size:(s + 1) * size] = _slab.FREE
                    pages.add(s * size // _slab.ALIGN)
            self._torn = dirty
            for page in sorted(pages):
                at = page * _slab.ALIGN
                view = bytes(self._index[at:at + _slab.ALIGN]).ljust(_slab.ALIGN, b"\0")
                if os.pwrite(fd, view, self._layout.index + at) != len(view):
                    raise OSError(errno.EIO, "a short write of the index", self.path)
            os.fsync(fd)
        except BaseException:
            with self._lock:  # again with the next commit
                for name, b in live.items():
                    if self._blocks.get(name) is b:
                        self._pending[name] = b
            raise
        self._torn = []
        with self._only(self._lock):
            self._dirty, self._free = self._dirty[len(dirty):], self._free + dirty  # what came since is behind them

    # Gets.

    def get(self, key, memory, start=0, stream=None):
        """Reads one block to memory.

        Parameters
        ----------
        key : bytes, str or int
        memory : tensor, array, bytearray or int
        start : int
            Bytes: where in the memory.
        stream : optional
            As with `get_batch`.

        Returns
        -------
        int or None
            Its length in bytes; None: not there.

        Raises
        ------
        ValueError, TypeError, OSError
            As `get_batch`.
        """
        return self.get_batch([key], memory, [start], stream)[0]

    def get_batch(self, keys, memory, offsets, stream=None):
        """Reads blocks to memory, as `File.read_batch` does, by one batch.

        Parameters
        ----------
        keys : sequence of bytes, str or int
        memory : tensor, array, bytearray or int
        offsets : sequence of int, shape (n,)
            Bytes: where in the memory each block shall begin. Blocks must not overlap there.
        stream : optional
            The memory is written to in the stream's order. With verify the call waits for the stream.

        Returns
        -------
        list of int or None
            The length of each block in bytes; None: not there. The memory of one that is None may have been written to.

        Raises
        ------
        ValueError
            A block is not within the memory; the slab is closed.
        TypeError
            A key of another type; what is no memory, or memory of references or pointers: of NumPy's objects, for one.
        OSError
            The file cannot be read: EIO from the medium, ECONNRESET after the end of the daemon. No block is given up for that.
        """
        f = self._need()
        offsets = _stage.integers(offsets).tolist()
        names = [_digest(k) for k in keys]
        if len(names) != len(offsets):
            raise ValueError(f"{len(names)} keys, {len(offsets)} offsets")
        with self._only(self._lock):
            blocks = [self._blocks.get(name) for name in names]
            for name, b in zip(names, blocks):
                if b is not None:
                    self._blocks.move_to_end(name)
        out = [None] * len(names)
        which = [i for i, b in enumerate(blocks) if b is not None]
        if not which:
            return out
        at, lengths = [offsets[i] for i in which], [blocks[i].length for i in which]
        hold = _stage.target(memory, stream, True)[3]  # likewise
        with _file.Use(f):  # likewise: what is read is no other process's
            done = f.read_batch(memory, [self._layout.slot(blocks[i].slot) for i in which], at, lengths, stream=stream)
        for n in done:
            if n < 0:
                raise OSError(-n, os.strerror(-n), self.path)
        summed = [j for j, i in enumerate(which) if self._verify and blocks[i].sum is not None and done[j] == lengths[j]]
        totals = dict(zip(summed, sums(memory, [at[j] for j in summed], [lengths[j] for j in summed], stream))) if summed else {}
        with self._only(self._lock):
            for j, i in enumerate(which):
                b = blocks[i]
                if self._blocks.get(names[i]) is not b:
                    continue  # evicted meanwhile, and its slot perhaps another's
                if done[j] != b.length or totals.get(j, b.sum) != b.sum:
                    self.damaged += 1
                    if self._write:
                        self._forget(names[i])
                    else:
                        del self._blocks[names[i]]
                    continue
                out[i] = b.length
        return out

    def __contains__(self, key):
        """Whether a key has a block, which may yet be found damaged. A forked child knows of those that its parent had then.

        Parameters
        ----------
        key : bytes, str or int

        Returns
        -------
        bool

        Raises
        ------
        TypeError
            A key of another type.
        """
        return _digest(key) in self._blocks

    def __len__(self):
        """How many blocks the slab has.

        Returns
        -------
        int
        """
        return len(self._blocks)

    def close(self):
        """Commits, and closes the slab, which others may open then. It waits for the writes of a put that was interrupted. What a failed commit left behind is not found after that; repeated calls
        do nothing.

        Raises
        ------
        OSError
            The commit failed. The slab is closed.
        ValueError
            Another thread has closed it meanwhile.
        """
        if self._f is None:
            return
        own = self._pid == os.getpid()
        if self._late and own and self._f.session is not None:  # into slots that are free for who opens the slab next
            with contextlib.suppress(OSError, ValueError):
                self._f.read_into(bytearray(1))  # a batch waits for those before it
        try:
            if self._write and own:
                self.commit()
        finally:
            f, self._f = self._f, None
            if f is not None:  # another thread has closed it
                f.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
