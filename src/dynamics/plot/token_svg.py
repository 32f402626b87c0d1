"""Shaded tokens as an SVG, laid out in lines of a fixed-width font."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamics.plot.palette import FONT, GRID, INK, MUTED
from dynamics.plot.token_page import MONO, scale_words, subtitle, visible_line
from dynamics.plot.token_text import OPPOSES, SUPPORTS, breaks_line, cells, pieces, shade, visible

if TYPE_CHECKING:
    from dynamics.plot.tokens import TokenRow

_WIDTH, _MARGIN = 900, 28
_SIZE, _CELL = 14.0, 8.43
"""Font size of tokens, and the width of a character at that size, in pixels."""
_BOX, _LINE, _PAD, _GAP = 24, 31, 6, 4
_HEAD = 112


@dataclass(frozen=True)
class _Box:
    """A token's place: its number, text, left edge, line and width."""

    index: int
    text: str
    x: float
    line: int
    width: float


def token_svg(rows: Sequence[TokenRow], tokens: Sequence[str], title: str, target: str) -> str:
    """Return an SVG with the tokens once for each row; long prompts wrap, and every text is escaped.

    Args:
        rows: The rows.
        tokens: The tokens.
        title: Title of the picture.
        target: What is explained.
    """
    boxes = _layout(tokens)
    block = 34 + (boxes[-1].line + 1) * _LINE + 16
    height = _HEAD + len(rows) * block + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="{html.escape(FONT)}" fill="{INK}">',
        f'<defs><linearGradient id="scale"><stop offset="0" stop-color="{OPPOSES}"/><stop offset="0.5" '
        f'stop-color="#fff"/><stop offset="1" stop-color="{SUPPORTS}"/></linearGradient></defs>',
        '<rect width="100%" height="100%" fill="#fff"/>',
        _words(_MARGIN, 44, _short(title, 68), 'font-size="20" font-weight="600"'),
        _words(_MARGIN, 66, _short(subtitle(target), 125), f'font-size="13" fill="{MUTED}"'),
        _words(_MARGIN, 94, "opposes", f'font-size="12" fill="{MUTED}"'),
        f'<rect x="{_MARGIN + 56}" y="84" width="140" height="12" rx="3" fill="url(#scale)" stroke="{INK}" '
        'stroke-opacity="0.12"/>',
        _words(_MARGIN + 206, 94, "supports", f'font-size="12" fill="{MUTED}"'),
        _words(
            _MARGIN + 276, 94, "white is 0; the full colour stands beside each method", f'font-size="12" fill="{MUTED}"'
        ),
    ]
    for number, row in enumerate(rows):
        parts += _row(row, boxes, _HEAD + number * block)
    return "\n".join([*parts, "</svg>\n"])


def _row(row: TokenRow, boxes: Sequence[_Box], top: float) -> list[str]:
    right = _WIDTH - _MARGIN
    parts = [
        f'<line x1="{_MARGIN}" x2="{right}" y1="{top}" y2="{top}" stroke="{GRID}"/>',
        _words(_MARGIN, top + 22, _short(row.name, 60), 'font-size="13" font-weight="600"'),
        _words(right, top + 22, scale_words(row), f'font-size="12" text-anchor="end" fill="{MUTED}"'),
    ]
    for box in boxes:
        y = top + 34 + box.line * _LINE
        fill = shade(float(row.scores[box.index]), row.scale)
        parts.append(
            f'<rect x="{box.x:.1f}" y="{y}" width="{box.width:.1f}" height="{_BOX}" rx="4" fill="{fill}" '
            f'stroke="{INK}" stroke-opacity="0.12"/>'
        )
        x = box.x + _PAD
        for piece, mark in pieces(box.text):
            width = cells(piece) * _CELL
            # Each piece fills its place whatever font the reader has.
            parts.append(
                f'<text x="{x:.1f}" y="{y + 16.5}" font-family="{html.escape(MONO)}" font-size="{_SIZE}" '
                f'textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
                f"{f' fill={chr(34)}{MUTED}{chr(34)}' if mark else ''}>{html.escape(piece)}</text>"
            )
            x += width
    return parts


def _layout(tokens: Sequence[str]) -> list[_Box]:
    """Return the tokens' places from left to right, line by line; one that is longer than a line is cut in pieces."""
    most = int((_WIDTH - 2 * _MARGIN - 2 * _PAD) / _CELL)
    boxes: list[_Box] = []
    x, line = float(_MARGIN), 0
    for index, token in enumerate(tokens):
        for text in _cut(visible(token), most):
            width = cells(text) * _CELL + 2 * _PAD
            if x > _MARGIN and x + width > _WIDTH - _MARGIN:
                x, line = float(_MARGIN), line + 1
            boxes.append(_Box(index, text, x, line, width))
            x += width + _GAP
        if breaks_line(token) and index + 1 < len(tokens):
            x, line = float(_MARGIN), line + 1
    return boxes


def _cut(text: str, most: int) -> list[str]:
    parts = [""]
    for character in text:
        if cells(parts[-1] + character) > most:
            parts.append("")
        parts[-1] += character
    return parts


def _short(text: str, most: int) -> str:
    text = visible_line(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _words(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" {style}>{html.escape(text)}</text>' if text else ""
