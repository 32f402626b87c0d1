"""What a report is made of: sections of a heading, sentences and tidy tables, whatever they are written as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

MOST = 10
"""Rows of a long table that are shown unless all are asked for."""


@dataclass(frozen=True, eq=False)
class Table:
    """A tidy table, and how its rows are shown.

    Attributes:
        name: Its key for machines, which stays.
        title: What it shows, and how to read it.
        frame: The numbers as they are.
        columns: What to show of a row, by heading.
        text: Headings of columns of words; the others are of numbers.
        most: Rows that are shown.
    """

    name: str
    title: str
    frame: pd.DataFrame
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]]
    text: tuple[str, ...] = ()
    most: int = MOST

    def rows(self, everything: bool = False) -> list[list[str]]:
        """Return the cells that are shown, row by row."""
        shown = self.frame if everything else self.frame.iloc[: self.most]
        return [[show(row) for show in self.columns.values()] for row in records(shown)]

    def cut(self, everything: bool = False) -> int:
        """Return how many rows are not shown."""
        return 0 if everything else max(0, len(self.frame) - self.most)


@dataclass(frozen=True, eq=False)
class Section:
    """One question, and what the run says to it.

    Attributes:
        name: Its key for machines, which stays.
        heading: The question, or what it is about.
        sentences: The answer in words.
        tables: What is shown with it.
        data: Tables behind it, snapshot by snapshot, for machines alone.
        missing: Why there is no answer; ``None`` if there is one.
    """

    name: str
    heading: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    data: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    missing: str | None = None


@dataclass(frozen=True, eq=False)
class Report:
    """The findings of a run, or of several.

    Attributes:
        title: Of what.
        options: What was asked for: score, baseline, threshold, window.
        sections: In reading order.
    """

    title: str
    options: Mapping[str, object]
    sections: tuple[Section, ...]


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table, by column."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
