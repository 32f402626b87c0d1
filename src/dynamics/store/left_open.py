"""Files that their writer has not closed: are they still written to, and how are they read if not.

A writer marks its file as open in the superblock (HDF5 file format, version 3) and clears the mark when it closes the
file. HDF5 opens a marked file for single-writer-multiple-readers (SWMR) alone, and such a reader neither knows where
the file ends nor ever gives up on a block that is damaged: it tries again, and waits twice as long each time. That is
right while the writer is at work and wrong for a file of a dead writer, or of a stranger. So a writer of ours also
holds a shared lock on its file, which the system drops when the writer dies; and a marked file that nobody holds is
shown to HDF5 as its writer would have left it after closing it.
"""

from __future__ import annotations

import io
import os
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import h5py

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

WriterState = Literal["at work", "gone", "unknown"]

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK_BYTES = 48
"""Superblock of version 3 with 8-byte addresses: the only one that SWMR writers make."""
_FLAGS, _END, _CHECKSUM = 11, slice(28, 36), slice(44, 48)
_MARKS = 0x01 | 0x04
_WORD = 0xFFFFFFFF


class WriterLock:
    """A shared lock on a file, held until `release` or the death of the process; a no-op where there are no locks."""

    def __init__(self, path: Path) -> None:
        # Not HDF5's own descriptor, whose lock HDF5 takes and drops as it likes.
        descriptor = os.open(path, os.O_RDONLY)
        self._closer = weakref.finalize(self, os.close, descriptor)
        if fcntl is not None:
            # Shared: a reader that HDF5 opens plainly takes a shared lock too, and must not be kept out. A file system
            # without locks raises; `writer_state` says "unknown" there.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        _held.add(self)

    def release(self) -> None:
        """Give the lock back."""
        self._closer()


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_locks() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    # A data-loading worker that outlives its killed parent must not pass for the writer.
    os.register_at_fork(after_in_child=_forget_locks)


def take_exclusively(descriptor: int) -> WriterState:
    """Lock an open file for its descriptor alone if no writer holds it, and say how that went."""
    if fcntl is None:
        return "unknown"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "at work"
    except OSError:
        return "unknown"
    return "gone"


def writer_state(path: Path) -> WriterState:
    """Return whether the writer of a marked file lives; ``"unknown"`` on a file system without locks."""
    with path.open("rb") as file:
        for _ in range(5):
            if (state := take_exclusively(file.fileno())) != "at work":
                break
            # Perhaps just another one who asks.
            time.sleep(0.002)
        return state


def is_marked(head: bytes) -> bool:
    """Return whether a file that starts like this is marked as open for writing."""
    return len(head) >= 12 and head.startswith(_SIGNATURE) and head[8] == 3 and bool(head[_FLAGS] & _MARKS)


def left_open(path: Path) -> bool:
    """Return whether a file is marked as open for writing."""
    with path.open("rb") as file:
        return is_marked(file.read(12))


def open_hdf5(path: Path, mode: str, **options: Any) -> h5py.File:
    """Open a file, also on a file system without locks."""
    try:
        return h5py.File(path, mode, **options)
    except OSError as error:
        # 11: there are locks, and another program holds one.
        if "unable to lock file" not in str(error) or "errno = 11," in str(error):
            raise
        if os.environ.get("HDF5_USE_FILE_LOCKING", "").upper() in ("TRUE", "1"):
            raise OSError("HDF5_USE_FILE_LOCKING asks for locks, which this file system lacks; unset it") from error
        return h5py.File(path, mode, locking=False, **options)


def open_beside_writer(path: Path) -> h5py.File:
    """Open a file for reading whose writer is at work."""
    file = open_hdf5(path, "r", libver="latest", swmr=True)
    if fcntl is not None:
        # HDF5 leaves a lock of the reader's on the file, which would pass for the writer's once that is dead.
        with suppress(OSError):
            fcntl.flock(file.id.get_vfd_handle(), fcntl.LOCK_UN)
    return file


def open_left_behind(path: Path) -> h5py.File:
    """Open a file that nobody writes to any more for reading, whether or not it is marked as open."""
    return h5py.File(_Unmarked(path), "r")


class _Unmarked(io.RawIOBase):
    """A file's bytes, but with the superblock that the writer would have written at closing."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._file = path.open("rb", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size
        self._head = _closed(self._file.read(_SUPERBLOCK_BYTES), self._size)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(self._at)
        read = 0
        while read < len(view) and (more := self._file.readinto(view[read:])):
            read += more
        if read < len(view):
            raise OSError(f"the file ends before byte {self._at + len(view)}")
        covered = self._head[self._at : self._at + read]
        view[: len(covered)] = covered
        self._at += read
        return read

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _closed(head: bytes, size: int) -> bytes:
    """Return a superblock without marks, whose end is the end of the file; one without marks is given back."""
    if not is_marked(head) or len(head) < _SUPERBLOCK_BYTES or head[9] != 8:
        return head
    if checksum(head[: _CHECKSUM.start]) != int.from_bytes(head[_CHECKSUM], "little"):
        # For HDF5 to refuse.
        return head
    mended = bytearray(head)
    # A file that is shorter than when its writer went to work stays so, for HDF5 to refuse.
    if int.from_bytes(head[_END], "little") <= size:
        mended[_END] = size.to_bytes(8, "little")
    mended[_FLAGS] &= ~_MARKS & 0xFF
    mended[_CHECKSUM] = checksum(bytes(mended[: _CHECKSUM.start])).to_bytes(4, "little")
    return bytes(mended)


def checksum(data: bytes) -> int:
    """Return the checksum of HDF5 metadata: Bob Jenkins' lookup3 (``hashlittle``) with initial value 0."""
    a = b = c = (0xDEADBEEF + len(data)) & _WORD
    padded = data.ljust(-(-len(data) // 12) * 12, b"\0")
    words = [int.from_bytes(padded[at : at + 4], "little") for at in range(0, len(padded), 4)]
    for at in range(0, len(words) - 3, 3):
        a, b, c = (a + words[at]) & _WORD, (b + words[at + 1]) & _WORD, (c + words[at + 2]) & _WORD
        a = ((a - c) & _WORD) ^ _turned(c, 4)
        c = (c + b) & _WORD
        b = ((b - a) & _WORD) ^ _turned(a, 6)
        a = (a + c) & _WORD
        c = ((c - b) & _WORD) ^ _turned(b, 8)
        b = (b + a) & _WORD
        a = ((a - c) & _WORD) ^ _turned(c, 16)
        c = (c + b) & _WORD
        b = ((b - a) & _WORD) ^ _turned(a, 19)
        a = (a + c) & _WORD
        c = ((c - b) & _WORD) ^ _turned(b, 4)
        b = (b + a) & _WORD
    if not words:
        return c
    a, b, c = (a + words[-3]) & _WORD, (b + words[-2]) & _WORD, (c + words[-1]) & _WORD
    c = ((c ^ b) - _turned(b, 14)) & _WORD
    a = ((a ^ c) - _turned(c, 11)) & _WORD
    b = ((b ^ a) - _turned(a, 25)) & _WORD
    c = ((c ^ b) - _turned(b, 16)) & _WORD
    a = ((a ^ c) - _turned(c, 4)) & _WORD
    b = ((b ^ a) - _turned(a, 14)) & _WORD
    return ((c ^ b) - _turned(b, 24)) & _WORD


def _turned(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (32 - bits))) & _WORD
