"""What other programs do on the GPU of a mount: one is killed in the middle of a kernel, one faults, and with MPS, whose clients share a fault, its server is killed at last. Meanwhile the mounts
are read and written with O_DIRECT and bytes compared: nothing of that may fail. A program of LaneFS's may lose its context, by MPS, and hears of it; one that begins afterwards works.

    python3 neighbours.py LANEFS MOUNT...   the table; CUDA_MPS_PIPE_DIRECTORY says that there is MPS
    python3 neighbours.py --full            takes all memory of the GPU until its input ends

A line for each condition tells that it was right or wrong. Needs the C library, not PyTorch."""

import ctypes
import faulthandler
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time

import conditions
from conditions import MIB, SIZE, Fault, Memory, Stream, call, do

PATIENCE = conditions.PATIENCE
MPS = "CUDA_MPS_PIPE_DIRECTORY" in os.environ


class Work:
    """POSIX on one mount: writes and fsyncs of 1 MiB, read back; and reads of 4 KiB."""

    def __init__(self, directory):
        self.path, self.wrong, self.over = os.path.join(directory, "neighbours"), [], threading.Event()
        with open(self.path, "wb") as f:
            f.write(random.Random(7).randbytes(SIZE))
        self.rounds = {self.writes: 0, self.reads: 0}
        self.threads = [threading.Thread(target=self.again, args=(f,)) for f in self.rounds]
        for t in self.threads:
            t.start()

    def again(self, f):
        fd = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        page = mmap.mmap(-1, MIB)
        try:
            while not self.over.is_set():
                f(fd, page)
                self.rounds[f] += 1
        except BaseException as e:
            self.wrong.append(f"{f.__name__} of {self.path}: {e!r}")
        finally:
            os.close(fd)

    def writes(self, fd, page):
        at = SIZE + random.randrange(8) * MIB
        want = os.urandom(4096) * (MIB // 4096)
        page[:] = want
        assert os.pwritev(fd, [page], at) == MIB
        os.fsync(fd)
        page[:] = bytes(MIB)
        assert os.preadv(fd, [page], at) == MIB and page[:] == want, f"other bytes at {at}"

    def reads(self, fd, page):
        at = random.randrange(SIZE // 4096) * 4096
        with memoryview(page) as v:
            assert os.preadv(fd, [v[:4096]], at) == 4096
        assert page[:4096] == DATA[at : at + 4096], f"other bytes at {at}"

    def goes_on(self):
        """Each has made twenty rounds more, without an error."""
        before, end = dict(self.rounds), time.monotonic() + PATIENCE
        while any(n < before[f] + 20 for f, n in self.rounds.items()):
            assert not self.wrong, self.wrong[0]
            assert time.monotonic() < end, f"{self.path} stands still: " + str({f.__name__: n - before[f] for f, n in self.rounds.items()})
            time.sleep(0.01)

    def close(self):
        self.over.set()
        for t in self.threads:
            t.join()
        assert not self.wrong, self.wrong[0]


DATA = random.Random(7).randbytes(SIZE)


def begin(what, *args):
    """Another process that does what, and has said that it has begun."""
    p = subprocess.Popen([sys.executable, __file__, what, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    says = p.stdout.readline()
    if says != "begun\n":
        p.kill()
        raise AssertionError(f"{what} did not begin: {says}{p.communicate()[0]}")
    return p


def device():
    do("cuInit", 0)
    do("cuDevicePrimaryCtxRetain", ctypes.byref(conditions.context), 0)
    do("cuCtxSetCurrent", conditions.context)


def client(path):
    """Reads into memory of its own until its input ends or something fails, which it tells."""
    import lanefs

    device()
    m, s, rounds = Memory(), Stream(), 0
    with lanefs.open(path) as f:
        f.read_into(m, 0, 0, SIZE, stream=s)
        print("begun", flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
        try:
            while not over.is_set():
                assert f.read_into(m, 0, 0, SIZE, stream=s) == SIZE
                s.synchronize()
                rounds += 1
            assert m.bytes() == DATA
            mapped = has_shared(f)
        except (OSError, AssertionError) as e:
            print(f"heard: {e}", flush=True)
            os._exit(3)
    print(f"{rounds} rounds, {mapped}", flush=True)


def has_shared(f):
    """Memory of the mount's GPU: it is there, or it is said at once why not."""
    start = time.monotonic()
    try:
        with f.map():
            return "mapped"
    except OSError as e:
        took = time.monotonic() - start
        assert took < PATIENCE / 2, f"after {took:.1f} s: {e}"
        return f"no map: {e}"


over = threading.Event()


def kernel(seconds):
    device()
    s, fault = Stream(), Fault()
    fault.launch(s, float(seconds))
    print("begun", flush=True)
    print(call("cuStreamSynchronize", ctypes.c_void_p(s.cuda_stream)), flush=True)


def full():
    """Takes all of the GPU's memory."""
    device()
    step, taken = 1 << 30, 0
    while step >= MIB:
        try:
            Memory(step)
            taken += step
        except AssertionError:
            step //= 4
    print("begun", flush=True)
    sys.stdin.read()


def plain():
    """No LaneFS: memory is written and read."""
    device()
    m = Memory(MIB)
    do("cuMemsetD8_v2", ctypes.c_uint64(m.at), ctypes.c_ubyte(5), ctypes.c_uint64(MIB))
    assert m.bytes() == b"\5" * MIB
    print("begun", flush=True)


def ended(p, what):
    """Lets a client end: what it says, and whether it was well."""
    try:
        out = p.communicate("", timeout=PATIENCE)[0].strip()
    except subprocess.TimeoutExpired:
        p.kill()
        raise AssertionError(f"{what} hangs: {p.communicate()[0]}")
    assert p.returncode in (0, 3), (what, p.returncode, out)
    return p.returncode == 0, out


def killed(works):
    """A neighbour is killed while its kernel runs."""
    readers = [begin("client", w.path) for w in works]
    n = begin("kernel", "60")
    time.sleep(1)
    n.kill()
    n.wait()
    for w in works:
        w.goes_on()
    return readers_after(readers, must=not MPS)


def faults(works):
    """A kernel of a neighbour's writes where there is nothing."""
    readers = [begin("client", w.path) for w in works]
    says = ended(begin("kernel", "1"), "the neighbour")[1]
    assert says != "0", "the kernel did no harm"
    for w in works:
        w.goes_on()
    return readers_after(readers, must=not MPS)


def server(works):
    """MPS's server is killed."""
    readers = [begin("client", w.path) for w in works]
    pids = subprocess.run(["nvidia-cuda-mps-control"], input="get_server_list\n", capture_output=True, text=True, check=True).stdout.split()
    assert pids, "MPS has no server"
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)
    for w in works:
        w.goes_on()
    return readers_after(readers, must=False)


def readers_after(readers, must):
    told = []
    for r in readers:
        well, says = ended(r, "a program that reads")
        assert well or not must, says
        told.append(says)
    return "; ".join(told)


def afterwards(works):
    """Programs that begin now, without LaneFS and with it."""
    end, tries = time.monotonic() + PATIENCE, 0
    while True:
        tries += 1
        try:
            p = begin("plain")
            p.communicate()
            break
        except AssertionError as e:
            assert time.monotonic() < end, e
            time.sleep(0.5)
    for w in works:
        well, says = ended(begin("client", w.path), "a program that begins")
        assert well, says
    return f"at try {tries}"


def main():
    lanefs, wrong = sys.argv[1], 0
    works = [Work(d) for d in sys.argv[2:]]
    steps = [killed, afterwards, faults, afterwards] + ([server, afterwards] if MPS else [])
    for step in steps:
        start = time.monotonic()
        faulthandler.dump_traceback_later(4 * PATIENCE, exit=True)
        try:
            note = step(works)
            print(f"right {step.__name__}, {time.monotonic() - start:.1f} s: {note}", flush=True)
        except Exception as e:
            wrong = 1
            print(f"WRONG {step.__name__}, {time.monotonic() - start:.1f} s: {type(e).__name__}: {e}", flush=True)
        for d in sys.argv[2:]:
            print(f"      {d}: " + "; ".join(line.strip() for line in stat(lanefs, d) if "GPU" in line or "lanes" in line), flush=True)
    faulthandler.cancel_dump_traceback_later()
    for w in works:
        try:
            w.close()
        except AssertionError as e:
            wrong = 1
            print(f"WRONG {e}", flush=True)
        os.remove(w.path)
    return wrong


def stat(lanefs, directory):
    return subprocess.run([lanefs, "stat", directory], capture_output=True, text=True, timeout=PATIENCE).stdout.splitlines()


if __name__ == "__main__":
    alone = {"client": client, "kernel": kernel, "plain": plain, "--full": full}.get(sys.argv[1])
    sys.exit(alone(*sys.argv[2:]) if alone else main())
