"""Read a run file, also while it is being written and after its writer was killed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from dynamics.errors import RunFileError, RunFormatError
from dynamics.store.schema import FAITHFULNESS, FORMAT, METRICS, SNAPSHOTS, SYNERGY, TRAIN, VERSION, ComponentInfo

if TYPE_CHECKING:
    import xarray


class RunGroup(Mapping[str, np.ndarray]):
    """The rows of one schedule: ``group["name"]`` is an array whose first axis is ``group.steps``.

    Attributes:
        name: Name of the group.
    """

    def __init__(self, group: h5py.Group, path: Path) -> None:
        self.name = group.name.strip("/")
        self._group, self._path = group, path
        self._rows = len(group["step"])

    @property
    def steps(self) -> np.ndarray:
        """Return the optimizer step of each row, ``(step,)``."""
        return self._group["step"][: self._rows]

    def dims(self, name: str) -> tuple[str, ...]:
        """Return the names of an array's axes."""
        return tuple(_basename(dim[0]) if len(dim) else "" for dim in self._dataset(name).dims)

    def attributes(self, name: str) -> dict[str, str]:
        """Return an array's unit and meaning: ``units`` and ``long_name``."""
        attributes = self._dataset(name).attrs
        return {key: str(attributes[key]) for key in ("units", "long_name")}

    def __getitem__(self, name: str) -> np.ndarray:
        dataset = self._dataset(name)
        values = dataset[: self._rows]
        return values.astype(bool) if dataset.attrs.get("dtype") == "bool" else values

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """Yield the rows of an array one after the other: all of them together may be larger than memory."""
        dataset = self._dataset(name)
        is_bool = dataset.attrs.get("dtype") == "bool"
        for row in range(self._rows):
            values = dataset[row]
            yield values.astype(bool) if is_bool else values

    def __iter__(self) -> Iterator[str]:
        return (
            name for name, item in self._group.items() if len(item.dims[0]) and _basename(item.dims[0][0]) == "step"
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def refresh(self) -> None:
        """Take notice of rows that were added since the file was opened."""
        for dataset in self._group.values():
            dataset.id.refresh()
        self._rows = len(self._group["step"])

    def labels(self, axis: str) -> np.ndarray:
        """Return the labels of an axis."""
        dataset = self._group[axis]
        return dataset.asstr()[:] if h5py.check_string_dtype(dataset.dtype) else dataset[:]

    def to_xarray(self) -> xarray.Dataset:
        """Return the whole group as an `xarray.Dataset` in memory, with named and labelled axes."""
        import xarray

        data, coordinates = {}, {"step": ("step", self.steps)}
        for name in self:
            dims = self.dims(name)
            data[name] = (dims, self[name], self.attributes(name))
            for dim in dims[1:]:
                coordinates[dim] = (dim, self.labels(dim))
            for note in str(self._group[name].attrs.get("coordinates", "")).split():
                coordinates[note] = (_basename(self._group[note].dims[0][0]), self.labels(note))
        return xarray.Dataset(data, coordinates)

    def _dataset(self, name: str) -> h5py.Dataset:
        if name not in set(self):
            raise KeyError(f"{self._path} has no {name!r} in group {self.name!r}; it has {', '.join(self)}.")
        return self._group[name]


class Run(Mapping[str, np.ndarray]):
    """A run file, opened for reading: ``run["gradient_norm"]`` is ``(step, component, batch)``.

    It shows the rows that were there when it was opened, until `refresh`. Use it as a context, or `close` it.

    Attributes:
        path: The file.
        metadata: Configuration, seed, versions, git commit, host, start time, and what was measured how.
        finished: Whether the training came to its end and the file was closed by its writer.
        components: The components, in the order of the ``component`` axis.
        snapshots: The group of snapshots; the run itself reads from it.
        train: The group of training gradients.
        metrics: The group of logged metrics: ``run.metrics["value"]`` is ``(step, metric)``.
        faithfulness: The group of faithfulness rows; ``None`` if the run recorded none.
        synergy: The group of synergy rows; ``None`` if the run recorded none.
    """

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path, self._file = path, file
        self.metadata: dict[str, Any] = dict(json.loads(file.attrs["metadata"]))
        self.snapshots, self.train, self.metrics = (RunGroup(file[name], path) for name in (SNAPSHOTS, TRAIN, METRICS))
        self.faithfulness, self.synergy = (
            RunGroup(file[name], path) if name in file else None for name in (FAITHFULNESS, SYNERGY)
        )
        columns = [file[f"component{name}"] for name in ("", "_layer", "_kind", "_head")]
        labels, layers, kinds, heads = (
            column.asstr()[:] if h5py.check_string_dtype(column.dtype) else column[:].tolist() for column in columns
        )
        self.components = tuple(
            ComponentInfo(label, layer, kind, None if head < 0 else head)
            for label, layer, kind, head in zip(labels, layers, kinds, heads, strict=True)
        )

    @property
    def finished(self) -> bool:
        """Return whether the training came to its end and the file was closed by its writer."""
        return bool(self._file.attrs["finished"])

    @property
    def steps(self) -> np.ndarray:
        """Return the optimizer step of each snapshot, ``(step,)``."""
        return self.snapshots.steps

    @property
    def baselines(self) -> tuple[str, ...]:
        """Return the ablation baselines, in the order of the ``baseline`` axis."""
        return tuple(self._file["baseline"].asstr()[:])

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the attribution methods, in the order of the ``method`` axis."""
        return tuple(self._file["method"].asstr()[:])

    def dims(self, name: str) -> tuple[str, ...]:
        """Return the names of a snapshot array's axes."""
        return self.snapshots.dims(name)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in set(self):
            for group in self.groups:
                if name in set(group):
                    raise KeyError(f"{name!r} is in the group {group.name!r}: run.{group.name}[{name!r}].")
        return self.snapshots[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.snapshots)

    def __len__(self) -> int:
        return len(self.snapshots)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return f"Run({str(self.path)!r}: {len(self.steps)} snapshots of {len(self.components)} components, {state})"

    def to_xarray(self, group: str = SNAPSHOTS) -> xarray.Dataset:
        """Return a group as an `xarray.Dataset` in memory.

        To choose an attribution method, give ``sel`` a mapping, ``attribution.sel({"method": "ig"})``: its own keyword
        ``method`` is the way to look up inexact labels, and xarray takes it for that.

        Args:
            group: ``snapshots``, ``train``, ``metrics``, or ``faithfulness`` or ``synergy`` if the run recorded it.
        """
        groups = {found.name: found for found in self.groups}
        if group not in groups:
            raise KeyError(f"{self.path} has no group {group!r}; it has {', '.join(groups)}.")
        dataset = groups[group].to_xarray()
        dataset.attrs["metadata"] = json.dumps(self.metadata)
        return dataset

    def refresh(self) -> None:
        """Take notice of rows that were added since the file was opened."""
        for group in self.groups:
            group.refresh()

    @property
    def groups(self) -> list[RunGroup]:
        """Return the groups that the run has."""
        found = (self.snapshots, self.train, self.metrics, self.faithfulness, self.synergy)
        return [group for group in found if group is not None]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_run(path: str | Path) -> Run:
    """Open a run file for reading, finished or not.

    Args:
        path: The file that `GapTrackerCallback` wrote.

    Returns:
        The run. It may be opened while training writes to it, and after the training was killed.

    Raises:
        RunFileError: If there is no such file, or it is damaged; `RunFormatError` if it is not a run file that this
            version can read.
    """
    path = Path(path)
    if not path.is_file():
        raise RunFileError(f"there is no run file {path}; give the path that the training printed.")
    try:
        file = _open(path)
    except OSError as error:
        size = path.stat().st_size
        what = "is empty" if size == 0 else f"({size} bytes) is not an HDF5 file, or is damaged: {error}"
        raise RunFileError(f"{path} {what}. Expected a run file that GapTrackerCallback wrote.") from error
    try:
        found = file.attrs.get("format")
        if found != FORMAT:
            raise RunFormatError(
                f"{path} is an HDF5 file but not a run file: its 'format' attribute is {found!r}, expected {FORMAT!r}. "
                "Expected a run file that GapTrackerCallback wrote."
            )
        version = str(file.attrs.get("format_version"))
        if version.split(".")[0] != VERSION.split(".")[0]:
            raise RunFormatError(
                f"{path} has format version {version}; this version of dynamics reads {VERSION.split('.')[0]}.x. "
                "Install the version of gap-dynamics that wrote it."
            )
        return Run(path, file)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        file.close()
        raise RunFileError(f"{path} is a run file but incomplete or damaged: {error.args[0]}.") from error
    except BaseException:
        file.close()
        raise


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError:
        # Its writer is at work, or was killed: only a SWMR reader may open it then. Not the first choice, since such
        # a reader does not check the length of the file and can search a truncated one for ever.
        if not _left_open(path):
            raise
        return h5py.File(path, "r", libver="latest", swmr=True)


def _left_open(path: Path) -> bool:
    """Read from the superblock whether the file is marked as open for SWMR writing (HDF5 file format, version 3)."""
    with path.open("rb") as file:
        head = file.read(12)
    return len(head) == 12 and head[:8] == b"\x89HDF\r\n\x1a\n" and head[8] == 3 and bool(head[11] & 0x04)


def _basename(dataset: h5py.Dataset) -> str:
    return str(dataset.name).rsplit("/", 1)[-1]
