"""Check that a run file is built like one before anything is read from it: it may come from a stranger.

Nothing here reads an array. Sizes, types and links are looked at, and compared with what the file really holds, so that
a file of a few bytes cannot ask for terabytes, for another file, or for code to be loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import h5py
import numpy as np

from dynamics.errors import RunFileError
from dynamics.store.schema import METRICS

MOST_TEXT = 4096
"""Bytes that a label, a unit or a meaning may have."""
MOST_METADATA = 1 << 26

_DEFLATE_FACTOR = 1032
"""What deflate can shrink at the very best, so what a byte in the file can at most become."""
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_LAYOUTS = {h5py.h5d.CHUNKED, h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT}


class Damage(ValueError):  # noqa: N818  # raised for the reader's own use; users see a RunFileError
    """What is wrong with a file."""


@dataclass(frozen=True)
class Layout:
    """How an array along ``step`` is laid out.

    Attributes:
        dims: Names of its axes.
        flag: Whether its numbers stand for booleans.
    """

    dims: tuple[str, ...]
    flag: bool


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn what HDF5, h5py and the checks raise into a `RunFileError` that names the file."""
    try:
        yield
    except RunFileError:
        raise
    except MemoryError as error:
        raise RunFileError(f"{path} holds more than fits into memory ({error}); read it row by row.") from error
    # h5py tells of damage in as many ways as there are places to meet it.
    except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        what = str(error.args[0] if isinstance(error, KeyError) else error).rstrip(".")
        raise RunFileError(f"{path} is a run file but incomplete or damaged: {what}.") from error


def text_attribute(item: h5py.HLObject, name: str, most: int = MOST_TEXT) -> str | None:
    """Return an attribute that must be text; ``None`` if there is none of this name, or it is no text."""
    if name not in item.attrs:
        return None
    attribute = item.attrs.get_id(name)
    if attribute.shape != () or h5py.check_string_dtype(attribute.dtype) is None:
        return None
    value = item.attrs[name]
    text = value.decode() if isinstance(value, bytes) else str(value)
    if len(text) > most:
        raise Damage(f"attribute {name!r} has {len(text)} characters; at most {most} are read")
    # Bytes that are no text come out of h5py as lone surrogates.
    text.encode()
    return text


def number_attribute(item: h5py.HLObject, name: str) -> int:
    """Return an attribute that must be a whole number."""
    if name not in item.attrs:
        raise Damage(f"there is no attribute {name!r}")
    attribute = item.attrs.get_id(name)
    if attribute.shape != () or attribute.dtype.kind not in "iub":
        raise Damage(f"attribute {name!r} is {_described(attribute)}, expected a whole number")
    return int(item.attrs[name])


def member(group: h5py.Group, name: str) -> h5py.HLObject:
    """Return what a hard link of a group leads to; soft and external links could lead anywhere."""
    link = group.get(name, getlink=True)
    if link is None:
        raise Damage(f"{group.name!r} has no {name!r}")
    if not isinstance(link, h5py.HardLink):
        raise Damage(f"{name!r} in {group.name!r} is a {type(link).__name__}, expected a hard link")
    return group[name]


def array(group: h5py.Group, name: str) -> h5py.Dataset:
    """Return an array of a group whose type, layout and filters are those of a run file."""
    item = member(group, name)
    if not isinstance(item, h5py.Dataset):
        raise Damage(f"{name!r} in {group.name!r} is a {type(item).__name__}, expected an array")
    if item.shape is None or (item.dtype.kind not in "iuf" and h5py.check_string_dtype(item.dtype) is None):
        raise Damage(f"{item.name!r} is {_described(item)}, expected an array of numbers or text")
    properties = item.id.get_create_plist()
    if properties.get_layout() not in _LAYOUTS or (
        properties.get_layout() == h5py.h5d.CONTIGUOUS and properties.get_external_count()
    ):
        raise Damage(f"the values of {item.name!r} lie in other files")
    filters = {properties.get_filter(index)[0] for index in range(properties.get_nfilters())}
    if filters - _FILTERS:
        raise Damage(f"{item.name!r} is stored through filter {min(filters - _FILTERS)}, which run files do not use")
    return item


def axis_lengths(file: h5py.File) -> dict[str, int]:
    """Return the lengths of the arrays at the root, which all have one axis."""
    lengths = {}
    for name in file:
        if isinstance(member(file, name), h5py.Dataset):
            item = array(file, name)
            if len(item.shape) != 1:
                raise Damage(f"the axis {name!r} has shape {item.shape}, expected one dimension")
            lengths[name] = item.shape[0]
    return lengths


def group_layout(group: h5py.Group, axes: dict[str, int]) -> dict[str, Layout]:
    """Return how the arrays of a group are laid out, by name.

    Args:
        group: A group of rows.
        axes: Lengths of the arrays at the root.
    """
    steps = array(group, "step")
    if len(steps.shape) != 1 or steps.dtype.kind not in "iu":
        raise Damage(f"{steps.name!r} is {_described(steps)}, expected whole numbers along one axis")
    rows = steps.shape[0]
    lengths = dict(axes)
    if group.name == f"/{METRICS}":
        names = array(group, "metric")
        if len(names.shape) != 1 or h5py.check_string_dtype(names.dtype) is None:
            raise Damage(f"{names.name!r} is {_described(names)}, expected text along one axis")
        lengths["metric"] = names.shape[0]
    found = {}
    for name in group:
        if name == "step" or name in lengths:
            array(group, name)
        elif isinstance(member(group, name), h5py.Dataset):
            found[name] = _layout(array(group, name), rows, lengths)
    return found


def _layout(item: h5py.Dataset, rows: int, lengths: dict[str, int]) -> Layout:
    if item.dtype.kind not in "iuf":
        raise Damage(f"{item.name!r} is {_described(item)}, expected numbers")
    dims = axis_names(item)
    if dims[:1] != ("step",) or not all(dim in lengths for dim in dims[1:]):
        raise Damage(f"{item.name!r} lies along the axes {dims}; expected 'step' and axes of the file")
    for dim, length in zip(dims[1:], item.shape[1:], strict=True):
        # While a writer adds metrics, their names and values are not seen at once.
        if length != lengths[dim] and dim != "metric":
            raise Damage(f"{item.name!r} has length {length} along {dim!r}, which has {lengths[dim]} labels")
    if item.shape[0] < rows:
        raise Damage(f"{item.name!r} has {item.shape[0]} rows, but {rows} were announced")
    return Layout(dims, text_attribute(item, "dtype") == "bool")


def axis_names(item: h5py.Dataset) -> tuple[str, ...]:
    """Return the names of an array's axes; an empty one for an axis that is not attached."""
    if "DIMENSION_LIST" in item.attrs:
        # HDF5 reads this attribute as whatever type it says that it has, and crashes on some.
        attribute = item.attrs.get_id("DIMENSION_LIST")
        if attribute.shape != (item.ndim,) or not _is_list_of_references(attribute.get_type().encode()):
            raise Damage(f"the axes of {item.name!r} are {_described(attribute)}, expected lists of references")
    return tuple(str(dim[0].name).rsplit("/", 1)[-1] if len(dim) else "" for dim in item.dims)


def _is_list_of_references(code: bytes) -> bool:
    """Return whether an encoded type (HDF5 file format, datatype message) is a sequence of object references."""
    # Two bytes of the encoding; then, of the list and of what it lists: class, three bytes of flags, four of size.
    listed, element = code[2:10], code[10:18]
    return (
        len(code) == 18
        and (listed[0] & 0x0F, listed[1:4]) == (9, bytes(3))
        and (element[0] & 0x0F, element[1:4], element[4:]) == (7, bytes(3), (8).to_bytes(4, "little"))
    )


def check_stored(item: h5py.Dataset, rows: int) -> None:
    """Raise unless the file holds what the first ``rows`` rows of an array will take in memory."""
    width = prod(item.shape[1:]) * item.dtype.itemsize
    if not rows * width:
        return
    stored = min(item.id.get_storage_size(), item.file.id.get_filesize())
    properties = item.id.get_create_plist()
    # Metrics that appeared late have no values in earlier rows, so these need not be in the file.
    may_be_short = properties.get_nfilters() or str(item.name).startswith(f"/{METRICS}/")
    if rows * width > stored * (_DEFLATE_FACTOR if may_be_short else 1):
        raise Damage(f"{item.name!r} claims {rows * width} bytes, but the file holds {stored} for it")
    if properties.get_nfilters():
        _check_blocks(item, rows)


def _check_blocks(item: h5py.Dataset, rows: int) -> None:
    """Raise unless every row is in a block, and no block is larger than what it unpacks to."""
    if item.chunks[1:] == item.shape[1:]:
        wanted = -(-rows // item.chunks[0])
        if (found := item.id.get_num_chunks()) < wanted:
            raise Damage(f"{item.name!r} lacks {wanted - found} of {wanted} blocks of its rows")
    sizes: list[int] = []
    # HDF5 unpacks a block to its end, whatever it is said to hold.
    if hasattr(item.id, "chunk_iter"):
        item.id.chunk_iter(lambda block: sizes.append(block.size))
    unpacked = prod(item.chunks) * item.dtype.itemsize
    if max(sizes, default=0) > unpacked + unpacked // 100 + 64:
        raise Damage(f"{item.name!r} has a block of {max(sizes)} bytes that should unpack to {unpacked}")


def check_memory(item: h5py.Dataset, rows: int) -> None:
    """Raise `MemoryError` for rows that are more than this machine has: the system might end the process instead."""
    needed = rows * prod(item.shape[1:]) * item.dtype.itemsize
    if hasattr(os, "sysconf") and needed > (there := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
        raise MemoryError(f"{item.name!r} takes {needed} bytes, and this machine has {there}")


def read_labels(item: h5py.Dataset) -> np.ndarray:
    """Return what is along an axis."""
    check_stored(item, item.shape[0])
    if h5py.check_string_dtype(item.dtype) is None:
        return item[:]
    # One after the other: many could share one enormous text.
    values = []
    for index in range(item.shape[0]):
        value = item[index]
        label = value.decode() if isinstance(value, bytes) else str(value)
        if len(label) > MOST_TEXT:
            raise Damage(f"a label of {item.name!r} has {len(label)} characters; at most {MOST_TEXT} are read")
        values.append(label)
    return np.array(values, dtype=object)


def _described(item: h5py.Dataset | h5py.h5a.AttrID) -> str:
    return f"of type {item.dtype} and shape {item.shape}"
