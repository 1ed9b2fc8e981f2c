"""Programs that we did not write, on cuFile's interface: PyTorch's GdsFile, NVIDIA's cuda.bindings.cufile, memory of CuPy.

    lanefs run -- python3 cufile.py DIRECTORY WHERE

DIRECTORY is one of a LaneFS mount, or of another file system, WHERE says which. What is missing here is named; what is there must be right.
"""

import ctypes
import os
import sys

import numpy
import torch

SIZE = (8 << 20) + 4096  # cuFile's own compatibility mode wants whole pages


def say(what, result):
    print(f"{what:<64}{result}", flush=True)


def prove(condition, what):
    say(what, "ok" if condition else "WRONG")
    if not condition:
        sys.exit(1)


def whose():
    """Which libcufile the process has: LaneFS's has a symbol that says so."""
    lib = ctypes.CDLL("libcufile.so.0")
    return hasattr(lib, "lanefs_cufile_build")


def on_disk(path):
    return numpy.fromfile(path, dtype=numpy.uint8)


def gds(directory, where):
    from torch.cuda.gds import GdsFile

    path = os.path.join(directory, "gds.bin")
    have = torch.randint(0, 256, (SIZE,), dtype=torch.uint8, device="cuda")
    with open(path, "wb") as f:
        f.truncate(SIZE)
    f = GdsFile(path, os.O_RDWR)
    f.save_storage(have.untyped_storage(), offset=0)
    prove(numpy.array_equal(on_disk(path), have.cpu().numpy()), f"torch.cuda.gds.GdsFile.save_storage, {where}")
    into = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    f.load_storage(into.untyped_storage(), offset=0)
    prove(torch.equal(into, have), f"torch.cuda.gds.GdsFile.load_storage, {where}")
    into.zero_()
    torch.cuda.gds.gds_register_buffer(into.untyped_storage())
    f.load_storage(into.untyped_storage(), offset=0)
    torch.cuda.gds.gds_deregister_buffer(into.untyped_storage())
    prove(torch.equal(into, have), f"  and into a registered buffer, {where}")
    del f
    os.unlink(path)


def bindings(directory, where, memory, have):
    """memory: of any library, an address and a function that gives its bytes; have: what to write, likewise."""
    from cuda.bindings import cufile

    path = os.path.join(directory, "bindings.bin")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    descr = cufile.Descr()
    descr.type = cufile.FileHandleType.OPAQUE_FD
    descr.handle.fd = fd
    descr.fs_ops = 0
    handle = cufile.handle_register(descr.ptr)
    cufile.buf_register(have[0], SIZE, 0)
    n = cufile.write(handle, have[0], SIZE, 0, 0)
    prove(n in (None, SIZE) and numpy.array_equal(on_disk(path), have[1]()), f"cuda.bindings.cufile.write, {where}")
    n = cufile.read(handle, memory[0], SIZE, 0, 0)
    prove(n in (None, SIZE) and numpy.array_equal(memory[1](), have[1]()), f"cuda.bindings.cufile.read, {where}")
    batch(cufile, handle, where, memory, have)
    cufile.buf_deregister(have[0])
    cufile.handle_deregister(handle)
    os.close(fd)
    os.unlink(path)


def batch(cufile, handle, where, memory, have):
    n = 8
    each = SIZE // n // 4096 * 4096
    params, events = cufile.IOParams(n), cufile.IOEvents(n)
    for i in range(n):
        p = params[i]
        p.mode, p.fh, p.opcode, p.cookie = cufile.BatchMode.BATCH, handle, cufile.Opcode.READ, i + 1
        p.u.batch.dev_ptr_base, p.u.batch.file_offset, p.u.batch.dev_ptr_offset, p.u.batch.size_ = memory[0], (n - 1 - i) * each, i * each, each
    b = cufile.batch_io_set_up(n)
    cufile.batch_io_submit(b, n, params.ptr, 0)
    timeout, done, rounds = (ctypes.c_long * 2)(10, 0), 0, 0
    while done < n and rounds < 20:
        k = ctypes.c_uint(n)
        cufile.batch_io_get_status(b, n - done, ctypes.addressof(k), events.ptr, ctypes.addressof(timeout))
        done += k.value
        rounds += 1
    cufile.batch_io_destroy(b)
    want, got = have[1](), memory[1]()
    right = all(numpy.array_equal(got[i * each:(i + 1) * each], want[(n - 1 - i) * each:(n - i) * each]) for i in range(n))
    prove(done == n and right, f"cuda.bindings.cufile's batch, {where}")


def with_torch():
    m, have = torch.zeros(SIZE, dtype=torch.uint8, device="cuda"), torch.randint(0, 256, (SIZE,), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return (m.data_ptr(), lambda: m.cpu().numpy()), (have.data_ptr(), lambda: have.cpu().numpy())


def with_cupy():
    import cupy

    m, have = cupy.zeros(SIZE, dtype=cupy.uint8), cupy.random.randint(0, 256, SIZE).astype(cupy.uint8)
    cupy.cuda.Device().synchronize()
    return (m.data.ptr, lambda: cupy.asnumpy(m)), (have.data.ptr, lambda: cupy.asnumpy(have))


def tried(what, f, *args):
    """A proof that fails ends the program. What is not installed, or is refused on the other file system, is said."""
    try:
        f(*args)
    except (ImportError, AttributeError) as e:
        say(what, f"not here: {type(e).__name__}: {e}")


def streams(directory, where):
    """Calls in the order of a stream that is busy when they are made."""
    class Error(ctypes.Structure):
        _fields_ = [("code", ctypes.c_int), ("cuda", ctypes.c_int)]

    class Descr(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_int64), ("ops", ctypes.c_void_p)]

    lib = ctypes.CDLL("libcufile.so.0")
    for name in ("cuFileHandleRegister", "cuFileReadAsync", "cuFileWriteAsync", "cuFileStreamRegister", "cuFileStreamDeregister"):
        getattr(lib, name).restype = Error
    path = os.path.join(directory, "streams.bin")
    want = numpy.random.default_rng(3).integers(0, 256, SIZE, dtype=numpy.uint8)
    want.tofile(path)
    fd, handle, stream = os.open(path, os.O_RDWR), ctypes.c_void_p(), torch.cuda.Stream()
    assert lib.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(Descr(type=1, fd=fd))).code == 0
    for flags in (0, 15):
        m, big = torch.empty(SIZE, dtype=torch.uint8, device="cuda"), torch.ones(4096, 4096, device="cuda")
        n, at, off, got = ctypes.c_size_t(SIZE), ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_ssize_t(0)
        torch.cuda.synchronize()
        assert lib.cuFileStreamRegister(ctypes.c_void_p(stream.cuda_stream), flags).code == 0
        with torch.cuda.stream(stream):
            for _ in range(8):
                big = big @ big / 4096
            m.fill_(7)
            e = lib.cuFileReadAsync(handle, ctypes.c_void_p(m.data_ptr()), ctypes.byref(n), ctypes.byref(at), ctypes.byref(off), ctypes.byref(got), ctypes.c_void_p(stream.cuda_stream))
            turned = 255 - m
        stream.synchronize()
        prove(e.code == 0 and got.value == SIZE and numpy.array_equal(turned.cpu().numpy(), 255 - want), f"cuFileReadAsync between kernels, flags {flags}, {where}")
        with torch.cuda.stream(stream):
            for _ in range(8):
                big = big @ big / 4096
            m.copy_(turned)
            e = lib.cuFileWriteAsync(handle, ctypes.c_void_p(m.data_ptr()), ctypes.byref(n), ctypes.byref(at), ctypes.byref(off), ctypes.byref(got), ctypes.c_void_p(stream.cuda_stream))
            m.zero_()
        stream.synchronize()
        prove(e.code == 0 and got.value == SIZE and numpy.array_equal(on_disk(path), 255 - want), f"cuFileWriteAsync between kernels, flags {flags}, {where}")
        want = 255 - want
        assert lib.cuFileStreamDeregister(ctypes.c_void_p(stream.cuda_stream)).code == 0
    lib.cuFileHandleDeregister(handle)
    os.close(fd)
    os.unlink(path)


def main():
    directory, where = sys.argv[1:]
    prove(whose(), "the process has LaneFS's libcufile")
    tried("torch.cuda.gds", gds, directory, where)
    tried("cuda.bindings.cufile", lambda: bindings(directory, "PyTorch's memory, " + where, *with_torch()))
    tried("CuPy", lambda: bindings(directory, "CuPy's memory, " + where, *with_cupy()))
    tried("streams", streams, directory, where)
    print("proved", flush=True)


main()
