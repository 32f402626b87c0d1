"""The picture as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import vl_convert

from dynamics.plot.axes import vega_lite_version
from dynamics.plot.facts import Fact
from dynamics.plot.figure import EXPLANATION
from dynamics.plot.palette import BLOAT, FONT, GRID, HERO, INK, MUTED

_STYLE = f"""
body {{ margin: 0; background: #fff; color: {INK}; font: 15px/1.5 {FONT}; }}
main {{ max-width: 1000px; margin: 0 auto; padding: 40px 24px 64px; }}
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
#chart {{ overflow-x: auto; margin-left: -16px; }}
#problem {{ color: #b3261e; }}
#vg-tooltip-element.vg-tooltip {{ background: #fff; font: 12px/1.5 {FONT}; border-radius: 6px; }}
#vg-tooltip-element h2 {{ font-size: 13px; margin: 0 0 4px; }}
""".strip()
_DRAW = """
const specification = JSON.parse(document.getElementById("specification").textContent);
const options = {renderer: RENDERER, bind: "#controls", downloadFileName: "timeline",
                 actions: {export: true, source: false, compiled: false, editor: false}};
vegaEmbed("#chart", specification, options).catch(error => {
  document.getElementById("problem").textContent = "The picture could not be drawn: " + error.message;
});
""".strip()
# SVG is sharper and its text can be copied; a browser has trouble with tens of thousands of its elements.
_MOST_SVG_CELLS = 4_000


def page(specification: Mapping[str, Any], name: str, facts: Sequence[Fact], n_cells: int) -> str:
    """Return an HTML page with the picture, its data, and the code that draws it: it loads nothing from anywhere.

    Every text that comes from the run is escaped, and a content security policy forbids network access and any script
    but the page's own two.

    Args:
        specification: The Vega-Lite specification of the picture, with its data.
        name: Name of the run.
        facts: What to know about the run.
        n_cells: Number of cells of the raster; many are drawn as pixels rather than as SVG.
    """
    library = _library()
    draw = _DRAW.replace("RENDERER", json.dumps("svg" if n_cells <= _MOST_SVG_CELLS else "canvas"))
    sources = " ".join(f"'sha256-{_sha256(script)}'" for script in (library, draw))
    # Vega compiles its expressions, hence unsafe-eval.
    policy = (
        f"default-src 'none'; script-src {sources} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    listed = "\n".join(
        f"<div><dt>{html.escape(fact.name)}</dt><dd>{html.escape(fact.value)}</dd></div>" for fact in facts
    )
    heroes, bloats = EXPLANATION
    return f"""<!DOCTYPE html>
<html lang="en">
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
<noscript><p>The picture is drawn by JavaScript that this page holds; allow it to run.</p></noscript>
<p id="problem"></p>
<div id="chart"></div>
</main>
<script type="application/json" id="specification">{embedded_json(specification)}</script>
<script>{library}</script>
<script>{draw}</script>
</body>
</html>
"""


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
