"""The examples run as written, and leave a run file of a model that has learned something."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dynamics import open_run

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def packages(path):
    """Return the top-level names of the packages that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return sorted(names)


# One of them each time, which is enough to notice that a name has changed.
FIRST = "hugging_face_gpt2"


@pytest.mark.parametrize(
    "path",
    [path if path.stem == FIRST else pytest.param(path, marks=pytest.mark.soak) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_it_runs_as_written(path, tmp_path):
    if missing := [name for name in packages(path) if find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "draw it: python -m dynamics.plot" in done.stdout
    (written,) = tmp_path.glob("*.h5")
    with open_run(written) as run:
        assert f"{run.steps[-1]} " in done.stdout
        assert run["loss"][-1].mean() < 0.7 * run["loss"][0].mean()


def test_the_list_of_examples_is_complete():
    assert len(EXAMPLES) > 1
    listed = (EXAMPLES[0].parent / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES if f"({path.name})" not in listed] == []
