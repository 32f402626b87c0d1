"""Sections on rho: does the gradient rank components as ablation does, is that more than depth, which score does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dynamics.analysis import SCORES
from dynamics.analysis.agreement import GRADIENT_NORM, magnitude
from dynamics.analysis.rank_measures import ALL, HEADS, HEADS_WITHIN_LAYERS, PARTIAL, WITHIN_LAYERS
from dynamics.errors import AnalysisError
from dynamics.report.given import Given
from dynamics.report.section import Section, Table, records
from dynamics.report.words import (
    BY,
    NONE,
    number,
    p_is,
    percent,
    probability,
    sentence,
    several,
    span,
    whole,
)

MEASURES = {
    ALL: "all components",
    HEADS: "heads alone",
    WITHIN_LAYERS: "within layers",
    HEADS_WITHIN_LAYERS: "heads within layers",
    PARTIAL: "given layer and kind",
}
METHODS = {"gradient": "attribution patching", "gim": "GIM", "ig": "integrated gradients"}


def rho_section(given: Given) -> Section:
    """Return rho by both scores, in the window and at the end, with what luck gives."""
    n = len(given.findings.run.components)
    sentences = [
        f"rho is Spearman's correlation of gradient magnitude G and causal importance C over the {n} components: 1 if "
        "they rank them alike, 0 if one says nothing of the other."
    ]
    rows, data = [], {}
    for score in SCORES:
        try:
            table = given.findings.by[score].rho
        except AnalysisError as error:
            sentences.append(f"C by {BY[score]}: {error}")
            continue
        data[f"rho_{score}"] = table
        last = records(table.iloc[-1:])[0]
        inside = table[table["step"].isin(given.inside(score))]
        if inside.empty:
            sentences.append(_nothing_inside(given, score))
        else:
            where = given.chosen(score)[1]
            sentences.append(f"C by {BY[score]}, {where}: {_beyond(inside, 'p_null', given.level)}.")
        sentences.append(_at_end(last, "p_null", given.level, BY[score]))
        rows.append(_window_row(inside, score) | {"step": last["step"]} | {name: last[name] for name in _LAST})
    if not rows:
        raise AnalysisError(sentences[-1].partition(": ")[2])
    level = percent(given.findings.resampling.level)
    end = Table(
        "rho_end",
        f"At the last snapshot. By chance: what {level} of random pairings give. Tied: components that share their C "
        "with another. C ~ 0: components whose C cannot be told from 0.",
        pd.DataFrame(rows),
        {
            "C by": lambda row: BY[row["score"]],
            "rho": lambda row: number(row["rho"]),
            "interval": lambda row: span(row["low"], row["high"]),
            "by chance": lambda row: span(row["null_low"], row["null_high"]),
            "p": lambda row: probability(row["p_null"]),
            "tied": lambda row: percent(row["ties"]),
            "C ~ 0": lambda row: percent(row["indistinguishable"]),
        },
        ("C by",),
    )
    return Section("rho", "Does the gradient rank components as ablation does?", tuple(sentences), (end,), data)


_LAST = ("rho", "low", "high", "null_low", "null_high", "p_null", "ties", "indistinguishable", "reason")


def _window_row(inside: pd.DataFrame, score: str) -> dict[str, Any]:
    medians = {f"window_{name}": inside[name].median() for name in ("rho", "ties", "indistinguishable")}
    return {"score": score, "window_snapshots": len(inside), **medians}


def _nothing_inside(given: Given, score: str) -> str:
    accuracy = given.accuracy
    known = given.defined(score)
    if known.empty:
        return sentence(given.no_rho(score))
    if accuracy.empty:
        return f"C by {BY[score]}: no accuracy was recorded, so that no snapshot can lie in the window."
    least, most = percent(accuracy.min()), percent(accuracy.max())
    return (
        f"C by {BY[score]}: no snapshot with a rho lies in the window, {given.range}; the probe's accuracy goes from "
        f"{least} to {most}."
    )


def _beyond(rows: pd.DataFrame, p: str, level: float) -> str:
    """Return the median of rho over snapshots, and at how many it is beyond chance."""
    agree, against = beyond(rows, p, level)
    least, most = rows["rho"].min(), rows["rho"].max()
    spread = f" (from {span(least, most)})" if len(rows) > 1 else ""
    negative = f", negative and beyond chance at {against}" if against else ""
    median = f"{'median ' if spread else ''}rho {number(rows['rho'].median())}{spread}"
    return f"{median}; positive and beyond chance at {agree} of {len(rows)}{negative}"


def beyond(rows: pd.DataFrame, p: str, level: float) -> tuple[int, int]:
    """Return at how many snapshots rho is beyond chance and positive, and at how many beyond chance and negative."""
    small = rows[p] < level
    return int((small & (rows["rho"] > 0)).sum()), int((small & (rows["rho"] < 0)).sum())


def _at_end(last: Mapping[str, Any], p: str, level: float, by: str) -> str:
    where = f"At the end (step {whole(last['step'])}) by {by}"
    if pd.isna(last["rho"]):
        return f"{where}: no rho, since {last['reason']}."
    interval = "no interval, since " + last["reason_interval"] if pd.isna(last["low"]) else (
        f"interval {span(last['low'], last['high'])}"
    )  # fmt: skip
    verdict = "beyond chance" if last[p] < level else "not beyond chance"
    return (
        f"{where}: rho {number(last['rho'])} ({interval}); luck gives {span(last['null_low'], last['null_high'])}, "
        f"{p_is(last[p])}: {verdict}."
    )


def _often(row: Mapping[str, Any]) -> str:
    return f"{row['beyond'] + row['beyond_negative']} of {row['snapshots']}" if row["snapshots"] else NONE


def depth_section(given: Given) -> Section:
    """Return how much of rho and of the gaps is depth and kind."""
    found = given.found
    steps, where = given.chosen()
    shares = found.depth_share[found.depth_share["step"].isin(steps)].groupby("factor", sort=False)
    both = shares.get_group("layer and kind")
    last = records(both)[-1]
    more, median = int((both["p_value"] < given.level).sum()), " (median)" if len(both) > 1 else ""
    sentences = [
        "In pre-LN models the gradient falls with depth whatever the components do, and heads differ from MLPs in "
        "scale: rho may be high, and roles frequent, for that alone.",
        f"C by {BY[given.score]}, {where}: {percent(both['share'].median())} of the gaps' sum of squares is layer and "
        f"kind{median}; chance would give {percent(last['chance'])}. It is beyond chance at {more} of {len(both)}.",
    ]
    by_measure = found.depth[found.depth["step"].isin(steps)].groupby("measure", sort=False)
    rows = []
    for measure, part in by_measure:
        end = records(part)[-1]
        agree, against = beyond(part, "p_value", given.level)
        rows.append(
            {"measure": measure, "n": end["n"], "snapshots": len(part), "median": part["rho"].median(),
             "beyond": agree, "beyond_negative": against, **_end(end)}
        )  # fmt: skip
    named = {row["measure"]: row for row in rows}
    for measure in (WITHIN_LAYERS, HEADS_WITHIN_LAYERS):
        row = named[measure]
        if not np.isnan(row["median"]):
            sentences.append(
                f"{sentence(MEASURES[measure])[:-1]} rho is {number(row['median'])} instead of "
                f"{number(named[ALL]['median'])}, beyond chance at {row['beyond'] + row['beyond_negative']} of "
                f"{row['snapshots']}."
            )
    table = Table(
        "depth",
        f"rho with less and less of depth and kind in it; interval and p are of step {whole(steps[-1])}.",
        pd.DataFrame(rows),
        {
            "ranked": lambda row: MEASURES[row["measure"]],
            "n": lambda row: whole(row["n"]),
            "median": lambda row: number(row["median"]),
            "beyond chance": _often,
            f"at {whole(steps[-1])}": lambda row: number(row["rho"]),
            "interval": lambda row: span(row["low"], row["high"]),
            "p": lambda row: probability(row["p_value"]),
        },
        ("ranked",),
    )
    data = {"depth": found.depth, "depth_share": found.depth_share}
    return Section("depth", "How much of that is depth and kind?", tuple(sentences), (table,), data)


def _end(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("step", "rho", "low", "high", "null_low", "null_high", "p_value")
    return {name: row[name] for name in names}


def agreement_section(given: Given) -> Section:
    """Return how well each recorded score ranks components as ablation does, and how well two ablations agree."""
    found = given.findings.agreement
    titles = measure_titles(given.findings.run.methods)
    order = sorted(found["score"].unique(), key=lambda score: score != given.score)
    frames = {score: _agreement_rows(given, found[found["score"] == score], score) for score in order}
    sentences = _best(given, frames[given.score], titles)
    other, data = given.findings.ablation_agreement, {"agreement": found}
    if other is None:
        sentences.append("Only one ablation baseline was recorded, so that two cannot be compared.")
    else:
        data["ablation_agreement"] = other
        own = other[other["score"] == given.score].dropna(subset="rho")
        if len(own):
            lowest = records(own.nsmallest(1, "rho"))[0]
            sentences.append(
                f"Mean and zero ablation agree with rho {number(own['rho'].median())} (median of "
                f"{several(len(own), 'snapshot')}; least {number(lowest['rho'])}, at step {whole(lowest['step'])})."
            )
    notes = {given.score: " |…| is a score's size without its sign; G has none. Interval and p: at the end."}
    tables = tuple(
        Table(
            f"agreement_{score}",
            f"rho with C by {BY[score]}: median in the window, and at the end.{notes.get(score, '')}",
            frame,
            {
                f"score, C by {BY[score]}": lambda row: titles.get(row["measure"], row["measure"]),
                "window": lambda row: number(row["median"]),
                "beyond chance": _often,
                "end": lambda row: number(row["rho"]),
                "interval": lambda row: span(row["low"], row["high"]),
                "p": lambda row: probability(row["p_value"]),
            },
            (f"score, C by {BY[score]}",),
            most=len(frame),
        )
        for score, frame in frames.items()
    )
    heading = "Which score ranks components as ablation does?"
    return Section("agreement", heading, tuple(sentences), tables, data)


def _agreement_rows(given: Given, table: pd.DataFrame, score: str) -> pd.DataFrame:
    rows, steps = [], given.inside(score)
    for measure, part in table.groupby("measure", sort=False):
        inside = part[part["step"].isin(steps)]
        agree, against = beyond(inside, "p_value", given.level)
        rows.append(
            {"score": score, "measure": measure, "snapshots": len(inside), "median": inside["rho"].median(),
             "beyond": agree, "beyond_negative": against, **_end(records(part)[-1])}
        )  # fmt: skip
    frame = pd.DataFrame(rows)
    return frame.sort_values(_by(frame), ascending=False, kind="stable", ignore_index=True)


def _by(frame: pd.DataFrame) -> str:
    return "median" if frame["median"].notna().any() else "rho"


def _best(given: Given, frame: pd.DataFrame, titles: Mapping[str, str]) -> list[str]:
    by = _by(frame)
    known = [row for row in records(frame) if not pd.isna(row[by])]
    if not known:
        return []
    names = [row["measure"] for row in known]
    own = ""
    if GRADIENT_NORM in names[1:]:
        place = names.index(GRADIENT_NORM)
        own = f"; G comes {_place(place, len(names))}, with {number(known[place][by])}"
    where = "in the window (median)" if by == "median" else "at the end"
    best, highest = titles.get(names[0], names[0]), number(known[0][by])
    if known[0][by] <= 0:
        return [f"C by {BY[given.score]}: no score ranks as ablation does {where}; the highest rho is {highest}."]
    return [f"C by {BY[given.score]}: {best} ranks most as ablation does {where}, rho {number(known[0][by])}{own}."]


def measure_titles(methods: Sequence[str]) -> dict[str, str]:
    """Return what readers call the scores of components, by their names in tables."""
    titles = {GRADIENT_NORM: "gradient magnitude G"}
    for method in methods:
        title = METHODS.get(method, method)
        titles |= {method: title, magnitude(method): magnitude(title)}
    return titles


def _place(index: int, n: int) -> str:
    return "last" if index == n - 1 else ("first", "second", "third")[index] if index < 3 else f"{index + 1}th of {n}"
