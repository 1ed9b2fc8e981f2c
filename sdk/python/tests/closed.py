"""Run by the Go test beside this: a program that closes all descriptors but the standard ones, as daemons do, and opens others under their numbers. What it had open of the mount fails
at once, nothing happens to the others, and it can open files anew."""

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import threading

import lanefs

DIR = os.environ["LANEFS_TEST_DIR"]
path, N = os.path.join(DIR, "closed"), 1 << 20
data = bytes(i % 251 for i in range(N))
with open(path, "wb") as f:
    f.write(data)
signal.alarm(400)  # nothing hangs
for _ in range(3):
    f = lanefs.open(path, "r+")
    b, m, into = lanefs.Buffer(f, N), f.map(), bytearray(N)
    slab = lanefs.kv.Slab(os.path.join(DIR, "slab"), 4096, 8)
    slab.put("a", b"data")
    assert f.read_into(b) == N and f.read_into(into) == N and into == data
    inherited = subprocess.run([sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"], capture_output=True, close_fds=False).stdout
    assert int(inherited) == 4, inherited  # the standard ones, and that of listdir
    flying = f.ring.read(f, b)
    waiting = []
    thread = threading.Thread(target=lambda: waiting.append(f.session.wait(0.01)))
    thread.start()
    thread.join()
    os.closerange(3, 1024)
    peers, files = [], []
    for i in range(3, 60):
        if i % 2:
            x, y = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            assert x.fileno() == i, (x.fileno(), i)
            high = os.dup(y.fileno()) if y.fileno() >= 60 else __import__("fcntl").fcntl(y.fileno(), 0, 60)
            y.close()
            peers.append((x, high))
            os.set_blocking(high, False)
        else:
            files.append(os.open(os.path.join(DIR, f"others {i}"), os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            assert files[-1] == i and os.pwrite(i, b"others", 0) == 6
    for do in (lambda: f.read_into(b), lambda: f.read_into(into), lambda: f.write_from(data), lambda: f.read_batch(into, [0], [0], [N]), lambda: f.commit(m), lambda: f.size, f.sync,
               f.map, lambda: f.pin(), slab.commit, lambda: slab.put("b", data[:9]), lambda: slab.get("a", into), lambda: lanefs.Buffer(f, N), lambda: f.ring.sync(f).result(60),
               lambda: f.session.wait(0)):
        try:
            do()
        except OSError as e:
            assert e.errno == errno.ECONNRESET, e
        else:
            raise AssertionError("a call on descriptors that are others'")
    assert f.session.gone and not m.current and m.memoryview() == data
    try:
        flying.result(60)
    except OSError:
        pass  # else it had ended
    with lanefs.open(path) as again:
        assert again.read_into(into) == N and into == data
        del again
    for do in slab.close, b.close, m.close, f.close:
        try:
            do()
        except OSError as e:
            assert do == slab.close and e.errno == errno.ECONNRESET, e
    del f, b, m, slab, flying, do
    gc.collect()
    for fd in files:
        assert os.pread(fd, 100, 0) == b"others" and os.lseek(fd, 0, os.SEEK_CUR) == 0
        os.close(fd)
    for x, high in peers:
        try:
            raise AssertionError(os.read(high, 1000))
        except BlockingIOError:
            pass
        os.close(high)
        x.close()
print("ok")
