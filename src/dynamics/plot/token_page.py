"""Shaded tokens as one HTML page that loads nothing and runs no script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynamics.plot.palette import FONT, GRID, INK, MUTED
from dynamics.plot.token_text import OPPOSES, SUPPORTS, breaks_line, number, pieces, shade, visible

if TYPE_CHECKING:
    from dynamics.plot.tokens import TokenRow

MONO = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
_STYLE = f"""
body {{ margin: 0; background: #fff; color: {INK}; font: 15px/1.5 {FONT}; }}
main {{ max-width: 1000px; margin: 0 auto; padding: 36px 24px 48px; }}
h1 {{ font-size: 22px; font-weight: 650; letter-spacing: -0.01em; line-height: 1.25; margin: 0 0 4px;
     overflow-wrap: anywhere; }}
p {{ margin: 0; color: {MUTED}; overflow-wrap: anywhere; }}
section {{ margin-top: 22px; padding-top: 16px; border-top: 1px solid {GRID}; }}
h2 {{ font-size: 14px; font-weight: 600; margin: 0 0 8px; overflow-wrap: anywhere; }}
h2 small {{ font-weight: normal; font-size: 12.5px; color: {MUTED}; margin-left: 10px; }}
.tokens {{ font: 14.5px/2.05 {MONO}; }}
.tokens span {{ padding: 3px 5px; margin: 0 2px 0 0; border-radius: 4px; box-shadow: inset 0 0 0 1px rgba(28,33,39,.10);
     white-space: pre-wrap; overflow-wrap: anywhere; -webkit-box-decoration-break: clone;
     box-decoration-break: clone; }}
.tokens i {{ font-style: normal; color: {MUTED}; }}
.scale {{ display: flex; flex-wrap: wrap; align-items: center; gap: 10px; margin-top: 10px; font-size: 12.5px;
     color: {MUTED}; }}
.bar {{ width: 150px; height: 12px; border-radius: 4px; box-shadow: inset 0 0 0 1px rgba(28,33,39,.10);
     background: linear-gradient(to right, {OPPOSES}, #fff, {SUPPORTS}); }}
@media print {{ .tokens span, .bar {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }} }}
""".strip()
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def token_page(rows: Sequence[TokenRow], tokens: Sequence[str], title: str, target: str) -> str:
    """Return an HTML page with a section of shaded tokens for each row; every text is escaped.

    Args:
        rows: The rows.
        tokens: The tokens.
        title: Title of the page.
        target: What is explained.
    """
    sections = "\n".join(_section(row, tokens) for row in rows)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>
{_STYLE}
</style>
</head>
<body>
<main>
<h1>{_text(title)}</h1>
<p>{_text(subtitle(target))}</p>
<div class="scale"><span>opposes</span><span class="bar"></span><span>supports</span>
<span>white is 0; the full colour stands beside each method</span></div>
{sections}
</main>
</body>
</html>
"""


def subtitle(target: str) -> str:
    """Return the line that says what is explained."""
    return f"to: {visible_line(target)}" if target else ""


def visible_line(text: str) -> str:
    """Return a line of text in which only spaces stay invisible."""
    return visible(text).replace("␣", " ") if text else ""


def scale_words(row: TokenRow) -> str:
    """Return what the full colour of a row means, and what its scores add up to."""
    return f"full colour = ±{number(row.scale)}, sum = {number(float(row.scores.sum()))}"


def _section(row: TokenRow, tokens: Sequence[str]) -> str:
    spans = "".join(
        f'<span style="background:{shade(score, row.scale)}" title="{number(score)}">{_token(token)}</span>'
        + ("<br>\n" if breaks_line(token) else "<wbr>")
        for token, score in zip(tokens, row.scores.tolist(), strict=True)
    )
    return (
        f"<section>\n<h2>{_text(row.name)}<small>{_text(scale_words(row))}</small></h2>\n"
        f'<div class="tokens">{spans}</div>\n</section>'
    )


def _token(token: str) -> str:
    return "".join(f"<i>{html.escape(p)}</i>" if mark else html.escape(p) for p, mark in pieces(visible(token)))


def _text(text: str) -> str:
    return html.escape(visible_line(text))
