"""The page that shows what the benchmarks found; its tables stand between markers and are made from the results."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/gim.md"


def markdown(rows: list[list[str]]) -> str:
    """Return a table; the first row is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def between_markers(name: str, text: str) -> str:
    """Return a text with its markers, as it stands in the page."""
    return f"<!-- {name} -->\n{text}<!-- /{name} -->"


def rewrite(name: str, text: str) -> None:
    """Put a text into the page, between its markers."""
    before, begin, rest = PAGE.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not (begin and end):
        raise SystemExit(f"{PAGE} has no markers <!-- {name} --> and <!-- /{name} -->")
    PAGE.write_text(before + between_markers(name, text) + after)
