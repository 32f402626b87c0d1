"""Sections on several runs: the paper's Table 1, rho over seeds, and which roles come again, against chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from dynamics.analysis import SCORES, SeedFindings, experiment_tables, probe_accuracy, snapshots_in_window
from dynamics.analysis.roles import BLOAT, HERO
from dynamics.errors import AnalysisError
from dynamics.report.section import Section, Table, records
from dynamics.report.words import BY, UNIT, number, p_is, percent, plus_minus, probability, several, span, whole
from dynamics.store import Run

EXPERIMENT = "all runs"
SHOWN = 12
LEVEL = 0.05
PLURAL = {HERO: "heroes", BLOAT: "bloats"}
_LOST = [f"{role}_{way}{part}" for way in ("alone", "together") for role in PLURAL for part in ("", "_sd")]


class Seeds:
    """The findings of several runs, and what is asked of them.

    Attributes:
        findings: The findings.
        names: What tells the runs apart.
        score: What C is measured in where one score must lead.
    """

    def __init__(self, findings: SeedFindings, names: Sequence[str], score: str) -> None:
        self.findings, self.names, self.score = findings, tuple(names), score

    @property
    def runs(self) -> Sequence[Run]:
        """Return the runs."""
        return self.findings.runs


def runs_section(given: Seeds) -> Section:
    """Return which runs these are."""
    rows = []
    for name, run in zip(given.names, given.runs, strict=True):
        try:
            accuracy = probe_accuracy(run)
            inside = int(snapshots_in_window(run, given.findings.window).sum())
            end = accuracy[-1] if len(accuracy) else float("nan")
        except AnalysisError:
            inside, end = 0, float("nan")
        rows.append((name, str(run.path), run.finished, task(run), len(run.steps), inside, end))
    columns = ["run", "file", "finished", "task", "snapshots", "inside", "accuracy"]
    frame = pd.DataFrame(rows, columns=columns).astype({"task": "object"})
    table = Table(
        "runs",
        "In the window: snapshots that the tables below take together. Accuracy: on the probe, at the last snapshot.",
        frame,
        {
            "run": lambda row: row["run"],
            "task": lambda row: row["task"] or "",
            "snapshots": lambda row: whole(row["snapshots"]),
            "in the window": lambda row: whole(row["inside"]),
            "accuracy": lambda row: percent(row["accuracy"]),
            "status": lambda row: "finished" if row["finished"] else "not finished",
        },
        ("run", "task", "status"),
        most=20,
    )
    n = len(given.runs[0].components)
    sentences = [f"{several(len(rows), 'run')} of the same {n} components; each counts once in what follows."]
    tasks = {row[3] for row in rows if row[3]}
    if len(tasks) > 1:
        sentences.append(f"These are runs of {len(tasks)} tasks: what is averaged over them is of no single task.")
    return Section("runs", "The runs", tuple(sentences), (table,))


def task(run: Run) -> str | None:
    """Return the task that our data module trained on; ``None`` for others."""
    data = run.metadata.get("datamodule")
    options = data.get("hyperparameters") if isinstance(data, Mapping) else None
    return str(options["task"]) if isinstance(options, Mapping) and options.get("task") else None


def experiment_section(given: Seeds) -> Section:
    """Return the columns of the paper's Table 1: a row for each task, by both scores."""
    groups: dict[str, list[Run]] = {}
    for run in given.runs:
        groups.setdefault(task(run) or EXPERIMENT, []).append(run)
    summaries, sentences = [], []
    for score in SCORES:
        for name, runs in groups.items():
            try:
                found = experiment_tables({name: runs}, given.findings.window, score, given.findings.threshold)
            except AnalysisError as error:
                sentences.append(f"{name}, C by {BY[score]}: {error}")
                continue
            summaries.append(found.summary)
    if not summaries:
        raise AnalysisError(sentences[0].partition(": ")[2])
    frame = pd.concat(summaries, ignore_index=True)

    def both(name: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: plus_minus(row[name], row[f"{name}_sd"])

    def experiment(row: Mapping[str, Any]) -> str:
        return f"{row['experiment']}, {BY[row['score']]}"

    summary = Table(
        "experiments",
        "rho and its interval over runs (a run's rho is the mean over its snapshots in the window); mean numbers of "
        "roles, and by chance.",
        frame,
        {
            "task, C by": experiment,
            "runs": lambda row: f"{row['runs']} of {row['of']}",
            "rho ± sd": both("rho"),
            "interval": lambda row: span(row["rho_low"], row["rho_high"]),
            "heroes": lambda row: number(row["heroes"], 1),
            "bloats": lambda row: number(row["bloats"], 1),
            "chance": lambda row: number(row["chance"], 1),
        },
        ("task, C by",),
    )
    pruning = Table(
        "pruning",
        f"What mean ablation costs ({UNIT['exact_match']}, or {UNIT['loss']}), one component at a time or all of a "
        "role together; x mean: all bloats together over their mean one at a time (the paper's 14x).",
        frame[["experiment", "score", *(name for name in _LOST)]].assign(
            bloat_ratio_to_mean=frame["bloat_ratio_to_mean"]
        ),
        {
            "task, C by": experiment,
            "one hero": both("hero_alone"),
            "one bloat": both("bloat_alone"),
            "all heroes": both("hero_together"),
            "all bloats": both("bloat_together"),
            "x mean": lambda row: number(row["bloat_ratio_to_mean"], 1),
        },
        ("task, C by",),
    )
    return Section("experiments", "Over runs: rho, roles, and what pruning costs", tuple(sentences), (summary, pruning))


def seed_rho_section(given: Seeds) -> Section:
    """Return rho over runs, by accuracy and by step."""
    found = given.findings.by[given.score]
    by_accuracy, by_step = found.rho_by_accuracy, found.rho_by_step
    shown = {
        "runs": lambda row: whole(row["runs"]),
        "rho": lambda row: number(row["mean"]),
        "interval": lambda row: span(row["low"], row["high"]),
        "least to most": lambda row: span(row["least"], row["most"]),
    }
    accuracy = Table(
        "rho_by_accuracy",
        "By the probe's accuracy; a run's rho is the mean over its snapshots there.",
        by_accuracy,
        {"accuracy": lambda row: f"{percent(row['accuracy_low'])} to {percent(row['accuracy_high'])}", **shown},
    )
    # The end says most: seeds differ in when they learn.
    step = Table(
        "rho_by_step",
        "By step, latest first.",
        by_step.iloc[::-1].reset_index(drop=True),
        {"step": lambda row: whole(row["step"]), **shown},
    )
    known = by_accuracy.dropna(subset="low")
    above = int((known["low"] > 0).sum())
    text = (
        f"C by {BY[given.score]}: the interval over runs lies above 0 in {above} of {len(by_accuracy)} accuracy bins."
    )
    if known.empty:
        text = f"C by {BY[given.score]}: no accuracy bin has a rho in two runs, so that there is no interval."
    return Section("rho_over_runs", "rho over runs", (text,), (accuracy, step))


def frequency_section(given: Seeds) -> Section:
    """Return in how many runs each component has each role, and how many of them luck gives."""
    table = given.findings.by[given.score].role_frequency
    parts = []
    for role, plural in PLURAL.items():
        part = table[["component", "layer", "kind", "runs"]].assign(
            role=role, count=table[plural], chance=table[f"{role}_chance"] * table["runs"],
            p_value=table[f"{role}_p_value"],
        )  # fmt: skip
        parts.append(part[part["count"] > 0])
    frame = pd.concat(parts, ignore_index=True).sort_values(["p_value", "component"], kind="stable", ignore_index=True)
    tests = 2 * len(table)
    frame["beyond"] = frame["p_value"] * tests < LEVEL
    runs = int(table["runs"].iloc[0])
    sentences = [
        f"C by {BY[given.score]}, {several(runs, 'run')} with snapshots in the window. A run counts a component for "
        "the role that it has in more than half of these. p: how often luck gives the role in at least as many runs.",
    ]
    sure = frame[frame["beyond"]]
    if sure.empty:
        sentences.append(f"None is beyond chance, with {tests} such p-values taken into account.")
    else:
        names = [f"{row['component']} {row['role']} in {row['count']} of {row['runs']} ({p_is(row['p_value'])})"
                 for row in records(sure.head(8))]  # fmt: skip
        more = f" and {len(sure) - 8} more" if len(sure) > 8 else ""
        sentences.append(f"Beyond chance, with {tests} such p-values taken into account: {', '.join(names)}{more}.")
    shown = Table(
        "role_frequency",
        "Rarest by luck first.",
        frame,
        {
            "component": lambda row: row["component"],
            "role": lambda row: row["role"],
            "runs": lambda row: f"{row['count']} of {row['runs']}",
            "by chance": lambda row: number(row["chance"], 1),
            "p": lambda row: probability(row["p_value"]),
            "": lambda row: "beyond chance" if row["beyond"] else "",
        },
        ("component", "role", ""),
        most=SHOWN,
    )
    heading = "Which components have their role again and again?"
    return Section("role_frequency", heading, tuple(sentences), (shown,), {"role_frequency_all": table})


def layers_section(given: Seeds) -> Section:
    """Return the roles of each layer over runs, against chance."""
    table = given.findings.by[given.score].roles_by_layer
    tests = len(table)
    frame = table.assign(beyond=table["p_value"] * tests < LEVEL)
    sure = frame[frame["beyond"]]
    found = ", ".join(
        f"{'more' if row['mean'] > row['chance'] else 'fewer'} {PLURAL[row['role']]} in layer {row['layer']}"
        for row in records(sure)
    )
    sentences = (
        f"Beyond chance, with {tests} such p-values taken into account: {found or 'nothing'}.",
        "Depth alone can do that: in pre-LN models the gradient falls with depth, whatever the components do.",
    )
    shown = Table(
        "roles_by_layer",
        "Mean number in a run, with its interval over runs.",
        frame,
        {
            "role": lambda row: row["role"],
            "layer": lambda row: whole(row["layer"]),
            "of": lambda row: whole(row["components"]),
            "mean": lambda row: number(row["mean"], 1),
            "interval": lambda row: span(row["low"], row["high"], 1),
            "by chance": lambda row: number(row["chance"], 1),
            "p": lambda row: probability(row["p_value"]),
        },
        ("role",),
        most=2 * SHOWN,
    )
    return Section("roles_by_layer", "In which layers are they?", sentences, (shown,))
