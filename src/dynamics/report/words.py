"""Numbers as words and cells."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

NONE = "–"
"""Stands for a number that there is none of."""

BY = {"exact_match": "accuracy", "loss": "loss"}
"""What C is measured in, as readers call it."""
UNIT = {"exact_match": "accuracy lost", "loss": "nats of loss gained"}


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with so many decimals: ``0.47``; never ``-0.00``."""
    if value is None or pd.isna(value):
        return NONE
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not float(text.replace(",", "")) else text


def span(low: float, high: float, digits: int = 2) -> str:
    """Return ``0.43 to 0.58``."""
    return NONE if pd.isna(low) or pd.isna(high) else f"{number(low, digits)} to {number(high, digits)}"


def plus_minus(value: float, sd: float) -> str:
    """Return ``0.36 ± 0.10``; a number alone where there is no deviation."""
    return number(value) if pd.isna(sd) else f"{number(value)} ± {number(sd)}"


def probability(value: float) -> str:
    """Return a p-value: ``0.31``, ``0.024``, ``<0.001``."""
    if pd.isna(value):
        return NONE
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def p_is(value: float) -> str:
    """Return ``p = 0.024`` or ``p < 0.001``."""
    text = probability(value)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def percent(value: float) -> str:
    """Return a share: ``54%``."""
    return NONE if pd.isna(value) else f"{value:.0%}"


def whole(value: float | None) -> str:
    """Return a step or a count: ``3,000``."""
    return NONE if value is None or pd.isna(value) else f"{value:,.0f}"


def several(n: int, noun: str) -> str:
    """Return ``1 snapshot``, ``15 snapshots``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def sentence(text: str) -> str:
    """Return the text with a capital at its beginning, and one full stop at its end."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def printable(text: str) -> str:
    """Return a text in one line, in which nothing can command a terminal: labels and paths may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
