"""Calls beside those of other threads, on a mount with the host runtime: what one closes while others use it, and waits for a daemon that stands still. Run by the Go test beside this.

A thread closes something in the middle of a call, and opens others, which get the numbers that are free then: the call must not take these.
"""

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
import threading
import unittest
import unittest.mock
import warnings

import lanefs
from lanefs import _session, _wait

DIR = os.environ["LANEFS_TEST_DIR"]
OUTSIDE = os.environ["LANEFS_TEST_OUTSIDE"]
N = 4096


def file_of(name, byte, size=N, where=DIR):
    p = os.path.join(where, name)
    with open(p, "wb") as f:
        f.write(byte * size)
        f.flush()
        os.fsync(f.fileno())
    return p


def content(p):
    with open(p, "rb") as f:
        return f.read()


@contextlib.contextmanager
def meanwhile(of, name, do):
    """A thread does something before the first call of a function goes on."""
    real, done = getattr(of, name), []

    def call(*args, **kwargs):
        if not done:
            done.append(1)
            thread = threading.Thread(target=do)
            thread.start()
            thread.join()
        return real(*args, **kwargs)
    with unittest.mock.patch.object(of, name, call):
        yield
    assert done, f"{name} was not called"


def descriptors():
    return len(os.listdir("/proc/self/fd"))


class Closing(unittest.TestCase):
    def setUp(self):
        signal.alarm(400)  # nothing hangs
        self.path, self.other = file_of(self.id() + " a", b"a"), file_of(self.id() + " b", b"b", N + 1)
        self.f = lanefs.open(self.path, "r+")
        self.addCleanup(self.f.close)
        self.taken = []
        self.addCleanup(lambda: [os.close(fd) for fd in self.taken])

    def close(self):
        """Closes the file, and opens another."""
        self.f.close()
        self.taken.append(os.open(self.other, os.O_RDWR))

    def ended(self, before):
        """The file is closed."""
        self.assertIsNone(self.f.fd)
        self.assertEqual(descriptors(), before - 1 + len(self.taken))
        self.assertRaisesRegex(ValueError, "closed", self.f.map)
        self.assertEqual(content(self.other), b"b" * (N + 1))

    def test_map(self):
        self.f.map().close()
        before = descriptors()
        with meanwhile(self.f.session, "call", self.close), self.f.map() as m:
            self.assertEqual(m.memoryview(), b"a" * N)
        self.ended(before)

    def test_commit(self):
        with self.f.alloc(N) as m:
            m.memoryview()[:] = b"c" * N
            before = descriptors()
            with meanwhile(self.f.session, "call", self.close):
                self.f.commit(m)
        self.ended(before)
        self.assertEqual(content(self.path), b"c" * N)

    def test_pin(self):
        before = descriptors()
        with meanwhile(self.f.session, "call", self.close):
            self.assertEqual(self.f.pin(), N)
        self.ended(before)
        with lanefs.open(self.path) as f:
            f.pin(False)

    def test_sync(self):
        was = os.fstat(self.f.fd).st_ino
        with unittest.mock.patch.object(os, "fsync", lambda fd: self.assertEqual(os.fstat(fd).st_ino, was)):
            with meanwhile(os, "fsync", self.close):
                self.f.sync()
        self.assertIsNone(self.f.fd)

    def test_stage(self):  # of which the file gets a handle
        self.f.read_into(bytearray(1))
        for name in "stage", "open":
            self.f, into = lanefs.open(self.path), bytearray(N)
            of = self.f.session if name == "stage" else self.f.session.stage(self.f.fd)
            with meanwhile(of, name, self.close):
                self.assertEqual((self.f.read_into(into), into), (N, b"a" * N))
            self.assertRaisesRegex(ValueError, "closed", self.f.read_into, into)

    def test_file_of_a_request(self):
        with lanefs.open(self.other) as g, lanefs.open(self.other) as h, lanefs.Buffer(g, N) as b:
            ring = g.ring
            self.f.handle

            def close():
                self.f.close()
                h.handle
            for name, call in ("submit", lambda: ring.read(self.f, b).result(60)), ("submit", lambda: ring.read_batch(self.f, b, [(0, 0, N)])[0].result(60)), \
                    ("_put", lambda: ring._carry_out(lanefs._wire.READ, self.f, b, 0, 0, None)):
                with meanwhile(ring, name, close):
                    self.assertEqual((call(), b.memoryview()[:N]), (N, b"a" * N))
                self.f = lanefs.open(self.path, "r+")
                self.f.handle

    def test_requests_before(self):  # which the daemon has not taken yet, are carried out
        with lanefs.open(self.other) as g:
            ring = g.ring
            for _ in range(200):
                b, f = lanefs.Buffer(g, N), lanefs.open(self.path)
                futures = ring.read_batch(f, b, [(0, 0, 1)] * 20)
                f.close()
                b.close()
                self.assertEqual({future.result(60) for future in futures}, {1})

    def test_requests_of_what_is_dropped(self):  # by the garbage collector, which waits for nothing
        with lanefs.open(self.other) as g:
            ring, dropped = g.ring, g.session._dropped
            for _ in range(200):
                futures = ring.read_batch(lanefs.open(self.path), lanefs.Buffer(g, N), [(0, 0, 1)] * 20)
                self.assertEqual(({future.result(60) for future in futures}, len(dropped)), ({1}, 0))

    def test_memory_of_a_request(self):
        ring, b, others = self.f.ring, lanefs.Buffer(self.f, N), []
        was = b.memoryview()

        def close():
            b.close()
            others.append(lanefs.Buffer(self.f, N))
        with meanwhile(ring, "submit", close):
            self.assertEqual(ring.read(self.f, b).result(60), N)
        self.assertEqual((was[:N], others[0].memoryview()[:N]), (b"a" * N, bytes(N)))
        self.assertRaisesRegex(ValueError, "closed", ring.read, self.f, b)
        others[0].close()

    def test_mapping(self):
        m, others = self.f.alloc(N), []
        m.memoryview()[:] = b"c" * N

        def close():
            m.close()
            self.f.session._drain()
            others.append(self.f.alloc(N))
        with meanwhile(self.f.session, "call", close):
            self.f.commit(m)
        self.assertEqual(content(self.path), b"c" * N)
        self.assertRaisesRegex(ValueError, "closed", self.f.commit, m)

    def test_tensor(self):  # of memory that is closed before the tensor has it
        for m in self.f.map(), lanefs.Buffer(self.f, N):
            real = type(m).memory.fget

            def memory(m):
                at = real(m)
                m.close()
                return at
            with unittest.mock.patch.object(type(m), "memory", property(memory)):
                tensor = m.__dlpack__()
            self.assertIsNotNone(next(reversed(lanefs._dlpack._alive.values()))[3], "nothing keeps it")
            m.close()
            del tensor

    def test_fallback(self):
        p, other = file_of("a", b"a", where=OUTSIDE), file_of("b", b"b", where=OUTSIDE)
        for name, call in ("pwrite", lambda f: f.commit(m)), ("pwritev", lambda f: f.write_from(b"c" * N)), ("pwritev", lambda f: f.ring.write(f, m).result()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                f = lanefs.open(p, "r+", fallback=True)
            m = f.alloc(N)
            m.memoryview()[:] = b"c" * N

            def close():
                f.close()
                self.taken.append(os.open(other, os.O_RDWR))
            with meanwhile(os, name, close):
                call(f)
            self.assertEqual((content(p), content(other)), (b"c" * N, b"b" * N))
            file_of("a", b"a", where=OUTSIDE)

    def test_slab(self):
        p = os.path.join(DIR, self.id() + " slab")
        slab = lanefs.kv.Slab(p, N, 4)
        slab.put(b"key", b"k" * N)
        self.f = slab._f
        with meanwhile(os, "pwrite", self.close):
            slab.commit()
        self.assertEqual(content(self.other), b"b" * (N + 1))
        slab._f = None
        with lanefs.kv.Slab(p) as slab:
            self.assertIn(b"key", slab)

    def test_slab_in_use(self):  # by a put or a get: nobody else has it before that has ended
        p, failures = os.path.join(DIR, self.id() + " slab"), []
        for name in "write_batch", "read_batch":
            slab, into = lanefs.kv.Slab(p, N, 4), bytearray(N)
            slab.put(b"key", b"k" * N)
            self.assertEqual(slab.get(b"key", into), N)

            def close():
                try:
                    slab.close()
                    self.assertRaises(BlockingIOError, lanefs.kv.Slab, p)
                except BaseException as e:
                    failures.append(e)
            with meanwhile(lanefs.File, name, close):
                try:
                    slab.put(b"other", b"o" * N) if name == "write_batch" else slab.get(b"key", into)
                except ValueError as e:
                    self.assertRegex(str(e), "closed")
            self.assertEqual(failures, [])
            lanefs.kv.Slab(p).close()

    def test_after_an_error(self):  # of which the program has the traceback
        fd = self.f.fd
        with self.assertRaises(OSError) as e:
            self.f.map(1 << 40)
        try:
            raise e.exception
        except OSError as error:
            self.f.close()
            self.assertRaises(OSError, os.fstat, fd)
            del error

    def test_session(self):  # while a thread waits for it
        with self.f.map() as m:
            s, pipes = self.f.session, []

            def close():
                s.close()
                for _ in range(8):
                    pipes.append(os.pipe())
                    os.write(pipes[-1][1], bytes(8))
            with meanwhile(_wait, "ready", close):
                self.assertTrue(s.wait(60))
            for r, w in pipes:
                os.set_blocking(r, False)
                self.assertEqual(os.read(r, 9), bytes(8))
                os.close(r)
                os.close(w)
            self.assertFalse(m.current)
        self.f.close()

    def test_session_in_a_call(self):  # of another thread, which may be a long one: it ends with that
        s, entered, go_on, got = self.f.session, threading.Event(), threading.Event(), []
        real, before = s._receive, descriptors()

        def receive(*args):
            entered.set()
            go_on.wait()
            return real(*args)
        self.f.map().close()  # whose release is answered first
        with unittest.mock.patch.object(s, "_receive", receive):
            thread = threading.Thread(target=lambda: got.append(self.f.map()))
            thread.start()
            entered.wait()
            s.close()
            s.close()
            self.assertTrue(s.gone)
            for call in s.moved, s.fileno, self.f.map, lambda: s.wait(0):
                self.assertRaisesRegex(OSError, "is closed", call)
            with lanefs.open(self.path) as f:  # another session
                self.assertEqual(f.map().memoryview(), b"a" * N)
                del f
            go_on.set()
            thread.join()
        self.assertEqual((got[0].memoryview(), s._socket), (b"a" * N, None))
        self.f.close()
        self.assertLessEqual(descriptors(), before + 1)  # with the two of the other session, and without those of this one and the file's

    def test_session_of_a_ring(self):
        ring, s = lanefs.Ring(self.f), self.f.session
        waits = threading.Thread(target=s.wait)
        waits.start()
        s.close()
        waits.join()
        ring._reaper.join()  # it sees the end of the session
        with self.assertRaises(OSError):
            ring.submit([])
            ring.submit([(lanefs._wire.SYNC, 1, 0, 0, 0, 0)])
        self.f.close()


class Stopped(unittest.TestCase):
    """A daemon that stands still: a socket of which nobody accepts connections."""

    def setUp(self):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored, as a shell does in the background
        signal.alarm(100)
        self.path = file_of(self.id(), b"a")
        self.daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.addCleanup(self.daemon.close)
        self.socket = os.path.join(self.dir.name, "socket").encode()
        self.daemon.bind(self.socket)
        self.daemon.listen()
        self.idle, self.end = threading.Thread(target=lambda: self.end.wait()), threading.Event()
        self.idle.start()
        self.addCleanup(self.end.set)

    def interrupted(self, call):
        """A signal that comes to another thread, which interrupts no system call of this one, ends the call."""
        timer = threading.Timer(0.3, lambda: signal.pthread_kill(self.idle.ident, signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            timer.start()
            call()
            self.fail("it ended")

    def elsewhere(self):
        """The file is on the mount of that daemon."""
        return unittest.mock.patch.object(_session, "_socket_of", lambda fd, name: self.socket)

    def test_open(self):  # beside another thread that opens a file there
        with self.elsewhere():
            entered = threading.Event()

            def hello(*args):
                entered.set()
                return real(*args)
            real = _session.Session._call
            with unittest.mock.patch.object(_session.Session, "_call", hello):
                thread = threading.Thread(target=lambda: self.assertRaises(OSError, lanefs.open, self.path))
                thread.start()
                entered.wait()
            self.interrupted(lambda: lanefs.open(self.path))
        with lanefs.open(self.path) as f:  # of another mount
            self.assertEqual(f.size, N)
        self.daemon.close()
        thread.join()

    def test_stage(self):
        before = descriptors()
        with lanefs.open(self.path) as f, unittest.mock.patch.multiple(f.session, _stage=None, _path=self.socket):
            self.interrupted(lambda: f.read_into(bytearray(1)))
        self.assertLessEqual(descriptors(), before + 2)  # those of the session

    def test_stage_of_another_thread(self):  # and closing the file
        with lanefs.open(self.path) as f, unittest.mock.patch.multiple(f.session, _stage=None, _path=self.socket):
            entered, errors = threading.Event(), []

            def read():
                try:
                    f.read_into(bytearray(1))
                except OSError as e:
                    errors.append(e)

            def make():
                entered.set()
                return real()
            real = f.session._make_stage
            with unittest.mock.patch.object(f.session, "_make_stage", make):
                thread = threading.Thread(target=read)
                thread.start()
                entered.wait()
                self.interrupted(lambda: f.read_into(bytearray(1)))
            with lanefs.open(self.path) as g:  # meanwhile
                self.assertEqual(g.map().memoryview(), b"a" * N)
            f.close()
            self.assertIsNone(f.fd)
            self.daemon.close()
            thread.join()
            self.assertEqual(len(errors), 1)

    def test_loop(self):  # which goes on, while the first batch makes the stage
        with lanefs.open(self.path) as f, unittest.mock.patch.multiple(f.session, _stage=None, _path=self.socket):
            made = []

            def make():
                made.append(threading.get_ident())
                return real()
            real = f.session._make_stage

            async def go():
                task = asyncio.ensure_future(f.read_batch_async(bytearray(1), [0], [0], [1]))
                while not made:
                    await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
            with unittest.mock.patch.object(f.session, "_make_stage", make):
                asyncio.run(go())
            self.assertNotEqual(made, [threading.get_ident()])


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    unittest.main(verbosity=2)
