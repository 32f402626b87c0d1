"""Write a file so that whoever reads it finds the old or the new one, and never a part."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file under another name in its folder, and give it its own name once it is complete.

    A link is followed, and a file that is replaced keeps its permissions.

    Args:
        path: Where to.
        content: What it will hold; text is encoded in UTF-8.

    Raises:
        OSError: If it cannot be written. What was at the path is untouched, and nothing is left beside it.
    """
    target = path.resolve()
    # The process id: two commands may draw the same picture at once.
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode())
        with suppress(FileNotFoundError):
            shutil.copymode(target, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
