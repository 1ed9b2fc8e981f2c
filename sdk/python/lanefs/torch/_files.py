"""safetensors files to and from tensors of one's own, with the signatures of safetensors.torch."""

import os

import torch

from .. import _file, _safetensors, _stage
from . import _pieces, _slots

_TRIES = 10


def load_file(filename, device="cpu", *, group=None, fallback=False):
    """Loads a safetensors file into new memory.

    Each tensor has memory of its own, as with `safetensors.torch.load_file`. All are read by one batch; files of 256 MiB and more to a GPU by way of 384 MiB of its
    memory, which the daemon writes to itself, and which is kept for a second for the next file.
    What processes share instead is `lanefs.load_safetensors` and `shared_weights`.

    Parameters
    ----------
    filename : str or os.PathLike
    device : str, int or torch.device
        Where the tensors shall be. An integer is a CUDA device.
    group : torch.distributed.ProcessGroup, optional
        Its ranks all call this with the same file, and each gets all tensors; the file is read once by all of them together: each reads its
        part of it, 24 MiB at a time, into 384 MiB of the device's memory at most, 48 where there is no more, and the rest comes by the group. `torch.distributed.group.WORLD` is all ranks.
    fallback : bool
        Whether a file elsewhere than on a LaneFS mount is read too, with a warning.

    Returns
    -------
    dict of str to torch.Tensor
        The shapes and types of the file. On CUDA they are ready in the order of the current stream.

    Raises
    ------
    lanefs.NotLaneFS
        The file is not on a LaneFS mount, and fallback is false.
    FileNotFoundError, PermissionError, OSError
        The file cannot be read, or changes all the time, or, with a group, another rank could not read it or has another file.
    ValueError
        The file is not a safetensors file, or has a type that this PyTorch lacks. With a group: torch.distributed is not initialized, this rank is not in
        the group, or it is one of NCCL's and the device is no GPU.
    EOFError
        The file ends before its tensors do.
    RuntimeError
        With a group: the group failed, as where another rank has ended. The others do not wait for it longer than the group's timeout.
    """
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if group is not None:
        from . import _group
        return _group.load(filename, device, group, fallback)
    with _file.File(filename, "r", fallback) as f:
        for _ in range(_TRIES):
            before = _pieces.state(f)
            try:
                base, entries, _ = header(f)
                tensors = empty(entries, device, f.path)
                if not _slots.load(f, base, entries, tensors, device):
                    _pieces.read(f, [(tensors[name], base + e[2]) for name, e in entries.items()])
            except (ValueError, EOFError):
                if _pieces.state(f) == before:
                    raise
            else:
                if _pieces.state(f) == before:
                    return tensors
        raise OSError(f"{f.path!r} changes all the time")


def header(f, size=None):
    """The header of an open file of size bytes, as long as it is if None: where the tensors' bytes begin, {name: (dtype, shape, start, end)}, the metadata."""
    return _safetensors.read_header(lambda n, at: os.pread(f.fd, n, at), f.size if size is None else size)


def data_begins(f, size):
    """Where the tensors' bytes begin, of an open file of size bytes."""
    return _safetensors.data_begins(lambda n, at: os.pread(f.fd, n, at), size)


def empty(entries, device, path):
    """New tensors for a header's entries."""
    tensors = {}
    for name, (dtype, shape, _, _) in entries.items():
        kind, size = _safetensors.torch_type(torch, dtype, shape)
        if kind is None:
            raise ValueError(f"{path!r}: tensor {name!r} is of type {dtype}, which PyTorch {torch.__version__} lacks")
        tensors[name] = torch.empty(size, dtype=kind, device=device)
    return tensors


def save_file(tensors, filename, metadata=None, *, fallback=False):
    """Writes tensors to a safetensors file. It appears, complete and durable, when this returns, in the place of an older one, whose owner and mode it gets; of a symbolic link what
    it leads to.

    Parameters
    ----------
    tensors : dict of str to torch.Tensor
        Contiguous, dense, and none of them sharing memory with another. They may be on any device.
    filename : str or os.PathLike
    metadata : dict of str to str, optional
    fallback : bool
        Whether to write elsewhere than on a LaneFS mount too, with a warning.

    Raises
    ------
    lanefs.NotLaneFS
        The directory is not on a LaneFS mount, and fallback is false.
    ValueError
        Not a dict of tensors by name, or a name that UTF-8 cannot have; a tensor that is sparse, on the meta device, has gaps, or is conjugated or negated when it is read; a type that safetensors has no name for.
    RuntimeError
        Tensors share memory.
    TypeError
        Metadata that is not text.
    OSError
        The file cannot be written, ENOSPC for one. What was at filename is still there.
    """
    if not isinstance(tensors, dict):
        raise ValueError(f"want a dict of tensors by name, not {type(tensors).__name__}")
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(x, str) for kv in metadata.items() for x in kv)):
        raise TypeError("metadata is a dict of text to text")
    seen = {}
    for name, t in tensors.items():
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is no name of a tensor")
        if not isinstance(t, torch.Tensor):
            raise ValueError(f"{name!r} is no tensor, but {type(t).__name__}")
        if t.device.type == "meta":
            raise ValueError(f"{name!r} is on the meta device, and has no bytes")
        if t.layout != torch.strided:
            raise ValueError(f"{name!r} is sparse: make it dense first")
        if not t.is_contiguous():
            raise ValueError(f"{name!r} is not contiguous: call .contiguous() first")
        if _stage.lazy(t):
            raise ValueError(f"{name!r} is conjugated or negated when it is read: call .resolve_conj().resolve_neg() first")
        if t.numel():
            at = t.device, t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()
            seen[name] = at
    spans = sorted(((*at, name) for name, at in seen.items()), key=lambda s: (str(s[0]), s[1]))
    for (device, _, end, name), (other, start, _, second) in zip(spans, spans[1:]):
        if device == other and start < end:
            raise RuntimeError(f"{name!r} and {second!r} share memory: save one of them, or a clone")
    # The format has no gaps. So what is a multiple of 256 bytes comes first, then of 16, then larger types: every tensor lies at a multiple of its
    # type's size, and one that fast matrix products can use, at a multiple of 16.
    def place(name):
        n = tensors[name].numel() * tensors[name].element_size()
        return 0 if n % 256 == 0 else 1 if n % 16 == 0 else 2, -tensors[name].element_size(), name
    order = sorted(tensors, key=place)
    _safetensors.save({name: tensors[name] for name in order}, filename, metadata, fallback)
