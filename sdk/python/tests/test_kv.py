"""Tests of lanefs.kv on a mount with the host runtime: LANEFS_TEST_DIR is its directory. Run by the Go test beside this."""

import collections
import errno
import hashlib
import linecache
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import unittest
import zlib
from unittest import mock

import lanefs
from lanefs import _slab, kv

DIR = os.environ["LANEFS_TEST_DIR"]
OUTSIDE = os.environ["LANEFS_TEST_OUTSIDE"]
SEED = int(os.environ.get("LANEFS_TEST_SEED", random.randrange(1 << 32)))


def path(name):
    return os.path.join(DIR, name)


def block(seed, length=None):
    """Bytes that say which block they are."""
    r = random.Random(seed)
    return r.randbytes(r.randrange(1, 4097) if length is None else length)


class Slabs(unittest.TestCase):
    def test_put_get(self):
        want = {**{i: block(i) for i in range(20)}, "text": b"t", b"text": b"b", "empty": b"", "full": block(7, 8192)}
        with kv.Slab(path("slab"), 8000, 40) as s:
            self.assertEqual((s.slot_size, s.slots, len(s)), (8192, 40, 0))
            self.assertEqual(os.path.getsize(path("slab")), s._layout.size)
            whole = b"".join(want.values())
            at, offsets = 0, []
            for v in want.values():
                offsets.append(at)
                at += len(v)
            s.put_batch(list(want), whole, offsets, [len(v) for v in want.values()])
            s.put("more", b"xxmore", start=2)
            self.check(s, {**want, "more": b"more"})
            self.assertTrue("text" in s and b"more" not in s)
        with kv.Slab(path("slab")) as s:
            self.check(s, {**want, "more": b"more"})
            s.put("text", b"another")
            self.assertTrue(s.evict(3))
            self.assertFalse(s.evict(3))
            want["text"] = b"another"
            del want[3]
            self.check(s, {**want, "more": b"more"})
        with kv.Slab(path("slab"), mode="r") as s, kv.Slab(path("slab"), mode="r"):
            self.check(s, {**want, "more": b"more"})
            self.assertEqual(s.get_batch([3, "none"], bytearray(9000), [0, 0]), [None, None])
            self.assertEqual(s.damaged, 0)
            for do in (lambda: s.put("a", b""), lambda: s.evict("a"), s.commit):
                self.assertRaises(PermissionError, do)
            self.assertRaises(BlockingIOError, kv.Slab, path("slab"))

    def check(self, s, want):
        self.assertEqual(len(s), len(want))
        memory = bytearray(8192 * len(want))
        got = s.get_batch(list(want), memory, [8192 * i for i in range(len(want))])
        for i, (key, v) in enumerate(want.items()):
            self.assertEqual((got[i], memory[8192 * i:8192 * i + len(v)]), (len(v), v), key)

    def test_integers(self):  # of other types than int, as NumPy's are, which have no sum with an address, or a wrong one
        class Index:
            def __init__(self, n):
                self.n = n

            def __index__(self):
                return self.n
        data, columns = bytes(range(100)), [[Index(n) for n in (0, 5, 50)], [Index(n) for n in (5, 45, 0)]]
        with kv.Slab(path("integers"), Index(4096), Index(8)) as s:
            s.put_batch([Index(n) for n in range(3)], data, *columns)
            self.check(s, {0: data[:5], 1: data[5:50], 2: b""})
            self.assertTrue(Index(1) in s and "1" not in s)
            b = bytearray(100)
            self.assertEqual((s.get_batch([Index(0), 1], b, columns[0][:2]), b), ([5, 45], data[:50] + bytes(50)))
            for bad in 1.0, None, object():
                if bad is not None:
                    self.assertRaisesRegex(ValueError, "no integer", kv.Slab, path("no"), bad, 8)
                self.assertRaisesRegex(TypeError, "a key is", s.put, bad, b"x")
                self.assertRaises(ValueError, s.put_batch, ["a"], data, [bad], [1])
                self.assertRaises(ValueError, s.put_batch, ["a"], data, [0], [bad])
                self.assertRaises(ValueError, s.get_batch, [1], b, [bad])

    def test_full(self):
        with kv.Slab(path("full"), 4096, 8, evict=False) as s:
            s.put_batch(range(8), bytes(8), range(8), [1] * 8)
            self.assertRaises(kv.Full, s.put, 8, b"x")
            s.evict(0)
            s.put(8, b"x")
            self.assertRaises(kv.Full, s.put, 9, b"x")
        with kv.Slab(path("full")) as s:
            for key in 8, 1:
                self.assertIsNotNone(s.get(key, bytearray(1)))  # no longer the least recently used
            s.put(9, b"y")
            self.assertEqual([k for k in range(10) if k in s], [1, 3, 4, 5, 6, 7, 8, 9])
            self.assertEqual(len(s), 8)
            self.assertRaises(kv.Full, s.put_batch, range(100, 109), bytes(9), range(9), [1] * 9)
            s.put_batch(range(100, 108), bytes(8), range(8), [1] * 8)
            self.assertEqual(len(s), 8)

    def beside(self, s, put, ends):
        """Begins another thread's put, which gets its slots and is held back until what is returned is called. It then ends, with the error in ends if there is one; an error
        of its own is added."""
        real, begun, go_on = lanefs.File.write_batch, threading.Event(), threading.Event()

        def held(*args, **kwargs):
            if threading.current_thread() is not thread:
                return real(*args, **kwargs)
            begun.set()
            go_on.wait(60)
            if ends:
                raise ends[0]
            return real(*args, **kwargs)

        def other():
            try:
                put()
            except (OSError, ValueError) as e:
                ends.append(e)
        thread = threading.Thread(target=other)
        patch = mock.patch("lanefs.File.write_batch", held)
        patch.start()
        self.addCleanup(patch.stop)
        thread.start()
        begun.wait(60)

        def end():
            go_on.set()
            thread.join()
            patch.stop()
        return end

    def late(self, do, end, waits=True):
        """What do returns or raises, in a thread. waits: it must not end before end is called."""
        out = []

        def call():
            try:
                out.append(do())
            except (OSError, ValueError) as e:
                out.append(e)
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(0.2)
        self.assertEqual(out == [], waits, out)
        end()
        thread.join(60)
        return out[0]

    def test_full_meanwhile(self):  # what other threads' puts have is waited for: they give it back, or leave a block to evict, or the slab is full
        with kv.Slab(path("meanwhile"), 4096, 2, evict=False) as s:
            s.put("a", b"1")
            self.assertIsNone(self.late(lambda: s.put("b", b"2"), self.beside(s, lambda: s.put("a", b"3"), [])))  # replaces a block, whose slot is free then
            self.assertEqual(len(s), 2)
            s.evict("b")
            self.assertIsNone(self.late(lambda: s.put("b", b"2"), self.beside(s, lambda: s.put("c", b"3"), [OSError(errno.EIO, "fails")])))
            self.assertTrue("b" in s and "c" not in s)
            s.evict("b")
            self.assertIsInstance(self.late(lambda: s.put("b", b"2"), self.beside(s, lambda: s.put("c", b"3"), [])), kv.Full)
            s.evict("c")
            self.assertIsInstance(self.late(lambda: s.put_batch("bcd", b"bcd", range(3), [1] * 3), self.beside(s, lambda: s.put("c", b"3"), []), False), kv.Full)  # never
            self.assertEqual(sorted(s._free + s._dirty + [b.slot for b in s._blocks.values()]), [0, 1])
        with kv.Slab(path("meanwhile evicting"), 4096, 2) as s:
            s.put("a", b"1")
            self.assertIsNone(self.late(lambda: s.put_batch("bc", b"bc", range(2), [1] * 2), self.beside(s, lambda: s.put("d", b"3"), [])))
            self.assertEqual(sorted(k for k in "abcd" if k in s), ["b", "c"])
            ends = []
            end = self.beside(s, lambda: s.put_batch("ef", b"ef", range(2), [1] * 2), ends)
            self.assertIsInstance(self.late(lambda: s.put("g", b"g"), s.close), ValueError)  # closed meanwhile
            end()
            self.assertIsInstance(ends[0], ValueError)

    def test_full_handler(self):  # of a signal, in the middle of a put that has the slots: it does not wait for itself
        with kv.Slab(path("full handler"), 4096, 2) as s:
            real, codes = lanefs.File.write_batch, []

            def interrupted(*args, **kwargs):
                with mock.patch("lanefs.File.write_batch", real):
                    for other in False, True:
                        thread = threading.Thread(target=s.put, args=("e", b"5"))
                        if other:  # waits for this thread's slots
                            thread.start()
                            while s._room.acquire(blocking=False):
                                s._room.release()
                        with self.assertRaises(OSError) as e:
                            s.put("b", b"2")
                        codes.append(e.exception.errno)
                self.addCleanup(thread.join)
                return real(*args, **kwargs)
            with mock.patch("lanefs.File.write_batch", interrupted):
                s.put_batch("cd", b"cd", range(2), [1] * 2)
            self.assertEqual(codes, [errno.EDEADLK] * 2)
            self.doCleanups()
            s.put("b", b"2")
            self.assertEqual(len(s), 2)

    def test_full_never(self):  # of a slab that evicts, however many threads put
        errors = []
        with kv.Slab(path("never full"), 4096, 6) as s:
            def work(k):
                try:
                    for i in range(40):
                        n = 1 + (i + k) % 6
                        s.put_batch([(k * 1000 + i) * 10 + j for j in range(n)], bytes(n), range(n), [1] * n)
                except Exception as e:
                    errors.append(e)
            threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(errors, [])
            self.assertEqual(sorted(s._free + s._dirty + [b.slot for b in s._blocks.values()]), list(range(6)))

    def test_refused(self):
        self.assertRaises(FileNotFoundError, kv.Slab, path("none"))
        self.assertRaises(FileNotFoundError, kv.Slab, path("none"), 4096, 8, "r")
        for bad in ((0, 8), (4096, 0), (-1, 8), (4096, 2**60), (1 << 40, 1 << 40), (4096, 8, "w")):
            self.assertRaises(ValueError, kv.Slab, path("none"), *bad)
        self.assertRaises(lanefs.NotLaneFS, kv.Slab, os.path.join(OUTSIDE, "slab"), 4096, 8)
        self.assertFalse(os.path.exists(os.path.join(OUTSIDE, "slab")))
        with self.assertRaises(OSError) as e:
            kv.Slab(path("none"), 1 << 40, 1 << 10)
        self.assertIn(e.exception.errno, (27, 28))  # too large, no room
        self.assertFalse([n for n in os.listdir(DIR) if n.startswith("none")])
        with open(path("text"), "w") as f:
            f.write("no slab" * 1000)
        self.assertRaisesRegex(ValueError, "is no slab", kv.Slab, path("text"))
        with kv.Slab(path("refused"), 4096, 8) as s:
            self.assertRaises(ValueError, s.put, "long", bytes(4097))
            self.assertRaises(ValueError, s.put_batch, ["a", "a"], bytes(8), [0, 1], [1, 1])
            self.assertRaises(ValueError, s.put_batch, ["a", "b"], bytes(8), [0, 8], [1, 1])
            self.assertRaises(ValueError, s.put_batch, ["a"], bytes(8), [0, 1], [1, 1])
            self.assertRaises(ValueError, s.put_batch, ["a"], bytes(8), [-1], [1])
            self.assertRaises(TypeError, s.put, 1.5, b"")
            self.assertRaises(ValueError, s.put, "a", 123456)
            self.assertRaises(ValueError, s.put, "a", 123456, 0, 8)
            s.put("a", b"12345678")
            self.assertRaises(ValueError, s.get, "a", bytearray(7))
            self.assertRaises(ValueError, s.get, "a", bytes(8))
            self.assertEqual(len(s), 1)
            s.close()
            for do in (lambda: s.put("a", b""), lambda: s.get("a", bytearray(8)), s.commit):
                self.assertRaises(ValueError, do)
        self.assertRaisesRegex(ValueError, "has 8 slots of 4096", kv.Slab, path("refused"), 4096, 9)
        self.assertRaises(ValueError, kv.Slab, path("refused"), 5000, 8)

    def test_format(self):  # docs/SPEC.md, by hand: a file that has it is a slab, and one that is made has it
        def header(ident, size, slots, index=4096, data=8192, version=1):
            raw = struct.pack("<8sII16sQQQQ", b"LANEFSKV", version, 0, ident, size, slots, index, data)
            return (raw[:12] + struct.pack("<I", zlib.crc32(raw)) + raw[16:]).ljust(4096, b"\0")

        def entry(ident, slot, generation, block, key, flags=1):
            words = struct.unpack("<2Q", block.ljust(16, b"\0"))
            raw = struct.pack("<4sIQQQ32sI60x", b"KVE1", 0, generation, len(block), (words[0] + 3 * words[1]) % 2**64 if flags else 0,
                              hashlib.blake2b(key, digest_size=32, person=b"lanefs.kvb").digest(), flags)
            return raw[:4] + struct.pack("<I", zlib.crc32(ident + struct.pack("<Q", slot) + raw)) + raw[8:]

        def made(name, *args):
            with open(path(name), "wb") as f:
                f.write(b"".join(args))
            return path(name)
        ident, block = b"0123456789abcdef", b"a block of 16 b."
        p = made("by hand", header(ident, 4096, 9), bytes(128), entry(ident, 1, 2**63 - 1, block, b"key"), entry(ident, 2, 1, b"no sum", b"plain", 0), bytes(4096 - 3 * 128),
                 bytes(4096), block.ljust(4096, b"\0"), b"no sum")
        with kv.Slab(p, mode="r") as s:
            b = bytearray(32)
            self.assertEqual((s.slot_size, s.slots, s.get_batch([b"key", b"plain"], b, [0, 16]), b), (4096, 9, [16, 6], block + b"no sum".ljust(16, b"\0")))
        with kv.Slab(path("made"), 4096, 9) as s:
            s.put(b"key", block)
        with kv.Slab(path("made"), verify=False) as s:
            s.put(b"plain", b"no sum")
        with open(path("made"), "rb") as f:
            raw = f.read()
        ident = raw[16:32]
        self.assertEqual(raw[:8192], header(ident, 4096, 9) + (entry(ident, 0, 1, block, b"key") + entry(ident, 1, 2, b"no sum", b"plain", 0)).ljust(4096, b"\0"))
        self.assertEqual((len(raw), raw[8192:8208], raw[12288:12294]), (8192 + 9 * 4096, block, b"no sum"))
        with kv.Slab(made("no slots yet", header(ident, 4096, 9), bytes(4096)), mode="r") as s:
            self.assertEqual(len(s), 0)
        index = bytearray(128 * 9000)  # longer than what is read at once
        index[-128:] = entry(ident, 8999, 1, block, b"last")
        with open(made("large", header(ident, 4096, 9000, data=4096 + 1155072), index), "r+b") as f:
            f.seek(4096 + 1155072 + 8999 * 4096)
            f.write(block)
        with kv.Slab(path("large"), mode="r") as s:
            self.assertEqual((s.get(b"last", b), b[:16]), (16, block))
        for args in ((0, 9), (4096, 0), (4097, 9), (4096, 9, 8192), (4096, 9, 4096, 4096), (4096, 33), (4096, 32, 4096, 12288), (1 << 58, 9)):
            self.assertRaisesRegex(ValueError, "not one that LaneFS writes", kv.Slab, made("wrong", header(ident, *args), bytes(1 << 20)), mode="r")
        self.assertRaisesRegex(ValueError, "version 2", kv.Slab, made("wrong", header(ident, 4096, 9, version=2), bytes(1 << 20)))
        self.assertRaisesRegex(ValueError, "no slab", kv.Slab, made("wrong", header(ident, 4096, 9)[:63]))

    def test_nothing_evicted_in_vain(self):  # by puts that cannot be, nor where slots of what was evicted are left
        with kv.Slab(path("in vain"), 4096, 200, verify=False) as s:
            s.put_batch(range(200), bytes(200), range(200), [1] * 200)
            self.assertRaises(ValueError, s.put_batch, ["a"], bytes(8), [8], [1])
            self.assertRaises(ValueError, s.put_batch, ["a"], bytes(8), [0, 1], [1, 1])
            self.assertRaises(kv.Full, s.put_batch, range(300, 501), bytes(201), range(201), [1] * 201)
            self.assertEqual(len(s), 200)
            s.commit()
            s.evict(0)
            s.put("in its place", b"x")
            self.assertEqual(len(s), 200)
            self.assertTrue(all(i in s for i in range(1, 200)))
        with kv.Slab(path("no eviction"), 4096, 8, evict=False) as s:
            s.put_batch(range(8), bytes(8), range(8), [1] * 8)
            s.commit()
            s.evict(0)
            s.put("in its place", b"x")
            self.assertRaises(kv.Full, s.put, "one more", b"x")

    def test_failed_commit(self):  # what it may have left half done is put right, and is on the medium, before anything else is written to the index
        with kv.Slab(path("failed commit"), 4096, 64) as s:
            s.put("key", b"old")  # its entry is in the index's first page
            s.commit()
            s.put_batch(range(40), bytes(40), range(40), [1] * 40)
            s.commit()
            s.put("key", b"new")  # in the second
            real, done = (os.pwrite, os.fsync), []
            with mock.patch("os.fsync", side_effect=[None, OSError(5, "as if")]):
                self.assertRaises(OSError, s.commit)
            s.evict("key")

            def pwrite(fd, data, at):
                done.append(at // 4096)
                return real[0](fd, data, at)

            def fsync(fd):
                done.append("fsync")
                return real[1](fd)
            with mock.patch("os.pwrite", pwrite), mock.patch("os.fsync", fsync):
                s.commit()
            self.assertIn("fsync", done[done.index(1):done.index(2)], done)
            self.assertEqual(done[-1], "fsync")
            s.put("last", b"x")
            with mock.patch("os.pwrite", return_value=10):
                self.assertRaises(OSError, s.commit)
        with kv.Slab(path("failed commit")) as s:
            self.assertEqual((len(s), "key" in s, "last" in s), (41, False, True))

    def test_damaged_once(self):
        with kv.Slab(path("damaged once"), 4096, 8) as s:
            s.put_batch(["a", "b"], b"aabb", [0, 2], [2, 2])
            at = s._layout.data
        with open(path("damaged once"), "r+b") as f:
            f.seek(at)
            f.write(b"x")
        for mode in "r", "r+":
            with kv.Slab(path("damaged once"), mode=mode) as s:
                for _ in range(2):
                    b = bytearray(4)
                    self.assertEqual(s.get_batch(["a", "b"], b, [0, 2]), [None, 2])
                    self.assertEqual((b[2:], s.damaged, "a" in s, len(s)), (b"bb", 1, False, 1))
        with kv.Slab(path("damaged once")) as s:
            self.assertEqual((len(s), len(s._free)), (1, 7))

    def test_handler(self):  # of a signal, in the middle of a call of its thread: it neither waits for itself nor finds a slab half changed
        with kv.Slab(path("handler"), 4096, 4) as s:
            s.put("a", b"a")
            for lock, calls in (s._lock, (lambda: s.put("b", b""), lambda: s.get("a", bytearray(1)), lambda: s.evict("a"), s.commit)), (s._commit, (s.commit, s.close)):
                for call in calls:
                    with self.assertRaises(OSError) as e, lock:
                        call()
                    self.assertEqual(e.exception.errno, errno.EDEADLK)
                    if call == s.close:
                        break
                    with lock:
                        self.assertTrue("a" in s and len(s) == 1)

    def test_interrupted(self):
        """At each line of a put, a get, an eviction and a commit: no slot is lost, or is two blocks', and what the next commit has made durable is what the slab has."""
        names, n, ends = "abcdef", 0, False
        while not ends:
            n, lines, last, ends = n + 1, 0, None, True

            def trace(frame, event, _):
                nonlocal lines, last
                if frame.f_code.co_filename != kv.__file__:
                    return None
                at, last = last, (frame, frame.f_lineno)
                # Not where no signal comes: between the end of a block and the lock's; nor again in one line, where Python 3.12 finds no handler.
                if event == "line" and at != last and not linecache.getline(kv.__file__, frame.f_lineno).strip().startswith("with "):
                    lines += 1
                    if lines == n:
                        raise KeyboardInterrupt
                return trace
            s = kv.Slab(path("interrupted"), 4096, 5, verify=False)
            s.put_batch("abc", b"abc", range(3), [1] * 3)
            s.commit()
            s.put("d", b"d")
            s.evict("a")
            sys.settrace(trace)
            try:
                s.put_batch("be", b"BE", range(2), [1] * 2)
                s.get("c", bytearray(1))
                s.evict("c")
                s.put_batch("fa", b"FA", range(2), [1] * 2)
                s.commit()
            except KeyboardInterrupt:
                ends = False
            finally:
                sys.settrace(None)
            slots = sorted(s._free + s._dirty + [b.slot for b in s._blocks.values()])
            self.assertEqual(slots, list(range(5)), n)
            s.commit()
            b = bytearray(1)
            has = {k: s.get(k, b) and bytes(b) for k in names if k in s}
            self.assertTrue(all(v.lower() == k.encode() for k, v in has.items()), (n, has))
            s._f.close()  # as if it were killed
            self.assertEqual(read_all("interrupted", names), has, n)
            os.unlink(path("interrupted"))
        self.assertGreater(n, 80)

    def test_interrupted_write(self):  # which may be under way yet: nobody else has the slab, whose slots are free, before it has ended
        s, p = kv.Slab(path("interrupted write"), 4096, 4), path("interrupted write")
        with mock.patch("lanefs.File.write_batch", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, s.put, "a", b"a")
        waits = []

        def wait(stage, *args):
            waits.append(self.assertRaises(BlockingIOError, kv.Slab, p))
            return real(stage, *args)
        real = lanefs._stage.Stage.one
        with mock.patch.object(lanefs._stage.Stage, "one", wait):
            s.close()
        self.assertEqual(len(waits), 1)
        with kv.Slab(p) as s:
            self.assertEqual(len(s), 0)

    def test_held(self):  # memory that changes its size does not while a call uses it
        b, seen = bytearray(8), []

        def sums(*args):
            self.assertRaises(BufferError, b.clear)
            seen.append(len(b))
            return real(*args)
        real = kv.sums
        with kv.Slab(path("held"), 4096, 8) as s, mock.patch.object(kv, "sums", sums):
            s.put("a", b)
            self.assertEqual(s.get("a", b), 8)
        self.assertEqual(seen, [8, 8])
        b.clear()

    def test_closed_at_once(self):  # by two threads: the one that comes too late for its commit hears so
        s = kv.Slab(path("closed at once"), 4096, 8)
        commit = s.commit

        def late():
            with mock.patch.object(s, "commit", commit):
                thread = threading.Thread(target=s.close)
                thread.start()
                thread.join()
            commit()
        with mock.patch.object(s, "commit", late):
            self.assertRaisesRegex(ValueError, "closed", s.close)
        s.close()

    def test_made_at_once(self):
        found, failures = [], []

        def make():
            while not failures:
                try:
                    with kv.Slab(path("at once"), 4096, 1000) as s:
                        found.append(s._layout.ident)
                    return
                except BlockingIOError:
                    continue
                except Exception as e:
                    failures.append(e)
        threads = [threading.Thread(target=make) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((failures, len(found), len(set(found))), ([], 4, 1))

    def test_made_durable(self):
        """A slab has its name when its bytes are on the medium, and the name is there too when it is made."""
        calls = mock.Mock()
        with mock.patch.object(_slab.os, "fsync", wraps=os.fsync) as fsync, mock.patch.object(_slab.os, "link", wraps=os.link) as link:
            calls.attach_mock(fsync, "fsync")
            calls.attach_mock(link, "link")
            _slab.create(path("durable"), _slab.Layout.new(4096, 8))
        self.assertEqual([c[0] for c in calls.mock_calls], ["fsync", "link", "fsync"])

    def test_made_after_a_kill(self):
        program = "import os, sys; from lanefs import kv; os.fsync = lambda *_: os.kill(os.getpid(), 9); kv.Slab(sys.argv[1], 4096, 100)"
        self.assertEqual(subprocess.run([sys.executable, "-c", program, path("killed")]).returncode, -9)
        with open(f"{path('killed')}.{os.getpid()}.tmp", "w"):
            pass  # of older versions: that of a program with this one's number
        left = lambda: [n for n in os.listdir(DIR) if n.startswith("killed")]
        self.assertEqual(len(left()), 2)
        with kv.Slab(path("killed"), 4096, 100) as s:
            s.put("a", b"data")
        self.assertEqual(sorted(left()), ["killed", f"killed.{os.getpid()}.tmp"])
        os.unlink(f"{path('killed')}.{os.getpid()}.tmp")

    def test_fork(self):
        with kv.Slab(path("forked"), 4096, 8) as s:
            s.put("a", b"parent")
            pid = os.fork()
            if pid == 0:
                try:
                    s.put("a", b"child")
                except OSError:
                    s.close()
                    os._exit(3)
                os._exit(4)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 3)
            s.put("b", b"parent")
        with kv.Slab(path("forked")) as s:
            self.assertEqual(len(s), 2)

    def test_fork_beside_threads(self):  # whose locks nobody gives back in the child
        with kv.Slab(path("forked beside"), 4096, 8) as s:
            s.put("a", b"parent")
            held, forked = threading.Event(), threading.Event()

            def hold():
                with s._commit, s._lock:
                    held.set()
                    forked.wait()
            t = threading.Thread(target=hold)
            t.start()
            held.wait()
            pid = os.fork()
            if pid == 0:
                signal.alarm(100)
                try:
                    if "a" not in s or "b" in s or len(s) != 1:
                        os._exit(2)
                    for do in s.commit, lambda: s.get("a", bytearray(10)), lambda: s.put("b", b""), lambda: s.evict("a"):
                        try:
                            do()
                        except OSError:
                            continue
                        os._exit(3)
                    s.close()
                    os._exit(0)
                finally:
                    os._exit(4)
            forked.set()
            t.join()
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)

    def test_fallback(self):
        with self.assertWarns(RuntimeWarning), kv.Slab(os.path.join(OUTSIDE, "fallback"), 4096, 8, fallback=True) as s:
            s.put("a", b"data")
            b = bytearray(4)
            self.assertEqual((s.get("a", b), b), (4, b"data"))

    def test_threads(self):
        errors = []
        with kv.Slab(path("threads"), 4096, 16) as s:
            def work(k):
                r = random.Random(k)
                try:
                    for i in range(60):
                        key = r.randrange(24)
                        what = r.random()
                        if what < 0.4:
                            s.put(key, struct.pack("<QQ", key, r.getrandbits(64)) * 200)
                        elif what < 0.5:
                            s.evict(key)
                        elif what < 0.6:
                            s.commit()
                        else:
                            b = bytearray(4096)
                            n = s.get(key, b)
                            if n is not None and (n != 3200 or b[:16] * 200 != b[:3200] or b[0] != key):
                                errors.append((key, n))
                except Exception as e:
                    errors.append(e)
            threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual((errors, s.damaged), ([], 0))
            self.assertEqual(sorted(s._free + s._dirty + [b.slot for b in s._blocks.values()]), list(range(16)), "no slot is lost")


    def test_replaced_meanwhile(self):
        """While a block is read its key gets another one, and its slot another key's: not found, for the bytes are none of its own."""
        plain = lanefs.File.read_batch
        for verify in True, False:
            with kv.Slab(path("replaced"), 4096, 3, verify=verify) as s:
                s.put("a", b"aaaa")

                def read_batch(*args, **kwargs):
                    if "c" not in s:
                        s.put("a", b"AAAA")
                        s.put_batch(["b", "c"], b"bbbbcccc", [0, 4], [4, 4])
                    return plain(*args, **kwargs)
                with mock.patch("lanefs.File.read_batch", read_batch):
                    self.assertIsNone(s.get("a", bytearray(4)))
                b = bytearray(12)
                self.assertEqual((s.get_batch(["a", "b", "c"], b, [0, 4, 8]), b, s.damaged), ([4, 4, 4], b"AAAAbbbbcccc", 0))
            os.unlink(path("replaced"))


def read_all(name, keys):
    with kv.Slab(path(name)) as s:
        out = {}
        for key in keys:
            b = bytearray(4096)
            n = s.get(key, b)
            if n is not None:
                out[key] = bytes(b[:n])
        return out


class Crashes(unittest.TestCase):
    """What a reader may find: of a key the block of the last commit that returned, or a later put; after an evict, nothing too; never anything else."""

    def allowed(self, history, committed, found):
        """history: per key, its puts in order (None: an evict); committed: per key, how many of them a commit has returned for."""
        for key, values in history.items():
            done = committed.get(key, 0)
            ok = values[max(0, done - 1):] if done else [None, *values]
            # A commit that did not return may have made the old entry zero before the new one is there.
            if done < len(values):
                ok = [None, *ok]
            self.assertIn(found.get(key), ok, f"key {key}, seed {SEED}")
        self.assertEqual(set(found) - set(history), set())

    def run_of(self, s, steps, seed):
        """Random operations. Yields history and committed after each."""
        r = random.Random(seed)
        history, committed = collections.defaultdict(list), {}
        for i in range(steps):
            key, what = r.randrange(10), r.random()
            if what < 0.65:
                value = block((seed, i).__hash__())
                history[key].append(value)
                s.put(key, value)
            elif what < 0.8:
                if s.evict(key):
                    history[key].append(None)
            else:
                s.commit()
                committed = {k: len(v) for k, v in history.items()}
            yield history, committed

    def test_power(self):
        """A loss of power at every write and flush: what was flushed is there, of the rest any sectors."""
        self.power("power", True)

    def test_power_without_sums(self):
        self.power("power without", False)

    def power(self, name, verify):
        r = random.Random(SEED)
        log = []  # (offset, bytes), None for a flush, or ("state", history, committed)

        class Recorder:
            def __getattr__(self, f):
                return getattr(os, f)

            def pwrite(self, fd, data, offset):
                log.append((offset, bytes(data)))
                return os.pwrite(fd, data, offset)

            def fsync(self, fd):
                os.fsync(fd)
                log.append(None)

        plain = lanefs.File.write_batch

        def write_batch(f, memory, file_offsets, offsets, lengths, stream=None):
            for o, a, n in zip(file_offsets, offsets, lengths):
                log.append((o, bytes(memory[a:a + n])))
            return plain(f, memory, file_offsets, offsets, lengths, stream=stream)
        with kv.Slab(path(name), 4096, 14, verify=verify) as s:
            with open(path(name), "rb") as f:
                start = f.read()
            with mock.patch("lanefs.kv.os", Recorder()), mock.patch("lanefs.File.write_batch", write_batch):
                for history, committed in self.run_of(s, 80, SEED):
                    log.append(("state", {k: list(v) for k, v in history.items()}, dict(committed)))
        flushed, loose = bytearray(start), []
        state = ({}, {})
        points = 0
        for i, entry in enumerate(log):
            if entry is None:
                for at, data in loose:
                    flushed[at:at + len(data)] = data
                loose = []
                if r.random() < 0.5:
                    continue
            elif entry[0] == "state":
                state = entry[1:]
                continue
            else:
                loose.append(entry)
            # The operation under way is in no state yet: its put may be found, so the next state says what is allowed.
            image = bytearray(flushed)
            for at, data in loose:
                for sector in range(0, len(data), 512):
                    if r.random() < 0.6:
                        part = data[sector:sector + 512]
                        image[at + sector:at + sector + len(part)] = part
            with open(path("image"), "wb") as f:
                f.write(image)
            points += 1
            found = read_all("image", range(10))
            later = next((e for e in log[i:] if e is not None and e[0] == "state"), None)
            self.allowed(later[1] if later else state[0], state[1], found)
        self.assertGreater(points, 40)

    def test_kill(self):
        """SIGKILL at random moments; the next program goes on with what the last one left."""
        program = """if 1:
            import random, sys
            sys.path.insert(0, sys.argv[1])
            from lanefs import kv
            path, seed = sys.argv[2], int(sys.argv[3])
            r = random.Random(seed)
            with kv.Slab(path, 4096, 24) as s:
                print("open", flush=True)
                for i in range(1 << 30):
                    keys = r.sample(range(40), 4)
                    data = b"".join(b"%08d%016d" % (k, seed * 1000000 + i) * 100 for k in keys)
                    print("put", seed * 1000000 + i, *keys, flush=True)
                    s.put_batch(keys, data, range(0, 9600, 2400), [2400] * 4)
                    s.commit()
                    print("done", seed * 1000000 + i, flush=True)
        """
        history, committed = collections.defaultdict(list), {}
        r = random.Random(SEED)
        for n in range(8):
            child = subprocess.Popen([sys.executable, "-c", program, os.path.dirname(os.path.dirname(lanefs.__file__)), path("kill"), str(n)],
                                     stdout=subprocess.PIPE, text=True)
            try:
                self.assertEqual(child.stdout.readline(), "open\n")
                threading.Timer(r.uniform(0.005, 0.15), child.send_signal, [signal.SIGKILL]).start()
                for line in child.stdout:
                    if not line.endswith("\n"):
                        break
                    what, number, *keys = line.split()
                    if what == "put":
                        for key in keys:
                            history[int(key)].append(int(number))
                    else:
                        committed = {k: v[-1] for k, v in history.items()}
            finally:
                child.kill()
                child.wait()
                child.stdout.close()
            found = read_all("kill", range(40))
            for key, data in found.items():
                self.assertEqual(len(data), 2400)
                number = int(data[8:24])
                self.assertEqual(data, b"%08d%016d" % (key, number) * 100)
                self.assertIn(number, [v for v in history[key] if v >= committed.get(key, 0)], f"key {key}: an older block, seed {SEED}")
            # What was put and not committed is lost, and never comes back.
            history = collections.defaultdict(list, {key: [int(data[8:24])] for key, data in found.items()})
            committed = {key: v[-1] for key, v in history.items()}
            with kv.Slab(path("kill")) as s:
                self.assertGreaterEqual(len(s), min(20, len(committed)), "evicted were only so many as a put needed")
                self.assertEqual(s.damaged, 0)

    def test_damage(self):
        values = {i: block(i, 3000 + i) for i in range(12)}
        with kv.Slab(path("damage"), 4096, 12) as s:
            s.put_batch(list(values), b"".join(values.values()), [sum(len(values[j]) for j in range(i)) for i in range(12)], [len(v) for v in values.values()])
            layout = s._layout
        with open(path("damage"), "rb") as f:
            good = f.read()
        r = random.Random(SEED)

        def look(image):
            with open(path("damaged"), "wb") as f:
                f.write(image)
            try:
                found = read_all("damaged", range(12))
            except ValueError as e:
                return str(e)
            for key, data in found.items():
                self.assertEqual(data, values[key], f"seed {SEED}")
            return len(found)

        def flip(at):
            image = bytearray(good)
            image[at] ^= 1 << r.randrange(8)
            return bytes(image)
        self.assertEqual(look(good), 12)
        for at in (8, 12, 16, 40, 56, 63):
            self.assertRegex(str(look(flip(at))), "damaged|version")
        for _ in range(30):
            self.assertEqual(look(flip(layout.index + r.randrange(12 * _slab.ENTRY.size - 60))), 11)
        for _ in range(30):
            slot = r.randrange(12)
            self.assertEqual(look(flip(layout.slot(slot) + r.randrange(3000))), 11)
        for n in [0, 63, 4095, 4096, layout.index + 640, layout.data] + [r.randrange(layout.data, len(good)) for _ in range(15)]:
            self.assertIn(type(look(good[:n])), (int, str))
        for n in 4096, layout.index + 640:
            self.assertIn("for its index alone", look(good[:n]))
        many = _slab.Layout(layout.ident, 4096, 1 << 40, 4096, 4096 + (128 << 40))
        self.assertIn("for its index alone", look(many.header() + good[4096:]))
        last = bytearray(good)
        last[layout.index:layout.index + 128] = layout.entry(0, 2**64 - 1, 5, 0, bytes(32))
        self.assertEqual(look(bytes(last)), 11)
        with kv.Slab(path("damaged")) as s:
            s.put("after", b"it")
            s.commit()
        other = good[:layout.index] + good[layout.index + 128:layout.index + 1536] + good[layout.index:layout.index + 128] + good[layout.index + 1536:]
        self.assertEqual(look(other), 0, "entries in the wrong place are none")

        def entries(image):  # whatever their blocks have
            with open(path("damaged"), "wb") as f:
                f.write(image)
            with kv.Slab(path("damaged"), mode="r", verify=False) as s:
                return len(s)
        self.assertEqual((entries(good), entries(other)), (12, 0))
        twin = _slab.Layout.new(4096, 12).header() + good[4096:]
        self.assertEqual(entries(twin), 0, "those of another slab are none")
        longer = bytearray(good)
        longer[layout.index:layout.index + 128] = layout.entry(0, 5, 4097, 0, bytes(32))
        self.assertEqual(entries(bytes(longer)), 11)

    def test_older_entry(self):
        """The entry that a commit was to make zero is still there: the newer one counts, though its slot comes before or after."""
        for name, before in ("after", b""), ("before", b"x"):
            with kv.Slab(path(name), 4096, 4) as s:
                if before:
                    s.put("other", before)
                for value in b"old", b"new":
                    s.put("a", value)
                    if before and value == b"new":
                        self.assertEqual(s._blocks[kv._digest("a")].slot, 0)
                    s.commit()
                    with open(path(name), "rb") as f:
                        f.seek(s._layout.index)
                        index = f.read(4 * _slab.ENTRY.size)
                    if value == b"old":
                        older = index
                        s.evict("other")
                        s.commit()
                layout = s._layout
            with open(path(name), "r+b") as f:
                for at in range(0, len(index), _slab.ENTRY.size):
                    if index[at:at + _slab.ENTRY.size] == _slab.FREE:
                        f.seek(layout.index + at)
                        f.write(older[at:at + _slab.ENTRY.size])
            self.assertEqual(read_all(name, ["a"]), {"a": b"new"})
            os.unlink(path(name))

    def test_two_entries(self):
        """What a commit that was cut short left: two blocks of a key. The newest counts, whichever slot it has, and the other does not come back when that is evicted."""
        for old, new in (0, 1), (1, 0):
            with kv.Slab(path("two"), 4096, 4) as s:
                s.put_batch(["a", "b"], b"onetwo", [0, 3], [3, 3])
                s.commit()
                blocks = [s._blocks[kv._digest(k)] for k in ("a", "b")]
                blocks.sort(key=lambda b: b.slot)
                layout = s._layout
            with open(path("two"), "r+b") as f:
                for generation, slot in (5, old), (6, new):
                    b = blocks[slot]
                    f.seek(layout.index + b.slot * _slab.ENTRY.size)
                    f.write(layout.entry(b.slot, generation, 3, b.sum, kv._digest("k")))
                f.seek(layout.slot(blocks[new].slot))
                want = f.read(3)
            b = bytearray(3)
            with kv.Slab(path("two"), mode="r") as s:
                self.assertEqual((s.get("k", b), b, len(s)), (3, want, 1))
            with kv.Slab(path("two")) as s:
                self.assertEqual((s.get("k", b), b, len(s)), (3, want, 1))
                self.assertTrue(s.evict("k"))
            self.assertEqual(read_all("two", ["k", "a", "b"]), {})
            os.unlink(path("two"))

    def test_replaced_in_a_commit(self):
        """Between a commit's steps a block is replaced, and its slot becomes another's: no entry says that those bytes are the key's, and the new one is not forgotten."""
        with kv.Slab(path("during"), 4096, 3, verify=False) as s:
            s.put("a", b"old")
            fsync, begun = os.fsync, []

            def meanwhile(fd):
                if not begun:
                    begun.append(fd)
                    s.put("a", b"new")
                    s.put_batch(["b", "c"], b"bbbccc", [0, 3], [3, 3])
                fsync(fd)
            with mock.patch("lanefs.kv.os.fsync", meanwhile):
                s.commit()
            for want in ({}, {"a": b"new", "b": b"bbb", "c": b"ccc"}):
                with open(path("during"), "rb") as f, open(path("image of it"), "wb") as g:
                    g.write(f.read())
                self.assertEqual(read_all("image of it", ["a", "b", "c"]), want)
                s.commit()

    def test_commit_fails(self):
        with kv.Slab(path("fails"), 4096, 8) as s:
            s.put("a", b"old")
            s.commit()
            s.put("a", b"new")
            s.put("b", b"new")
            for call in "fsync", "pwrite":
                with mock.patch(f"lanefs.kv.os.{call}", side_effect=OSError(5, "the medium")):
                    self.assertRaises(OSError, s.commit)
                b = bytearray(3)
                self.assertEqual((s.get("a", b), b), (3, b"new"))
            with mock.patch("lanefs.File.write_batch", side_effect=OSError(5, "the medium")):
                self.assertRaises(OSError, s.put, "c", b"x")
            self.assertFalse("c" in s)
            with mock.patch("lanefs.File.write_batch", return_value=[2]), self.assertRaisesRegex(OSError, "Errno 5"):
                s.put("b", b"cut")
            with mock.patch("lanefs.File.read_batch", return_value=[-5]), self.assertRaisesRegex(OSError, "Errno 5"):
                s.get("b", b)
            self.assertEqual((s.get("b", b), b, s.damaged), (3, b"new", 0))  # no block is given up for what the medium says
            s.commit()
            self.assertEqual(sorted(s._free + s._dirty + [b.slot for b in s._blocks.values()]), list(range(8)))
        self.assertEqual(read_all("fails", ["a", "b", "c"]), {"a": b"new", "b": b"new"})
        # What was evicted or replaced while a commit failed is not the next one's.
        with kv.Slab(path("fails meanwhile"), 4096, 8) as s:
            s.put("a", b"old")
            s.put("b", b"old")

            def meanwhile(*_):
                s.evict("a")
                s.put("b", b"new")
                raise OSError(5, "the medium")
            with mock.patch("lanefs.kv.os.pwrite", meanwhile):
                self.assertRaises(OSError, s.commit)
            s.commit()
            s._f.close()
            self.assertEqual(read_all("fails meanwhile", ["a", "b"]), {"b": b"new"})
            s._f = None
        # With nothing else to write, the entries that could not be are what the next commit has.
        for call in "fsync", "pwrite":
            with kv.Slab(path("again " + call), 4096, 8) as s:
                s.put("a", b"one")
                real = getattr(os, call)
                results = iter([real] if call == "fsync" else [])  # of two fsyncs the second

                def fails(*args):
                    for f in results:
                        return f(*args)
                    raise OSError(5, "the medium")
                with mock.patch(f"lanefs.kv.os.{call}", fails):
                    self.assertRaises(OSError, s.commit)
                with mock.patch(f"lanefs.kv.os.{call}", wraps=real) as done:
                    s.commit()
                self.assertTrue(done.called)
            self.assertEqual(read_all("again " + call, ["a"]), {"a": b"one"})


if __name__ == "__main__":
    print("seed", SEED)
    unittest.main(verbosity=2)
