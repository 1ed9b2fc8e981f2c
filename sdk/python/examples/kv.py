"""Time to the first token that a cache on LaneFS saves: a model's keys and values of a context read from a slab, beside computed again.

    python3 kv.py /mnt/cache [--size BYTES] [--tokens N] [--model DIRECTORY | --layers N --hidden N --intermediate N --heads N --kv-heads N]

The model is one of a directory that transformers takes, or a Llama with random weights; its shape by default is that of 8 billion parameters, whose
contexts have 128 KiB a token. A context is kept as blocks of 256 tokens, each named by the tokens up to its end. Needs PyTorch and transformers;
without a GPU it runs on the CPU, where --size and the shape must be small."""

import argparse
import hashlib
import os
import statistics
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, LlamaConfig

from lanefs import kv

CHUNK = 256  # tokens of a block
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def keys(ids):
    """The names of a context's blocks."""
    h, out = hashlib.sha256(), []
    for at in range(0, len(ids), CHUNK):
        h.update(b"".join(i.to_bytes(4, "little") for i in ids[at:at + CHUNK]))
        out.append(h.copy().digest())
    return out


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds(f):
    synchronize()
    start = time.perf_counter()
    out = f()
    synchronize()
    return out, time.perf_counter() - start


def distance(a, b):
    """The largest difference of two outputs, in parts of the largest value."""
    return float((a.float() - b.float()).abs().max() / b.float().abs().max())


class Contexts:
    """Contexts of a model in a slab."""

    def __init__(self, slab, model, tokens):
        c = model.config
        self.slab, self.model, self.chunks = slab, model, tokens // CHUNK
        self.heads, self.width = c.num_key_value_heads, c.hidden_size // c.num_attention_heads
        self.shape = (self.chunks, c.num_hidden_layers, 2, self.heads, CHUNK, self.width)
        self.memory = torch.empty(self.shape, dtype=torch.bfloat16, device=DEVICE)
        self.block = self.memory[0].numel() * 2
        self.offsets = [i * self.block for i in range(self.chunks)]

    def sums(self):
        """Sums of the memory's words, each times an odd number of its place: bytes that moved change them, too."""
        words = self.memory.view(torch.int64).flatten()
        out = []
        for at in range(0, words.numel(), 1 << 24):
            part = words[at:at + (1 << 24)]
            out.append(int((part * (2 * torch.arange(at, at + part.numel(), device=part.device) + 1)).sum()))
        return out

    def put(self, ids, cache):
        for layer in range(self.shape[1]):
            for what, t in enumerate((cache.layers[layer].keys, cache.layers[layer].values)):  # 1, heads, tokens, width
                self.memory[:, layer, what] = t[0, :, :self.chunks * CHUNK].reshape(self.heads, self.chunks, CHUNK, self.width).transpose(0, 1)
        self.slab.put_batch(keys(ids)[:self.chunks], self.memory, self.offsets, [self.block] * self.chunks)

    def get(self, ids):
        """A cache of the model's, or None if the slab has not all of it."""
        if None in self.slab.get_batch(keys(ids)[:self.chunks], self.memory, self.offsets):
            return None
        cache = DynamicCache()
        for layer in range(self.shape[1]):
            k, v = (self.memory[:, layer, what].transpose(0, 1).reshape(1, self.heads, self.chunks * CHUNK, self.width) for what in (0, 1))
            cache.update(k, v, layer)
        return cache


@torch.no_grad()
def main():
    p = argparse.ArgumentParser()
    p.add_argument("mount")
    p.add_argument("--size", type=int, default=2 << 30, help="bytes of blocks in the cache")
    p.add_argument("--tokens", type=int, default=8192, help="of a context")
    p.add_argument("--model", help="a directory with a model's config and weights")
    for name, n in ("layers", 32), ("hidden", 4096), ("intermediate", 14336), ("heads", 32), ("kv-heads", 8):
        p.add_argument(f"--{name}", type=int, default=n)
    a = p.parse_args()
    config = AutoConfig.from_pretrained(a.model) if a.model else LlamaConfig(hidden_size=a.hidden, intermediate_size=a.intermediate, num_hidden_layers=a.layers, num_attention_heads=a.heads,
                         num_key_value_heads=a.kv_heads, vocab_size=32000, max_position_embeddings=a.tokens + 1)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        if a.model:
            model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16).eval()
        else:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    block = 2 * config.num_hidden_layers * config.num_key_value_heads * (config.hidden_size // config.num_attention_heads) * 2 * CHUNK
    each = a.tokens // CHUNK
    count = max(1, a.size // (block * each))
    print(f"{a.model or 'random weights'}, {DEVICE}: {sum(x.numel() for x in model.parameters()) / 1e9:.1f} billion parameters; {count} contexts of {each * CHUNK} tokens, {count * each} blocks of "
          f"{block / 2**20:g} MiB, {count * each * block / 1e9:.1f} GB")
    path = os.path.join(a.mount, "example.slab")
    contexts = [torch.randint(0, config.vocab_size, (1, each * CHUNK + 1), device=DEVICE) for _ in range(count)]

    def step(ids, cache):  # the last token, after what the cache has
        return model(ids[:, -1:], past_key_values=cache, use_cache=True, logits_to_keep=1).logits

    def prefill(ids):
        return model(ids[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
    try:
        prefill(contexts[0])  # warm
        with kv.Slab(path, block, count * each) as slab:
            held, logits, bytes_of, computed, written = Contexts(slab, model, each * CHUNK), [], [], [], 0
            for ids in contexts:
                (cache, out), t = seconds(lambda: (lambda c: (c, step(ids, c)))(prefill(ids)))
                logits.append(out)
                computed.append(t)
                written += seconds(lambda: held.put(ids[0].tolist(), cache))[1]
                bytes_of.append(held.sums())
                del cache
            written += seconds(slab.commit)[1]
            print(f"stored, durable: {count * each * block / written / 1e9:.2f} GB/s")
        with kv.Slab(path) as slab:  # as another program
            held, loaded, wrong, others, furthest, repeat = Contexts(slab, model, each * CHUNK), [], 0, 0, 0.0, 0.0
            read = []
            for ids, want, was in zip(contexts, logits, bytes_of):
                names = ids[0].tolist()
                cache, r = seconds(lambda: held.get(names))
                if cache is None:
                    raise SystemExit("kv: a context is not there")
                out, t = seconds(lambda: step(ids, cache))
                read.append(r)
                loaded.append(r + t)
                wrong += held.sums() != was
                if not torch.equal(out, want):
                    others += 1
                    furthest = max(furthest, distance(out, want))
                    del cache
                    cache = held.get(names)
                    repeat = max(repeat, distance(out, step(ids, cache)))
                del cache
    finally:
        if os.path.exists(path):
            os.unlink(path)
    print(f"first token, computed again: {statistics.median(computed) * 1e3:.1f} ms")
    print(f"first token, reloaded: {statistics.median(loaded) * 1e3:.1f} ms, of which reading {statistics.median(read) * 1e3:.1f} ms "
          f"({each * block / statistics.median(read) / 1e9:.2f} GB/s with sums)")
    print(f"saved: {(statistics.median(computed) - statistics.median(loaded)) * 1e3:.1f} ms of each, "
          f"{statistics.median(computed) / statistics.median(loaded):.1f} times as soon")
    # A model may not give the same last bits twice, nor from the same cache: the distance of a repetition says so.
    print(f"caches: the bytes of {count - wrong} of {count} are as they were")
    print(f"outputs: {count - others} of {count} equal to the last bit, the others by {furthest:.1e} of the largest, and from themselves when repeated by {repeat:.1e}")
    if wrong:
        raise SystemExit("kv: bytes differ")
    if furthest > max(0.02, 2 * repeat):
        raise SystemExit("kv: outputs differ by more than the model's repetitions do")


if __name__ == "__main__":
    main()
