"""Section on the run itself: what was tracked, on which probe, and what the rest of the report takes for granted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dynamics.analysis import chance_share
from dynamics.analysis.roles import chosen_threshold
from dynamics.report.given import Given
from dynamics.report.section import Section, Table
from dynamics.report.words import BY, number, percent, several, whole
from dynamics.store import Run


def run_section(given: Given) -> Section:
    """Return what to know about the run before its findings."""
    run, findings = given.findings.run, given.findings
    n = len(run.components)
    layers = len({component.layer for component in run.components})
    heads = sum(component.kind == "head" for component in run.components)
    tau = chosen_threshold(findings.threshold, n)
    share, resampling = chance_share(n, tau), findings.resampling
    rows = [
        ("file", str(run.path)),
        ("status", "finished" if run.finished else "not finished: still training, or stopped early"),
        ("snapshots", _snapshots(run)),
        ("window", f"probe accuracy {given.range}: {_inside(given)}"),
        ("components", f"{n} in {several(layers, 'layer')}: {several(heads, 'head')}, {several(n - heads, 'MLP')}"),
        ("probe", _probe(run)),
        ("C", f"{findings.baseline} ablation; by {BY[given.score]} where one score leads"),
        ("threshold", f"tau = {tau:g} ranks: hero at a gap G - C of -{tau:g} or less, bloat at {tau:g} or more"),
        ("by chance", f"{number(share * n)} heroes and as many bloats ({percent(share)} each), without ties"),
        ("intervals", f"{percent(resampling.level)}, from {resampling.resamples} resamples of the probe's batches"),
        ("p", f"two-sided, from {resampling.resamples} random pairings of components; below {given.level:.2g} is "
         "called beyond chance, each snapshot by itself"),
        *_training(run),
    ]  # fmt: skip
    table = Table(
        "run",
        "",
        pd.DataFrame(rows, columns=["name", "value"]),
        {"": lambda row: row["name"], " ": lambda row: row["value"]},
        ("", " "),
        most=len(rows),
    )
    sentences = (
        "Snapshots of one run are not independent of each other, and at many of them something is beyond chance by "
        "luck: only further seeds can tell what will come again.",
    )
    return Section("run", "The run", sentences, (table,))


def _snapshots(run: Run) -> str:
    steps = run.steps
    if not len(steps):
        return "none yet"
    if len(steps) == 1:
        return f"1, at step {whole(steps[0])}"
    return f"{len(steps):,}, from step {whole(steps[0])} to {whole(steps[-1])}"


def _inside(given: Given) -> str:
    accuracy = given.accuracy
    if accuracy.empty and len(given.findings.run.steps):
        return "unknown, since no accuracy was recorded"
    inside = accuracy[(accuracy >= given.low) & (accuracy <= given.high)]
    if inside.empty:
        return "no snapshot"
    return f"{several(len(inside), 'snapshot')}, from step {whole(inside.index[0])} to {whole(inside.index[-1])}"


def _probe(run: Run) -> str:
    of_example = run.snapshots.labels("example_batch")
    batches, examples = len(np.unique(of_example)), len(of_example)
    single = "; a single batch gives no intervals" if batches == 1 else ""
    return f"{examples:,} examples in {batches:,} batch{'' if batches == 1 else 'es'}{single}"


def _training(run: Run) -> list[tuple[str, str]]:
    """Return what the metadata says of the training; nothing that it does not hold."""
    rows = []
    data = run.metadata.get("datamodule")
    options = data.get("hyperparameters") if isinstance(data, Mapping) else None
    if isinstance(options, Mapping) and options.get("task"):
        rows.append(("task", str(options["task"])))
    for name in ("seed", "started"):
        if run.metadata.get(name) is not None:
            rows.append((name, str(run.metadata[name])))
    git = run.metadata.get("git")
    if isinstance(git, Mapping) and git.get("commit"):
        changed = " and uncommitted changes" if git.get("uncommitted_changes") else ""
        rows.append(("commit", f"{str(git['commit'])[:10]}{changed}"))
    return rows
