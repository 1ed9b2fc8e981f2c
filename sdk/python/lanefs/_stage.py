"""Batches into any memory of the program, by the C library (sdk/c/stage.c): a call for a batch, whatever it has of pieces."""

import array
import collections
import contextlib
import ctypes
import errno
import numbers
import operator
import os
import sys
import threading
import weakref

from ._flight import Flight, StreamBatch, keep
from ._format import need_plain, need_plain_array, storage_of
from ._integer import integer
from ._memory import address_of
from ._use import Use

_UNKNOWN = (1 << 64) - 1  # the size of memory of which only the address is known
_MOST = (1 << 63) - 1  # what an offset and a length may be
_SIZE = 0  # of a stage: what the library thinks usual


class _Rungs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("kernel", "copies", "host", "direct", "legacy", "_0", "_1", "_2")]


_Piece = ctypes.c_int64 * 4  # a piece, and its result

class _Signals(ctypes.Structure):  # struct python of sdk/c/wait.c
    _fields_ = [("thread", ctypes.c_uint64)] + [(name, ctypes.c_void_p) for name in ("ensure", "check", "fetch", "release")] + [("raised", ctypes.c_void_p * 3)]


def _interpreter():
    """The interpreter's functions with which the library has the handlers of signals run while it waits."""
    names = ("PyGILState_Ensure", "PyErr_CheckSignals", "PyErr_Fetch", "PyGILState_Release")
    return _Signals(threading.main_thread().ident, *(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in names))


_signals = _interpreter()
_restore = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(("PyErr_Restore", ctypes.pythonapi))


def interrupted():
    """Raises what the handler of a signal has raised while the library waited, KeyboardInterrupt for one. For that the wait has ended."""
    if _signals.raised[0] and _signals.thread == threading.get_ident():
        raised = list(_signals.raised)
        _signals.raised[:] = [None] * 3
        _restore(*raised)


_lib = None
_lock = threading.RLock()  # the handler of a signal may come in the middle


def _anew():
    """In a child: a thread of the parent may have held the lock, and does not exist here. Handlers of signals run in the thread that forked."""
    global _lock
    _lock = threading.RLock()
    _signals.thread = threading.get_ident()


os.register_at_fork(after_in_child=_anew)


def library():
    """The C library: the one that LANEFS_LIBRARY names, that lies beside this package, or that is installed."""
    global _lib
    with _lock:
        if _lib is None:
            beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "liblanefs.so.1")
            name = os.environ.get("LANEFS_LIBRARY") or (beside if os.path.exists(beside) else "liblanefs.so.1")
            try:
                lib = ctypes.CDLL(name, use_errno=True)
            except OSError as e:
                raise OSError(f"memory that is no Buffer and no Mapping takes the C library (make -C sdk/c; LANEFS_LIBRARY says where it is): {e}") from None
            p, size, u64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
            batch = [p, ctypes.c_uint32, p, p, size, p, p]
            for f, result, args in (("python_connect", p, [ctypes.c_char_p, ctypes.c_char_p, p]), ("close", None, [p]), ("error", ctypes.c_char_p, []), ("stage_new", p, [p, size]),
                                    ("stage_free", None, [p]), ("open", ctypes.c_int, [p, ctypes.c_int, p]), ("release", ctypes.c_int, [p, ctypes.c_uint32]),
                                    ("read_batch", ctypes.c_int64, batch), ("write_batch", ctypes.c_int64, batch),
                                    ("read_async", ctypes.c_int, batch + [p]), ("write_async", ctypes.c_int, batch + [p]), ("stage_ways", None, [p, p]), ("sum", u64, [p, size]),
                                    ("pieces", ctypes.c_int, [p, p, p, size, u64, p]), ("mark_new", p, [p, p, p]), ("mark_set", ctypes.c_int, [p]),
                                    ("mark_reached", ctypes.c_int, [p, ctypes.c_int]), ("mark_free", None, [p])):
                f = getattr(lib, "lanefs_" + f, None)
                if f is None:
                    raise OSError(f"the C library {name} is of an older LaneFS than this package")
                f.restype, f.argtypes = result, args
            _lib = lib
    return _lib


@contextlib.contextmanager
def ends(flag):
    """While flag, a c_int, is not 0, no call of this thread waits: it ends with EINTR. What was under way does no harm, as after an interruption."""
    lib = library()
    if not hasattr(lib, "lanefs_python_ends"):  # an older library: calls end when they have ended
        yield
        return
    lib.lanefs_python_ends(ctypes.byref(flag))
    try:
        yield
    finally:
        lib.lanefs_python_ends(None)


def _check(lib, result):
    """The result of a call; OSError if it failed. The library's text says more than errno."""
    if result is None or result < 0:
        code = ctypes.get_errno()
        if code == errno.EINTR:
            interrupted()
        raise OSError(code, (lib.lanefs_error() or b"").decode(errors="replace") or os.strerror(code))
    return result


def _end(pid, lib, session, stage):
    if pid == os.getpid():
        lib.lanefs_stage_free(stage)
        lib.lanefs_close(session)


class Stage:
    """A stage, with a connection of its own. It belongs to a Session of the same process."""

    def __init__(self, session):
        self._lib = lib = library()
        device = session.device if session.gpus > 1 else ""  # not the one that is current for this thread, which may be a loop's
        self.session = _check(lib, lib.lanefs_python_connect(os.fsencode(session._path), device.encode() or None, ctypes.addressof(_signals)))
        self._dropped = collections.deque()  # handles to release when no call is under way
        try:
            self.at = _check(lib, lib.lanefs_stage_new(self.session, _SIZE))
        except BaseException:  # KeyboardInterrupt, too
            lib.lanefs_close(self.session)
            raise
        self._end = weakref.finalize(self, _end, os.getpid(), lib, self.session, self.at)
        self._end.atexit = False  # the end of the process frees all

    def open(self, file, fd):
        """A file's handle here. The caller has a Use of the file, which has this descriptor."""
        try:
            return Opened(self, file, fd)
        except OSError as e:
            return self._instead(file, e)

    @staticmethod
    def _instead(file, why):
        """The file at a stage of its own, if what failed was called in the middle of a call of the same thread: by the handler of a signal."""
        if why.errno == errno.EPERM:
            file._own()  # it says what to do
        if why.errno != errno.EDEADLK:
            raise why
        with Use(file):
            return Opened(Stage(file.session), file, file._opened())

    def handle(self, fd):
        self._drain()
        handle = ctypes.c_uint32()
        _check(self._lib, self._lib.lanefs_open(self.session, fd, ctypes.byref(handle)))
        return handle.value

    def release(self, handle):
        if self._end.alive:
            self._dropped.append(handle)
            self._drain()

    def _drain(self):
        while self._dropped:
            try:
                handle = self._dropped.popleft()
            except IndexError:
                return  # another thread has it
            if self._lib.lanefs_release(self.session, handle) < 0:
                code = ctypes.get_errno()
                if code == errno.EDEADLK:  # in the middle of a call, as garbage collection may be
                    self._dropped.append(handle)
                    return
                if code == errno.EINTR:
                    return  # it is released all the same. Who calls raises it, or the next wait: a finalizer would swallow it

    def batch(self, read, file, address, pieces, stream):
        n = len(pieces) // 3
        results = array.array("q", bytes(8 * n))
        call = self._lib.lanefs_read_batch if read else self._lib.lanefs_write_batch
        try:
            _check(self._lib, call(self.at, file, address, pieces.buffer_info()[0], n, stream or None, results.buffer_info()[0]))
        except OSError as e:
            file = self._instead(file.file(), e)
            return file.stage.batch(read, file, address, pieces, stream)
        return results

    def one(self, read, file, address, offset, start, length, stream):
        """A batch of one piece. It returns the number of bytes, or a negative errno."""
        piece = _Piece(offset, start, length)
        at = ctypes.addressof(piece)
        call = self._lib.lanefs_read_batch if read else self._lib.lanefs_write_batch
        if call(self.at, file, address, at, 1, stream or None, at + 24) < 0:
            try:
                _check(self._lib, -1)
            except OSError as e:
                file = self._instead(file.file(), e)
                return file.stage.one(read, file, address, offset, start, length, stream)
        return piece[3]

    def enqueue(self, read, file, address, pieces, stream, done):
        """Puts a batch on a stream. done, a c_int64, has how many bytes or a negative errno when the stream has come past it, and must live until then."""
        call = self._lib.lanefs_read_async if read else self._lib.lanefs_write_async
        _check(self._lib, call(self.at, file, address, pieces.buffer_info()[0], len(pieces) // 3, stream or None, None, ctypes.byref(done)))
        if _signals.raised[0]:  # while it waited for room: a part of the batch is on the stream, and the caller will not know
            keep(done)
            interrupted()

    def batch_on(self, read, file, address, pieces, stream, memory):
        """Puts a batch on a stream. memory: what is to stay until the stream has come past it."""
        n = len(pieces) // 3
        at = next((pieces[3 * i + 1] for i in range(n) if pieces[3 * i + 2]), None)  # an empty piece may be nowhere
        try:
            mark = None if at is None else Mark(self, (address + at) & _UNKNOWN, stream)
        except OSError as e:
            file = self._instead(file.file(), e)
            return file.stage.batch_on(read, file, address, pieces, stream, memory)
        flight = Flight(array.array("q", bytes(8 * n)), ctypes.c_int64(), mark, (self, file, memory))
        batch = StreamBatch(flight)
        call = self._lib.lanefs_read_async if read else self._lib.lanefs_write_async
        try:
            _check(self._lib, call(self.at, file, address, pieces.buffer_info()[0], n, stream or None, flight.results.buffer_info()[0], ctypes.byref(flight.code)))
        except BaseException:
            flight.end()  # nothing is on the stream
            raise
        flight.begun()
        interrupted()  # while it waited for room: a part of the batch is on the stream
        return batch

    def rungs(self):
        r = _Rungs()
        self._lib.lanefs_stage_ways(self.at, ctypes.byref(r))
        return {"kernel": r.kernel, "copies": r.copies, "host": r.host, "direct": r.direct, "legacy": r.legacy}


class Opened:
    """A file's handle at a stage, as a parameter of the library's. It ends with the last reference to this, by the file and by batches on streams."""

    def __init__(self, stage, file, fd):
        self.stage, self.file = stage, weakref.ref(file)
        self._as_parameter_ = stage.handle(fd)
        weakref.finalize(self, stage.release, self._as_parameter_).atexit = False


class Mark:
    """A place on a stream."""

    def __init__(self, stage, address, stream):
        self._lib = stage._lib
        self._at = _check(self._lib, self._lib.lanefs_mark_new(stage.at, address, stream or None))
        weakref.finalize(self, self._lib.lanefs_mark_free, self._at).atexit = False

    def set(self):
        """Moves it to where the stream is now. True: there is no stream, and it is reached."""
        return bool(_check(self._lib, self._lib.lanefs_mark_set(self._at)))

    def reached(self, wait):
        return bool(_check(self._lib, self._lib.lanefs_mark_reached(self._at, wait)))


def integers(values):
    """An array of 64-bit integers, of a list, a NumPy array or a tensor of integers."""
    try:
        view = memoryview(values)
        if view.format in ("l", "q", "L", "Q") and view.itemsize == 8 and view.ndim == 1 and view.c_contiguous:
            out = array.array("q")
            out.frombytes(view.cast("B"))
            return out
    except TypeError:
        pass
    try:
        return array.array("q", iter(values.tolist() if hasattr(values, "tolist") else values))  # bytes as they are would be taken for machine words
    except (OverflowError, RuntimeError, TypeError) as e:  # of a tensor without memory, for one
        raise ValueError(f"offsets and lengths are integers: {e}") from None


def within(offset, start, length, size):
    """Whether one piece is what `pieces` takes, in memory of size bytes (None: unknown)."""
    return type(offset) is type(start) is type(length) is int and 0 <= offset <= _MOST and 0 <= start <= _MOST and \
        0 <= length <= (_MOST if size is None else size) - start


def pieces(file_offsets, offsets, lengths, size):
    """The pieces of a batch as the library takes them, in memory of size bytes (None: unknown)."""
    columns = [integers(v) for v in (file_offsets, offsets, lengths)]
    n = len(columns[0])
    if any(len(c) != n for c in columns):
        raise ValueError(f"{len(columns[0])} file offsets, {len(columns[1])} offsets in memory, {len(columns[2])} lengths")
    all_of, lib = array.array("q", bytes(24 * n)), library()
    if lib.lanefs_pieces(*(c.buffer_info()[0] for c in columns), n, _UNKNOWN if size is None else size, all_of.buffer_info()[0]):
        text = lib.lanefs_error().decode(errors="replace")
        raise ValueError(text if size is None else f"{text}, which has {size} bytes" if "memory" in text else text)
    return all_of


def _stream(stream):
    """The handle of a stream: an integer, PyTorch's, CuPy's, None for the default stream."""
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    try:
        handle = operator.index(stream or 0)
    except TypeError:
        if isinstance(stream, (numbers.Number, str, bytes, bytearray)) or not hasattr(stream, "__int__"):
            raise ValueError(f"{stream!r} is no stream") from None
        handle = int(stream)  # a CUstream of NVIDIA's package
    if not 0 <= handle <= _UNKNOWN:
        raise ValueError(f"{stream!r} is no stream")
    return handle


def _current(tensor):
    """The handle of PyTorch's current stream for a tensor. What PyTorch's own compiler asks makes no object of it."""
    torch, device = sys.modules["torch"], tensor.device
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(device.index) if raw and device.index is not None else torch.cuda.current_stream(device).cuda_stream)


def rest(memory, start, size):
    """How many bytes memory has from start on, where target says size: of a tensor its own, not those behind it in what it is a view of."""
    if size is None:
        raise ValueError("an address needs a length")
    if hasattr(memory, "data_ptr"):
        n = memory.numel()
        if n and 1 + sum((k - 1) * s for k, s in zip(memory.shape, memory.stride())) != n:
            raise ValueError("a tensor with gaps: give a length, or pieces")
        size = n * memory.element_size()
    return size - integer(start)


def held(memory, stream):
    """What keeps memory where it is, and its stream."""
    if isinstance(memory, int):
        return stream
    if hasattr(memory, "data_ptr"):
        return memory, storage_of(memory)(), stream  # also if the tensor gets another
    if hasattr(memory, "__cuda_array_interface__"):
        return memory, stream
    return memoryview(memory), stream  # a bytearray cannot change its size then


def lazy(tensor):
    """Whether PyTorch conjugates or negates the tensor's bytes when it reads them: they are not its values."""
    return any(getattr(tensor, name, bool)() for name in ("is_conj", "is_neg"))


def target(memory, stream, write):
    """Address, size in bytes (None: unknown), and stream of memory: a tensor, an array, an address, or anything with a buffer; and what is to be kept while it is used, so that
    nobody gives the memory back, as a bytearray does that changes its size. write: whether the memory is to be written to."""
    if isinstance(memory, int):
        if not 0 <= memory <= _UNKNOWN:
            raise ValueError(f"{memory} is no address")
        return memory, None, _stream(stream), None
    if hasattr(memory, "data_ptr"):  # PyTorch's tensors. Pieces may lie beyond a view, in what it is a view of
        storage = storage_of(memory)
        try:
            address, size = memory.data_ptr(), storage().nbytes() - memory.storage_offset() * memory.element_size()
        except RuntimeError as e:  # a sparse one, for instance
            raise ValueError(f"the tensor's bytes are not in one place: {e}") from None
        if not address and memory.numel():
            raise ValueError("the tensor has no memory")
        if lazy(memory):
            raise ValueError("the tensor is conjugated or negated when it is read: call .resolve_conj().resolve_neg() first")
        if stream is None:
            return address, size, _current(memory) if memory.is_cuda else 0, memory
        return address, size, _stream(stream), memory
    if hasattr(memory, "__cuda_array_interface__"):
        a = memory.__cuda_array_interface__
        need_plain_array(a)
        if a.get("strides") is not None:
            raise ValueError("an array with gaps: give its address, and pieces")
        if write and a["data"][1]:
            raise ValueError("the memory is read-only")
        size = int(a["typestr"][2:])
        for n in a["shape"]:
            size *= n
        return a["data"][0], size, _stream(a.get("stream") if stream is None else stream), memory
    view = memoryview(memory)
    need_plain(memory, view)
    if not view.c_contiguous:
        raise ValueError("an array with gaps, or in another order than C's: give a contiguous one, or its address, and pieces")
    view = view.cast("B") if view.nbytes else view[:0]  # what is empty in several dimensions is not cast
    if write and view.readonly:
        raise ValueError("the memory is read-only")
    return address_of(view), view.nbytes, _stream(stream), view
