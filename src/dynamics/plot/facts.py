"""What to know about a run before looking at its picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dynamics.analysis import Timeline
from dynamics.store import Run


class Fact(NamedTuple):
    """A line about the run.

    Attributes:
        name: What it is.
        value: What it is for this run.
        brief: Whether it belongs in the few lines above a still picture.
    """

    name: str
    value: str
    brief: bool = True


def facts(run: Run, timeline: Timeline, batch_sizes: np.ndarray) -> tuple[Fact, ...]:
    """Return the facts of a run; those that its metadata does not hold are left out.

    Args:
        run: The run.
        timeline: Its roles.
        batch_sizes: Examples in each batch of its probe, ``(batch,)``.
    """
    n, steps = len(timeline.components), timeline.steps
    layers = len({component.layer for component in timeline.components})
    expected = timeline.chance * n
    found = [
        Fact("Run file", str(run.path), brief=False),
        Fact("Snapshots", f"{len(steps):,}, from step {steps[0]:,} to {steps[-1]:,}"),
        Fact("Components", f"{n} in {layers} layer{'s' * (layers != 1)}"),
        Fact(
            "Probe",
            f"{_counted(int(batch_sizes.sum()), 'example')} in {_counted(len(batch_sizes), 'batch', 'batches')}",
        ),
        Fact("Threshold", f"τ = {timeline.threshold:g} ranks"),
        Fact("By chance", f"{expected:.3g} heroes, {expected:.3g} bloats ({timeline.chance:.0%} each)"),
        Fact("Ablation", f"to {timeline.baseline}", brief=False),
        Fact("Status", "finished" if run.finished else "not finished: still training, or stopped early", brief=False),
    ]
    if started := run.metadata.get("started"):
        found.append(Fact("Started", str(started), brief=False))
    git = run.metadata.get("git")
    if isinstance(git, Mapping) and git.get("commit"):
        changed = " + uncommitted changes" if git.get("uncommitted_changes") else ""
        found.append(Fact("Git commit", f"{str(git['commit'])[:10]}{changed}", brief=False))
    return tuple(found)


def _counted(number: int, one: str, several: str = "") -> str:
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
