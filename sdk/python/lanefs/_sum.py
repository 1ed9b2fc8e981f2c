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
    address, _, handle = _stage.target(memory, stream, False)
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
    """Sums of ranges of n bytes each, as a tensor."""
    step = offsets[1] - offsets[0] if len(offsets) > 1 else n
    even = step >= n and all(b - a == step for a, b in zip(offsets, offsets[1:]))
    if n % 8 or whole.data_ptr() % 8 or offsets[0] % 8 or step % 8 or not even:
        if len(offsets) == 1:
            words = torch.zeros(-(-n // 8) * 8, dtype=torch.uint8, device=whole.device)
            words[:n] = whole[offsets[0]:offsets[0] + n]
            return _rows(torch, words.view(torch.int64).reshape(1, -1))
        return torch.cat([_same_length(torch, whole, [o], n) for o in offsets])
    words = whole[offsets[0]:offsets[0] + (len(offsets) - 1) * step + n].view(torch.int64)
    return _rows(torch, words.as_strided((len(offsets), n // 8), (step // 8, 1)))


def _rows(torch, rows):
    count, width = rows.shape
    total = torch.zeros(count, dtype=torch.int64, device=rows.device)
    wide = min(width, _AT_ONCE)
    high = max(1, _AT_ONCE // wide)
    for a in range(0, width, wide):
        part = rows[:, a:a + wide]
        weights = torch.arange(a, a + part.shape[1], dtype=torch.int64, device=rows.device).mul_(2).add_(1)
        for r in range(0, count, high):
            total[r:r + high] += (part[r:r + high] * weights).sum(1)
    return total
