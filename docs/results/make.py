"""Turn run files into findings: tables beside this file, pictures, and text in the README and docs/findings.md.

``python docs/results/make.py`` reads ``runs/{demo,sort,reverse}/run.h5`` and ``runs/demo-*/run.h5`` (see ``make
results``); with ``--text-only`` it rewrites the text, which stands between two markers, from the tables that are here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from chance import write_tables
from pages import COMPARED, SCORES, TASKS, details, excerpt, text
from seeds import read_seeds
from together import write_table

from dynamics import open_run
from dynamics.analysis import (
    accuracy_table,
    agreement_table,
    faithfulness_table,
    gap_table,
    rho_table,
    self_repair_by_layer,
)
from dynamics.plot import draw_run
from dynamics.report import report_on, write

HERE = Path(__file__).parent
README, PAGE = HERE.parents[1] / "README.md", HERE.parent / "findings.md"
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"
REPORT, REPORT_END = "<!-- report -->\n", "<!-- /report -->"
SHOWN = ("accuracy", "rho", "roles", "layers")
"""The panels that the README shows."""


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
        draw_run(path, HERE / f"{name}_short.svg", panels=SHOWN)
        write(report_on(path), HERE / f"{name}_report.md")


def write_text() -> None:
    """Put the findings into the README and docs/findings.md."""
    for page, findings in ((README, text()), (PAGE, details())):
        put(page, BEGIN, findings, END)
    put(README, REPORT, excerpt(), REPORT_END)


def put(page: Path, begin: str, words: str, end: str) -> None:
    """Put words between the marks of a page."""
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(before + begin + words + end + after)


if __name__ == "__main__":
    if "--text-only" not in sys.argv:
        for name in COMPARED:
            read(name)
        read_seeds()
        draw_run("runs/demo/run.h5", HERE / "demo.png", panels=("accuracy", "roles"))
    write_text()
