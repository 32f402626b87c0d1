"""Sections on grokking, synergy, self-repair and faithfulness: what a run need not have recorded."""

from __future__ import annotations

from dynamics.analysis import faithfulness_table, self_repair_by_layer
from dynamics.errors import AnalysisError
from dynamics.report.given import Given
from dynamics.report.rho_sections import measure_titles
from dynamics.report.section import Section, Table, records
from dynamics.report.words import BY, UNIT, number, sentence, several, span, whole


def grokking_section(given: Given) -> Section:
    """Return when the model fitted and generalised, and what came before and after."""
    found = given.findings.grokking
    table = Table(
        "delays",
        "t_mem: training accuracy is high; t_gen: held-out accuracy is.",
        found.delays,
        {
            "accuracy": lambda row: row["series"],
            "by": lambda row: row["method"],
            "t_mem": lambda row: whole(row["t_mem"]),
            "t_gen": lambda row: whole(row["t_gen"]),
            "ratio": lambda row: number(row["ratio"]),
            "range": lambda row: span(row["ratio_low"], row["ratio_high"]),
            "verdict": lambda row: row["verdict"],
        },
        ("accuracy", "by", "verdict"),
    )
    data = {"times": found.times, "events": found.events, "lags": found.lags}
    return Section("grokking", "Grokking: when is it learned, what comes before and after?",
                   tuple(found.text().split("\n\n")), (table,), data)  # fmt: skip


def synergy_section(given: Given) -> Section:
    """Return what ablating all bloats, or all heroes, together costs, beside random sets of the same size."""
    found = given.findings.synergy
    if found is None:
        raise AnalysisError("not recorded; track with a schedule, such as synergy=5000")
    own = found[(found["score"] == given.score) & (found["size"] > 0)]
    if own.empty:
        raise AnalysisError("no recorded set has a component" if len(found) else "no row is recorded yet")
    latest = own["step"].max()
    sentences = [
        f"C_S: what ablating all components of a set together costs ({UNIT[given.score]}; mean ablation). x sum: 1 if "
        "effects add up; above it, components stand in for each other. x mean: the paper's 14x.",
    ]
    for row in records(own[own["step"] == latest]):
        where = (
            "no random set to compare with" if not row["draws"]
            else "more than every random set" if row["joint"] > row["control_high"]
            else "less than every random set" if row["joint"] < row["control_low"]
            else "within the range of random sets"
        )  # fmt: skip
        sentences.append(
            f"At step {whole(latest)} the {several(row['size'], row['set'].removesuffix('s'))} together cost "
            f"{number(row['joint'])}, {where} of that size ({several(row['draws'], 'draw')}: "
            f"{span(row['control_low'], row['control_high'])})."
            if row["draws"]
            else f"At step {whole(latest)} the {row['set']} together cost {number(row['joint'])}; {where}."
        )
    table = Table(
        "synergy",
        "Latest first. Random: mean C_S of random sets of the same size, and its ratio to their sum.",
        own.iloc[::-1].reset_index(drop=True),
        {
            "step": lambda row: whole(row["step"]),
            "set": lambda row: row["set"],
            "n": lambda row: whole(row["size"]),
            "C_S": lambda row: number(row["joint"]),
            "sum": lambda row: number(row["sum"]),
            "x sum": lambda row: number(row["ratio_to_sum"]),
            "x mean": lambda row: number(row["ratio_to_mean"], 1),
            "random": lambda row: number(row["control_joint"]),
            "x sum ": lambda row: number(row["control_ratio_to_sum"]),
        },
        ("set",),
        most=6,
    )
    return Section("synergy", "Do components stand in for each other?", tuple(sentences), (table,), {"synergy": found})


def self_repair_section(given: Given) -> Section:
    """Return in how many attention rows self-repair can happen, and how much it hides."""
    run = given.findings.run
    if "self_repair_rows" not in set(run):
        raise AnalysisError('not recorded; track with measurements="all", or with "self_repair" among them')
    found = self_repair_by_layer(run)
    step = run.steps[-1]
    last = found[found["step"] == step].reset_index(drop=True)
    hides = last[last["interaction"] > 0]
    where = f"At the end (step {whole(step)})"
    if not (last["rows"] > 0).any():
        text = f"{where} no attention row has two positions that contribute enough."
    elif hides.empty:
        text = f"{where} removing two positions together costs no more than one by one, in no layer."
    else:
        most = records(hides.nlargest(1, "interaction"))[0]
        text = (
            f"{where} removing the two largest scores of an attention row together costs more than one by one in "
            f"{len(hides)} of {several(len(last), 'layer')}, most in layer {int(most['layer'])}: "
            f"{number(most['interaction'], 3)} nats a row."
        )
    table = Table(
        "self_repair",
        f"Step {whole(step)}: rows per example that count, and their mean interaction (nats; above 0: each hides the "
        "other).",
        last,
        {
            "layer": lambda row: whole(row["layer"]),
            "rows": lambda row: number(row["rows"], 1),
            "interaction": lambda row: number(row["interaction"], 4),
        },
    )
    heading = "Does attention repair itself?"
    return Section("self_repair", heading, (text,), (table,), {"self_repair_by_layer": found})


def faithfulness_section(given: Given) -> Section:
    """Return how much of the model the components that each score ranks highest bring back."""
    run = given.findings.run
    if run.faithfulness is None:
        raise AnalysisError("not recorded; track with a schedule, such as faithfulness=5000")
    found = faithfulness_table(run, given.score)
    if found.empty:
        raise AnalysisError("no row is recorded yet")
    step = found["step"].iloc[-1]
    last = found[found["step"] == step].sort_values("cpr", ascending=False, kind="stable").reset_index(drop=True)
    known = last.dropna(subset="cpr")
    titles = measure_titles(run.methods)
    if known.empty:
        raise AnalysisError(f"at step {whole(step)} it is undefined: {records(last)[0]['reason']}")
    best, worst = records(known)[0], records(known)[-1]
    names = [titles.get(row["ranking"], row["ranking"]) for row in (best, worst)]
    words = (
        f"At step {whole(step)}, scored by {BY[given.score]}: of {several(len(known), 'ranking')}, {names[0]} brings "
        f"most back (CPR {number(best['cpr'])}), {names[1]} least ({number(worst['cpr'])})."
    )
    table = Table(
        "faithfulness",
        "Only the k highest ranked components are kept, for every k. CPR: area under what they bring back, higher is "
        "better; CMD: distance from the whole model, lower is better.",
        last,
        {
            "ranked by": lambda row: titles.get(row["ranking"], row["ranking"]),
            "CPR": lambda row: number(row["cpr"]),
            "CMD": lambda row: number(row["cmd"]),
        },
        ("ranked by",),
    )
    heading = "Do the components that a score ranks highest carry the model?"
    data = {"faithfulness": found}
    return Section("faithfulness", heading, (sentence(words),), (table,), data)
