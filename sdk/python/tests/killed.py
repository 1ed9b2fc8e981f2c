"""Run by a test of cmd/lanefs: killed.py DIRECTORY, of a mount with device memory, whose daemon is killed when this has said "reading". Each way into the package is in a loop
then: what it gave was right, and it fails at once, with an error of its own. Says which ways there were."""

import array
import ctypes
import errno
import os
import signal
import sys
import threading

import lanefs
import lanefs.lmcache

try:
    import torch
    import lanefs.torch as lt
except ImportError:
    torch = None

where = sys.argv[1]
path = lambda name: os.path.join(where, name)
signal.alarm(400)  # nothing hangs
N = 3 << 20
data = bytes(i % 251 for i in range(N))
values = array.array("f", [i / 7 for i in range(100000)])


class Memory:
    """What LMCache uses of a tensor of PyTorch's."""

    def __init__(self, n):
        self.bytes = bytearray(n)

    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))

    def numel(self):
        return len(self.bytes)

    def element_size(self):
        return 1

    def is_contiguous(self):
        return True


with open(path("file"), "wb") as f:
    f.write(data)
opened = lanefs.open(path("file"), "r+")
dropped = [lanefs.open(path("file")).map() for _ in range(3)]
slab = lanefs.kv.Slab(path("slab"), 1 << 20, 4)
slab.put_batch(["a", "b"], data, [0, 1 << 20], [1 << 20, 1 << 20])
slab.commit()
backend, memory = lanefs.lmcache.Backend(), Memory(N)
backend.register_buffer(memory)
handle = backend.open_slab(path("slabs"), N, True)
memory.bytes[:] = data
assert handle.write_async(memory.data_ptr(), N, 0, 0, 0).bytes_done == N


def read_file():
    into = bytearray(N)
    assert opened.read_into(into) == N and into == data


def read_batch():
    into = bytearray(N)
    for n in opened.read_batch(into, [0, N // 2], [0, N // 2], [N // 2, N // 2]):
        if n < 0:
            raise OSError(-n, os.strerror(-n))
        assert n == N // 2
    assert into == data


def kv():
    into = bytearray(2 << 20)
    assert slab.get_batch(["a", "b"], into, [0, 1 << 20]) == [1 << 20, 1 << 20] and into == data[:2 << 20]


def kv_put():
    slab.put("c", data, 5, 1000)
    slab.commit()


def lmcache():
    memory.bytes[:] = bytes(N)
    n = handle.read_async(memory.data_ptr(), N, 0, 0, 0).bytes_done
    if n < 0:
        raise OSError(-n, os.strerror(-n))
    assert n == N and memory.bytes == data


def mapped():
    with lanefs.open(path("file")) as f, f.map() as m:
        assert m.memoryview() == data


ways = [read_file, read_batch, kv, kv_put, lmcache, mapped]
if torch is not None:
    want = {"w": torch.tensor(values), "b": torch.arange(1000)}
    lt.save_file(want, path("model.safetensors"))

    def same(got):
        assert got.keys() == want.keys() and all(torch.equal(got[k], want[k]) for k in want)

    ways += [lambda: same(lt.load_file(path("model.safetensors"))), lambda: same(lanefs.load_safetensors(path("model.safetensors"), framework="torch")),
             lambda: lt.save_file(want, path("saved.safetensors"))]
wrong, failed, begun = [], [], threading.Barrier(len(ways) + 1)


def until_the_end(way):
    try:
        way()
        begun.wait()
        while True:
            way()
    except OSError as e:
        failed.append(e)
    except BaseException as e:
        wrong.append((way, e))
        begun.abort()


threads = [threading.Thread(target=until_the_end, args=(w,)) for w in ways]
for t in threads:
    t.start()
begun.wait()
print("reading", flush=True)
for t in threads:
    t.join()
assert not wrong, wrong
assert len(failed) == len(ways)
gone = errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED  # the last three are the kernel's, of open(2), fsync(2) and the like
for way in ways:  # and so it stays
    try:
        way()
    except OSError as e:
        failed.append(e)
    else:
        raise AssertionError(f"{way} after the daemon's end")
for e in failed:
    assert e.errno in gone and not isinstance(e, lanefs.NotLaneFS), repr(e)
dropped.clear()  # what only the collector ends asks the daemon for nothing any more
assert slab.damaged == 0 and "a" in slab  # no block is given up for that
print("gone", "torch" if torch is not None else "", flush=True)
os._exit(0)  # files of a mount that is no more cannot be closed in order
