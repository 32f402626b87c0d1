"""Several run files, opened together: the seeds of one experiment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from glob import glob
from pathlib import Path
from types import TracebackType

from dynamics.errors import RunFileError
from dynamics.store.reader import Run, open_run
from dynamics.store.schema import ComponentInfo


class Runs(Sequence[Run]):
    """Run files of the same components, opened for reading: ``runs[0]``, ``for run in runs``, ``len(runs)``.

    Use it as a context, or `close` it.

    Attributes:
        names: What tells the runs apart: the part of each path in which they differ, such as ``sort-3``.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)
        self.names = _names([run.path for run in self._runs])

    @property
    def components(self) -> tuple[ComponentInfo, ...]:
        """Return the components, which all runs share."""
        return self._runs[0].components

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._runs[index]

    def __repr__(self) -> str:
        return f"Runs({len(self)} of {len(self.components)} components: {', '.join(self.names)})"

    def refresh(self) -> None:
        """Take notice of rows that were added since the files were opened."""
        for run in self._runs:
            run.refresh()

    def close(self) -> None:
        """Close the files."""
        for run in self._runs:
            run.close()

    def __enter__(self) -> Runs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_runs(paths: str | Path | Iterable[str | Path]) -> Runs:
    """Open the run files of several trainings for reading, finished or not.

    Args:
        paths: A pattern such as ``"runs/sort-*/run.h5"`` (``**`` stands for any folders), or several patterns or paths.

    Returns:
        The runs, each file once, sorted by path with numbers by their value: ``sort-2`` comes before ``sort-10``.

    Raises:
        RunFileError: If nothing matches, a file is not a run file, or the runs have other components than the first.
    """
    found = run_files(paths)
    with ExitStack() as stack:
        runs = [stack.enter_context(open_run(path)) for path in found]
        for run in runs[1:]:
            if run.components != runs[0].components:
                raise RunFileError(
                    f"{run.path} has {_described(run)}, but {runs[0].path} has {_described(runs[0])}; open runs of the "
                    "same components together, and others by themselves."
                )
        stack.pop_all()
        return Runs(runs)


def run_files(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return the files that `open_runs` would open, in its order; the argument is the same.

    Raises:
        RunFileError: If a pattern matches nothing, or there is none.
    """
    patterns = [paths] if isinstance(paths, (str, Path)) else list(paths)
    found: dict[str, Path] = {}
    for pattern in patterns:
        for path in _matching(str(pattern)):
            found.setdefault(os.path.realpath(path), Path(path))
    if not found:
        raise RunFileError("open_runs needs at least one path or pattern; got none.")
    return sorted(found.values(), key=_by_number)


def _matching(pattern: str) -> list[str]:
    if not re.search(r"[*?[]", pattern):
        # What is wrong with a single file says open_run.
        return [pattern]
    # A name may itself hold what a pattern is made of.
    # Path.glob takes no absolute pattern.
    matches = [pattern] if Path(pattern).exists() else glob(pattern, recursive=True)  # noqa: PTH207
    if not matches:
        raise RunFileError(f"no run file matches {pattern!r} (seen from {Path.cwd()}); check the pattern.")
    return matches


def _by_number(path: Path) -> list[tuple[int, str]]:
    # split with a group puts the digits at the odd places.
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), part) if place % 2 else (0, part) for place, part in enumerate(parts)]


def _described(run: Run) -> str:
    labels = [component.label for component in run.components]
    return f"{len(labels)} components from {labels[0]} to {labels[-1]}"


def _names(paths: Sequence[Path]) -> tuple[str, ...]:
    parts = [path.parts for path in paths]
    longest = max(map(len, parts))
    # From the right: run.h5 lies under run.h5, however deep the folders.
    columns = [{path[-depth] if depth <= len(path) else "" for path in parts} for depth in range(1, longest + 1)]
    depths = [depth for depth, column in enumerate(columns, start=1) if len(column) > 1][::-1]
    if not depths:
        return tuple(path.parent.name or path.stem for path in paths)
    return tuple("/".join(path[-depth] for depth in depths if depth <= len(path)).removesuffix(".h5") for path in parts)
