"""The picture as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import vl_convert

from dynamics.plot.axes import vega_lite_version
from dynamics.plot.facts import Fact
from dynamics.plot.figure import EXPLANATION
from dynamics.plot.palette import BLOAT, FONT, GRID, HERO, INK, MUTED
from dynamics.plot.parameters import ROLES_BY, SELECTED
from dynamics.plot.scripts import DRAW, KEEP, PRINT

_STYLE = f"""
body {{ margin: 0; background: #fff; color: {INK}; font: 15px/1.5 {FONT}; }}
main {{ max-width: 1020px; margin: 0 auto; padding: 40px 24px 64px; }}
h1 {{ font-size: 27px; font-weight: 650; letter-spacing: -0.015em; line-height: 1.2; margin: 0 0 8px;
     overflow-wrap: anywhere; }}
p {{ margin: 0 0 6px; max-width: 46em; }}
.hero {{ color: {HERO}; font-weight: 600; }}
.bloat {{ color: {BLOAT}; font-weight: 600; }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(215px, 1fr)); gap: 14px 28px;
     margin: 24px 0 8px; padding: 18px 0; border: solid {GRID}; border-width: 1px 0; }}
dt {{ color: {MUTED}; font-size: 12px; }}
dd {{ margin: 1px 0 0; font-size: 14px; overflow-wrap: anywhere; }}
#controls {{ font-size: 14px; min-height: 30px; margin: 18px 0 0; }}
#controls select {{ font: inherit; margin-left: 6px; padding: 3px 8px; color: inherit; background: #fff;
     border: 1px solid #c5cbd2; border-radius: 5px; }}
#controls input[type=range] {{ width: 340px; vertical-align: middle; margin: 0 8px; }}
.how {{ color: {MUTED}; font-size: 13px; max-width: 60em; }}
#chart {{ overflow-x: auto; margin-left: -16px; touch-action: manipulation; }}
#chart.vega-embed {{ display: block; }}
#chart:focus-visible {{ outline: 2px solid {HERO}; outline-offset: 2px; }}
#problem {{ color: #b3261e; }}
#vg-tooltip-element.vg-tooltip {{ background: #fff; font: 12px/1.5 {FONT}; border-radius: 6px; }}
#vg-tooltip-element h2 {{ font-size: 13px; margin: 0 0 4px; }}
@media screen {{ .paper {{ display: none; }} }}
@media (max-width: 700px) {{ main {{ padding: 24px 16px 40px; }} }}
@media print {{
  @page {{ size: A4; margin: 14mm; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
  main {{ max-width: none; padding: 0; }}
  #controls, .how, .vega-embed summary, .vega-actions, #vg-tooltip-element {{ display: none !important; }}
  dl {{ margin: 12px 0; padding: 10px 0; gap: 8px 20px; break-inside: avoid; }}
  #chart, #chart.vega-embed {{ overflow: visible; margin: 0; padding: 0; }}
  #chart .marks {{ width: 100% !important; height: auto !important; }}
  #chart:has(.paper) .chart-wrapper {{ position: absolute; width: 0 !important; height: 0 !important;
     overflow: hidden; }}
  .paper > * {{ display: block; width: 100%; height: auto; break-inside: avoid; }}
}}
""".strip()
_TO_RELOAD = '<html lang="en" data-reload="{:g}">'
_TO_STAY = '<html lang="en">'
# SVG is sharper and its text can be copied; a browser has trouble with tens of thousands of its elements.
_MOST_SVG_CELLS = 4_000


def page(
    specification: Mapping[str, Any],
    name: str,
    facts: Sequence[Fact],
    n_cells: int,
    reload: float | None = None,
) -> str:
    """Return an HTML page with the picture, its data, and the code that draws it: it loads nothing from anywhere.

    Every text that comes from the run is escaped, and a content security policy forbids network access and any script
    but the page's own.

    Args:
        specification: The Vega-Lite specification of the picture, with its data.
        name: Name of the run.
        facts: What to know about the run.
        n_cells: Number of cells of the raster; many are drawn as pixels rather than as SVG.
        reload: For a picture that is drawn anew while it is looked at: the page keeps over a reload where the reader
            was and what the reader had set, and reloads itself after so many seconds; 0: no more. Default: neither.
    """
    draw = DRAW.replace("RENDERER", json.dumps("svg" if n_cells <= _MOST_SVG_CELLS else "canvas"))
    # What keeps must listen before anything is drawn.
    scripts = [_library(), PRINT, *([] if reload is None else [KEEP]), draw]
    sources = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    # Vega compiles its expressions, hence unsafe-eval.
    policy = (
        f"default-src 'none'; script-src {sources} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    listed = "\n".join(
        f"<div><dt>{html.escape(fact.name)}</dt><dd>{html.escape(fact.value)}</dd></div>" for fact in facts
    )
    heroes, bloats = EXPLANATION
    run = "\n".join(f"<script>{script}</script>" for script in scripts)
    return f"""<!DOCTYPE html>
{_TO_RELOAD.format(reload) if reload else _TO_STAY}
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(name)} · gradient and cause over training</title>
<style>
{_STYLE}
</style>
</head>
<body>
<main>
<h1>{html.escape(name)}</h1>
<p>When do gradients and causes part ways? <span class="hero">{heroes[0]}</span> {heroes[1]}
<span class="bloat">{bloats[0]}</span> {bloats[1]}</p>
<dl>
{listed}
</dl>
<div id="controls"></div>
<p class="how">{how_to_read(specification)} <span id="watched"></span></p>
<noscript><p>The picture is drawn by JavaScript that this page holds; allow it to run.</p></noscript>
<p id="problem"></p>
<div id="chart" tabindex="0" role="region" aria-label="Charts of the run"></div>
</main>
<script type="application/json" id="specification">{embedded_json(specification)}</script>
{run}
</body>
</html>
"""


def without_reload(text: str) -> str:
    """Return a page that no longer reloads itself; its scripts, and so its policy, stay the same."""
    head, separator, rest = text.partition("<head>")
    return re.sub(r'<html lang="en" data-reload="[^"]*">', _TO_STAY, head) + separator + rest


def how_to_read(specification: Mapping[str, Any]) -> str:
    """Return what a reader can do with the picture, in a sentence for each thing that it offers."""
    parameters = specification.get("params", [])
    sentences = ["Point at a mark to read its numbers."]
    if any(parameter["name"] == SELECTED for parameter in parameters):
        sentences.append(
            "Click a component to highlight it in every chart, with Shift to add another; a double click or Esc clears."
        )
    if any(parameter["name"] == ROLES_BY for parameter in parameters):
        sentences.append("“C by” switches what causal importance C is measured in.")
    sentences.append("The menu at the right (⋯) saves the picture.")
    return " ".join(sentences)


def embedded_json(value: Any) -> str:
    """Return JSON that holds no character with a meaning in HTML, so that no text in it can end its script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # These occur only within JSON strings, where the escapes mean the same.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@functools.cache
def _library() -> str:
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite_version())
    # The script must not end early; JavaScript reads <\\/ as </.
    return bundle.replace("</script", "<\\/script")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
