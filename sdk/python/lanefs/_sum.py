"""Checksums of values in a slab (docs/SPEC.md, "Slabs"), computed where the bytes are: by the C library, or by PyTorch on the GPU."""

from . import _stage

_MASK = (1 << 64) - 1
_AT_ONCE = 32 << 20  # 64-bit words that a GPU multiplies at a time


class _Bytes:
    """A GPU's memory for PyTorch."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def sums(memory, offsets, lengths, stream):
    """The sums of ranges of memory, which is as with File.read_batch, after what is on the stream.

    Raises
    ------
    ValueError
        The memory is a bare address, or a GPU's where PyTorch is not installed.
    """
    cuda = getattr(memory, "is_cuda", False) or hasattr(memory, "__cuda_array_interface__")
    address, _, handle, hold = _stage.target(memory, stream, False)
    if not cuda:
        if isinstance(memory, int):  # of a GPU, perhaps, and the CPU must not touch it
            raise ValueError("checksums need to know whose memory an address is: give a tensor or an array, or open the slab with verify=False")
        lib = _stage.library()
        return [lib.lanefs_sum(address + o, n) for o, n in zip(offsets, lengths)]
    try:
        import torch
    except ImportError:
        raise ValueError("checksums of a GPU's memory need PyTorch: install it, or give verify=False") from None
    device = memory.device if isinstance(memory, torch.Tensor) else torch.device("cuda", torch.cuda.current_device())
    groups = {}
    for i, n in enumerate(lengths):
        groups.setdefault(n, []).append(i)
    out = [0] * len(lengths)
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device) if handle else torch.cuda.default_stream(device)):
        whole = torch.as_tensor(_Bytes(address, max(o + n for o, n in zip(offsets, lengths))), device=device) if any(lengths) else None
        found = []
        for n, which in groups.items():
            if n:
                found.append((which, _same_length(torch, whole, [offsets[i] for i in which], n)))
        for which, values in found:
            for i, v in zip(which, values.tolist()):
                out[i] = v & _MASK
    return out


def _same_length(torch, whole, offsets, n):
    """Sums of ranges of n bytes each, as a tensor: rows of words, gathered where they are not evenly spaced."""
    device = whole.device
    if whole.data_ptr() % 8 or any(o % 8 for o in offsets):
        return torch.cat([_same_length(torch, whole[o:o + n].clone(), [0], n) for o in offsets])
    width, tail, count = n // 8, n % 8, len(offsets)
    total = torch.zeros(count, dtype=torch.int64, device=device)
    flat = whole[:whole.numel() // 8 * 8].view(torch.int64)
    step = offsets[1] - offsets[0] if count > 1 else 8
    even = step > 0 and all(b - a == step for a, b in zip(offsets, offsets[1:]))
    index = None if even else torch.tensor([o // 8 for o in offsets], device=device)
    wide = max(1, min(width, _AT_ONCE))
    high = max(1, _AT_ONCE // wide)
    for a in range(0, width, wide):
        w = min(wide, width - a)
        weights = torch.arange(a, a + w, dtype=torch.int64, device=device).mul_(2).add_(1)
        for r in range(0, count, high):
            k = min(high, count - r)
            if even:
                rows = flat[(offsets[0] + r * step) // 8 + a:].as_strided((k, w), (step // 8, 1)) * weights
            else:
                rows = flat[a:].as_strided((flat.numel() - a - w + 1, w), (1, 1)).index_select(0, index[r:r + k]).mul_(weights)
            total[r:r + k] += rows.sum(1)
    if tail:
        at = torch.tensor([o + 8 * width for o in offsets], device=device)[:, None] + torch.arange(tail, device=device)
        word = (whole[at].to(torch.int64) << 8 * torch.arange(tail, device=device)).sum(1)
        total += word * (2 * width + 1)
    return total
