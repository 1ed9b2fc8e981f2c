"""PyTorch on files of a LaneFS mount: safetensors files, checkpoints, and models whose weights processes share.

    from lanefs.torch import load_file, save_file, shared_weights, StorageReader, StorageWriter

`torch.save` and `torch.load` need nothing of this: a path on a mount is a path like others.
"""

from ._files import load_file, save_file
from ._shared import Weights, shared_weights

__all__ = ["StorageReader", "StorageWriter", "Weights", "load_file", "save_file", "shared_weights"]


def __getattr__(name):
    # Late: torch.distributed is not in every build of PyTorch, and is large.
    if name in ("StorageReader", "StorageWriter"):
        from . import _checkpoint
        return getattr(_checkpoint, name)
    raise AttributeError(f"module 'lanefs.torch' has no attribute {name!r}")
