"""Memory that LaneFS did not allocate, of every kind that CUDA has: a file's bytes there and back.

    python3 memories.py MOUNT

MOUNT is a directory of a LaneFS mount. Needs PyTorch and the C library; CuPy where there is one. Each kind gets few pieces, many, one large one, batches on a
stream behind a kernel, and what does not belong to it, which fails with EFAULT and changes nothing."""

import ctypes
import errno
import faulthandler
import os
import sys
import time

import torch

import lanefs

MIB = 1 << 20
SIZE = 16 * MIB
cuda = ctypes.CDLL("libcuda.so.1")


class DriverError(Exception):
    pass


def do(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        raise DriverError(f"{name}: {code}")


def address(name, *args):
    p = ctypes.c_uint64()
    do(name, ctypes.byref(p), *args)
    return p.value


def n64(v):
    return ctypes.c_uint64(v)


class Prop(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("where", ctypes.c_int), ("id", ctypes.c_int), ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("where", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


def managed(flags=1):
    p = address("cuMemAllocManaged", n64(SIZE), flags)
    return p, lambda: do("cuMemFree_v2", n64(p))


def managed_on_gpu():
    p, free = managed()
    torch.cuda.synchronize()
    do("cuMemsetD8_v2", n64(p), ctypes.c_ubyte(1), n64(SIZE))  # its pages go to the GPU
    return p, free


def managed_on_cpu():
    p, free = managed()
    ctypes.memset(p, 1, SIZE)
    return p, free


def device():
    p = address("cuMemAlloc_v2", n64(SIZE))
    return p, lambda: do("cuMemFree_v2", n64(p))


def pool():
    p = address("cuMemAllocAsync", n64(SIZE), None)
    return p, lambda: (do("cuMemFreeAsync", n64(p), None), torch.cuda.synchronize())


def mapped_host(flags):
    p = address("cuMemHostAlloc", n64(SIZE), flags)
    return p, lambda: do("cuMemFreeHost", n64(p))


def registered_host():
    b = (ctypes.c_char * (SIZE + 4096))()
    p = (ctypes.addressof(b) + 4095) // 4096 * 4096
    do("cuMemHostRegister_v2", n64(p), n64(SIZE), 2)
    return p, lambda: (do("cuMemHostUnregister", n64(p)), b)


def virtual():
    """Two allocations one behind the other in one range of addresses, as expandable segments have them."""
    prop, handles, half = Prop(type=1, where=1, id=0), [], SIZE // 2
    p = address("cuMemAddressReserve", n64(SIZE), n64(0), n64(0), n64(0))
    for i in range(2):
        h = ctypes.c_uint64()
        do("cuMemCreate", ctypes.byref(h), n64(half), ctypes.byref(prop), n64(0))
        do("cuMemMap", n64(p + i * half), n64(half), n64(0), h, n64(0))
        handles.append(h)
    do("cuMemSetAccess", n64(p), n64(SIZE), ctypes.byref(Access(1, 0, 3)), n64(1))

    def free():
        do("cuMemUnmap", n64(p), n64(SIZE))
        for h in handles:
            do("cuMemRelease", h)
        do("cuMemAddressFree", n64(p), n64(SIZE))

    return p, free


def cupys(kind):
    import cupy

    allocator = {"pool": cupy.cuda.MemoryPool().malloc, "managed": cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc, "stream-ordered": cupy.cuda.MemoryAsyncPool().malloc}[kind]
    with cupy.cuda.using_allocator(allocator):
        a = cupy.zeros(SIZE, dtype=cupy.uint8)
    cupy.cuda.Device().synchronize()
    return a, lambda: None


KINDS = {
    "cuMemAlloc": device, "cuMemAllocAsync": pool, "cuMemCreate, two in a row": virtual,
    "managed": managed, "managed, attached to the host": lambda: managed(2), "managed, pages on the GPU": managed_on_gpu, "managed, pages on the CPU": managed_on_cpu,
    "cuMemHostAlloc": lambda: mapped_host(1), "cuMemHostAlloc, mapped": lambda: mapped_host(2), "cuMemHostAlloc, write-combined": lambda: mapped_host(4),
    "cuMemHostRegister": registered_host,
    "CuPy's pool": lambda: cupys("pool"), "CuPy's managed pool": lambda: cupys("managed"), "CuPy's stream-ordered pool": lambda: cupys("stream-ordered"),
}  # fmt: skip


def contents(p):
    torch.cuda.synchronize()
    b = ctypes.create_string_buffer(SIZE)
    do("cuMemcpy", n64(ctypes.addressof(b)), n64(p), n64(SIZE))
    torch.cuda.synchronize()
    return b.raw[:SIZE]


def fill(p, value):
    torch.cuda.synchronize()
    b = ctypes.create_string_buffer(bytes([value]) * SIZE, SIZE)
    do("cuMemcpy", n64(p), n64(ctypes.addressof(b)), n64(SIZE))
    torch.cuda.synchronize()


def spread(count):
    """Pieces of odd sizes at odd places, which do not overlap; one lies over the middle, where another allocation may begin."""
    room = SIZE // count
    lengths = [min(room - 16, 1 + (i * 1237) % 9001) for i in range(count)]
    lengths[count // 2 - 1] = room + 7 if count > 1 else lengths[0]
    offsets = [i * room + (i * 5) % 16 for i in range(count)]
    offsets[count // 2] += 32 if count > 1 else 0
    lengths[count // 2] = min(lengths[count // 2], room - 64)
    return [(i * 7919 * 513) % (SIZE - 2 * room - 9100) if count > 1 else 0 for i in range(count)], offsets, lengths


def expect(p, data, fo, to, n, what):
    want = bytearray(b"\7" * SIZE)
    for a, b, k in zip(fo, to, n):
        want[b : b + k] = data[a : a + k]
    got = contents(p)
    assert got == bytes(want), f"{what}: byte {next(i for i in range(SIZE) if got[i] != want[i])} is wrong"


def prove(f, g, data, memory, p, stream, work):
    for count in (3, 200, 3000):
        fo, to, n = spread(count)
        fill(p, 7)
        assert list(f.read_batch(memory, fo, to, n)) == n
        expect(p, data, fo, to, n, f"{count} pieces")
        with torch.cuda.stream(stream):
            fill(p, 7)
            work()
            b = f.read_batch_on(memory, fo, to, n, stream=stream)
        assert list(b.results()) == n
        expect(p, data, fo, to, n, f"{count} pieces on a stream")
        have = contents(p)
        assert list(g.write_batch(memory, to, to, n)) == n
        with open(g.path, "rb") as h:
            back = h.read(SIZE)
        assert all(back[o : o + k] == have[o : o + k] for o, k in zip(to, n)), f"{count} pieces written"
    assert f.read_into(memory, 0, 0, SIZE) == SIZE and contents(p) == data, "one piece"
    assert g.write_from(memory, 0, 0, SIZE) == SIZE
    with open(g.path, "rb") as h:
        assert h.read(SIZE) == data, "one piece written"


def freed(f, p):
    """A freed address is EFAULT, for itself and for each piece."""
    for what in (lambda: f.read_into(p, 0, 0, 4096), lambda: f.read_batch(p, [0, 4096], [0, 4096], [4096, 4096]), lambda: f.read_batch(p, [0], [SIZE - 4096], [4096])):
        try:
            got = what()
        except OSError as e:
            got = e.errno
        assert got == errno.EFAULT, f"freed memory: {got}"


def main():
    path = os.path.join(sys.argv[1], "memories")
    with open(path, "wb") as g:
        g.write(os.urandom(SIZE))
    with open(path, "rb") as g:
        data = g.read()
    with open(path + ".back", "wb") as g:
        g.truncate(SIZE)
    a, stream, failed = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream(), 0
    torch.cuda.synchronize()

    def work():
        for _ in range(20):
            a @ a

    with lanefs.open(path) as f, lanefs.open(path + ".back", "r+") as g:
        for name, new in KINDS.items():
            start = time.monotonic()
            faulthandler.dump_traceback_later(60)
            try:
                memory, free = new()
            except (ImportError, DriverError, RuntimeError) as e:
                print(f"skip  {name}: {e}", flush=True)
                continue
            p = memory if isinstance(memory, int) else memory.data.ptr
            try:
                prove(f, g, data, memory, p, stream, work)
                torch.cuda.synchronize()
                free()
                if new in (device, virtual, managed, managed_on_gpu, managed_on_cpu):  # a pool keeps its memory, and the CPU's own is for the CPU to miss
                    freed(f, p)
                print(f"right {name}, {time.monotonic() - start:.1f} s", f.session.rungs, flush=True)
            except (AssertionError, OSError, ValueError, TypeError, DriverError) as e:
                failed = 1
                print(f"WRONG {name}, {time.monotonic() - start:.1f} s: {type(e).__name__}: {e}", flush=True)
        assert int((a @ a).isnan().sum()) == 0, "the context is alive"
        torch.cuda.synchronize()
    faulthandler.cancel_dump_traceback_later()
    os.remove(path)
    os.remove(path + ".back")
    sys.exit(failed)


main()
