"""Turn run files into findings: tables beside this file, pictures, and text in the README and docs/findings.md.

``python docs/results/make.py`` reads ``runs/{demo,sort,reverse}/run.h5`` (see ``make results``); with ``--text-only``
it rewrites the text, which stands between two markers, from the tables that are here.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pandas as pd
from chance import LEVEL, Chance, write_tables
from together import HEAD, lines, write_table

from dynamics import open_run
from dynamics.analysis import (
    WINDOWS,
    accuracy_table,
    agreement_table,
    faithfulness_table,
    gap_table,
    rho_table,
    self_repair_by_layer,
)
from dynamics.plot import draw_run

HERE = Path(__file__).parent
README, PAGE = HERE.parents[1] / "README.md", HERE.parent / "findings.md"
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"
SCORES = ("exact_match", "loss")
TASKS = {"sort": "sorting", "reverse": "reversal"}
COMPARED = {**TASKS, "demo": "sorting with the small model of the demo"}
MEASURES = {"gradient_norm": "G", "|gradient|": "attribution patching", "|ig|": "integrated gradients", "|gim|": "GIM"}
RANKINGS = {
    "ablation": "ablation",
    "gradient_norm": "G",
    "gradient": "attribution patching",
    "ig": "integrated gradients",
    "gim": "GIM",
    "random": "random",
}
NEAR = 0.05
"""Medians of rho that lie nearer together are told apart by no word."""
WINDOW = WINDOWS["paper"]


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
        faithfulness = pd.concat([faithfulness_table(run, score) for score in SCORES])
        faithfulness.drop(columns="reason").round(6).to_csv(HERE / f"{name}_faithfulness.csv", index=False)
        write_tables(run, name)
        write_table(run, name)
        self_repair_by_layer(run).round(6).to_csv(HERE / f"{name}_self_repair.csv", index=False)
    if name in TASKS:
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
        lines.append(f"| {COMPARED[name]} | {title} | {' | '.join(cells)} |")
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


def beyond_chance() -> str:
    """Return in plain words what of the runs is beyond chance, and what is not."""
    found = {task: Chance(name, inside_window(name)["step"]) for name, task in TASKS.items()}
    more = sum(chance.outside(role)[0] for chance in found.values() for role in ("hero", "bloat"))
    snapshots = sum(chance.n for chance in found.values())
    conclusion = (
        f"None of these {snapshots} snapshots has more heroes or bloats than luck gives: their number is no finding."
        if not more
        else f"Heroes or bloats outnumber luck in {more} of {2 * snapshots} comparisons, and some would do so anyway."
    )
    one_run = (
        "That a component keeps its role from snapshot to snapshot is no proof either: a role that it has by luck "
        "stays while the model changes little. Only further seeds can tell."
    )
    paragraphs = [chance.words(task) for task, chance in found.items()]
    return "\n\n".join(map(fill, [*paragraphs, f"{conclusion} {one_run}"]))


def faithful(name: str) -> str:
    """Return a task's lines in the table of rankings: CPR over the rows of the run."""
    table = pd.read_csv(HERE / f"{name}_faithfulness.csv")
    cpr = table.pivot(index=["score", "step"], columns="ranking", values="cpr")
    return "\n".join(
        f"| {TASKS[name]} | {title} | {' | '.join(spread(cpr.loc[score][ranking].dropna()) for score in SCORES)} |"
        for ranking, title in RANKINGS.items()
    )


def faithfulness_rows(name: str) -> str:
    """Return how many rows of faithfulness a run has, and at which steps."""
    steps = pd.read_csv(HERE / f"{name}_faithfulness.csv")["step"].unique()
    return f"{len(steps)} rows, steps {steps[0]} to {steps[-1]}"


def repaired(name: str) -> str:
    """Return what a run's self-repair did, in words."""
    layers = pd.read_csv(HERE / f"{name}_self_repair.csv")
    rows = layers.groupby("step")["rows"].sum()
    hidden = (layers["rows"] * layers["interaction"]).groupby(layers["step"]).sum() / rows
    most, last = rows.idxmax(), rows.index[-1]
    return (
        f"{TASKS[name].capitalize()}: at most {rows[most]:.1f} rows per example, at step {most}, and {rows[last]:.1f} "
        f"at the end; their mean interaction is {hidden[most]:+.4f} and {hidden[last]:+.4f} nats."
    )


def swing(name: str) -> str:
    """Return the largest change of OOD exact match from one snapshot to the next, in percentage points."""
    accuracy = pd.read_csv(HERE / f"{name}_steps.csv")["ood_exact_match"]
    return f"{100 * accuracy.diff().abs().max():.0f} points"


def verdict() -> str:
    """Return what the scores' rho says of GIM, in words that follow the numbers."""
    sentences = []
    for name, task in COMPARED.items():
        table = pd.read_csv(HERE / f"{name}_agreement.csv")
        inside = table[table["step"].isin(inside_window(name)["step"]) & (table["score"] == "exact_match")]
        median = inside.groupby("measure")["rho"].median()
        gim, plain = median["|gim|"], median["gradient_norm"]
        best = median[["|gradient|", "|ig|"]].idxmax()
        change = (
            "closer to C than"
            if gim > plain + NEAR
            else "further from C than"
            if gim < plain - NEAR
            else "as close to C as"
        )
        sentences.append(
            f"In {task}, GIM is {change} G (median rho {gim:.2f} against {plain:.2f}); {MEASURES[best]} reaches "
            f"{median[best]:.2f}."
        )
    return " ".join(sentences)


def text() -> str:
    """Return the findings in short, as the README states them."""
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

### What is beyond chance

By permutation of components, two-sided p below {LEVEL:g} at a snapshot, C by accuracy; snapshots of one run are not
independent of each other.

{beyond_chance()}

These are single runs: names and counts may change with the seed. Reversal does not hold what it has learned out of
distribution: from one snapshot to the next its OOD exact match moved by up to {swing("reverse")} (sorting:
{swing("sort")}). A positive rho goes with fewer heroes and bloats than luck alone gives. And depth and kind alone move
ranks: in pre-LN models the gradient falls with depth, and heads differ from MLPs in scale, which makes early bloats and
late heroes.

{fill(f"Does GIM close the gap? {verdict()} More, with faithfulness and self-repair: [findings](docs/findings.md).")}

Pictures: [sorting](docs/results/sort.svg), [reversal](docs/results/reverse.svg).
"""


def details() -> str:
    """Return the findings on attributions, faithfulness and self-repair, as docs/findings.md states them."""
    agreements = "\n".join(agreement(name) for name in COMPARED)
    rankings = "\n".join(faithful(name) for name in TASKS)
    low, high = (f"{share:.0%}" for share in WINDOW)
    found = {task: Chance(name, inside_window(name)["step"]) for name, task in TASKS.items()}
    depths = "\n".join(line for task, chance in found.items() for line in chance.lines(task))
    layers = "\n".join(line for task, chance in found.items() for line in chance.layer_lines(task))
    together = "\n".join(
        line for name, task in COMPARED.items() for line in lines(name, task, inside_window(name)["step"])
    )
    rows = "; ".join(f"{task}: {faithfulness_rows(name)}" for name, task in TASKS.items())
    area = (
        "CPR: the area under the share of the score that the k highest ranked components bring back alone; median "
        f"(least to most) over the run ({rows}). Attributions are ranked with their sign; `random` is one fixed order."
    )
    return f"""## How much of the gap is depth and kind?

Spearman's rho of G and C (by accuracy) among fewer and fewer components, or given their layer and kind: the median over
the snapshots whose OOD exact match lies between {low} and {high}, and at how many of them it is positive and beyond
chance (permutation, two-sided p below {LEVEL:g}).

| task | rho | median | beyond chance |
| --- | --- | --- | --- |
{depths}

Where the roles lie, in the same snapshots: mean numbers of heroes and of bloats in each layer, and at how many
snapshots there are more than the 95 % band of luck holds.

| task | layer | by luck, of each | heroes | more than luck | bloats | more than luck |
| --- | --- | --- | --- | --- | --- | --- |
{layers}

## Does GIM close the gap?

Spearman's rho with causal importance C of gradient magnitude G and of the size of three attributions (absolute value
of the mean over examples), in the snapshots whose OOD exact match lies between {low} and {high}: median (least to
most), and in how many of them it was above that of G.

| task | score of a component | rho (accuracy) | above G | rho (loss) | above G |
| --- | --- | --- | --- | --- | --- |
{agreements}

{fill(verdict())}

## Does a ranking find what the model needs?

{fill(area)}

| task | ranking | CPR (accuracy) | CPR (loss) |
| --- | --- | --- | --- |
{rankings}

## Do components of a role stand in for each other?

All Bloats of a snapshot mean-ablated together, and all Heroes, against the same components one at a time: means over
the rows inside the window, and ratios of these means. The ratio to the sum is 1 where effects add up, and more where
components stand in for each other; accuracy cannot fall below 0, which holds large effects down. The ratio to the mean
is the one that the paper gives as 14. Random sets of the same sizes are the control.

{HEAD}
{together}

## Attention self-repair

{fill("Over all heads, threshold 0.01 nat. " + " ".join(repaired(name) for name in TASKS))}
"""


def fill(words: str) -> str:
    """Return a paragraph of lines that are not too long."""
    return textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False)


def write_text() -> None:
    """Put the findings into the README and docs/findings.md."""
    for page, findings in ((README, text()), (PAGE, details())):
        before, _, rest = page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(before + BEGIN + findings + END + after)


if __name__ == "__main__":
    if "--text-only" not in sys.argv:
        for name in COMPARED:
            read(name)
        draw_run("runs/demo/run.h5", HERE / "demo.png", panels=("accuracy", "roles"))
    write_text()
