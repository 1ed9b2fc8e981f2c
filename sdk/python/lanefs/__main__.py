"""`python -m lanefs doctor [PATH …]`: what this package finds here, and what to do about what it does not find."""

import argparse
import errno
import importlib.metadata
import os
import re
import sys
import tempfile

import lanefs
from lanefs import _driver, _stage


def _say(good, what, value):
    try:
        print(f"{'ok  ' if good else 'no  ' if good is None else 'BAD '} {what:<22} {value}", flush=True)
    except OSError as e:  # a full file, or a reader that has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)  # for what the interpreter has left to write
        sys.exit(1 if isinstance(e, BrokenPipeError) else f"python -m lanefs: standard output: {e.strerror}")
    return good is not False


def _library():
    try:
        lib = _stage.library()
    except OSError as e:
        return _say(False, "C library", e)
    return _say(True, "C library", lib._name)


def _packages():
    for name, use in ("torch", "tensors, lanefs.torch"), ("numpy", "arrays"), ("safetensors", "shared_weights"), ("transformers", "from_pretrained"):
        try:
            _say(True, name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            _say(None, name, f"not installed: no {use}")


def _drivers():
    for runtime, (_, *names) in _driver.Driver._libraries.items():
        try:
            _say(True, f"driver of {runtime}", _driver.Driver.load(*names)._name)
        except OSError:
            _say(None, f"driver of {runtime}", f"{names[0]} is not here: no memory of such a GPU in this process")


def mounts(table="/proc/self/mountinfo"):
    """Paths of the LaneFS mounts that this process sees."""
    out = []
    with open(table, "rb") as f:
        for line in f:
            fields, _, rest = line.partition(b" - ")
            if rest.split()[0] == b"fuse.lanefs":
                out.append(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), fields.split()[4])))
    return out


def _mount(path):
    """A file or a directory: the session, and of a directory that may be written to, a block there and back by each road."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as e:
        gone = e.errno == errno.ENOTCONN
        return _say(False, path, e.strerror + (": its daemon has ended: lanefs umount, or mount it again" if gone else ": give a file or a directory of a mount that you may read"))
    try:
        s = lanefs.Session.of(fd, repr(path))
    except lanefs.NotLaneFS as e:
        return _say(False, path, f"{e.strerror}: mount it with lanefs mount, and not with vram=0")
    except OSError as e:
        return _say(False, path, f"{e.strerror} ({s_name(e)})")
    finally:
        os.close(fd)
    good = _say(True, path, f"runtime {s.runtime}, {s.name or 'memory of the CPU'} {s.device}, {s.pool_size >> 20} MiB of device memory for programs")
    if not os.path.isdir(path) or not os.access(path, os.W_OK):
        return good
    data = os.urandom(100001)
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".lanefs-doctor-") as t:
            t.write(data)
            t.flush()
            with lanefs.open(t.name, "r+") as f:
                with f.map() as m:
                    same = m.memory.view is None or bytes(m.memoryview()) == data
                    good &= _say(same, "  a mapping", "of the CPU's memory, bytes are right" if m.memory.view is not None else "on the GPU")
                b = bytearray(len(data))
                n = f.read_into(b)
                good &= _say(n == len(data) and b == data, "  any memory", f"{n} bytes by the stage, {f.session.rungs}")
    except OSError as e:
        good = _say(False, "  a file there", f"{e.strerror or e}")
    return good


def s_name(e):
    """The path that an error names."""
    return e.filename or "the daemon's socket"


def doctor(paths):
    good = _say(sys.version_info >= (3, 9), "Python", sys.version.split()[0] + ("" if sys.version_info >= (3, 9) else ": 3.9 or later is needed"))
    good &= _say(True, "lanefs", f"{lanefs.__version__} in {os.path.dirname(lanefs.__file__)}")
    good &= _library()
    _packages()
    _drivers()
    for path in paths or mounts() or [None]:
        good &= _say(None, "mounts", "none of LaneFS here: lanefs mount IMAGE DIRECTORY") if path is None else _mount(path)
    return 0 if good else 1


def main():
    p = argparse.ArgumentParser(prog="python -m lanefs", description="LaneFS in Python.")
    sub = p.add_subparsers(dest="command", required=True)
    d = sub.add_parser("doctor", help="what is here, what is missing, and the remedy; status 1 if something is bad")
    d.add_argument("path", nargs="*", help="files or directories of mounts; by default all mounts of LaneFS")
    sys.stdout.reconfigure(errors="backslashreplace")  # names of files are any bytes
    return doctor(p.parse_args().path)


if __name__ == "__main__":
    sys.exit(main())
