"""Tests of the SDK on a mount on an AMD GPU, or on the stand-in for one: LANEFS_TEST_DIR is its directory, LANEFS_TEST_KIND the
kind of its memory. Run by the tests of cmd/lanefs. NumPy and PyTorch are not needed: HIP's own copies check the memory."""

import ctypes
import errno
import os
import subprocess
import sys
import unittest

import lanefs
from lanefs._driver import Driver

DIR, KIND = os.environ["LANEFS_TEST_DIR"], int(os.environ["LANEFS_TEST_KIND"])


class HIP(unittest.TestCase):
    def setUp(self):
        self.data = os.urandom(5 * 2**20 + 77)
        self.path = os.path.join(DIR, self.id())
        with open(self.path, "wb") as f:
            f.write(self.data)
        self.file = lanefs.open(self.path, "r+")
        self.addCleanup(self.file.close)
        self.driver = Driver.of("hip", self.file.session.device)
        self.driver.do("SetDevice", self.driver.ordinal)
        self.host, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.do("HostMalloc", ctypes.byref(self.host), ctypes.c_size_t(len(self.data)), ctypes.c_uint(0))
        self.addCleanup(self.driver.do, "HostFree", self.host)
        self.driver.do("StreamCreateWithFlags", ctypes.byref(self.stream), ctypes.c_uint(1))
        self.addCleanup(self.driver.do, "StreamDestroy", self.stream)

    def copy(self, to, source, size):
        """Begins a copy."""
        self.driver.do("SetDevice", self.driver.ordinal)
        self.driver.do("MemcpyAsync", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), ctypes.c_int(4), self.stream)

    def bytes_at(self, address, size):
        self.copy(self.host.value, address, size)
        self.driver.synchronize()
        return ctypes.string_at(self.host, size)

    def test_map(self):
        self.assertEqual((self.file.session.runtime, self.file.session.kind), ("hip", KIND))
        with self.file.map() as m, self.file.map(4097, 100000) as part:
            self.assertEqual(self.bytes_at(m.memory.address + m.base, len(m)), self.data)
            self.assertEqual(self.bytes_at(part.memory.address + part.base, len(part)), self.data[4097:104097])
            self.assertEqual(m.__dlpack_device__(), (10, 0))
            self.assertRaises(BufferError, m.memoryview)

    def test_close_under_a_copy(self):
        for _ in range(5):
            ctypes.memset(self.host, 0, len(self.data))
            m = self.file.map()
            for _ in range(8):
                self.copy(self.host.value, m.memory.address + m.base, len(m))
            m.close()
            self.driver.do("StreamQuery", self.stream)  # raises where something is under way
            self.assertEqual(ctypes.string_at(self.host, len(self.data)), self.data)

    def test_commit(self):
        new = os.urandom(len(self.data))
        with self.file.alloc(len(new)) as m:
            ctypes.memmove(self.host, new, len(new))
            self.copy(m.memory.address + m.base, self.host.value, len(new))
            self.file.commit(m)
        with open(self.path, "rb") as f:
            self.assertEqual(f.read(), new)

    def test_rings(self):
        with lanefs.Buffer(self.file, 6 << 20) as b:
            self.assertEqual(self.file.read_into(b, offset=1, start=3, length=5 << 20), 5 << 20)
            self.assertEqual(self.bytes_at(b.memory.address + 3, 5 << 20), self.data[1:1 + (5 << 20)])
            self.assertEqual(self.file.write_from(b, offset=100, start=3, length=1 << 20), 1 << 20)
        with open(self.path, "rb") as f:
            self.assertEqual(f.read(), self.data[:100] + self.data[1:1 + (1 << 20)] + self.data[100 + (1 << 20):])

    def test_any(self):
        """Memory of hipMalloc, which nobody exported: by copies, and by the kernel."""
        memory, n = ctypes.c_void_p(), 2000
        self.driver.do("Malloc", ctypes.byref(memory), ctypes.c_size_t(len(self.data)))
        at, stream = memory.value, self.stream.value
        self.assertEqual(self.file.read_into(at, length=len(self.data), stream=stream), len(self.data))
        self.assertEqual(self.bytes_at(at, len(self.data)), self.data)
        offsets = [i * 7919 % 5000000 for i in range(n)]
        self.assertEqual(list(self.file.read_batch(at, offsets, range(0, n * 1001, 1001), [1000] * n, stream=stream)), [1000] * n)
        got = self.bytes_at(at, n * 1001)
        for i, o in enumerate(offsets):
            self.assertEqual(got[i * 1001:i * 1001 + 1000], self.data[o:o + 1000])
        self.assertEqual(list(self.file.write_batch(at, [0, 5000], [1001, 0], [1000, 1000], stream=stream)), [1000, 1000])
        with open(self.path, "rb") as f:
            written = f.read(6000)
        self.assertEqual((written[:1000], written[5000:]), (got[1001:2001], got[:1000]))
        rungs = self.file.session.rungs
        self.assertTrue(rungs["kernel"] >= n and rungs["copies"] > 0 and rungs["host"] == 0, rungs)
        self.driver.do("Free", memory)

    def test_reset(self):
        """A program that resets its device goes on. In a process of its own, for the reset takes from all."""
        out = subprocess.run([sys.executable, "-X", "faulthandler", __file__, "reset", self.path], capture_output=True, text=True)
        self.assertEqual((out.returncode, out.stdout, out.stderr), (0, "right\n", ""))


def reset(path):
    """Whatever the library has made on the device before is made again; memory and streams that are no more are errors."""
    with open(path, "rb") as f:
        data = f.read()
    n, f = len(data), lanefs.open(path, "r+")
    driver, at, stream, host = Driver.of("hip", f.session.device), ctypes.c_void_p(), ctypes.c_void_p(), bytearray(len(data))
    registered = getattr(driver._lib, "shim_registered", None)  # of the stand-in
    if registered:
        registered.restype = ctypes.c_size_t

    def refused(call, *args, **kwargs):
        try:
            call(*args, **kwargs)
        except OSError as e:
            return str(e)
        raise SystemExit("it is no error")

    for _ in range(3):
        driver.do("SetDevice", driver.ordinal)
        driver.do("Malloc", ctypes.byref(at), ctypes.c_size_t(n))
        driver.do("StreamCreateWithFlags", ctypes.byref(stream), ctypes.c_uint(1))
        on, pieces = stream.value, range(0, 40000, 1000)
        if f.read_into(at.value, length=n, stream=on) != n or list(f.read_batch(at.value, pieces, pieces, [1000] * 40, stream=on)) != [1000] * 40:
            raise SystemExit("short")
        if list(f.write_batch(at.value, [0], [0], [n], stream=on)) != [n] or f.read_into(host) != n or host != data:
            raise SystemExit("other bytes")
        if registered and not registered():
            raise SystemExit("the stage is not registered")
        batch = f.read_batch_on(at.value, [0], [0], [n], stream=stream.value)
        driver.do("DeviceReset")
        if registered and registered():
            raise SystemExit("the stage is registered yet")
        try:
            batch.results()
        except OSError as e:
            if e.errno != errno.EIO:
                raise
        refused(f.read_into, at.value, length=n)
        if f.write_from(data) != n or f.read_into(host) != n or host != data:
            raise SystemExit("other bytes by the CPU")
        driver.do("Malloc", ctypes.byref(at), ctypes.c_size_t(n))
        why = refused(f.read_into, at.value, length=n, stream=stream.value)
        if registered and "the program has reset the device (hipDeviceReset)" not in why:
            raise SystemExit(why)
        driver.do("Free", at)
    print("right", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["reset"]:
        reset(sys.argv[2])
    else:
        unittest.main(verbosity=2)
