"""A report as Markdown."""

from __future__ import annotations

import re

from dynamics.report.section import Report, Table
from dynamics.report.words import printable

_MEANS = re.compile(r"([\\`*_\[\]|~#])")


def markdown(report: Report, everything: bool = False) -> str:
    """Return a report as Markdown, with the tables of GitHub.

    Args:
        report: What to write.
        everything: Write long tables whole.
    """
    blocks = [f"# Report on {escaped(report.title)}"]
    for section in report.sections:
        blocks.append(f"## {escaped(section.heading)}")
        if section.missing is not None:
            blocks.append(f"*{escaped(section.missing)}*")
        blocks += [escaped(words) for words in section.sentences]
        for table in section.tables:
            blocks += _table(table, everything)
    return "\n\n".join(blocks) + "\n"


def _table(table: Table, everything: bool) -> list[str]:
    lines = [list(table.columns), ["---" if name in table.text else "---:" for name in table.columns]]
    cells = [" | ".join(escaped(name.strip()) for name in lines[0]), " | ".join(lines[1])]
    cells += [" | ".join(map(escaped, row)) for row in table.rows(everything)]
    blocks = [escaped(table.title)] if table.title else []
    blocks.append("\n".join(f"| {line} |" for line in cells))
    if cut := table.cut(everything):
        blocks.append(f"… and {cut:,} more (`--all`)")
    return blocks


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is: nothing in it is a table's edge, a mark, a tag or a new line."""
    safe = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MEANS.sub(r"\\\1", safe)
