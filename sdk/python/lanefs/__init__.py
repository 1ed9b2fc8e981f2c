"""Files of a LaneFS mount as device memory. Standard library only; PyTorch and NumPy are used if they are installed.

    import lanefs
    tensors = lanefs.load_safetensors("/mnt/models/model.safetensors")

The nouns. A File is an open file of a mount. A Mapping is device memory with a range of it: shared by all processes that
map it, or private to write to. A Buffer is memory of the program, into and out of which rings move ranges of files.
A Mapping is a snapshot with a generation. When the file changes it is no longer `current`; map the file again.
`lanefs.kv` keeps blocks by key; `lanefs.torch`, which imports PyTorch, loads and saves for it.
"""

from . import kv
from ._file import File, Mapping, open
from ._flight import StreamBatch
from ._memory import Buffer
from ._ring import Ring
from ._safetensors import Tensor, Tensors, load_safetensors, save
from ._session import NotLaneFS, Session
from ._version import __version__

__all__ = ["__version__", "Buffer", "File", "Mapping", "NotLaneFS", "Ring", "Session", "StreamBatch", "Tensor", "Tensors", "kv",
           "load_safetensors", "open", "save"]
