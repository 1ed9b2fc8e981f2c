"""The GPU's driver: CUDA's or HIP's library, opened with ctypes."""

import ctypes
import errno
import os
import threading
import uuid

from . import _hip
from ._current import inside


class _Prop(ctypes.Structure):  # CUmemAllocationProp, hipMemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int), ("location", ctypes.c_int),
                ("metadata", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class _Access(ctypes.Structure):  # CUmemAccessDesc, hipMemAccessDesc
    _fields_ = [("location_type", ctypes.c_int), ("location", ctypes.c_int), ("flags", ctypes.c_int)]


class Driver:
    """The part of a GPU's driver that this package needs. Names and layouts are the same in CUDA and HIP."""

    _libraries = {"cuda": ("cu", "libcuda.so.1"),
                  "hip": ("hip", "libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so.7", "/opt/rocm/lib/libamdhip64.so.6",
                          "libamdhip64.so")}
    _destroyed = 709  # CUDA_ERROR_CONTEXT_IS_DESTROYED
    _by_value = 70100000  # from this version on HIP takes a descriptor by value, as CUDA does; before, by address
    _all = {}
    _lock = threading.RLock()

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
            self._find(device)
            self.context = ctypes.c_void_p()
            # PyTorch and the CUDA runtime use the primary context.
            self.do("DevicePrimaryCtxRetain", ctypes.byref(self.context), self.ordinal)
        else:
            self._find(device)
            self._version = ctypes.c_int(0)
            self.do("RuntimeGetVersion", ctypes.byref(self._version))
        self.dl_type = 2 if runtime == "cuda" else 10

    def _find(self, device):
        """Stores the ordinal of the device with a PCI address, or, of a MIG instance, with a UUID."""
        if not device.startswith("MIG-"):
            self.do("DeviceGetByPCIBusId", ctypes.byref(self.ordinal), device.encode())
            return
        count = ctypes.c_int(0)
        self.do("DeviceGetCount", ctypes.byref(count))
        for i in range(count.value):
            if self._mig(self._lib, i) == device:
                self.ordinal = ctypes.c_int(i)
                return
        raise OSError(errno.ENODEV, f"the memory is of {device}, a MIG instance that this process does not see: CUDA_VISIBLE_DEVICES must name it")

    @staticmethod
    def _mig(lib, ordinal):
        """The UUID of a MIG instance; None: the device is none, but all of a GPU. The second version of the call gives an instance its own."""
        whole, own = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
        second = getattr(lib, "cuDeviceGetUuid_v2", None)
        if second is None or lib.cuDeviceGetUuid(whole, ctypes.c_int(ordinal)) or second(own, ctypes.c_int(ordinal)) or bytes(whole) == bytes(own):
            return None
        return f"MIG-{uuid.UUID(bytes=bytes(own))}"

    @classmethod
    def current_address(cls, runtime):
        """The PCI address (of a MIG instance the UUID) of the device that is current for the thread, or of the process's first. CUDA_VISIBLE_DEVICES
        does not change it."""
        prefix, *names = cls._libraries[runtime]
        lib = cls.load(*names)
        ordinal, address = ctypes.c_int(0), ctypes.create_string_buffer(32)
        code = getattr(lib, prefix + "Init")(ctypes.c_uint(0))
        if code == 0 and getattr(lib, prefix + ("CtxGetDevice" if runtime == "cuda" else "GetDevice"))(ctypes.byref(ordinal)):
            ordinal = ctypes.c_int(0)  # CUDA's threads begin without one
        code = code or getattr(lib, prefix + "DeviceGetPCIBusId")(address, ctypes.c_int(32), ordinal)
        if code:
            raise OSError(f"{prefix}DeviceGetPCIBusId: error {code}")
        return (cls._mig(lib, ordinal.value) if runtime == "cuda" else None) or address.value.decode().lower()

    @staticmethod
    def load(*names):
        """Opens the first library that exists."""
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

    def has(self, call):
        return hasattr(self._lib, self._prefix + call)

    def do(self, call, *args):
        code = self._call(call, *args)
        if code:
            raise OSError(f"{self._prefix}{call}: error {code}{self._name(code)}")

    def _name(self, code):
        name = ctypes.c_char_p()
        f = getattr(self._lib, "cuGetErrorName" if self.runtime == "cuda" else "hipDrvGetErrorName", None)
        return f", {name.value.decode()}" if f and f(ctypes.c_int(code), ctypes.byref(name)) == 0 and name.value else ""

    def _call(self, call, *args):
        name = self._prefix + call
        f = getattr(self._lib, name, None)
        if f is None:
            raise OSError(f"the GPU's driver has no {name}")
        f.restype = ctypes.c_int
        return f(*args)

    @inside
    def create(self, size, fds):
        """Allocates physical memory that can be exported. Returns a handle and a descriptor of it, which fds, its Descriptors, closes."""
        handle, fd = ctypes.c_uint64(), fds.slot()
        prop = _Prop(type=1, handle_types=1, location_type=1, location=self.ordinal.value)
        self.do("MemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_ulonglong(0))
        try:
            self.do("MemExportToShareableHandle", ctypes.byref(fd), handle, ctypes.c_int(1), ctypes.c_ulonglong(0))
        except OSError:
            self.do("MemRelease", handle)
            raise
        return handle, fd.value

    @inside
    def open(self, fd):
        """Returns the handle of a descriptor."""
        handle, at = ctypes.c_uint64(), ctypes.c_int(fd)
        source = ctypes.byref(at) if self.runtime == "hip" and self._version.value < self._by_value else ctypes.c_void_p(fd)
        self.do("MemImportFromShareableHandle", ctypes.byref(handle), source, ctypes.c_int(1))
        return handle

    @inside
    def map(self, handle, size, write):
        """Maps the handle, which it consumes. Returns the address and a function that unmaps it."""
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
        raise OSError(f"{self._prefix}MemSetAccess: error {code}{self._name(code)}")

    @inside
    def synchronize(self):
        if self.runtime != "cuda":
            self.do("DeviceSynchronize")
            return
        code = self._call("CtxSynchronize")
        if code not in (0, self._destroyed):  # the program has reset the device, which has ended all that was under way
            raise OSError(f"cuCtxSynchronize: error {code}{self._name(code)}")


def _anew():
    """In a child: a thread of the parent may have held the lock, and does not exist here."""
    Driver._lock = threading.RLock()


os.register_at_fork(after_in_child=_anew)
