"""Read what is drawn from the SVG of a picture."""

from __future__ import annotations

import re

_NUMBER = r"-?[\d.]+(?:e-?\d+)?"


def boxes(svg: str, colour: str) -> list[tuple[float, float, float, float, float]]:
    """Return left, top, width, height and opacity of every rectangle filled with the colour, legends left out."""
    path = rf'd="M({_NUMBER}),({_NUMBER})h({_NUMBER})v({_NUMBER})h[^"]*"'
    found = re.findall(rf'<path {path} fill="{colour}"[^>]*?(?: opacity="([^"]*)")?/>', svg)
    return [(*map(float, numbers), float(opacity or 1)) for *numbers, opacity in found]


def areas(svg: str, colour: str) -> list[list[tuple[float, float]]]:
    """Return the corners of every area filled with the colour, as many pieces as gaps leave."""
    found = []
    for path in re.findall(rf'<path d="(M[^"]*Z)" fill="{colour}" opacity="[^"]*"/>', svg):
        if "h" not in path:
            found += [_corners(piece) for piece in path.split("M")[1:]]
    return found


def lines(svg: str, colour: str, width: float) -> list[tuple[float, float, float, float]]:
    """Return x, y, and the extent in x and y, of every straight line of a colour and width."""
    found = re.findall(
        rf'<line transform="translate\(({_NUMBER}),({_NUMBER})\)" x2="({_NUMBER})" y2="({_NUMBER})" '
        rf'stroke="{colour}" stroke-width="{width:g}"',
        svg,
    )
    return [(float(x), float(y), float(across), float(down)) for x, y, across, down in found]


def places(svg: str, shape: str, colour: str) -> list[tuple[float, float]]:
    """Return where symbols whose path begins so, and are filled with the colour, lie."""
    found = re.findall(
        rf'<path transform="translate\(({_NUMBER}),({_NUMBER})\)" d="{re.escape(shape)}[^"]*" fill="{colour}"', svg
    )
    return [(float(x), float(y)) for x, y in found]


def _corners(path: str) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in path.rstrip("Z").split("L"))
    return [(float(x), float(y)) for x, y in pairs]
