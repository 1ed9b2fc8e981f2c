"""Parts of a file that are read while those before them are used, into memory of one's own: for devices whose memory the daemon has none of."""

import contextlib
import queue
import threading
from concurrent.futures import Future

import torch

from . import _pieces, _slots

_THREADS = 2  # while the device takes what one has read, the other reads
_BATCH = 2    # parts in one batch, at most: the first of them is used when all are there


class Ahead(_slots.InTurn):
    """Two threads read the parts, those of smaller numbers first. Has the methods of Slots, which are called by one thread."""

    def __init__(self, file, device, part, chunks, ahead):
        self.ahead = ahead
        memory = torch.empty(part * _slots.slots_for(ahead, chunks), dtype=torch.uint8, device=device)
        self._file, self._device, self._tensors, self._reads = file, device, list(memory.split(part)), {}
        self._queue, self._closed, self._threads = queue.SimpleQueue(), False, []
        try:
            for _ in range(min(_THREADS, ahead)):
                stream = None
                if device.type == "cuda":
                    stream = torch.cuda.Stream(device)
                    stream.wait_stream(torch.cuda.current_stream(device))  # what used the memory before
                thread = threading.Thread(target=self._run, args=(stream,), name="lanefs-ahead", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, file, device, part, chunks):
        """With less memory where there is not enough. Raises what PyTorch does where there is not even that."""
        try:
            return cls(file, device, part, chunks, _slots.AHEAD)
        except RuntimeError:  # torch.OutOfMemoryError is one, and so are a thread's and the allocator's of the CPU
            return cls(file, device, part, chunks, 1)

    def close(self):
        """Waits for a read that is under way, whatever becomes of it. The caller has waited for what the device does with the memory."""
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._reads.clear()
        self._tensors = None

    def begin(self, i, offset, n):
        self._reads[i] = read = Future()
        self._queue.put((read, self.tensor(i)[:n], offset))

    def finish(self, i):
        """Waits for the read of part i. On CUDA the current stream waits."""
        read = self._reads.pop(i, None)
        event = read and read.result()
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)

    def _run(self, stream):
        while (first := self._queue.get()) is not None and not self._closed:
            batch = [first]
            with contextlib.suppress(queue.Empty):
                while len(batch) < _BATCH:
                    if (then := self._queue.get_nowait()) is None:
                        return
                    batch.append(then)
            event = error = None
            try:
                event = self._read(stream, [(memory, offset) for _, memory, offset in batch])
            except BaseException as e:
                error = e
            for read, _, _ in batch:
                if error is None:
                    read.set_result(event)
                else:
                    read.set_exception(error)

    def _read(self, stream, ranges):
        if stream is None:
            _pieces.read(self._file, ranges)
            return None
        torch.cuda.set_device(self._device)  # of this thread
        with torch.cuda.stream(stream):
            _pieces.read(self._file, ranges)
            event = torch.cuda.Event()
            event.record(stream)
        return event
