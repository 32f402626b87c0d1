"""Tokens as text and colour: invisible characters made visible, scores made shades that text can be read on."""

from __future__ import annotations

import unicodedata

SUPPORTS, OPPOSES = "#41ab8c", "#a88bd4"
"""Full colours, light enough for dark text: apart for every common kind of colour blindness."""
EMPTY = "∅"
_VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_MARKS = frozenset({*_VISIBLE.values(), EMPTY})


def shade(score: float, scale: float) -> str:
    """Return the colour of a score: white at 0, a full colour at plus or minus ``scale``."""
    share = min(abs(score) / scale, 1.0) if scale else 0.0
    full = SUPPORTS if score > 0 else OPPOSES
    parts = (round(255 + share * (int(full[i : i + 2], 16) - 255)) for i in (1, 3, 5))
    return "#" + "".join(f"{part:02x}" for part in parts)


def visible(token: str) -> str:
    """Return a token with every character visible, and nothing that could turn or break a line."""
    if not token:
        return EMPTY
    return "".join(_character(character) for character in token)


def pieces(text: str) -> list[tuple[str, bool]]:
    """Return what `visible` returned in pieces, each with whether it stands for an invisible character."""
    found: list[tuple[str, bool]] = []
    for character in text:
        mark = character in _MARKS
        if found and found[-1][1] == mark:
            found[-1] = (found[-1][0] + character, mark)
        else:
            found.append((character, mark))
    return found


def breaks_line(token: str) -> bool:
    """Say whether a line of the picture ends after a token."""
    return "\n" in token


def cells(text: str) -> int:
    """Return how many columns of a fixed-width font a text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _character(character: str) -> str:
    if character in _VISIBLE:
        return _VISIBLE[character]
    category = unicodedata.category(character)
    # Controls, formats (bidirectional ones among them), surrogates, unassigned, private; line and other separators.
    if category[0] == "C" or category in ("Zl", "Zp", "Zs"):
        return f"\\u{ord(character):04x}"
    return character


def number(value: float) -> str:
    """Return a number with three significant digits, as people write it."""
    return f"{value:.3g}".replace("-", "−")
