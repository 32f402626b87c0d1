"""Tidy tables from rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd


def tidy(rows: Sequence[Sequence[object]], types: Mapping[str, str]) -> pd.DataFrame:
    """Return a table of the given columns, each of its own type from the start.

    Args:
        rows: The rows, of as many values as there are columns.
        types: Type of each column, by name. ``object`` keeps ``None``, which pandas would turn into NaN among text.
    """
    return pd.DataFrame(
        {name: pd.Series([row[i] for row in rows], dtype=kind) for i, (name, kind) in enumerate(types.items())}
    )
