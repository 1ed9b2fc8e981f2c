"""PyTorch's own doors on files of a mount, on a GPU: proofs that bytes and outputs are right, and how long they take.

    python3 pytorch.py MOUNT PLAIN

MOUNT is a directory of a LaneFS mount, PLAIN one of another file system. Needs PyTorch 2, safetensors, transformers."""

import argparse
import os
import shutil
import subprocess
import sys
import time
import traceback
import warnings

import torch

import lanefs
from lanefs import kv
from lanefs import torch as lt

GIB = 1 << 30
WARM = 24  # loads: the image's pages are pinned, and made huge, during the first ones


def say(what, *values):
    print(f"{what:<60}", *values, flush=True)


def prove(condition, what):
    say(what, "ok" if condition else "WRONG")
    if not condition:
        raise SystemExit(f"pytorch: {what}: wrong")


def used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(t.reshape(-1).view(torch.uint8).cpu(), b[k].reshape(-1).view(torch.uint8).cpu()) and t.dtype == b[k].dtype
                                        and t.shape == b[k].shape for k, t in a.items())


def timed(f, times=3):
    best = None
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = f()
        torch.cuda.synchronize()
        best = min(best or 1e9, time.perf_counter() - start)
    return out, best


def some(size):
    torch.manual_seed(3)
    types = [torch.float16, torch.bfloat16, torch.float32, torch.int8]
    out = {}
    for i in range(max(4, size >> 26)):
        t = torch.randint(0, 256, ((1 << 26) + i * 1024,), dtype=torch.uint8, device="cuda").view(types[i % 4])
        out[f"layer.{i}"] = t.view(-1, 128)
    out["scalar"] = torch.tensor(7, device="cuda")
    return out


def files(mount, plain):
    import safetensors.torch
    want = some(2 * GIB)
    size = sum(t.numel() * t.element_size() for t in want.values())
    path, other = os.path.join(mount, "f.safetensors"), os.path.join(plain, "f.safetensors")
    _, took = timed(lambda: lt.save_file(want, path, {"format": "pt"}), 1)
    say("save_file, durable", f"{size / took / 1e9:.2f} GB/s")
    got, first = timed(lambda: lt.load_file(path, device="cuda"), 1)
    prove(same(want, got), "load_file to the GPU is bit-exact")
    got, took = timed(lambda: lt.load_file(path, device="cuda"), WARM)
    prove(same(want, got), "so it is when the image's pages are pinned")
    say(f"load_file, first, best of {WARM} more", f"{size / first / 1e9:.2f} GB/s, {size / took / 1e9:.2f} GB/s")
    prove(same(want, lt.load_file(path)), "load_file to the CPU is bit-exact")
    prove(same(want, safetensors.torch.load_file(path)), "safetensors reads what save_file wrote")
    shutil.copyfile(path, other)
    _, took = timed(lambda: safetensors.torch.load_file(other, device="cuda"))
    say("safetensors' load_file of a plain file in memory, best of 3", f"{size / took / 1e9:.2f} GB/s")
    safetensors.torch.save_file({k: t.cpu() for k, t in want.items()}, path)
    prove(same(want, lt.load_file(path, device="cuda")), "load_file reads what safetensors wrote")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        prove(same(want, lt.load_file(other, device="cuda", fallback=True)), "fallback to a plain file")
    os.unlink(path)
    os.unlink(other)
    for directory, name in (mount, "a mount"), (plain, "a plain file in memory"):
        p = os.path.join(directory, "f.pt")
        _, save = timed(lambda: torch.save(want, p), 1)
        back, load = timed(lambda: torch.load(p, map_location="cuda"), 2)
        prove(same(want, back), f"torch.save and torch.load, {name}")
        prove(same(want, torch.load(p, mmap=True)), f"torch.load with mmap=True, {name}")
        say(f"torch.save, torch.load, {name}", f"{size / save / 1e9:.2f} GB/s, {size / load / 1e9:.2f} GB/s")
        os.unlink(p)


def checkpoints(mount):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{os.path.abspath('meet')}", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(32)])
    where = os.path.join(mount, "ck")

    def state():
        return {"model": model.state_dict(), "step": 5, "half": torch.arange(100.0, device="cuda").half(), "c": torch.randn(9, dtype=torch.complex64)}
    first = state()
    size = sum(t.numel() * t.element_size() for t in first["model"].values())
    _, took = timed(lambda: dcp.save(first, checkpoint_id=where, storage_writer=lt.StorageWriter()), 1)
    say("dcp.save, durable", f"{size / took / 1e9:.2f} GB/s")

    def load():
        blank = {"model": {k: torch.zeros_like(t) for k, t in first["model"].items()}, "step": 0, "half": torch.zeros(100, device="cuda").half(),
                 "c": torch.zeros(9, dtype=torch.complex64)}
        _, took = timed(lambda: dcp.load(blank, checkpoint_id=where, storage_reader=lt.StorageReader()), 1)
        return blank, took
    got, took = load()
    prove(same(first["model"], got["model"]) and got["step"] == 5 and same({"h": first["half"], "c": first["c"]}, {"h": got["half"], "c": got["c"]}), "dcp.load is bit-exact")
    say("dcp.load", f"{size / took / 1e9:.2f} GB/s")
    kept = {k: t.clone() for k, t in first["model"].items()}
    start = time.perf_counter()
    pending = dcp.async_save(state(), checkpoint_id=where, storage_writer=lt.StorageWriter())
    back = time.perf_counter() - start
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()  # training goes on
    pending.result()
    say("dcp.async_save: returns after, durable after", f"{back:.2f} s, {time.perf_counter() - start:.2f} s")
    got, _ = load()
    prove(same(kept, got["model"]), "async_save kept what the model was")
    prove(len([n for n in os.listdir(where) if not n.startswith(".")]) == 1, "the older checkpoint's files are gone")
    path = os.path.join(mount, "g.safetensors")
    lt.save_file(kept, path)
    got, took = timed(lambda: lt.load_file(path, device="cuda", group=dist.group.WORLD))
    prove(same(kept, got), "load_file with a group of NCCL's, one rank")
    say("  best of 3", f"{size / took / 1e9:.2f} GB/s")
    os.unlink(path)
    shutil.rmtree(where)
    dist.destroy_process_group()


def config():
    from transformers import LlamaConfig
    return LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=8, vocab_size=32000)


def outputs(model):
    torch.manual_seed(11)
    ids = torch.randint(0, 32000, (2, 64), device="cuda")
    with torch.no_grad():
        logits = model(ids).logits.float()
    return logits, f"{logits.double().sum().item():.9f} {logits.abs().max().item():.9f} {int(logits.argmax(-1).long().sum())}"


def shared(path):
    """What each process does."""
    from transformers import AutoModelForCausalLM
    torch.zeros(1, device="cuda")
    before, start = used(), time.perf_counter()
    with lt.shared_weights() as weights:
        model = AutoModelForCausalLM.from_pretrained(path, device_map="cuda:0", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    took, more = time.perf_counter() - start, used() - before
    spans = [(t.mapping.memory.address, t.mapping.memory.address + t.mapping.memory.size) for t in weights.files.values()]
    params = dict(model.named_parameters())
    inside = sum(p.numel() * p.element_size() for p in params.values() if any(a <= p.data_ptr() < b for a, b in spans))
    total = sum(p.numel() * p.element_size() for p in params.values())
    outputs_of = outputs(model)[1]
    return took, more, inside, total, outputs_of, weights.current


def models(mount, plain):
    from transformers import AutoModelForCausalLM
    path, other = os.path.join(mount, "llama"), os.path.join(plain, "llama")
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config(), dtype=torch.bfloat16)
    model.save_pretrained(path)
    shutil.copytree(path, other)
    del model
    torch.cuda.empty_cache()
    size = sum(os.path.getsize(os.path.join(path, n)) for n in os.listdir(path) if n.endswith(".safetensors"))
    say("model of transformers", f"{size / GIB:.2f} GiB")
    for p, name in (other, "a plain file in memory"), (path, "a mount, without LaneFS's memory"):
        start = time.perf_counter()
        model = AutoModelForCausalLM.from_pretrained(p, device_map="cuda:0", dtype=torch.bfloat16)
        torch.cuda.synchronize()
        say(f"from_pretrained, {name}", f"{time.perf_counter() - start:.2f} s")
        want = outputs(model)[1]
        del model
        torch.cuda.empty_cache()
    out = subprocess.run([sys.executable, __file__, path, "-", "--shared", "go"], capture_output=True, text=True)
    say("shared_weights on the file as transformers wrote it", "outputs equal" if out.stdout.strip().split("|")[-1] == want else "outputs round otherwise",
        "and a warning of alignment" if "multiples of 16" in out.stderr else "no warning")
    for name in os.listdir(path):
        if name.endswith(".safetensors"):
            f = os.path.join(path, name)
            lt.save_file(lt.load_file(f), f, {"format": "pt"})
    first = subprocess.Popen([sys.executable, __file__, path, "-", "--shared", "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        lines = [first.stdout.readline().strip()]
        lines.append(subprocess.run([sys.executable, __file__, path, "-", "--shared", "go"], stdout=subprocess.PIPE, text=True).stdout.strip())
        first.communicate("\n")
    finally:
        first.kill()
        first.wait()
    for number, line in zip(("first", "second"), lines):
        if line.count("|") != 5:
            prove(False, f"shared_weights, {number} process: {line!r}")
        took, more, inside, total, current, out = line.split("|")
        say(f"shared_weights, {number} process", f"{float(took):.2f} s, {int(more) / 2**20:.0f} MiB more VRAM, {int(inside)} of {total} bytes of weights shared")
        prove(out == want, "  outputs are equal")
        prove(inside == total and current == "True", "  all weights are shared")
    prove(int(lines[1].split("|")[1]) < size // 4, "the second process takes no memory for the weights")
    shutil.rmtree(path)
    shutil.rmtree(other)


def slabs(mount):
    path, n, each = os.path.join(mount, "kv.slab"), 1000, 1 << 20
    torch.manual_seed(4)
    blocks = torch.randint(0, 256, (n, each), dtype=torch.uint8, device="cuda")
    offsets, lengths = [i * each for i in range(n)], [each] * n
    for i in range(0, n, 10):
        lengths[i] = each - 8 - i % 13  # odd lengths, by another way to the sum
    with kv.Slab(path, each, n + 100) as s:
        start = time.perf_counter()
        s.put_batch(range(n), blocks, offsets, lengths)
        s.commit()
        took = time.perf_counter() - start
        say(f"kv: put_batch of {n} blocks of 1 MiB, durable", f"{n * each / took / 1e9:.2f} GB/s")
        host = bytearray(blocks[:2].cpu().numpy().tobytes())
        s.put("host", memoryview(host)[:12345])
    with open(path, "rb") as f:
        f.seek(0)
    with kv.Slab(path) as s:
        into = torch.zeros_like(blocks)
        found, took = timed(lambda: s.get_batch(range(n), into, offsets))
        prove(list(found) == lengths, "kv: all blocks are found")
        prove(all(torch.equal(into[i, :lengths[i]], blocks[i, :lengths[i]]) for i in range(n)), "kv: get_batch to the GPU is bit-exact")
        say("kv: get_batch with sums, best of 3", f"{n * each / took / 1e9:.2f} GB/s")
        b = bytearray(12345)
        prove(s.get("host", b) == 12345 and b == host[:12345], "kv: a block of the CPU's memory, read there")
        on = torch.zeros(12345, dtype=torch.uint8, device="cuda")
        prove(s.get("host", on) == 12345 and bytes(on.cpu().numpy().tobytes()) == bytes(b), "kv: and on the GPU: the sums agree")
        c = bytearray(each)
        prove(s.get(1, c) == each and bytes(c) == blocks[1].cpu().numpy().tobytes(), "kv: a block of the GPU's, read by the CPU")
        at = s._layout.slot(s._blocks[kv._digest(3)].slot)
        s._verify = False
        _, took = timed(lambda: s.get_batch(range(n), into, offsets))
        say("kv: get_batch without sums, best of 3", f"{n * each / took / 1e9:.2f} GB/s")
    with open(path, "r+b") as f:
        f.seek(at + 4321)
        byte = f.read(1)[0]
        f.seek(at + 4321)
        f.write(bytes([byte ^ 4]))
    with kv.Slab(path) as s:
        found = s.get_batch(range(n), into, offsets)
        prove([i for i, k in enumerate(found) if k is None] == [3] and s.damaged == 1, "kv: one damaged byte is seen on the GPU, and its block is not found")
    os.unlink(path)


def lmcache(mount):
    """The contract of LMCache's GDS backends, on a stream of its own that is busy."""
    from lanefs.lmcache import Backend
    backend, n = Backend(), 64
    slots = [torch.randint(0, 256, (4 << 20,), dtype=torch.uint8, device="cuda") for _ in range(4)]
    stream = torch.cuda.Stream()
    for s in slots:
        backend.register_buffer(s)
    backend.register_stream(stream.cuda_stream)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    with backend.open_slab(mount, n << 22, True) as h:
        want, subs = [], []
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            start = time.perf_counter()
            for i in range(n):  # what is written is made on the stream just before, and changed just after
                a @ a
                slots[i % 4].fill_(i)
                slots[i % 4][i] = 255
                want.append(slots[i % 4].clone())
                subs.append(h.write_async(slots[i % 4].data_ptr(), 4 << 20, i << 22, 0, stream.cuda_stream))
                slots[i % 4].fill_(77)
            back = time.perf_counter() - start
            got = []
            for i in range(n):
                subs.append(h.read_async(slots[i % 4].data_ptr(), (4 << 20) - 100, (i << 22) + 50, 50, stream.cuda_stream))
                got.append(slots[i % 4].clone())  # before the next read of the slot
        stream.synchronize()
        say("lmcache: 64 writes are on the stream after, the stream is through after", f"{back * 1e3:.1f} ms, {(time.perf_counter() - start) * 1e3:.1f} ms")
        prove([s.bytes_done for s in subs] == [4 << 20] * n + [(4 << 20) - 100] * n, "lmcache: all is done")
        prove(all(torch.equal(x[50:-50], y[50:-50]) for x, y in zip(want, got)), "lmcache: in the stream's order, bit-exact")
    for s in slots:
        backend.deregister_buffer(s)
    backend.deregister_stream(stream.cuda_stream)
    backend.close_driver()
    os.unlink(os.path.join(mount, "lmcache_gds_slab.bin"))


def timing_parts():
    """Has loads by a group note the seconds that each part of them takes: a list of them by name."""
    from lanefs.torch import _group, _slots
    parts = {}

    def note(name, of, method):
        call = getattr(of, method)

        def timed_call(*args):
            start = time.perf_counter()
            try:
                return call(*args)
            finally:
                parts.setdefault(name, []).append(time.perf_counter() - start)
        setattr(of, method, timed_call)
    note("opening", _group._Job, "__init__")
    note("agreeing, before and after", _group, "_agree")
    note("the file's way", _group._Job, "run")
    note("of that, waiting for reads", _slots.Slots, "finish")
    note("closing", _group._Job, "close")
    return parts


def rank(path, meet, number, ranks):
    """One of two GPUs."""
    import torch.distributed as dist
    torch.cuda.set_device(number)
    dist.init_process_group("nccl", init_method=f"file://{meet}", rank=number, world_size=ranks, device_id=torch.device("cuda", number))
    took, parts = [], timing_parts()
    for _ in range(WARM):
        got = None
        dist.barrier()
        got, once = timed(lambda: lt.load_file(path, device=f"cuda:{number}", group=dist.group.WORLD), 1)
        took.append(once)
    parts = {name: seconds[:] for name, seconds in parts.items()}  # not those of what follows
    loads, slow, (took, half) = took, took[0], (min(took), sorted(took[WARM // 2:])[WARM // 4])
    alone, single = timed(lambda: lt.load_file(path, device=f"cuda:{number}"), 3)
    prove(same(got, alone), f"rank {number}: load_file with the group is bit-exact")
    size = os.path.getsize(path)
    host, there = torch.empty(GIB, dtype=torch.uint8, pin_memory=True), torch.empty(GIB, dtype=torch.uint8, device="cuda")
    for i in range(ranks):  # one rank at a time
        dist.barrier()
        if i == number:
            _, copy = timed(lambda: there.copy_(host, non_blocking=True), 5)
    dist.barrier()
    _, together = timed(lambda: there.copy_(host, non_blocking=True), 10)
    chunk = there[:256 << 20]
    mine = chunk.chunk(ranks)[number].clone()
    dist.barrier()
    _, gather = timed(lambda: dist.all_gather_into_tensor(chunk, mine), 10)
    say(f"rank {number}: with the group: best, median of the later half, first; alone", ", ".join(f"{size / t / 1e9:.2f}" for t in (took, half, slow, single)), "GB/s")
    say(f"rank {number}: all loads by the group", " ".join(f"{size / t / 1e9:.0f}" for t in loads), "GB/s")
    say(f"rank {number}: a plain copy, by all ranks at once", f"{GIB / copy / 1e9:.2f} GB/s, {GIB / together / 1e9:.2f} GB/s: with the group {size / took / (GIB / copy):.2f} times a plain copy, by the median {size / half / (GIB / copy):.2f}")
    say(f"rank {number}: NCCL alone", f"{chunk.numel() / gather / 1e9:.2f} GB/s, {gather * size / chunk.numel() / took * 100:.0f} % of the time of a load")
    for name, seconds in parts.items():
        each = len(seconds) // WARM
        sums = [sum(seconds[i:i + each]) for i in range(0, each * WARM, each)]
        say(f"rank {number}: ms of each load: {name}", " ".join(f"{1e3 * t:.1f}" for t in sums))
    dist.destroy_process_group()


def group(mount):
    n = torch.cuda.device_count()
    if n < 2:
        say("load_file by several ranks", "not run: one GPU here")
        return
    path, meet = os.path.join(mount, "n.safetensors"), os.path.abspath("meet2")
    lt.save_file(some(4 * GIB), path)
    ranks = [subprocess.Popen([sys.executable, __file__, path, meet, "--rank", str(i), str(n)]) for i in range(n)]
    codes = [r.wait() for r in ranks]
    prove(codes == [0] * n, f"load_file by {n} ranks")
    os.unlink(path)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("mount")
    p.add_argument("plain")
    p.add_argument("--shared", help=argparse.SUPPRESS)
    p.add_argument("--only", help="one of the parts")
    p.add_argument("--rank", nargs=2, type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.shared:
        took, more, inside, total, out, current = shared(a.mount)
        print(f"{took}|{more}|{inside}|{total}|{current}|{out}", flush=True)
        if a.shared == "wait":
            sys.stdin.readline()
        return
    if a.rank:
        return rank(a.mount, a.plain, *a.rank)
    failed = []
    for name, part in (("slabs", lambda: slabs(a.mount)), ("files", lambda: files(a.mount, a.plain)), ("lmcache", lambda: lmcache(a.mount)),
                       ("models", lambda: models(a.mount, a.plain)), ("checkpoints", lambda: checkpoints(a.mount)), ("group", lambda: group(a.mount))):
        if a.only not in (None, name):
            continue
        try:
            part()
        except (Exception, SystemExit):  # the machine is lent: what the other parts say is wanted too
            traceback.print_exc()
            failed.append(name)
        torch.cuda.empty_cache()
    if failed:
        raise SystemExit(f"pytorch: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
