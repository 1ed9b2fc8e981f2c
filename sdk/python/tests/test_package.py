"""Tests of what is installed: run by the Go test beside this, with LANEFS_TEST_DIR a mount's directory and LANEFS_TEST_OUTSIDE another."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
import unittest

import lanefs

DIR = os.environ["LANEFS_TEST_DIR"]
OUTSIDE = os.environ["LANEFS_TEST_OUTSIDE"]
HERE = os.path.dirname(lanefs.__file__)


def doctor(*args):
    p = subprocess.run([sys.executable, "-m", "lanefs", "doctor", *args], capture_output=True, text=True)
    return p.returncode, p.stdout + p.stderr


def parameters(f):
    a = f.args
    return [x.arg for x in a.posonlyargs + a.args + [a.vararg] + a.kwonlyargs + [a.kwarg] if x is not None]


class Package(unittest.TestCase):
    def test_hints(self):
        """Hints say what the code says: every name that a module gives out, with its parameters."""
        self.assertTrue(os.path.exists(os.path.join(HERE, "py.typed")))
        for module, file in ("lanefs", "__init__.pyi"), ("lanefs.kv", "kv.pyi"), ("lanefs.torch", "torch/__init__.pyi"):
            with open(os.path.join(HERE, file)) as f:
                tree = ast.parse(f.read())
            try:
                real = importlib.import_module(module)
            except ImportError:
                continue  # without PyTorch
            stated = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
            for name in set(real.__all__) - {"__version__", "kv"}:
                self.assertIn(name, stated, module)
            for name, node in stated.items():
                if name.startswith("Storage"):
                    continue  # needs torch.distributed
                thing = getattr(real, name)
                if isinstance(node, ast.FunctionDef):
                    self.assertEqual(parameters(node), list(inspect.signature(thing).parameters), name)
                    continue
                for method in node.body:
                    if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        continue
                    got = inspect.getattr_static(thing, method.name)
                    if isinstance(got, property):
                        continue
                    got = getattr(got, "__func__", got)
                    self.assertEqual(parameters(method), list(inspect.signature(got).parameters), f"{name}.{method.name}")

    def test_docs(self):
        """What is given out has a text, which names exceptions where there are parameters."""
        names = [(lanefs, n) for n in ("open", "load_safetensors", "save", "Buffer", "Ring")] + [(lanefs.kv, "Slab")]
        names += [(lanefs.File, n) for n in ("map", "commit", "read_into", "read_batch")] + [(lanefs.kv.Slab, n) for n in ("put_batch", "get_batch", "evict", "commit", "close")]
        try:
            torch = importlib.import_module("lanefs.torch")
            names += [(torch, n) for n in ("load_file", "save_file", "shared_weights")]
        except ImportError:
            pass
        for of, name in names:
            text = inspect.getdoc(getattr(of, name))
            self.assertRegex(text, r"(?m)^Raises\n-+$", name)
            for parameter in inspect.signature(getattr(of, name)).parameters:
                if parameter != "self":
                    self.assertRegex(text, rf"(?m)^(\w+, )*{parameter}\b.* : |^(\w+, )*{parameter}(,| :)", f"{name}: {parameter}")

    def test_doctor(self):
        code, said = doctor(DIR)
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"ok +.*runtime host")
        self.assertRegex(said, r"ok +any memory +100001 bytes")
        self.assertEqual([n for n in os.listdir(DIR) if "doctor" in n], [])
        code, said = doctor(OUTSIDE)
        self.assertEqual(code, 1, said)
        self.assertRegex(said, r"BAD .*is not on a LaneFS mount.*lanefs mount")
        code, said = doctor(os.path.join(OUTSIDE, "none"))
        self.assertEqual(code, 1, said)
        self.assertIn("No such file", said)
        p = subprocess.run([sys.executable, "-m", "lanefs", "doctor", DIR], capture_output=True, text=True, env={**os.environ, "LANEFS_LIBRARY": "/none"})
        self.assertEqual(p.returncode, 1)
        self.assertIn("make -C sdk/c", p.stdout)

    def test_where(self):
        if os.environ.get("LANEFS_TEST_WHEEL"):
            self.assertTrue(HERE.startswith(os.environ["LANEFS_TEST_WHEEL"]), HERE)
            self.assertTrue(os.path.exists(os.path.join(HERE, "liblanefs.so.1")))
            self.assertNotIn("LANEFS_LIBRARY", os.environ)
            import importlib.metadata
            self.assertEqual(importlib.metadata.version("lanefs"), lanefs.__version__)


if __name__ == "__main__":
    unittest.main(verbosity=2)
