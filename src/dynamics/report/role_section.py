"""Section on roles: how many heroes and bloats there are against chance, which are surest, when they come, and go."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynamics.analysis.roles import BLOAT, HERO
from dynamics.report.given import Given
from dynamics.report.section import Section, Table, records
from dynamics.report.words import BY, number, p_is, percent, probability, several, span, whole

PLURAL = {HERO: "heroes", BLOAT: "bloats"}
SHOWN = 6
"""Surest components of each role that are shown unless all are asked for."""


def role_section(given: Given) -> Section:
    """Return the roles by the leading score."""
    found = given.found
    steps, where = given.chosen()
    counts = found.counts[found.counts["step"].isin(steps)]
    whole_model = counts[counts["layer"].isna()]
    sentences = [
        f"C by {BY[given.score]}. A hero is needed far more than its gradient shows, a bloat far less; {where}:",
        *(_count_words(role, whole_model[whole_model["role"] == role], 1 - given.level) for role in PLURAL),
    ]
    surest = surest_table(given, steps)
    for role, plural in PLURAL.items():
        kept = surest[(surest["role"] == role) & (surest["held"] == len(steps)) & (len(steps) > 1)]["component"]
        if len(kept):
            sentences.append(f"{plural.capitalize()} at each of them: {_few(kept.tolist())}.")
    sentences += _stability(found.turnover)
    tables = [_layer_table(counts, found.emergence, role) for role in PLURAL]
    tables += [_surest(surest, role, plural) for role, plural in PLURAL.items()]
    tables.append(_threshold_table(found.thresholds, found.timeline.threshold))
    data = {"counts": found.counts, "episodes": found.episodes, "emergence": found.emergence,
            "turnover": found.turnover, "stability": found.stability, "thresholds": found.thresholds}  # fmt: skip
    return Section("roles", "Which components are heroes and bloats?", tuple(sentences), tuple(tables), data)


def _few(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _count_words(role: str, rows: pd.DataFrame, level: float) -> str:
    plural, n = PLURAL[role], len(rows)
    last = records(rows)[-1]
    band = f"95% of luck: {span(last['low'], last['high'], 0)}".replace("95%", percent(level))
    if n == 1:
        noun = role if last["count"] == 1 else plural
        return f"{whole(last['count'])} {noun}; luck gives {number(last['chance'])} ({band}), {p_is(last['p_value'])}."
    more, fewer = (int(side.sum()) for side in outside(rows))
    return (
        f"{number(rows['count'].mean(), 1)} {plural} on average; luck gives {number(rows['chance'].mean())} ({band}): "
        f"more than that at {more} of {n}, fewer at {fewer}."
    )


def outside(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return at which snapshots the count is above the band of luck, and at which below."""
    return rows["count"] > rows["high"], rows["count"] < rows["low"]


def _stability(turnover: pd.DataFrame) -> list[str]:
    known = turnover.dropna(subset=["share"])
    if known.empty:
        return ["Turnover needs two snapshots with roles."]
    compared = known["compared"].sum()
    return [
        f"From one snapshot to the next {percent(known['changed'].sum() / compared)} of components change their role; "
        f"{percent(known['chance'].sum() / compared)} would if roles were dealt anew ({several(len(known), 'pair')} of "
        "snapshots). A role held by luck is held on, too, while a model changes little."
    ]


def _layer_table(counts: pd.DataFrame, emergence: pd.DataFrame, role: str) -> Table:
    onset = emergence[emergence["role"] == role].set_index("layer")["first_onset"]
    own = counts[counts["role"] == role].dropna(subset="layer")
    more, fewer = outside(own)
    frame = (
        own.assign(more=more, fewer=fewer)
        .groupby("layer", as_index=False)
        .agg(
            components=("components", "first"), snapshots=("step", "size"), mean=("count", "mean"),
            chance=("chance", "mean"), more=("more", "sum"), fewer=("fewer", "sum"), p_value=("p_value", "last"),
        )
    )  # fmt: skip
    frame = frame.assign(role=role, first_onset=onset.reindex(frame["layer"]).to_numpy())
    how = " More, fewer: snapshots that luck's band leaves out; p: at the last of them." if role == HERO else ""
    return Table(
        f"layers_{PLURAL[role]}",
        f"{PLURAL[role].capitalize()} by layer: mean number, and the step from which one keeps the role.{how}",
        frame,
        {
            "layer": lambda row: whole(row["layer"]),
            "of": lambda row: whole(row["components"]),
            PLURAL[role]: lambda row: number(row["mean"], 1),
            "by chance": lambda row: number(row["chance"], 1),
            "more": lambda row: f"{row['more']} of {row['snapshots']}",
            "fewer": lambda row: f"{row['fewer']} of {row['snapshots']}",
            "p": lambda row: probability(row["p_value"]),
            "from step": lambda row: whole(row["first_onset"]),
        },
    )


def surest_table(given: Given, steps: np.ndarray) -> pd.DataFrame:
    """Return how sure each component's role is: a row per role and component that ever has it at the steps.

    ``role, component, layer, kind``; ``snapshots`` and at how many it ``held`` the role; ``probability``: mean share
    of resamples with the role; median ``delta``; ``longest``: most snapshots in a row over the whole run; ``onset``:
    where its first episode begins, and ``episode_probability``, the mean probability in it.
    """
    found = given.found
    table = found.role_probability[found.role_probability["step"].isin(steps)].reset_index(drop=True)
    roles = found.timeline.gap_table()
    table["now"] = roles.loc[roles["step"].isin(steps), "role"].to_numpy()
    longest = found.stability.set_index(["component", "role"])["longest"]
    first = found.episodes.groupby(["component", "role"])[["onset", "probability"]].first()
    parts = []
    for role in PLURAL:
        grouped = table.assign(held=table["now"] == role).groupby("component", sort=False)
        part = grouped.agg(
            layer=("layer", "first"), kind=("kind", "first"), snapshots=("step", "size"), held=("held", "sum"),
            probability=(f"p_{role}", "mean"), delta=("delta", "median"),
        )  # fmt: skip
        part = part[part["held"] > 0].reset_index()
        part.insert(0, "role", role)
        keys = pd.MultiIndex.from_product([part["component"], [role]])
        part["longest"] = longest.reindex(keys).to_numpy()
        part["onset"] = first["onset"].reindex(keys).astype("Int64").to_numpy()
        part["episode_probability"] = first["probability"].reindex(keys).to_numpy()
        parts.append(part.sort_values(["probability", "held"], ascending=False, kind="stable"))
    return pd.concat(parts, ignore_index=True)


def _surest(surest: pd.DataFrame, role: str, plural: str) -> Table:
    how = ": mean share of resamples with the role, snapshots that have it, most in a row in the whole run"
    return Table(
        f"surest_{plural}",
        f"Surest {plural}{how if role == HERO else ', likewise'}.",
        surest[surest["role"] == role].reset_index(drop=True),
        {
            role: lambda row: row["component"],
            "probability": lambda row: number(row["probability"]),
            "snapshots": lambda row: f"{row['held']} of {row['snapshots']}",
            "gap": lambda row: number(row["delta"], 1),
            "in a row": lambda row: whole(row["longest"]),
            "from step": lambda row: whole(row["onset"]),
        },
        (role,),
        most=SHOWN,
    )


def _threshold_table(thresholds: pd.DataFrame, own: float) -> Table:
    rows = []
    for tau, part in thresholds.groupby("threshold"):
        both = {row["role"]: row for row in records(part)}
        rows.append(
            {"threshold": tau, "chance": both[HERO]["chance"], "turnover": both[HERO]["turnover"],
             "same": both[HERO]["same"]}
            | {plural: both[role]["mean_count"] for role, plural in PLURAL.items()}
            | {f"confirmed_{plural}": both[role]["confirmed"] for role, plural in PLURAL.items()}
        )  # fmt: skip
    return Table(
        "thresholds",
        f"Were tau another than {own:g}: mean numbers over all snapshots, components that ever keep the role, roles "
        "that stay.",
        pd.DataFrame(rows),
        {
            "tau": lambda row: f"{row['threshold']:g}",
            "chance": lambda row: number(row["chance"], 1),
            "heroes": lambda row: number(row["heroes"], 1),
            "kept": lambda row: whole(row["confirmed_heroes"]),
            "bloats": lambda row: number(row["bloats"], 1),
            "kept ": lambda row: whole(row["confirmed_bloats"]),
            "same roles": lambda row: percent(row["same"]),
        },
    )
