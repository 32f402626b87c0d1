"""A report as JSON, for machines."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd

from dynamics.report.section import Report, records

FORMAT, VERSION = "gap-dynamics report", "1.0"
"""Kind and version of the file: a new minor version adds keys, a new major one changes what is there."""


def to_json(report: Report) -> str:
    """Return a report as JSON: sections by key, tables as lists of records, numbers that are not finite as null.

    Args:
        report: What to write. Long tables are always whole.
    """
    sections = {
        section.name: {
            "heading": section.heading,
            "missing": section.missing,
            "sentences": list(section.sentences),
            "tables": {table.name: _records(table.frame) for table in section.tables},
            "data": {name: _records(frame) for name, frame in section.data.items()},
        }
        for section in report.sections
    }
    whole = {"format": FORMAT, "version": VERSION, "title": report.title, "options": dict(report.options)}
    return json.dumps(whole | {"sections": sections}, ensure_ascii=False, allow_nan=False, default=_plain)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in row.items()} for row in records(table)]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA or value is pd.NaT:
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value
