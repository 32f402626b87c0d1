"""A group of a run file, opened for reading: the rows of one schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from dynamics.errors import RunFileError
from dynamics.store.schema import METRICS
from dynamics.store.structure import (
    Damage,
    Layout,
    array,
    axis_names,
    check_memory,
    check_stored,
    damage_named,
    group_layout,
    read_labels,
    text_attribute,
)

if TYPE_CHECKING:
    import xarray


class RunGroup(Mapping[str, np.ndarray]):
    """The rows of one schedule: ``group["name"]`` is an array whose first axis is ``group.steps``.

    What is read from a damaged file raises `RunFileError`.

    Attributes:
        name: Name of the group.
    """

    def __init__(self, group: h5py.Group, path: Path, axes: dict[str, int]) -> None:
        self.name = str(group.name).strip("/")
        self._path = path
        self.bind(group, axes)

    def bind(self, group: h5py.Group, axes: dict[str, int]) -> None:
        """Read from another opening of the same group from now on."""
        self._group = group
        # First, since a writer may be at work: its other arrays grow before ``step`` does.
        rows = array(group, "step").shape[0]
        self._layouts = group_layout(group, axes)
        self._look(rows)

    def _look(self, rows: int) -> None:
        self._rows = rows
        self._columns = None
        if self.name == METRICS:
            self._columns = min([len(self._group["metric"]), *(self._group[name].shape[1] for name in self._layouts)])

    @property
    def steps(self) -> np.ndarray:
        """Return the optimizer step of each row, ``(step,)``."""
        steps = self._read(self._item("step"), slice(self._rows))
        if (np.diff(steps) < 0).any() or (steps < 0).any():
            with damage_named(self._path):
                raise Damage(f"the steps of {self.name!r} fall, or are negative")
        return steps

    @property
    def length(self) -> int:
        """Return the number of rows."""
        return self._rows

    def dims(self, name: str) -> tuple[str, ...]:
        """Return the names of an array's axes."""
        return self._layout(name).dims

    def attributes(self, name: str) -> dict[str, str]:
        """Return an array's unit and meaning: ``units`` and ``long_name``."""
        self._layout(name)
        item = self._item(name)
        with damage_named(self._path):
            return {key: text_attribute(item, key) or "" for key in ("units", "long_name")}

    def row(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return the shape and the type of a row of an array."""
        layout, item = self._layout(name), self._item(name)
        return item.shape[1:], np.dtype(bool) if layout.flag else item.dtype

    def __getitem__(self, name: str) -> np.ndarray:
        layout = self._layout(name)
        values = self._read(self._item(name), slice(self._rows))
        return values.astype(bool) if layout.flag else values

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """Yield the rows of an array one after the other: all of them together may be larger than memory."""
        layout = self._layout(name)
        item = self._item(name)
        for row in range(self._rows):
            values = self._read(item, row, check=row == 0)
            yield values.astype(bool) if layout.flag else values

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def refresh(self) -> None:
        """Take notice of rows that were added since the file was opened."""
        with damage_named(self._path):
            steps = self._item("step")
            steps.id.refresh()
            rows = len(steps)
            # After ``step``: these then have at least as many rows.
            for name in (*self._layouts, *(("metric",) if self.name == METRICS else ())):
                self._group[name].id.refresh()
            self._look(rows)

    def labels(self, axis: str) -> np.ndarray:
        """Return the labels of an axis."""
        item = self._item(axis)
        with damage_named(self._path):
            return read_labels(item)[: self._columns if axis == "metric" else None]

    def to_xarray(self) -> xarray.Dataset:
        """Return the whole group as an `xarray.Dataset` in memory, with named and labelled axes."""
        import xarray

        data, coordinates = {}, {"step": ("step", self.steps)}
        for name in self:
            dims = self.dims(name)
            data[name] = (dims, self[name], self.attributes(name))
            for dim in dims[1:]:
                coordinates[dim] = (dim, self.labels(dim))
            with damage_named(self._path):
                for note in (text_attribute(self._group[name], "coordinates") or "").split():
                    coordinates[note] = (axis_names(array(self._group, note))[0], self.labels(note))
        with damage_named(self._path):
            return xarray.Dataset(data, coordinates)

    def _layout(self, name: str) -> Layout:
        if name not in self._layouts:
            raise KeyError(f"{self._path} has no {name!r} in group {self.name!r}; it has {', '.join(self)}.")
        return self._layouts[name]

    def _item(self, name: str) -> h5py.Dataset:
        if not self._group:
            raise RunFileError(f"{self._path} was closed by this program; open it again to read from it.")
        return self._group[name]

    def _read(self, item: h5py.Dataset, rows: slice | int, check: bool = True) -> np.ndarray:
        with damage_named(self._path):
            if check:
                check_stored(item, self._rows)
            check_memory(item, self._rows if isinstance(rows, slice) else 1)
            values = item[rows, : self._columns] if self._columns is not None and item.ndim > 1 else item[rows]
            if isinstance(rows, slice) and len(values) != self._rows:
                raise Damage(f"{item.name!r} has {len(values)} rows, but {self._rows} were announced")
            return values
