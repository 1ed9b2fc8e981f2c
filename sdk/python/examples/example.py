"""Writes a checkpoint to a LaneFS mount, loads it back into device memory, and sees it change.

    python3 example.py /mnt/models
"""

import os
import struct
import sys

import lanefs


def main(directory):
    path = os.path.join(directory, "example.safetensors")
    bias = struct.pack("<4f", 1, 2, 3, 4)

    # A tensor's bytes, by way of device memory of our own.
    with lanefs.open(os.path.join(directory, "example.bin"), "w") as f:
        with f.alloc(len(bias)) as memory:
            fill(memory, bias)
            f.commit(memory)
        with f.map() as memory:
            tensor = lanefs.Tensor(memory, "F32", [4], 0, len(bias))
            if memory.memory.view is None:
                import torch
                tensor = torch.from_dlpack(memory).view(torch.float32)
            lanefs.save({"bias": tensor}, path, {"step": 1})

    tensors = lanefs.load_safetensors(path)
    print("loaded", sorted(tensors), "at generation", tensors.generation, tensors.metadata)
    lanefs.save(dict(tensors), path, {"step": 2})
    print("still the file's bytes:", tensors.current)
    print("now:", lanefs.load_safetensors(path).metadata)
    os.unlink(os.path.join(directory, "example.bin"))


def fill(memory, data):
    if memory.memory.view is not None:
        memory.memoryview()[:] = data
    else:
        import torch
        torch.from_dlpack(memory).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


if __name__ == "__main__":
    main(sys.argv[1])
