"""Damage run files in every way that a disk, a transfer or a stranger might; run as a script, read such files.

    python -m tests.store.mutations FILE...

prints a line for each file: its name, ``refused`` and the message, ``read`` and a digest of all that is in it, or
``raised`` and what came instead of our error. Reading runs under limits of memory and time, which end the process.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import signal
import sys
from pathlib import Path

import h5py

from dynamics.errors import RunFileError
from dynamics.store import open_run
from dynamics.store.left_open import checksum

MEMORY, CPU_SECONDS, SECONDS = 2 << 30, 10, 60
FLAGS, MARKED, SUPERBLOCK = 11, 0x05, 44
BLOCK = 512


def headers(data: bytes) -> list[tuple[int, int, int]]:
    """Object headers (HDF5 file format, version 2): where each starts, where its messages start, where they end."""
    found, at = [], data.find(b"OHDR")
    while at >= 0:
        flags = data[at + 5]
        begin = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        end = begin + width + int.from_bytes(data[begin : begin + width], "little")
        if checksum(data[at:end]).to_bytes(4, "little") == data[end : end + 4]:
            found.append((at, begin + width, end))
        at = data.find(b"OHDR", at + 1)
    return found


def heaps(data: bytes) -> list[tuple[int, int]]:
    """Global heap collections: where each starts and ends."""
    found, at = [], data.find(b"GCOL\x01\0\0\0")
    while at >= 0:
        found.append((at, at + int.from_bytes(data[at + 8 : at + 16], "little")))
        at = data.find(b"GCOL\x01\0\0\0", at + 1)
    return found


def unprotected(path: Path) -> list[tuple[int, int]]:
    """What neither a checksum of HDF5's nor one of deflate's covers: plain numbers and heaps of text."""
    found = heaps(path.read_bytes())

    def look(name: str, item: h5py.HLObject) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.chunks is None:
            found.append((item.id.get_offset() or 0, (item.id.get_offset() or 0) + item.id.get_storage_size()))
        elif item.compression is None:
            chunks = [item.id.get_chunk_info(index) for index in range(item.id.get_num_chunks())]
            found.extend((chunk.byte_offset, chunk.byte_offset + chunk.size) for chunk in chunks)

    with h5py.File(path, "r") as file:
        file.visititems(look)
    return found


def _sign(data: bytearray, start: int, end: int) -> None:
    data[end : end + 4] = checksum(bytes(data[start:end])).to_bytes(4, "little")


def flip(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice([1, 4, 64])):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def truncate(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def blank(data: bytearray, dice: random.Random) -> None:
    start, length = dice.randrange(len(data)), dice.choice([16, BLOCK, 8 * BLOCK])
    data[start : start + length] = bytes(len(data[start : start + length]))


def swap(data: bytearray, dice: random.Random) -> None:
    a, b = (BLOCK * dice.randrange(len(data) // BLOCK) for _ in "ab")
    data[a : a + BLOCK], data[b : b + BLOCK] = data[b : b + BLOCK], data[a : a + BLOCK]


def superblock(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice([1, 2, 8])):
        data[dice.randrange(8, SUPERBLOCK)] = dice.randrange(256)
    if dice.random() < 0.7:
        _sign(data, 0, SUPERBLOCK)


def left_open(data: bytearray, dice: random.Random) -> None:
    """Mark as open for SWMR writing, and cut or flip: HDF5's own reader would search it for ever."""
    data[FLAGS] = MARKED
    if dice.random() < 0.5:
        # As a writer that grew the file would have left it.
        data[28:36] = (4096).to_bytes(8, "little")
    _sign(data, 0, SUPERBLOCK)
    for _ in range(dice.randrange(4)):
        data[dice.randrange(48, len(data))] ^= 1 << dice.randrange(8)
    del data[dice.randrange(48, len(data)) :]


def header(data: bytearray, dice: random.Random) -> None:
    """Random bytes in an object header, signed again, so that HDF5 believes them."""
    start, begin, end = dice.choice(headers(bytes(data)))
    for _ in range(dice.choice([1, 1, 2, 4])):
        data[dice.randrange(begin, end)] = dice.randrange(256)
    _sign(data, start, end)


def heap(data: bytearray, dice: random.Random) -> None:
    start, end = dice.choice(heaps(bytes(data)))
    for _ in range(dice.choice([1, 2, 8])):
        data[start + 8 + dice.randrange(dice.choice([8, 64, end - start - 8]))] = dice.choice([0, 255, 8, 16])


HONEST = (flip, truncate, blank, swap)
"""What chance does; the others are made to be believed, so that what they change may be read."""
ALL = (*HONEST, superblock, left_open, header, header, heap)


def mutate(data: bytes, number: int) -> tuple[str, bytes]:
    mutation = ALL[number % len(ALL)]
    mutated = bytearray(data)
    mutation(mutated, random.Random(number))
    return mutation.__name__, bytes(mutated)


def digest(path: Path) -> str:
    """Read all that there is in a run file."""
    seen = hashlib.sha256()
    with open_run(path) as run:
        seen.update(repr((run.metadata, run.finished, run.components, run.baselines, run.methods)).encode())
        for group in (run.snapshots, run.train, run.metrics, run.faithfulness, run.synergy):
            if group is None:
                continue
            dataset = group.to_xarray()
            seen.update(repr((group.name, group.steps.tolist(), sorted(dataset.sizes.items()))).encode())
            for name, values in sorted(dataset.variables.items()):
                seen.update(repr((name, values.dims, values.dtype, values.attrs)).encode())
                seen.update(
                    values.to_numpy().tobytes() if values.dtype != object else repr(values.values.tolist()).encode()
                )
    return seen.hexdigest()


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in sys.argv[1:]:
        print(name, end=" ", flush=True)
        signal.alarm(SECONDS)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            answer = f"read {digest(Path(name))}"
        except RunFileError as error:
            answer = f"refused {json.dumps(str(error))}"
        except Exception as error:
            answer = f"raised {json.dumps(repr(error))}"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
