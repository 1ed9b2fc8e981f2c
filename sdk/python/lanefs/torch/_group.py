"""A file to all ranks of a group, read once.

 1. each rank begins to read its parts, and reads the header meanwhile; all compare what they saw
 2. for every chunk of the file: each rank reads its part of it, into memory that the daemon
    has, or by a stage, some chunks ahead                                                     (ranks in parallel)
 3. the group gathers the parts                                                               (while 2 goes on with the next chunk)
 4. the chunk's bytes are copied to the tensors that they belong to                           (likewise)
 5. all compare what they saw, again

A rank that fails goes on with the collective calls, so that no rank waits for it, and all raise at the end.
"""

import contextlib
import hashlib
import os

import torch
import torch.distributed as dist

from .. import _file
from . import _ahead, _files, _pieces, _slots

CHUNK = 256 << 20  # bytes of the file, at most


def load(filename, device, group, fallback):
    """See load_file."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("group=… needs torch.distributed.init_process_group first")
    if dist.get_rank(group) < 0:
        raise ValueError("this rank is not in the group")
    error = job = None
    try:
        job = _Job(filename, device, group, fallback)
    except Exception as e:
        error = e
    try:
        _agree(group, device, error, job and job.seen, filename)
        _agree(group, device, job.run() or job.changed(), None, filename)
        return job.tensors
    finally:
        if job is not None:
            job.close()


def _agree(group, device, error, seen, filename):
    """All ranks raise, or none does. Of a rank that has an error or has seen something else, they say what."""
    digest = hashlib.sha256(repr(seen).encode()).digest()
    words = [int.from_bytes(digest[i:i + 8], "little") >> 2 for i in range(0, 32, 8)]
    backend = str(dist.get_backend(group))
    if "nccl" not in backend:
        device = torch.device("cpu")
    elif backend == "nccl" and device.type != "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    most = torch.tensor([error is not None, *words, *(-w for w in words)], dtype=torch.int64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    failed, *most = most.tolist()
    if not failed and all(a == -b for a, b in zip(most[:4], most[4:])):
        return
    said = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, None if error is None else f"{type(error).__name__}: {error}", group=group)
    if error is not None:
        raise error
    failed = [f"rank {i} of the group: {text}" for i, text in enumerate(said) if text is not None]
    if failed:
        raise OSError(f"{os.fspath(filename)!r} was not loaded: {'; '.join(failed)}")
    raise OSError(f"{os.fspath(filename)!r} is not the same file on all ranks of the group")


class _Chunk:
    """A buffer of one chunk of the file, in equal parts, one of each rank."""

    def __init__(self, part, ranks, device):
        self.bytes = torch.empty(part * ranks, dtype=torch.uint8, device=device)
        self.parts = list(self.bytes.split(part))


class _Job:
    """One rank's share of a load. All memory is there when the constructor returns, so that the rest fails only by the file or the group."""

    def __init__(self, filename, device, group, fallback):
        self._group, self._ranks, self._rank = group, dist.get_world_size(group), dist.get_rank(group)
        self._cuda = device.type == "cuda"
        backend = str(dist.get_backend(group))  # one, or one for each kind of device
        self._flat = self._cuda and "nccl" in backend  # gloo gathers into a list only
        if backend == "nccl" and not self._cuda:
            raise ValueError(f"a group of NCCL's gathers on CUDA devices, not on {device}")
        self.file = f = _file.File(filename, "r", fallback)
        self._reads, self._works = None, {}
        try:
            self.was = _pieces.state(f)
            size = f.size  # from now on, whatever becomes of it: ranks that agree on it take as many chunks
            begins = self._base = _files.data_begins(f, size)
            self._before = self._base % _slots.ALIGN  # bytes of the header in the first chunk
            self._base -= self._before
            self._size = size - self._base
            part = min(min(CHUNK, self._size) // self._ranks, _slots.PART)  # of a chunk of that size, then
            self._part = max(_slots.ALIGN, -(-part // _slots.ALIGN) * _slots.ALIGN)
            self._step = self._part * self._ranks
            self._starts = range(0, self._size, self._step)
            if self._cuda:
                self._stream = torch.cuda.current_stream(device)
            self._start(device, _slots.AHEAD)
            # While the drive reads:
            base, entries, _ = _files.header(f, size)
            if base != begins:
                raise self._was_changed()
            self.seen = size, base, sorted(entries.items())
            try:
                self._allocate(entries, device)
            except RuntimeError:  # torch.OutOfMemoryError is one. The memory for parts is what the tensors want, perhaps
                self._stop()
                _slots.kept.drop()
                self._start(device, 1)
                self._allocate(entries, device)
        except BaseException:
            self.close()
            raise

    def _start(self, device, ahead):
        """Begins to read, so many parts ahead at most."""
        self._error = None  # the first of this rank's reads
        where = self.file, device, self._part, len(self._starts), ahead
        self._reads = _slots.Slots.of(*where) or _ahead.Ahead.of(*where)
        for i in range(min(self._reads.ahead, len(self._starts))):
            self._try(self._begin, i)

    def _stop(self):
        self.tensors = self._where = self._chunks = None
        try:
            self._reads.close()
        finally:
            self._reads = None

    def _allocate(self, entries, device):
        self.tensors = _files.empty(entries, device, self.file.path)
        self._where = _slots.Where(entries, self.tensors)
        self._chunks = [_Chunk(self._part, self._ranks, device) for _ in range(2 if self._size > self._step else 1)]

    def run(self):
        """Loads. Returns the error of this rank's reads, after which it reads no more."""
        starts, used = self._starts, []  # used: an event for each chunk that was taken
        for i in range(len(starts)):
            self._try(self._reads.finish, i)  # after an error, too: the daemon is not to write to memory that is used again
            self._gather(i)
            if i > 0:
                used.append(self._take(i - 1))
            if (then := i + self._reads.ahead) < len(starts):
                if self._cuda and (last := self._reads.before(then)) >= 0:
                    used[last].synchronize()  # it has left its slot
                self._try(self._begin, then)
        if starts:
            self._take(len(starts) - 1)
        return self._error

    def changed(self):
        """An error if the file is another by now, or cannot be asked."""
        try:
            now = _pieces.state(self.file)
        except OSError as e:  # the daemon has ended: the other ranks wait to hear of it
            return e
        return None if now == self.was else self._was_changed()

    def _was_changed(self):
        return OSError(f"{self.file.path!r} was changed while it was loaded")

    def close(self):
        if self._reads is not None:
            for work in self._works.values():  # what gathers from the slots
                with contextlib.suppress(Exception):  # of a group that has failed
                    work.wait()
            if self._cuda:
                self._stream.synchronize()
            self._reads.close()
        self.file.close()
        self.tensors = self._where = self._chunks = None  # an error's frames have this object, and are freed by a collection only
        self._works.clear()

    def _try(self, step, *args):
        try:
            step(*args)
        except Exception as e:
            self._error = self._error or e

    def _begin(self, i):
        """Begins to read this rank's part of chunk i, which may have none at the file's end."""
        begin = i * self._step + self._rank * self._part
        n = min(self._part, self._size - begin)
        if n > 0 and self._error is None:
            self._reads.begin(i, self._base + begin, n)

    def _gather(self, i):
        """Begins to gather chunk i."""
        chunk, mine = self._chunks[i % len(self._chunks)], self._reads.tensor(i)
        # On CUDA it comes after what is on the stream: the copies out of the chunk that had this memory, not those of the last chunk.
        if self._flat:
            self._works[i] = dist.all_gather_into_tensor(chunk.bytes, mine, group=self._group, async_op=True)
        else:
            self._works[i] = dist.all_gather(chunk.parts, mine.clone(), group=self._group, async_op=True)

    def _take(self, i):
        """Copies chunk i to its tensors. Returns an event behind that, on CUDA."""
        chunk, at = self._chunks[i % len(self._chunks)], self._starts[i]
        self._works[i].wait()  # on CUDA the stream waits
        del self._works[i]
        self._where.copy(chunk.bytes, at - self._before, min(self._step, self._size - at))
        if not self._cuda:
            return None
        event = torch.cuda.Event()
        event.record(self._stream)
        return event
