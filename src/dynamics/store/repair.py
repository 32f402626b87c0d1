"""Mend a run file that its writer left open, or go on writing where a file stopped, without losing what was there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dynamics.arrays import ArraySpec
from dynamics.errors import RunFileError
from dynamics.store.global_heap import heap_damage
from dynamics.store.group import RunGroup
from dynamics.store.left_open import left_open, open_left_behind, take_exclusively
from dynamics.store.reader import Run, format_version, opened_run
from dynamics.store.schema import METRICS, TRAIN, VERSION, Axis
from dynamics.store.structure import Damage, array, axis_lengths, axis_names, damage_named, read_labels, text_attribute
from dynamics.store.writer import RunWriter, check_target


def repair_run(path: str | Path, output: str | Path | None = None, force: bool = False) -> Path:
    """Turn a run file that a dead writer left open into one that opens plainly, with every announced row.

    The rows are copied to a new file, which takes the old one's place at once when it is complete; the old file stays
    beside it as ``run.h5.backup-1`` (``-2``, …).

    Args:
        path: The run file.
        output: Where the new file will be, instead of in the old one's place; the old one is not touched then.
        force: Repair even where the file system cannot tell whether the writer still lives. Be sure that it does not.

    Returns:
        The repaired file.

    Raises:
        RunFileError: If the file needs no repair, its writer still lives, it is damaged, or the new one cannot be
            written.
    """
    path = Path(path)
    if output is not None:
        output = check_target(output, overwrite=False)
    with _of_nobody_else(path, force):
        if not left_open(path):
            raise RunFileError(f"{path} was closed by its writer and needs no repair; open it as it is.")
        with _opened(path) as run:
            writer = _copied(run, path if output is None else output, None)
        try:
            writer.close(finished=False)
            _take_place(writer, path if output is None else output, replace=output is None)
        finally:
            _forget(writer)
    return path if output is None else output


def continue_run(path: str | Path, until: int, force: bool = False) -> RunWriter:
    """Open a run file for writing again, to go on after a step; rows of later steps are dropped.

    So are training gradients of that step, which lead to the next.

    Everything is copied to a new file, which takes the old one's place at once when it is complete; the old file stays
    beside it as ``run.h5.backup-1`` (``-2``, …), with all rows that it had.

    Args:
        path: The run file, closed or left open by a dead writer.
        until: The last step whose rows are kept, such as that of a checkpoint.
        force: Go on even where the file system cannot tell whether another writer lives. Be sure that none does.

    Returns:
        The writer, as if it had written all rows itself.

    Raises:
        RunFileError: If there is no such file, its writer still lives, it is damaged, or the new one cannot be written.
    """
    path = Path(path)
    with _of_nobody_else(path, force):
        with _opened(path) as run:
            writer = _copied(run, path, until)
        try:
            _take_place(writer, path, replace=True)
        except BaseException:
            with suppress(RunFileError):
                writer.close(finished=False)
            _forget(writer)
            raise
    return writer


@contextmanager
def _of_nobody_else(path: Path, force: bool) -> Iterator[None]:
    """Hold a file, or raise if a writer does."""
    if not path.is_file():
        raise RunFileError(f"there is no run file {path}; give the path that the training printed.")
    try:
        file = path.open("rb")
    except OSError as error:
        raise RunFileError(f"{path} may not be read by this user ({error}); ask its owner for permission.") from error
    with file:
        if not left_open(path):
            # Nobody writes to it; whoever reads it keeps the old file when a new one takes its name.
            yield
            return
        state = take_exclusively(file.fileno())
        # Another one may have put a new file into its place since.
        if state == "at work" or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise RunFileError(
                f"{path} is held by a training that still writes to it, or by a program that reads it through HDF5; "
                "wait until it ends, or end it. The file can be read meanwhile."
            )
        if state == "unknown" and not force:
            raise RunFileError(
                f"whether a training still writes to {path} cannot be told, since its file system has no locks; "
                "if you know that none does, repeat this with --force (force=True)."
            )
        yield


@contextmanager
def _opened(path: Path) -> Iterator[Run]:
    with damage_named(path):
        if damage := heap_damage(path):
            raise Damage(damage)
        run = opened_run(path, open_left_behind(path), left_behind=True)
    with run:
        version = format_version(run._file)
        _, _, minor = version.partition(".")
        if not minor.isdigit() or int(minor) > int(VERSION.partition(".")[2]):
            raise RunFileError(
                f"{path} has format version {version} and may hold what this version of dynamics ({VERSION}) does not "
                "know. Use the version of gap-dynamics that wrote it."
            )
        yield run


def _copied(run: Run, target: Path, until: int | None) -> RunWriter:
    """Return the writer of a new file beside ``target`` that holds a run's rows up to a step."""
    with damage_named(run.path):
        axes = _axes(run)
        groups = {
            group.name: [
                (ArraySpec(name, group.dims(name)[1:], **group.attributes(name)), np.zeros(*group.row(name)))
                for name in group
            ]
            for group in run.groups
        }
    writer = RunWriter(target.with_name(f"{target.name}.repaired-{os.getpid()}"), axes, groups, run.metadata, True)
    try:
        for group in run.groups:
            _copy_rows(group, writer, until)
    except BaseException:
        with suppress(RunFileError):
            writer.close(finished=False)
        _forget(writer)
        raise
    return writer


def _copy_rows(group: RunGroup, writer: RunWriter, until: int | None) -> None:
    steps = group.steps
    if until is not None:
        # A training gradient recorded at a step leads to the next one.
        steps = steps[steps + (group.name == TRAIN) <= until]
    if group.name == METRICS:
        values = group["value"][: len(steps)]
        logged = ~np.isnan(values).all(axis=0)
        # A metric that was logged only later has no column yet; columns stand in the order of their first values.
        width = values.shape[1] if until is None else int(logged.nonzero()[0].max(initial=-1)) + 1
        names = group.labels("metric")[:width].tolist()
        for step, row in zip(steps.tolist(), values.tolist(), strict=True):
            writer.append_metrics(step, dict(zip(names, row, strict=False)))
        return
    columns = {name: group.rows(name) for name in group}
    for step in steps.tolist():
        writer.append(group.name, step, {name: next(rows) for name, rows in columns.items()})


def _axes(run: Run) -> list[Axis]:
    file = run._file
    axes, notes = {}, []
    for name in axis_lengths(file):
        item = array(file, name)
        labels: list[Any] = read_labels(item).tolist()
        long_name = text_attribute(item, "long_name") or ""
        if item.is_scale:
            axes[name] = Axis(name, labels, long_name, {})
        elif axis := axis_names(item)[0]:
            notes.append((axis, name, (labels, long_name)))
    for axis, name, note in notes:
        axes[axis].notes[name] = note
    return list(axes.values())


def _take_place(writer: RunWriter, target: Path, replace: bool) -> None:
    """Give a new file its name, and an old one of this name another."""
    try:
        if replace:
            _keep(target)
        elif target.exists():
            check_target(target, overwrite=False)
        writer.move_to(target)
    except OSError as error:
        if isinstance(error, RunFileError):
            raise
        raise RunFileError(
            f"the new file cannot be put into the place of {target} ({error}); the old one is untouched."
        ) from error


def _keep(path: Path) -> Path:
    """Give a file a second name beside its own, ``run.h5.backup-1`` or the next that is free."""
    for number in count(1):
        backup = path.with_name(f"{path.name}.backup-{number}")
        try:
            os.link(path, backup)
        except FileExistsError:
            continue
        except OSError:
            # A file system without hard links: for a moment there is no file of the old name.
            if backup.exists():
                continue
            path.rename(backup)
        return backup
    raise AssertionError


def _forget(writer: RunWriter) -> None:
    """Remove a new file that did not get into its place."""
    if ".repaired-" in writer.path.name:
        with suppress(OSError):
            writer.path.unlink()
