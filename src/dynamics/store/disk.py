"""Ask the disk for room before HDF5 writes: HDF5 does not survive a write that fails."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_SPARE_BYTES = 262_144
"""Room for HDF5's own records of a row."""


def require_room(handle: int, folder: Path, needed: int) -> None:
    """Raise `OSError` unless an open file can grow by ``needed`` bytes and some spare for HDF5's own records."""
    wanted = needed + _SPARE_BYTES
    if hasattr(os, "posix_fallocate"):
        size = os.fstat(handle).st_size
        os.posix_fallocate(handle, size, wanted)
        # Blocks beyond the end that HDF5 knows of are harmless, but would add up row by row.
        os.ftruncate(handle, size)
    elif (free := shutil.disk_usage(folder).free) < wanted:
        raise OSError(f"{free} bytes are free on its disk, {wanted} are needed")
