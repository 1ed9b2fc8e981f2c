"""Models whose weights lie in memory that all processes share."""

import contextlib
import os
import sys
import threading
import warnings

from .. import _safetensors
from .._session import NotLaneFS


_PRODUCTS = 16  # bytes: the alignment that fast matrix products need


class Weights:
    """What `shared_weights` has mapped.

    Attributes
    ----------
    files : dict of str to lanefs.Tensors
        By path, as they were when they were opened last. They hold the memory, as each tensor does.
    """

    def __init__(self):
        self.files = {}

    @property
    def current(self):
        """bool: whether all files still have these bytes."""
        return all(t.current for t in self.files.values())

    @property
    def nbytes(self):
        """int: bytes of the files that are mapped."""
        return sum(len(t.mapping) for t in self.files.values())


class _Slice:
    """A tensor of which not yet everything has been asked for."""

    def __init__(self, tensor, dtype):
        self._tensor, self._dtype = tensor, dtype

    def get_shape(self):
        return list(self._tensor.shape)

    def get_dtype(self):
        return self._dtype

    def __getitem__(self, index):
        return self._tensor[index]


class _Open:
    """What safetensors.safe_open gives, over a mapping."""

    def __init__(self, tensors, device):
        import torch
        # Programs leave the CPU out, or name it, and put weights where they want them: that is where these are. What else they name they get.
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cpu")
        self._tensors, self._device = tensors, None if device.type == "cpu" else device
        self._names = {getattr(torch, t): name for name, (_, _, t) in _safetensors._TYPES.items() if hasattr(torch, t or "")}

    def keys(self):
        return list(self._tensors)

    def offset_keys(self):
        return list(self._tensors)

    def metadata(self):
        return dict(self._tensors.metadata) or None

    def get_tensor(self, name):
        try:
            t = self._tensors[name]
        except KeyError:
            raise KeyError(f"the file has no tensor {name!r}") from None
        if isinstance(t, _safetensors.Tensor):
            raise ValueError(f"tensor {name!r} is of type {t.dtype}, which this PyTorch lacks")
        return t if self._device is None else t.to(self._device)

    def get_slice(self, name):
        t = self.get_tensor(name)
        return _Slice(t, self._names[t.dtype])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass  # tensors outlive this


_one = threading.Lock()  # held within shared_weights


def _replace(name, old, new):
    """In every module that has imported it by name."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


@contextlib.contextmanager
def shared_weights(*, fallback=False):
    """Within it, what loads safetensors files through `safetensors.safe_open` gets their tensors in the mount's device memory, which all
    processes share, without a copy: `from_pretrained` of transformers does, given the mount's device.

        with lanefs.torch.shared_weights() as weights:
            model = AutoModelForCausalLM.from_pretrained("/mnt/models/llama", device_map="cuda:0", dtype="auto")

    A second process neither reads the file nor takes memory for it. The weights are to be read only: what would write to them, an
    optimizer or an operation in place, fails on the device, or in all processes is seen. A weight is still copied if
    from_pretrained converts its type or its layout, or puts it elsewhere; so are all if safe_open is told another device than the mount's and the CPU. A warning says if the file's tensors do not lie at multiples of 16
    bytes; those of files that lanefs.torch.save_file wrote do, if their sizes allow it.

    Parameters
    ----------
    fallback : bool
        Whether files elsewhere than on a LaneFS mount are loaded as without this, with a warning.

    Yields
    ------
    Weights
        What has been mapped so far.

    Raises
    ------
    ImportError
        safetensors is not installed.
    RuntimeError
        Another shared_weights is in force in this process.
    lanefs.NotLaneFS
        By what loads, if a file is not on a LaneFS mount, and fallback is false.
    ValueError
        By what loads, if a file is not a safetensors file.
    """
    import safetensors
    if not _one.acquire(blocking=False):
        raise RuntimeError("shared_weights is in force in this process already")
    try:
        original, weights = safetensors.safe_open, Weights()

        def safe_open(filename, framework="pt", *args, **kwargs):
            if framework not in ("pt", "torch", "pytorch"):
                return original(filename, framework, *args, **kwargs)
            path, device = os.path.realpath(filename), args[0] if args else kwargs.get("device")
            if path not in weights.files or not weights.files[path].current:  # another file may have the name by now
                try:
                    weights.files[path] = tensors = _safetensors.load_safetensors(path, framework="torch")
                    if any(t.data_ptr() % _PRODUCTS for t in tensors.values() if not isinstance(t, _safetensors.Tensor) and t.dim() > 1 and t.numel() * t.element_size() % _PRODUCTS == 0):
                        warnings.warn(f"{path!r}: tensors do not begin at multiples of {_PRODUCTS} bytes, which makes a GPU's matrix products slower and round "
                                      "otherwise: lanefs.torch.save_file(lanefs.torch.load_file(path), path, metadata) mends the file", RuntimeWarning, stacklevel=2)
                except NotLaneFS as e:
                    if not fallback:
                        raise
                    warnings.warn(f"{e.strerror}: loaded without LaneFS", RuntimeWarning, stacklevel=2)
                    return original(filename, framework, *args, **kwargs)
            return _Open(weights.files[path], device)

        # transformers makes room for a model's size in PyTorch's allocator beforehand: memory that nothing here would use.
        try:
            import transformers.modeling_utils as loader
            warm = getattr(loader, "caching_allocator_warmup", None)
        except ImportError:
            loader = warm = None
        _replace("safe_open", original, safe_open)
        if warm is not None:
            loader.caching_allocator_warmup = lambda *_, **__: None
        try:
            yield weights
        finally:
            _replace("safe_open", safe_open, original)  # also in modules that were imported within
            if warm is not None:
                loader.caching_allocator_warmup = warm
    finally:
        _one.release()
