"""safetensors files (https://github.com/huggingface/safetensors): 8 bytes with the length of the header, the header in JSON, and the
bytes of the tensors."""

import json
import math
import os
import struct
import sys
import warnings

from . import _file, _temporary

# Size in bits, and the names in NumPy and PyTorch (None: no such type).
_TYPES = {
    "BOOL": (8, "?", "bool"), "U8": (8, "u1", "uint8"), "I8": (8, "i1", "int8"), "F8_E4M3": (8, None, "float8_e4m3fn"),
    "F8_E5M2": (8, None, "float8_e5m2"), "I16": (16, "<i2", "int16"), "U16": (16, "<u2", "uint16"), "F16": (16, "<f2", "float16"),
    "BF16": (16, None, "bfloat16"), "I32": (32, "<i4", "int32"), "U32": (32, "<u4", "uint32"), "F32": (32, "<f4", "float32"),
    "F64": (64, "<f8", "float64"), "I64": (64, "<i8", "int64"), "U64": (64, "<u8", "uint64"),
    # Of later versions of the format.
    "F4": (4, None, "float4_e2m1fn_x2"), "F6_E2M3": (6, None, None), "F6_E3M2": (6, None, None), "F8_E8M0": (8, None, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, None, "float8_e4m3fnuz"), "F8_E5M2FNUZ": (8, None, "float8_e5m2fnuz"), "C64": (64, "<c8", "complex64"),
}
_MAX_HEADER = 100 << 20
_ALIGN = 256  # bytes: where tensors begin in a file of ours. Matrix products want 16 of the memory that shares it


class Tensor:
    """A tensor for which neither PyTorch nor a NumPy type exists: its dtype as in the file, its shape, its bytes.

    Parameters
    ----------
    mapping : Mapping
    dtype : str
        As safetensors has it: "BF16".
    shape : sequence of int
    start, end : int
        Bytes of the mapping.
    """

    def __init__(self, mapping, dtype, shape, start, end):
        self._mapping, self.dtype, self.shape, self.start, self.end = mapping, dtype, tuple(shape), start, end

    def memoryview(self):
        """The bytes, if the CPU can address them.

        Returns
        -------
        memoryview
            Of uint8, shape (end - start,).

        Raises
        ------
        BufferError
            The memory is a GPU's.
        ValueError
            The mapping is closed.
        """
        return self._mapping.memoryview()[self.start:self.end]

    def __repr__(self):
        return f"lanefs.Tensor({self.dtype}, {self.shape})"


class Tensors(dict):
    """Tensors by name: what `load_safetensors` gives.

    Parameters
    ----------
    mapping : Mapping
        Their memory.
    metadata : dict of str to str
        The file's.
    """

    def __init__(self, mapping, metadata):
        super().__init__()
        self.mapping, self.metadata = mapping, metadata

    @property
    def current(self):
        """bool: whether the file still has these bytes."""
        return self.mapping.current

    @property
    def generation(self):
        """int: the generation of the mapping."""
        return self.mapping.generation


def _bad(why):
    raise ValueError(f"not a safetensors file: {why}")


def data_begins(read, size):
    """The offset of the tensors' bytes in a file of size bytes that read(n, offset) reads. All that is behind it is theirs, or read_header refuses the file."""
    first = read(8, 0)
    if len(first) < 8:
        _bad("it is too short")
    (n,) = struct.unpack("<Q", first)
    if n > _MAX_HEADER or 8 + n > size:
        _bad(f"a header of {n} bytes in a file of {size}")
    return 8 + n


def read_header(read, size):
    """Parses the header of a file of size bytes that read(n, offset) reads. Returns the offset of the tensors' bytes,
    {name: (dtype, shape, start, end)}, and the metadata."""
    base = data_begins(read, size)
    n = base - 8
    try:
        header = json.loads(read(n, 8).decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as e:
        _bad(e)
    try:
        metadata = header.pop("__metadata__", None) or {}
        if any(not isinstance(v, str) for v in metadata.values()):
            _bad("its metadata is not text")
        entries = {}
        for name, e in header.items():
            (start, end), shape, (bits, *_) = e["data_offsets"], e["shape"], _TYPES[e["dtype"]]
            if not isinstance(shape, list) or any(type(d) is not int or not 0 <= d < 1 << 63 for d in (start, end, *shape)):
                _bad(f"tensor {name!r} has offsets or a shape that are none")
            if 8 * (end - start) != bits * math.prod(shape):
                _bad(f"tensor {name!r} is not where it says")
            entries[name] = (e["dtype"], shape, start, end)
    except (KeyError, TypeError, AttributeError) as e:
        _bad(repr(e))
    # Each byte is one tensor's, as the format has it: what copies a file's chunks in their order relies on that.
    at = 0
    for start, end, name in sorted((start, end, name) for name, (_, _, start, end) in entries.items()):
        if start != at:
            _bad(f"tensor {name!r} begins at {start}, and what is before it ends at {at}")
        at = end
    if at != size - base:
        _bad(f"its tensors have {at} bytes, and the file {size - base}")
    return base, entries, metadata


def _once(pairs):
    """An object of JSON, each of whose names is there once."""
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name is there twice")
    return names


def torch_type(torch, dtype, shape):
    """PyTorch's type (None: it has none) and shape of a tensor. An element of its own has two numbers of 4 bits; in a file each counts."""
    bits, _, name = _TYPES[dtype]
    kind = getattr(torch, name or "", None)
    if kind is None or bits != 4:
        return kind, shape
    if not shape or shape[-1] % 2:
        raise ValueError(f"a tensor of {dtype} and shape {shape}, which PyTorch cannot have")
    return kind, [*shape[:-1], shape[-1] // 2]


def _framework(name):
    if name is None:
        for name in ("torch", "numpy"):
            try:
                return name, __import__(name)
            except ImportError:
                continue
        return "none", None
    if name not in ("torch", "numpy", "none"):
        raise ValueError(f"framework {name!r}: want 'torch', 'numpy', 'none' or None")
    return name, None if name == "none" else __import__(name)


def load_safetensors(path, framework=None, fallback=False):
    """Maps a file and returns its tensors, without a copy, in memory that all processes share. They are read-only if the framework has
    read-only tensors.

    Parameters
    ----------
    path : str or os.PathLike
    framework : {"torch", "numpy", "none", None}
        Whose tensors; "none": lanefs.Tensor; None: the first of them that is installed. Tensors in a GPU's memory need PyTorch.
    fallback : bool
        See open.

    Returns
    -------
    Tensors
        By name, of the file's shapes and types.

    Raises
    ------
    ValueError
        Not a safetensors file; another framework; NumPy, and the memory is a GPU's.
    ImportError
        The framework is not installed.
    NotLaneFS, OSError
        As open and File.map.
    """
    kind, module = _framework(framework)
    with _file.File(path, "r", fallback) as f:
        mapping, (base, entries, metadata) = _map(f)
    tensors = Tensors(mapping, metadata)
    if kind == "numpy" and mapping.memory.view is None:
        raise ValueError("the mount's device memory is a GPU's, which NumPy does not reach: install PyTorch")
    whole = _torch_bytes(module, mapping) if kind == "torch" else None
    for name, (dtype, shape, start, end) in entries.items():
        bits, np, _ = _TYPES[dtype]
        of, size = torch_type(module, dtype, shape) if kind == "torch" else (None, None)
        if of is not None:
            part = whole[base + start:base + end]
            if (base + start) % -(-bits // 8):
                warnings.warn(f"{path!r}: tensor {name!r} does not lie at a multiple of its type's size, so it is copied", RuntimeWarning, stacklevel=2)
                part = part.clone()
            tensors[name] = part.view(of).view(size)
        elif kind == "numpy" and np is not None:
            tensors[name] = module.frombuffer(mapping.memoryview(), dtype=np, count=math.prod(shape), offset=base + start).reshape(shape)
        else:
            tensors[name] = Tensor(mapping, dtype, shape, base + start, base + end)
    return tensors


def _map(f):
    """Maps a file and reads its header, both as they were at the mapping's generation."""
    for _ in range(100):
        mapping = f.map()
        if mapping.memory.view is not None:
            view = mapping.memoryview()
            return mapping, read_header(lambda n, at: bytes(view[at:at + n]), len(view))
        try:
            header = read_header(lambda n, at: os.pread(f.fd, n, at), len(mapping))
        except ValueError:
            if mapping.current:
                raise
        else:
            if mapping.current:
                return mapping, header
        mapping.close()  # the header may be newer than the mapping
    raise OSError(f"{f.path!r} changes all the time")


def _torch_bytes(torch, mapping):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the memory is not writable, as is intended
        return torch.from_dlpack(mapping)


_STAGE = 1 << 30  # bytes of device memory through which a checkpoint is written


def save(tensors, path, metadata=None, fallback=False):
    """Writes tensors (PyTorch's, NumPy's, or lanefs.Tensor's, by name) to a safetensors file through device memory and
    commit. The file appears at path when it is complete and durable, and replaces an existing one, whose owner and mode it gets: of a symbolic link
    what it leads to.

    Parameters
    ----------
    tensors : mapping of str to tensor
    path : str or os.PathLike
    metadata : mapping, optional
        Keys and values become text.
    fallback : bool
        See open.

    Raises
    ------
    ValueError
        What is no tensor, or a sparse one or one without memory, or of a type that safetensors has no name for; a name that is no text, or that UTF-8 cannot have, or the format's own.
    NotLaneFS, OSError
        As open and File.commit. What was at path is still there. EISDIR: path names a directory, as with a slash at its end.
    """
    header, parts, at = {}, [], 0
    for name in tensors:
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"{name!r} is no name of a tensor")
    if metadata:
        header["__metadata__"] = {str(k): str(v) for k, v in metadata.items()}
    for name, t in tensors.items():
        dtype, shape, data = _bytes_of(t)
        n = len(data)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        parts.append(data)
        at += n
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    head = struct.pack("<Q", len(text)) + text
    parts.insert(0, memoryview(head))
    total = len(head) + at
    path = os.fsdecode(path)
    if os.path.basename(path) in ("", ".", ".."):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))  # EISDIR, or whatever else it is: no file has such a name
    path = os.path.realpath(path)
    with _temporary.made(path) as (name, fd):
        was = _temporary.private(fd, path)
        with _file.File(name, "w", fallback, path) as f:
            _write(f, parts, total)
        _temporary.like(fd, was)
        os.rename(name, path)
    _temporary.sync_directory(path)


def _write(f, parts, total):
    size = min(total, _STAGE if f.session is None else max(min(_STAGE, f.session.pool_size // 2), f.session.granule))
    with f.alloc(size) as stage:
        fill, done = _filler(stage), 0
        used = 0
        for part in parts:
            at = 0
            while at < len(part):
                n = min(len(part) - at, size - used)
                fill(used, part[at:at + n])
                at, used = at + n, used + n
                if used == size:
                    f.commit(stage, done, 0, used)
                    done, used = done + used, 0
        if used:
            f.commit(stage, done, 0, used)


def _filler(stage):
    """Copies bytes, of the CPU or of the GPU, into the stage."""
    if stage.memory.view is not None:
        view = stage.memoryview()

        def fill(at, part):
            view[at:at + len(part)] = part if isinstance(part, memoryview) else memoryview(part.cpu().numpy())
        return fill
    import torch
    device = torch.from_dlpack(stage)

    def fill(at, part):
        if isinstance(part, memoryview):
            part = torch.frombuffer(bytearray(part), dtype=torch.uint8)
        device[at:at + len(part)].copy_(part)
    return fill


def flat(torch, t):
    """The bytes of a contiguous tensor."""
    t = t.reshape(-1)
    return (t.as_strided((1,), (1,)) if t.numel() == 1 else t).view(torch.uint8)  # one element is contiguous whatever its stride is


def _bytes_of(t):
    """dtype, shape and bytes of a tensor: a memoryview, or PyTorch's own of uint8."""
    if isinstance(t, Tensor):
        return t.dtype, t.shape, t.memoryview()
    if type(t).__module__.split(".")[0] == "numpy":
        import numpy
        for name, (_, np, _) in _TYPES.items():
            if np is not None and t.dtype == numpy.dtype(np):
                # ascontiguousarray would make an array without dimensions one-dimensional.
                return name, t.shape, memoryview(numpy.ascontiguousarray(t).reshape(-1).view("u1"))
        raise ValueError(f"safetensors has no type for NumPy's {t.dtype}")
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(t, torch.Tensor):
        raise ValueError(f"want a tensor of PyTorch or NumPy, or a lanefs.Tensor, not {type(t).__name__}")
    if t.is_meta:
        raise ValueError("the tensor has no memory")
    for name, (bits, _, kind) in _TYPES.items():
        if t.dtype == getattr(torch, kind or "", None):
            shape = (*t.shape[:-1], 2 * t.shape[-1]) if bits == 4 else tuple(t.shape)
            try:
                return name, shape, flat(torch, t.detach().resolve_conj().resolve_neg().contiguous())
            except RuntimeError as e:  # a sparse one
                raise ValueError(f"the tensor's bytes are not in one place: {e}") from None
    raise ValueError(f"safetensors has no type for {t.dtype}")
