"""Run by the Go test beside this: holds a mapping and a ring while the daemon ends."""

import os
import threading

import lanefs

path = os.path.join(os.environ["LANEFS_TEST_DIR"], "end")
with open(path, "wb") as f:
    f.write(b"x" * 8192)
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
        f.ring.sync(f).result(60)  # the daemon's last requests may be carried out yet
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
f.close()
b.close()
print("gone", flush=True)
