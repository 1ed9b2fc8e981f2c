"""What load_safetensors and save are worth on a GPU: LaneFS beside cuFile and pread with a pinned buffer, and proofs that the
bytes are right.

    python3 bench.py MOUNT PLAIN [--size BYTES] [--cufile DIR]

MOUNT is a directory of a LaneFS mount whose daemon runs on the GPU, PLAIN one on the medium that the mount's image lies on. cuFile
takes no files of a tmpfs or an overlay: DIR is one on ext4 or XFS for its copy, PLAIN if it is on such a file system.
Needs PyTorch. Every figure is bytes of the file per second of wall clock, in GB/s (10^9), best and median of the rounds."""

import argparse
import ctypes
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

import torch

import lanefs

ROUNDS = 5


def say(what, *values):
    print(f"{what:<44}", *values, flush=True)


def timed(f, size, rounds=ROUNDS):
    all_rates = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        end = f()
        torch.cuda.synchronize()
        all_rates.append(size / (time.perf_counter() - start) / 1e9)
        if end:
            end()
    return f"best {max(all_rates):6.2f} GB/s, median {statistics.median(all_rates):6.2f} GB/s"


def make(size):
    """Tensors of several types, random to the last bit, on the GPU."""
    torch.manual_seed(7)
    tensors, left, i = {}, size, 0
    types = [torch.float16, torch.bfloat16, torch.float32, torch.int8]
    while left > 0:
        n = min(left, (64 << 20) + (i % 3) * (40 << 20))
        n -= n % 1024
        if n == 0:
            break
        raw = torch.randint(0, 256, (n,), dtype=torch.uint8, device="cuda")
        tensors[f"layer.{i}"] = raw.view(types[i % 4]).view(-1, 128)
        left, i = left - n, i + 1
    return tensors


def same(a, b):
    return a.keys() == b.keys() and all(x.dtype == b[k].dtype and x.shape == b[k].shape and torch.equal(
        x.reshape(-1).view(torch.uint8), b[k].reshape(-1).view(torch.uint8)) for k, x in a.items())


def checksum(tensors):
    """Of all bits, computed where they are."""
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    for name in sorted(tensors):
        words = tensors[name].reshape(-1).view(torch.int64)
        weights = torch.arange(words.numel(), dtype=torch.int64, device="cuda") * 2 + 1
        total = total * 31 + (words * weights).sum()
    return total.item() & (1 << 64) - 1


def used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while b := f.read(16 << 20):
            h.update(b)
    return h.hexdigest()


def other_process(path):
    """What a second process does and prints."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    before = used()
    start = time.perf_counter()
    tensors = lanefs.load_safetensors(path)
    elapsed = time.perf_counter() - start
    after = used()
    print(f"{elapsed * 1e3:.1f} ms, {(after - before) / 2**20:.0f} MiB more VRAM, checksum {checksum(tensors):#x}")


class Pinned:
    """pread into pinned memory and copy, by several threads with two buffers each."""

    def __init__(self, path, size, threads, chunk=8 << 20):
        self.fd, self.size, self.chunk = os.open(path, os.O_RDONLY), size, chunk
        self.target = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.workers = []
        for _ in range(threads):
            pair = []
            for _ in range(2):
                t = torch.empty(chunk, dtype=torch.uint8, pin_memory=True)
                pair.append((t, memoryview((ctypes.c_ubyte * chunk).from_address(t.data_ptr())).cast("B"), torch.cuda.Event()))
            self.workers.append((torch.cuda.Stream(), pair))

    def __call__(self):
        threads = [threading.Thread(target=self.work, args=(k,)) for k in range(len(self.workers))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def work(self, k):
        stream, pair = self.workers[k]
        with torch.cuda.stream(stream):
            for i, at in enumerate(range(k * self.chunk, self.size, self.chunk * len(self.workers))):
                t, view, event = pair[i % 2]
                event.synchronize()
                n = min(self.chunk, self.size - at)
                done = 0
                while done < n:
                    done += os.preadv(self.fd, [view[done:n]], at + done)
                self.target[at:at + n].copy_(t[:n], non_blocking=True)
                event.record(stream)
        stream.synchronize()


def plain_save(tensors, path, threads, chunk=8 << 20):
    """What a checkpoint costs without LaneFS: tensors copied to pinned memory and written by several threads, then fsync."""
    parts, at = [], 0
    for t in tensors.values():
        raw = t.reshape(-1).view(torch.uint8)
        parts += [(raw, o, at + o, min(chunk, raw.numel() - o)) for o in range(0, raw.numel(), chunk)]
        at += raw.numel()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def work(k):
        buffer = torch.empty(chunk, dtype=torch.uint8, pin_memory=True)
        view = memoryview((ctypes.c_ubyte * chunk).from_address(buffer.data_ptr())).cast("B")
        with torch.cuda.stream(torch.cuda.Stream()):
            for raw, o, to, n in parts[k::threads]:
                buffer[:n].copy_(raw[o:o + n])
                os.pwrite(fd, view[:n], to)
    all_threads = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    start = time.perf_counter()
    for t in all_threads:
        t.start()
    for t in all_threads:
        t.join()
    os.fsync(fd)
    elapsed = time.perf_counter() - start
    os.close(fd)
    os.unlink(path)
    return f"{at / elapsed / 1e9:.2f} GB/s"


class CuFile:
    """cuFile, which has no driver for this medium and so works in its compatibility mode."""

    class Error(ctypes.Structure):
        _fields_ = [("code", ctypes.c_int), ("cuda", ctypes.c_int)]

    class Descr(ctypes.Structure):  # the descriptor is in a union with a pointer, and aligned as one
        _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_int64), ("ops", ctypes.c_void_p)]

    def __init__(self, path, size, threads, chunk=16 << 20):
        os.environ.setdefault("CUFILE_FORCE_COMPAT_MODE", "true")
        self.lib = None
        names = ["libcufile.so.0", "libcufile.so"]
        for root in [os.path.dirname(torch.__file__) + "/../nvidia/cufile/lib", os.path.dirname(torch.__file__) + "/../nvidia/cu13/lib",
                     "/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"]:
            names += [os.path.join(root, "libcufile.so.0")]
        for name in names:
            try:
                self.lib = ctypes.CDLL(name)
                break
            except OSError:
                continue
        if self.lib is None:
            raise OSError("libcufile is not here")
        for f in ("cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister"):
            getattr(self.lib, f).restype = self.Error
        self.lib.cuFileRead.restype = ctypes.c_ssize_t
        self.check(self.lib.cuFileDriverOpen())
        self.size, self.chunk, self.threads = size, chunk, threads
        self.target = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.fd = os.open(path, os.O_RDONLY)
        self.handle = ctypes.c_void_p()
        self.check(self.lib.cuFileHandleRegister(ctypes.byref(self.handle), ctypes.byref(self.Descr(type=1, fd=self.fd))))

    def check(self, e):
        if e.code:
            raise OSError(f"cuFile error {e.code}, CUDA {e.cuda}")

    def __call__(self):
        errors = []

        def work(k):
            torch.cuda.set_device(0)
            for at in range(k * self.chunk, self.size, self.chunk * self.threads):
                n = min(self.chunk, self.size - at)
                got = self.lib.cuFileRead(self.handle, ctypes.c_void_p(self.target.data_ptr()), ctypes.c_size_t(n), ctypes.c_int64(at), ctypes.c_int64(at))
                if got != n:
                    errors.append(got)
                    return
        threads = [threading.Thread(target=work, args=(k,)) for k in range(self.threads)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if errors:
            raise OSError(f"cuFileRead gave {errors[0]}")


def cufile_rows(directory, given, copy, size, reference):
    """cuFile's rows, or a line that says why there are none."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True).stdout.strip()
    if kind not in ("ext2/ext3", "xfs"):  # stat calls ext4 so
        say("cuFile, compatibility mode", f"not measured: {directory} is on {kind or 'nothing'}, and cuFile takes files of ext4 and XFS only: "
            "name a directory there with --cufile DIR")
        return
    own = os.path.join(directory, "bench.cufile") if given else copy
    try:
        if given:
            shutil.copyfile(copy, own)
        for threads in (1, 8):
            r = CuFile(own, size, threads)
            say(f"cuFile, compatibility mode, {threads} threads, {kind}", timed(r, size, 3))
            prove(torch.equal(r.target, reference), "  and its bytes are right")
            del r
    except OSError as e:
        say("cuFile, compatibility mode", f"not measured: {e}")
    finally:
        if given and os.path.exists(own):
            os.unlink(own)


def plain_copy(size):
    n = min(size, 1 << 30)
    host = torch.empty(n, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(n, dtype=torch.uint8, device="cuda")
    
    def copy():
        device.copy_(host, non_blocking=True)
    return timed(copy, n)


def prove(condition, what):
    say(what, "ok" if condition else "WRONG")
    if not condition:
        raise SystemExit(f"bench: {what}: wrong")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("mount")
    p.add_argument("plain")
    p.add_argument("--size", type=int, default=4 << 30)
    p.add_argument("--cufile", metavar="DIR")
    p.add_argument("--other-process", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.other_process:
        return other_process(a.mount)
    path, copy = os.path.join(a.mount, "bench.safetensors"), os.path.join(a.plain, "bench.plain")
    want = make(a.size)
    start = time.perf_counter()
    lanefs.save(want, path)
    size = os.path.getsize(path)
    say("size of the file", size, "bytes,", len(want), "tensors")
    say("save through commit (durable)", f"{size / (time.perf_counter() - start) / 1e9:.2f} GB/s")

    before, start = used(), time.perf_counter()
    tensors = lanefs.load_safetensors(path)
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    say("first load_safetensors", f"{elapsed * 1e3:.1f} ms, {size / elapsed / 1e9:.2f} GB/s, {(used() - before) / 2**20:.0f} MiB more VRAM")
    prove(same(want, tensors), "bit-exact, compared on the GPU")
    say("checksum on the GPU", f"{checksum(want):#x} {checksum(tensors):#x}")
    out = subprocess.run([sys.executable, __file__, path, "-", "--other-process"], capture_output=True, text=True)
    say("second process", out.stdout.strip() or out.stderr.strip()[-400:])
    prove(f"checksum {checksum(want):#x}" in out.stdout, "the second process has the same bytes")

    name = "layer.0"
    with open(path, "r+b") as f:
        f.seek(size - 5)
        f.write(b"\xa5" * 5)
    prove(not tensors.current, "a change is seen by generation")
    prove(same(want, tensors), "the old tensors keep their bytes")
    again = lanefs.load_safetensors(path)
    last = sorted(again, key=lambda k: int(k.split(".")[1]))[-1]
    prove(bytes(again[last].reshape(-1).view(torch.uint8)[-5:].cpu().tolist()) == b"\xa5" * 5 and torch.equal(again[name].view(torch.uint8), want[name].view(torch.uint8)),
          "a new load has the new bytes")
    del tensors

    checkpoint = os.path.join(a.mount, "bench.checkpoint")
    start = time.perf_counter()
    lanefs.save(dict(again), checkpoint, {"step": 1})
    say("checkpoint from VRAM, durable", f"{size / (time.perf_counter() - start) / 1e9:.2f} GB/s")
    say("copies and pwrite to a new plain file, 8 threads", plain_save(again, copy, 8))
    subprocess.run(["cp", checkpoint, copy], check=True)
    h = hashlib.sha256()
    with open(copy, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        f.seek(0)
        h.update(f.read(8 + n))
    for t in again.values():
        h.update(memoryview(t.reshape(-1).view(torch.uint8).cpu().numpy()))
    prove(h.hexdigest() == sha256(copy), "the checkpoint by cp has the sha256 of the tensors in VRAM")
    os.unlink(checkpoint)
    del again, want
    torch.cuda.empty_cache()

    # Into VRAM, side by side. private=True reads the file every time.
    shutil.copyfile(path, copy)
    with lanefs.open(path, "r+") as f:
        def load():
            m = f.map(private=True)
            return m.close
        say("LaneFS, software controller, image in memory", timed(load, size))
        with f.map(private=True) as m:
            reference = torch.from_dlpack(m).clone()
        buffer = lanefs.Buffer(f, size)
        say("LaneFS, likewise, memory of one's own, one read", timed(lambda: f.read_into(buffer, length=size) and None, size))
        prove(torch.equal(torch.from_dlpack(buffer)[:size], reference), "  and its bytes are right")
        parts = [(at, at, min(4 << 20, size - at)) for at in range(0, size, 4 << 20)]
        say("LaneFS, likewise, reads of 4 MiB", timed(lambda: [r.result() for r in f.ring.read_batch(f, buffer, parts)] and None, size))
        buffer.close()
    for threads in (1, 4, 8):
        try:
            r = Pinned(copy, size, threads)
            say(f"pread of a plain file + copy, {threads} threads", timed(r, size))
            prove(torch.equal(r.target, reference), "  and its bytes are right")
            del r
        except Exception as e:  # a machine may lack memory for it
            say(f"pread + copy, {threads} threads", repr(e))
    torch.cuda.empty_cache()
    r = Pinned(path, size, 8)
    say("pread through the mount + copy, 8 threads", timed(r, size, 2))
    del r
    torch.cuda.empty_cache()
    cufile_rows(a.cufile or a.plain, a.cufile, copy, size, reference)
    say("plain copy, pinned memory to VRAM", plain_copy(size))
    os.unlink(copy)


if __name__ == "__main__":
    main()
