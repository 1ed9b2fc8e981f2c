import os
from typing import Any, ContextManager, Optional, Union

import torch
from lanefs import Tensors
from torch.distributed.checkpoint import StorageReader as _Reader, StorageWriter as _Writer

_Path = Union[str, os.PathLike[str]]

class Weights:
    files: dict[str, Tensors]
    @property
    def current(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...

class StorageWriter(_Writer):
    def __init__(self, path: Optional[_Path] = ..., *, fallback: bool = ...) -> None: ...

class StorageReader(_Reader):
    def __init__(self, path: Optional[_Path] = ..., *, fallback: bool = ...) -> None: ...

def load_file(filename: _Path, device: Union[str, int, torch.device] = ..., *, group: Any = ..., fallback: bool = ...) -> dict[str, torch.Tensor]: ...
def save_file(tensors: dict[str, torch.Tensor], filename: _Path, metadata: Optional[dict[str, str]] = ..., *, fallback: bool = ...) -> None: ...
def shared_weights(*, fallback: bool = ...) -> ContextManager[Weights]: ...
