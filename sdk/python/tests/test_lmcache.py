"""Tests of lanefs.lmcache on a mount with the host runtime, against what LMCache's contract says. Run by the Go test beside this. LMCache itself is not
here: a package of its names has the contract's abstract methods, by which Python holds a backend to them."""

import ctypes
import importlib
import inspect
import os
import pkgutil
import signal
import sys
import tempfile
import threading
import unittest
import weakref

CONTRACT = '''
from abc import ABC, abstractmethod
import ctypes

class Submission:
    __slots__ = ("size", "file_offset", "buf_offset", "result", "__weakref__")
    def __init__(self, size, file_offset, buf_offset):
        self.size, self.file_offset, self.buf_offset = ctypes.c_size_t(size), ctypes.c_int64(file_offset), ctypes.c_int64(buf_offset)
        self.result = ctypes.c_int64(0)
    @property
    def bytes_done(self):
        return self.result.value

class GDSBackend(ABC):
    @classmethod
    def is_default(cls): return False
    def validate_environment(self): pass
    @abstractmethod
    def open_slab(self, location, size, direct_io): pass
    @abstractmethod
    def register_buffer(self, buf): pass
    @abstractmethod
    def deregister_buffer(self, buf): pass
    @abstractmethod
    def register_stream(self, raw_stream): pass
    @abstractmethod
    def deregister_stream(self, raw_stream): pass
    def close_driver(self): pass

class GDSHandle(ABC):
    def __init__(self, path): self.path = path
    @abstractmethod
    def read_async(self, buf_base, size, file_offset, buf_offset, raw_stream): pass
    @abstractmethod
    def write_async(self, buf_base, size, file_offset, buf_offset, raw_stream): pass
    @abstractmethod
    def close(self): pass
'''
try:
    import lmcache.v1.gpu_connector.gds_backends.base  # the real one
except ImportError:
    _root = tempfile.TemporaryDirectory()
    at = _root.name
    for name in "lmcache", "v1", "gpu_connector", "gds_backends":
        at = os.path.join(at, name)
        os.mkdir(at)
        open(os.path.join(at, "__init__.py"), "w").close()
    with open(os.path.join(at, "base.py"), "w") as f:
        f.write(CONTRACT)
    sys.path.insert(0, _root.name)

import lanefs
import lanefs.lmcache as ours
from lmcache.v1.gpu_connector import gds_backends
from lmcache.v1.gpu_connector.gds_backends import base

DIR = os.environ["LANEFS_TEST_DIR"]
OUTSIDE = os.environ["LANEFS_TEST_OUTSIDE"]
STREAM = 0  # of the CPU's memory there is no other


class Tensor:
    """What the contract uses of PyTorch's."""

    def __init__(self, size, contiguous=True):
        self.data, self._contiguous = bytearray(size), contiguous

    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.data)) if self.data else 0

    def numel(self):
        return len(self.data)

    def element_size(self):
        return 1

    def is_contiguous(self):
        return self._contiguous


class LMCache(unittest.TestCase):
    def setUp(self):
        self.backend = ours.Backend()
        self.buf = Tensor(1 << 20)
        self.where = os.path.join(DIR, self.id())

    def test_found_by_name(self):
        ours.register()
        ours.register()
        names = [m.name for m in pkgutil.iter_modules(gds_backends.__path__)]
        self.assertEqual(names.count("lanefs"), 1)
        found = importlib.import_module(gds_backends.__name__ + ".lanefs").Backend
        self.assertTrue(found is ours.Backend and issubclass(found, base.GDSBackend) and issubclass(ours.Handle, base.GDSHandle))
        self.assertEqual((found.name, found.is_default()), ("lanefs", False))
        found().validate_environment()
        for of, mine in (base.GDSBackend, ours.Backend), (base.GDSHandle, ours.Handle):
            for name in of.__abstractmethods__:
                self.assertEqual(list(inspect.signature(getattr(of, name)).parameters), list(inspect.signature(getattr(mine, name)).parameters), name)

    def test_move(self):
        b, buf = self.backend, self.buf
        b.register_buffer(buf)
        b.register_stream(STREAM)
        with b.open_slab(self.where, 1 << 20, True) as h:
            self.assertEqual((h.path, os.path.getsize(h.path)), (os.path.join(self.where, "lmcache_gds_slab.bin"), 1 << 20))
            data = os.urandom(300000)
            buf.data[1000:301000] = data
            sub = h.write_async(buf.data_ptr(), 300000, 4097, 1000, STREAM)
            self.assertEqual((sub.bytes_done, sub.size.value, sub.file_offset.value, sub.buf_offset.value), (300000, 300000, 4097, 1000))
            self.assertIsNotNone(weakref.ref(sub)())
            buf.data[:] = bytes(1 << 20)
            self.assertEqual(h.read_async(buf.data_ptr(), 300000, 4097, 5, STREAM).bytes_done, 300000)
            self.assertEqual(buf.data[5:300005], data)
            self.assertEqual(h.read_async(buf.data_ptr(), 1 << 20, 0, 0, STREAM).bytes_done, 1 << 20)
            self.assertEqual(bytes(buf.data), bytes(4097) + data + bytes((1 << 20) - 304097))
            self.assertEqual(h.read_async(buf.data_ptr(), 0, 0, 0, STREAM).bytes_done, 0)
            os.truncate(h.path, 1000)
            self.assertEqual(h.read_async(buf.data_ptr(), 4096, 0, 0, STREAM).bytes_done, 1000, "cut by somebody else")
        h.close()
        self.assertRaises(ValueError, h.read_async, buf.data_ptr(), 1, 0, 0, STREAM)
        with b.open_slab(self.where, 8192, False) as h:
            self.assertEqual((h.read_async(buf.data_ptr(), 8192, 0, 0, STREAM).bytes_done, bytes(buf.data[:8192])), (8192, bytes(8192)), "a slab begins empty")

    def test_refused(self):
        b, buf, other = self.backend, self.buf, Tensor(100)
        for size in 0, -1:
            self.assertRaises(ValueError, b.open_slab, self.where, size, False)
        self.assertRaises(lanefs.NotLaneFS, b.open_slab, os.path.join(OUTSIDE, "slabs"), 4096, False)
        self.assertEqual(os.listdir(os.path.join(OUTSIDE, "slabs")), [])
        with self.assertRaises(OSError):
            b.open_slab(self.where, 1 << 50, False)
        self.assertEqual(os.listdir(self.where), [])
        for bad in Tensor(0), Tensor(8, contiguous=False):
            self.assertRaises(ValueError, b.register_buffer, bad)
        b.register_buffer(buf)
        self.assertRaises(ValueError, b.register_buffer, buf)
        self.assertRaises(ValueError, b.deregister_buffer, other)
        with b.open_slab(self.where, 8192, False) as h:
            at = buf.data_ptr()
            b.register_stream(STREAM)
            self.assertRaises(ValueError, b.register_stream, STREAM)
            self.assertRaises(ValueError, b.deregister_stream, 5)
            for args in ((other.data_ptr(), 1, 0, 0), (at + 1, 1, 0, 0), (at, -1, 0, 0), (at, 1, -1, 0), (at, 1, 0, -1), (at, 8193, 0, 0), (at, 1, 8192, 0),
                         (at, 2, 0, (1 << 20) - 1)):
                for move in h.read_async, h.write_async:
                    self.assertRaises(ValueError, move, *args, STREAM)
            with self.assertRaises(OSError):
                h.read_async(at, 1, 0, 0, 77)  # of the CPU's memory there is no stream
            b.deregister_buffer(buf)
            self.assertRaises(ValueError, b.deregister_buffer, buf)
            self.assertRaises(ValueError, h.read_async, at, 1, 0, 0, STREAM)
        b.deregister_stream(STREAM)
        self.assertRaises(ValueError, b.deregister_stream, STREAM)
        for _ in range(2):  # what is forgotten can be made known again
            b.register_buffer(buf)
            b.register_stream(STREAM)
            b.close_driver()
            b.close_driver()

    def test_closed(self):  # no descriptor is left, of slabs that cannot be made neither
        def descriptors():
            return len(os.listdir("/proc/self/fd"))
        other = self.backend.open_slab(self.where + " too", 4096, False)  # so that the session stays
        self.addCleanup(other.close)
        before = descriptors()
        with self.backend.open_slab(self.where, 4096, False) as h:
            self.assertGreater(descriptors(), before)
        self.assertEqual(descriptors(), before)
        h.close()
        try:
            self.backend.open_slab(self.where, 1 << 50, False)
        except OSError as e:  # whose frames have the file, as in a program that logs it later
            self.assertEqual(descriptors(), before, e)
        else:
            self.fail("a petabyte")

    def test_fork(self):  # a child waits for no thread that it does not have
        self.backend.register_buffer(self.buf)
        with self.backend._lock:  # as by a thread
            child = os.fork()
            if not child:
                signal.alarm(60)
                self.backend.deregister_buffer(self.buf)
                os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_streams_of_several_buffers(self):
        """LMCache forgets a stream with the first of the buffers that were registered on it, which others go on using; and a buffer may be used on a
        stream that was not current when it was registered."""
        b, one, two = self.backend, Tensor(4096), Tensor(4096)
        with b.open_slab(self.where, 8192, True) as h:
            b.register_buffer(one)
            two.data[:] = b"2" * 4096
            b.register_buffer(two)
            self.assertEqual(h.write_async(two.data_ptr(), 4096, 4096, 0, STREAM).bytes_done, 4096, "no stream yet")
            b.register_stream(STREAM)
            b.deregister_buffer(one)
            b.deregister_stream(STREAM)
            two.data[:] = bytes(4096)
            self.assertEqual(h.read_async(two.data_ptr(), 4096, 4096, 0, STREAM).bytes_done, 4096)
            self.assertEqual(bytes(two.data), b"2" * 4096)
            b.deregister_buffer(two)
        b.close_driver()

    def test_threads(self):
        """Threads have buffers of their own, come and go, and share backend and handle; another backend beside it ends."""
        b, other, failed = self.backend, ours.Backend(), []

        def work(n):
            try:
                buf = Tensor(65536)
                for i in range(20):
                    b.register_buffer(buf)
                    data = bytes([n * 20 + i]) * 65536
                    buf.data[:] = data
                    self.assertEqual(h.write_async(buf.data_ptr(), 65536, n * 65536, 0, STREAM).bytes_done, 65536)
                    buf.data[:] = bytes(65536)
                    self.assertEqual(h.read_async(buf.data_ptr(), 65536, n * 65536, 0, STREAM).bytes_done, 65536)
                    self.assertEqual(bytes(buf.data), data)
                    b.deregister_buffer(buf)
            except BaseException as e:
                failed.append(e)

        with b.open_slab(self.where, 8 * 65536, True) as h:
            threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
            for t in threads:
                t.start()
            other.register_buffer(self.buf)
            other.close_driver()
            for t in threads:
                t.join()
        self.assertEqual(failed, [])

    def test_keeps_the_buffer(self):
        buf = Tensor(10)
        gone = weakref.ref(buf)
        self.backend.register_buffer(buf)
        del buf
        self.assertIsNotNone(gone())
        self.backend.deregister_buffer(gone())
        self.assertIsNone(gone())


if __name__ == "__main__":
    unittest.main(verbosity=2)
