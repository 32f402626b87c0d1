import json
import subprocess
import sys

import h5py
import pytest

from dynamics.plot.__main__ import main
from tests.analysis.runs import components, random_arrays, random_run, write_run
from tests.plot.seeds import write_seeds


@pytest.fixture
def run_path(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=3, metrics=[(0, {"train/exact_match": 0.5})])
    return tmp_path / "run.h5"


def test_page_beside_the_run_by_default(run_path, capsys):
    assert main([str(run_path)]) == 0
    page = run_path.with_suffix(".html")
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG\r\n"), ("a.SVG", b"<svg "), ("a.json", b"{"), ("a.html", b"<!DOCTYPE")]
)
def test_the_suffix_says_as_what(run_path, tmp_path, capsys, name, begins):
    assert main([str(run_path), "-o", str(tmp_path / name)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / name}\n"
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_options_reach_the_picture(run_path, tmp_path):
    output = tmp_path / "a.json"
    options = ["--score", "loss", "--baseline", "zero", "--threshold", "5", "--x", "symlog"]
    assert main([str(run_path), "-o", str(output), *options]) == 0
    drawn = json.loads(output.read_text())
    assert drawn["params"][0]["value"] == "loss"
    assert drawn["datasets"]["rho"][0]["threshold"] == 5
    assert '"type": "symlog"' in output.read_text()
    assert main([str(run_path), "-o", str(output)]) == 0
    default = json.loads(output.read_text())
    assert default["params"][0]["value"] == "exact_match"
    assert default["datasets"]["rho"][0]["threshold"] == 2
    assert '"symlog"' not in output.read_text()
    causal = [spec["datasets"]["cells"][0]["causal_loss"] for spec in (drawn, default)]
    assert causal[0] != causal[1]


def refused(arguments, capsys):
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.removesuffix("\n")


def test_missing_run(tmp_path, capsys):
    assert refused([tmp_path / "no.h5"], capsys) == (
        f"error: there is no run file {tmp_path / 'no.h5'}; give the path that the training printed."
    )


def test_empty_file(tmp_path, capsys):
    (tmp_path / "run.h5").touch()
    assert refused([tmp_path / "run.h5"], capsys) == (
        f"error: {tmp_path / 'run.h5'} is empty. Expected a run file that GapTrackerCallback wrote."
    )
    assert not (tmp_path / "run.html").exists()


def test_foreign_file(tmp_path, capsys):
    h5py.File(tmp_path / "other.h5", "w").close()
    assert refused([tmp_path / "other.h5"], capsys) == (
        f"error: {tmp_path / 'other.h5'} is an HDF5 file but not a run file: its 'format' attribute is None, expected "
        "'gap-dynamics run'. Expected a run file that GapTrackerCallback wrote."
    )


def test_not_hdf5(tmp_path, capsys):
    (tmp_path / "run.h5").write_text("step,loss\n")
    message = refused([tmp_path / "run.h5"], capsys)
    assert message.startswith(f"error: {tmp_path / 'run.h5'} (10 bytes) is not an HDF5 file, or is damaged: ")
    assert message.endswith(" Expected a run file that GapTrackerCallback wrote.")


def test_damage_that_shows_while_reading(run_path, capsys, monkeypatch):
    def fail(self, name):
        raise OSError("Can't synchronously read data")

    monkeypatch.setattr("dynamics.store.reader.RunGroup.__getitem__", fail)
    assert refused([run_path], capsys) == f"error: {run_path} cannot be read: Can't synchronously read data"


def test_unknown_suffix(run_path, capsys):
    assert refused([run_path, "-o", "picture.pdf"], capsys) == (
        "error: the output must end in one of .html, .png, .svg, .json; got 'picture.pdf'."
    )
    # The likeliest slip of all must not overwrite the run.
    before = run_path.read_bytes()
    assert refused([run_path, "-o", run_path], capsys) == (
        "error: the output must end in one of .html, .png, .svg, .json; got 'run.h5'."
    )
    assert run_path.read_bytes() == before


def test_missing_folder(run_path, tmp_path, capsys):
    assert refused([run_path, "-o", tmp_path / "no" / "a.png"], capsys) == (
        f"error: there is no folder {tmp_path / 'no'} to write a.png into; make it first."
    )


def test_output_is_a_folder(run_path, tmp_path, capsys):
    (tmp_path / "a.png").mkdir()
    assert refused([run_path, "-o", tmp_path / "a.png"], capsys) == (
        f"error: the output {tmp_path / 'a.png'} is a folder; give the path of a file."
    )


def test_no_snapshots_yet(tmp_path, capsys):
    path = write_run(tmp_path / "run.h5", [], [], components(1, 1), finished=False)
    assert refused([path], capsys) == (
        f"error: {path} has no snapshots yet; try again once the training has taken its first."
    )


def test_threshold_out_of_range(run_path, capsys):
    assert refused([run_path, "--threshold", "0"], capsys) == (
        "error: the threshold of a role must be a positive number of ranks; got 0.0."
    )


def test_run_without_ablations(tmp_path, rng, capsys):
    arrays = random_arrays(rng, 2)
    only = {name: arrays[name] for name in ("loss", "exact_match", "gradient_norm")}
    path = write_run(tmp_path / "run.h5", [0], [only], components(1, 1))
    assert refused([path], capsys) == (
        f"error: {path} has no 'ablation_exact_match', which this analysis needs; it holds exact_match, gradient_norm, "
        "loss. Track again with measurements=\"all\", or with 'ablation' among them."
    )


def test_no_torch_and_no_lightning(run_path):
    """Also not by way of something else that is imported: a picture must not take seconds to begin."""
    program = (
        "import sys; from dynamics.plot.__main__ import main; "
        f"assert main([{str(run_path)!r}]) == 0; "
        "print(sorted({'torch', 'lightning', 'pytorch_lightning'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_help_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "dynamics.plot", "--help"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("usage: python -m dynamics.plot [-h] [-o OUTPUT]")
    assert "--x {linear,symlog}" in result.stdout


def test_the_run_file_is_never_drawn_over(tmp_path, capsys):
    path = tmp_path / "run.html"
    random_run(path, n_steps=2)
    before = path.read_bytes()
    assert main([str(path)]) == 2
    assert capsys.readouterr().err == (
        f"error: the picture would overwrite the run file {path}; choose another output with -o.\n"
    )
    assert path.read_bytes() == before


@pytest.fixture
def seeds(tmp_path):
    return write_seeds(tmp_path / "runs")


def test_several_runs_draw_the_seeds(seeds, tmp_path, capsys):
    page = tmp_path / "runs" / "seeds.html"
    for runs in ([seeds], [str(path) for path in (tmp_path / "runs").glob("*/run.h5")]):
        assert main(runs) == 0
        assert capsys.readouterr().out == f"{page}\n"
        assert "sort: 3 runs" in page.read_text()
        page.unlink()
    assert main([seeds, "--chart", "all", "-o", str(tmp_path / "a.svg")]) == 0


def test_a_pattern_of_one_run_draws_its_timeline(run_path, tmp_path, capsys):
    assert main([str(tmp_path / "r*.h5")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run.html'}\n"


@pytest.mark.parametrize("options", [["--chart", "seeds"], ["--panels", "pruning", "rho_by_step"]])
def test_one_run_can_be_drawn_as_seeds(run_path, tmp_path, capsys, options):
    assert main([str(run_path), *options]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'seeds.html'}\n"


def test_options_reach_the_picture_of_several_runs(seeds, tmp_path):
    def drawn(*options):
        assert main([seeds, "-o", str(tmp_path / "a.json"), *options]) == 0
        return json.loads((tmp_path / "a.json").read_text())

    found = drawn("--score", "loss", "--threshold", "3", "--x", "symlog", "--window", "0.4", "0.6")
    assert next(p["value"] for p in found["params"] if p["name"] == "roles_by") == "loss"
    assert '"symlog"' in json.dumps(found)
    lines = " ".join(found["title"]["subtitle"])
    assert "τ = 3 ranks" in lines
    assert "accuracy 40 to 60 %" in lines
    default = " ".join(drawn()["title"]["subtitle"])
    assert "τ = 1 ranks" in default
    assert "accuracy 20 to 75 %" in default
    assert "any accuracy" in " ".join(drawn("--window", "all")["title"]["subtitle"])
    assert list(drawn("--panels", "pruning", "--baseline", "zero")["datasets"]) == ["pruning", "pruning_runs"]


def test_a_chart_of_one_run_for_several(seeds, capsys):
    assert refused([seeds, "--chart", "timeline"], capsys) == (
        "error: the chart timeline shows one run, and 3 were given; draw each by itself, or all together with "
        "--chart seeds."
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0.2", "high"], "--window takes paper or all, or two shares such as 0.2 0.75; got 0.2 high."),
        (["0", "0.5", "1"], "--window takes paper or all, or two shares such as 0.2 0.75; got 0 0.5 1."),
        (["late"], "the window must be one of paper, all, or two shares such as (0.2, 0.75); got 'late'."),
        (["20", "75"], "a window needs 0 <= low <= high <= 1; got (20.0, 75.0)."),
    ],
)
def test_windows_that_are_none(seeds, capsys, words, message):
    assert refused([seeds, "--window", *words], capsys) == f"error: {message}"


def test_a_window_for_a_chart_that_has_none(run_path, capsys):
    assert refused([run_path, "--window", "all"], capsys) == (
        "error: --window is for the chart seeds, and this is timeline; leave it out, or add --chart seeds."
    )
