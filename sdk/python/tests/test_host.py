"""Tests of the SDK on a mount with the host runtime: LANEFS_TEST_DIR is its directory. Run by the Go test beside this."""

import array
import asyncio
import contextlib
import copy
import ctypes
import errno
import itertools
import json
import linecache
import math
import os
import pickle
import platform
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import unittest
import unittest.mock
import warnings
import weakref

import lanefs
from lanefs._driver import Driver

DIR = os.environ["LANEFS_TEST_DIR"]
OUTSIDE = os.environ["LANEFS_TEST_OUTSIDE"]
HAS_LIBRARY = bool(os.environ.get("LANEFS_LIBRARY"))


def path(name):
    return os.path.join(DIR, name)


def write(name, data, where=DIR):
    p = os.path.join(where, name)
    with open(p, "wb") as f:
        f.write(data)
    return p


def safetensors(tensors, metadata=None, pad=True):
    """The format, by hand: {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, b) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(b)]}
        data += b
    text = json.dumps(header).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def interrupted_at(n, do):
    """Calls do, with KeyboardInterrupt raised at the n-th line of the package that it runs. Returns whether do had ended before that line."""
    package, lines, last = os.path.dirname(lanefs.__file__), 0, None

    def finalizes(frame):  # what a finalizer raises is lost
        return frame is not None and (frame.f_code.co_filename == weakref.__file__ or finalizes(frame.f_back))

    def trace(frame, event, _):
        nonlocal lines, last
        name = frame.f_code.co_filename
        if not name.startswith(package) or event == "call" and finalizes(frame):
            return None
        at, last = last, (frame, frame.f_lineno)
        # As in test_kv.py; nor where a line has no code but that of the trace, or gives a lock back.
        nowhere = "with ", "try:", "finally:", "pass", "if self._taking._is_owned", "self._taking.release"
        if event == "line" and at != last and not linecache.getline(name, frame.f_lineno).strip().startswith(nowhere):
            lines += 1
            if lines == n:
                raise KeyboardInterrupt
        return trace
    signal.alarm(60)
    sys.settrace(trace)
    try:
        do()
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(None)
        signal.alarm(0)
        last = None
    return True


class Managed(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int * 2), ("ndim", ctypes.c_int), ("dtype", ctypes.c_uint8 * 4),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]


def from_capsule(capsule):
    """What a consumer of DLPack sees."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    m = Managed.from_address(get(capsule, b"dltensor"))
    return ctypes.string_at(m.data + m.offset, m.shape[0]), tuple(m.device), tuple(m.dtype)


class Map(unittest.TestCase):
    def test_ranges(self):
        data = os.urandom(5 * 2**20 + 77)
        p = write("ranges", data)
        with lanefs.open(p) as f:
            for off, n in (0, None), (1, 10), (4096, 2**20), (len(data) - 1, 1):
                with f.map(off, n) as m:
                    want = data[off:] if n is None else data[off:off + n]
                    self.assertEqual(bytes(m.memoryview()), want)
                    self.assertEqual(from_capsule(m.__dlpack__()), (want, (1, 0), (1, 8, 1, 0)))
                    self.assertEqual(from_capsule(m.__dlpack__(dl_device=(1, 0), copy=False))[0], want)
                    self.assertRaisesRegex(BufferError, "device", m.__dlpack__, dl_device=(2, 0))
                    self.assertRaisesRegex(BufferError, "copy", m.__dlpack__, copy=True)
                    self.assertEqual(m.__dlpack_device__(), (1, 0))
                    self.assertTrue(m.memoryview().readonly)
                    self.assertFalse(hasattr(m, "__cuda_array_interface__"))
            with self.assertRaises(OSError) as e:
                f.map(len(data) + 1, 1)
            self.assertIn(str(len(data)), str(e.exception))

    def test_views_outlive_the_mapping(self):
        data = os.urandom(2**20)
        with lanefs.open(write("views", data)) as f:
            m = f.map()
            view, capsule = m.memoryview(), m.__dlpack__()
            m.close()
            self.assertEqual(bytes(view), data)
            self.assertEqual(from_capsule(capsule)[0], data)
            with self.assertRaises(ValueError):
                m.memoryview()
        with self.assertRaisesRegex(ValueError, "closed"):
            f.map()

    def test_capsules(self):
        """What nobody has taken goes with the capsule, also where that goes for an exception; what a consumer has taken, when he gives it back."""
        from lanefs import _dlpack
        with lanefs.open(write("capsules", b"c" * 5000)) as f:
            for memory, hold in (m := f.map(), "_hold"), (b := lanefs.Buffer(f, 4096), "_life"):
                kept = weakref.ref(getattr(memory, hold))
                self.assertRaisesRegex(TypeError, "len", lambda: len(memory.__dlpack__()))
                capsule, taken = memory.__dlpack__(), memory.__dlpack__()
                memory.__dlpack__()
                at = [k for k, v in _dlpack._alive.items() if v[3] is kept()]
                self.assertEqual(len(at), 3, "the first one went, and of the last one it is not known yet")
                ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))(taken, b"used_dltensor")
                del taken
                memory.close()
                self.assertEqual([k for k, v in _dlpack._alive.items() if v[3] is kept()], at[:2])
                self.assertTrue(from_capsule(capsule)[0].startswith(b"c" if memory is m else b"\0"))
                del capsule
                managed = _dlpack._Managed.from_address(at[1])
                managed.deleter(managed)
                self.assertIsNotNone(kept())
                again = f.map() if memory is m else lanefs.Buffer(f, 10)
                self.assertIsNone(kept())
                again.close()
            self.assertFalse(b._life or m._hold)

    def test_released_views(self):  # of one view: not the memory's
        with lanefs.open(write("released", b"r" * 5000)) as f, f.map() as m, lanefs.Buffer(f, 4096) as b:
            for memory in m, b:
                with memory.memoryview() as view:
                    view[:1]
                self.assertEqual(len(memory.memoryview()), len(memory))
                memory.__dlpack__()
        with self.assertWarns(RuntimeWarning), lanefs.open(write("released", b"r", OUTSIDE), fallback=True) as f, lanefs.Buffer(f, 10) as b:
            b.memoryview().release()
            self.assertEqual(bytes(b.memoryview()), bytes(10))

    def test_generation(self):
        p = write("generation", b"a" * 8192)
        with lanefs.open(p) as f, f.map() as m:
            self.assertTrue(m.current)
            write("generation", b"b" * 8192)
            self.assertFalse(m.current)
            self.assertGreater(m.latest, m.generation)
            self.assertTrue(f.session.wait(60))
            self.assertEqual(bytes(m.memoryview()), b"a" * 8192)
            with f.map() as again:
                self.assertEqual(bytes(again.memoryview()), b"b" * 8192)

    def test_commit(self):
        p = path("commit")
        with lanefs.open(p, "w") as f, f.alloc(10000) as m:
            self.assertEqual(bytes(m.memoryview()), bytes(10000))
            m.memoryview()[:] = data = os.urandom(10000)
            f.commit(m)
            f.commit(m, 10000, 5, 100)
            for bad in (1.5,), ("0",), (0, 1.5), (0, None), (0, 0, 1.5), (0, 0, "1"):
                self.assertRaises(ValueError, f.commit, m, *bad)
        with open(p, "rb") as f:
            self.assertEqual(f.read(), data + data[5:105])
        with lanefs.open(p) as f, f.map() as m:
            with self.assertRaises(PermissionError):
                f.commit(m)
            with self.assertRaises(PermissionError):
                f.map(private=True)

    def test_elsewhere(self):
        p = write("elsewhere", b"x" * 5000, OUTSIDE)
        with self.assertRaises(lanefs.NotLaneFS) as e:
            lanefs.open(p)
        self.assertIn("elsewhere", str(e.exception))
        with self.assertRaisesRegex(lanefs.NotLaneFS, "t.safetensors' is not on"):
            lanefs.save({}, os.path.join(OUTSIDE, "t.safetensors"))
        with self.assertWarnsRegex(RuntimeWarning, "falling back"):
            f = lanefs.open(p, fallback=True)
        with f, f.map(10, 100) as m:
            self.assertEqual(bytes(m.memoryview()), b"x" * 100)
            self.assertEqual(from_capsule(m.__dlpack__())[0], b"x" * 100)
            self.assertTrue(m.current and m.memoryview().readonly)
            with self.assertRaises(PermissionError):
                f.read_into(m)
            with self.assertRaises(PermissionError):
                f.commit(m)
            with self.assertRaises(OSError):
                f.map(4990, 11)
            for do in lambda: f.map(private=True), lambda: f.alloc(10):  # as on LaneFS
                self.assertRaises(PermissionError, do)
            with lanefs.Buffer(f, 6000) as b:
                self.assertEqual(f.read_into(b, 1, 5), 4999, "fewer at the end of the file")
                self.assertEqual(bytes(b.memoryview()[:10]), bytes(5) + b"x" * 5)
                self.assertIsInstance(f.ring.write(f, b, 0, 0, 1).exception(), OSError, "not open for writing")
            write("elsewhere", b"y", OUTSIDE)
            self.assertFalse(m.current)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with lanefs.open(p, "r+", fallback=True) as f, lanefs.Buffer(f, 10) as b:
                b.memoryview()[:] = b"0123456789"
                self.assertEqual(f.write_from(b, 1, 2, 3), 3)
                self.assertEqual([x.result() for x in f.ring.write_batch(f, b, [(4, 0, 1), (5, 9, 1)])], [1, 1])
        with open(p, "rb") as f:
            self.assertEqual(f.read(), b"y23409")

    @unittest.skipUnless(HAS_LIBRARY and platform.machine() in ("x86_64", "aarch64"), "needs cc: make deps installs it")
    @unittest.skipUnless(shutil.which("cc"), "needs cc: make deps installs it")
    def test_fakeroot(self):  # and its like have functions before libc's, which know nothing of the attribute
        p, fake = write("below fakeroot", b"data"), os.path.join(OUTSIDE, "fake.so")
        subprocess.run(["cc", "-x", "c", "-shared", "-fPIC", "-o", fake, "-"], check=True, input=b"""
            #include <errno.h>
            #include <sys/types.h>
            ssize_t fgetxattr(int fd, const char *name, void *value, size_t size) { errno = ENODATA; return -1; }""")
        says = subprocess.run([sys.executable, "-c", f"""if 1:
            import lanefs, os
            f = lanefs.open({p!r})
            try:
                os.getxattr(f.fd, "system.lanefs.share")
            except OSError:
                print(bytes(f.map().memoryview()))"""], check=True, env={**os.environ, "LD_PRELOAD": fake}, stdout=subprocess.PIPE)
        self.assertEqual(says.stdout, b"b'data'\n")

    def test_not_emptied_in_vain(self):
        p = write("precious", b"data", OUTSIDE)
        with self.assertRaises(lanefs.NotLaneFS):
            lanefs.open(p, "w")
        self.assertEqual(os.path.getsize(p), 4)
        p = write("not precious", b"data")
        lanefs.open(p, "w").close()
        self.assertEqual(os.path.getsize(p), 0)

    def test_no_range(self):
        with lanefs.open(write("no range", b"data")) as f:
            for bad in ((0, 0), (-1, 2), (0, -1), (2**63, 1), (2**70, None)):
                with self.assertRaises(ValueError, msg=bad):
                    f.map(*bad)
        with lanefs.open(write("no bytes", b"")) as f, self.assertRaises(OSError):
            f.map()

    def test_fork(self):  # what a child frees, its parent keeps
        data = os.urandom(2**20)
        with lanefs.open(write("fork", data)) as f:
            m, keep = f.map(), f.map()
            b = lanefs.Buffer(f, 4096)
            f.read_into(b)
            r, w = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    answer = b"1" if bytes(m.memoryview()) == data and m.current else b"2"
                    try:
                        f.read_into(b)
                    except OSError:
                        answer += b"5"
                    m.close()  # no request on the parent's connection
                    b.close()
                    f.close()
                    with lanefs.open(path("fork")) as g, g.map() as own:
                        answer += b"3" if bytes(own.memoryview()) == data else b"4"
                    os.write(w, answer)
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            os.close(w)
            with os.fdopen(r, "rb") as said:
                self.assertEqual(said.read(), b"153")
            self.assertEqual(f.read_into(b, 1, 0, 100), 100)
            self.assertEqual(bytes(b.memoryview()[:100]), data[1:101])
            b.close()
            write("fork", b"new")
            self.assertFalse(m.current or keep.current, "the parent still holds them")
            m.close()
            keep.close()

    def test_fork_beside_threads(self):  # whose locks nobody gives back in the child
        data = os.urandom(10000)
        with lanefs.open(write("fork beside", data)) as f:
            b, s, ring = lanefs.Buffer(f, 4096), f.session, f.ring
            f.read_into(b)
            held, forked = threading.Event(), threading.Event()

            def hold():
                locks = ring._taking, ring._room, s._mutex, s._staging, lanefs._session.Session._lock, *lanefs._session.Session._opening.values(), lanefs._stage._lock, Driver._lock, f._lock
                with contextlib.ExitStack() as stack:
                    for lock in locks:
                        stack.enter_context(lock)
                    held.set()
                    forked.wait()
            t = threading.Thread(target=hold)
            t.start()
            held.wait()
            pid = os.fork()
            if pid == 0:
                signal.alarm(100)
                try:
                    for do in lambda: f.read_into(b), lambda: f.read_batch(bytearray(10), [0], [0], [10]):
                        try:
                            do()
                        except OSError:
                            continue
                        os._exit(2)
                    b.close()
                    f.close()
                    s.close()
                    if not Driver._lock.acquire(timeout=60):
                        os._exit(5)
                    with lanefs.open(path("fork beside")) as g, g.map() as own:
                        os._exit(0 if bytes(own.memoryview()) == data else 3)
                finally:
                    os._exit(4)
            forked.set()
            t.join()
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            f.read_into(b)
            b.close()

    def test_dropped_within_a_request(self):  # the garbage collector may find a mapping while a request is under way, in the same thread
        with lanefs.open(write("dropped", b"x" * 100)) as f:
            m = f.map()
            with f.session._mutex:
                m.close()
            f.map().close()
            self.assertFalse(f.session._dropped)

    def test_dropped(self):  # what nobody has any more, or was closed, is not the daemon's either: it would run out of memory, and of rings
        with lanefs.open(write("dropped memory", b"x" * 100), "r+") as f:
            for _ in range(200):
                f.map(private=True)
                f.map(private=True).close()
                lanefs.Buffer(f, 100)
                lanefs.Buffer(f, 100).close()
            for _ in range(20):
                lanefs.Ring(f).close()

    def test_interrupted(self):  # while it waits for the daemon: the next request gets its own reply, and what the first one would have had is given back
        with lanefs.open(write("interrupted", b"data" * 1000), "r+") as f:
            session, before, released = f.session, len(os.listdir("/proc/self/fd")), []
            real = session._post

            def post():
                released.append(session._dropped[0])
                return real()
            with unittest.mock.patch.object(session, "_post", post):
                for ask in (f.map, f.map, lambda: f.alloc(100), lambda: f.handle, lambda: lanefs.Ring(f), session.moved, lambda: f.map(1 << 40)):
                    with unittest.mock.patch.object(session, "_receive", side_effect=KeyboardInterrupt):
                        self.assertRaises(KeyboardInterrupt, ask)
                with f.map() as m:
                    self.assertEqual(bytes(m.memoryview()), b"data" * 1000)
                    self.assertIsNone(session.moved()["unreached"])
                    self.assertGreaterEqual(len(set(released)), 5)  # what other tests have left may go now, too
            self.assertLessEqual(len(os.listdir("/proc/self/fd")), before)

    def test_default_timeout(self):  # of the program's sockets: a call waits as long as the daemon takes, and what must not wait does not
        p = write("default timeout", b"data" * 1000)
        self.addCleanup(socket.setdefaulttimeout, socket.getdefaulttimeout())
        for seconds in 0, 60:
            socket.setdefaulttimeout(seconds)
            with unittest.mock.patch.object(lanefs.Session, "_all", {}), lanefs.open(p) as f:
                self.assertIsNone(f.session._socket.gettimeout())
                f.map().close()

    def test_other_process(self):
        data = os.urandom(3 * 2**20)
        p = write("two processes", data)
        with lanefs.open(p) as f, f.map() as m:
            out = subprocess.run([sys.executable, "-c", "import lanefs, sys, hashlib\n"
                                  "f = lanefs.open(sys.argv[1]); m = f.map(); print(m.generation, hashlib.sha256(m.memoryview()).hexdigest())",
                                  p], capture_output=True, text=True, check=True)
            import hashlib
            self.assertEqual(out.stdout.split(), [str(m.generation), hashlib.sha256(data).hexdigest()])


    def test_closed_session(self):
        with lanefs.open(write("closed session", b"x")) as f:
            s = f.session
            before = len(os.listdir("/proc/self/fd"))
            s.close()
            self.assertEqual(len(os.listdir("/proc/self/fd")), before - 2, "its socket and its event")
            s.close()
            self.assertTrue(s.gone)
            for do in s.wait, s.fileno, f.map:
                self.assertRaises(OSError, do)
        with lanefs.open(path("closed session")) as f:
            self.assertIsNot(f.session, s)
            f.map().close()

    def test_sessions_of_threads(self):  # one that ends is not found by another thread
        p, failures = write("threads", b"x" * 100), []

        def work():
            try:
                for _ in range(100):
                    lanefs.open(p).close()
            except Exception as e:
                failures.append(e)
        threads = [threading.Thread(target=work) for _ in range(4)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        finally:
            sys.setswitchinterval(interval)
        self.assertEqual(failures, [])


class Rings(unittest.TestCase):
    def test_read_and_write(self):
        data = os.urandom(4 * 2**20 + 13)
        p = write("ring", data)
        with lanefs.open(p, "r+") as f, lanefs.Buffer(f, 6 * 2**20) as b:
            self.assertEqual(f.read_into(b), len(data), "fewer at the end of the file")
            self.assertEqual(bytes(b.memoryview()[:len(data)]), data)
            for off, start, n in (0, 0, 1), (1, 2, 3), (4095, 1, 4098), (511, 3 * 2**20, 70001), (8192, 4, 2**20):
                self.assertEqual(f.read_into(b, off, start, n), n)
                self.assertEqual(bytes(b.memoryview()[start:start + n]), data[off:off + n], (off, start, n))
            fresh = os.urandom(2**20)
            b.memoryview()[5:5 + len(fresh)] = fresh
            with f.map() as m:
                self.assertEqual(f.write_from(b, 777, 5, len(fresh)), len(fresh))
                self.assertFalse(m.current)
            f.sync()
            with open(p, "rb") as g:
                self.assertEqual(g.read(), data[:777] + fresh + data[777 + len(fresh):])

    def test_many(self):
        block, blocks = 4096, 2000
        data = b"".join(struct.pack("<I", i) * (block // 4) for i in range(blocks))
        p = write("many", data)
        with lanefs.open(p) as f, lanefs.Buffer(f, block * blocks) as b:
            futures = f.ring.read_batch(f, b, [((i * 7919 % blocks) * block, i * block, block) for i in range(blocks)])
            for i, future in enumerate(futures):
                self.assertEqual(future.result(60), block)
                self.assertEqual(struct.unpack_from("<I", b.memoryview(), i * block)[0], i * 7919 % blocks)

    def test_errors(self):
        p = write("errors", b"z" * 8192)
        with lanefs.open(p) as f, lanefs.Buffer(f, 4096) as b, f.map() as m:
            ring = f.ring
            bad = ring.submit([(1, 999, b.handle, 0, 0, 1), (1, f.handle, 999, 0, 0, 1), (2, f.handle, b.handle, 0, 0, 1),
                               (9, f.handle, b.handle, 0, 0, 1), (1, f.handle, b.handle, 0, b.size, 1), (1, f.handle, b.handle, 0, 1, 2**63),
                               (1, f.handle, m.handle, 0, 0, 1)])
            want = [9, 9, 13, 95, 22, 22, 13]
            self.assertEqual([x.exception(60).errno for x in bad], want)
            self.assertEqual(ring.read(f, b, 0, 0, 4096).result(60), 4096, "one that is good, after those that are not")
            self.assertEqual(f.read_into(b, 8192, 0, 10), 0)
            self.assertEqual((f.read_into(b, 0, 0, 0), f.read_into(b, 0, len(b))), (0, 0))
            self.assertRaises(PermissionError, f.write_from, b)
            for bad in (-1, 1), (0, -1), (0, len(b) + 1), (len(b), 1), (1, len(b)):
                self.assertRaises(ValueError, f.read_into, b, 0, *bad)
                self.assertRaises(ValueError, ring.read, f, b, 0, *bad)

    def test_closed_ring(self):  # who waits for room in it is told
        with lanefs.open(write("closed ring", bytes(4096))) as f, lanefs.Buffer(f, 4096) as b:
            ring = lanefs.Ring(f, 4)
            said, closing = [], threading.Thread(target=ring.close)

            def wait():
                try:
                    ring.read_batch(f, b, [(0, 0, 512)] * 5)
                except OSError as e:
                    said.append(str(e))
            waits = threading.Thread(target=wait, daemon=True)
            with ring._taking:  # so that nothing makes room
                waits.start()
                while len(ring._flying) < 4:
                    time.sleep(0.001)
                closing.start()
                waits.join(60)
                self.assertEqual(said, ["the ring is closed"])
            closing.join()
            for do in (lambda: ring.read(f, b), lambda: ring.sync(f), lambda: ring.read_batch(f, b, [(0, 0, 1)]), lambda: ring.submit([(1, 1, 1, 0, 0, 1)])):
                self.assertRaisesRegex(OSError, "the ring is closed", do)
            ring.close()

    def test_refused_before(self):  # an invalid request takes no entry of the ring, and fails no other
        with lanefs.open(write("refused", b"z" * 8192)) as f, lanefs.Buffer(f, 4096) as b:
            for _ in range(2 * f.ring.entries):
                for bad in ((-1, 0, 1), (0, -1, 1), (0, 0, 2**70)):
                    with self.assertRaises(ValueError):
                        f.read_into(b, *bad)
                    with self.assertRaises(ValueError):
                        f.ring.read_batch(f, b, [(0, 0, 1), (bad[0], bad[1] - 2**20, bad[2])])
            self.assertEqual(f.read_into(b), 8192)

    def test_futures(self):
        p = write("futures", b"z" * 8192)
        f = lanefs.open(p)
        b = lanefs.Buffer(f, 4096)
        futures = f.ring.read_batch(f, b, [(0, 0, 4096)] * 100)
        self.assertFalse(any(x.cancel() for x in futures), "what the daemon does is not taken back")
        self.assertEqual({x.result(60) for x in futures}, {4096})
        closed = threading.Event()

        def close(_):
            f.close()
            closed.set()
        f.ring.read(f, b).add_done_callback(close)
        self.assertTrue(closed.wait(60))
        self.assertIsNone(f.fd)
        b.close()

    def test_callbacks_submit(self):  # more than the ring has room for: the thread that they are called by makes it itself
        with lanefs.open(write("callbacks", b"z" * 4096)) as f, lanefs.Buffer(f, 4096) as b, lanefs.Ring(f, 4) as ring:
            called = threading.Event()

            def more(future):
                futures.extend(ring.read_batch(f, b, [(0, 0, 512)] * 50))
                futures.append(f.ring.read(f, b, 0, 0, 512))
                called.set()
            futures = []
            with ring._taking:  # or it may have ended before it has a callback
                first = threading.Thread(target=lambda: ring.read(f, b, 0, 0, 512).add_done_callback(more))
                first.start()
                first.join()
            self.assertTrue(called.wait(60))
            self.assertEqual([x.result(60) for x in futures], [512] * 51)

    def test_interrupted(self):  # while it polls: what it has taken of other threads' is told, and memory and ring are good
        with lanefs.open(write("interrupted ring", b"z" * 4096)) as f, lanefs.Buffer(f, 4096) as b:
            ring, others = f.ring, []
            words, split = ring._words, ring._split

            def now():
                if not others:  # both have ended when it looks first
                    other = threading.Thread(target=lambda: others.append(ring.read(f, b, 0, 512, 512)))
                    other.start()
                    other.join()
                    while words[32] - words[48] & 0xFFFFFFFF < 2:
                        pass
                return 0

            def and_interrupt(*args):
                split(*args)
                raise KeyboardInterrupt
            with unittest.mock.patch("lanefs._ring.time.monotonic_ns", now), unittest.mock.patch.object(ring, "_split", and_interrupt):
                self.assertRaises(KeyboardInterrupt, f.read_into, b, 0, 0, 512)
            self.assertEqual(others[0].result(60), 512)
            self.assertEqual(words[80], 1, "the daemon wakes the reaper")
            self.assertEqual(f.read_into(b), 4096)

    def test_handler(self):  # of a signal, in the middle of a call of its thread: it does not wait for itself, nor for the reaper, which waits for that
        with lanefs.open(write("handler", b"z" * 4096)) as f, lanefs.Buffer(f, 4096) as b:
            ring = f.ring
            for lock in ring._taking, ring._lock:
                for do in lambda: f.read_into(b), lambda: ring.read(f, b), lambda: ring.read_batch(f, b, [(0, 0, 1)]), lambda: ring.sync(f):
                    with self.assertRaises(OSError) as e, lock:
                        do()
                    self.assertEqual(e.exception.errno, errno.EDEADLK)
            self.assertEqual(f.read_into(b), 4096)

    def test_interrupted_anywhere(self):
        """At each line of a read and of closing a file: the ring goes on, and no descriptor is closed twice."""
        with lanefs.open(write("interrupted anywhere", b"z" * 4096)) as f, lanefs.Buffer(f, 4096) as b:
            f.read_into(b)

            def do():
                f.read_into(b, 0, 0, 512)
                g.close()
            for n in itertools.count(1):
                g = lanefs.open(path("interrupted anywhere"))
                ended = interrupted_at(n, do)
                self.assertEqual(f.read_into(b), 4096)
                g.close()
                if ended:
                    break
            self.assertEqual(f.ring.read(f, b, 0, 0, 512).result(60), 512)
            self.assertGreater(n, 80)

    def test_interrupted_gets(self):
        """At each line of getting memory, a ring or a handle: no descriptor stays, and nothing that the daemon would give eight times only, or until its memory is used up."""
        with lanefs.open(write("interrupted gets", b"z" * 4096), "r+") as f:
            f.handle
            f.map().close()
            rings = []
            for do in f.map, lambda: f.alloc(4 << 20), lambda: rings.append(lanefs.Ring(f)), lambda: lanefs.Buffer(f, 100), lambda: g.handle:
                g, before = lanefs.open(path("interrupted gets")), len(os.listdir("/proc/self/fd"))
                for n in itertools.count(1):
                    if interrupted_at(n, do):
                        break
                    self.assertEqual(len(os.listdir("/proc/self/fd")), before, f"line {n}")
                    g._handle = None  # gives it back
                self.assertGreater(n, 25)
                g.close()
            rings[0].close()
            f.map().close()
            self.assertFalse(f.session._dropped)
            signal.alarm(60)
            rings = []
            while len(rings) < 8:  # what was given back counts until the daemon has ended it, beside other requests
                try:
                    rings.append(lanefs.Ring(f))
                except OSError:
                    time.sleep(0.01)
            signal.alarm(0)
            for ring in rings:
                ring.close()

    def test_nothing_left(self):  # of memory that cannot be had, and of rings without a descriptor, or a thread, for what they need besides
        with lanefs.open(write("nothing left", b"z" * 4096)) as f:
            f.handle
            before = len(os.listdir("/proc/self/fd"))
            self.assertRaises(OSError, lanefs.Buffer, f, 1 << 60)
            for _ in range(100):
                with unittest.mock.patch("os.pipe", side_effect=OSError(errno.EMFILE, "no more")):
                    self.assertRaises(OSError, lanefs.Ring, f)
                with unittest.mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
                    self.assertRaises(RuntimeError, lanefs.Ring, f)
                with unittest.mock.patch("lanefs._wire.mapped", side_effect=OSError(errno.ENOMEM, "no more")):
                    self.assertRaises(OSError, lanefs.Ring, f)
            begin = threading.Thread.start

            def interrupted(thread):
                begin(thread)
                raise KeyboardInterrupt
            for _ in range(20):
                with unittest.mock.patch("threading.Thread.start", interrupted):
                    self.assertRaises(KeyboardInterrupt, lanefs.Ring, f)
                self.assertFalse([t for t in threading.enumerate() if t.name == "lanefs-ring"])
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)
            lanefs.Ring(f).close()

    def test_no_descriptors(self):  # for what the daemon gives: it is given back. A session has 8 rings at most
        with lanefs.open(write("no descriptors", b"z" * 4096)) as f:
            f.handle
            before = len(os.listdir("/proc/self/fd"))
            was = resource.getrlimit(resource.RLIMIT_NOFILE)
            for left, do in (0, f.map), (0, lambda: lanefs.Ring(f)), (1, lambda: lanefs.Ring(f)), (2, lambda: lanefs.Ring(f)):
                for _ in range(20):
                    held = [os.dup(f.fd) for _ in range(left + 1)]
                    resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1], was[1]))
                    for fd in held:
                        os.close(fd)
                    try:
                        with self.assertRaises(OSError) as e:
                            do()
                    finally:
                        resource.setrlimit(resource.RLIMIT_NOFILE, was)
                    self.assertEqual(e.exception.errno, errno.EMFILE)
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)
            rings = [lanefs.Ring(f) for _ in range(8 if f.session._stage is None else 7)]
            for ring in rings:
                ring.close()
            f.map().close()

    def test_other_sessions(self):  # whose handles are something else's here
        f = lanefs.open(write("one session", b"1" * 4096), "r+")
        with unittest.mock.patch.object(lanefs.Session, "_all", {}):
            g = lanefs.open(write("another session", b"2" * 4096), "r+")
        self.assertIsNot(f.session, g.session)
        with f, g, lanefs.Buffer(f, 4096) as b, lanefs.Buffer(g, 4096) as c, f.map(private=True) as m, g.map(private=True) as n:
            self.assertEqual((f.read_into(b), g.read_into(c), f.read_into(m), g.read_into(n)), (4096,) * 4)
            for do in (lambda: f.read_into(c), lambda: f.write_from(c), lambda: f.read_into(n), lambda: f.write_from(n), lambda: g.write_from(b),
                       lambda: f.ring.read(g, b), lambda: f.ring.read(f, c), lambda: f.ring.write(f, n), lambda: f.ring.sync(g),
                       lambda: f.ring.read_batch(f, c, [(0, 0, 1)]), lambda: f.ring.read_batch(g, b, [(0, 0, 1)]), lambda: f.ring.write_batch(f, c, [(0, 0, 1)]),
                       lambda: f.ring.write_batch(g, b, [(0, 0, 1)]), lambda: f.commit(n), lambda: g.commit(m)):
                self.assertRaisesRegex(ValueError, "session", do)
            f.commit(m)
            g.commit(n)
            self.assertEqual((bytes(b.memoryview()[:4096]), bytes(m.memoryview())), (b"1" * 4096,) * 2)
            self.assertEqual((bytes(c.memoryview()[:4096]), bytes(n.memoryview())), (b"2" * 4096,) * 2)
        for name, want in ("one session", b"1"), ("another session", b"2"):
            with open(path(name), "rb") as h:
                self.assertEqual(h.read(), want * 4096)

    def test_tensors_outlive_the_buffer(self):
        data = os.urandom(4096)
        with lanefs.open(write("outlive", data)) as f, lanefs.Buffer(f, 4096) as b:
            f.read_into(b)
            capsule = b.__dlpack__()
        self.assertEqual(from_capsule(capsule)[0][:4096], data)
        with self.assertRaises(ValueError):
            b.memoryview()

    def test_threads(self):
        data = os.urandom(2**20)
        p = write("threads", data)
        errors = []
        with lanefs.open(p) as f, lanefs.Buffer(f, 8 * 4096) as b:
            def work(k):
                try:
                    for i in range(100):
                        off = (i * 8 + k) * 997 % (len(data) - 4096)
                        if k % 2:
                            f.ring.read(f, b, off, k * 4096, 4096).result()
                        else:  # takes the completions of others, too
                            f.read_into(b, off, k * 4096, 4096)
                        if bytes(b.memoryview()[k * 4096:(k + 1) * 4096]) != data[off:off + 4096]:
                            errors.append((k, i))
                except Exception as e:
                    errors.append(e)
            threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        self.assertEqual(errors, [])


    def test_sleeping_daemon(self):  # a request as it goes to sleep is no request that it sleeps through
        with lanefs.open(write("asleep", bytes(4096))) as f, lanefs.Buffer(f, 4096) as b:
            for i in range(3000):
                if i % 3 == 0:
                    self.assertEqual(f.ring.read(f, b, 0, 0, 512).result(100), 512)
                else:
                    self.assertEqual(f.read_into(b, 0, 0, 512), 512)
                end = time.perf_counter_ns() + 30_000 + i % 100 * 400  # the daemon polls for 50 us
                while time.perf_counter_ns() < end:
                    pass


ENDS = """if 1:
    import lanefs, sys, threading, time
    f = lanefs.open(sys.argv[1])
    b = lanefs.Buffer(f, 4096)
    f.read_into(b)
    there = {"time": time}  # a thread that ended so keeps its globals: others
    exec("def hold(lock, held):\\n with lock:\\n  held.set()\\n  time.sleep(1000)", there)
    if sys.argv[2]:
        held = threading.Event()
        threading.Thread(target=there["hold"], args=(eval(sys.argv[2]), held), daemon=True).start()
        held.wait()

    class Late:
        def __init__(self):
            self.use = f, b, f.ring

        def __del__(self):  # when all threads but this one are no more
            file, buffer, ring = self.use
            for do in lambda: file.read_into(buffer), lambda: ring.read(file, buffer):
                try:
                    do()
                except OSError:
                    print("late")
            buffer.close()
            ring.close()
            file.close()
    late = Late()
"""


KEPT = """if 1:
    import atexit, builtins, sys
    class Cycle: pass
    c = Cycle()
    c.c, builtins.kept = c, [c]
    def late(f):
        f.read_into(bytearray(10))
    import lanefs
    c.file = lanefs.open(sys.argv[1])
    atexit.register(late, c.file)
    if sys.argv[2]:
        del builtins.kept
"""


class End(unittest.TestCase):
    def test_no_warnings(self):
        """Of what globals, cycles and other modules have at the end."""
        p = write("warnings", b"x" * 4096)
        for cycle in "", "1":
            said = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", KEPT, p, cycle], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
            self.assertEqual((said.stdout, said.returncode), ("", 0), cycle)

    def test_interpreter(self):
        """It ends its threads before what globals have: none of them is waited for, nor a lock that one of them had."""
        p = write("interpreter", b"x" * 4096)
        for held in "", "f.ring._taking", "f.ring._room", "f.session._mutex":
            said = subprocess.run([sys.executable, "-c", ENDS, p, held], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
            self.assertEqual((said.stdout, said.returncode), ("late\n" * 2, 0), held)


class BadInput(unittest.TestCase):
    def test_copies(self):  # which would close what they share, and in another process mean something else
        with lanefs.open(write("copies", b"x" * 4096), "r+") as f:
            for what in f, f.map(), lanefs.Buffer(f, 4096), f.session, f.ring:
                for call in copy.copy, copy.deepcopy, pickle.dumps:
                    self.assertRaisesRegex(TypeError, "neither copied nor sent", call, what)

    def each(self, f):
        b = bytearray(10)
        yield from (lambda: f.size, f.sync, lambda: f.read_into(b), lambda: f.write_from(b), lambda: f.read_batch(b, [0], [0], [1]),
                    lambda: f.write_batch(b, [0], [0], [1]), lambda: asyncio.run(f.read_batch_async(b, [0], [0], [1])))

    def test_closed(self):
        data = os.urandom(5000)
        for where in DIR, OUTSIDE:
            path = write("closed", data, where)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                f, other = lanefs.open(path, "r+", fallback=True), lanefs.open(path, fallback=True)
            m, b = f.map(), lanefs.Buffer(f, 4096)
            ring = f.ring
            f.close()
            f.close()
            for i, do in enumerate(self.each(f)):
                if HAS_LIBRARY or where == OUTSIDE or i < 2:
                    self.assertRaisesRegex(ValueError, "closed", do)
            for do in (f.map, lambda: f.alloc(10), lambda: f.commit(m), lambda: f.pin(), lambda: ring.read(f, b), lambda: ring.sync(f), lambda: f.read_into(b)):
                self.assertRaises((ValueError, lanefs.NotLaneFS), do)
            self.assertEqual(bytes(m.memoryview()), data)  # what was mapped stays
            self.assertEqual((other.size, other.read_into(b, length=5000 if len(b) >= 5000 else 4096)), (5000, min(len(b), 5000)))  # the other open file is its own
            self.assertEqual(bytes(b.memoryview()[:4096]), data[:4096])
            m.close()
            b.close()
            for do in (m.memoryview, b.memoryview, m.__dlpack__, b.__dlpack__, lambda: other.read_into(b), lambda: other.read_into(m)):
                self.assertRaisesRegex(ValueError, "closed", do)
            other.close()

    def test_numbers(self):  # that a message of the protocol has no room for
        with lanefs.open(write("numbers", b"z" * 4096), "r+") as f:
            for bad in (-1, 1 << 33, 1.5, "x", None, 3):
                with self.assertRaises(OSError) as e:
                    lanefs.Ring(f, bad)
                self.assertEqual(e.exception.errno, errno.EINVAL)
            for bad in (-1, 1 << 32, 1.5, "x"):
                self.assertRaisesRegex(ValueError, "user ID", f.pin, True, bad)

    def test_integers(self):
        """Of other types than int, as NumPy's are: what they stand for, whatever their own sums are. What is none is refused in words."""
        class Index:
            def __init__(self, n):
                self.n = n

            def __index__(self):
                return self.n

        class Narrow(int):  # of 8 bits
            def __add__(self, other):
                return Narrow((int(self) + other + 128) % 256 - 128)
            __radd__ = __add__
        data = os.urandom(4096)
        for where in DIR, OUTSIDE:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                f = lanefs.open(write("integers", data, where), "r+", fallback=True)
            b, m, five = lanefs.Buffer(f, Index(4096)), f.alloc(Index(130)), Index(5)
            view = b.memoryview()
            for do in (lambda: f.read_into(b, five, five, five), lambda: f.ring.read(f, b, five, five, five).result(60), lambda: f.ring.read_batch(f, b, [(five, five, five)])[0].result(60)):
                view[:20] = bytes(20)
                self.assertEqual((do(), bytes(view[:20])), (5, bytes(5) + data[5:10] + bytes(10)))
            self.assertEqual((f.write_from(b, five, five, five), f.ring.write_batch(f, b, [(five, five, five)])[0].result(60)), (5, 5))
            with f.map(five, five) as part:
                self.assertEqual(part.memoryview(), data[5:10])
            f.commit(m, Index(4000), five, five)
            self.assertEqual((f.read_into(b, five, Index(len(b) - 5)), f.read_into(b, Index(4000), 0, 6), bytes(view[:6])), (5, 6, bytes(5) + data[4005:4006]))
            for n in Narrow(120), Narrow(127):
                self.assertRaisesRegex(ValueError, "at 1", f.commit, m, 0, n, n)
                self.assertRaisesRegex(ValueError, "at 1", f.read_into, m, 0, n, n)
            for bad in 8.0, "8", math.nan, 8j, [8], b"8":
                for do in (lambda: f.read_into(b, 0, bad), lambda: f.read_into(b, 0, 0, bad), lambda: f.write_from(b, 0, bad), lambda: f.commit(m, bad), lambda: f.commit(m, 0, bad), lambda: f.map(bad),
                           lambda: f.map(0, bad), lambda: f.alloc(bad), lambda: lanefs.Buffer(f, bad), lambda: f.ring.read_batch(f, b, [(0, bad, 1)])):
                    self.assertRaisesRegex(ValueError, "no integer", do)
                self.assertRaises((ValueError, TypeError), f.read_into, b, bad)
            f.close()

    @unittest.skipUnless(HAS_LIBRARY, "the C library needs cc: make deps installs it")
    def test_streams_and_ends(self):
        data = os.urandom(5000)
        with lanefs.open(write("ends", data)) as f:
            b = bytearray(b"x" * 6000)
            with self.assertRaises(OSError) as e:
                f.read_into(b, stream=77)  # memory of the CPU is on no stream
            self.assertEqual((e.exception.errno, bytes(b)), (errno.EINVAL, b"x" * 6000))
            self.assertEqual((f.read_into(b, 4000, 0, 2000), bytes(b[:1000])), (1000, data[4000:]))
            self.assertEqual(f.read_into(b, 5000), 0)
            self.assertEqual(f.read_into(b, 1 << 50, length=10), 0)
            self.assertEqual(list(f.read_batch(b, [4990, 0, 9000], [0, 100, 200], [20, 20, 20])), [10, 20, 0])
            self.assertRaises((ValueError, OSError), f.read_into, b, 1 << 63, 0, 10)
            self.assertRaises(TypeError, f.read_into, object())
            with self.assertRaises(OSError) as e:
                f.write_from(b, length=10)
            self.assertEqual(e.exception.errno, errno.EACCES)


class Safetensors(unittest.TestCase):
    tensors = {"w": ("F32", [2, 3], struct.pack("<6f", *range(6))), "b": ("BF16", [4], bytes(range(8))), "s": ("I64", [], struct.pack("<q", -5)),
               "empty": ("F16", [0, 7], b"")}

    def test_save_links(self):
        import array
        p, one = path("save.safetensors"), lanefs.load_safetensors(write("one.safetensors", safetensors(self.tensors)), framework="none")
        for bad in {"__metadata__": one["w"]}, {5: one["w"]}, {"a": array.array("f", [1])}:
            self.assertRaises(ValueError, lanefs.save, bad, p)
        self.assertFalse(os.path.exists(p))
        os.symlink("save.safetensors", path("link.safetensors"))
        for to in path("link.safetensors"), os.fsencode(path("link.safetensors")):  # the link stays
            lanefs.save({to[-4:] if isinstance(to, str) else "b": one["w"]}, to)
            self.assertTrue(os.path.islink(to))
            self.assertEqual(list(lanefs.load_safetensors(p, framework="none")), ["sors" if isinstance(to, str) else "b"])
        self.assertEqual([n for n in os.listdir(DIR) if n.endswith(".tmp")], [])

    def test_save_no_file(self):
        """A name that no file can have, of what is not there, a file and a directory, is the kernel's error, and makes nothing."""
        one = lanefs.load_safetensors(write("one.safetensors", safetensors(self.tensors)), framework="none")
        os.makedirs(path("folder"), exist_ok=True)
        before = sorted(os.listdir(DIR))
        for name in "nothing/", "nothing/.", "one.safetensors/", "one.safetensors/.", "folder/", "folder/..", "folder":
            with self.assertRaises(OSError) as raised, open(path(name), "wb"):
                pass
            with self.assertRaises(OSError, msg=name) as e:
                lanefs.save({"a": one["w"]}, path(name))
            self.assertEqual(e.exception.errno, raised.exception.errno, name)
        self.assertRaises(FileNotFoundError, lanefs.save, {"a": one["w"]}, "")
        self.assertEqual(sorted(os.listdir(DIR)), before)

    def test_load(self):
        p = write("load.safetensors", safetensors(self.tensors, {"who": "test"}))
        t = lanefs.load_safetensors(p, framework="none")
        self.assertEqual(t.metadata, {"who": "test"})
        self.assertEqual({k: (v.dtype, list(v.shape), bytes(v.memoryview())) for k, v in t.items()}, self.tensors)
        self.assertTrue(t.current)
        write("load.safetensors", b"other")
        self.assertFalse(t.current)

    def test_save(self):
        p = write("from.safetensors", safetensors(self.tensors))
        t = lanefs.load_safetensors(p, framework="none")
        lanefs.save(t, path("to.safetensors"), {"step": 3})
        again = lanefs.load_safetensors(path("to.safetensors"), framework="none")
        self.assertEqual(again.metadata, {"step": "3"})
        self.assertEqual({k: (v.dtype, list(v.shape), bytes(v.memoryview())) for k, v in again.items()}, self.tensors)
        before = again.generation
        lanefs.save(t, path("to.safetensors"))
        self.assertFalse(again.current, "a new checkpoint takes the old one's place")
        self.assertGreater(lanefs.load_safetensors(path("to.safetensors"), framework="none").generation, before)
        with self.assertRaisesRegex(ValueError, "not list"):
            lanefs.save({"a": [1]}, path("to.safetensors"))
        self.assertEqual([n for n in os.listdir(DIR) if n.endswith(".tmp")], [])

    def test_fallback(self):
        p = write("x.safetensors", safetensors(self.tensors), OUTSIDE)
        with self.assertRaises(lanefs.NotLaneFS):
            lanefs.load_safetensors(p)
        with self.assertWarns(RuntimeWarning):
            t = lanefs.load_safetensors(p, framework="none", fallback=True)
        self.assertEqual(bytes(t["w"].memoryview()), self.tensors["w"][2])

    def test_malformed(self):
        good = safetensors(self.tensors)
        for name, data in {"empty": b"", "short": good[:7], "long header": struct.pack("<Q", 2**63) + good[8:], "no JSON": struct.pack("<Q", 8) + b"xxxxxxxx",
                           "list": struct.pack("<Q", 2) + b"[]", "cut": good[:-1]}.items():
            p = write("malformed", data)
            with self.assertRaises((ValueError, OSError), msg=name):
                lanefs.load_safetensors(p, framework="none")
        for bad in ({"w": ("F99", [1], b"abcd")}, {"w": ("F32", [2], b"abcd")}, {"w": ("F32", [-1, -1], b"abcd")}, {"w": ("F32", ["1"], b"abcd")}):
            with self.assertRaises(ValueError):
                lanefs.load_safetensors(write("malformed", safetensors(bad)), framework="none")
        tensor = lambda start, end, shape=(1,): {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        one = json.dumps({"a": tensor(0, 4)})
        for name, header, size in (
                ("before the data", {"a": tensor(-4, 0)}, 4), ("beyond the file", {"a": tensor(0, 8, (2,))}, 4), ("backwards", {"a": tensor(4, 0)}, 4),
                ("overlap", {"a": tensor(0, 12, (3,)), "b": tensor(4, 8)}, 12), ("the same", {"a": tensor(0, 4), "b": tensor(0, 4)}, 4),
                ("hole", {"a": tensor(0, 4), "b": tensor(8, 12)}, 12), ("hole before", {"a": tensor(4, 8)}, 8), ("bytes of none", {"a": tensor(0, 4)}, 8),
                ("twice", one[:-1] + "," + one[1:], 4), ("floats", {"a": tensor(0.0, 4.0)}, 4), ("booleans", {"a": tensor(False, 4, (True,))}, 4),
                ("three offsets", {"a": {**tensor(0, 4), "data_offsets": [0, 4, 8]}}, 8), ("shape is text", {"a": {**tensor(0, 4), "shape": ""}}, 4),
                ("half a byte", {"a": {**tensor(0, 1), "dtype": "F4"}}, 1), ("half a byte more", {"a": {**tensor(0, 1, [3]), "dtype": "F4"}}, 1),
                ("large", {"a": tensor(0, 0, (0, 2**64))}, 0), ("digits", '{"a":%s}' % ("9" * 5000), 0), ("deep", "[" * 200000, 0), ("no UTF-8", b"{\xff}", 0),
                ("metadata", {"__metadata__": [1], "a": tensor(0, 4)}, 4), ("number", {"__metadata__": {"a": 1}, "a": tensor(0, 4)}, 4)):
            text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
            p = write("malformed", struct.pack("<Q", len(text)) + text + bytes(size))
            with self.assertRaises(ValueError, msg=name):
                lanefs.load_safetensors(p, framework="none")

    def test_small_numbers(self):  # less than a byte each
        want = {"f4": ("F4", [2, 3], b"abc"), "f6": ("F6_E2M3", [4], b"def"), "g6": ("F6_E3M2", [2, 2], b"ghi")}
        t = lanefs.load_safetensors(write("small numbers", safetensors(want)), framework="none")
        self.assertEqual({k: (v.dtype, list(v.shape), bytes(v.memoryview())) for k, v in t.items()}, want)

    def test_larger_than_the_stage(self):  # and with nothing in it
        a, b = os.urandom(5 * 2**20 + 3), os.urandom(2**20)
        t = lanefs.load_safetensors(write("large", safetensors({"a": ("U8", [len(a)], a), "b": ("U8", [len(b)], b)})), "none")
        with unittest.mock.patch("lanefs._safetensors._STAGE", 1):  # a granule then
            lanefs.save(t, path("saved by pieces"))
        t = lanefs.load_safetensors(path("saved by pieces"), "none")
        self.assertEqual({name: bytes(v.memoryview()) for name, v in t.items()}, {"a": a, "b": b})
        lanefs.save({}, path("of nothing"))
        self.assertEqual(lanefs.load_safetensors(path("of nothing"), "none"), {})
        self.assertEqual(lanefs.load_safetensors(write("by hand, of nothing", safetensors({})), "none"), {})

    def test_save_interrupted(self):  # while its file is made: nothing is left of it
        t = lanefs.load_safetensors(write("from", safetensors(self.tensors)), framework="none")
        before = len(os.listdir("/proc/self/fd"))
        with unittest.mock.patch("fcntl.flock", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, lanefs.save, t, path("save interrupted"))
        self.assertEqual([n for n in os.listdir(DIR) if n.startswith("save interrupted")], [])
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_save_interrupted_anywhere(self):  # at each line: no descriptor stays, and at most a name that the next save deletes
        t = lanefs.load_safetensors(write("from", safetensors(self.tensors)), framework="none")
        p = path("save interrupted anywhere")
        lanefs.save(t, p)
        before = len(os.listdir("/proc/self/fd"))
        for n in itertools.count(1):
            ended = interrupted_at(n, lambda: lanefs.save(t, p))
            self.assertEqual(len(os.listdir("/proc/self/fd")), before, f"line {n}")
            if ended:
                break
            self.assertTrue(os.path.exists(p))
        self.assertGreater(n, 50)
        self.assertEqual([n for n in os.listdir(DIR) if n.startswith("save interrupted anywhere")], ["save interrupted anywhere"])

    def test_descriptors(self):
        from lanefs._descriptors import Descriptors
        before = len(os.listdir("/proc/self/fd"))
        with Descriptors() as fds:
            fd, slot = fds.get(os.open, "/dev/null", os.O_RDONLY), fds.slot()
            self.assertRaises(OSError, fds.get, os.open, "/dev/null/none", os.O_RDONLY)
            self.assertEqual((len(fds), len(os.listdir("/proc/self/fd"))), (1, before + 1))
            slot.value = os.dup(fd)
            fds.slot()
            self.assertEqual(len(fds), 2)
        for _ in range(2):
            self.assertEqual((len(fds), len(os.listdir("/proc/self/fd"))), (0, before))
            fds.close()
        fds.get(os.dup, 0)
        del fds
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_saved_at_once(self):  # by threads, or by programs of the same number in containers of their own: the last one's file, and no error
        p, failures, n = path("at once.safetensors"), [], 100000

        def save(i):
            t = lanefs.load_safetensors(write(f"from {i}", safetensors({"w": ("U8", [n], bytes([i]) * n)})), framework="none")
            try:
                for _ in range(5):
                    lanefs.save(t, p)
            except Exception as e:
                failures.append(e)
        threads = [threading.Thread(target=save, args=(i,)) for i in range(1, 5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])
        got = bytes(lanefs.load_safetensors(p, framework="none")["w"].memoryview())
        self.assertEqual(got, got[:1] * n)

    def test_save_killed(self):  # the old file is there, and the next save deletes what the killed one has written
        p = path("killed.safetensors")
        lanefs.save(lanefs.load_safetensors(write("from", safetensors(self.tensors)), framework="none"), p)
        program = "import lanefs, os, sys; t = lanefs.load_safetensors(sys.argv[1], framework='none'); os.rename = lambda *_: os.kill(os.getpid(), 9); lanefs.save(t, sys.argv[1])"
        left = lambda: [n for n in os.listdir(DIR) if n.startswith("killed.safetensors.")]
        for _ in range(2):
            self.assertEqual(subprocess.run([sys.executable, "-c", program, p]).returncode, -9)
            self.assertEqual(len(left()), 1)
        t = lanefs.load_safetensors(p, framework="none")
        self.assertEqual({k: bytes(v.memoryview()) for k, v in t.items()}, {k: v[2] for k, v in self.tensors.items()})
        lanefs.save(t, p)
        self.assertEqual(left(), [])

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("needs NumPy: apt-get install python3-numpy")
        t = lanefs.load_safetensors(write("np.safetensors", safetensors(self.tensors)), framework="numpy")
        self.assertEqual(t["w"].tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(t["s"].item(), -5)
        self.assertFalse(t["w"].flags.writeable)
        self.assertIsInstance(t["b"], lanefs.Tensor)
        lanefs.save({"w": t["w"], "s": t["s"]}, path("np2.safetensors"))
        again = lanefs.load_safetensors(path("np2.safetensors"), framework="numpy")
        self.assertTrue(numpy.array_equal(again["w"], t["w"]) and again["s"].shape == ())

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs PyTorch: pip install torch")
        t = lanefs.load_safetensors(write("pt.safetensors", safetensors(self.tensors)))
        self.assertEqual(t["w"].tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(t["b"].dtype, torch.bfloat16)
        lanefs.save(dict(t), path("pt2.safetensors"))
        again = lanefs.load_safetensors(path("pt2.safetensors"))
        self.assertTrue(all(torch.equal(t[k], again[k]) for k in t))


class Tensor:
    """What this package uses of PyTorch's, over the CPU's memory."""

    is_cuda = False
    device = types.SimpleNamespace(index=0)

    def __init__(self, memory, at, shape=None, stride=(1,)):
        self._memory, self._at = memory, at
        self.shape, self._stride = shape or ((len(memory) - at) // 4,), stride

    def numel(self):
        return math.prod(self.shape)

    def stride(self):
        return self._stride

    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + self._at

    def storage_offset(self):
        return self._at // 4

    def element_size(self):
        return 4

    def untyped_storage(self):
        return self

    def nbytes(self):
        return len(self._memory)


@unittest.skipUnless(os.environ.get("LANEFS_LIBRARY"), "the C library needs cc: make deps installs it")
class Any(unittest.TestCase):
    """Memory that is no Buffer and no Mapping."""

    def setUp(self):
        self.data = os.urandom(3 * 2**20 + 11)
        self.path = write(self.id(), self.data)
        self.file = lanefs.open(self.path, "r+")
        self.addCleanup(self.file.close)

    def test_one(self):
        b = bytearray(len(self.data) + 10)
        self.assertEqual(self.file.read_into(b), len(self.data))  # fewer at the end
        self.assertEqual(b, self.data + bytes(10))
        self.assertEqual(self.file.read_into(b, offset=5, start=100, length=1000), 1000)
        self.assertEqual(b[100:1100], self.data[5:1005])
        t = Tensor(b, 400)
        n = (len(b) - 400) // 4 * 4
        self.assertEqual(self.file.read_into(t, offset=77), n)
        self.assertEqual(b[400:400 + n], self.data[77:77 + n])
        self.assertEqual(self.file.read_into(t.data_ptr(), offset=1, length=33), 33)
        self.assertEqual(b[400:433], self.data[1:34])
        self.assertEqual(self.file.write_from(b"written", offset=1000), 7)
        with open(self.path, "rb") as f:
            self.assertEqual(f.read(), self.data[:1000] + b"written" + self.data[1007:])
        self.assertGreater(self.file.session.rungs["host"], 0)

    def test_array_interface(self):
        """CuPy's and others': __cuda_array_interface__, here of the CPU's memory."""
        b = bytearray(4000)
        at = ctypes.addressof(ctypes.c_char.from_buffer(b))

        def cuda(**more):
            return types.SimpleNamespace(__cuda_array_interface__={"shape": (10, 50), "typestr": "<f4", "data": (at, False), "version": 3, "strides": None, **more})
        self.assertEqual(self.file.read_into(cuda(), offset=3), 2000)  # all elements, of 4 bytes each
        self.assertEqual(b, self.data[3:2003] + bytes(2000))
        self.assertRaises(ValueError, self.file.read_into, cuda(), start=1, length=2000)
        self.assertEqual(list(self.file.read_batch(cuda(), [0], [1999], [1])), [1])
        constant = cuda(data=(at, True))
        for call in (self.file.read_into, lambda a: self.file.read_batch(a, [0], [0], [1])):
            self.assertRaisesRegex(ValueError, "read-only", call, constant)
            self.assertRaisesRegex(ValueError, "gaps", call, cuda(strides=(400, 8)))
        self.assertEqual(self.file.write_from(constant, length=5), 5)
        self.assertRaisesRegex(OSError, "stream", self.file.read_into, cuda(stream=7))  # which ordinary memory is not on
        self.assertEqual(self.file.read_into(cuda(stream=7), stream=0), 2000)

    def test_views(self):  # of a tensor: its own bytes, not what is behind it
        b = bytearray(4000)
        rows = Tensor(b, 400, (2, 100), (100, 1))
        self.assertEqual(self.file.read_into(rows), 800)
        self.assertEqual(b, bytes(400) + self.data[:800] + bytes(2800))
        self.assertEqual(self.file.read_into(rows, offset=9, start=40), 760)
        self.assertEqual(b[400:], self.data[:40] + self.data[9:769] + bytes(2800))
        turned = Tensor(b, 0, (100, 2), (1, 100))
        self.assertEqual(self.file.write_from(turned, offset=100000), 800)
        with open(self.path, "rb") as f:
            self.assertEqual(f.read(), self.data[:100000] + bytes(b[:800]) + self.data[100800:])
        column = Tensor(b, 8, (10, 3), (100, 1))
        for call in (self.file.read_into, self.file.write_from):
            self.assertRaisesRegex(ValueError, "gaps", call, column)
        b[:] = bytes(4000)
        self.assertEqual(list(self.file.read_batch(column, range(0, 120, 12), range(0, 4000, 400), [12] * 10)), [12] * 10)
        self.assertEqual(b, b"".join(bytes(8) + self.data[i * 12:i * 12 + 12] + bytes(380) for i in range(10)))
        def refuses():
            raise RuntimeError("Cannot access data pointer")
        sparse = Tensor(b, 0)
        sparse.data_ptr = refuses
        self.assertRaisesRegex(ValueError, "not in one place", self.file.read_into, sparse)
        nowhere = Tensor(b, 0)
        nowhere.data_ptr = lambda: 0
        self.assertRaisesRegex(ValueError, "no memory", self.file.read_into, nowhere)
        storage = types.SimpleNamespace(data_ptr=rows.data_ptr)
        self.assertRaisesRegex(TypeError, "no tensor.s", self.file.read_into, storage)

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs PyTorch: pip install torch")
        t = torch.zeros(10, 1000, dtype=torch.uint8)
        self.assertEqual(self.file.read_into(t[2:4], offset=5), 2000)
        self.assertEqual(t.numpy().tobytes(), bytes(2000) + self.data[5:2005] + bytes(6000))
        self.assertEqual(self.file.write_from(t[3], offset=7), 1000)
        with open(self.path, "rb") as f:
            self.assertEqual(f.read(1100), self.data[:7] + self.data[1005:2005] + self.data[1007:1100])
        self.file.write_from(self.data)
        for view in (t[:, :10], t[::2], t[:, 1], torch.zeros(1).expand(5)):
            self.assertRaisesRegex(ValueError, "gaps", self.file.read_into, view)
        self.assertRaisesRegex(ValueError, "no memory", self.file.read_into, torch.empty(9, device="meta"))
        self.assertRaisesRegex(ValueError, "not in one place", self.file.read_into, torch.ones(3, 3).to_sparse())
        self.assertEqual(self.file.read_into(torch.empty(0)), 0)
        self.assertRaisesRegex(TypeError, "no tensor.s", self.file.read_into, torch.zeros(5).storage())
        self.assertRaisesRegex(ValueError, "are integers", self.file.read_batch, torch.zeros(5), torch.empty(1, dtype=torch.long, device="meta"), [0], [1])
        self.assertEqual(self.file.read_into(torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)), 480)
        t.zero_()
        self.file.read_batch(t[:, 5:15], torch.arange(10) * 10, torch.arange(10) * 1000, torch.full((10,), 10))
        self.assertEqual(t.numpy().tobytes(), b"".join(bytes(5) + self.data[i * 10:i * 10 + 10] + bytes(985) for i in range(10)))

    def test_refused(self):
        b = bytearray(100)
        for args in ((b, 0, 101), (b, 0, 0, 101), (b, -1), (b, 0, -1, 5), (b"constant",), (12345,), (-4096, 0, 0, 5), ((1 << 64) + 4096, 0, 0, 5)):
            self.assertRaises(ValueError, self.file.read_into, *args)
        self.assertRaises(TypeError, self.file.read_into, "text")
        for call in self.file.read_into, self.file.write_from:
            with self.assertRaises(OSError) as e:
                call(0, length=10)
            self.assertEqual((e.exception.errno, call(0, length=0)), (errno.EFAULT, 0))
        for bad in (1.5, 1 << 70, -1):
            self.assertRaises(ValueError, self.file.alloc, bad)
        for bad in (1 << 70, 0):
            self.assertRaises(ValueError, lanefs.Buffer, self.file, bad)
        self.assertRaises(ValueError, self.file.read_batch, b, [1, 2], [0], [5])
        self.assertRaises(ValueError, self.file.read_batch, b, [0], ["x"], [5])
        self.assertRaisesRegex(OSError, "stream", self.file.read_into, b, stream=5)
        class Number:
            def __init__(self, n):
                self.n = n

            def __int__(self):
                return self.n
        for bad in (-1, 1 << 64, 1 << 70, "x", types.SimpleNamespace(cuda_stream=-1), 1.0, "1", b"1", 1 + 0j, object(), Number(-1)):  # which would be taken for another one
            self.assertRaisesRegex(ValueError, "is no stream", self.file.read_into, b, stream=bad)
        self.assertEqual(self.file.read_into(b, stream=Number(0)), 100)  # as NVIDIA's package has them
        self.assertRaisesRegex(OSError, "stream", self.file.read_into, b, stream=Number(5))
        with lanefs.open(self.path) as f:  # to read only
            self.assertRaises(PermissionError, f.write_from, b)
        self.file.close()
        self.assertRaises(ValueError, self.file.read_into, b)

    def test_batch(self):
        n = 3000
        offsets = [i * 7919 % 3000000 for i in range(n)]
        lengths = [i % 1000 for i in range(n)]
        starts, at = [], 0
        for i in range(n):
            starts.append(at)
            at += lengths[i] + i % 2
        b = bytearray(at)
        columns = [offsets, (ctypes.c_int64 * n)(*starts), array.array("q", lengths)]
        results = self.file.read_batch(b, *columns)
        self.assertEqual(list(results), lengths)
        for o, s, k in zip(offsets, starts, lengths):
            self.assertEqual(b[s:s + k], self.data[o:o + k])
        self.assertEqual(list(self.file.read_batch(b, [len(self.data) - 3, len(self.data)], [0, 9], [9, 9])), [3, 0])
        self.assertEqual(len(self.file.read_batch(b, [], [], [])), 0)
        self.assertEqual(list(self.file.write_batch(bytes(range(100)), [3, 300], [10, 50], [5, 6])), [5, 6])
        with open(self.path, "rb") as f:
            got = f.read()
        self.assertEqual((got[3:8], got[300:306], got[306:]), (bytes(range(10, 15)), bytes(range(50, 56)), self.data[306:]))

    def test_many_files(self):  # one after the other, more than there may be at once
        b = bytearray(8)
        for i in range(1100):
            with lanefs.open(self.path) as f:
                self.assertEqual((f.read_into(b, offset=i), b), (8, self.data[i:i + 8]))

    def test_columns(self):  # of integers, as they come; one that is none, or has several dimensions, is refused, not taken for something else
        numbers = range(1, 9)
        words, twice = array.array("q", numbers), array.array("q", [n for n in numbers for _ in range(2)])
        b = bytearray(20)
        for column in (list(numbers), numbers, tuple(numbers), words, memoryview(words), memoryview(twice)[::2], memoryview(words.tobytes()).cast("Q"), array.array("h", numbers),
                       bytes(numbers), bytearray(numbers), memoryview(bytes(numbers)), (ctypes.c_int64 * 8)(*numbers)):
            b[:] = bytes(20)
            self.assertEqual(list(self.file.read_batch(b, column, column, column)), list(numbers))
            self.assertEqual(b, bytes(1) + self.data[1:16] + bytes(4))
        square = memoryview(words).cast("B").cast("q", (2, 4))
        for bad in (square, memoryview(words)[:1].cast("B").cast("q", ()), 5, None, [words], [1.0] * 8, ["1"] * 8, "12345678", [1 << 63] * 8, array.array("Q", [1 << 63] * 8), [-1] * 8, words[:7], words + words):
            for columns in ((bad, words, words), (words, bad, words), (words, words, bad)):
                self.assertRaises(ValueError, self.file.read_batch, b, *columns)
        for nothing in (bytearray(), (ctypes.c_float * 0 * 3)(), memoryview(words)[:0]):  # as NumPy's arrays are that have no elements
            self.assertEqual((self.file.write_from(nothing), list(self.file.write_batch(nothing, [3], [0], [0]))), (0, [0]))
            self.assertRaises(ValueError, self.file.write_batch, nothing, [3], [0], [1])

    def test_async(self):
        import asyncio

        async def both(b):
            return await asyncio.gather(self.file.read_batch_async(b, [0], [0], [1000]), self.file.read_batch_async(b, [5], [2000], [1000]))
        b = bytearray(3000)
        self.assertEqual([list(r) for r in asyncio.run(both(b))], [[1000], [1000]])
        self.assertEqual((b[:1000], b[2000:]), (self.data[:1000], self.data[5:1005]))

    def test_async_stream(self):  # PyTorch's current stream is one of the calling thread
        here = threading.local()
        here.stream = 5
        torch = types.SimpleNamespace(_C=None, cuda=types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=getattr(here, "stream", 0))))
        t = Tensor(bytearray(100), 0)
        t.is_cuda = True

        async def go():
            with unittest.mock.patch.dict(sys.modules, torch=torch):
                for f in (self.file.read_batch_async, self.file.write_batch_async):
                    with self.assertRaisesRegex(OSError, "no place on a stream"):  # which is not the CPU's memory's, and was asked for
                        await f(t, [0], [0], [100])
        asyncio.run(go())

    def test_async_cancelled(self):  # then the memory is the caller's again
        begun, go_on, ended = threading.Event(), threading.Event(), []
        real = self.file._batch

        def slow(*args):
            begun.set()
            go_on.wait(60)
            ended.append(real(*args))

        async def go():
            with unittest.mock.patch.object(self.file, "_batch", slow):
                task = asyncio.ensure_future(self.file.read_batch_async(b, [0], [0], [1000]))
                await asyncio.to_thread(begun.wait, 60)
                for _ in range(2):
                    task.cancel()
                    await asyncio.sleep(0.01)
                self.assertFalse(task.done())
                go_on.set()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.assertEqual((list(ended[0]), b), ([1000], self.data[:1000]))
        b = bytearray(1000)
        asyncio.run(go())

    def test_threads(self):
        def work(k, out):
            b = bytearray(500000)
            self.file.read_batch(b, range(k, k + 5), [i * 100000 for i in range(5)], [100000] * 5)
            out.append(all(b[i * 100000:(i + 1) * 100000] == self.data[k + i:k + i + 100000] for i in range(5)))
        out = []
        threads = [threading.Thread(target=work, args=(k, out)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(out, [True] * 8)

    def test_fallback(self):
        p = write(self.id(), self.data, OUTSIDE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            f = lanefs.open(p, "r+", fallback=True)
        b = bytearray(100)
        self.assertEqual(f.read_into(b, offset=50), 100)
        self.assertEqual(b, self.data[50:150])
        self.assertEqual(list(f.read_batch(b, [len(self.data) - 1], [7], [9])), [1])
        self.assertEqual(f.write_from(b"x", offset=2), 1)
        t = Tensor(b, 0)
        t.is_cuda = True
        for call in (f.read_into, f.write_from):
            self.assertRaisesRegex(lanefs.NotLaneFS, "ordinary memory", call, t, stream=1)
        f.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            f = lanefs.open(p, fallback=True)
        self.assertEqual(list(f.write_batch(b, [0, 5], [0, 0], [9, 0])), [-errno.EBADF, 0])  # each piece its own
        self.assertRaises(OSError, f.write_from, b)
        self.assertEqual(list(f.read_batch(b, [len(self.data) - 1, 0], [7, 0], [9, 5])), [1, 5])
        f.close()

    def ways(self, memory):
        """Every call that takes memory."""
        f = self.file
        return (lambda: f.read_into(memory), lambda: f.read_into(memory, length=0), lambda: f.write_from(memory), lambda: f.read_batch(memory, [0], [0], [8]),
                lambda: f.write_batch(memory, [0], [0], [8]), lambda: f.read_batch_on(memory, [0], [0], [8]), lambda: f.write_batch_on(memory, [0], [0], [8]),
                lambda: asyncio.run(f.read_batch_async(memory, [0], [0], [8])), lambda: asyncio.run(f.write_batch_async(memory, [0], [0], [8])))

    def refused_all(self, memory, error, text):
        for way in self.ways(memory):
            self.assertRaisesRegex(error, text, way)

    def test_references(self):  # to objects, and pointers, are not overwritten
        class Holds(ctypes.Structure):
            _fields_ = [("offset", ctypes.c_int64), ("held", ctypes.py_object)]

        class Packed(Holds):
            _pack_ = 1
            _fields_ = [("more", ctypes.c_char)]

        class Either(ctypes.Union):
            _fields_ = [("number", ctypes.c_int64), ("at", ctypes.POINTER(ctypes.c_int))]

        class Numbers(ctypes.Structure):  # whose members' names are no types
            _fields_ = [("O", ctypes.c_int64), ("P", ctypes.c_double)]

        class PackedNumbers(Numbers):
            _pack_ = 1
            _fields_ = [("X", ctypes.c_char)]
        objects = (ctypes.py_object * 2)(self, self)
        for memory in (objects, memoryview(objects), (ctypes.py_object * 2 * 2)(), (ctypes.py_object * 0)(), ctypes.py_object(self), Holds(1, self), (Packed * 2)(), Either(), ctypes.c_void_p(), ctypes.c_char_p(),
                       ctypes.c_wchar_p(), ctypes.CFUNCTYPE(None)(), ctypes.pointer(ctypes.c_int(5)), memoryview(bytearray(8)).cast("P")):
            self.refused_all(memory, TypeError, "references to objects, or pointers")
        self.assertEqual((objects[0], objects[1]), (self, self))
        for memory in (Numbers(), (PackedNumbers * 3)(), (ctypes.c_wchar * 4)(), ctypes.c_longdouble(), (ctypes.c_int.__ctype_be__ * 4)(), array.array("d", [0.0])):
            for way in self.ways(memory):
                way()
            n = memoryview(memory).nbytes
            self.assertEqual(bytes(memory), self.data[:n])

        def cuda(typestr, **more):
            return types.SimpleNamespace(__cuda_array_interface__={"shape": (2,), "typestr": typestr, "data": (ctypes.addressof(objects), False), "version": 3, **more})
        for memory in (cuda("|O8"), cuda("|V8", descr=[("x", "|O8")]), cuda("|V16", descr=[("n", "<i8"), ("in", [("x", "|O8")])])):
            self.refused_all(memory, TypeError, r"type .*O8")
        self.assertEqual(self.file.read_into(cuda("|V8", descr=[("O", "<i8")]), length=0), 0)

    def test_arrays_of_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("needs NumPy: apt-get install python3-numpy")
        objects = numpy.array([self, "text", None], object)
        for memory in (objects, objects.reshape(1, 3), objects[::2], objects[:0], numpy.array(self, object)):
            self.refused_all(memory, TypeError, "type object")
        self.assertEqual(objects.tolist(), [self, "text", None])
        for dtype in ([("n", "i8"), ("x", "O")], [("n", "i8"), ("in", [("x", "O")])], [("x", "O", (2,))]):
            self.refused_all(numpy.zeros(3, dtype), TypeError, "'O'")
        for dtype in (">i4", "c16", "U3", "S5", "?", "f2", [("O", "i8"), ("P", "f4")], [("n", "i1"), ("m", ">i8")]):
            t = numpy.zeros(24, dtype)
            self.assertEqual(self.file.read_into(t), t.nbytes)
            self.assertEqual(t.tobytes(), self.data[:t.nbytes])
        frozen = numpy.zeros(10)
        frozen.flags.writeable = False
        self.assertRaisesRegex(ValueError, "read-only", self.file.read_into, frozen)
        self.assertEqual(self.file.write_from(frozen), 80)
        for gaps in (numpy.zeros(10)[::2], numpy.zeros((4, 4))[:, 1:], numpy.zeros((2, 3)).T, numpy.zeros(10)[::-1], numpy.broadcast_to(numpy.zeros(1), 5)):
            self.refused_all(gaps, ValueError, "contiguous")
        for nothing in (numpy.zeros(0), numpy.zeros((0, 3)), numpy.zeros((3, 0, 2), "c16")):
            self.assertEqual((self.file.read_into(nothing), self.file.write_from(nothing)), (0, 0))
        self.assertEqual(self.file.read_into(numpy.zeros(())), 8)
        for address in numpy.int64(objects.ctypes.data), numpy.uint8(5):  # which have a buffer, of the number itself
            self.refused_all(address, TypeError, "give int of it")

    def test_released_memory(self):
        view = memoryview(bytearray(100))
        view.release()
        self.refused_all(view, ValueError, "released")

    def test_no_memory(self):  # where there is nothing, and what may not be written to
        code = """if 1:
            import errno, mmap, sys, ctypes
            import lanefs
            m = mmap.mmap(-1, 3 * 4096)
            at = ctypes.addressof(ctypes.c_char.from_buffer(m))
            libc = ctypes.CDLL(None)
            libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            assert libc.mprotect(at + 4096, 8192, 1) == 0
            with lanefs.open(sys.argv[1], "r+") as f:
                assert f.read_into(at, 0, 0, 4096) == f.write_from(at, 0, 0, 8192) // 2 == 4096
                for address in 1, 4096, 1 << 46, 2**64 - 8192, at + 4096:
                    calls = [lambda: f.read_into(address, 0, 0, 100), lambda: f.read_batch(address, [0], [0], [100]), lambda: f.read_batch_on(address, [0], [0], [100]).wait(),
                             lambda: f.read_into(address - 50 if address > 50 else address, 0, 0, 100)]
                    if address != at + 4096:
                        calls += [lambda: f.write_from(address, 0, 0, 100), lambda: f.write_batch(address, [0], [0], [100])]
                    for call in calls:
                        try:
                            call()
                        except OSError as e:
                            assert e.errno == errno.EFAULT, e
                        else:
                            raise SystemExit(f"{address:#x}")
            print("ok")
        """
        p = write("no memory", b"x" * 8192)
        said = subprocess.run([sys.executable, "-c", code, p], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
        self.assertEqual((said.stdout, said.returncode), ("ok\n", 0))

    def test_held(self):  # memory that changes its size does not while it is used
        b, stage = bytearray(100), self.file.session.stage(self.file.fd)
        held = []

        def look(*_):
            self.assertRaises(BufferError, b.clear)
            held.append(len(b))
            return 1
        with unittest.mock.patch.object(type(stage), "one", look), unittest.mock.patch.object(type(stage), "batch", look), unittest.mock.patch.object(type(stage), "batch_on", look):
            for do in (lambda: self.file.read_into(b), lambda: self.file.write_from(b), lambda: self.file.read_batch(b, [0], [0], [1]), lambda: self.file.write_batch(b, [0], [0], [1]),
                       lambda: self.file.read_batch_on(b, [0], [0], [1]), lambda: asyncio.run(self.file.read_batch_async(b, [0], [0], [1]))):
                do()
        self.assertEqual(held, [100] * 6)
        b.clear()

    def test_stage_interrupted(self):  # while it is made: its connection is closed
        from lanefs import _stage
        before, check = len(os.listdir("/proc/self/fd")), _stage._check
        for nth in 1, 2:
            calls = []

            def interrupt(lib, result):
                calls.append(result)
                if len(calls) == nth:
                    (lib.lanefs_close if nth == 1 else lib.lanefs_stage_free)(result)
                    raise KeyboardInterrupt
                return check(lib, result)
            with unittest.mock.patch.object(_stage, "_check", interrupt):
                self.assertRaises(KeyboardInterrupt, _stage.Stage, self.file.session)
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before)

    def test_fork(self):
        b = bytearray(100)
        self.file.read_into(b)
        pid = os.fork()
        if pid == 0:
            try:
                self.file.read_into(b)
            except OSError as e:
                os._exit(0 if e.errno == 1 else 2)
            os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(self.file.read_into(b), 100)

    def test_fork_under_a_batch(self):  # a child waits for no thread that it does not have
        b, stop = bytearray(len(self.data)), threading.Event()

        def work():
            while not stop.is_set():
                self.file.read_into(b)
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(5):
                while not self.file.session.rungs["host"]:
                    time.sleep(0.001)
                pid = os.fork()
                if pid == 0:
                    signal.alarm(100)
                    try:
                        self.file.session.rungs
                        self.file.read_into(bytearray(1))
                    except PermissionError:
                        os._exit(0)
                    os._exit(1)
                self.assertEqual(os.waitpid(pid, 0)[1], 0)
        finally:
            stop.set()
            thread.join()


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    unittest.main(verbosity=2)
