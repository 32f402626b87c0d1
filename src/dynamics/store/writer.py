"""Write a run file: one HDF5 file, append-only along ``step``, readable while it is written and after a crash.

The file is built under a temporary name, switched to HDF5's single-writer-multiple-readers (SWMR) mode, and only then
moved to its own name: whoever sees the file can read it. A row counts once its group's ``step`` has grown; every other
array of the row is flushed before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dynamics.arrays import ArraySpec
from dynamics.errors import RunFileError
from dynamics.store.disk import require_room
from dynamics.store.left_open import WriterLock, open_hdf5
from dynamics.store.provenance import plain
from dynamics.store.schema import FORMAT, METRIC_NAME_BYTES, METRICS, STEP_LONG_NAME, VERSION, Axis

_CHUNK_BYTES = 16_384
_LABEL_BYTES = 64


def check_target(path: str | Path, overwrite: bool) -> Path:
    """Return the path of a run file to be created, or raise before any work is done.

    Args:
        path: Where the file will be.
        overwrite: Whether an existing run file may be replaced.

    Raises:
        RunFileError: If the file exists and may not be replaced, or its folder cannot be written.
    """
    target = Path(path)
    if target.is_dir():
        raise RunFileError(f"the run file {target} is a folder; give the path of a file, such as {target / 'run.h5'}.")
    if target.exists() and not overwrite:
        raise RunFileError(
            f"the run file {target} exists already and is not overwritten; choose another path, "
            "or pass overwrite=True (on the command line --tracker.overwrite=true) to replace it."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFileError(f"the folder of the run file {target} cannot be made: {error}.") from error
    if not os.access(target.parent, os.W_OK):
        raise RunFileError(f"no permission to write into {target.parent}, the folder of the run file {target.name}.")
    return target


class RunWriter:
    """The one writer of a run file.

    Args:
        path: Where the file will be; see `check_target`.
        axes: The shared axes.
        groups: By group: the arrays of one row (their axes without ``step``), with an example of each array that
            gives its shape and type.
        metadata: Anything that JSON can hold.
        overwrite: Replace an existing file, once the new one is complete.

    Raises:
        RunFileError: If the file exists and may not be replaced, or cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        axes: Sequence[Axis],
        groups: Mapping[str, Sequence[tuple[ArraySpec, np.ndarray]]],
        metadata: Mapping[str, Any],
        overwrite: bool = False,
    ) -> None:
        self.path = check_target(path, overwrite)
        # The program may change its working folder while the file is open.
        self._place = self.path.absolute()
        self._metric_index: dict[str, int] = {}
        self._rows = dict.fromkeys(groups, 0)
        partial = self._place.with_name(f"{self._place.name}.partial-{os.getpid()}")
        try:
            self._build(partial, axes, groups, metadata)
            self._publish(partial, overwrite)
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, RunFileError):
                raise
            raise RunFileError(
                f"the run file {self.path} cannot be created ({error}); make room or choose another place."
            ) from error
        finally:
            partial.unlink(missing_ok=True)

    def _build(
        self,
        partial: Path,
        axes: Sequence[Axis],
        groups: Mapping[str, Sequence[tuple[ArraySpec, np.ndarray]]],
        metadata: Mapping[str, Any],
    ) -> None:
        with partial.open("wb") as file:
            require_room(file.fileno(), partial.parent, sum(_LABEL_BYTES * len(axis.labels) for axis in axes))
        # SWMR needs the latest file format.
        self._file = open_hdf5(partial, "w", libver="latest")
        try:
            self._create(axes, groups, metadata)
            self._file.swmr_mode = True
            self._lock = WriterLock(partial)
        except BaseException:
            with suppress(OSError, RuntimeError, ValueError):
                self._file.close()
            raise

    def _publish(self, partial: Path, overwrite: bool) -> None:
        """Give the file its name; of two writers that start at once, only one succeeds."""
        try:
            if not overwrite:
                os.link(partial, self._place)
                return
        except FileExistsError:
            self._file.close()
            check_target(self.path, overwrite)
            raise
        except OSError:
            # A file system without hard links.
            pass
        partial.replace(self._place)

    def _create(
        self,
        axes: Sequence[Axis],
        groups: Mapping[str, Sequence[tuple[ArraySpec, np.ndarray]]],
        metadata: Mapping[str, Any],
    ) -> None:
        file = self._file
        file.attrs["format"], file.attrs["format_version"] = FORMAT, VERSION
        file.attrs["metadata"] = json.dumps(plain(metadata))
        file.attrs["finished"] = np.int8(0)
        notes: dict[str, list[str]] = {axis.name: list(axis.notes) for axis in axes}
        for axis in axes:
            labels = _labels(file, axis.name, axis.labels, axis.long_name)
            labels.make_scale(axis.name)
            for name, (values, long_name) in axis.notes.items():
                _labels(file, name, values, long_name).dims[0].attach_scale(labels)
        for group_name, arrays in groups.items():
            group = file.create_group(group_name)
            step = group.create_dataset("step", (0,), "i8", maxshape=(None,), chunks=(1024,))
            step.attrs.update(units="1", long_name=STEP_LONG_NAME)
            step.make_scale("step")
            if group_name == METRICS:
                _create_metrics(group, arrays[0][0])
                continue
            for spec, example in arrays:
                dataset = _create_rows(group, spec, example)
                dataset.dims[0].attach_scale(step)
                along = []
                for position, dim in enumerate(spec.dims, start=1):
                    dataset.dims[position].attach_scale(file[dim])
                    # Hard links: xarray looks for an axis's labels in the group that it opens.
                    for name in (dim, *notes[dim]):
                        if name not in group:
                            group[name] = file[name]
                    along += notes[dim]
                if along:
                    dataset.attrs["coordinates"] = " ".join(along)

    def append(self, group: str, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Add a row to a group; it is announced to readers once all of it is on its way to the disk.

        Args:
            group: Name of the group.
            step: Optimizer steps taken; not smaller than the group's last.
            arrays: Every array of the group, by name.

        Raises:
            RunFileError: If the row cannot be written; rows announced before stay readable, and the same call may be
                made again later.
        """
        row = self._rows[group]
        try:
            self._reserve(sum(array.nbytes for array in arrays.values()))
            for name, array in arrays.items():
                dataset = self._file[group][name]
                dataset.resize(row + 1, axis=0)
                dataset[row] = array
                dataset.flush()
            self._announce(group, row, step)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._failed(group, step, error) from error

    def append_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row of logged metrics; a name that was not seen before lengthens the ``metric`` axis.

        Args:
            step: Optimizer steps taken.
            values: By name; names longer than 128 bytes are cut.

        Raises:
            RunFileError: If the row cannot be written.
        """
        group, row = self._file[METRICS], self._rows[METRICS]
        try:
            self._reserve(8 * len(values))
            named = {_cut(name): value for name, value in values.items()}
            for name in named:
                if name not in self._metric_index:
                    index = len(self._metric_index)
                    group["metric"].resize(index + 1, axis=0)
                    group["metric"][index] = name
                    self._metric_index[name] = index
            group["metric"].flush()
            dataset = group["value"]
            dataset.resize((row + 1, len(self._metric_index)))
            line = np.full(len(self._metric_index), np.nan)
            for name, value in named.items():
                line[self._metric_index[name]] = value
            dataset[row] = line
            dataset.flush()
            self._announce(METRICS, row, step)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._failed(METRICS, step, error) from error

    def move_to(self, path: Path) -> None:
        """Give the file another name in its folder, in place of what has that name."""
        self._place.replace(path.absolute())
        self.path, self._place = path, path.absolute()

    def close(self, finished: bool = True) -> None:
        """Close the file.

        Args:
            finished: Whether the training came to its end; readers see it as ``run.finished``.

        Raises:
            RunFileError: If what is left cannot be written.
        """
        if not self._file:
            return
        try:
            self._file.attrs.modify("finished", np.int8(finished))
            self._file.flush()
            self._file.close()
            self._lock.release()
        except (OSError, RuntimeError, ValueError) as error:
            raise RunFileError(f"the run file {self.path} could not be closed: {error}.") from error

    def _announce(self, group: str, row: int, step: int) -> None:
        steps = self._file[group]["step"]
        steps.resize(row + 1, axis=0)
        steps[row] = step
        steps.flush()
        self._rows[group] = row + 1

    def _reserve(self, needed: int) -> None:
        """Raise `OSError` unless the file is still in its place and can grow by ``needed`` bytes.

        HDF5 does not survive a write that fails: it loses track of the file, and can crash the process when it closes
        it. So the disk, its quotas and the limit on file sizes are asked before HDF5 is.
        """
        handle = self._file.id.get_vfd_handle()
        if not self._place.exists() or not os.path.samestat(self._place.stat(), os.fstat(handle)):
            raise OSError("the file at this path was moved, removed or replaced; put it back")
        require_room(handle, self._place.parent, needed)

    def _failed(self, group: str, step: int, error: Exception) -> RunFileError:
        return RunFileError(
            f"{self.path}: the row of step {step} in {group!r} could not be written ({error}). "
            "Nothing before it is touched; make room or mend what is wrong, then append the row again."
        )


def _labels(file: h5py.File, name: str, values: Sequence[Any], long_name: str) -> h5py.Dataset:
    text = len(values) == 0 or isinstance(values[0], str)
    dataset = file.create_dataset(name, data=list(values), dtype=h5py.string_dtype() if text else "i8")
    dataset.attrs["long_name"] = long_name
    dataset.attrs["units"] = "1"
    return dataset


def _create_rows(group: h5py.Group, spec: ArraySpec, example: np.ndarray) -> h5py.Dataset:
    flag = example.dtype == np.bool_
    dtype = np.dtype("i1") if flag else example.dtype
    row_bytes = max(1, example.size * dtype.itemsize)
    # A large row is a chunk of its own and compressed. Small rows share one, uncompressed: a compressed chunk that is
    # rewritten at every append would leave its old copies behind in the file.
    large = row_bytes >= _CHUNK_BYTES // 4
    rows = 1 if large else max(1, _CHUNK_BYTES // row_bytes)
    dataset = group.create_dataset(
        spec.name,
        (0, *example.shape),
        dtype,
        maxshape=(None, *example.shape),
        chunks=(rows, *example.shape),
        **({"compression": "gzip", "compression_opts": 4, "shuffle": True} if large else {}),
    )
    dataset.attrs.update(units=spec.units, long_name=spec.long_name)
    if flag:
        # netCDF has no booleans; xarray reads this attribute and gives them back.
        dataset.attrs["dtype"] = "bool"
    return dataset


def _create_metrics(group: h5py.Group, spec: ArraySpec) -> None:
    names = group.create_dataset(
        "metric", (0,), h5py.string_dtype("utf-8", METRIC_NAME_BYTES), maxshape=(None,), chunks=(64,)
    )
    names.attrs.update(units="1", long_name="name under which the training logged it", _Encoding="utf-8")
    names.make_scale("metric")
    value = group.create_dataset(spec.name, (0, 0), "f8", maxshape=(None, None), chunks=(64, 32), fillvalue=np.nan)
    value.attrs.update(units=spec.units, long_name=spec.long_name)
    value.dims[0].attach_scale(group["step"])
    value.dims[1].attach_scale(names)


def _cut(name: str) -> str:
    return name.encode()[:METRIC_NAME_BYTES].decode(errors="ignore")
