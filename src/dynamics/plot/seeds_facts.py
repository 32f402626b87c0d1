"""What to know about many runs before looking at their picture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dynamics.analysis import SeedFindings, snapshots_in_window, window_bounds
from dynamics.analysis.importance import SCORES
from dynamics.analysis.windows import Window
from dynamics.plot.facts import Fact
from dynamics.store import Run, Runs

_NAMED = 6
"""So many runs are all named; of more the first and the last."""


def seeds_facts(runs: Runs, findings: SeedFindings) -> tuple[Fact, ...]:
    """Return the facts of many runs; those that their metadata does not hold are left out.

    Args:
        runs: The runs.
        findings: Their findings.
    """
    timeline = findings.by[SCORES[0]].timelines[0]
    n, layers = len(timeline.components), len({component.layer for component in timeline.components})
    inside = [int(snapshots_in_window(run, findings.window).sum()) for run in runs]
    expected = timeline.chance * n
    found = [
        Fact("Runs", f"{len(runs)} ({_listed(runs.names)})"),
        Fact("Snapshots", _snapshots(runs)),
        Fact("Window", f"{window_words(findings.window)}: {_inside(inside)}"),
        Fact("Components", f"{n} in {layers} layer{'s' * (layers != 1)}"),
        Fact("Threshold", f"τ = {timeline.threshold:g} ranks"),
        Fact("By chance", f"{expected:.3g} heroes, {expected:.3g} bloats at a snapshot ({timeline.chance:.0%} each)"),
        Fact("Probe", _probe(runs)),
        Fact("Ablation", f"to {timeline.baseline}", brief=False),
        Fact("Status", _status(runs), brief=False),
    ]
    commits = {_commit(run) for run in runs} - {None}
    if commits:
        found.append(Fact("Git commit" + "s" * (len(commits) > 1), ", ".join(sorted(map(str, commits))), brief=False))
    return tuple(found)


def window_words(window: Window) -> str:
    """Return a window in words: ``accuracy 20 to 75 %``."""
    low, high = window_bounds(window)
    return "any accuracy" if (low, high) == (0, 1) else f"accuracy {100 * low:.3g} to {100 * high:.3g} %"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{names[0]} … {names[-1]}"


def _inside(counts: list[int]) -> str:
    have, total = sum(count > 0 for count in counts), sum(counts)
    return f"{total:,} snapshot{'s' * (total != 1)} of {have} of {len(counts)} runs" if total else "no snapshot"


def _snapshots(runs: Runs) -> str:
    counts = [len(run.steps) for run in runs]
    each = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    first, last = min(int(run.steps[0]) for run in runs), max(int(run.steps[-1]) for run in runs)
    return f"{each}{' in each run' * (len(runs) > 1)}, from step {first:,} to {last:,}"


def _probe(runs: Runs) -> str:
    known = [run.metadata.get("probe") for run in runs]
    # The file itself says how large its probe is; whether runs share one, only their metadata.
    examples = sorted({int(np.prod(run["exact_match"].shape[1:])) for run in runs})
    size = f"{examples[0]:,}" if len(examples) == 1 else f"{examples[0]:,} to {examples[-1]:,}"
    prints = [probe.get("fingerprint") if isinstance(probe, Mapping) else None for probe in known]
    shared = ""
    if len(runs) > 1 and None not in prints:
        one, all_differ = len(set(prints)) == 1, len(set(prints)) == len(prints)
        shared = ", the same in all runs" if one else ", another in each run" if all_differ else ", not the same in all"
    return f"{size} examples{shared}"


def _status(runs: Runs) -> str:
    finished = sum(run.finished for run in runs)
    if finished == len(runs):
        return "all finished" if len(runs) > 1 else "finished"
    return f"{finished} of {len(runs)} finished; the others still train, or stopped early"


def _commit(run: Run) -> str | None:
    git = run.metadata.get("git")
    if not (isinstance(git, Mapping) and git.get("commit")):
        return None
    return f"{str(git['commit'])[:10]}{' + uncommitted changes' if git.get('uncommitted_changes') else ''}"
