"""Tests of batches on streams, with memory of a GPU of the stand-in for libcuda (lab/cuda): LANEFS_TEST_DIR is the directory of a mount with the host runtime. Run by the Go
test beside this. A gate on a stream stops it until the test opens it."""

import array
import asyncio
import ctypes
import errno
import faulthandler
import gc
import os
import signal
import socket
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
import lanefs.lmcache
from lanefs import _flight
from lanefs._current import current
from lanefs._driver import Driver

DIR = os.environ["LANEFS_TEST_DIR"]
OUTSIDE = os.environ["LANEFS_TEST_OUTSIDE"]
MIB = 1 << 20

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()


def do(call, *args):
    code = getattr(cuda, call)(*args)
    assert code == 0, f"{call}: error {code}"


do("cuInit", 0)
do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
do("cuCtxSetCurrent", context)


class Memory:
    """A GPU's, which of the stand-in is the CPU's, too."""

    def __init__(self, size):
        at = ctypes.c_void_p()
        do("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        self.at, self.size = at.value, size
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (at.value, False), "version": 3}

    def __bytes__(self):
        return ctypes.string_at(self.at, self.size)


class Buffer(Memory):
    """What LMCache's contract uses of a tensor."""

    def __init__(self, size, says=None):
        super().__init__(size)
        self.numel, self.element_size, self.is_contiguous, self.data_ptr = lambda: says or size, lambda: 1, lambda: True, lambda: self.at


class Stream:
    """cuda_stream: as PyTorch's."""

    def __init__(self):
        at = ctypes.c_void_p()
        do("cuStreamCreate", ctypes.byref(at), 1)
        self.cuda_stream = at.value

    def gate(self):
        """Stops it until the value is 1."""
        word = ctypes.c_uint64()
        do("cuStreamWaitValue64_v2", ctypes.c_void_p(self.cuda_stream), ctypes.c_void_p(ctypes.addressof(word)), ctypes.c_uint64(1), 0)
        self.word = word
        return word

    def fill(self, memory, value):
        do("cuMemsetD8Async", ctypes.c_void_p(memory.at), ctypes.c_ubyte(value), ctypes.c_size_t(memory.size), ctypes.c_void_p(self.cuda_stream))

    def synchronize(self):
        do("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))


def settled():
    """Whether nothing is kept, when streams are past."""
    for _ in range(len(_flight._behind) + 1):
        _flight.sweep()
    return not _flight._behind


class OnStreams(unittest.TestCase):
    def setUp(self):
        self.data = os.urandom(3 * MIB + 11)
        self.path = os.path.join(DIR, self.id())
        with open(self.path, "wb") as f:
            f.write(self.data)
        self.file = lanefs.open(self.path, "r+")
        self.addCleanup(self.file.close)
        self.stream = Stream()

    def test_captured(self):
        """A stream that is captured into a graph (torch.cuda.graph) is refused, and what other threads do, for the first time too, ends no capture."""
        m, s = Memory(len(self.data)), ctypes.c_void_p(self.stream.cuda_stream)
        nodes, failed = ctypes.c_uint64(), []

        def capture():
            do("cuStreamBeginCapture_v2", s, 0)
            self.stream.fill(m, 7)

        def end():
            do("cuStreamEndCapture", s, ctypes.byref(nodes))
            return nodes.value

        def elsewhere():
            try:
                do("cuCtxSetCurrent", context)
                other = Stream()
                with lanefs.open(self.path) as f:
                    self.assertEqual(f.read_into(m, stream=other), len(self.data))
                    f.read_batch_on(m, [1], [0], [1000], other).wait()
                    with current(Driver.of("cuda", "0000:01:00.0")):
                        mode = ctypes.c_int(1)
                        do("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
                        self.assertEqual(mode.value, 2)
                        do("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
                do("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
                self.assertEqual(mode.value, 0)
            except BaseException as e:
                failed.append(e)

        for call in self.file.read_into, self.file.write_from:
            capture()
            with self.assertRaisesRegex(OSError, "captured into a graph") as c:
                call(m, stream=self.stream)
            self.assertEqual((c.exception.errno, end()), (errno.EINVAL, 1))
        for call in self.file.read_batch_on, self.file.write_batch_on:
            capture()
            self.assertRaisesRegex(OSError, "captured into a graph", call, m, [0], [0], [10], self.stream)
            self.assertEqual(end(), 1)
        capture()
        t = threading.Thread(target=elsewhere)
        t.start()
        t.join()
        self.assertEqual((failed, end()), ([], 1))
        self.assertEqual(self.file.read_into(m, stream=self.stream), len(self.data))
        self.stream.synchronize()
        self.assertEqual(bytes(m), self.data)

    def test_order(self):
        m, n = Memory(len(self.data)), len(self.data)
        gate = self.stream.gate()
        first = self.file.read_batch_on(m, [0], [0], [n], self.stream)
        self.stream.fill(m, 7)
        written = self.file.write_batch_on(m, [5], [0], [1000], stream=self.stream.cuda_stream)
        self.stream.fill(m, 0)
        again = self.file.read_batch_on(m, array.array("q", [0, n - 3]), (ctypes.c_int64 * 2)(0, 5000), iter([2000, 9]), self.stream)
        time.sleep(0.05)
        self.assertEqual((first.done, written.done, again.done, bytes(m)), (False, False, False, bytes(n)))
        with open(self.path, "rb") as f:
            self.assertEqual(f.read(), self.data)
        gate.value = 1
        self.assertIsNone(first.wait())
        self.assertEqual([list(b.results()) for b in (again, written, first, again)], [[2000, 3], [1000], [n], [2000, 3]])
        self.assertIsInstance(again.results(), array.array)
        self.assertTrue(first.done and written.done and again.done)
        self.assertEqual(bytes(m)[:6000], self.data[:5] + b"\7" * 1000 + self.data[1005:2000] + bytes(3000) + self.data[-3:] + bytes(997))

    def test_wait_is_not_for_what_follows(self):
        m = Memory(1000)
        batch = self.file.read_batch_on(m, [0], [0], [1000], self.stream)
        gate = self.stream.gate()
        later = self.file.read_batch_on(m, [0], [0], [1000], self.stream)
        batch.wait()
        self.assertEqual((batch.done, later.done, bytes(m)), (True, False, self.data[:1000]))
        gate.value = 1
        later.wait()

    def test_dropped(self):
        """The object, the memory, the columns and the file may go: bytes come, and then all is let go of."""
        m = Memory(2 * MIB)
        at, kept = m.at, weakref.ref(m)
        handles = weakref.ref(self.file._on_stage()[1])
        gate = self.stream.gate()
        batches = [self.file.read_batch_on(m, [i], [i * 1000], [999], self.stream) for i in range(4)]  # as many as the stage has room for
        flights = [weakref.ref(b._flight) for b in batches]
        del batches, m
        self.file.close()
        gc.collect()
        self.assertFalse(settled())
        self.assertTrue(kept() and handles() and all(f() for f in flights))
        gate.value = 1
        self.stream.synchronize()
        for i in range(4):
            self.assertEqual(ctypes.string_at(at + i * 1000, 1000), self.data[i:i + 999] + b"\0")
        self.assertTrue(settled())
        self.assertFalse(kept() or handles() or any(f() for f in flights))

    def test_waited_for_is_let_go(self):
        m = Memory(1000)
        batch, kept = self.file.read_batch_on(m, [0], [0], [1000], self.stream), weakref.ref(m)
        del m
        gc.collect()
        self.assertTrue(kept())
        batch.wait()
        self.assertFalse(kept())
        self.assertEqual(list(batch.results()), [1000])

    def test_the_next_batch_lets_go(self):
        kept = []
        for _ in range(20):
            m = Memory(1000)
            kept.append(weakref.ref(m))
            self.file.read_batch_on(m, [0], [0], [1000], self.stream)
            self.stream.synchronize()
            del m
            self.assertLessEqual(sum(k() is not None for k in kept), 1)
        self.file.read_batch(bytearray(1), [0], [0], [1])
        self.assertFalse(any(k() for k in kept))

    def test_memory_cannot_move(self):
        """Pinned memory of a bytearray."""
        b = bytearray(8192)
        do("cuMemHostRegister_v2", ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(b))), ctypes.c_size_t(8192), 0)
        gate = self.stream.gate()
        batch = self.file.read_batch_on(b, [0], [0], [8192], self.stream)
        self.assertRaises(BufferError, b.extend, b"x" * MIB)
        self.assertFalse(batch.done)
        gate.value = 1
        self.assertEqual((list(batch.results()), b), ([8192], self.data[:8192]))
        do("cuMemHostUnregister", ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(b))))
        b.extend(b"x" * MIB)

    def test_ordinary_memory(self):
        b = bytearray(1000)
        batch = self.file.read_batch_on(b, [7, 0], [0, 900], [800, 0])
        self.assertEqual((batch.done, b), (True, self.data[7:807] + bytes(200)))
        self.assertEqual(list(batch.results()), [800, 0])
        b.extend(b"x" * MIB)
        self.assertEqual(list(self.file.write_batch_on(b"written", [3], [2], [5]).results()), [5])
        with open(self.path, "rb") as f:
            self.assertEqual(f.read(), self.data[:3] + b"itten" + self.data[8:])
        for empty in ([], [0]):
            batch = self.file.read_batch_on(Memory(10), empty, empty, empty, self.stream)
            self.assertEqual((batch.done, list(batch.results())), (True, empty))

    def test_fallback(self):
        there = os.path.join(OUTSIDE, "stream")
        with open(there, "wb") as f:
            f.write(self.data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            f = lanefs.open(there, fallback=True)
        with f:
            b = bytearray(100)
            batch = f.read_batch_on(b, [5, len(self.data)], [0, 50], [40, 9])
            self.assertEqual((batch.done, list(batch.results()), b), (True, [40, 0], self.data[5:45] + bytes(60)))
            self.assertEqual(list(f.write_batch_on(b, [0], [0], [9]).results()), [-errno.EBADF])
            self.assertRaises(lanefs.NotLaneFS, f.read_batch_on, Memory(10), [0], [0], [1], self.stream)

    def test_refused(self):
        """As by read_batch, and nothing is kept."""
        m, before = Memory(100), sys.getrefcount(self.stream)
        for args in ((m, [0], [0], [101]), (m, [-1], [0], [5]), (m, [0, 1], [0], [5]), (m, [0], ["x"], [5]), (b"constant", [0], [0], [1]), ("text", [0], [0], [1]), (object(), [0], [0], [1]),
                     (bytearray(9), [0], [0], [5]), (12345, [0], [0], [5]), (m.at, [0], [0], [101]), (m, [1 << 63], [0], [1]), (m.at, [(1 << 63) - 1], [0], [1])):
            got = []
            for call in (self.file.read_batch, self.file.read_batch_on):
                with self.assertRaises((ValueError, TypeError, OSError), msg=args) as e:
                    call(*args, stream=self.stream)
                got.append((type(e.exception), str(e.exception)))
                del e
            self.assertEqual(*got, args)
        gone = Stream()
        do("cuStreamDestroy_v2", ctypes.c_void_p(gone.cuda_stream))
        with self.assertRaises(OSError) as e:
            self.file.read_batch_on(m, [0], [0], [5], gone)
        self.assertEqual(e.exception.errno, errno.EIO)
        del e
        self.assertEqual(sys.getrefcount(self.stream), before)
        self.assertFalse(_flight._behind)
        with lanefs.open(self.path) as f:
            results = f.write_batch_on(m, [0, 0], [0, 0], [5, 0], self.stream).results()
            self.assertEqual(list(results), list(f.write_batch(m, [0, 0], [0, 0], [5, 0], self.stream)))
            self.assertEqual(list(results), [-errno.EACCES, 0])
        self.file.close()
        for call in (self.file.read_batch_on, self.file.write_batch_on):
            self.assertRaisesRegex(ValueError, "closed", call, m, [0], [0], [5])

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs PyTorch: pip install torch")
        t = torch.zeros(4, 1000, dtype=torch.uint8)
        at = t.data_ptr()
        do("cuMemHostRegister_v2", ctypes.c_void_p(at), ctypes.c_size_t(4000), 0)
        gate = self.stream.gate()
        batch = self.file.read_batch_on(t[1:], torch.arange(3) * 7, torch.arange(3) * 1000, torch.full((3,), 1000), self.stream)
        self.assertFalse(batch.done)
        gate.value = 1
        self.assertEqual(list(batch.results()), [1000] * 3)
        self.assertEqual(t.numpy().tobytes(), bytes(1000) + self.data[:1000] + self.data[7:1007] + self.data[14:1014])
        # Another storage in its place: the first stays until the stream is past.
        gate = self.stream.gate()
        batch = self.file.read_batch_on(t, [3], [0], [4000], self.stream)
        t.data = torch.zeros(1, dtype=torch.uint8)
        gate.value = 1
        self.stream.synchronize()
        self.assertEqual(ctypes.string_at(at, 4000), self.data[3:4003])
        batch.wait()
        do("cuMemHostUnregister", ctypes.c_void_p(at))

    def test_await(self):
        async def go():
            m, gate = Memory(1000), self.stream.gate()
            batch = self.file.read_batch_on(m, [0], [0], [1000], self.stream)
            tasks = [asyncio.ensure_future(self.results(batch)) for _ in range(3)]
            await asyncio.sleep(0.02)
            self.assertFalse(any(t.done() for t in tasks))
            tasks[0].cancel()
            await asyncio.sleep(0.02)
            self.assertFalse(tasks[0].done())
            gate.value = 1
            for t in tasks[1:]:
                self.assertEqual(list(await t), [1000])
            with self.assertRaises(asyncio.CancelledError):
                await tasks[0]
            self.assertEqual((bytes(m), list(await batch)), (self.data[:1000], [1000]))
        asyncio.run(go())

    async def results(self, batch):
        return await batch

    def test_threads(self):
        def work(k):
            do("cuCtxSetCurrent", context)
            stream, m = Stream(), Memory(3 * 70000)
            for i in range(30):
                batch = self.file.read_batch_on(m, [i + k, i, k], [0, 70000, 140000], [70000] * 3, stream)
                if i % 3 == 0:
                    continue  # dropped
                if list(batch.results()) != [70000] * 3 or bytes(m) != b"".join(self.data[a:a + 70000] for a in (i + k, i, k)):
                    wrong.append((k, i))
            stream.synchronize()
        wrong = []
        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.assertTrue(settled())

    def test_interrupted(self):
        """Ctrl-C when the batch was put on the stream, and nothing noted it."""
        m, gate = Memory(1000), self.stream.gate()
        kept, at = weakref.ref(m), m.at

        def interrupted(flight):
            raise KeyboardInterrupt
        with unittest.mock.patch.object(_flight.Flight, "begun", interrupted), self.assertRaises(KeyboardInterrupt) as e:
            self.file.read_batch_on(m, [0], [0], [1000], self.stream)
        del e, m
        gc.collect()
        self.assertFalse(settled())
        self.assertTrue(kept())
        gate.value = 1
        self.stream.synchronize()
        self.assertEqual(ctypes.string_at(at, 1000), self.data[:1000])
        self.assertTrue(settled())
        self.assertFalse(kept())

    def test_fork(self):
        past = self.file.read_batch_on(bytearray(5), [0], [0], [5])
        m, gate = Memory(1000), self.stream.gate()
        kept = weakref.ref(m)
        batch = self.file.read_batch_on(m, [0], [0], [1000], self.stream)
        self.file.read_batch_on(m, [0], [0], [10], self.stream)
        pid = os.fork()
        if pid == 0:
            signal.alarm(100)
            try:
                for call in (batch.wait, batch.results, lambda: batch.done, lambda: self.file.read_batch_on(m, [0], [0], [5], self.stream)):
                    try:
                        call()
                        os._exit(1)
                    except PermissionError:
                        pass
                ok = past.done and list(past.results()) == [5]
                del batch, m
                self.file.close()
                gc.collect()
                os._exit(0 if ok and kept() else 2)
            except BaseException:
                os._exit(3)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        gate.value = 1
        self.assertEqual((list(batch.results()), bytes(m)), ([1000], self.data[:1000]))

    def test_lmcache(self):
        """What LMCache's contract says of streams: a transfer is put on the one that it names and returns, in order with what is there before and after. bytes_done is right then."""
        backend, buf, n = lanefs.lmcache.Backend(), Buffer(MIB), MIB
        other, backend_of_other = Stream(), lanefs.lmcache.Backend()
        backend.register_buffer(buf)
        backend.register_stream(self.stream.cuda_stream)
        stream, where = self.stream.cuda_stream, os.path.join(DIR, self.id() + " slabs")
        with backend.open_slab(where, 2 * MIB, True) as h:
            self.stream.fill(buf, 1)
            gate = self.stream.gate()
            self.stream.fill(buf, 2)
            subs = [h.write_async(buf.at, n, 0, 0, stream)]
            self.stream.fill(buf, 3)
            subs += [h.write_async(buf.at, 1000, n, 5, stream), h.read_async(buf.at, n // 2, 0, n // 2, stream)]
            self.stream.fill(third := Buffer(100), 4)
            time.sleep(0.05)
            self.assertEqual(([s.bytes_done for s in subs], bytes(third)), ([0, 0, 0], bytes(100)), "the stream stands still")
            with open(h.path, "rb") as f:
                self.assertEqual(f.read(), bytes(2 * MIB), "nothing is written that the stream has not come to")
            gate.value = 1
            self.stream.synchronize()
            self.assertEqual(([s.bytes_done for s in subs], bytes(third)), ([n, 1000, n // 2], b"\4" * 100))
            self.assertEqual(bytes(buf), b"\3" * (n // 2) + b"\2" * (n // 2), "what was on the stream when it was written")
            with open(h.path, "rb") as f:
                self.assertEqual(f.read(), b"\2" * n + b"\3" * 1000 + bytes(n - 1000))
            # Of another stream it waits for nothing, and another user's registrations are its own.
            gate = self.stream.gate()
            self.assertRaises(ValueError, backend_of_other.deregister_buffer, buf)
            sub = h.read_async(buf.at, 10, n, 0, other.cuda_stream)
            other.synchronize()
            self.assertEqual((sub.bytes_done, bytes(buf)[:10]), (10, b"\3" * 10))
            gate.value = 1
            self.stream.synchronize()
            # What is found before anything is on the stream raises; what the file says comes with the stream.
            with self.assertRaises(OSError):
                h.read_async(buf.at, 10, 0, 0, 0x77)
            backend.register_buffer(beyond := Buffer(100, says=200))
            with self.assertRaises(OSError) as e:
                h.read_async(beyond.at, 200, 0, 0, stream)
            self.assertEqual(e.exception.errno, errno.EFAULT)
            os.truncate(h.path, 100)
            filler = os.open(os.path.join(where, "filler"), os.O_RDWR | os.O_CREAT)
            try:
                at, step = 0, 16 * MIB
                while step >= 1024:
                    try:
                        os.posix_fallocate(filler, at, step)
                        at += step
                    except OSError:
                        step //= 2
                failed, short = h.write_async(buf.at, n, n, 0, stream), h.read_async(buf.at, n, 0, 0, stream)
                self.stream.synchronize()
                self.assertEqual((failed.bytes_done, short.bytes_done), (-errno.ENOSPC, 100))
            finally:
                os.ftruncate(filler, 0)
                os.close(filler)
            backend.deregister_stream(stream)
            backend.deregister_buffer(buf)
        h.close()
        backend.close_driver()

    def run_end(self, how):
        code = f"import sys\nsys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\nimport test_stream as t\nt.end({self.path!r}, {how!r})\n{how == 'global' and 'kept = t.LAST'}\n"
        env = {**os.environ, "MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc"}  # what is freed and written to is noticed
        return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200, env=env)

    def test_end_of_the_interpreter(self):
        """With batches behind a gate that stays closed, and with ones that go on meanwhile."""
        for how in ("closed", "opened", "global", "cycle", "forked"):
            got = self.run_end(how)
            self.assertEqual((got.returncode, got.stdout), (0, "end\n"), how)

    def test_end_of_the_daemon(self):
        got = self.run_end("gone")
        self.assertEqual((got.returncode, got.stdout), (0, "end\n"))


LAST = None
kept_gates = []  # the stand-in reads their words


def end(path, how):
    """The end of a program with batches on a stream."""
    global LAST
    f, stream, m = lanefs.open(path), Stream(), Memory(2 * MIB)
    gate = stream.gate()
    batches = [f.read_batch_on(m, range(0, 2 * MIB, 4096), range(0, 2 * MIB, 4096), [4096] * 512, stream) for _ in range(4)]
    if how == "gone":
        for n in range(3, 1000):  # as if the daemon had died
            try:
                s = socket.socket(fileno=os.dup(n))
            except OSError:
                continue
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
        gate.value = 1
        for call in (batches[0].wait, batches[1].results, lambda: asyncio.run(OnStreams.results(None, batches[3]))):
            try:
                call()
            except ConnectionResetError as e:
                assert "daemon" in str(e)
            else:
                raise AssertionError
    elif how == "global":
        LAST = batches, f, m, stream
    elif how == "cycle":
        batches.append(batches)
        batches.append(types.SimpleNamespace(b=batches, f=f))
    elif how == "forked":
        pid = os.fork()
        if pid == 0:
            signal.alarm(100)
            return  # the child ends as any program
        assert os.waitpid(pid, 0)[1] == 0
    del batches
    gc.collect()
    if how in ("opened", "global", "cycle"):
        gate.value = 1
    kept_gates.append(gate)
    print("end", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    faulthandler.dump_traceback_later(200, exit=True)  # a stream that stands still
    unittest.main(verbosity=2)
