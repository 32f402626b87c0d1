"""Read a run file, also while it is being written and after its writer was killed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from dynamics.errors import RunFileError, RunFormatError
from dynamics.store.global_heap import heap_damage
from dynamics.store.group import RunGroup
from dynamics.store.left_open import left_open, open_beside_writer, open_hdf5, open_left_behind, writer_state
from dynamics.store.schema import FAITHFULNESS, FORMAT, METRICS, SNAPSHOTS, SYNERGY, TRAIN, VERSION, ComponentInfo
from dynamics.store.structure import (
    MOST_METADATA,
    Damage,
    array,
    axis_lengths,
    damage_named,
    member,
    number_attribute,
    read_labels,
    text_attribute,
)

if TYPE_CHECKING:
    import xarray

_WANTED = "Expected a run file that GapTrackerCallback wrote."


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

    def __init__(self, path: Path, file: h5py.File, left_behind: bool = False) -> None:
        self.path, self._file, self._left_behind = path, file, left_behind
        self._place = path.stat()
        text = text_attribute(file, "metadata", MOST_METADATA)
        metadata = None if text is None else json.loads(text)
        if not isinstance(metadata, dict):
            raise Damage("its metadata are no JSON object")
        self.metadata: dict[str, Any] = metadata
        number_attribute(file, "finished")
        axes = axis_lengths(file)
        self.components = _components(file)
        self.snapshots, self.train, self.metrics = (
            RunGroup(_group(file, name), path, axes) for name in (SNAPSHOTS, TRAIN, METRICS)
        )
        self.faithfulness, self.synergy = (
            RunGroup(_group(file, name), path, axes) if name in file else None for name in (FAITHFULNESS, SYNERGY)
        )
        self._names = {name: tuple(map(str, read_labels(array(file, name)))) for name in ("baseline", "method")}

    @property
    def finished(self) -> bool:
        """Return whether the training came to its end and the file was closed by its writer."""
        with damage_named(self.path):
            return bool(number_attribute(self._file, "finished"))

    @property
    def steps(self) -> np.ndarray:
        """Return the optimizer step of each snapshot, ``(step,)``."""
        return self.snapshots.steps

    @property
    def baselines(self) -> tuple[str, ...]:
        """Return the ablation baselines, in the order of the ``baseline`` axis."""
        return self._names["baseline"]

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the attribution methods, in the order of the ``method`` axis."""
        return self._names["method"]

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
        if self._left_behind:
            self._reopen()
        for group in self.groups:
            group.refresh()

    def _reopen(self) -> None:
        """Read a file anew that seemed to have no writer: where there are no locks, one may be at work unseen."""
        if not self.path.exists() or not os.path.samestat(self._place, self.path.stat()):
            return
        with damage_named(self.path):
            file, before = open_left_behind(self.path), self._file
            try:
                axes = axis_lengths(file)
                for group in self.groups:
                    group.bind(_group(file, group.name), axes)
            except BaseException:
                file.close()
                raise
            self._file = file
            before.close()

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

    The file may come from a stranger: how it is built is checked before anything large is read, it cannot lead to other
    files, and nothing in it is unpickled.

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
        file, left_behind = _open(path)
    except PermissionError as error:
        raise RunFileError(f"{path} may not be read by this user ({error}); ask its owner for permission.") from error
    # HDF5 and h5py say in many ways that a file is none of theirs.
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        size = path.stat().st_size
        what = "is empty" if size == 0 else f"({size} bytes) is not an HDF5 file, or is damaged: {error}"
        raise RunFileError(f"{path} {what}. {_WANTED}") from error
    return opened_run(path, file, left_behind)


def opened_run(path: Path, file: h5py.File, left_behind: bool) -> Run:
    """Return the run in an open HDF5 file, which is closed if it holds none; see `open_run`."""
    try:
        with damage_named(path):
            found = text_attribute(file, "format")
            if found != FORMAT:
                raise RunFormatError(
                    f"{path} is an HDF5 file but not a run file: its 'format' attribute is {found!r}, expected "
                    f"{FORMAT!r}. {_WANTED}"
                )
            version = format_version(file)
            if version.split(".")[0] != VERSION.split(".")[0]:
                raise RunFormatError(
                    f"{path} has format version {version}; this version of dynamics reads {VERSION.split('.')[0]}.x. "
                    "Install the version of gap-dynamics that wrote it."
                )
            return Run(path, file, left_behind)
    except BaseException:
        file.close()
        raise


def format_version(file: h5py.File) -> str:
    """Return the version of the format that a file says it has."""
    return str(text_attribute(file, "format_version", most=20))


def _open(path: Path) -> tuple[h5py.File, bool]:
    """Open a file, and say whether nobody is known to write to it although it is marked as open."""
    for _ in range(5):
        marked = left_open(path)
        if not marked or writer_state(path) != "at work":
            if damage := heap_damage(path):
                raise Damage(damage)
            return open_left_behind(path) if marked else open_hdf5(path, "r"), marked
        try:
            # Not for files without a writer: such a reader can search a damaged file for ever.
            return open_beside_writer(path), False
        except OSError:
            # Closed by its writer in between, perhaps.
            time.sleep(0.01)
    raise OSError("its writer is at work, but has not left it readable")


def _group(file: h5py.File, name: str) -> h5py.Group:
    group = member(file, name)
    if not isinstance(group, h5py.Group):
        raise Damage(f"{name!r} is a {type(group).__name__}, expected a group")
    return group


def _components(file: h5py.File) -> tuple[ComponentInfo, ...]:
    columns = [array(file, f"component{name}") for name in ("", "_kind", "_layer", "_head")]
    labels, kinds, layers, heads = (read_labels(column).tolist() for column in columns)
    if (
        len(set(labels)) < len(labels)
        or not set(kinds) <= {"head", "mlp"}
        or not all(isinstance(number, int) for number in (*layers, *heads))
    ):
        raise Damage("its components have labels that repeat, are neither head nor mlp, or have no whole numbers")
    return tuple(
        ComponentInfo(label, layer, kind, None if head < 0 else head)
        for label, layer, kind, head in zip(labels, layers, kinds, heads, strict=True)
    )
