"""A grokking report in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from dynamics.analysis.accuracy import PROBE
from dynamics.analysis.lead_lag import NORM_TURN, RHO_CHANGE, ROLE_ONSET
from dynamics.analysis.roles import BLOAT, HERO

if TYPE_CHECKING:
    from dynamics.analysis.grokking import GrokkingReport

_MEANING = {
    PROBE: "the probe",
    "id/exact_match": "in distribution (id/exact_match)",
    "ood/exact_match": "out of distribution (ood/exact_match)",
}
_TURNS = {RHO_CHANGE: "rho's largest change of level", NORM_TURN: "the turn of the weight norm"}


def render(report: GrokkingReport) -> str:
    """Return the report as paragraphs, separated by blank lines."""
    paragraphs = [_training(report)]
    paragraphs += [_held_out(report, name) for name in report.held_out]
    paragraphs.append(_around(report))
    return "\n\n".join(paragraphs)


def _training(report: GrokkingReport) -> str:
    if report.train is None:
        return "Training: no accuracy was logged, so t_mem is open."
    times = _methods(report, report.train)
    window = report.rule.train_window
    averaged = f" in means of {window} rows" if window > 1 else ""
    words = [f"Training ({report.train}{averaged}): {_crossing(times['threshold'], 't_mem')}"]
    words.append(_rise(report, times["sigmoid"]))
    if report.fresh:
        words.append("Every training batch was drawn anew: t_mem says when the task is learned, nothing is memorised.")
    return " ".join(words)


def _held_out(report: GrokkingReport, name: str) -> str:
    times = _methods(report, name)
    words = [f"{_sentence(_MEANING.get(name, name))}: {_crossing(times['threshold'], 't_gen')}"]
    words.append(_rise(report, times["sigmoid"]))
    for row in _records(report.delays[report.delays["series"] == name]):
        delay = "" if pd.isna(row["ratio"]) else (
            f"t_gen / t_mem = {_number(row['ratio'])} ({_number(row['ratio_low'])} to {_number(row['ratio_high'])}), "
        )  # fmt: skip
        words.append(f"By {row['method']}: {delay}{row['verdict']}, since {row['reason']}.")
    return " ".join(words)


def _crossing(row: dict[str, Any], symbol: str) -> str:
    if row["reason"] is not None:
        return f"no {symbol} by threshold: {row['reason']}."
    weak = "" if row["confirmed"] else "; too few rows follow to confirm it"
    since = f"after step {_step(row['low'])}" if row["low"] < row["step"] else "the first row"
    return (
        f"{symbol} by threshold ({row['threshold']:.0%}) is step {_step(row['step'])} ({since}), and {row['kept']:.0%} "
        f"of the rows from there on reach it{weak}."
    )


def _rise(report: GrokkingReport, row: dict[str, Any]) -> str:
    if row["reason"] is not None:
        return f"No sigmoid: {row['reason']}."
    return (
        f"A sigmoid rises from {row['start']:.0%} to {row['end']:.0%}, half of it at step {_step(row['step'])} "
        f"({report.rule.confidence:.0%} interval {_step(row['low'])} to {_step(row['high'])}; it explains "
        f"{row['explained']:.0%} of the variance)."
    )


def _around(report: GrokkingReport) -> str:
    """Return what came before and after the reference's t_gen: by threshold, or else by the sigmoid."""
    times = _methods(report, report.reference)
    method = next((method for method in ("threshold", "sigmoid") if times[method]["reason"] is None), None)
    name = _MEANING.get(report.reference, report.reference)
    if method is None:
        return f"Lead and lag: {name} has no t_gen, so nothing comes before or after it."
    at = times[method]["step"]
    lags = report.lags[(report.lags["series"] == report.reference) & (report.lags["method"] == method)]
    share = (report.steps < at).mean()
    words = [
        f"Lead and lag, by {report.score}, around t_gen of {name} by {method} (step {_step(at)}; {share:.0%} of the "
        f"{len(report.steps)} snapshots lie before it). What comes before is no cause by that alone."
    ]
    onsets = lags[lags["event"] == ROLE_ONSET]
    for role, plural in ((HERO, "heroes"), (BLOAT, "bloats")):
        of_role = onsets[onsets["role"] == role]
        if of_role.empty:
            words.append(f"No component becomes a {role}.")
            continue
        counts = ", ".join(f"{(of_role['order'] == order).sum()} {order}" for order in ("before", "after", "open"))
        first = of_role.iloc[0]
        words.append(
            f"First onsets of {plural}: {len(of_role)} ({counts}), the first of {first['component']} at step "
            f"{_step(first['step'])}."
        )
    for event in _records(report.events[report.events["event"] != ROLE_ONSET]):
        turn = _TURNS[event["event"]]
        if event["reason"] is not None:
            words.append(f"No step for {turn}: {event['reason']}.")
            continue
        lag = _records(lags[lags["event"] == event["event"]])[0]
        size = f"{event['size']:+.2f}" if event["event"] == RHO_CHANGE else f"{event['size']:+.1%}"
        order = {"open": "before or after it cannot be told"}.get(lag["order"], f"{lag['order']} it")
        words.append(
            f"{_sentence(turn)} ({size}) is at step {_step(event['step'])} ({_step(event['low'])} to "
            f"{_step(event['high'])}): {order}, {lag['lag']:+,.0f} steps ({lag['lag_low']:+,.0f} to "
            f"{lag['lag_high']:+,.0f}), {_number(lag['ratio'])} times t_gen."
        )
    return " ".join(words)


def _methods(report: GrokkingReport, name: str) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in _records(report.times[report.times["series"] == name])}


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _step(step: float) -> str:
    return f"{step:,.0f}"


def _number(value: float) -> str:
    return "any" if pd.isna(value) else f"{value:.2g}" if value < 100 else f"{value:,.0f}"
