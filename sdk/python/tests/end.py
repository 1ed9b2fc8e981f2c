"""Run by the Go test beside this: holds a mapping and a ring while the daemon ends."""

import errno
import os
import threading

import lanefs

path = os.path.join(os.environ["LANEFS_TEST_DIR"], "end")
with open(path, "wb") as f:
    f.write(b"x" * 8192)


def caught(do):
    try:
        do()
    except BaseException as e:
        return [e]
    return []


f = lanefs.open(path)
m, b = f.map(), lanefs.Buffer(f, 4096)
assert f.read_into(b) == 8192
assert m.current and not f.session.wait(0)
slab = None
if os.environ.get("LANEFS_LIBRARY"):  # else without cc
    slab = lanefs.kv.Slab(os.path.join(os.environ["LANEFS_TEST_DIR"], "end.slab"), 4096, 8)
    slab.put("a", b"data")
    slab.commit()
    slab.put("b", b"not committed")
def until_the_end():
    """Batches one after the other: each has the right bytes, or an error."""
    into, n = bytearray(8000), 0
    while True:
        into[:] = bytes(8000)
        try:
            got = f.read_batch(into, [0, 4000], [4000, 0], [4000, 4000])
        except OSError as e:
            assert e.errno in (errno.ECONNRESET, errno.EPIPE), e
            return
        for i, k in enumerate(got):
            assert k == 4000 and into[4000 - 4000 * i:8000 - 4000 * i] == b"x" * 4000 or k < 0, k


reads = None
if slab is not None:
    assert list(f.read_batch(bytearray(10), [0], [0], [10])) == [10]
    failures = []
    reads = threading.Thread(target=lambda: failures.extend(caught(until_the_end)), daemon=True)
    reads.start()
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, f.fd)  # an open file would keep the mount busy
if slab is not None:
    os.dup2(null, slab._f.fd)
print("ready", flush=True)

assert f.session.wait(60)
for _ in range(6000):
    if f.session.gone:
        break
    threading.Event().wait(0.01)
assert f.session.gone and not m.current
assert bytes(m.memoryview()) == b"x" * 8192
try:
    for _ in range(6000):
        try:
            f.ring.sync(f).result(60)  # the daemon's last requests may be carried out yet
        except BrokenPipeError as e:
            if e.errno != errno.ESHUTDOWN:  # or are told that the mount ends
                raise
except ConnectionError as e:
    assert "daemon has gone" in str(e), e
else:
    raise AssertionError("requests after the daemon's end")
if slab is not None:
    for do in (lambda: slab.get("a", bytearray(4)), lambda: slab.put("c", b"x"), slab.commit, slab.close):
        try:
            do()
        except OSError:
            continue
        raise AssertionError("a slab after the daemon's end")
    assert "a" in slab, "no block is given up for that"
if reads is not None:
    reads.join(60)
    assert not reads.is_alive() and not failures, failures
f.close()
b.close()
print("gone", flush=True)
