"""Device memory in this process: a memfd that is mapped, or a GPU's handle that its driver imports."""

import ctypes
import mmap
import os
import weakref

from . import _dlpack, _hip
from . import _wire as w
from ._descriptors import Descriptors
from ._driver import Driver
from ._integer import integer
from ._use import Closable


class HostMemory:
    """A memfd. `view` is its bytes."""

    device = (1, 0)  # DLPack: CPU

    def __init__(self, fd, offset, size, write):
        self.view = w.mapped(fd, size, mmap.PROT_READ | (mmap.PROT_WRITE if write else 0), offset)
        self.size = size

    @property
    def address(self):
        return address_of(self.view)

    def synchronize(self):
        pass

    def close(self):
        try:
            self.view.release()
        except BufferError:
            pass  # a view of it exists; the mapping ends with the last view


class _Buffer(ctypes.Structure):  # Py_buffer
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


# Prototypes of its own: those of ctypes.pythonapi are shared by all packages.
_get_buffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)(("PyObject_GetBuffer", ctypes.pythonapi))
_release_buffer = ctypes.PYFUNCTYPE(None, ctypes.POINTER(_Buffer))(("PyBuffer_Release", ctypes.pythonapi))


def address_of(view):
    """The address of a memoryview's bytes."""
    if view.nbytes == 0:
        return 0
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    # ctypes cannot take the address of read-only memory; the buffer protocol can.
    buf = _Buffer()
    _get_buffer(view, ctypes.byref(buf), 0)
    try:
        return buf.buf
    finally:
        _release_buffer(ctypes.byref(buf))


class DeviceMemory:
    """GPU memory at an address of this process. The CPU cannot access it."""

    view = None

    def __init__(self, driver, size, address, unmap):
        self._driver, self.size, self.address, self._unmap = driver, size, address, unmap
        self.device = (driver.dl_type, driver.ordinal.value)
        self.runtime = driver.runtime

    def synchronize(self):
        self._driver.synchronize()

    def close(self):
        self._driver.synchronize()  # unmapping does not wait for kernels and copies that still use the memory
        self._unmap()


def adopt(session, fds, kind, offset, size, write):
    """Maps memory that the daemon passed. It consumes the descriptor, the only one of a reply."""
    fd = fds[0]
    try:
        if kind == w.MEMFD:
            return HostMemory(fd, offset, size, write)
        driver = Driver.of(session.runtime, session.device)
        if kind == w.POSIX:
            return DeviceMemory(driver, size, *driver.map(driver.open(fd), size, write))
        if session.runtime == "hip" and kind == w.DMABUF:
            return DeviceMemory(driver, size, *_hip.map_dmabuf(driver, fd, offset, size))
        if session.runtime == "hip" and kind == w.IPC:
            return DeviceMemory(driver, size, *_hip.map_ipc(driver, fd, offset, size))
        raise OSError(f"the daemon's memory is of kind {kind}, which this SDK cannot map")
    finally:
        os.close(fds.pop())


def cuda_array(memory, offset, size, write):
    """The __cuda_array_interface__ of memory. AttributeError if it is not CUDA's."""
    if getattr(memory, "runtime", None) != "cuda":
        raise AttributeError("this is not CUDA memory")
    return {"shape": (size,), "typestr": "|u1", "data": (memory.address + offset, not write), "version": 3}


class Anonymous:
    """Memory of this process alone, for files that are not on LaneFS."""

    device = (1, 0)

    def __init__(self, size):
        self.size = size
        self._map = mmap.mmap(-1, max(size, 1))
        self.view = memoryview(self._map)[:size]

    @property
    def address(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def synchronize(self):
        pass

    def close(self):
        pass  # unmapped with the last view of it


class _Life:
    """Memory that ends with the last reference to this, by a buffer and tensors."""

    def __init__(self, memory):
        self.memory = memory
        weakref.finalize(self, memory.close).atexit = False  # tensors may be used until then, and the end of the process frees all


class Buffer(Closable):
    """Memory of the program, registered with a mount so that rings can use it. Tensors that use it keep it alive after close.

    Parameters
    ----------
    file : File
        Of the mount.
    size : int
        Bytes; rounded up to the mount's granule.

    Raises
    ------
    ValueError
        A size that is not positive, or more than any memory.
    OSError
        ENOMEM, or a driver's error: there is no memory, or the mount's limits allow no more; EMFILE: nor more handles. ECONNRESET: the daemon has ended.
    """

    def __init__(self, file, size):
        size = integer(size)
        if not 0 < size < 1 << 61:
            raise ValueError(f"a buffer of {size} bytes")
        _dlpack.sweep()
        session = self.session = file.session
        if session is None:  # the file is not on LaneFS
            self.size, self.handle, self._reply = size, 0, None
            self._life = _Life(Anonymous(size))
            return
        size = -(-size // session.granule) * session.granule
        self.size, fds, memory = size, Descriptors(), None
        try:
            if session.kind == w.MEMFD:
                fd = w.memfd("lanefs-buffer", fds)
                kind, offset = w.MEMFD, 0
                os.ftruncate(fd, size)
                memory = HostMemory(fd, 0, size, True)
            else:
                driver = Driver.of(session.runtime, session.device)
                if session.kind == w.POSIX:
                    handle, fd = driver.create(size, fds)
                    kind, offset = w.POSIX, 0
                    memory = DeviceMemory(driver, size, *driver.map(handle, size, True))
                else:
                    *mapped, fd, offset = _hip.allocate(driver, size, session.kind, fds)
                    kind, memory = session.kind, DeviceMemory(driver, size, *mapped)
            self._reply = session.call(w.REGISTER, w.REGISTER_REQUEST.pack(kind, 0, offset, size), w.REGISTER_REPLY, pass_fds=[fd])
        except BaseException:
            if memory is not None:
                memory.close()
            raise
        finally:
            fds.close()
        self._life = _Life(memory)
        self.handle, _ = self._reply.fields

    @property
    def memory(self):
        """object: the memory, with `view` (None: the CPU does not reach it), `address` and `size` in bytes.

        Raises
        ------
        ValueError
            The buffer is closed.
        """
        return self._kept().memory

    def _kept(self):
        life = self._life
        if life is None or self._closed:
            raise ValueError("the buffer is closed")
        return life

    base = 0  # where it begins in its memory

    def __len__(self):
        """How many bytes.

        Returns
        -------
        int
        """
        return self.size

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
            The buffer is closed.
        """
        if self.memory.view is None:
            raise BufferError("the CPU does not reach the GPU's memory: use __dlpack__")
        return self.memory.view[:]  # whoever releases it must not have released the buffer's

    def close(self):
        """Unregisters the memory, after the requests that use it. It stays as long as tensors of it. Repeated calls do nothing."""
        self._close()
        _dlpack.sweep()

    def _end(self):
        if self._reply is not None:
            self._reply.release()
        self._life = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

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
            The buffer is closed.
        """
        life = self._kept()
        return _dlpack.capsule(life.memory, life, 0, self.size, **kwargs)

    def __dlpack_device__(self):
        """The kind of device and its ordinal.

        Returns
        -------
        tuple of int
            (1, 0): the CPU; (2, n): CUDA; (10, n): ROCm.

        Raises
        ------
        ValueError
            The buffer is closed.
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
            The buffer is closed.
        """
        return cuda_array(self.memory, 0, self.size, True)
