"""Look over the one part of an HDF5 file in which HDF5 follows sizes blindly: its heaps of text and references.

Nearly all metadata of a run file carry checksums that HDF5 verifies. Global heap collections, which hold labels and
which axis belongs to which array, do not, and HDF5 walks from one object of theirs to the next by the sizes it finds:
an object of no size keeps it for ever.
"""

from __future__ import annotations

import mmap
from pathlib import Path

_START = b"GCOL\x01\0\0\0"
"""Signature, version and reserved bytes of a collection."""
_HEADER_BYTES = 16
"""Of a collection, and of each object in it."""
_SEARCHED = 1 << 26
"""Writers make their heaps before the first row, so near the start of the file."""


def heap_damage(path: Path) -> str | None:
    """Return what is wrong with the first damaged heap near the start of a file; ``None``: nothing."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if not size:
            return None
        with mmap.mmap(file.fileno(), min(size, _SEARCHED), access=mmap.ACCESS_READ) as view:
            at = view.find(_START)
            while at >= 0:
                if not _can_be_walked(view, at):
                    return f"the heap of texts at byte {at} is damaged"
                at = view.find(_START, at + 1)
    return None


def _can_be_walked(view: mmap.mmap, start: int) -> bool:
    end = start + int.from_bytes(view[start + 8 : start + 16], "little")
    at = start + _HEADER_BYTES
    # HDF5 notices by itself if a heap goes on beyond the end of the file.
    while at + _HEADER_BYTES <= min(end, len(view)):
        number, size = int.from_bytes(view[at : at + 2], "little"), int.from_bytes(view[at + 8 : at + 16], "little")
        # Object 0 is the free rest, whose size counts its own header.
        step = size if number == 0 else _HEADER_BYTES + -(-size // 8) * 8
        if step < _HEADER_BYTES or at + step > end:
            return False
        at += step
    return True
