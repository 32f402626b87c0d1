"""The direction of imports: data flow one way, and nothing imports what lies after it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dynamics

LEVELS = [
    {"errors", "arrays", "schedules", "probe"},
    {"tasks", "model"},
    {"components"},
    {"measurements"},
    {"snapshot"},
    {"rankings", "faithfulness", "synergy", "pairs"},
    {"store"},
    {"analysis"},
    {"plot", "report"},
    {"callbacks", "train", "measure", "sweep"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
COMMANDS = {
    "dynamics.train",
    "dynamics.measure",
    "dynamics.sweep",
    "dynamics.plot.__main__",
    "dynamics.report.__main__",
    "dynamics.store.__main__",
}


def runtime_nodes(tree, inside_functions=True):
    """Yield every node that can run; what stands under ``if TYPE_CHECKING:`` never does."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                yield other
                yield from runtime_nodes(other, inside_functions)
            continue
        yield node
        if inside_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from runtime_nodes(node, inside_functions)


def imported_modules(node, module, is_package):
    """Return the full names that an import statement brings in; of ``from a import b`` both ``a`` and ``a.b``."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = module.split(".")
        base = parts[: len(parts) - node.level + is_package] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        return [source, *(f"{source}.{alias.name}" for alias in node.names)]
    return []


def backward_imports(root):
    """Return a line for every import under the package folder ``root`` that goes against the flow of data."""
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        is_package = path.name == "__init__.py"
        parts = relative.parent.parts if is_package else relative.with_suffix("").parts
        module = ".".join(["dynamics", *parts])
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not parts:
            # The package itself loads its public names lazily.
            names = [n for node in runtime_nodes(tree, False) for n in imported_modules(node, module, True)]
            found += [f"dynamics imports {name} when it is loaded" for name in names if name.startswith("dynamics")]
            continue
        if parts[0] not in LEVEL:
            found.append(f"{module} has no level; give it a place in the flow of data")
            continue
        for node in runtime_nodes(tree):
            for name in imported_modules(node, module, is_package):
                _, *target = name.split(".")
                if name in COMMANDS:
                    found.append(f"{module} imports {name}, which is a command")
                elif name.startswith("dynamics.") and target[0] in dynamics._HOMES:
                    found.append(f"{module} imports {target[0]} from dynamics rather than from its home")
                elif name.startswith("dynamics.") and LEVEL.get(target[0], -1) > LEVEL[parts[0]]:
                    found.append(f"{module} imports {name}")
    return found


def test_no_import_goes_backwards():
    assert backward_imports(Path(dynamics.__file__).parent) == []


@pytest.mark.parametrize(
    ("file", "code", "line"),
    [
        (
            "measurements/ablation.py",
            "from dynamics.snapshot import take_snapshot",
            "dynamics.measurements.ablation imports dynamics.snapshot",
        ),
        ("store/reader.py", "import dynamics.analysis.roles", "dynamics.store.reader imports dynamics.analysis.roles"),
        ("probe.py", "from dynamics import tasks", "dynamics.probe imports dynamics.tasks"),
        ("model/module.py", "from ..components import base", "dynamics.model.module imports dynamics.components"),
        ("store/__init__.py", "from ..plot import x", "dynamics.store imports dynamics.plot"),
        ("store/__init__.py", "def f():\n    import dynamics.plot", "dynamics.store imports dynamics.plot"),
        (
            "components/base.py",
            "class A:\n    def f(self):\n        if True:\n            from dynamics.measurements import base",
            "dynamics.components.base imports dynamics.measurements",
        ),
        (
            "callbacks/gap_tracker.py",
            "from dynamics.train import main",
            "dynamics.callbacks.gap_tracker imports dynamics.train, which is a command",
        ),
        (
            "store/reader.py",
            "from dynamics import GapTrackerCallback",
            "dynamics.store.reader imports GapTrackerCallback from dynamics rather than from its home",
        ),
        ("extras.py", "", "dynamics.extras has no level; give it a place in the flow of data"),
        ("__init__.py", "from dynamics.probe import Probe", "dynamics imports dynamics.probe when it is loaded"),
        ("__init__.py", "from . import probe", "dynamics imports dynamics when it is loaded"),
    ],
)
def test_a_planted_backward_import_is_found(tmp_path, file, code, line):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    assert line in backward_imports(tmp_path)


def test_imports_with_the_flow_and_for_type_checkers_pass(tmp_path):
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "roles.py").write_text(
        "import numpy\nfrom dynamics.store import Run\nfrom dynamics.errors import E\nfrom . import rank_gap\n"
        "if TYPE_CHECKING:\n    from dynamics.plot import chart\n"
    )
    (tmp_path / "__init__.py").write_text("def __getattr__(name):\n    from dynamics.probe import Probe\n")
    assert backward_imports(tmp_path) == []


def test_the_oracles_share_no_code_with_what_they_check():
    for path in sorted((Path(__file__).parent / "oracles").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = f"tests.oracles.{path.stem}"
        names = [name for node in runtime_nodes(tree) for name in imported_modules(node, module, False)]
        assert {name.split(".")[0] for name in names} <= {"math", "numpy", "scipy", "torch", "tests"}
        assert all(name.startswith("tests.oracles.") for name in names if name.startswith("tests"))


@pytest.mark.parametrize("statement", [f"import dynamics.{name}" for name in ("store", "analysis", "plot", "report")])
def test_opening_analysing_and_drawing_a_run_load_neither_torch_nor_lightning(statement):
    code = f"import sys\n{statement}\nprint([n for n in ('torch', 'lightning') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_is_found_and_others_are_not():
    assert sorted(dynamics._HOMES) == dynamics.__all__
    for name in dynamics.__all__:
        assert getattr(dynamics, name).__name__ == name
        assert name in dir(dynamics)
    with pytest.raises(AttributeError) as caught:
        dynamics.take_picture  # noqa: B018
    assert str(caught.value) == "module 'dynamics' has no attribute 'take_picture'"
