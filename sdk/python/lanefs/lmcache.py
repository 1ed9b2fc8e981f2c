"""LMCache's GDS tier on a LaneFS mount: its contract `lmcache.v1.gpu_connector.gds_backends.base`.

    import lanefs.lmcache
    lanefs.lmcache.register()      # before LMCache starts; then "lanefs" names this among its GDS backends

A slab is one preallocated file, whose use LMCache decides on. For a cache that outlives its program there is `lanefs.kv`. Reads and writes are put on the
stream that they are given, and done when the stream gets there; the call waits only where the stage has no room.
"""

import ctypes
import os
import threading
import weakref

from . import _file

try:
    from lmcache.v1.gpu_connector.gds_backends.base import GDSBackend, GDSHandle, Submission
except ImportError:  # without LMCache the same methods, for programs that want them
    GDSBackend = object

    class GDSHandle:
        def __init__(self, path):
            self.path = path

    class Submission:
        """A transfer. bytes_done is right when the stream has come past it."""

        __slots__ = ("size", "file_offset", "buf_offset", "result", "__weakref__")

        def __init__(self, size, file_offset, buf_offset):
            self.size = ctypes.c_size_t(size)
            self.file_offset, self.buf_offset = ctypes.c_int64(file_offset), ctypes.c_int64(buf_offset)
            self.result = ctypes.c_int64(0)

        @property
        def bytes_done(self):
            """int: bytes, or an errno, negative."""
            return self.result.value

__all__ = ["Backend", "Handle", "Submission", "register"]

_NAME = "lmcache_gds_slab.bin"


def register():
    """Makes LMCache find this backend under the name "lanefs".

    Raises
    ------
    ImportError
        LMCache is not installed, or is older than its backends by name.
    """
    from lmcache.v1.gpu_connector import gds_backends
    where = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lmcache")
    if where not in gds_backends.__path__:
        gds_backends.__path__.append(where)


_backends = weakref.WeakSet()


def _anew():
    """In a child: a thread of the parent may have held the locks, and does not exist here."""
    for b in _backends:
        b._lock = threading.Lock()


os.register_at_fork(after_in_child=_anew)


class Backend(GDSBackend):
    """Registrations of one user of slabs. Nothing is loaded before the first transfer."""

    name = "lanefs"

    def __init__(self):
        self._lock = threading.Lock()
        self._buffers = {}  # by address: (tensor, bytes)
        self._streams = set()
        _backends.add(self)

    @classmethod
    def is_default(cls):
        """Whether LMCache may choose it by itself: a slab must be on a LaneFS mount, so it is chosen by name.

        Returns
        -------
        bool
            False.
        """
        return False

    def validate_environment(self):
        """Any will do: the mount says whose memory there is."""

    def open_slab(self, location, size, direct_io):
        """Makes a slab, empty and preallocated, in the place of one that is there.

        Parameters
        ----------
        location : str
            A directory of a LaneFS mount; made if need be.
        size : int
            Bytes.
        direct_io : bool
            Makes no difference: lanes do not use the kernel's page cache.

        Returns
        -------
        Handle

        Raises
        ------
        ValueError
            The size is not positive.
        lanefs.NotLaneFS
            The directory is not on a LaneFS mount; nothing is made in it.
        OSError
            The file cannot be made: ENOSPC. It is not there then.
        """
        if size <= 0:
            raise ValueError(f"a slab of {size} bytes")
        os.makedirs(location, exist_ok=True)
        path = os.path.join(location, _NAME)
        _file.need_mount(path)
        f = _file.File(path, "w")
        try:
            os.posix_fallocate(f.fd, 0, size)
        except BaseException:
            f.close()
            os.unlink(path)
            raise
        return Handle(self, f, size)

    def register_buffer(self, buf):
        """Makes a tensor known. It is kept until deregister_buffer.

        Parameters
        ----------
        buf : torch.Tensor
            Contiguous, on any device.

        Raises
        ------
        ValueError
            It has gaps, no bytes, or is registered already.
        """
        size = buf.numel() * buf.element_size()
        if not buf.is_contiguous() or not size:
            raise ValueError("a buffer is a contiguous tensor with at least a byte")
        with self._lock:
            if buf.data_ptr() in self._buffers:
                raise ValueError(f"a buffer at {buf.data_ptr():#x} is registered already")
            self._buffers[buf.data_ptr()] = buf, size

    def deregister_buffer(self, buf):
        """Forgets a tensor, after its transfers.

        Parameters
        ----------
        buf : torch.Tensor

        Raises
        ------
        ValueError
            It is not registered.
        """
        with self._lock:
            if self._buffers.pop(buf.data_ptr(), None) is None:
                raise ValueError(f"no buffer at {buf.data_ptr():#x} is registered")

    def register_stream(self, raw_stream):
        """Makes a stream known; its owner keeps it. Transfers go on any stream: LMCache forgets one with the first of its buffers, and goes on using it.

        Parameters
        ----------
        raw_stream : int
            A CUstream or hipStream_t.

        Raises
        ------
        ValueError
            It is known already.
        """
        with self._lock:
            if raw_stream in self._streams:
                raise ValueError(f"the stream {raw_stream:#x} is registered already")
            self._streams.add(raw_stream)

    def deregister_stream(self, raw_stream):
        """Forgets a stream, after its transfers.

        Parameters
        ----------
        raw_stream : int

        Raises
        ------
        ValueError
            It is not registered.
        """
        with self._lock:
            if raw_stream not in self._streams:
                raise ValueError(f"the stream {raw_stream:#x} is not registered")
            self._streams.remove(raw_stream)

    def close_driver(self):
        """Forgets what is registered. Repeated calls do nothing."""
        with self._lock:
            self._buffers.clear()
            self._streams.clear()

    def _check(self, buf_base, size, buf_offset):
        with self._lock:
            _, room = self._buffers.get(buf_base, (None, None))
        if room is None:
            raise ValueError(f"no buffer at {buf_base:#x} is registered")
        if size < 0 or buf_offset < 0 or buf_offset + size > room:
            raise ValueError(f"{size} bytes at {buf_offset} of a buffer of {room}")


class Handle(GDSHandle):
    """An open slab: what `Backend.open_slab` gives. `path` is its file.

    Parameters
    ----------
    backend : Backend
    file : File
    size : int
        Bytes.
    """

    def __init__(self, backend, file, size):
        super().__init__(file.path)
        self._backend, self._file, self._size = backend, file, size

    def read_async(self, buf_base, size, file_offset, buf_offset, raw_stream):
        """Reads a range of the slab to a registered buffer, in the order of the stream. It returns before that.

        Parameters
        ----------
        buf_base : int
            The address of the buffer.
        size, file_offset, buf_offset : int
            Bytes: how many, where in the slab, where in the buffer.
        raw_stream : int
            A CUstream or hipStream_t.

        Returns
        -------
        Submission
            Whose bytes_done is right when the stream has come past it: an errno of the file's medium too, negative.

        Raises
        ------
        ValueError
            The handle is closed; a buffer that is not registered; a range that is not within the buffer or the slab.
        NotLaneFS
            The slab is not on a LaneFS mount.
        OSError
            The daemon has ended (ECONNRESET), the process forked, or the stream is none (EIO, EINVAL).
        """
        return self._move(True, buf_base, size, file_offset, buf_offset, raw_stream)

    def write_async(self, buf_base, size, file_offset, buf_offset, raw_stream):
        """Writes to the slab what a range of a registered buffer has after what is on the stream now. It returns before that.

        Parameters
        ----------
        buf_base : int
            The address of the buffer.
        size, file_offset, buf_offset : int
            Bytes: how many, where in the slab, where in the buffer.
        raw_stream : int
            A CUstream or hipStream_t.

        Returns
        -------
        Submission
            Whose bytes_done is right when the stream has come past it: an errno of the file's medium too, negative.

        Raises
        ------
        ValueError
            The handle is closed; a buffer that is not registered; a range that is not within the buffer or the slab.
        NotLaneFS
            The slab is not on a LaneFS mount.
        OSError
            The daemon has ended (ECONNRESET), the process forked, or the stream is none (EIO, EINVAL).
        """
        return self._move(False, buf_base, size, file_offset, buf_offset, raw_stream)

    def _move(self, read, buf_base, size, file_offset, buf_offset, raw_stream):
        f = self._file
        if f is None:
            raise ValueError(f"the slab {self.path!r} is closed")
        self._backend._check(buf_base, size, buf_offset)
        if file_offset < 0 or file_offset + size > self._size:
            raise ValueError(f"{size} bytes at {file_offset} of a slab of {self._size}")
        sub = Submission(size, file_offset, buf_offset)
        f.enqueue(read, buf_base + buf_offset, file_offset, size, raw_stream, sub.result)
        return sub

    def close(self):
        """Closes the slab, whose transfers are over. Repeated calls do nothing.

        Raises
        ------
        OSError
            As close(2).
        """
        f, self._file = self._file, None
        if f is not None:
            f.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
