"""What several processes make of one program's files, on a mount with the host runtime. Run by the Go test beside this.

A child of a fork inherits everything, and may use little of it: a call that is not the child's fails at once, and says what to do. By spawn and forkserver nothing gets there.
"""

import asyncio
import concurrent.futures
import copy
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import unittest
import warnings

import lanefs
from lanefs import kv

DIR = os.environ["LANEFS_TEST_DIR"]
N = 100000


def path(name):
    return os.path.join(DIR, name)


def made(name, data):
    with open(path(name), "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    return path(name)


def forked(do):
    """What do, which must be 0, is in a child: no exception, no end by a signal, and no wait."""
    pid = os.fork()
    if pid == 0:
        code = 100
        try:
            signal.alarm(100)
            code = do()
        except BaseException as e:
            sys.excepthook(type(e), e, e.__traceback__)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def read_anew(p):
    """A process's first use of the package, or one beside what it has inherited."""
    into = bytearray(N)
    with lanefs.open(p) as f, lanefs.Buffer(f, N) as b, f.map() as m:
        assert f.read_into(into) == f.read_into(b, 0, 0, N) == N
        assert into == b.memoryview()[:N] == m.memoryview()
        f.session.wait(0)
    return bytes(into)


def inherited():
    """How many descriptors another program gets, by a fork in which Python runs, and by posix_spawn."""
    r, w = os.pipe()
    count = "import os; os.write(1, b'%d ' % len(os.listdir('/proc/self/fd')))"
    subprocess.run([sys.executable, "-c", count], stdout=w, close_fds=False, preexec_fn=os.getpid, check=True)
    os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", count], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, w, 1)]), 0)
    os.close(w)
    with os.fdopen(r, "rb") as said:
        return said.read().split()


class Forked(unittest.TestCase):
    def setUp(self):
        signal.alarm(400)  # nothing hangs
        self.data = os.urandom(N)
        self.path = made(self.id(), self.data)
        self.f = lanefs.open(self.path, "r+")
        self.addCleanup(self.f.close)

    def test_all_calls(self):
        f, into, s = self.f, bytearray(N), self.f.session
        b, m, own, slab = lanefs.Buffer(f, N), f.map(), f.map(private=True), kv.Slab(path(self.id() + " slab"), 4096, 8)
        f.read_into(b, 0, 0, N), f.read_into(into), slab.put("a", b"a")
        ring = f.ring
        refused = {
            "open it again": [lambda: f.read_into(b), lambda: f.write_from(b), lambda: f.read_into(into), lambda: f.write_from(into), lambda: f.read_batch(into, [0], [0], [1]),
                              lambda: f.write_batch(into, [0], [0], [1]), lambda: f.read_batch_on(into, [0], [0], [1]), lambda: asyncio.run(f.read_batch_async(into, [0], [0], [1])),
                              lambda: f.handle, lambda: f.enqueue(True, 0, 0, 1, 0, None), lambda: ring.read(f, b), lambda: ring.sync(f), lambda: ring.read_batch(f, b, [(0, 0, 1)])],
            "open the file again": [f.map, lambda: f.alloc(1), lambda: f.commit(own), f.pin, lambda: lanefs.Buffer(f, 1), lambda: lanefs.Ring(f), s.moved, s.wait, lambda: s.wait(0),
                                    lambda: s.stage(f.fd), lambda: ring.submit([])],
            "open it again when that has closed it": [lambda: slab.put("b", b"b"), lambda: slab.get("a", into), lambda: slab.evict("a"), slab.commit],
        }

        def child():
            for text, calls in refused.items():
                for i, call in enumerate(calls):
                    with self.assertRaisesRegex(PermissionError, f"process that forked this one: {text}$", msg=f"{text}, {i}"):
                        call()
            self.assertTrue(m.memoryview() == b.memoryview()[:N] == self.data and m.current and not s.gone and f.size == N and "a" in slab)
            for what in slab, m, own, b, ring, f, s:
                what.close()
            return 0 if read_anew(self.path) == self.data else 1
        self.assertEqual(forked(child), 0)
        self.assertEqual((f.read_into(b, 1, 0, 10), f.read_into(into, 2), slab.get("a", into), f.map().memoryview() == self.data), (10, N - 2, 1, True))
        slab.close()
        b.close()

    def test_event(self):  # which tells the parent that a mapping is stale: a child must not take it
        with self.f.map() as m:
            def child():
                self.assertRaises(PermissionError, self.f.session.wait, 0)
                return 0
            self.f.session.wait(0)
            made(self.id(), b"other")
            while m.current:
                time.sleep(0.001)
            self.assertEqual(forked(child), 0)
            self.assertTrue(self.f.session.wait(60))

    def test_slab(self):
        """Its lock is the process's that opened it: children that live on do not keep it, and none gives it back for its parent."""
        p = path("slab")
        for mode in "r+", "r":
            for drop in kv.Slab.close, lambda slab: slab._f.close():
                slab = kv.Slab(p, 4096, 8, mode)
                r, w = os.pipe()
                pid = os.fork()
                if pid == 0:
                    os.close(w)
                    os.read(r, 1)
                    os._exit(0)
                os.close(r)
                self.assertEqual(forked(lambda: slab.close() or 0), 0)
                self.assertRaises(BlockingIOError, kv.Slab, p)
                drop(slab)
                kv.Slab(p).close()
                os.close(w)
                os.waitpid(pid, 0)

    def test_beside(self):
        """Processes of one program that each open the file, as servers do that fork after they have opened it, and the parent, whose threads go on."""
        into, stop, wrong, begun = bytearray(N), threading.Event(), [], threading.Event()
        b = lanefs.Buffer(self.f, N)

        def work():
            try:
                while not stop.is_set():
                    self.f.read_into(b, 0, 0, N)
                    if self.f.read_into(into) != N or into != self.data or b.memoryview()[:N] != self.data:
                        raise AssertionError("wrong bytes")
                    begun.set()
            except BaseException as e:
                wrong.append(e)
                begun.set()
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        try:
            children = [os.fork() for _ in range(2)]
            if 0 in children:  # and each a child of its own, too
                os._exit(forked(lambda: 0 if read_anew(self.path) == self.data else 1) or (read_anew(self.path) != self.data))
            for _ in range(3):
                self.assertEqual(inherited(), NOTHING)
            for pid in children:
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        finally:
            stop.set()
            thread.join()
        self.assertEqual(wrong, [])
        b.close()


class Sent(unittest.TestCase):
    """To other processes."""

    def test_refused(self):
        with lanefs.open(made("refused", b"x" * N), "r+") as f, kv.Slab(path("refused slab"), 4096, 8) as slab, lanefs.Buffer(f, N) as b, f.map() as m:
            batch = f.read_batch_on(bytearray(10), [0], [0], [10])
            for what in f, m, b, f.session, f.ring, slab, batch:
                for call in copy.copy, copy.deepcopy, pickle.dumps:
                    self.assertRaisesRegex(TypeError, f"a {type(what).__name__} of LaneFS .* neither copied nor sent", call, what)
                for method in "spawn", "forkserver":
                    with self.assertRaisesRegex(TypeError, "neither copied nor sent"):
                        multiprocessing.get_context(method).Process(target=print, args=(what,)).start()
            self.assertEqual(slab.put("a", b"a"), None)

    def test_pools(self):  # whose workers open for themselves
        data = os.urandom(N)
        p = made("pools", data)
        with lanefs.open(p) as f, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, of Python 3.12
            f.read_into(bytearray(1))
            for method in multiprocessing.get_all_start_methods():
                with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
                    self.assertEqual(list(pool.map(read_anew, [p] * 4)), [data] * 4, method)
                    with self.assertRaisesRegex(TypeError, "neither copied nor sent"):
                        pool.submit(os.fspath, f).result(60)
            self.assertEqual(read_anew(p), data)


if __name__ == "__main__":
    NOTHING = inherited()  # of the package's: nothing is open yet
    warnings.simplefilter("error", ResourceWarning)
    unittest.main(verbosity=2)
