"""The findings of a run, or of several, in words and tables: for the terminal, as Markdown, or as JSON."""

from dynamics.report.build import run_report, seeds_report
from dynamics.report.machine import to_json
from dynamics.report.markdown import markdown
from dynamics.report.output import SUFFIXES, output_path, read_window, report_on, write
from dynamics.report.section import Report, Section, Table
from dynamics.report.terminal import show

__all__ = [
    "SUFFIXES",
    "Report",
    "Section",
    "Table",
    "markdown",
    "output_path",
    "read_window",
    "report_on",
    "run_report",
    "seeds_report",
    "show",
    "to_json",
    "write",
]
