"""Turn run files into the README's findings: tables beside this file, pictures, and the text between two markers.

``python docs/results/make.py`` reads ``runs/{demo,sort,reverse}/run.h5`` (see ``make results``); with ``--text-only``
it rewrites the text from the tables that are here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from dynamics import open_run
from dynamics.analysis import accuracy_table, agreement_table, gap_table, rho_table
from dynamics.plot import draw_run

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"
SCORES = ("exact_match", "loss")
TASKS = {"sort": "sorting", "reverse": "reversal"}
MEASURES = {"gradient_norm": "G", "|gradient|": "attribution patching", "|ig|": "integrated gradients", "|gim|": "GIM"}
WINDOW = (0.20, 0.75)
"""OOD accuracies within which the paper compares G with C."""


def read(name: str) -> None:
    """Write the tables and the picture of a run."""
    path = Path("runs") / name / "run.h5"
    with open_run(path) as run:
        accuracy = accuracy_table(run)
        probe = accuracy[accuracy["series"] == "probe"].set_index("step")["accuracy"].rename("ood_exact_match")
        rho, by_loss = rho_table(run).set_index("step"), rho_table(run, score="loss").set_index("step")
        columns = [probe, rho[["rho", "p_value", "heroes", "bloats", "chance"]], by_loss["rho"].rename("rho_loss")]
        steps = pd.concat(columns, axis=1)
        steps.round(6).to_csv(HERE / f"{name}_steps.csv")
        roles = gap_table(run)[["step", "component", "gradient", "causal", "delta", "role"]]
        roles.round(6).to_csv(HERE / f"{name}_roles.csv", index=False)
        by_score = [agreement_table(run, score=score) for score in SCORES]
        agreement = pd.concat(by_score)[["step", "score", "measure", "rho"]]
        agreement.round(6).to_csv(HERE / f"{name}_agreement.csv", index=False)
    draw_run(path, HERE / f"{name}.svg")


def inside_window(name: str) -> pd.DataFrame:
    """Return the snapshots of a run whose OOD accuracy lies in the window."""
    steps = pd.read_csv(HERE / f"{name}_steps.csv")
    inside = steps[steps["ood_exact_match"].between(*WINDOW)]
    if inside.empty:
        raise SystemExit(f"{name}: no snapshot has an OOD exact match between {WINDOW[0]:.0%} and {WINDOW[1]:.0%}")
    return inside


def spread(values: pd.Series) -> str:
    """Return the median, and the least and the most, of a column of rho."""
    low, middle, high = values.quantile([0, 0.5, 1])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def agreement(name: str) -> str:
    """Return a task's lines in the table of scores: rho with C, and at how many snapshots it is above that of G."""
    table = pd.read_csv(HERE / f"{name}_agreement.csv")
    table = table[table["step"].isin(inside_window(name)["step"])]
    rho = table.pivot(index=["score", "step"], columns="measure", values="rho")
    lines = []
    for measure, title in MEASURES.items():
        cells = []
        for score in SCORES:
            of_score = rho.loc[score]
            above = int((of_score[measure] > of_score["gradient_norm"]).sum())
            cells.append(spread(of_score[measure]))
            cells.append("" if measure == "gradient_norm" else f"{above} of {len(of_score)}")
        lines.append(f"| {TASKS[name]} | {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def finding(name: str) -> str:
    """Return one line of the README's table, from the tables beside this file."""
    steps = pd.read_csv(HERE / f"{name}_steps.csv")
    roles = pd.read_csv(HERE / f"{name}_roles.csv")
    inside = inside_window(name)

    def usual(role: str) -> str:
        during = roles[roles["step"].isin(inside["step"]) & (roles["role"] == role)]
        counts = during["component"].value_counts(sort=False).sort_values(ascending=False, kind="stable")
        often = counts[counts >= len(inside) / 2]
        return ", ".join(f"{component} {count}" for component, count in often.items()) or "none"

    first, last = inside["step"].min(), inside["step"].max()
    return (
        f"| {TASKS[name]} | {len(inside)} of the {steps['step'].between(first, last).sum()} from {first} to {last} | "
        f"{spread(inside['rho'])} | {spread(inside['rho_loss'])} | "
        f"{inside['heroes'].mean():.1f} / {inside['bloats'].mean():.1f} | "
        f"{usual('hero')} | {usual('bloat')} |"
    )


def swing(name: str) -> str:
    """Return the largest change of OOD exact match from one snapshot to the next, in percentage points."""
    accuracy = pd.read_csv(HERE / f"{name}_steps.csv")["ood_exact_match"]
    return f"{100 * accuracy.diff().abs().max():.0f} points"


def text() -> str:
    """Return the findings, as the README states them."""
    chance = pd.read_csv(HERE / "sort_steps.csv")["chance"].iloc[0]
    lines = "\n".join(finding(name) for name in TASKS)
    low, high = (f"{share:.0%}" for share in WINDOW)
    return f"""One run of each configuration, seed 0, 20 components, mean ablation. Taken together are the snapshots
whose OOD exact match lies between {low} and {high}: median (least to most) of rho, mean number of heroes and bloats.
**By luck alone there would be {chance:.2f} of each.** Named are the components that had the role in at least half of
these snapshots, and in how many.

| task | snapshots | rho (accuracy) | rho (loss) | heroes / bloats | usual heroes | usual bloats |
| --- | --- | --- | --- | --- | --- | --- |
{lines}

These are single runs: names and counts may change with the seed. Reversal does not hold what it has learned out of
distribution: from one snapshot to the next its OOD exact match moved by up to {swing("reverse")} (sorting:
{swing("sort")}). A positive rho goes with fewer heroes and bloats than luck alone gives. And depth and kind alone move
ranks: in pre-LN models the gradient falls with depth, and heads differ from MLPs in scale, which makes early bloats and
late heroes.
Pictures: [sorting](docs/results/sort.svg), [reversal](docs/results/reverse.svg).
"""


def write_text() -> None:
    """Put the findings into the README."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(before + BEGIN + text() + END + after)


if __name__ == "__main__":
    if "--text-only" not in sys.argv:
        for name in TASKS:
            read(name)
        draw_run("runs/demo/run.h5", HERE / "demo.png", panels=("accuracy", "roles"))
    write_text()
