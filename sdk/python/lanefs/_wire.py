"""The share protocol, version 1 (docs/SPEC.md). All numbers are little-endian."""

import ctypes
import errno
import mmap
import os
import platform
import struct
import weakref

MAGIC = b"LANEFSVR"
VERSION = 1
MAX_MESSAGE = 1024
ATTRIBUTE = "system.lanefs.share"
REPLY = 0x8000

HELLO, MAP, RELEASE, COMMIT, PIN, REGISTER, OPEN, RING, MOVED, DEVICE = range(1, 11)

HEADER = struct.Struct("<HHIIi")  # type, 0, length, tag, status
HANDLE = struct.Struct("<I")  # with which the replies begin that have one
HELLO_REQUEST = struct.Struct("<8sHHI")
HELLO_REPLY = struct.Struct("<HHIQQIHH64s64s")
MAP_REQUEST = struct.Struct("<QQII")
MAP_REPLY = struct.Struct("<IIQQQQQQ")
RELEASE_REQUEST = struct.Struct("<II")
RELEASE_BRIEF, RELEASE_ASK = 1, 2
COMMIT_REQUEST = struct.Struct("<IIQQQ")
COMMIT_REPLY = struct.Struct("<Q")
PIN_REQUEST = struct.Struct("<II")
PIN_REPLY = struct.Struct("<QQ")
REGISTER_REQUEST = struct.Struct("<IIQQ")
REGISTER_REPLY = struct.Struct("<II")
OPEN_REQUEST = struct.Struct("<Q")
OPEN_REPLY = struct.Struct("<IIQ")
RING_REQUEST = struct.Struct("<II")
RING_REPLY = struct.Struct("<IIIIQ")
DEVICE_REQUEST = struct.Struct("<II64s")
DEVICE_REPLY = struct.Struct("<IIQQ64s64s")
MOVED_REQUEST = struct.Struct("<Q")
MOVED_REPLY = struct.Struct("<QQQQQQII64s")

MAP_PRIVATE, MAP_EMPTY = 1, 2
NO_OWNER = NO_INDEX = 0xFFFFFFFF

HOST, CUDA, HIP = 1, 2, 3
RUNTIMES = {HOST: "host", CUDA: "cuda", HIP: "hip"}
MEMFD, DMABUF, POSIX, IPC = 1, 2, 3, 4

# Rings: offsets of the indexes, and entries.
SQ_TAIL, SQ_HEAD, CQ_TAIL, CQ_HEAD, DAEMON_SLEEPS, CLIENT_SLEEPS, ENTRIES = 0, 64, 128, 192, 256, 320, 4096
SUBMISSION = struct.Struct("<QIIIIQQQ16x")
COMPLETION = struct.Struct("<Qq16x")
READ, WRITE, SYNC = 1, 2, 3


def drain(fd):
    """Reads all signals that the daemon has sent, 8 bytes each. Returns whether there were any; end of file is none."""
    got = False
    try:
        while os.read(fd, 8):
            got = True
    except BlockingIOError:
        pass
    return got


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype, _libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
_FGETXATTR = {"x86_64": 193, "aarch64": 10}.get(platform.machine()) if ctypes.sizeof(ctypes.c_void_p) == 8 else None


def socket_path(fd):
    """The path of the daemon's socket, for a descriptor of a file of its mount. The kernel is asked, not libc: fakeroot and its like put a function in front of libc's that knows nothing of this
    attribute."""
    if _FGETXATTR is None:
        return os.getxattr(fd, ATTRIBUTE)
    path = ctypes.create_string_buffer(4096)
    while True:
        n = _libc.syscall(ctypes.c_long(_FGETXATTR), ctypes.c_int(fd), ATTRIBUTE.encode(), path, ctypes.c_size_t(len(path)))
        if n >= 0:
            return path.raw[:n]
        if ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def memfd(name, fds):
    """A memfd of fds, its Descriptors, that can be sealed, and not be executed: vm.memfd_noexec=2 asks for that."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return fds.get(os.memfd_create, name, flags | 8)  # MFD_NOEXEC_SEAL
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
        return fds.get(os.memfd_create, name, flags)  # Linux before 6.3


def mapped(fd, size, prot, offset=0):
    """Shared memory as a memoryview of bytes, with whose last part it is unmapped. Python's own mmap keeps a descriptor, before 3.13 always, and closes its number at the end, which may be
    another file's then."""
    at = _libc.mmap(None, size, prot, mmap.MAP_SHARED, fd, offset)
    if at == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = (ctypes.c_char * size).from_address(at)
    weakref.finalize(memory, _libc.munmap, at, size).atexit = False  # views may be used until then
    view = memoryview(memory).cast("B")
    return view if prot & mmap.PROT_WRITE else view.toreadonly()
