"""The picture of a run: charts from tidy tables, as one offline page, a picture or a Vega-Lite specification."""

from dynamics.plot.figure import ALL, CHARTS, PANELS, figure
from dynamics.plot.output import SUFFIXES, draw_run, output_path
from dynamics.plot.pair_matrix import pair_matrix
from dynamics.plot.seeds_figure import SEED_PANELS, SEEDS, seeds_figure
from dynamics.plot.seeds_output import draw_runs
from dynamics.plot.seeds_tables import SeedTables
from dynamics.plot.tables import Tables
from dynamics.plot.tokens import draw_tokens

__all__ = [
    "ALL",
    "CHARTS",
    "PANELS",
    "SEEDS",
    "SEED_PANELS",
    "SUFFIXES",
    "SeedTables",
    "Tables",
    "draw_run",
    "draw_runs",
    "draw_tokens",
    "figure",
    "output_path",
    "pair_matrix",
    "seeds_figure",
]
