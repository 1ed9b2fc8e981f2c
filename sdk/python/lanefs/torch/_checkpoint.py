"""Storage of torch.distributed.checkpoint: a directory with a safetensors file of each rank, and `.metadata`.

A save gives its files names of their own, and `.metadata` comes last, by rename. So a directory has the previous checkpoint or the new one,
also after the end of a program or of the power in between; what the previous one had is deleted then. Until then its files have names that end in
`.part`, and each rank's writer has a lock of its own: what a save leaves that fails, or is killed, the next one deletes before it needs the room.
"""

import collections
import contextlib
import dataclasses
import errno
import fcntl
import inspect
import io
import os
import pickle
import secrets

import torch
from torch.futures import Future

try:
    from torch.distributed import checkpoint as _dcp
    from torch.distributed.checkpoint import planner as _planner
except ImportError:  # before PyTorch 2.0
    from torch.distributed._shard import checkpoint as _dcp
    from torch.distributed._shard.checkpoint import planner as _planner
try:
    from torch.distributed.checkpoint.storage import WriteResult
except ImportError:
    from torch.distributed._shard.checkpoint.storage import WriteResult

from .. import _file, _safetensors, _stage, _temporary
from . import _files, _pieces

_METADATA = ".metadata"
_PART = ".part"
_ASIDE = 1 << 30  # bytes that are read beside their tensors at a time


@dataclasses.dataclass
class _Stored:
    """Where an item lies. It is in `.metadata`."""
    file: str
    offset: int  # bytes
    length: int  # bytes
    dtype: str   # as str(torch.dtype); of bytes, empty
    shape: tuple


class _Storage:
    """What reader and writer have in common."""

    def __init__(self, path=None, *, fallback=False):
        self.path, self._fallback = None, fallback
        self.reset(path)

    def reset(self, checkpoint_id=None):
        """Names the directory of the next checkpoint.

        Parameters
        ----------
        checkpoint_id : str or os.PathLike, optional
            None: that of the last one.

        Raises
        ------
        TypeError
            It is no path.
        """
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """Whether this is a path.

        Parameters
        ----------
        checkpoint_id : object

        Returns
        -------
        bool
        """
        return isinstance(checkpoint_id, (str, os.PathLike)) and "://" not in str(checkpoint_id)

    def _directory(self):
        if self.path is None:
            raise ValueError("no directory: give checkpoint_id, or a path to the constructor")
        return self.path

    def _alone(self, kwargs):
        if kwargs.get("use_collectives") is False:
            raise ValueError(f"{type(self).__name__} needs use_collectives=True: one .metadata names the files of all ranks")

    def prepare_local_plan(self, plan):
        """A rank's plan as it is. torch.distributed.checkpoint calls it.

        Parameters
        ----------
        plan : SavePlan or LoadPlan

        Returns
        -------
        SavePlan or LoadPlan
        """
        return plan


def _copied(staged, original):
    """What async_save writes while the program goes on: PyTorch's own way to stage leaves tensors of the CPU where they are."""
    if isinstance(original, torch.Tensor):
        return staged.clone() if original.device.type == "cpu" else staged
    if isinstance(original, dict):
        return {k: _copied(staged[k], v) for k, v in original.items()}
    if type(original) in (list, tuple):
        return type(original)(_copied(s, o) for s, o in zip(staged, original))
    return staged


class _Stager:
    """AsyncStager of torch.distributed.checkpoint, of versions whose async_save has no way of its own that copies all."""
    _synchronize_after_execute = False
    should_synchronize_after_execute = False

    def stage(self, state_dict):
        """A copy of a state on the CPU. async_save calls it.

        Parameters
        ----------
        state_dict : dict

        Returns
        -------
        dict
        """
        from torch.distributed._state_dict_utils import _offload_state_dict_to_cpu
        return _copied(_offload_state_dict_to_cpu(state_dict, type_check=False), state_dict)

    def synchronize_staging(self):
        """Nothing: stage has waited."""


_stages = (_Stager,) if hasattr(_dcp, "async_save") and "async_stager" not in inspect.signature(_dcp.async_save).parameters else ()


class StorageWriter(_Storage, *_stages, _dcp.StorageWriter):
    """Writes checkpoints to a directory of a LaneFS mount: `torch.distributed.checkpoint.save` and `async_save`.

    Parameters
    ----------
    path : str or os.PathLike, optional
        The directory, if save gets no checkpoint_id. It is made; what it has of an older checkpoint is replaced as a whole.
    fallback : bool
        Whether a directory elsewhere than on a LaneFS mount will do, with a warning.

    Raises
    ------
    lanefs.NotLaneFS
        By save: the directory is not on a LaneFS mount, and fallback is false.
    OSError
        By save: the files cannot be written. The older checkpoint is still there.
    ValueError
        By save: there is no path.
    """

    _writes = None  # the rank's file, locked, while it is no checkpoint's

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        """Begins a save. torch.distributed.checkpoint calls it.

        Parameters
        ----------
        is_coordinator : bool
        *args, **kwargs
            What later versions add; use_collectives must not be False.

        Raises
        ------
        ValueError
            There is no path, or use_collectives is False.
        """
        self._directory()
        self._alone(kwargs)
        self._writes = None  # of a save that failed

    init = set_up_storage_writer  # its name before PyTorch 2.0

    def prepare_global_plan(self, plans):
        """Makes the directory, without what saves left there that failed, and gives each rank what its files' names begin with. torch.distributed.checkpoint calls it on one rank.

        Parameters
        ----------
        plans : list of SavePlan
            One for each rank.

        Returns
        -------
        list of SavePlan

        Raises
        ------
        ValueError
            There is no path.
        OSError
            The directory cannot be made.
        """
        os.makedirs(self._directory(), exist_ok=True)
        with os.scandir(self._directory()) as there:
            for e in there:
                if e.name.startswith("__") and e.name.endswith(_PART):
                    _temporary.delete(e.path)
        return [dataclasses.replace(p, storage_data=f"__{rank}_") for rank, p in enumerate(plans)]

    def write_data(self, plan, planner):
        """Writes a rank's file, complete and durable. torch.distributed.checkpoint calls it.

        Parameters
        ----------
        plan : SavePlan
        planner : SavePlanner

        Returns
        -------
        torch.futures.Future of list of WriteResult
            It is done.

        Raises
        ------
        NotLaneFS
            The directory is not on a LaneFS mount, and fallback is false.
        ValueError
            There is no path; what is no tensor.
        OSError
            The file cannot be written.
        """
        tensors, items = {}, []
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == _planner.WriteItemType.BYTE_IO:
                raw = bytearray(data.getbuffer())
                t, dtype, shape = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8), "", ()
            else:
                t = data.detach().resolve_conj().resolve_neg().contiguous()
                dtype, shape = str(t.dtype), tuple(t.shape)
                if not any(t.dtype == getattr(torch, name or "", None) for _, _, name in _safetensors._TYPES.values()):
                    t = _safetensors.flat(torch, t)  # the file says bytes, .metadata what they are
            name = item.index.fqn.encode("utf-8", "backslashreplace").decode()
            if item.index.offset is not None and any(item.index.offset):
                name += "@" + ",".join(map(str, item.index.offset))
            while name in tensors or name == "__metadata__":
                name += "'"
            tensors[name] = t
            items.append((item.index, name, dtype, shape))
        results = []
        if tensors:
            order = sorted(tensors, key=lambda n: -tensors[n].element_size())
            file = f"{plan.storage_data}{secrets.token_hex(6)}.safetensors"  # not of the plan, which planners keep for the next save
            path = os.path.join(self._directory(), file + _PART)
            _safetensors.save({n: tensors[n] for n in order}, path, {"format": "pt"}, self._fallback)
            self._writes = f = _temporary.Lock(path)
            base, entries, _ = _safetensors.read_header(lambda n, at: os.pread(f.fd, n, at), os.fstat(f.fd).st_size)
            for index, name, dtype, shape in items:
                _, _, start, end = entries[name]
                results.append(WriteResult(index=index, size_in_bytes=end - start, storage_data=_Stored(file, base + start, end - start, dtype, shape)))
        done = Future()
        done.set_result(results)
        return done

    def finish(self, metadata, results):
        """Writes `.metadata`, which makes the checkpoint the directory's, and deletes the files of older ones. torch.distributed.checkpoint calls it on one rank.

        Parameters
        ----------
        metadata : Metadata
        results : list of list of WriteResult
            One list for each rank.

        Raises
        ------
        ValueError
            There is no path.
        OSError
            It cannot be written; another save to the directory has ended meanwhile, and deleted this one's files. The older checkpoint is still the directory's.
        """
        metadata.storage_data = {r.index: r.storage_data for of_rank in results for r in of_rank}
        used = {s.file for s in metadata.storage_data.values()}
        directory = self._directory()
        path = os.path.join(directory, _METADATA)
        fd = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # one save at a time finds its files, and deletes those of others
            there, ours = os.listdir(directory), {file + _PART for file in used}
            if not ours.issubset(there):
                raise OSError(errno.EBUSY, "another save to this directory ended before this one", directory)
            with open(path + ".tmp", "wb") as f:
                pickle.dump(metadata, f)
                f.flush()
                os.fsync(f.fileno())
            for file in used:
                os.rename(os.path.join(directory, file + _PART), os.path.join(directory, file))
            os.rename(path + ".tmp", path)
            os.fsync(fd)
            for name in there:
                if name.startswith("__") and ".safetensors" in name and name not in ours:
                    with contextlib.suppress(FileNotFoundError):  # another save's, which has just got its name
                        os.unlink(os.path.join(directory, name))
        finally:
            os.close(fd)
            self._writes = None


class StorageReader(_Storage, _dcp.StorageReader):
    """Reads checkpoints that StorageWriter wrote: `torch.distributed.checkpoint.load`. Also into another number of ranks or other shards. What
    fits goes straight into the tensors, on whatever device they are, by one batch for each file.

    Parameters
    ----------
    path : str or os.PathLike, optional
        The directory, if load gets no checkpoint_id.
    fallback : bool
        Whether a directory elsewhere than on a LaneFS mount will do, with a warning.

    Raises
    ------
    FileNotFoundError
        By load: the directory has no complete checkpoint.
    lanefs.NotLaneFS
        By load: the directory is not on a LaneFS mount, and fallback is false.
    ValueError
        By load: there is no path; the checkpoint is not one of StorageWriter's, or its files are not as long as it says.
    OSError
        By load: the files cannot be read.

    Notes
    -----
    `.metadata` is a pickle, as PyTorch's own: load checkpoints only of those whom you trust.
    """

    def read_metadata(self, *args, **kwargs):
        """The checkpoint's `.metadata`. torch.distributed.checkpoint calls it.

        Parameters
        ----------
        *args, **kwargs
            What later versions add.

        Returns
        -------
        Metadata

        Raises
        ------
        FileNotFoundError
            The directory has no complete checkpoint.
        ValueError
            There is no path.
        OSError
            It cannot be read.
        """
        with open(os.path.join(self._directory(), _METADATA), "rb") as f:
            return pickle.load(f)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        """Begins a load. torch.distributed.checkpoint calls it.

        Parameters
        ----------
        metadata : Metadata
            Of `read_metadata`.
        is_coordinator : bool
        *args, **kwargs
            What later versions add; use_collectives must not be False.

        Raises
        ------
        ValueError
            There is no path, use_collectives is False, or the checkpoint is not one of StorageWriter's.
        """
        self._alone(kwargs)
        self._stored = metadata.storage_data
        if not isinstance(self._stored, dict) or not all(isinstance(s, _Stored) for s in self._stored.values()):
            raise ValueError(f"{self._directory()!r} has a checkpoint that lanefs.torch.StorageWriter did not write: read it with the reader of its writer")

    init = set_up_storage_reader  # its name before PyTorch 2.0

    def prepare_global_plan(self, plans):
        """All ranks' plans as they are. torch.distributed.checkpoint calls it.

        Parameters
        ----------
        plans : list of LoadPlan

        Returns
        -------
        list of LoadPlan
        """
        return plans

    def read_data(self, plan, planner):
        """Reads what a rank wants, by one batch for each file. torch.distributed.checkpoint calls it.

        Parameters
        ----------
        plan : LoadPlan
        planner : LoadPlanner

        Returns
        -------
        torch.futures.Future of None
            It is done.

        Raises
        ------
        NotLaneFS
            The directory is not on a LaneFS mount, and fallback is false.
        ValueError
            There is no path; a file is not in the directory, or not as long as the checkpoint says; shapes do not agree.
        EOFError
            A file became shorter meanwhile.
        OSError
            A file cannot be read.
        """
        files = collections.defaultdict(list)
        for item in plan.items:
            stored = self._stored[item.storage_index]
            if os.path.basename(stored.file) != stored.file:
                raise ValueError(f"{self._directory()!r}: .metadata names {stored.file!r}, which is not in the directory")
            files[stored.file].append((item, stored))
        for name, items in files.items():
            with _file.File(os.path.join(self._directory(), name), "r", self._fallback) as f:
                _read(f, items, planner)
        done = Future()
        done.set_result(None)
        return done


def _read(f, items, planner):
    if any(s.offset + s.length > f.size for _, s in items):
        raise ValueError(f"{f.path!r} has {f.size} bytes, and the checkpoint more")
    straight, aside, held = [], [], 0
    for item, s in items:
        if item.type == _planner.LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(_bytes(f, s)))
            continue
        target = planner.resolve_tensor(item)
        into, lengths, offsets = target.detach(), tuple(item.lengths), tuple(item.storage_offsets)
        if tuple(into.shape) != lengths:
            raise ValueError(f"{item.storage_index.fqn!r}: a tensor of shape {tuple(into.shape)} for a part of {lengths}")
        dtype = getattr(torch, s.dtype.rpartition(".")[2])
        rows = (offsets[0], lengths[0]) if s.shape else (0, 1)
        row = s.length // max(1, s.shape[0] if s.shape else 1)
        at = s.offset + rows[0] * row
        if into.dtype == dtype and into.is_contiguous() and not _stage.lazy(into) and lengths[1:] == s.shape[1:]:
            straight.append((into, at, item, target))
            continue
        whole = torch.empty((rows[1], *s.shape[1:]) if s.shape else (), dtype=dtype, device=into.device)
        aside.append((whole, at, item, target, offsets, lengths))
        held += rows[1] * row
        if held > _ASIDE:
            _place(f, aside, planner)
            aside, held = [], 0
    _pieces.read(f, [(t, at) for t, at, _, _ in straight])
    for _, _, item, target in straight:
        planner.commit_tensor(item, target)
    _place(f, aside, planner)


def _bytes(f, stored):
    """Of an item that is no tensor. One call of the system's gives 2 GiB at most."""
    raw = bytearray(stored.length)
    view, at = memoryview(raw), stored.offset
    while view:
        n = os.preadv(f.fd, [view], at)
        if n == 0:
            raise EOFError(f"{f.path!r} ends at {at}, within {stored.length} bytes at {stored.offset}")
        view, at = view[n:], at + n
    return raw


def _place(f, aside, planner):
    """Reads rows beside their tensors, and copies what is wanted of them."""
    _pieces.read(f, [(whole, at) for whole, at, *_ in aside])
    for whole, _, item, target, offsets, lengths in aside:
        for dim in range(1, len(lengths)):
            whole = whole.narrow(dim, offsets[dim], lengths[dim])
        target.detach().copy_(whole)
        planner.commit_tensor(item, target)
