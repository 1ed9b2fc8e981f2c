"""Open files and their mappings."""

import array
import ctypes
import errno
import os
import struct
import sys
import threading
import warnings
import weakref

from . import _dlpack, _stage, _wait
from . import _wire as w
from ._descriptors import Descriptors
from ._flight import Flight, StreamBatch, in_thread, sweep
from ._integer import integer
from ._memory import Anonymous, Buffer, adopt, cuda_array
from ._ring import Plain, Ring
from ._session import NotLaneFS, Session
from ._use import Closable, Use, inherited

_MODES = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_RDWR | os.O_CREAT}


def open(path, mode="r", fallback=False):
    """Opens a file.

    Parameters
    ----------
    path : str or os.PathLike
    mode : {"r", "r+", "w"}
        To read; to read and write; to make or empty one.
    fallback : bool
        Whether a file elsewhere than on a LaneFS mount will do: a warning is given, and its mappings are ordinary memory of this process.

    Returns
    -------
    File

    Raises
    ------
    ValueError
        Another mode.
    NotLaneFS
        The file is not on a LaneFS mount with device memory, and fallback is false. It is not emptied then.
    OSError
        The file cannot be opened, or the daemon's socket cannot be reached (ENOENT, EACCES); ECONNRESET: the daemon has ended.
    """
    return File(path, mode, fallback)


def need_mount(path):
    """NotLaneFS, before a file is made at path, if its directory is not on a LaneFS mount."""
    with Descriptors() as fds:
        Session.of(fds.get(os.open, os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_CLOEXEC), repr(path))


class File(Closable):
    """An open file. `session` is None if the file is not on LaneFS (fallback).

    Parameters
    ----------
    path : str or os.PathLike
    mode : {"r", "r+", "w"}
    fallback : bool
        All as with `open`.
    name : str, optional
        What messages call the file; by default its path.

    Attributes
    ----------
    path, mode : str
    fd : int or None
        The descriptor; None when it is closed.
    session : Session or None

    Raises
    ------
    ValueError, NotLaneFS, OSError
        As `open`.
    """

    def __init__(self, path, mode="r", fallback=False, name=None):
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r}: want one of {', '.join(map(repr, _MODES))}")
        self.path, self.mode, self.fd = os.fspath(path), mode, None
        self.session = self._handle = self._ring = self._staged = None
        self._fds = Descriptors()
        self._lock = threading.RLock()  # who makes the handle, the ring, or the handle at the stage has it. The handler of a signal may come in the middle
        self.fd = self._fds.get(os.open, path, _MODES[mode] | os.O_CLOEXEC, 0o666)
        try:
            self.session = Session.of(self.fd, repr(self.path if name is None else name))
        except OSError as e:
            if not fallback or not isinstance(e, NotLaneFS):
                self.close()
                raise
            warnings.warn(f"{e.strerror}: falling back to ordinary memory", RuntimeWarning, stacklevel=3)
            self.session = None
        if mode == "w":  # not before it is known that the file can be used
            try:
                os.ftruncate(self.fd, 0)
            except OSError:
                self.close()
                raise

    @property
    def size(self):
        """int: the file's length in bytes, now.

        Raises
        ------
        OSError
            The file cannot be asked (EIO, ENOTCONN).
        ValueError
            The file is closed.
        """
        with Use(self):
            return os.fstat(self._opened()).st_size

    def map(self, offset=0, length=None, private=False):
        """A range of the file as device memory.

        Parameters
        ----------
        offset, length : int
            Bytes; length None: to the end of the file.
        private : bool
            A copy to write to and to commit, instead of memory that processes share. The file must be open to write.

        Returns
        -------
        Mapping
            Of length bytes.

        Raises
        ------
        ValueError
            No range; the file is closed.
        OSError
            EINVAL: the range is not in the file. EACCES: private, and the file is not open to write. ENOMEM: the mount's device memory is
            held by others. EIO: the medium. ECONNRESET: the daemon has ended.
        """
        offset, length = _range(offset, length)
        self._opened()
        _dlpack.sweep()
        with Use(self):
            if self.session is None:
                return _copy(self, offset, length, private)
            return Mapping(self, offset, length or 0, w.MAP_PRIVATE if private else 0)

    def alloc(self, length):
        """Device memory to write to, zeroes, which belongs to no file until it is committed.

        Parameters
        ----------
        length : int
            Bytes.

        Returns
        -------
        Mapping
            A private one, of length bytes.

        Raises
        ------
        ValueError
            A length that is not positive; the file is closed.
        NotLaneFS, OSError
            As `map`.
        """
        _, length = _range(0, integer(length))
        with Use(self):
            self._opened()
            if self.session is None:
                return _copy(self, 0, length, True, read=False)
            return Mapping(self, 0, length, w.MAP_PRIVATE | w.MAP_EMPTY)

    def commit(self, mapping, offset=0, start=0, length=None):
        """Writes a part of a mapping to the file. It is durable when this returns.

        Parameters
        ----------
        mapping : Mapping
            A private one, of this mount.
        offset, start, length : int
            Bytes: where in the file; which part of the mapping, to its end if length is None.

        Raises
        ------
        ValueError
            The part is not within the mapping, which may be of another mount or GPU; the offset is none; or a file or mapping is closed.
        OSError
            EACCES: the mapping is not private, or the file is not open to write. ENOSPC, EIO: as write and fsync. ECONNRESET: the daemon has ended.
        """
        offset, start = integer(offset), integer(start)
        length = len(mapping) - start if length is None else integer(length)
        if start < 0 or length < 0 or start + length > len(mapping) or not 0 <= offset < _FAR:
            raise ValueError(f"{length} bytes at {start} of a mapping of {len(mapping)}, to {offset} of the file")
        with Use(self), Use(mapping):
            self._commit(self._opened(), mapping, offset, start, length)

    def _commit(self, fd, mapping, offset, start, length):
        mapping.memory.synchronize()
        if self.session is not None and mapping.session is not self.session:  # in which the mapping's handle is something else's
            raise ValueError("the mapping is not of the file's session: of the same mount, and with several GPUs of the same one")
        if self.session is None:
            if not mapping.private:
                raise PermissionError(errno.EACCES, "a mapping that is not private is not committed")
            view = mapping.memoryview()[start:start + length]
            while view:
                n = os.pwrite(fd, view, offset)
                view, offset = view[n:], offset + n
            os.fsync(fd)
            return
        self.session.call(w.COMMIT, w.COMMIT_REQUEST.pack(mapping.handle, 0, mapping.base + start, offset, length), w.COMMIT_REPLY, pass_fds=[fd])

    def pin(self, on=True, owner=None):
        """Pins the file in device memory, or unpins it. Only root and the user that mounted may.

        Parameters
        ----------
        on : bool
            Whether to pin it.
        owner : int, optional
            The user ID on whose account the memory is; by default the caller's.

        Returns
        -------
        int
            The file's size in bytes.

        Raises
        ------
        ValueError
            The file is closed; owner is no user ID.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            EPERM: another user. EACCES: the file is not open to read. ENOMEM: there is no room. ECONNRESET: the daemon has ended.
        """
        self._need()
        try:
            request = w.PIN_REQUEST.pack(bool(on), w.NO_OWNER if owner is None else owner)
        except struct.error:
            raise ValueError(f"{owner!r} is no user ID") from None
        with Use(self):
            size, _ = self.session.call(w.PIN, request, w.PIN_REPLY, pass_fds=[self._opened()]).fields
            return size

    def _opened(self):
        """The descriptor. It stays the file's while a Use of it lasts that has begun before."""
        fd = self.fd
        if fd is None:
            raise ValueError(f"{self.path!r} is closed")
        if self.session is not None:
            self.session._check()  # or the descriptor's number may be another file's
        return fd

    def _need(self):
        self._opened()
        if self.session is None:
            raise NotLaneFS(errno.ENOTSUP, f"{self.path!r} fell back to ordinary memory, which cannot do this")
        return self.session

    @property
    def handle(self):
        """int: the handle of the file, for rings.

        Raises
        ------
        ValueError
            The file is closed.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            EMFILE: there are as many as there may be. ECONNRESET: the daemon has ended.
        """
        self._own()
        with Use(self):
            handle = self._handle
            if handle is None or self.fd is None:
                self._need()
                handle = _wait.alone(self._lock, self._make_handle)
            return handle.fields[0]

    def _make_handle(self):
        if self._handle is None:
            self._handle = self.session.call(w.OPEN, w.OPEN_REQUEST.pack(0), w.OPEN_REPLY, pass_fds=[self._opened()])
        return self._handle

    @property
    def ring(self):
        """Ring: the file's own, for `read_into` and `write_from`; without LaneFS what does the same by ordinary reads and writes.

        Raises
        ------
        ValueError
            The file is closed.
        NotLaneFS, OSError
            As `Ring`.
        """
        if self.session is None:
            return Plain()
        ring = self._ring
        if ring is not None and self.fd is not None:
            return ring
        with Use(self):
            self.handle  # before the lock
            return self._ring or _wait.alone(self._lock, self._make_ring)

    def _make_ring(self):
        if self._ring is None:
            self._ring = Ring(self)
        return self._ring

    def read_into(self, memory, offset=0, start=0, length=None, stream=None):
        """Reads a range of the file to memory.

        Parameters
        ----------
        memory : Buffer, Mapping, tensor, array, bytearray or int
            Where to: a private Mapping; what has a buffer that may be written to; an address, which needs a length. A GPU's memory is written to in the order
            of the stream: after what is on it now, and before what comes later. The CPU's, pinned too, is written to when this returns, if no stream is given.
        offset, start, length : int
            Bytes: where in the file; where in the memory; how many, to the memory's or the tensor's end if None. A range may lie beyond a tensor that is a view.
        stream : optional
            An integer, or PyTorch's or CuPy's; by default PyTorch's current one.

        Returns
        -------
        int
            How many bytes: fewer at the end of the file.

        Raises
        ------
        ValueError
            The range is not within the memory, which may be read-only; an address, or a tensor with gaps, without a length; an array with gaps; the file is closed.
        TypeError
            What is no memory, or memory of references or pointers: of NumPy's objects, for one.
        NotLaneFS
            The file is not on a LaneFS mount (fallback), and the memory is not the CPU's.
        OSError
            EACCES, EIO, or ECONNRESET after the end of the daemon; EFAULT: NULL, an address of no memory, memory that was freed; of more than 16 KiB the first and the last page are looked at, and what is
            missing between them ends the process, as in C; the C library is not here; this process forked from that which opened the file.
        """
        if isinstance(memory, (Buffer, Mapping)):
            return self.ring._carry_out(w.READ, self, memory, offset, start, length)
        return self._one(True, memory, offset, start, length, stream)

    def write_from(self, memory, offset=0, start=0, length=None, stream=None):
        """Writes a range of memory to the file. `sync` makes it durable. It waits for what is on the stream now.

        Parameters
        ----------
        memory : Buffer, Mapping, tensor, array, bytes or int
            Where from: as with `read_into`, also what is read-only.
        offset, start, length : int
            Bytes: where in the file; where in the memory; how many, to the memory's end if None.
        stream : optional
            As with `read_into`.

        Returns
        -------
        int
            How many bytes.

        Raises
        ------
        ValueError
            The range is not within the memory; an address, or a tensor with gaps, without a length; an array with gaps; the file is closed.
        TypeError
            What is no memory, or memory of references or pointers: of NumPy's objects, for one.
        NotLaneFS
            The file is not on a LaneFS mount (fallback), and the memory is not the CPU's.
        OSError
            As `read_into`; ENOSPC.
        """
        if isinstance(memory, (Buffer, Mapping)):
            return self.ring._carry_out(w.WRITE, self, memory, offset, start, length)
        return self._one(False, memory, offset, start, length, stream)

    def read_batch(self, memory, file_offsets, offsets, lengths, stream=None):
        """Reads many pieces by one call.

        Parameters
        ----------
        memory : tensor, array, bytearray or int
            As with read_into.
        file_offsets, offsets, lengths : sequence of int, shape (n,)
            Bytes: lengths[i] of them at file_offsets[i] of the file go to offsets[i] of the memory. Lists, NumPy arrays or tensors of integers.
        stream : optional
            As with read_into.

        Returns
        -------
        array.array of int64, shape (n,)
            How many bytes each piece has, or its errno, negative.

        Raises
        ------
        ValueError
            Sequences of different lengths, a piece not within the memory, and what read_into raises it for.
        TypeError
            As `read_into`.
        OSError
            For all pieces: ECONNRESET after the end of the daemon; the C library is not here; an error of the GPU's.
        """
        return self._batch(True, memory, file_offsets, offsets, lengths, stream)

    def write_batch(self, memory, file_offsets, offsets, lengths, stream=None):
        """Writes many pieces by one call. `sync` makes them durable. It waits for what is on the stream now.

        Parameters
        ----------
        memory : tensor, array, bytes or int
            As with `write_from`.
        file_offsets, offsets, lengths : sequence of int, shape (n,)
            Bytes: lengths[i] of them at offsets[i] of the memory go to file_offsets[i] of the file. Lists, NumPy arrays or tensors of integers.
        stream : optional
            As with `read_into`.

        Returns
        -------
        array.array of int64, shape (n,)
            How many bytes of each piece were written, or its errno, negative.

        Raises
        ------
        ValueError
            Sequences of different lengths, a piece not within the memory, and what `write_from` raises it for.
        TypeError
            What is no memory, or memory of references or pointers: of NumPy's objects, for one.
        OSError
            For all pieces, as `read_batch`.
        """
        return self._batch(False, memory, file_offsets, offsets, lengths, stream)

    def read_batch_on(self, memory, file_offsets, offsets, lengths, stream=None):
        """`read_batch` on a GPU's stream: it returns at once, and the file is read when the stream gets there. What is put on the stream after it finds the bytes in
        memory. The call itself waits only where there is no room, which is for 64 MiB and four batches: then for those before it. Batches of a mount go in the order of the
        calls, and those that are on no stream wait for the ones before them: a stream must not wait for what comes after such a call. Where a GPU's streams cannot wait for the
        host it is `read_batch`; likewise for memory that no GPU knows, and then it is done.

        Parameters
        ----------
        memory : tensor, array, bytearray or int
            As with `read_batch`. It is kept until the stream has come past the batch; what is only an address must stay by itself. Pinned memory has no bytes before then.
        file_offsets, offsets, lengths : sequence of int, shape (n,)
            Bytes, as with `read_batch`. They are not looked at after the call.
        stream : optional
            As with `read_into`; of pinned memory the default stream.

        Returns
        -------
        StreamBatch
            With `wait`, `results` and `done`; or to be awaited, or dropped.

        Raises
        ------
        ValueError, TypeError
            As `read_batch`.
        NotLaneFS
            The file is not on a LaneFS mount (fallback), and the memory is not the CPU's.
        OSError
            As `read_batch`, of what is found before anything is on the stream. What comes later the StreamBatch raises.
        """
        return self._batch_on(True, memory, file_offsets, offsets, lengths, stream)

    def write_batch_on(self, memory, file_offsets, offsets, lengths, stream=None):
        """`write_batch` on a GPU's stream: it returns at once, and what the memory has when the stream gets there is written. What is put on the stream after it finds
        the bytes in the file, and may change the memory. `sync` makes durable what `wait` was called for. The rest as with `read_batch_on`.

        Parameters
        ----------
        memory : tensor, array, bytes or int
            As with `write_batch`, and kept as with `read_batch_on`.
        file_offsets, offsets, lengths : sequence of int, shape (n,)
            Bytes, as with `write_batch`.
        stream : optional
            As with `read_batch_on`.

        Returns
        -------
        StreamBatch
            As with `read_batch_on`.

        Raises
        ------
        ValueError, TypeError, NotLaneFS, OSError
            As `read_batch_on`.
        """
        return self._batch_on(False, memory, file_offsets, offsets, lengths, stream)

    def read_batch_async(self, *args, **kwargs):
        """`read_batch` in a thread, so that an event loop goes on. The stream is the caller's. Who is cancelled while waiting for it goes on within a
        tenth of a second, also when the daemon or the device does not answer, and the memory is one's own again: what is under way does not touch it. Of a write some or all may be
        done.

        Parameters
        ----------
        *args, **kwargs
            As with `read_batch`.

        Returns
        -------
        awaitable of array.array of int64, shape (n,)
            As with `read_batch`.

        Raises
        ------
        ValueError, TypeError, OSError
            As `read_batch`.
        RuntimeError
            It is awaited where no event loop of asyncio's runs: by trio's, for one.
        """
        return self._batch_async(True, *args, **kwargs)

    def write_batch_async(self, *args, **kwargs):
        """`write_batch` in a thread, so that an event loop goes on. The stream is the caller's. Who is cancelled while waiting for it goes on as with
        `read_batch_async`.

        Parameters
        ----------
        *args, **kwargs
            As with `write_batch`.

        Returns
        -------
        awaitable of array.array of int64, shape (n,)
            As with `write_batch`.

        Raises
        ------
        ValueError, TypeError, OSError
            As `write_batch`.
        RuntimeError
            It is awaited where no event loop of asyncio's runs: by trio's, for one.
        """
        return self._batch_async(False, *args, **kwargs)

    def _one(self, read, memory, offset, start, length, stream):
        self._opened()
        address, size, on, hold = _stage.target(memory, stream, read)
        if length is None:
            length = _stage.rest(memory, start, size)
        if self.session is None or not _stage.within(offset, start, length, size):
            n, = self._batch(read, memory, [offset], [start], [length], stream)  # it says what is wrong
        else:  # without its arrays, which cost more than a small read does
            stage, handle = self._staged or self._on_stage()
            n = stage.one(read, handle, address, offset, start, length, on)
        if n < 0:
            raise OSError(-n, os.strerror(-n))
        return n

    def _batch(self, read, memory, file_offsets, offsets, lengths, stream):
        address, pieces, stream, hold = self._pieces(read, memory, file_offsets, offsets, lengths, stream)
        if self.session is None:
            return self._plain_batch(read, address, pieces)
        stage, handle = self._on_stage()
        return stage.batch(read, handle, address, pieces, stream)

    def _batch_on(self, read, memory, file_offsets, offsets, lengths, stream):
        address, pieces, on, _ = self._pieces(read, memory, file_offsets, offsets, lengths, stream)
        if self.session is None:
            return StreamBatch(Flight(self._plain_batch(read, address, pieces)))
        stage, handle = self._on_stage()
        return stage.batch_on(read, handle, address, pieces, on, _stage.held(memory, stream))

    def _plain_batch(self, read, address, pieces):
        with Use(self):
            return _plain_batch(self._opened(), read, address, pieces)

    def _pieces(self, read, memory, file_offsets, offsets, lengths, stream):
        """Address of the memory, the pieces, the stream, and what holds the memory."""
        self._opened()
        sweep()
        address, size, stream, hold = _stage.target(memory, stream, read)
        pieces = _stage.pieces(file_offsets, offsets, lengths, size)
        if self.session is None and (getattr(memory, "is_cuda", False) or hasattr(memory, "__cuda_array_interface__")):
            self._need()  # NotLaneFS
        return address, pieces, stream, hold

    def _batch_async(self, read, memory, file_offsets, offsets, lengths, stream=None):
        self._opened()
        on = _stage.target(memory, stream, read)[2]  # PyTorch's current stream is this thread's
        return in_thread(self._batch, read, memory, file_offsets, offsets, lengths, on)

    def _own(self):
        """OSError in a child of the process that opened the file: before locks, which may be held by threads that only the parent has."""
        if self.session is not None and self.session._pid != os.getpid():
            raise inherited("file", "open it again")

    def _on_stage(self):
        """The stage, and the file's handle there."""
        self._own()
        staged = self._staged
        if staged is not None:  # without a lock, which another thread may hold while it waits for the daemon
            return staged
        with Use(self):
            return _wait.alone(self._lock, self._make_staged, self._opened())

    def _make_staged(self, fd):
        if self._staged is None:
            opened = self.session.stage(fd).open(self, fd)
            self._staged = opened.stage, opened
        return self._staged

    def enqueue(self, read, address, offset, length, stream, done):
        """Puts a read, or a write, of one range on a GPU's stream, and returns.

        Parameters
        ----------
        read : bool
            Whether it is a read.
        address : int
            Where in a GPU's memory.
        offset, length : int
            Bytes: where in the file, and how many.
        stream : int
            A CUstream or hipStream_t.
        done : ctypes.c_int64
            Has the number of bytes, or a negative errno, when the stream has come past it, and must live until then.

        Raises
        ------
        ValueError
            The file is closed.
        NotLaneFS
            The file is not on a LaneFS mount (fallback).
        OSError
            Nothing was put on the stream: ECONNRESET after the end of the daemon; EFAULT, EIO: the memory or the stream is none; the C library is not here.
        """
        stage, handle = self._on_stage()
        stage.enqueue(read, handle, address, array.array("q", [offset, 0, length]), stream, done)

    def sync(self):
        """Makes durable what was written before.

        Raises
        ------
        OSError
            EIO, ENOSPC: it could not be, and may be lost. ENOTCONN: the daemon has ended.
        ValueError
            The file is closed.
        """
        with Use(self):
            os.fsync(self._opened())

    def close(self):
        """Closes the file, after the requests of its ring. Mappings stay, and batches on streams go on. In the middle of calls of other threads it closes the file for those that come later, and does
        not wait: the last call under way then does the rest. Repeated calls do nothing.

        Raises
        ------
        OSError
            As close(2).
        """
        if self._ending():  # then other threads are no more, and what locks they had is held for ever. The end of the process closes all
            return
        self.fd = None
        self._close()
        _stage.interrupted()  # while the handle was released

    def _end(self):
        if self._ring is not None:
            self._ring.close()
        if self._handle is not None:
            self._handle.release()
        sweep()
        if self.session is not None and self.session._lost:  # the number may be another file's
            self._fds.forget()
        self._staged = self._ring = self._handle = None  # what is on streams keeps the handle there
        self._fds.close()

    _ending = staticmethod(sys.is_finalizing)  # which is there until the end, unlike modules

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_fds", None):  # it has descriptors
            self.close()

_FAR = 1 << 61  # beyond the end of any file


def _range(offset, length):
    """A range of a file as Python's integers; length None: to the end of the file."""
    offset, length = integer(offset), None if length is None else integer(length)
    if not 0 <= offset < _FAR or length is not None and not 0 < length < _FAR:
        raise ValueError(f"a range of {length} bytes at {offset}")
    return offset, length


def _plain_batch(fd, read, address, pieces):
    """A batch of a file that is not on LaneFS, between it and memory that the CPU addresses."""
    results = array.array("q")
    for i in range(0, len(pieces), 3):
        offset, start, length = pieces[i:i + 3]
        view, done = memoryview((ctypes.c_char * length).from_address(address + start)).cast("B"), 0
        try:
            while done < length:
                n = (os.preadv if read else os.pwritev)(fd, [view[done:]], offset + done)
                if n == 0:
                    break  # the end of the file
                done += n
        except OSError as e:
            done = -e.errno  # as with LaneFS: of this piece
        results.append(done)
    return results


def _end(reply, memory):
    memory.close()
    if reply is not None:
        reply.give()


class _Hold:
    """Memory and the daemon's hold on it. Both end with the last reference to this, by mappings, tensors and views."""

    def __init__(self, reply, memory):
        self.memory = memory
        self._end = weakref.finalize(self, _end, reply, memory)
        self._end.atexit = False  # tensors may be used until then, and the end of the process frees all


class Mapping(Closable):
    """Device memory with a range of a file: what `File.map` and `File.alloc` give. Tensors that use it keep it alive after close.

    Parameters
    ----------
    file : File
    offset, length : int
        Bytes; length 0: to the end of the file.
    flags : int
        Of the share's protocol (docs/SPEC.md).

    Attributes
    ----------
    generation : int
        Of the file's range when it was read.
    file_size : int
        Bytes, likewise.
    private : bool
        Whether it may be written to.

    Raises
    ------
    ValueError, NotLaneFS, OSError
        As `File.map`.
    """

    def __init__(self, file, offset, length, flags):
        session = self.session = file._need()
        reply = session.call(w.MAP, w.MAP_REQUEST.pack(offset, length, flags, 0), w.MAP_REPLY, rights=1, pass_fds=[file._opened()])
        try:
            self.handle, kind, self.base, self._size, size, self.generation, self.file_size, at = reply.fields
            self.private = bool(flags & w.MAP_PRIVATE)
            self._hold = _Hold(reply, adopt(session, reply.fds, kind, at, size, self.private))
        except BaseException:
            reply.release()
            raise

    @property
    def memory(self):
        """object: the memory, with `view` (None: the CPU does not reach it), `address` and `size` in bytes.

        Raises
        ------
        ValueError
            The mapping is closed.
        """
        return self._kept().memory

    def _kept(self):
        hold = self._hold
        if hold is None or self._closed:
            raise ValueError("the mapping is closed")
        return hold

    def __len__(self):
        """How many bytes.

        Returns
        -------
        int
        """
        return self._size

    @property
    def latest(self):
        """int: the present generation of the file's range. It differs from the mapping's after the end of the daemon, too. Of a file that is not on LaneFS (fallback) a tuple of what stat says, or None."""
        if self.session is None:
            return self._state()
        return self.session.latest(self.handle)

    @property
    def current(self):
        """bool: whether the file still has these bytes."""
        return self.private or self.latest == self.generation

    def memoryview(self):
        """The bytes, if the CPU can address them.

        Returns
        -------
        memoryview
            Of uint8, shape (len,).

        Raises
        ------
        BufferError
            The memory is a GPU's.
        ValueError
            The mapping is closed.
        """
        view = self.memory.view
        if view is None:
            raise BufferError("the CPU does not reach the GPU's memory: use __dlpack__ or __cuda_array_interface__")
        return view[self.base:self.base + self._size]

    def __dlpack__(self, **kwargs):
        """The bytes for PyTorch, NumPy, CuPy and others: `torch.from_dlpack`.

        Parameters
        ----------
        **kwargs
            stream, max_version, dl_device and copy of the DLPack protocol.

        Returns
        -------
        capsule
            A tensor of uint8, shape (len,), which keeps the memory alive.

        Raises
        ------
        BufferError
            A copy or another device is wanted.
        ValueError
            The mapping is closed.
        """
        hold = self._kept()
        return _dlpack.capsule(hold.memory, hold, self.base, self._size, **kwargs)

    def __dlpack_device__(self):
        """The kind of device and its ordinal.

        Returns
        -------
        tuple of int
            (1, 0): the CPU; (2, n): CUDA; (10, n): ROCm.

        Raises
        ------
        ValueError
            The mapping is closed.
        """
        return self.memory.device

    @property
    def __cuda_array_interface__(self):
        """dict: of CUDA's memory, version 3, uint8, shape (len,).

        Raises
        ------
        AttributeError
            The memory is not CUDA's.
        ValueError
            The mapping is closed.
        """
        return cuda_array(self.memory, self.base, self._size, self.private)

    def close(self):
        """Lets go of the memory, which stays as long as tensors or views of it. Repeated calls do nothing."""
        self._close()
        _dlpack.sweep()

    def _end(self):
        self._hold = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _copy(file, offset, length, private, read=True):
    """The fallback of a Mapping for a file that is not on LaneFS: a copy in memory of this process. Its generation is the file's state."""
    if private and file.mode == "r":
        raise PermissionError(errno.EACCES, "the file is not open for writing, which memory to write to needs")
    state = lambda: _state(file.path)
    generation = state()
    if length is None:
        length = file.size - offset
    if read and (length <= 0 or offset + length > file.size):
        raise OSError(errno.EINVAL, f"{length} bytes at {offset} are not in the file, which has {file.size}")
    m = Mapping.__new__(Mapping)
    memory = Anonymous(length)
    view = memory.view
    fd = file._opened()
    while read and view:
        n = os.preadv(fd, [view], offset)
        if n == 0:
            break  # the file has become shorter: zeroes, and no longer current
        view, offset = view[n:], offset + n
    if not private:
        memory.view = memory.view.toreadonly()
    m.session, m.handle, m.base, m._size, m.generation, m.file_size, m.private = None, 0, 0, length, generation, file.size, private
    m._state = state
    m._hold = _Hold(None, memory)
    return m


def _state(path):
    """Values of stat that change when the file does."""
    try:
        st = os.stat(path)
    except OSError:
        return None
    return st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns
