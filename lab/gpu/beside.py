"""Small and large reads beside another process's matrix products.

    python3 beside.py MOUNT         the table
    python3 beside.py --products N  the other process: products of N by N in bfloat16, until its input ends; for each line of it, their rate since the one before

MOUNT is a directory of a LaneFS mount on the GPU. Needs PyTorch and the C library. Times are medians of a second at least. A last table has the rate of the products in TFLOP/s beside each of these reads,
and beside copies of this program from its own pinned memory as large and as often, which nothing of LaneFS has a part in."""

import mmap
import os
import select
import statistics
import subprocess
import sys
import time

import torch

import lanefs

MIB = 1 << 20


def products(n):
    a = torch.randn(n, n, dtype=torch.bfloat16, device="cuda")
    b = torch.randn(n, n, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(a)
    each = max(1, (8192 // n) ** 2)
    for _ in range(3):
        torch.mm(a, b, out=out)
    torch.cuda.synchronize()
    print("ready", flush=True)
    done, start, events = 0, time.perf_counter(), []
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            torch.cuda.synchronize()
            print(f"{done * 2 * n**3 / (time.perf_counter() - start) / 1e12:.0f}", flush=True)
            if not sys.stdin.readline():
                return
            done, start = 0, time.perf_counter()
        for _ in range(each):
            torch.mm(a, b, out=out)
        events.append(torch.cuda.Event())
        events[-1].record()
        done += each
        if len(events) > 4:  # the GPU always has work
            events.pop(0).synchronize()


def median(f):
    all_of, end = [], time.perf_counter() + 1
    while len(all_of) < 9 or time.perf_counter() < end:
        start = time.perf_counter()
        f()
        all_of.append(time.perf_counter() - start)
    return statistics.median(all_of)


def reads(f, t, exported, many):
    """The columns: a name, what to do, and the bytes of it whose rate is asked for, else it is its time."""
    stream = torch.cuda.current_stream()

    def wait(*args):
        f.read_batch(t, *args)
        stream.synchronize()
    direct = os.open(f.path, os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)
    return [("4 KiB, us: exported", lambda: f.read_into(exported, 4096, 0, 4096), 0), ("stage", lambda: wait([4096], [0], [4096]), 0),
            ("64 pieces", lambda: wait(many[:64], many[:64], [4096] * 64), 0), ("pread", lambda: os.preadv(direct, [page], 4096), 0),
            ("GB/s: exported", lambda: f.read_into(exported, 0, 0, 64 * MIB), 64 * MIB), ("stage", lambda: wait([0], [0], [64 * MIB]), 64 * MIB),
            ("64 KiB", lambda: wait(many, many, [65536] * 1024), 64 * MIB)]


def copies(t, many):
    """What a program without LaneFS would do in each column but pread's."""
    pinned = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)

    def copy(at, length):
        for i in at:
            t[i : i + length].copy_(pinned[i : i + length], non_blocking=True)
        torch.cuda.current_stream().synchronize()
    one, some, whole, each = (lambda: copy([4096], 4096)), (lambda: copy(many[:64], 4096)), (lambda: copy([0], 64 * MIB)), (lambda: copy(many, 65536))
    return [one, one, some, lambda: time.sleep(0.001), whole, whole, each]


class Products:
    def __init__(self, n):
        self.process = subprocess.Popen([sys.executable, __file__, "--products", str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()
        self.end_of(lambda: time.sleep(1))

    def end_of(self, f):
        """TFLOP/s while f runs."""
        self.rate()
        f()
        return self.rate()

    def rate(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self):
        self.process.communicate(timeout=60)


def line(name, cells, last=""):
    print(f"{name:<34}" + "".join(f"{c:>{w}}" for c, w in zip(cells, (20, 9, 11, 9, 16, 8, 8))) + f"{last:>12}", flush=True)


def main():
    path = os.path.join(sys.argv[1], "beside")
    many = [i * 65536 for i in range(1024)]
    with open(path, "wb") as g:
        g.write(os.urandom(64 * MIB))
    rates = []
    with lanefs.open(path) as f:
        t, exported = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"), lanefs.Buffer(f, 64 * MIB)
        columns, plain = reads(f, t, exported, many), copies(t, many)
        line("", [c[0] for c in columns], "TFLOP/s")
        for n in (0, 8192, 1024):
            cells, other, with_reads = [], None, []
            if n:
                other = Products(n)
                alone = other.end_of(lambda: time.sleep(2))
            for _, do, size in columns:
                took = []
                if other:
                    with_reads.append(other.end_of(lambda: took.append(median(do))))
                else:
                    took.append(median(do))
                cells.append(f"{size / took[0] / 1e9:.1f}" if size else f"{took[0] * 1e6:.0f}")
            if other:
                with_copies = [other.end_of(lambda: median(do)) for do in plain]
                rates += [(n, alone, "reads", with_reads), (n, other.end_of(lambda: time.sleep(2)), "copies", with_copies)]
                other.close()
            line(f"beside products of {n}" if n else "alone", cells, f"{sum(with_reads) / len(with_reads):.0f} of {alone}" if n else "")
        exported.close()
    for n, alone, what, r in rates:
        line(f"TFLOP/s, {n}, beside {what}", r, f"of {alone}")
    os.remove(path)


if sys.argv[1] == "--products":
    products(int(sys.argv[2]))
else:
    main()
