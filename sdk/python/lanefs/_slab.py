"""A slab's file (docs/SPEC.md, "Slabs"): header, index, slots. Its bytes, not its rules."""

import os
import secrets
import struct
import zlib

from . import _temporary

MAGIC = b"LANEFSKV"
VERSION = 1
ALIGN = 4096  # of the index, the slots and their size

HEADER = struct.Struct("<8sII16sQQQQ")  # magic, version, CRC, id, slot size, slots, offset of the index, of the slots
ENTRY = struct.Struct("<IIQQQ32sI60x")  # magic, CRC, generation, length, sum, key, flags
ENTRY_MAGIC = 0x3145564B                # "KVE1"
SUMMED = 1                              # flag: the entry has a sum
FREE = bytes(ENTRY.size)
MOST = 1 << 61                          # bytes; a slab has fewer
LAST = 1 << 63                          # no commit has this generation: what says so is damage, and nothing could follow it

assert HEADER.size == 64 and ENTRY.size == 128


class Layout:
    """Where things are in a slab, in bytes."""

    def __init__(self, ident, slot_size, slots, index, data):
        self.ident, self.slot_size, self.slots, self.index, self.data = ident, slot_size, slots, index, data

    @property
    def size(self):
        return self.data + self.slots * self.slot_size

    def slot(self, n):
        return self.data + n * self.slot_size

    @classmethod
    def new(cls, slot_size, slots):
        slot_size = -(-slot_size // ALIGN) * ALIGN
        index = -(-slots * ENTRY.size // ALIGN) * ALIGN
        layout = cls(secrets.token_bytes(16), slot_size, slots, ALIGN, ALIGN + index)
        if layout.size >= MOST:
            raise ValueError(f"a slab of {slots} slots of {slot_size} bytes")
        return layout

    def header(self):
        fields = [MAGIC, VERSION, 0, self.ident, self.slot_size, self.slots, self.index, self.data]
        fields[2] = zlib.crc32(HEADER.pack(*fields))
        return HEADER.pack(*fields).ljust(ALIGN, b"\0")

    @classmethod
    def parse(cls, raw, path):
        """ValueError if it is no header."""
        if len(raw) < HEADER.size or raw[:8] != MAGIC:
            raise ValueError(f"{path!r} is no slab: it does not begin with {MAGIC.decode()}")
        magic, version, crc, *rest = HEADER.unpack_from(raw)
        if version != VERSION:
            raise ValueError(f"{path!r} is a slab of version {version}, and this is version {VERSION}")
        if zlib.crc32(HEADER.pack(magic, version, 0, *rest)) != crc:
            raise ValueError(f"{path!r}: the slab's header is damaged")
        layout = cls(*rest)
        if (not layout.slots or not layout.slot_size or layout.slot_size % ALIGN or layout.index != ALIGN or layout.size >= MOST
                or layout.data != ALIGN + -(-layout.slots * ENTRY.size // ALIGN) * ALIGN):
            raise ValueError(f"{path!r}: the slab's header is not one that LaneFS writes")
        return layout

    def entry(self, slot, generation, length, total, key):
        """The bytes of a slot's entry. total is None where there is no sum."""
        fields = [ENTRY_MAGIC, 0, generation, length, total or 0, key, 0 if total is None else SUMMED]
        fields[1] = self._crc(slot, ENTRY.pack(*fields))
        return ENTRY.pack(*fields)

    def parse_entry(self, slot, raw):
        """generation, length, sum, key; None if the slot is free or its entry damaged."""
        magic, crc, generation, length, total, key, flags = ENTRY.unpack(raw)
        if magic != ENTRY_MAGIC or length > self.slot_size or generation >= LAST or crc != self._crc(slot, raw[:4] + bytes(4) + raw[8:]):
            return None
        return generation, length, total if flags & SUMMED else None, key

    def _crc(self, slot, raw):
        """Of the entry and of where it belongs: an entry elsewhere, or of another slab, is none."""
        return zlib.crc32(raw, zlib.crc32(self.ident + struct.pack("<Q", slot)))


def create(path, layout):
    """Makes the file: whole, or not at all. FileExistsError if there is one."""
    with _temporary.made(path) as (name, fd):
        os.posix_fallocate(fd, 0, layout.size)
        os.pwrite(fd, layout.header(), 0)
        os.fsync(fd)
        os.link(name, path)  # not rename, which would replace another's
    _temporary.sync_directory(path)
