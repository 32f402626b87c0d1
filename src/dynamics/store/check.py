"""Look a run file over: what is in it, how its writer left it, and whether every row can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dynamics.errors import RunFileError
from dynamics.store.group import RunGroup
from dynamics.store.left_open import left_open, writer_state
from dynamics.store.reader import Run, format_version, open_run


@dataclass
class Report:
    """What was found in a run file.

    Attributes:
        path: The file.
        facts: What it holds, line by line.
        state: ``"closed"``, ``"being written"``, ``"left open"`` by a writer that died, or ``"open"`` where it cannot
            be told whether the writer lives; ``"unreadable"``.
        finished: Whether the training came to its end.
        problems: What is damaged, line by line.
    """

    path: Path
    facts: list[str] = field(default_factory=list)
    state: str = "unreadable"
    finished: bool = False
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [str(self.path), *(f"  {line}" for line in self.facts)]
        if self.problems:
            return "\n".join([*lines, "damaged:", *(f"  {problem}" for problem in self.problems)])
        lines.append("every row can be read")
        if self.state == "left open":
            lines.append(f"its writer died without closing it: python -m dynamics.store repair {self.path}")
        return "\n".join(lines)


def check_run(path: str | Path) -> Report:
    """Read every row of a run file and tell what is there.

    Args:
        path: The run file.

    Returns:
        What was found; without ``problems``, every row can be read.
    """
    report = Report(Path(path))
    try:
        with open_run(path) as run:
            report.state = _state(run.path)
            report.finished = run.finished
            report.facts += _facts(run, report.state)
            for group in run.groups:
                report.problems += _damage(group)
    except RunFileError as error:
        report.problems.append(str(error))
    return report


def _state(path: Path) -> str:
    if not left_open(path):
        return "closed"
    return {"at work": "being written", "gone": "left open", "unknown": "open"}[writer_state(path)]


def _facts(run: Run, state: str) -> Iterator[str]:
    ending = "training came to its end" if run.finished else "training did not come to its end"
    yield f"format version {format_version(run._file)}, {run.path.stat().st_size:,} bytes, {state}; {ending}"
    labels = [component.label for component in run.components]
    yield f"{len(labels)} components" + (f", {labels[0]} to {labels[-1]}" if labels else "")
    for group in run.groups:
        try:
            steps = group.steps
            span = f" (steps {steps[0]} to {steps[-1]})" if len(steps) else ""
            yield f"{group.name}: {len(steps)} rows{span} of {', '.join(group) or 'nothing'}"
        except RunFileError as error:
            yield f"{group.name}: {error}"


def _damage(group: RunGroup) -> Iterator[str]:
    try:
        group.steps  # noqa: B018  # reading checks them
    except RunFileError as error:
        yield f"{group.name}/step: {error}"
    for name in group:
        row = -1
        try:
            for row, _ in enumerate(group.rows(name)):  # noqa: B007
                pass
            for dim in group.dims(name)[1:]:
                group.labels(dim)
        except RunFileError as error:
            yield f"{group.name}/{name}, row {row + 1} of {group.length}: {error}"
