"""Tests of lanefs.torch on a mount with the host runtime: LANEFS_TEST_DIR is its directory. Run by the Go test beside this, where PyTorch is."""

import dataclasses
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
import types
import unittest
import warnings
import weakref
from unittest import mock

import lanefs
import torch
from lanefs import torch as lt

DIR = os.environ["LANEFS_TEST_DIR"]
OUTSIDE = os.environ["LANEFS_TEST_OUTSIDE"]


def path(*name):
    return os.path.join(DIR, *name)


try:
    import torch.distributed.checkpoint
except ImportError:
    # Before PyTorch 2.0 it was elsewhere, and Python 3.11 refuses one of its classes, which is a default without a hash.
    dataclass = dataclasses.dataclass
    with mock.patch("dataclasses.dataclass", lambda cls=None, **kw: dataclass(cls, unsafe_hash=getattr(cls, "__name__", "") == "TensorProperties", **kw)):
        import torch.distributed._shard.checkpoint


def some():
    torch.manual_seed(5)
    return {"w": torch.randn(300, 70), "h": torch.randn(1001).half(), "b": torch.randn(3, 5).bfloat16(), "s": torch.tensor(-5),
            "flag": torch.tensor([True, False, True]), "empty": torch.empty(0, 7)}


class Case(unittest.TestCase):
    def same(self, a, b):
        self.assertEqual(a.keys(), b.keys())
        for name, t in a.items():
            self.assertEqual((t.dtype, t.shape), (b[name].dtype, b[name].shape), name)
            self.assertTrue(torch.equal(t, b[name]), name)


class Files(Case):
    def test_round_trip(self):
        want = some()
        lt.save_file(want, path("a.safetensors"), {"step": "3"})
        got = lt.load_file(path("a.safetensors"))
        self.same(want, got)
        got["w"][0] = 7  # memory of one's own
        self.same(want, lt.load_file(path("a.safetensors"), "cpu"))
        self.assertEqual(len({t.data_ptr() for t in got.values() if t.numel()}), 5)
        shared = lanefs.load_safetensors(path("a.safetensors"), framework="torch")
        self.assertEqual(shared.metadata, {"step": "3"})
        self.same(want, shared)
        self.assertTrue(all(t.data_ptr() % t.element_size() == 0 for t in shared.values()))
        self.assertEqual(shared["w"].data_ptr() % 256, 0)
        self.assertEqual([n for n in os.listdir(DIR) if n.endswith(".tmp")], [])

    def test_like_safetensors(self):
        """The signatures are those of safetensors.torch, with keywords behind them; where it is installed, each reads what the other has written."""
        theirs = {"load_file": [("filename", inspect.Parameter.empty), ("device", "cpu")],
                  "save_file": [("tensors", inspect.Parameter.empty), ("filename", inspect.Parameter.empty), ("metadata", None)]}
        try:
            import safetensors.torch as st
            theirs = {name: [(p.name, p.default) for p in inspect.signature(getattr(st, name)).parameters.values()] for name in theirs}
        except ImportError:
            st = None
        for name, want in theirs.items():
            ours = list(inspect.signature(getattr(lt, name)).parameters.values())
            self.assertEqual([(p.name, p.default) for p in ours if p.kind == p.POSITIONAL_OR_KEYWORD], want)
            self.assertTrue(all(p.kind == p.KEYWORD_ONLY for p in ours[len(want):]))
        if st is not None:
            st.save_file(some(), path("theirs.safetensors"), {"by": "them"})
            lt.save_file(some(), path("ours.safetensors"), {"by": "us"})
            self.same(some(), lt.load_file(path("theirs.safetensors")))
            self.same(some(), st.load_file(path("ours.safetensors")))

    def test_refused(self):
        t, negative = torch.zeros(4, 4), torch._neg_view(torch.ones(2))
        with lanefs.open(path("lazy"), "w") as f:  # the bytes are not the values
            for lazy in negative, torch.tensor([1 + 2j]).conj():
                self.assertRaises(ValueError, f.read_into, lazy)
                self.assertRaises(ValueError, f.write_from, lazy)
        for bad, why in (([t], ValueError), ({"a": [1]}, ValueError), ({"a": t.t()[1:]}, ValueError), ({"a": t.to_sparse()}, ValueError),
                         ({"a": t, "b": t}, RuntimeError), ({"a": t, "b": t[1]}, RuntimeError), ({"a": torch.zeros(2, dtype=torch.complex128)}, ValueError),
                         *(({"a": torch.empty(3, device="meta"), **more}, ValueError) for more in ({}, {"b": torch.empty(3, device="meta")})), ({"\udc80": t}, ValueError),
                         ({"__metadata__": t}, ValueError), ({5: t}, ValueError), ({"a": negative}, ValueError)):
            self.assertRaises(why, lt.save_file, bad, path("refused.safetensors"))
        for bad in {"step": 3}, {3: "step"}, [], "text":
            self.assertRaises(TypeError, lt.save_file, {"a": t}, path("refused.safetensors"), bad)
        self.assertFalse(os.path.exists(path("refused.safetensors")))
        self.assertRaises(FileNotFoundError, lt.load_file, path("none.safetensors"))
        for data in (b"", b"short", b"\xff" * 100):
            with open(path("bad.safetensors"), "wb") as f:
                f.write(data)
            self.assertRaises(ValueError, lt.load_file, path("bad.safetensors"))
        lt.save_file(some(), path("cut.safetensors"))
        os.truncate(path("cut.safetensors"), os.path.getsize(path("cut.safetensors")) - 1)
        self.assertRaises(ValueError, lt.load_file, path("cut.safetensors"))

    def test_types(self):
        """Those of later versions of the format, as far as this PyTorch has them: of 4 bits an element of PyTorch's has two."""
        from lanefs import _safetensors
        want = {"c": torch.tensor([[1 + 2j, 3 - 4j]], dtype=torch.complex64), "é": torch.ones(2)}
        for name in "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu":
            if hasattr(torch, name):
                want[name] = torch.arange(4, dtype=torch.uint8).view(getattr(torch, name))
        lt.save_file(want, path("types.safetensors"))
        for got in lt.load_file(path("types.safetensors")), lanefs.load_safetensors(path("types.safetensors"), framework="torch"):
            self.assertEqual({k: (v.dtype, v.shape, bytes(v.contiguous().view(torch.uint8).flatten().tolist())) for k, v in got.items()},
                             {k: (v.dtype, v.shape, bytes(v.view(torch.uint8).flatten().tolist())) for k, v in want.items()})
        with open(path("types.safetensors"), "rb") as f:
            self.assertIn('"é":{"dtype":"F32"'.encode(), f.read())  # as safetensors has it
        four = torch.arange(6, dtype=torch.uint8).reshape(3, 2)
        with mock.patch.dict(_safetensors._TYPES, {"F4": (4, None, "uint8")}, clear=True):
            lt.save_file({"four": four}, path("types.safetensors"))
            self.same(lt.load_file(path("types.safetensors")), {"four": four})
            self.same(lanefs.load_safetensors(path("types.safetensors"), framework="torch"), {"four": four})
        t = lanefs.load_safetensors(path("types.safetensors"), framework="none")["four"]
        self.assertEqual((t.dtype, t.shape, bytes(t.memoryview())), ("F4", (3, 4), bytes(range(6))))
        lanefs.save({"four": t}, path("again.safetensors"))
        self.assertEqual(lanefs.load_safetensors(path("again.safetensors"), framework="none")["four"].shape, (3, 4))
        for shape in (), (4, 3):
            self.assertRaises(ValueError, _safetensors.torch_type, types.SimpleNamespace(float4_e2m1fn_x2=1), "F4", shape)
        with mock.patch.dict(_safetensors._TYPES, {"F4": (4, None, None)}), self.assertRaisesRegex(ValueError, "lacks"):
            lt.load_file(path("types.safetensors"))

    def test_one_element(self):  # is contiguous whatever stride it has
        x = torch.arange(20.).reshape(4, 5)
        want = {"column": x[:1, 3], "item": x[2:3, 1:2], "imag": torch.tensor([1 + 2j]).imag, "all": x}
        self.assertEqual((want["column"].stride(), want["column"].is_contiguous()), ((5,), True))
        lanefs.save(want, path("one.safetensors"))
        self.same({name: t.clone() for name, t in want.items()}, lt.load_file(path("one.safetensors")))
        for bad in torch.eye(3).to_sparse(), torch.empty(2, device="meta"):
            self.assertRaisesRegex(ValueError, "not in one place|no memory", lanefs.save, {"bad": bad}, path("bad.safetensors"))

    def test_bytes_are_values(self):
        for lazy in torch._neg_view(torch.ones(2)), torch.tensor([1 + 2j]).conj():
            lanefs.save({"a": lazy}, path("lazy.safetensors"))
            self.assertTrue(torch.equal(lt.load_file(path("lazy.safetensors"))["a"], lazy))

    def test_devices(self):  # that no lane reaches get what is read by way of the CPU's memory
        lt.save_file(some(), path("devices.safetensors"))
        got = lt.load_file(path("devices.safetensors"), "meta")
        self.assertEqual({k: (v.device.type, v.shape, v.dtype) for k, v in got.items()}, {k: ("meta", v.shape, v.dtype) for k, v in some().items()})

    def test_replaced(self):
        """A new file has the owner and the mode of the one that it replaces, as if that had been written to; nobody else reads it before."""
        p = path("replaced.safetensors")
        lt.save_file({"a": torch.zeros(3)}, p)
        mask = os.umask(0)
        os.umask(mask)
        self.assertEqual(os.stat(p).st_mode & 0o777, 0o666 & ~mask)
        chown, chmod = os.fchown, os.fchmod
        for mode, may in (0o640, True), (0o400, True), (0o664, "group"), (0o664, False):
            os.chmod(p, mode)
            if os.geteuid() == 0:
                os.chown(p, 1234, 4321)
            was, seen = os.stat(p), []

            def fchown(fd, uid, gid):
                if not may or may == "group" and uid != -1:
                    raise PermissionError(1, "as for ordinary users")
                chown(fd, uid, gid)

            def fchmod(fd, mode):
                seen.append(mode)
                chmod(fd, mode)
            with mock.patch("os.fchown", fchown), mock.patch("os.fchmod", fchmod):
                lt.save_file({"a": torch.ones(3)}, p)
            now = os.stat(p)
            self.assertEqual(seen[0], 0o600)
            self.assertEqual(now.st_mode & 0o777, mode if may else mode & 0o707)
            self.assertEqual((now.st_uid, now.st_gid), (was.st_uid if may is True else os.geteuid(), was.st_gid if may else os.getegid()))
            self.assertTrue(torch.equal(lt.load_file(p)["a"], torch.ones(3)))

    def test_long_names(self):  # of as many bytes as there may be: there is no room behind them for what a new file's name has besides
        for n in 234, 235, 255:
            for p in path("x" * n), path("é" * (n // 2)):
                lt.save_file({"a": torch.zeros(3)}, p)
                program = "import lanefs.torch as lt, os, sys; t = lt.load_file(sys.argv[1]); os.rename = lambda *_: os.kill(os.getpid(), 9); lt.save_file(t, sys.argv[1])"
                if p == path("x" * 255):
                    self.assertEqual(subprocess.run([sys.executable, "-c", program, p]).returncode, -9)
                lt.save_file({"a": torch.ones(3)}, p)  # and deletes what that left
                self.assertEqual(lt.load_file(p)["a"].tolist(), [1] * 3)
                self.assertEqual([name for name in os.listdir(DIR) if name.endswith(".tmp")], [])
                os.unlink(p)
        self.assertRaises(OSError, lt.save_file, {"a": torch.zeros(3)}, path("x" * 256))

    def test_changes(self):
        """A file that changes while it is loaded is loaded again, one that changes all the time is not, and what cannot be read is no tensor's."""
        from lanefs.torch import _files
        name, old, new = path("changes.safetensors"), {"w": torch.zeros(5000)}, {"w": torch.ones(5000)}
        lt.save_file(new, name)
        with open(name, "rb") as f:
            image = f.read()
        read, header, times = _files._pieces.read, _files.header, []

        def change():
            times.append(1)
            with open(name, "r+b") as f:
                f.write(image)
            os.utime(name, ns=(0, len(times)))

        def read_once(*args):
            read(*args)
            if not times:
                change()

        def header_once(f):
            if not times:
                change()
                raise ValueError("half of an older one")
            return header(f)
        for mocked in {"read": read_once}, {"header": header_once}:
            lt.save_file(old, name)
            times.clear()
            with mock.patch.object(_files._pieces, "read", mocked.get("read", read)), mock.patch.object(_files, "header", mocked.get("header", header)):
                self.same(lt.load_file(name), new)
        with mock.patch.object(_files._pieces, "read", lambda *args: change()), self.assertRaisesRegex(OSError, "changes all the time"):
            lt.load_file(name)
        for n, error in (-5, "Errno 5"), (19999, "ends at"):
            with mock.patch("lanefs.File.read_batch", return_value=[n]), self.assertRaisesRegex(EOFError if n > 0 else OSError, error):
                lt.load_file(name)
        with self.assertRaisesRegex(ValueError, "init_process_group"):
            lt.load_file(name, group=object())

    def test_elsewhere(self):
        there = os.path.join(OUTSIDE, "x.safetensors")
        self.assertRaises(lanefs.NotLaneFS, lt.save_file, some(), there)
        self.assertFalse(os.path.exists(there))
        with self.assertWarns(RuntimeWarning):
            lt.save_file(some(), there, fallback=True)
        self.assertRaises(lanefs.NotLaneFS, lt.load_file, there)
        with self.assertWarns(RuntimeWarning):
            self.same(some(), lt.load_file(there, fallback=True))

    def test_torch_save(self):
        """What torch.save and torch.load do on any file system, in each of their ways."""
        want, has = some(), inspect.signature(torch.load).parameters
        for old in False, True:
            torch.save(want, path("a.pt"), _use_new_zipfile_serialization=not old)
            self.same(want, torch.load(path("a.pt")))
            for option in "mmap", "weights_only":
                if option in has and not (old and option == "mmap"):
                    self.same(want, torch.load(path("a.pt"), **{option: True}))
            with open(path("a.pt"), "rb") as f:
                self.same(want, torch.load(f))
        # Over the file that is there, as checkpoints are, with the older one still mapped.
        torch.save(want, path("b.pt"))
        before = torch.load(path("b.pt"), mmap=True) if "mmap" in has else want
        torch.save({"w": torch.zeros(3)}, path("b.new"))
        os.replace(path("b.new"), path("b.pt"))
        self.same({"w": torch.zeros(3)}, torch.load(path("b.pt")))
        self.same(want, before)
        with open(path("c.pt"), "wb") as f:
            torch.save(want, f)
            os.fsync(f.fileno())
        with open(path("c.pt"), "rb") as f, open(os.path.join(OUTSIDE, "c.pt"), "wb") as g:
            g.write(f.read())
        self.same(want, torch.load(os.path.join(OUTSIDE, "c.pt")))
        os.truncate(path("c.pt"), os.path.getsize(path("c.pt")) // 2)
        self.assertRaises(Exception, torch.load, path("c.pt"))
        self.assertRaises(FileNotFoundError, torch.load, path("no.pt"))
        self.assertRaises((FileNotFoundError, RuntimeError), torch.save, want, path("no directory", "a.pt"))


class Sums(Case):
    def test_like_the_library(self):
        """What PyTorch computes on a GPU is what the C library computes: here on the CPU."""
        from lanefs import _stage, _sum
        data = torch.randint(0, 256, (70001,), dtype=torch.uint8)
        add = _stage.library().lanefs_sum
        for offsets, n in (([0], 70001), ([0, 8, 16], 8), ([0, 800, 1600, 2400], 801), ([8, 808, 1600, 24], 77), ([3, 11, 5000], 4093), ([4096], 1), ([64, 8], 7),
                           ([0, 4096, 8192, 16384, 20480], 4096), ([1], 70000)):
            for at_once in 1, 50, 3000, 32 << 20:
                with mock.patch.object(_sum, "_AT_ONCE", at_once):
                    if at_once == 1 and n * len(offsets) > 5000:
                        continue
                    got = [v & (1 << 64) - 1 for v in _sum._same_length(torch, data, offsets, n).tolist()]
                self.assertEqual(got, [add(data.data_ptr() + o, n) for o in offsets], (offsets, n, at_once))


SECOND = """
import sys
sys.path.insert(0, "%s")
import test_torch as t
with t.lt.shared_weights():
    got = t.loaded(sys.argv[1])
print(t.memory_of(got["w"]), t.sums(got))
""" % os.path.dirname(os.path.abspath(__file__))


def loaded(name):
    from safetensors.torch import load_file
    return load_file(name)


def sums(tensors):
    return sum(int.from_bytes(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()[:8], "little") for t in tensors.values())


def memory_of(t):
    """The memory that a tensor is in, as the kernel names it: device, number and name."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            part = line.split(maxsplit=5)
            start, end = (int(x, 16) for x in part[0].split("-"))
            if start <= t.data_ptr() < end:
                return " ".join(part[3:]).strip()
    return None


class Shared(Case):
    def test_safe_open(self):
        def original(filename, framework="pt", device="cpu"):
            return "safetensors' own", filename, framework, device

        fake = types.ModuleType("safetensors")
        user = types.ModuleType("user_of_safetensors")
        fake.safe_open = user.safe_open = original
        want = some()
        lt.save_file(want, path("m.safetensors"), {"format": "pt"})
        with mock.patch.dict(sys.modules, {"safetensors": fake, "user_of_safetensors": user}):
            with lt.shared_weights() as weights:
                late = types.ModuleType("late_user")
                late.safe_open = fake.safe_open
                sys.modules["late_user"] = late
                self.assertRaises(RuntimeError, lt.shared_weights().__enter__)
                with user.safe_open(path("m.safetensors"), framework="pt", device="cpu", backend="mmap") as f:
                    self.assertEqual(f.metadata(), {"format": "pt"})
                    got = {k: f.get_slice(k)[...] for k in f.keys()}
                    self.assertEqual((f.get_slice("b").get_shape(), f.get_slice("b").get_dtype()), ([3, 5], "BF16"))
                    self.assertTrue(torch.equal(f.get_slice("w")[3:5, 1:], want["w"][3:5, 1:]))
                    again = user.safe_open(path("m.safetensors")).get_tensor("w")
                    self.assertRaises(KeyError, f.get_tensor, "none")
                self.same(want, got)
                with open(path("m.safetensors"), "rb") as f:
                    data = f.read()
                n = int.from_bytes(data[:8], "little")
                with open(path("m8.safetensors"), "wb") as f:  # as safetensors pads it
                    f.write((n + 8).to_bytes(8, "little") + data[8:8 + n] + b" " * 8 + data[8 + n:])
                with self.assertWarnsRegex(RuntimeWarning, "multiples of 16"):
                    user.safe_open(path("m8.safetensors"))
                os.unlink(path("m8.safetensors"))
                lt.save_file({"n": torch.zeros(2)}, path("new.safetensors"))
                user.safe_open(path("new.safetensors"))
                lt.save_file({"n": torch.ones(2)}, path("new.safetensors"))
                self.assertEqual(user.safe_open(path("new.safetensors"), "pt").get_tensor("n").tolist(), [1, 1], "not the file that had the name")
                for args, kwargs in (("meta",), {}), ((), {"device": torch.device("meta")}):
                    f = user.safe_open(path("new.safetensors"), "pt", *args, **kwargs)
                    self.assertEqual((f.get_tensor("n").device.type, f.get_slice("n")[1:].device.type), ("meta", "meta"))
                del weights.files[path("new.safetensors")]
                with mock.patch.dict(lanefs._safetensors._TYPES, {"F32": (32, None, "none")}):
                    f = user.safe_open(path("new.safetensors"))
                    self.assertEqual(f.keys(), ["n"])
                    self.assertRaisesRegex(ValueError, "F32, which this PyTorch lacks", f.get_tensor, "n")
                del weights.files[path("new.safetensors")]
                self.assertEqual(again.data_ptr(), got["w"].data_ptr())
                self.assertEqual(user.safe_open("x", "np")[0], "safetensors' own")
                with open(os.path.join(OUTSIDE, "y.safetensors"), "wb") as out, open(path("m.safetensors"), "rb") as f:
                    out.write(f.read())
                self.assertRaises(lanefs.NotLaneFS, user.safe_open, os.path.join(OUTSIDE, "y.safetensors"))
            self.assertEqual([m.safe_open for m in (fake, user, late)], [original] * 3)
            self.assertFalse(weights.current, "one was deleted")
            del weights.files[path("m8.safetensors")]
            self.assertTrue(weights.current)
            self.assertEqual(weights.nbytes, os.path.getsize(path("m.safetensors")))
            with lt.shared_weights(fallback=True), self.assertWarns(RuntimeWarning):
                self.assertEqual(user.safe_open(os.path.join(OUTSIDE, "y.safetensors"))[0], "safetensors' own")
            lt.save_file({"w": torch.zeros(2)}, path("m.safetensors"))
            self.assertFalse(weights.current)
        self.same(want, got)

    def test_second_process(self):
        """With safetensors itself: another process has the same memory, and the same values."""
        try:
            import safetensors.torch  # noqa: F401
        except ImportError:
            self.skipTest("needs safetensors: apt-get install python3-safetensors (Debian 13), or pip install safetensors")
        lt.save_file(some(), path("two.safetensors"), {"format": "pt"})
        says = [subprocess.run([sys.executable, "-c", SECOND, path("two.safetensors")], stdout=subprocess.PIPE, text=True, check=True).stdout for _ in range(1)]
        with lt.shared_weights() as weights:
            here = loaded(path("two.safetensors"))
            says += [subprocess.run([sys.executable, "-c", SECOND, path("two.safetensors")], stdout=subprocess.PIPE, text=True, check=True).stdout for _ in range(2)]
        self.same(some(), here)
        self.assertTrue(weights.current)
        where = memory_of(here["w"])
        self.assertIn("memfd:", where)
        self.assertEqual(says[1:], [f"{where} {sums(here)}\n"] * 2)
        self.assertEqual(says[0].split()[-1], says[1].split()[-1])

    def test_without_safetensors(self):
        with mock.patch.dict(sys.modules, {"safetensors": None}):
            self.assertRaises(ImportError, lt.shared_weights().__enter__)


class Checkpoints(Case):
    """Over the saver and loader of the PyTorch that is here."""

    @staticmethod
    def alone(f):  # newer ones find out by themselves that there is no group
        return {"no_dist": True} if "no_dist" in inspect.signature(f).parameters else {}

    def save(self, state, writer):
        try:
            import torch.distributed.checkpoint as dcp
            dcp.save(state, storage_writer=writer, **self.alone(dcp.save))
        except ImportError:
            from torch.distributed._shard.checkpoint import save_state_dict
            save_state_dict(state, writer, no_dist=True)

    def load(self, state, reader):
        try:
            import torch.distributed.checkpoint as dcp
            dcp.load(state, storage_reader=reader, **self.alone(dcp.load))
        except ImportError:
            from torch.distributed._shard.checkpoint import load_state_dict
            load_state_dict(state, reader, no_dist=True)

    def blank(self, want):
        return {k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else self.blank(v) if isinstance(v, dict) else None for k, v in want.items()}

    def check(self, want, where, **kwargs):
        got = self.blank(want)
        self.load(got, lt.StorageReader(where, **kwargs))
        step = got.pop("step")
        self.same({k: v for k, v in want.items() if k != "step"}, got)
        return step

    def test_round_trip(self):
        want = {**some(), "c": torch.randn(5, dtype=torch.complex64), "step": {"epoch": 4}}
        self.save(want, lt.StorageWriter(path("ck")))
        self.assertEqual(self.check(want, path("ck")), {"epoch": 4})
        first = set(os.listdir(path("ck")))
        want["w"] = want["w"] + 1
        self.save(want, lt.StorageWriter(path("ck")))
        self.check(want, path("ck"))
        self.assertEqual(len(os.listdir(path("ck"))), 2, "the older checkpoint's files go")
        self.assertNotEqual(set(os.listdir(path("ck"))), first)

    def test_values(self):
        """Of tensors whose bytes are not their values, and of whatever name."""
        real, imaginary = torch.tensor([1., -2.]), torch.tensor([1 + 2j, 3 - 4j])
        wide = imaginary.to(torch.complex128)  # of which the file has bytes
        saved = {"neg": torch._neg_view(real), "conj": imaginary.conj(), "into neg": real, "into conj": imaginary, "wide conj": wide.conj(), "wide neg": torch._neg_view(wide), "__metadata__": real, "\udc80": real}
        self.save({**saved, "step": 1}, lt.StorageWriter(path("values")))
        got = {**self.blank(saved), "into neg": torch._neg_view(torch.zeros(2)), "into conj": torch.zeros(2, dtype=torch.complex64).conj(), "step": 0}
        self.load(got, lt.StorageReader(path("values")))
        for name, t in saved.items():
            self.assertTrue(torch.equal(got[name], t), name)

    def test_large_objects(self):  # one call of the system's gives a part of them
        self.save({"step": list(range(1000))}, lt.StorageWriter(path("objects")))
        preadv = os.preadv
        with mock.patch("os.preadv", lambda fd, views, at: preadv(fd, [views[0][:100]], at)):
            self.assertEqual(self.check({"step": None}, path("objects")), list(range(1000)))
        with mock.patch("os.preadv", return_value=0), self.assertRaisesRegex(BaseException, "ends at"):
            self.check({"step": None}, path("objects"))

    def test_same_plan(self):
        """A planner may give a save the plan of the one before, as it keeps them: its files are new ones all the same."""
        from lanefs.torch._checkpoint import _dcp
        tensors = {"w": torch.zeros(3)}
        item = types.SimpleNamespace(type=None, index=types.SimpleNamespace(fqn="w", offset=None))
        planner = types.SimpleNamespace(resolve_data=lambda _: tensors["w"])
        writer = lt.StorageWriter(path("plan"))
        plan, = writer.prepare_global_plan([_dcp.SavePlan([item])])
        names = [writer.write_data(plan, planner).value()[0].storage_data.file for _ in range(2)]
        self.assertEqual((len(set(names)), sorted(os.listdir(path("plan")))), (2, sorted(n + ".part" for n in names)))

    def test_left_behind(self):
        """What failed and killed saves left is deleted before the next one needs the room, but not what one has that is under way."""
        where, want = path("left"), {**some(), "step": 1}
        parts = lambda: sorted(n for n in os.listdir(where) if n.endswith(".part"))
        self.save(want, lt.StorageWriter(where))
        other = lt.StorageWriter(where)
        for writer in other, lt.StorageWriter(where):
            for _ in range(2):
                with mock.patch.object(writer, "finish", side_effect=OSError("no room")):
                    self.assertRaises(BaseException, self.save, {**want, "step": 2}, writer)
        self.assertEqual(len(parts()), 2, "one of each writer, which might go on")
        del writer
        gc.collect()
        last = lt.StorageWriter(where)
        finish = last.finish

        def look(*args, **kwargs):
            self.assertEqual(len(parts()), 2, "the other's, and its own")
            finish(*args, **kwargs)
        with mock.patch.object(last, "finish", look):
            self.save({**want, "step": 3}, last)
        self.assertEqual((parts(), self.check(want, where), len(os.listdir(where))), ([], 3, 2))
        self.assertIsNone(last._writes)
        del other

    def test_async(self):
        """What is saved is what the state was when async_save returned, whatever becomes of it then."""
        dcp = getattr(torch.distributed, "checkpoint", None)
        if not hasattr(dcp, "async_save"):
            self.skipTest("needs PyTorch 2.3")
        torch.distributed.init_process_group("gloo", init_method="file://" + os.path.join(OUTSIDE, "meet async"), rank=0, world_size=1)
        try:
            for step in 1, 2:
                state = {**some(), "step": step}
                state["w"] += step
                want = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
                saved = dcp.async_save(state, checkpoint_id=path("async"), storage_writer=lt.StorageWriter())
                for t in state.values():
                    if isinstance(t, torch.Tensor):
                        t.zero_()
                saved.result()
                self.assertEqual(self.check(want, path("async")), step)
            failing = lt.StorageWriter()
            with mock.patch.object(failing, "finish", side_effect=OSError("no room")):
                self.assertRaises(BaseException, dcp.async_save({**some(), "step": 3}, checkpoint_id=path("async"), storage_writer=failing).result)
            self.assertEqual(self.check(want, path("async")), 2)
        finally:
            torch.distributed.destroy_process_group()

    def test_killed(self):
        want = {**some(), "step": 1}
        self.save(want, lt.StorageWriter(path("killed")))
        with mock.patch("os.rename", side_effect=OSError("killed")):
            self.assertRaises(BaseException, self.save, {**want, "w": want["w"] * 2, "step": 2}, lt.StorageWriter(path("killed")))
        writer = lt.StorageWriter(path("killed"))
        with mock.patch.object(writer, "finish", side_effect=OSError("killed before .metadata")):
            self.assertRaises(BaseException, self.save, {**want, "w": want["w"] * 3, "step": 3}, writer)
        self.assertEqual(self.check(want, path("killed")), 1)

    def test_finish(self):
        """One save at a time; and .metadata is on the medium before it has its name, whose place is before older files go."""
        from lanefs.torch import _checkpoint
        self.save({**some(), "step": 1}, lt.StorageWriter(path("finish")))
        writer, calls = lt.StorageWriter(path("finish")), mock.Mock()
        finish = writer.finish

        def recorded(*args, **kwargs):
            with mock.patch.object(_checkpoint.fcntl, "flock", wraps=_checkpoint.fcntl.flock) as flock, mock.patch("os.listdir", wraps=os.listdir) as listdir, \
                    mock.patch("os.fsync", wraps=os.fsync) as fsync, mock.patch("os.rename", wraps=os.rename) as rename, mock.patch("os.unlink", wraps=os.unlink) as unlink:
                for m, name in (flock, "flock"), (listdir, "listdir"), (fsync, "fsync"), (rename, "rename"), (unlink, "unlink"):
                    calls.attach_mock(m, name)
                finish(*args, **kwargs)
        with mock.patch.object(writer, "finish", side_effect=recorded):
            self.save({**some(), "step": 2}, writer)
        self.assertEqual([c[0] for c in calls.mock_calls], ["flock", "listdir", "fsync", "rename", "rename", "fsync", "unlink"])
        self.assertEqual(calls.mock_calls[0][1][1], _checkpoint.fcntl.LOCK_EX)
        self.assertEqual(self.check({**some(), "step": 2}, path("finish")), 2)

    def test_not_as_it_says(self):
        from lanefs.torch._checkpoint import _planner, _read, _Stored
        lt.save_file({"w": torch.arange(6)}, path("says.safetensors"))
        size = os.path.getsize(path("says.safetensors"))
        stored = _Stored("says.safetensors", size - 48, 48, "torch.int64", (6,))
        item = types.SimpleNamespace(type=_planner.LoadItemType.TENSOR, dest_index=0, lengths=(6,), storage_offsets=(0,), storage_index=types.SimpleNamespace(fqn="w"))
        planner = types.SimpleNamespace(resolve_tensor=lambda _: target, commit_tensor=lambda *_: None)
        with lanefs.open(path("says.safetensors")) as f:
            target = torch.zeros(6, dtype=torch.int64)
            _read(f, [(item, stored)], planner)
            self.assertTrue(torch.equal(target, torch.arange(6)))
            with self.assertRaisesRegex(ValueError, "and the checkpoint more"):
                _read(f, [(item, dataclasses.replace(stored, offset=size - 40))], planner)
            target = torch.zeros(3, dtype=torch.int64)
            with self.assertRaisesRegex(ValueError, "a tensor of shape"):
                _read(f, [(item, stored)], planner)
        os.makedirs(path("says"), exist_ok=True)
        reader = lt.StorageReader(path("says"))
        reader.set_up_storage_reader(types.SimpleNamespace(storage_data={item.storage_index.fqn: dataclasses.replace(stored, file="../says.safetensors")}), True)
        item.storage_index = "w"
        with self.assertRaisesRegex(ValueError, "not in the directory"):
            reader.read_data(types.SimpleNamespace(items=[item]), planner)
        for other in None, {"w": ("another", "writer's")}:
            with self.assertRaisesRegex(ValueError, "did not write"):
                reader.set_up_storage_reader(types.SimpleNamespace(storage_data=other), True)
        for begin in (lambda: reader.set_up_storage_reader(types.SimpleNamespace(storage_data={}), True, use_collectives=False),
                      lambda: lt.StorageWriter(path("says")).set_up_storage_writer(True, use_collectives=False)):
            with self.assertRaisesRegex(ValueError, "use_collectives"):
                begin()

    def test_at_once(self):  # a save ends while another, to the same directory, is under way: that one fails, and the directory has the first
        first, writer = {**some(), "step": 1}, lt.StorageWriter(path("at once"))
        finish = writer.finish

        def late(*args, **kwargs):
            self.save(first, lt.StorageWriter(path("at once")))
            finish(*args, **kwargs)
        with mock.patch.object(writer, "finish", side_effect=late):
            with self.assertRaisesRegex(BaseException, "another save"):
                self.save({**first, "w": first["w"] * 2, "step": 2}, writer)
        self.assertEqual(self.check(first, path("at once")), 1)
        self.save({**first, "step": 3}, lt.StorageWriter(path("at once")))
        self.assertEqual(self.check(first, path("at once")), 3)

    def test_refused(self):
        self.assertRaises(BaseException, self.save, some(), lt.StorageWriter())
        self.assertRaises(BaseException, self.load, some(), lt.StorageReader(path("nothing here")))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertRaises(BaseException, self.save, some(), lt.StorageWriter(os.path.join(OUTSIDE, "ck")))
            self.save({**some(), "step": 1}, lt.StorageWriter(os.path.join(OUTSIDE, "ck2"), fallback=True))
            self.check({**some(), "step": 1}, os.path.join(OUTSIDE, "ck2"), fallback=True)
        self.save({**some(), "step": 1}, lt.StorageWriter(path("cut ck")))
        for name in os.listdir(path("cut ck")):
            if name != ".metadata":
                os.truncate(path("cut ck", name), 100)
        self.assertRaises(BaseException, self.check, {**some(), "step": 1}, path("cut ck"))

    def test_parts(self):  # what another sharding asks for
        from lanefs.torch._checkpoint import _planner, _read, _Stored
        whole = torch.arange(60, dtype=torch.int32).reshape(5, 12)
        lt.save_file({"w": whole}, path("parts.safetensors"))
        at = os.path.getsize(path("parts.safetensors")) - 240
        stored = _Stored("parts.safetensors", at, 240, "torch.int32", (5, 12))
        cases = [((0, 0), (5, 12)), ((2, 0), (2, 12)), ((1, 3), (3, 4)), ((4, 11), (1, 1)), ((0, 0), (0, 12))]
        targets = {i: torch.zeros(lengths, dtype=torch.int32) for i, (_, lengths) in enumerate(cases)}
        targets[5] = torch.zeros(12, 5, dtype=torch.int32).t()  # with gaps
        targets[6] = torch.zeros(5, 12, dtype=torch.int64)      # of another type
        cases += [((0, 0), (5, 12))] * 2
        done = []

        class Planner:
            resolve_tensor = staticmethod(lambda item: targets[item.dest_index])
            commit_tensor = staticmethod(lambda item, tensor: done.append(item.dest_index))
        items = [(types.SimpleNamespace(type=_planner.LoadItemType.TENSOR, dest_index=i, lengths=n, storage_offsets=o, storage_index=None), stored)
                 for i, (o, n) in enumerate(cases)]
        with lanefs.open(path("parts.safetensors")) as f:
            _read(f, items, Planner)
        for i, (o, n) in enumerate(cases):
            self.assertTrue(torch.equal(targets[i].to(torch.int32), whole[o[0]:o[0] + n[0], o[1]:o[1] + n[1]]), i)
        self.assertEqual(sorted(done), list(range(7)))


def before(name):
    """Bytes of a safetensors file that are read along with its data: parts of it begin with blocks."""
    with open(name, "rb") as f:
        return (8 + int.from_bytes(f.read(8), "little")) % 4096


class Slots(Case):
    """What load_file does for a GPU, with the CPU's memory."""

    def test_load(self):
        from lanefs.torch import _slots
        torch.manual_seed(4)
        want = {f"t{i}": torch.randn(i * 97 + 1, 31) for i in range(50)} | {"empty": torch.empty(0, 3)}
        lt.save_file(want, path("slots.safetensors"))
        used, fails = [], []

        class Mark:
            def synchronize(self):
                used.append(self)

        def finish(slots, i, original=_slots.Slots.finish):
            original(slots, i)
            if i in fails:
                raise EOFError("the file became shorter")
        with mock.patch.object(_slots, "_worth", lambda *_: True), mock.patch.object(_slots, "_mark", lambda _: Mark()), mock.patch.object(_slots.Slots, "finish", finish):
            for part in 4096, 64 << 10, 1 << 20, 64 << 20:
                used.clear()
                with mock.patch.object(_slots, "PART", part):
                    got = lt.load_file(path("slots.safetensors"))
                self.assertEqual(got.keys(), want.keys())
                for k in want:
                    self.assertTrue(torch.equal(got[k], want[k]), (part, k))
                size = before(path("slots.safetensors")) + sum(t.numel() * 4 for t in want.values())
                with lanefs.open(path("slots.safetensors")) as f:
                    granule = f.session.granule  # of memory, of which all is used
                parts = -(-size // part)
                slots = -(-_slots.slots_for(_slots.AHEAD, parts) * part // granule) * granule // part
                self.assertEqual(len(used), 1 + max(0, parts - slots), "each slot that is used again is waited for, and the last one")
            fails.append(3)
            with mock.patch.object(_slots, "PART", 4096):
                self.assertRaises(EOFError, lt.load_file, path("slots.safetensors"))
            # What is kept is used again, unless it is too small, of another session, or given back meanwhile.
            fails.clear()
            _slots.kept.drop()
            buffer, made = _slots.Buffer, []

            def make(*args):
                made.append(buffer(*args))
                return made[-1]
            with mock.patch.object(_slots, "Buffer", make), mock.patch.object(_slots, "KEEP", 60):
                for parts in (4096, 1), (4096, 1), (8192, 2), (8192, 2):
                    with mock.patch.object(_slots, "PART", parts[0]):
                        self.assertTrue(torch.equal(lt.load_file(path("slots.safetensors"))["t49"], want["t49"]))
                    self.assertEqual(len(made), parts[1])
                self.assertRaises(ValueError, lambda: made[0].memory)
                self.assertIsNone(_slots.kept.take(object(), made[1].size, torch.device("cpu")))
                fds = list(_slots.kept._entry[1].ring._reply.fds)
                child = os.fork()
                if child == 0:
                    os._exit(_slots.kept._entry is not None or any(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds))
                self.assertEqual(os.waitpid(child, 0)[1], 0, "a child has not what its parent keeps")
                self.assertEqual([fd for fd in fds if not os.path.exists(f"/proc/self/fd/{fd}")], [])
                self.assertIsNotNone(made[1].memory)
                _slots.kept.drop()
                self.assertRaises(ValueError, lambda: made[1].memory)
            _slots.kept.drop()
            made.clear()
            with mock.patch.object(_slots, "Buffer", make), mock.patch.object(_slots, "Ring", side_effect=OSError(24, "no ring")):  # then a stage does it, too
                self.assertTrue(torch.equal(lt.load_file(path("slots.safetensors"))["t49"], want["t49"]))
                self.assertTrue(made)
                for given_back in made:
                    self.assertRaises(ValueError, lambda: given_back.memory)
            made.clear()

            def little(file, size):
                if size > 4096 * _slots.slots_for(_slots.AHEAD // 2, 1 << 30):
                    raise OSError(12, "no memory")
                return make(file, size)
            with mock.patch.object(_slots, "Buffer", little), mock.patch.object(_slots, "PART", 4096):  # half as far ahead
                self.assertTrue(torch.equal(lt.load_file(path("slots.safetensors"))["t49"], want["t49"]))
                self.assertEqual(len(made), 1)
            _slots.kept.drop()
            with mock.patch.object(_slots, "Buffer", side_effect=OSError(12, "no memory")):  # then a stage does it
                self.assertTrue(torch.equal(lt.load_file(path("slots.safetensors"))["t49"], want["t49"]))
            _slots.kept.drop()

    def test_scarce(self):
        """What is kept gives way to what is wanted, and what cannot be given back later is given back at once."""
        from lanefs.torch import _slots
        lt.save_file({"t": torch.randn(100_000)}, path("scarce.safetensors"))
        want, buffer, sizes, start, refused = lt.load_file(path("scarce.safetensors"))["t"], _slots.Buffer, [], threading.Thread.start, []

        def one(file, size):
            if _slots.kept._entry is not None:
                raise OSError(12, "no memory")
            sizes.append(size)
            return buffer(file, size)

        def no_thread(thread):
            if thread.name in refused:
                raise RuntimeError("can't start new thread")
            start(thread)
        with mock.patch.object(_slots, "_worth", lambda *_: True), mock.patch.object(_slots, "_mark", lambda _: mock.Mock()), \
                mock.patch.object(_slots, "KEEP", 60), mock.patch.object(_slots, "Buffer", one), mock.patch.object(threading.Thread, "start", no_thread):
            _slots.kept.drop()
            for part in 4096, 8192:
                with mock.patch.object(_slots, "PART", part):
                    self.assertTrue(torch.equal(lt.load_file(path("scarce.safetensors"))["t"], want))
            self.assertEqual(sizes, [part * _slots.slots_for(_slots.AHEAD, 1 << 30) for part in (4096, 8192)], "not half as far ahead")
            _slots.kept.drop()
            with mock.patch.object(_slots, "PART", 4096):
                for name in "lanefs-ring", "lanefs-kept":
                    refused[:] = name,
                    if name == "lanefs-kept":
                        _slots.kept._new()
                    self.assertTrue(torch.equal(lt.load_file(path("scarce.safetensors"))["t"], want), name)
                    self.assertIsNone(_slots.kept._entry, name)
                refused.clear()
                lt.load_file(path("scarce.safetensors"))
                self.assertIsNotNone(_slots.kept._entry)
        _slots.kept.drop()

    def test_interrupted(self):
        """Wherever an exception passes, neither a ring is left, nor memory."""
        from lanefs.torch import _slots
        lt.save_file({"t": torch.randn(100_000)}, path("interrupted.safetensors"))
        made, new = [], _slots.Ring

        def ring(*args):
            made.append(new(*args))
            return made[-1]
        for where in "Where", "slots_for", "kept.give", "_mark":
            *of, name = where.split(".")
            of = getattr(_slots, of[0]) if of else _slots
            with mock.patch.object(_slots, "_worth", lambda *_: True), mock.patch.object(_slots, "PART", 4096), mock.patch.object(_slots, "_mark", lambda _: mock.Mock()), \
                    mock.patch.object(_slots, "Ring", ring), mock.patch.object(of, name, side_effect=KeyboardInterrupt):
                self.assertRaises(KeyboardInterrupt, lt.load_file, path("interrupted.safetensors"))
            _slots.kept.drop()
            gc.collect()
            for r in made:
                self.assertTrue(r._closed, where)
                self.assertFalse(r._reaper.is_alive(), where)
            self.assertEqual(len(made), where != "slots_for", where)
            made.clear()

    def test_under_way(self):
        """Memory that the daemon may still write to is not kept for another load."""
        from lanefs.torch import _slots
        lt.save_file({"t": torch.randn(100_000)}, path("under.safetensors"))
        with lanefs.open(path("under.safetensors")) as f, mock.patch.object(_slots, "KEEP", 60):
            for waits in True, False:
                _slots.kept.drop()
                slots = _slots.Slots.of(f, torch.device("cpu"), 4096, 4)
                memory, read = slots._memory, mock.Mock()
                read.result.side_effect = KeyboardInterrupt
                with mock.patch.object(memory.ring, "read", **{"return_value" if waits else "side_effect": read if waits else KeyboardInterrupt}):
                    if waits:
                        slots.begin(0, 0, 4096)
                    self.assertRaises(KeyboardInterrupt, slots.finish if waits else slots.begin, *((0,) if waits else (0, 0, 4096)))
                slots.close()
                self.assertEqual(read.exception.call_count, waits, "it is waited for")
                self.assertEqual(_slots.kept._entry is not None, waits)
                self.assertEqual(memory.ring is None, not waits)
        _slots.kept.drop()

    def test_failed(self):
        """A load that has failed keeps no tensors until a collection."""
        from concurrent.futures import Future
        from lanefs.torch import _files, _slots
        lt.save_file({"t": torch.randn(100_000)}, path("failed.safetensors"))
        made, empty = [], _files.empty

        def new(*args):
            tensors = empty(*args)
            made.append(weakref.ref(tensors["t"]))
            return tensors

        def read(*_):
            future = Future()
            future.set_exception(OSError(5, "the drive"))
            return future
        gc.disable()
        try:
            with mock.patch.object(_slots, "_worth", lambda *_: True), mock.patch.object(_slots, "_mark", lambda _: mock.Mock()), mock.patch.object(_slots, "PART", 4096), \
                    mock.patch.object(_slots.Ring, "read", read), mock.patch.object(_files, "empty", new):
                try:
                    lt.load_file(path("failed.safetensors"))
                except OSError as e:
                    self.assertIn("the drive", str(e))
            self.assertEqual([t() for t in made], [None])
        finally:
            gc.enable()
            _slots.kept.drop()

    def test_inference(self):
        """Memory that was made in inference mode is used outside, and the other way round."""
        from lanefs.torch import _slots
        want = torch.randn(100_000)
        lt.save_file({"t": want}, path("inference.safetensors"))
        with mock.patch.object(_slots, "_worth", lambda *_: True), mock.patch.object(_slots, "_mark", lambda _: mock.Mock()), mock.patch.object(_slots, "PART", 4096), \
                mock.patch.object(_slots, "KEEP", 60):
            for first in True, False:
                _slots.kept.drop()
                for mode in first, not first:
                    with torch.inference_mode(mode):
                        self.assertTrue(torch.equal(lt.load_file(path("inference.safetensors"))["t"], want))
        _slots.kept.drop()


class Ahead(Case):
    """What a group's load does where the daemon has no memory on the device."""

    def test_reads(self):
        from lanefs.torch import _ahead
        data = os.urandom(40 * 4096)
        with open(path("ahead"), "wb") as f:
            f.write(data)
        for piece in 8 << 20, 1500:  # bytes: a part is read as one, or in three
            with self.subTest(piece=piece), lanefs.open(path("ahead")) as f, mock.patch.object(_ahead, "_PIECE", piece):
                self.reads(f, data)

    def reads(self, f, data):
        from lanefs.torch import _ahead, _slots
        ahead = _ahead.Ahead.of(f, torch.device("cpu"), 4096, 40)
        self.assertEqual(ahead.ahead, _slots.AHEAD)
        for i in range(ahead.ahead):
            ahead.begin(i, i * 4096, 4096)
        for i in range(40):
            ahead.finish(i)
            self.assertEqual(bytes(ahead.tensor(i).numpy()), data[i * 4096:(i + 1) * 4096])
            if i + ahead.ahead < 40:
                ahead.begin(i + ahead.ahead, (i + ahead.ahead) * 4096, 4096)
        ahead.begin(40, len(data) - 100, 4096)
        self.assertRaises(EOFError, ahead.finish, 40)
        ahead.begin(41, 0, 100)  # after an error
        ahead.finish(41)
        self.assertEqual(bytes(ahead.tensor(41)[:100].numpy()), data[:100])
        ahead.finish(42)  # which was not begun
        ahead.close()
        empty = torch.empty

        def little(n, **kind):
            if n > 2 * 4096:
                raise torch.cuda.OutOfMemoryError("no memory")
            return empty(n, **kind)
        with mock.patch.object(torch, "empty", little):
            ahead = _ahead.Ahead.of(f, torch.device("cpu"), 4096, 40)
        self.assertEqual(ahead.ahead, 1)
        ahead.close()

    def test_close(self):
        """Closing waits for the read that is under way, and begins none of those after it."""
        from lanefs.torch import _ahead
        begun, go, read = threading.Event(), threading.Event(), []

        def slow(file, ranges):
            begun.set()
            self.assertTrue(go.wait(60))
            read.extend(offset for _, offset in ranges)
        with mock.patch.object(_ahead._pieces, "read", slow), mock.patch.object(_ahead, "_THREADS", 1):
            ahead = _ahead.Ahead(None, torch.device("cpu"), 4096, 8, 8)
            ahead.begin(0, 0, 4096)
            self.assertTrue(begun.wait(60))
            for i in range(1, 8):
                ahead.begin(i, i * 4096, 4096)
            closed = threading.Thread(target=ahead.close)
            closed.start()
            while not ahead._closed:
                time.sleep(0.001)
            go.set()
            closed.join(60)
            self.assertFalse(closed.is_alive())
        self.assertEqual(read, [0])
        self.assertFalse(self.threads())

    @staticmethod
    def threads():
        return [t for t in threading.enumerate() if t.name == "lanefs-ahead"]

    def test_device(self):
        """Closing waits for copies to the device, too, of what was read and not used. The device and its streams are none."""
        from lanefs.torch import _ahead
        empty, streams, device = torch.empty, [], mock.Mock(type="cuda")

        def stream(_):
            streams.append(mock.Mock())
            return streams[-1]
        with mock.patch.object(torch, "empty", lambda n, dtype, device: empty(n, dtype=dtype)), mock.patch.object(torch, "cuda", mock.MagicMock(Stream=stream)), \
                mock.patch.object(_ahead._pieces, "read"):
            ahead = _ahead.Ahead(None, device, 4096, 8, 8)
            ahead.begin(0, 0, 4096)
            ahead._reads[0][0].result()
            for s in streams:
                s.synchronize.assert_not_called()
            ahead.close()
        self.assertEqual([s.synchronize.call_count for s in streams], [1, 1])

    def test_inference(self):
        """Threads write to memory that was made in inference mode. Of other devices than CUDA's PyTorch does that."""
        from lanefs.torch import _ahead
        with open(path("ahead-inference"), "wb") as f:
            f.write(bytes(4096))
        with lanefs.open(path("ahead-inference")) as f, torch.inference_mode():
            ahead = _ahead.Ahead.of(f, torch.device("meta"), 4096, 1)
            ahead.begin(0, 0, 4096)
            ahead.finish(0)
            ahead.close()

    def test_interrupted(self):
        """No thread is left where an exception comes while one begins."""
        from lanefs.torch import _ahead
        start = threading.Thread.start

        def interrupted(thread):
            start(thread)
            raise KeyboardInterrupt
        with mock.patch.object(threading.Thread, "start", interrupted):
            self.assertRaises(KeyboardInterrupt, _ahead.Ahead, None, torch.device("cpu"), 4096, 8, 8)
        self.assertFalse(self.threads())


RANK = """
import gc, os, sys, time, torch, torch.distributed as dist
import lanefs.torch as lt
from lanefs.torch import _group
from lanefs import File
from lanefs.torch._slots import Slots
rank, size, path, meet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=size)
want, staged, finish, slots, total, fails = lt.load_file(path), _group._pieces.read, Slots.finish, Slots.of, 0, False

def count(n):
    global total
    total += n
    if fails:
        raise OSError("this rank's drive")

def by_stage(f, ranges):
    count(sum(t.numel() for t, _ in ranges))
    staged(f, ranges)

def direct(s, i):
    read = s._reads.get(i)
    finish(s, i)
    count(read[2] if read else 0)

def load(name):
    try:
        return lt.load_file(name, group=dist.group.WORLD)
    except (OSError, ValueError) as e:
        return str(e)
_group._pieces.read, Slots.finish = by_stage, direct
for Slots.of in slots, lambda *_: None:
    for _group.CHUNK in 64 << 10, 1 << 20, 256 << 20:
        total = 0
        got = load(path)
        assert got.keys() == want.keys() and all(torch.equal(got[k], want[k]) for k in want)
        print(total)
print(load(path + ".missing" if rank == 1 else path))

def tensors():
    return sum(type(o) is torch.Tensor for o in gc.get_objects())

def freed(had):  # gloo's threads may have some for a moment
    end = time.monotonic() + 20
    while tensors() > had and time.monotonic() < end:
        time.sleep(0.01)
    assert tensors() <= had, (tensors(), had)
fails = rank == 0
_group.CHUNK = 64 << 10
gc.collect()
gc.disable()  # a load that has failed keeps no memory until a collection, which a program that has too little of the device's does not begin
had = tensors()
print(load(path))
freed(had)
Slots.of = slots
print(load(path))
freed(had)
gc.enable()
print(load(sys.argv[5] if rank == 0 else path))
fails, state, asked = False, _group._pieces.state, 0

def changed(f):
    global asked
    asked += 1
    return fault(f) if rank == 0 and asked == 2 else state(f)
_group._pieces.state = changed
for fault in lambda f: (), lambda f: os.fstat(1 << 20):  # while it was loaded, and when it cannot be asked any more: of one rank
    asked = 0
    print(load(path))
    dist.barrier()
_group._pieces.state = state
# It grows, for one rank between two looks at its size: then that one would wait for fewer chunks than the others.
length, looks = File.size.fget, 0

def longer(f):
    global looks
    looks += 1
    return length(f) - (8192 if looks <= 2 else 0)
File.size = property(longer if rank == 0 else length)
print(load(path))
File.size = property(length)
# Its header is another one when it is parsed.
begins = _group._files.data_begins
_group._files.data_begins = lambda *args: begins(*args) - (8 if rank == 0 else 0)
print(load(path))
_group._files.data_begins = begins
assert load(path).keys() == want.keys()
none = os.path.join(os.path.dirname(path), "none.safetensors")
if rank == 0:
    with open(none, "wb") as f:
        f.write((4088).to_bytes(8, "little") + b"{}".ljust(4088))
dist.barrier()
assert load(none) == {}
# The device of one rank has not enough memory for the tensors beside the parts that are read ahead: that rank reads fewer ahead.
empty, start, aheads = _group._files.empty, _group._Job._start, []

def started(job, device, ahead):
    aheads.append(ahead)
    start(job, device, ahead)

def lacking(*args):
    if rank == 0 and len(aheads) == 1:
        raise RuntimeError("out of memory")  # torch.OutOfMemoryError of newer versions is one
    return empty(*args)
_group._Job._start, _group._files.empty = started, lacking
for Slots.of in slots, lambda *_: None:
    aheads.clear()
    got = load(path)
    assert got.keys() == want.keys() and all(torch.equal(got[k], want[k]) for k in want)
    print(aheads)
"""


class Group(Case):
    def test_ranks(self):
        torch.manual_seed(2)
        want = {f"t{i}": torch.randn(i * 331 + 1, 17) for i in range(40)}
        lt.save_file(want, path("group.safetensors"))
        lt.save_file({"t": torch.zeros(3)}, path("other.safetensors"))
        size = before(path("group.safetensors")) + sum(t.numel() * 4 for t in want.values())
        n, meet = 2, os.path.join(OUTSIDE, "meet")
        ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(i), str(n), path("group.safetensors"), meet, path("other.safetensors")],
                                  stdout=subprocess.PIPE, text=True) for i in range(n)]
        try:
            said = [p.communicate(timeout=120)[0].splitlines() for p in ranks]
        finally:
            for p in ranks:
                p.kill()
                p.wait()
        self.assertEqual([p.returncode for p in ranks], [0] * n)
        self.assertEqual([len(s) for s in said], [16] * n, said)
        for i in range(6):  # by the daemon's own writes to memory that it has, and by a stage
            self.assertEqual(sum(int(s[i]) for s in said), size, "together they read the file once")
        for s in said:  # all fail, whoever's fault it is, and the group is still good
            self.assertIn("missing", s[6])
            self.assertIn("this rank's drive", s[7])
            self.assertIn("this rank's drive", s[8])
            self.assertIn("not the same file", s[9])
            self.assertIn("was changed", s[10])
            self.assertIn("Bad file descriptor", s[11])
            self.assertIn("not a safetensors file", s[12])
            self.assertIn("was changed", s[13])
        self.assertEqual([s[14:] for s in said], [["[12, 1]"] * 2, ["[12]"] * 2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
