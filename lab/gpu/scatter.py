"""Any memory of a program on a GPU, by way of a stage: proofs that the bytes are right, and how fast.

    python3 scatter.py MOUNT [--speed [WAYSBENCH]]

MOUNT is a directory of a LaneFS mount. Needs PyTorch and the C library. Times are medians. With WAYSBENCH, the program of waysbench.c, a C program's
batches are measured beside Python's, in turns."""

import array
import os
import statistics
import subprocess
import sys
import time

import torch

import lanefs

MIB = 1 << 20


def say(what, *values):
    print(f"{what:<52}", *values, flush=True)


def median(f, times=15, least=0):
    """Of so many calls, and of `least` seconds of them at least, each until the stream is done. The first ones find cold caches, as a program's first ones do."""
    all_of, stream, end = [], torch.cuda.current_stream(), time.perf_counter() + least
    torch.cuda.synchronize()
    while len(all_of) < times or time.perf_counter() < end:
        start = time.perf_counter()
        f()
        stream.synchronize()
        all_of.append(time.perf_counter() - start)
    return statistics.median(all_of)


def same(tensor, data):
    torch.cuda.synchronize()  # pinned memory is the CPU's, too
    return bytes(tensor.cpu().numpy().tobytes()) == bytes(data)


def alignments(f, data, memory, name):
    """Pieces of every alignment and of many sizes, few (copy engine) and many (kernel), and back."""
    sizes = [1, 2, 3, 15, 16, 17, 511, 512, 513, 4095, 4096, 4097, 65535, 65537]
    fo, to, n, at = [], [], [], 0
    for a in range(16):
        for b in range(16):
            for k, size in enumerate(sizes):
                if (a + b + k) % 4 == 0:
                    at = (at + 31) // 16 * 16 + a
                    fo.append((at * 7) % (len(data) - 70000) // 16 * 16 + b)
                    to.append(at)
                    n.append(size)
                    at += size
    for few in (1, 4000):
        memory.fill_(7)
        want = bytearray(b"\7" * memory.numel())
        for i in range(0, len(n), few):
            if few == 1 and i % 50:
                continue
            got = f.read_batch(memory, fo[i:i + few], to[i:i + few], n[i:i + few])
            assert list(got) == n[i:i + few]
            for j in range(i, min(i + few, len(n))):
                want[to[j]:to[j] + n[j]] = data[fo[j]:fo[j] + n[j]]
        assert same(memory, want), f"{name}: pieces {few} at a time"
    with lanefs.open(f.path + ".back", "w") as g:
        assert list(g.write_batch(memory, to, to, n)) == n
    with open(f.path + ".back", "rb") as g:
        back = g.read()
    for o, k in zip(to, n):
        assert back[o:o + k] == want[o:o + k], f"{name}: written"
    say(f"right: {name}, {len(n)} pieces", f.session.rungs)


def order(f, data):
    """What is on the stream comes before, what is put there comes after."""
    t, side = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda")
    for lengths in ([8 * MIB], [4096] * 2048):
        at = [i * lengths[0] for i in range(len(lengths))]
        for _ in range(5):
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                for _ in range(20):
                    a @ a
                t.fill_(1)
                f.read_batch(t, at, at, lengths)
                copy = t.clone()
                t.fill_(2)
                back = t.clone()
            side.synchronize()
            assert same(copy, data[:8 * MIB]) and int(back.min()) == 2, "the stream's order"
    say("right: a stream's order")


def on_stream(f, data):
    """The same by batches for which the host does not wait: they are behind what is on the stream, and what follows is behind them. Memory and objects may be dropped."""
    side, n = torch.cuda.Stream(), 8 * MIB
    a = torch.randn(4096, 4096, device="cuda")
    with lanefs.open(f.path + ".on", "w") as g:
        g.write_from(bytes(n))
        waits = 0
        for lengths in ([n], [4096] * 2048):
            at = torch.arange(len(lengths)) * lengths[0]
            for i in range(5):
                t = torch.zeros(n, dtype=torch.uint8, device="cuda")
                torch.cuda.synchronize()
                with torch.cuda.stream(side):
                    for _ in range(200):
                        a @ a
                    t.fill_(1)
                    first = f.read_batch_on(t, at, at, lengths)
                    waits += not first.done
                    copy = t.clone()
                    t.fill_(i + 3)
                    written = g.write_batch_on(t, at, at, lengths)
                    t.fill_(2)
                    again = g.read_batch_on(t, at, at, lengths)
                    back = t.clone()
                    g.read_batch_on(torch.empty_like(t), at, at, lengths)  # nobody has it
                del t
                again.wait()
                assert first.done and written.done
                assert all(list(b.results()) == lengths for b in (first, written, again)), "a batch on a stream"
                side.synchronize()
                assert same(copy, data[:n]) and int(back.min()) == int(back.max()) == i + 3, "the order of batches on a stream"
    os.remove(f.path + ".on")
    assert waits, "no batch was behind what is on the stream: the host waited"
    say("right: batches on a stream, in its order", f"{waits} of 10 were not done when the call returned")


def speed(f, t):
    for size, count in ((4096, 1), (4096, 4), (4096, 8), (4096, 9), (4096, 16), (4096, 32), (4096, 4096), (16384, 4096), (65536, 256), (65536, 4096), (MIB, 256), (256 * MIB, 1)):
        at = array.array("q", [i * size for i in range(count)])
        fo = array.array("q", [(i * 7919 % max(256 * MIB // size, 1)) * size for i in range(count)])
        n = array.array("q", [size] * count)
        first, s = median(lambda: f.read_batch(t, fo, at, n)), median(lambda: f.read_batch(t, fo, at, n), least=0.3)
        say(f"read  {size:>9} bytes x {count:<5}", f"first {first * 1e6:10.0f}, then {s * 1e6:10.0f} us  {count / s / 1e6:8.3f} M/s  {size * count / s / 1e9:7.2f} GB/s")
    for size, count in ((4096, 4096), (65536, 1024), (64 * MIB, 1)):
        at = array.array("q", [i * size for i in range(count)])
        n = array.array("q", [size] * count)
        s = median(lambda: f.write_batch(t, at, at, n), 5)
        say(f"write {size:>9} bytes x {count:<5}", f"{s * 1e6:10.0f} us  {count / s / 1e6:8.3f} M/s  {size * count / s / 1e9:7.2f} GB/s")
    host = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    say("a plain copy of 256 MiB", f"{256 * MIB / median(lambda: t[:256 * MIB].copy_(host, non_blocking=True)) / 1e9:.2f} GB/s")


def beside_c(path, program):
    """The same batches by a C program and by Python, and without the way to the GPU, in turns; the file's words are their own offsets."""
    sizes = ((4096, 1), (4096, 64), (4096, 4096), (65536, 4096))
    with open(path, "wb") as g:
        for i in range(64):
            array.array("Q", range(i * MIB, (i + 1) * MIB, 8)).tofile(g)
    c, python, cpu, t = {}, {}, {}, torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    with lanefs.open(path) as f:
        for _ in range(3):
            out = subprocess.run([program, path, "cuda", *(f"{size}:{count}" for size, count in sizes)], stdout=subprocess.PIPE, text=True, check=True).stdout
            for (size, count), line in zip(sizes, out.splitlines(), strict=True):
                c.setdefault((size, count), []).append(float(line.split()[7]))
            rows = subprocess.run([program, path, "cpu", *(f"{size}:{count}" for size, count in sizes)], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
            for i, line in enumerate(rows):
                cpu.setdefault((line.split()[2], sizes[i // 2]), []).append(float(line.split()[7]))
            for size, count in sizes:
                at = array.array("q", [i * size for i in range(count)])
                fo = array.array("q", [i * 7919 % (64 * MIB // size) * size for i in range(count)])
                n = array.array("q", [size] * count)
                python.setdefault((size, count), []).append(median(lambda: f.read_batch(t, fo, at, n), 31, 0.3) * 1e6)
    for row in sizes:
        a, b = statistics.median(c[row]), statistics.median(python[row])
        say(f"read  {row[0]:>9} bytes x {row[1]:<5}", f"C {a:10.0f} us  Python {b:10.0f} us  {b / a:5.2f} times")
    for row in sizes:
        a = statistics.median(c[row])
        alone = [statistics.median(cpu[way, row]) for way in ("filled", "memcpy")]
        rates = "  ".join(f"{name} {row[0] * row[1] / us / 1e3:6.2f} GB/s" for name, us in zip(("stage", "filled", "memcpy"), (a, *alone)))
        say(f"C     {row[0]:>9} bytes x {row[1]:<5}", f"{rates}: {alone[0] / a * 100:.0f} and {alone[1] / a * 100:.0f} %")


def main():
    path = os.path.join(sys.argv[1], "scatter")
    with open(path, "wb") as g:
        for _ in range(4):
            g.write(os.urandom(64 * MIB))
    with open(path, "rb") as g:
        data = g.read(64 * MIB)
    with lanefs.open(path, "r+") as f:
        room = 32 * MIB
        alignments(f, data, torch.empty(room, dtype=torch.uint8, device="cuda"), "PyTorch's memory")
        alignments(f, data, torch.empty(room, dtype=torch.uint8, pin_memory=True), "pinned memory")
        alignments(f, data, torch.empty(room, dtype=torch.uint8), "plain memory")
        order(f, data)
        on_stream(f, data)
        if "--speed" in sys.argv:
            speed(f, torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))
    if sys.argv[-1] not in (sys.argv[1], "--speed"):
        beside_c(path, sys.argv[-1])
    os.remove(path)
    os.remove(path + ".back")


main()
