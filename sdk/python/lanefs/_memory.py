"""Device memory in this process: a memfd that is mapped, or a GPU's handle that its driver imports."""

import ctypes
import mmap
import os
import threading
import weakref

from . import _hip
from . import _wire as w


class HostMemory:
    """A memfd. `view` is its bytes."""

    device = (1, 0)  # DLPack: CPU

    def __init__(self, fd, offset, size, write):
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if write else 0), offset=offset)
        self.view = memoryview(self._map)
        self.size = size

    @property
    def address(self):
        if self.size == 0:
            return 0
        if not self.view.readonly:
            return ctypes.addressof(ctypes.c_char.from_buffer(self.view))
        # ctypes takes no address of read-only memory; the buffer protocol does.
        buf = _Buffer()
        _get_buffer(self.view, ctypes.byref(buf), 0)
        try:
            return buf.buf
        finally:
            _release_buffer(ctypes.byref(buf))

    def synchronize(self):
        pass

    def close(self):
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # somebody has a view of it; it ends with the last


class _Buffer(ctypes.Structure):  # Py_buffer
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


# Own prototypes: those of ctypes.pythonapi are everybody's.
_get_buffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)(("PyObject_GetBuffer", ctypes.pythonapi))
_release_buffer = ctypes.PYFUNCTYPE(None, ctypes.POINTER(_Buffer))(("PyBuffer_Release", ctypes.pythonapi))


class _Prop(ctypes.Structure):  # CUmemAllocationProp, hipMemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int), ("location", ctypes.c_int),
                ("metadata", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class _Access(ctypes.Structure):  # CUmemAccessDesc, hipMemAccessDesc
    _fields_ = [("location_type", ctypes.c_int), ("location", ctypes.c_int), ("flags", ctypes.c_int)]


class Driver:
    """The part of a GPU's driver that this package needs. CUDA and HIP name and lay out all of it alike."""

    _libraries = {"cuda": ("cu", "libcuda.so.1"),
                  "hip": ("hip", "libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so.7", "/opt/rocm/lib/libamdhip64.so.6",
                          "libamdhip64.so")}
    _by_value = 70100000  # the HIP that takes a descriptor itself, as CUDA does; those before read it at an address
    _all = {}
    _lock = threading.Lock()

    @classmethod
    def of(cls, runtime, device):
        with cls._lock:
            key = (os.getpid(), runtime, device)
            if key not in cls._all:
                cls._all[key] = cls(runtime, device)
            return cls._all[key]

    def __init__(self, runtime, device):
        self._prefix, *names = self._libraries[runtime]
        self.runtime = runtime
        self._lib = self.load(*names)
        self.ordinal = ctypes.c_int(0)
        self._hsa = None
        self.do("Init", ctypes.c_uint(0))
        if runtime == "cuda":
            self.do("DeviceGetByPCIBusId", ctypes.byref(self.ordinal), device.encode())
            self._context = ctypes.c_void_p()
            # The primary context is what PyTorch and all of the CUDA runtime use.
            self.do("DevicePrimaryCtxRetain", ctypes.byref(self._context), self.ordinal)
        else:
            self.do("DeviceGetByPCIBusId", ctypes.byref(self.ordinal), device.encode())
            self._version = ctypes.c_int(0)
            self.do("RuntimeGetVersion", ctypes.byref(self._version))
        self.dl_type = 2 if runtime == "cuda" else 10

    @staticmethod
    def load(*names):
        """Opens the first library that is there."""
        why = None
        for name in names:
            try:
                return ctypes.CDLL(name)
            except OSError as e:
                why = why or e
        raise OSError(f"the mount's device memory belongs to a GPU, and its driver's library cannot be loaded: {why}")

    @property
    def hsa(self):
        if self._hsa is None:
            self._hsa = _hip.Hsa(self)
        return self._hsa

    def do(self, call, *args):
        code = self._call(call, *args)
        if code:
            raise OSError(f"{self._prefix}{call}: error {code}")

    def _call(self, call, *args):
        name = self._prefix + call
        f = getattr(self._lib, name, None)
        if f is None:
            raise OSError(f"the GPU's driver has no {name}")
        f.restype = ctypes.c_int
        return f(*args)

    def enter(self):
        """Makes the device this thread's."""
        if self.runtime == "cuda":
            self.do("CtxSetCurrent", self._context)
        else:
            self.do("SetDevice", self.ordinal)

    def create(self, size):
        """Physical memory that can be exported: a handle, and a descriptor of it."""
        self.enter()
        handle, fd = ctypes.c_uint64(), ctypes.c_int(-1)
        prop = _Prop(type=1, handle_types=1, location_type=1, location=self.ordinal.value)
        self.do("MemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_ulonglong(0))
        try:
            self.do("MemExportToShareableHandle", ctypes.byref(fd), handle, ctypes.c_int(1), ctypes.c_ulonglong(0))
        except OSError:
            self.do("MemRelease", handle)
            raise
        return handle, fd.value

    def open(self, fd):
        """The handle behind a descriptor."""
        self.enter()
        handle, at = ctypes.c_uint64(), ctypes.c_int(fd)
        source = ctypes.byref(at) if self.runtime == "hip" and self._version.value < self._by_value else ctypes.c_void_p(fd)
        self.do("MemImportFromShareableHandle", ctypes.byref(handle), source, ctypes.c_int(1))
        return handle

    def map(self, handle, size, write):
        """Gives the handle, which is used up, an address, and what unmaps it."""
        self.enter()
        at = ctypes.c_uint64()
        n = ctypes.c_size_t(size)
        try:
            self.do("MemAddressReserve", ctypes.byref(at), n, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_ulonglong(0))
            try:
                self.do("MemMap", at, n, ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
                try:
                    self._allow(at, n, write)
                except OSError:
                    self.do("MemUnmap", at, n)
                    raise
            except OSError:
                self.do("MemAddressFree", at, n)
                raise
        finally:
            self.do("MemRelease", handle)  # the mapping keeps the memory

        def unmap():
            self.do("MemUnmap", at, n)
            self.do("MemAddressFree", at, n)
        return at.value, unmap

    def _allow(self, at, n, write):
        for flags in (3,) if write else (1, 3):  # not every driver has read-only mappings
            desc = _Access(location_type=1, location=self.ordinal.value, flags=flags)
            code = self._call("MemSetAccess", at, n, ctypes.byref(desc), ctypes.c_size_t(1))
            if code == 0:
                return
        raise OSError(f"{self._prefix}MemSetAccess: error {code}")

    def synchronize(self):
        self.enter()
        self.do("CtxSynchronize" if self.runtime == "cuda" else "DeviceSynchronize")


class DeviceMemory:
    """A GPU's memory at an address of this process. The CPU does not reach it."""

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


def adopt(session, fd, kind, offset, size, write):
    """Maps memory that the daemon passed; the descriptor is used up."""
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
        os.close(fd)


def cuda_array(memory, offset, size, write):
    """What __cuda_array_interface__ is of memory; AttributeError where it is not CUDA's."""
    if getattr(memory, "runtime", None) != "cuda":
        raise AttributeError("this is not CUDA memory")
    return {"shape": (size,), "typestr": "|u1", "data": (memory.address + offset, not write), "version": 3}


class Anonymous:
    """Memory of this process alone, where there is no daemon."""

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
        pass  # with the last view of it


class _Life:
    """Memory, which ends with the last who refers to this: a buffer, tensors."""

    def __init__(self, memory):
        self.memory = memory
        weakref.finalize(self, memory.close).atexit = False  # tensors may outlive it there, and the process's end frees all


class Buffer:
    """Memory of the program's own, registered with a mount so that rings can use it. Size in bytes, rounded up to granules.
    Tensors that were made of it keep it alive after close."""

    def __init__(self, file, size):
        if size <= 0:
            raise ValueError(f"a buffer of {size} bytes")
        session = self._session = file.session
        if session is None:  # file fell back
            self.size, self.handle, self._release = size, 0, None
            self._life = _Life(Anonymous(size))
            return
        size = -(-size // session.granule) * session.granule
        if session.kind == w.MEMFD:
            fd = os.memfd_create("lanefs-buffer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            memory = HostMemory(fd, 0, size, True)
            kind, offset = w.MEMFD, 0
        else:
            driver = Driver.of(session.runtime, session.device)
            if session.kind == w.POSIX:
                handle, fd = driver.create(size)
                kind, offset, mapped = w.POSIX, 0, driver.map(handle, size, True)
            else:
                *mapped, fd, offset = _hip.allocate(driver, size, session.kind)
                kind = session.kind
            memory = DeviceMemory(driver, size, *mapped)
        self.size = size
        try:
            (self.handle, _), _ = session.call(w.REGISTER, w.REGISTER_REQUEST.pack(kind, 0, offset, size), w.REGISTER_REPLY, pass_fds=[fd])
        except BaseException:
            memory.close()
            raise
        finally:
            os.close(fd)
        self._life = _Life(memory)
        self._release = weakref.finalize(self, session.drop, self.handle)
        self._release.atexit = False

    @property
    def memory(self):
        if self._life is None:
            raise ValueError("the buffer is closed")
        return self._life.memory

    base = 0  # where it begins in its memory

    def __len__(self):
        return self.size

    def memoryview(self):
        """The bytes, where the CPU reaches them."""
        if self.memory.view is None:
            raise BufferError("the CPU does not reach the GPU's memory: use __dlpack__")
        return self.memory.view

    def close(self):
        if self._release is not None and self._release.detach():
            self._session.release(self.handle)
        self._life = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __dlpack__(self, **kwargs):
        from ._dlpack import capsule
        return capsule(self.memory, self._life, 0, self.size, **kwargs)

    def __dlpack_device__(self):
        return self.memory.device

    @property
    def __cuda_array_interface__(self):
        return cuda_array(self.memory, 0, self.size, True)
