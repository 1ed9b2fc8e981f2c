"""Ranges of a file to tensors: one batch for each device, whatever it has of ranges."""

import collections
import os

import torch


def read(file, ranges):
    """Reads ranges of a file.

    Parameters
    ----------
    file : lanefs.File
    ranges : list of (tensor, int)
        A contiguous tensor, on any device, and the offset in bytes of its bytes in the file. Tensors do not overlap.

    Raises
    ------
    EOFError
        The file ends before a range.
    OSError
        The file or the memory cannot be read or written.
    """
    devices = collections.defaultdict(list)
    for tensor, offset in ranges:
        n = tensor.numel() * tensor.element_size()
        if n:
            devices[tensor.device].append((tensor, offset, n))
    for device, parts in devices.items():
        if device.type != "cpu" and (file.session is None or device.type != "cuda"):  # no lanes, or none that reach it: by the CPU's memory
            host = [(torch.empty_like(t, device="cpu"), o, n) for t, o, n in parts]
            _read(file, host, 0)
            for (t, _, _), (h, _, _) in zip(parts, host):
                t.copy_(h)
            continue
        _read(file, parts, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0)


def _read(file, parts, stream):
    base = min(t.data_ptr() for t, _, _ in parts)  # a batch's memory has one address, from which its pieces count
    lengths = [n for _, _, n in parts]
    got = file.read_batch(base, [o for _, o, _ in parts], [t.data_ptr() - base for t, _, _ in parts], lengths, stream=stream)
    for (_, offset, n), done in zip(parts, got):
        if done < 0:
            raise OSError(-done, os.strerror(-done), file.path)
        if done < n:
            raise EOFError(f"{file.path!r} ends at {offset + done}, within {n} bytes at {offset}")


def state(file):
    """Values that change when the file does."""
    st = os.fstat(file.fd)
    return st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns
