"""A report in the terminal."""

from __future__ import annotations

from typing import TextIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from dynamics.report.section import Report, Table
from dynamics.report.words import printable

WIDEST = 110
"""Sentences and tables grow no wider: long lines are hard to read."""


def show(report: Report, file: TextIO | None = None, everything: bool = False) -> None:
    """Print a report.

    Args:
        report: What to print.
        file: Where to; default: the standard output.
        everything: Print long tables whole.
    """
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDEST)
    console.print(_text(f"Report on {report.title}", "bold"))
    for section in report.sections:
        console.print()
        console.print(_text(section.heading, "bold underline"))
        if section.missing is not None:
            console.print(_text(section.missing, "yellow"))
        for words in section.sentences:
            console.print(_text(words))
        for table in section.tables:
            console.print()
            if table.title:
                console.print(_text(table.title, "dim"))
            console.print(Padding(_grid(table, everything), (0, 0, 0, 2), expand=False))
            if cut := table.cut(everything):
                console.print(_text(f"  … and {cut:,} more (--all)", "dim"))


def _grid(table: Table, everything: bool) -> Grid:
    heads = any(name.strip() for name in table.columns)
    grid = Grid(box=box.SIMPLE_HEAD, show_header=heads, show_edge=False, pad_edge=False)
    for name in table.columns:
        # What does not fit goes on in the next line: a number that is cut off is another number.
        grid.add_column(_text(name.strip()), justify="left" if name in table.text else "right", overflow="fold")
    for row in table.rows(everything):
        grid.add_row(*map(_text, row))
    return grid


def _text(words: str, style: str = "") -> Text:
    # As a Text, not as markup: a label may be called "[red]".
    return Text(printable(words), style)
