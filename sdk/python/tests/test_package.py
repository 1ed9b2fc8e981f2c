"""Tests of what is installed: run by the Go test beside this, with LANEFS_TEST_DIR a mount's directory and LANEFS_TEST_OUTSIDE another."""

import contextlib
import importlib
import io
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


class Package(unittest.TestCase):
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

    def test_doctor_output(self):  # that nobody takes, and names that are no text
        command = [sys.executable, "-m", "lanefs", "doctor"]
        with open("/dev/full", "wb") as full:
            p = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((p.returncode, p.stderr), (1, "python -m lanefs: standard output: No space left on device\n"))
        read, write = os.pipe()
        os.close(read)
        p = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        self.assertEqual((p.returncode, p.stderr), (1, ""))
        for locale in "C", "C.UTF-8":
            p = subprocess.run([*map(os.fsencode, command), os.fsencode(DIR) + b"/\xff"], capture_output=True, env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
            self.assertEqual((p.returncode, p.stderr), (1, b""), locale)
            self.assertIn(b"BAD ", p.stdout)

    def test_doctor_elsewhere(self):
        """Without a mount, and where no GPU's driver is, nothing is bad; a path is what the kernel's table says, whatever its letters."""
        doctor = importlib.import_module("lanefs.__main__")
        told, found = io.StringIO(), doctor.mounts
        self.assertIn(os.path.realpath(DIR), found())
        self.addCleanup(setattr, doctor, "mounts", found)
        doctor.mounts = lambda: []
        drivers = dict(lanefs._driver.Driver._libraries)
        self.addCleanup(lanefs._driver.Driver._libraries.update, drivers)
        lanefs._driver.Driver._libraries["cuda"] = ("cu", "libcuda-that-is-not-here.so.1")
        with contextlib.redirect_stdout(told):
            self.assertEqual(doctor.doctor([]), 0)
        self.assertRegex(told.getvalue(), r"no +mounts +none of LaneFS here: lanefs mount IMAGE DIRECTORY")
        self.assertRegex(told.getvalue(), r"no +driver of cuda +libcuda-that-is-not-here.so.1 is not here: no memory of such a GPU")
        table = os.path.join(OUTSIDE, "mountinfo")
        with open(table, "wb") as f:
            f.write(b"36 35 98:0 /mnt1 /a\\040\xc3\xbc\xff\\134b rw - fuse.lanefs lanefs rw\n37 35 0:1 / /b rw - fuse.sshfs x rw\n")
        self.assertEqual(found(table), [os.fsdecode(b"/a \xc3\xbc\xff\\b")])

    def test_where(self):
        self.assertTrue(os.path.exists(os.path.join(HERE, "py.typed")))
        if os.environ.get("LANEFS_TEST_WHEEL"):
            self.assertTrue(HERE.startswith(os.environ["LANEFS_TEST_WHEEL"]), HERE)
            self.assertTrue(os.path.exists(os.path.join(HERE, "liblanefs.so.1")))
            self.assertNotIn("LANEFS_LIBRARY", os.environ)
            import importlib.metadata
            self.assertEqual(importlib.metadata.version("lanefs"), lanefs.__version__)


if __name__ == "__main__":
    unittest.main(verbosity=2)
