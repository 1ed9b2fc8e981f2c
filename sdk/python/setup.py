"""Builds the wheel: the package, and the C library in it, which is made from sdk/c. Needs cc and make, and no network:

    pip install --no-build-isolation --no-deps sdk/python
"""

import os
import shlex
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "c")
OUT = os.path.join(HERE, "..", "..", "build", "python")  # not in the sources


class Build(build_py):
    """The package, and the library."""

    def run(self):
        package = os.path.join(self.build_lib, "lanefs")
        shutil.rmtree(package, ignore_errors=True)  # of an earlier build, which may have had other modules, and an older library
        super().run()
        to = os.path.join(package, "liblanefs.so.1")
        if os.path.exists(to):  # it lies in the sources' package: made before
            return
        if not os.path.exists(os.path.join(SOURCE, "lanefs.h")):
            raise SystemExit("lanefs: the C library's sources (sdk/c) are not beside sdk/python: build from a whole checkout, or put liblanefs.so.1 into lanefs/")
        for tool in "make", (shlex.split(os.environ.get("CC", "")) or ["cc"])[0]:  # CC may be "ccache gcc"
            if shutil.which(tool) is None:
                raise SystemExit(f"lanefs: {tool} is not here: install a C compiler and make, or put a liblanefs.so.1 into lanefs/")
        out = os.path.abspath(os.path.join(self.build_lib, "..", "sdk-c"))
        subprocess.run(["make", "-s", "-C", SOURCE, f"BUILD={os.path.relpath(out, SOURCE)}"], check=True)  # what is above the checkout may have spaces, of which make knows nothing
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copyfile(os.path.join(out, "liblanefs.so.1.0.0"), to)


class Wheel(bdist_wheel):
    """For any Python 3, as the library is opened by ctypes."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class Binary(Distribution):
    def has_ext_modules(self):
        return True


options = {}
if os.path.exists(os.path.join(SOURCE, "lanefs.h")):
    os.makedirs(OUT, exist_ok=True)
    options = {"build": {"build_base": OUT}, "egg_info": {"egg_base": OUT}}
setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Binary, options=options)
