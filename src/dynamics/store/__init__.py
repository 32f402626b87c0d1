"""The run file: HDF5, one per run, append-only, readable while it grows."""

from dynamics.store.check import Report, check_run
from dynamics.store.create import create_run
from dynamics.store.group import RunGroup
from dynamics.store.provenance import provenance
from dynamics.store.reader import Run, open_run
from dynamics.store.repair import continue_run, repair_run
from dynamics.store.runs import Runs, open_runs, run_files
from dynamics.store.schema import Axis, ComponentInfo
from dynamics.store.writer import RunWriter, check_target

__all__ = [
    "Axis",
    "ComponentInfo",
    "Report",
    "Run",
    "RunGroup",
    "RunWriter",
    "Runs",
    "check_run",
    "check_target",
    "continue_run",
    "create_run",
    "open_run",
    "open_runs",
    "provenance",
    "repair_run",
    "run_files",
]
