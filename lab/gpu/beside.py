"""Small and large reads beside another process's matrix products.

    python3 beside.py MOUNT         the table
    python3 beside.py --products N  the other process: products of N by N in bfloat16, until its input ends

MOUNT is a directory of a LaneFS mount on the GPU. Needs PyTorch and the C library. Times are medians of a second at least."""

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
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(each):
            torch.mm(a, b, out=out)
        events.append(torch.cuda.Event())
        events[-1].record()
        done += each
        if len(events) > 4:  # the GPU always has work
            events.pop(0).synchronize()
    torch.cuda.synchronize()
    print(f"{done * 2 * n**3 / (time.perf_counter() - start) / 1e12:.0f}", flush=True)


def median(f):
    all_of, end = [], time.perf_counter() + 1
    while len(all_of) < 9 or time.perf_counter() < end:
        start = time.perf_counter()
        f()
        all_of.append(time.perf_counter() - start)
    return statistics.median(all_of)


def row(f, t, exported):
    """Microseconds of one read of 4 KiB, and GB/s."""
    stream = torch.cuda.current_stream()

    def wait(*args):
        f.read_batch(t, *args)
        stream.synchronize()
    direct = os.open(f.path, os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)
    many = [i * 65536 for i in range(1024)]
    figures = [median(lambda: f.read_into(exported, 4096, 0, 4096)) * 1e6, median(lambda: wait([4096], [0], [4096])) * 1e6,
               median(lambda: wait(many[:64], many[:64], [4096] * 64)) * 1e6, median(lambda: os.preadv(direct, [page], 4096)) * 1e6,
               64 * MIB / median(lambda: f.read_into(exported, 0, 0, 64 * MIB)) / 1e9, 64 * MIB / median(lambda: wait([0], [0], [64 * MIB])) / 1e9,
               64 * MIB / median(lambda: wait(many, many, [65536] * 1024)) / 1e9]
    os.close(direct)
    return figures


def start(n):
    other = subprocess.Popen([sys.executable, __file__, "--products", str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    other.stdout.readline()
    return other


def finish(other):
    return other.communicate("end\n", timeout=60)[0].strip()


def main():
    path = os.path.join(sys.argv[1], "beside")
    with open(path, "wb") as g:
        g.write(os.urandom(64 * MIB))
    with lanefs.open(path) as f:
        t, exported = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"), lanefs.Buffer(f, 64 * MIB)
        print(f"{'':<22}{'4 KiB, us: exported':>20}{'stage':>9}{'64 pieces':>11}{'pread':>9}{'GB/s: exported':>16}{'stage':>8}{'64 KiB':>8}{'TFLOP/s':>12}")
        for n in (0, 8192, 1024):
            rate = ""
            if n:
                other = start(n)
                time.sleep(2)
                alone = finish(other)
                other = start(n)
            v = row(f, t, exported)
            if n:
                rate = f"{finish(other)} of {alone}"
            print(f"{f'beside products of {n}' if n else 'alone':<22}{v[0]:>20.0f}{v[1]:>9.0f}{v[2]:>11.0f}{v[3]:>9.0f}{v[4]:>16.1f}{v[5]:>8.1f}{v[6]:>8.1f}{rate:>12}", flush=True)
        exported.close()
    os.remove(path)


if sys.argv[1] == "--products":
    products(int(sys.argv[2]))
else:
    main()
