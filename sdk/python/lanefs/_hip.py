"""For AMD GPUs only: memory outside of virtual memory management, shared as DMA-BUFs and as HSA's IPC handles."""

import ctypes
import os
import struct

from . import _wire as w
from ._current import inside

_MESSAGE = struct.Struct("=8sQ32s")  # an IPC handle in a memfd (docs/SPEC.md)
_MAGIC = b" LFSIPC1"
_PAGE = 4096


class _Win32(ctypes.Structure):
    _fields_ = [("handle", ctypes.c_void_p), ("name", ctypes.c_void_p)]


class _Handle(ctypes.Union):
    _fields_ = [("fd", ctypes.c_int), ("win32", _Win32)]


class _ExternalHandle(ctypes.Structure):  # hipExternalMemoryHandleDesc
    _fields_ = [("type", ctypes.c_int), ("handle", _Handle), ("size", ctypes.c_uint64), ("flags", ctypes.c_uint), ("reserved", ctypes.c_uint * 16)]


class _ExternalBuffer(ctypes.Structure):  # hipExternalMemoryBufferDesc
    _fields_ = [("offset", ctypes.c_uint64), ("size", ctypes.c_uint64), ("flags", ctypes.c_uint), ("reserved", ctypes.c_uint * 16)]


class _PointerInfo(ctypes.Structure):  # hsa_amd_pointer_info_t
    _fields_ = [("size", ctypes.c_uint32), ("type", ctypes.c_uint32), ("base", ctypes.c_void_p), ("host", ctypes.c_void_p), ("bytes", ctypes.c_size_t),
                ("user", ctypes.c_void_p), ("owner", ctypes.c_uint64), ("flags", ctypes.c_uint32)]


class Hsa:
    """libhsa-runtime64, and the device's agent."""

    def __init__(self, driver):
        self._lib = driver.load("libhsa-runtime64.so.1", "/opt/rocm/lib/libhsa-runtime64.so.1")
        self.do("hsa_init")
        page = ctypes.c_void_p()
        driver.do("Malloc", ctypes.byref(page), ctypes.c_size_t(_PAGE))
        try:
            self.agent = ctypes.c_uint64(self.info(page).owner)
        finally:
            driver.do("Free", page)

    def do(self, name, *args):
        f = getattr(self._lib, name, None)
        if f is None:
            raise OSError(f"libhsa-runtime64 has no {name}")
        f.restype = ctypes.c_int
        code = f(*args)
        if code:
            raise OSError(f"{name}: error {code:#x}")

    def info(self, address):
        p = _PointerInfo(size=ctypes.sizeof(_PointerInfo))
        self.do("hsa_amd_pointer_info", address, ctypes.byref(p), None, None, None)
        return p


@inside
def map_dmabuf(driver, fd, offset, size):
    """Returns the address of size bytes at offset of a DMA-BUF, and a function that unmaps them. It is mapped by HIP, not HSA, because copies
    of HIP and PyTorch accept only memory that HIP has mapped."""
    external, base = ctypes.c_void_p(), ctypes.c_void_p()
    driver.do("ImportExternalMemory", ctypes.byref(external), ctypes.byref(_ExternalHandle(type=1, handle=_Handle(fd=fd), size=offset + size)))
    try:
        driver.do("ExternalMemoryGetMappedBuffer", ctypes.byref(base), external, ctypes.byref(_ExternalBuffer(size=offset + size)))
    except OSError:
        driver.do("DestroyExternalMemory", external)
        raise

    def unmap():
        driver.do("Free", base)
        driver.do("DestroyExternalMemory", external)
    return base.value + offset, unmap


@inside
def map_ipc(driver, fd, offset, size):
    """The same for an IPC handle in a memfd. Kernels can use the memory, HIP's copies perhaps not."""
    message = os.pread(fd, _MESSAGE.size + 1, 0)
    if len(message) != _MESSAGE.size:
        raise OSError("the daemon sent a malformed IPC handle")
    magic, n, handle = _MESSAGE.unpack(message)
    if magic != _MAGIC or offset + size > n:
        raise OSError("the daemon sent a malformed IPC handle")
    hsa, base = driver.hsa, ctypes.c_void_p()
    hsa.do("hsa_amd_ipc_memory_attach", handle, ctypes.c_size_t(n), ctypes.c_uint32(1), ctypes.byref(hsa.agent), ctypes.byref(base))
    return base.value + offset, lambda: hsa.do("hsa_amd_ipc_memory_detach", base)


@inside
def allocate(driver, size, kind, fds):
    """Memory of the program: its address, a function that frees it, and a descriptor of the kind, which fds, its Descriptors, closes, with the offset in it."""
    at = ctypes.c_void_p()
    driver.do("Malloc", ctypes.byref(at), ctypes.c_size_t(size))
    try:
        fd, offset = _export_dmabuf(driver.hsa, at, size, fds) if kind == w.DMABUF else _export_ipc(driver.hsa, at, fds)
    except OSError:
        driver.do("Free", at)
        raise
    return at.value, lambda: driver.do("Free", at), fd, offset


def _export_dmabuf(hsa, at, size, fds):
    fd, offset = ctypes.c_int(-1), ctypes.c_uint64()
    hsa.do("hsa_amd_portable_export_dmabuf", at, ctypes.c_size_t(size), ctypes.byref(fd), ctypes.byref(offset))
    own = fds.get(os.dup, fd.value)
    hsa.do("hsa_amd_portable_close_dmabuf", fd)
    return own, offset.value


def _export_ipc(hsa, at, fds):
    p = hsa.info(at)
    handle = ctypes.create_string_buffer(32)
    hsa.do("hsa_amd_ipc_memory_create", ctypes.c_void_p(p.base), ctypes.c_size_t(p.bytes), handle)
    fd = w.memfd("lanefs-ipc", fds)
    os.write(fd, _MESSAGE.pack(_MAGIC, p.bytes, handle.raw))
    return fd, at.value - p.base
