"""Parts of a file that are read while those before them are used, into memory of one's own: for devices whose memory the daemon has none of."""

import contextlib
import queue
import threading
from concurrent.futures import Future

import torch

from . import _pieces, _slots

_THREADS = 2      # while the device takes what one has read, the other reads
_PIECE = 8 << 20  # bytes of a part that are read together, at most
_BATCH = 4        # pieces in one batch, at most: as much as a client has of the stage. Batches of 48 MiB made 31 GB/s where those of 32 MiB made 38


class Ahead(_slots.InTurn):
    """Two threads read the parts, those of smaller numbers first. Has the methods of Slots, which are called by one thread."""

    def __init__(self, file, device, part, chunks, ahead):
        self.ahead = ahead
        memory = torch.empty(part * _slots.slots_for(ahead, chunks), dtype=torch.uint8, device=device)
        self._file, self._device, self._tensors, self._reads = file, device, list(memory.split(part)), {}
        self._queue, self._closed, self._threads, self._inference = queue.SimpleQueue(), False, [], torch.is_inference_mode_enabled()
        try:
            for _ in range(min(_THREADS, ahead)):
                stream = None
                if device.type == "cuda":
                    stream = torch.cuda.Stream(device)
                    stream.wait_stream(torch.cuda.current_stream(device))  # what used the memory before
                thread = threading.Thread(target=self._run, args=(stream,), name="lanefs-ahead", daemon=True)
                self._threads.append(thread)  # before it begins: an exception of a signal's handler may come as it does
                thread.start()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, file, device, part, chunks, most=_slots.AHEAD):
        """With less memory where there is not enough. Raises what PyTorch does where there is not even that."""
        try:
            return cls(file, device, part, chunks, most)
        except RuntimeError:  # torch.OutOfMemoryError is one, and so are a thread's and the allocator's of the CPU
            if most == 1:
                raise
            return cls(file, device, part, chunks, 1)

    def close(self):
        """Waits for a read that is under way, whatever becomes of it. The caller has waited for what the device does with the memory."""
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread.is_alive():  # else it has not begun, or cannot, and reads nothing
                thread.join()
        self._reads.clear()
        self._tensors = None

    def begin(self, i, offset, n):
        pieces = self.tensor(i)[:n].split(_PIECE)
        self._reads[i] = reads = [Future() for _ in pieces]
        for read, piece in zip(reads, pieces):
            self._queue.put((read, piece, offset))
            offset += len(piece)

    def finish(self, i):
        """Waits for the read of part i. On CUDA the current stream waits."""
        reads = self._reads.pop(i, ())
        for read in reads:
            read.exception()  # all have ended before the first that failed is told
        for read in reads:
            if (event := read.result()) is not None:
                torch.cuda.current_stream(self._device).wait_event(event)

    def _run(self, stream):
        with torch.inference_mode(self._inference):  # as in the thread that made the memory: outside nothing may be written to what was made inside
            self._carry_out(stream)
        if stream is not None:
            with contextlib.suppress(Exception):  # of a device that has failed
                stream.synchronize()  # a read returns before its bytes are there: no part that nobody has waited for comes to memory that is used again

    def _carry_out(self, stream):
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
                error = e.with_traceback(None)  # whose frames have the memory, for as long as somebody has the error
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
