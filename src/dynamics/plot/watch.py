"""Redraw a picture while its runs are written: ``python -m dynamics.plot run.h5 --watch``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dynamics.errors import NothingYetError, PlotError, RunFileError, RunFormatError
from dynamics.plot.files import write_whole
from dynamics.plot.page import without_reload
from dynamics.store import open_run

INTERVAL = 2.0
"""Least time between two drawings, in seconds."""


class RunState(NamedTuple):
    """What one look at a run file finds; two looks differ when there is something new to draw.

    Attributes:
        place: Device and inode of the file: another one when the file was replaced.
        metadata: The run's metadata, as text.
        rows: Number of rows of each group, by name.
        step: Optimizer step of the last snapshot; ``None`` if there is no snapshot.
        finished: Whether the training came to its end.
    """

    place: tuple[int, int]
    metadata: str
    rows: dict[str, int]
    step: int | None
    finished: bool

    def replaces(self, earlier: RunState) -> bool:
        """Return whether this is another run than the one seen earlier: rows are never taken away."""
        fewer = any(count < earlier.rows.get(name, 0) for name, count in self.rows.items())
        return self.metadata != earlier.metadata or fewer


def look(path: str | Path) -> RunState:
    """Return the state of a run file.

    The file is opened anew each time: a reader that stays sees neither a file in its place nor that it is finished.

    Raises:
        RunFileError: If there is no run file, or it cannot be read.
    """
    with open_run(path) as run:
        status = Path(path).stat()
        steps = run.steps
        return RunState(
            (status.st_dev, status.st_ino),
            # As text: a NaN in it would make it differ from itself.
            json.dumps(run.metadata, sort_keys=True),
            {group.name: len(group.steps) for group in run.groups},
            int(steps[-1]) if len(steps) else None,
            run.finished,
        )


def watch(
    paths: Sequence[str | Path],
    draw: Callable[[], Path],
    say: Callable[[str], None],
    interval: float = INTERVAL,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Draw runs, and draw them again whenever rows were added, until all are finished or the reader interrupts.

    A run file that is not there, or has no snapshot, is waited for; a file that cannot be read and a picture that
    cannot be written are tried again. Drawing takes at most half of the time: after it the watch rests as long as it
    took, and no less than the interval.

    Args:
        paths: The run files.
        draw: Draws them and returns the path of the picture.
        say: Told in a line what was drawn and what went wrong, each trouble once.
        interval: Least time between two looks, in seconds.
        sleep: Waits so many seconds.
        clock: Tells the time, in seconds.

    Raises:
        DynamicsError: What waiting cannot mend: no run file of this version, arrays that the run does not have.
    """
    drawn: tuple[RunState, ...] | None = None
    output: Path | None = None
    trouble = ""
    try:
        while True:
            began = clock()
            ended, problem = False, _missing(paths)
            if not problem:
                try:
                    # Before it is drawn: rows that come meanwhile are noticed at the next look.
                    found = tuple(look(path) for path in paths)
                    ended = all(state.finished for state in found)
                    problem = "" if ended else _empty(paths, found)
                    if not problem and found != drawn:
                        for path, state, earlier in zip(paths, found, drawn or found, strict=True):
                            if state.replaces(earlier):
                                say(f"{path} holds another run now.")
                        output = draw()
                        drawn = found
                        say(f"{output}: {_drawn(found)}, drawn in {clock() - began:.1f} s at {time.strftime('%X')}")
                except NothingYetError as error:
                    if ended:
                        raise
                    problem = f"{error}"
                except RunFormatError:
                    raise
                # HDF5 reports some of what it cannot read as RuntimeError.
                except (RunFileError, PlotError, OSError, RuntimeError) as error:
                    problem, ended = f"{error} Trying again.", False
            if problem and problem != trouble:
                say(problem)
            trouble = problem
            if ended:
                return
            sleep(max(interval, clock() - began))
    except KeyboardInterrupt:
        say("no longer watching.")
    finally:
        if output is not None:
            _stop_reloading(output)


def _missing(paths: Sequence[str | Path]) -> str:
    missing = [str(path) for path in paths if not Path(path).exists()]
    return f"waiting for {', '.join(missing)}, which the training has not written yet." if missing else ""


def _empty(paths: Sequence[str | Path], found: Sequence[RunState]) -> str:
    empty = [str(path) for path, state in zip(paths, found, strict=True) if state.step is None]
    return f"waiting for the first snapshot of {', '.join(empty)}." if empty else ""


def _drawn(found: Sequence[RunState]) -> str:
    if len(found) > 1:
        finished = sum(state.finished for state in found)
        return f"{len(found)} runs to steps {', '.join(f'{state.step:,}' for state in found)} ({finished} finished)"
    [state] = found
    count = state.rows["snapshots"]
    return f"{count:,} snapshot{'s' * (count != 1)} to step {state.step:,}{', finished' * state.finished}"


def _stop_reloading(output: Path) -> None:
    """Let a page that nobody redraws any more stay as it is."""
    if output.suffix.lower() != ".html":
        return
    try:
        text = output.read_text(encoding="utf-8")
        if (still := without_reload(text)) != text:
            write_whole(output, still)
    except OSError:
        # It goes on reloading, which harms no one.
        pass
