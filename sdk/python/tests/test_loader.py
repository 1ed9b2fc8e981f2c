"""torch.utils.data.DataLoader with workers, on a mount with the host runtime: LANEFS_TEST_DIR is its directory. Run by the Go test beside this, where PyTorch is.

A dataset whose workers open the file works however they begin; one that has it open already works where all that they use is a mapping that they inherit, and is told else.
"""

import os
import signal
import unittest

import lanefs
import torch
from torch.utils.data import DataLoader, Dataset

FILE = os.path.join(os.environ["LANEFS_TEST_DIR"], "loader")
SLAB = FILE + " slab"
ITEMS, SIZE = 16, 4096


class Opens(Dataset):
    """Each worker opens the file."""

    file = None

    def __len__(self):
        return ITEMS

    def __getitem__(self, i):
        if self.file is None:
            self.file = lanefs.open(FILE)
        t = torch.empty(SIZE, dtype=torch.uint8)
        assert self.file.read_into(t, i * SIZE) == SIZE
        return t


class IsOpen(Opens):
    def __init__(self):
        self.file = lanefs.open(FILE)
        self.file.read_into(bytearray(1))


class Mapped(IsOpen):
    def __init__(self):
        super().__init__()
        self.tensor = torch.from_dlpack(self.file.map())

    def __getitem__(self, i):
        return self.tensor[i * SIZE:(i + 1) * SIZE]


class OpensSlab(Opens):
    slab = None

    def __getitem__(self, i):
        if self.slab is None:
            self.slab = lanefs.kv.Slab(SLAB, mode="r")
        t = torch.empty(SIZE, dtype=torch.uint8)
        assert self.slab.get(i, t) == SIZE
        return t


class SlabIsOpen(OpensSlab):
    def __init__(self):
        self.slab = lanefs.kv.Slab(SLAB, mode="r")


class Loader(unittest.TestCase):
    def setUp(self):
        signal.alarm(300)  # nothing hangs
        self.want = torch.randint(256, (ITEMS, SIZE), dtype=torch.uint8)
        with open(FILE, "wb") as f:
            f.write(self.want.numpy().tobytes())
        with lanefs.kv.Slab(SLAB, SIZE, ITEMS) as slab:
            slab.put_batch(range(ITEMS), self.want, range(0, ITEMS * SIZE, SIZE), [SIZE] * ITEMS)

    def load(self, dataset, method, persistent=True):
        loader = DataLoader(dataset, batch_size=5, num_workers=2, multiprocessing_context=method, persistent_workers=persistent)
        for _ in range(2):
            self.assertTrue(torch.equal(torch.cat(list(loader)), self.want), type(dataset).__name__)

    def test_fork(self):
        for dataset in Opens(), OpensSlab(), Mapped():
            for persistent in True, False:
                self.load(dataset, "fork", persistent)
        with lanefs.open(FILE) as f, lanefs.kv.Slab(SLAB, mode="r") as slab:  # beside what the parent uses itself
            t = torch.empty(SIZE, dtype=torch.uint8)
            f.read_into(t), slab.get(0, t)
            self.load(Opens(), "fork")
            self.load(OpensSlab(), "fork")
            self.assertEqual((f.read_into(t), slab.get(3, t), t.tolist()), (SIZE, SIZE, self.want[3].tolist()))
        for dataset, text in (IsOpen(), "open it again"), (SlabIsOpen(), "open it again when that has closed it"):
            self.assertRaisesRegex(PermissionError, text, self.load, dataset, "fork")

    def test_others(self):
        for method in "spawn", "forkserver":
            self.load(Opens(), method)
            for dataset in IsOpen(), Mapped(), SlabIsOpen():
                self.assertRaisesRegex(TypeError, "neither copied nor sent to another, which opens", self.load, dataset, method)


if __name__ == "__main__":
    unittest.main(verbosity=2)
