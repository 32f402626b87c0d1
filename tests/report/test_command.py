import json
import os
import subprocess
import sys

import pytest

from dynamics.report import __main__ as command
from dynamics.report.__main__ import main
from tests.analysis.runs import random_run


@pytest.fixture
def run_path(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=3)
    return tmp_path / "run.h5"


def test_it_prints_the_findings(run_path, capsys):
    assert main([str(run_path), "--score", "loss"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Report on ")
    assert "Does the gradient rank components as ablation does?" in captured.out
    assert captured.err == ""


def test_json_goes_to_the_standard_output_and_options_reach_it(run_path, capsys):
    options = ["--score", "loss", "--baseline", "zero", "--threshold", "1", "--window", "0.1,0.9"]
    assert main([str(run_path), "--json", *options]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["options"] == {"score": "loss", "baseline": "zero", "threshold": 1.0, "window": [0.1, 0.9]}
    assert {row["baseline"] for row in read["sections"]["depth"]["data"]["depth"]} == {"zero"}
    assert {row["score"] for row in read["sections"]["depth"]["data"]["depth"]} == {"loss"}
    assert main([str(run_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"] == {
        "score": "exact_match", "baseline": "mean", "threshold": None, "window": [0.2, 0.75],
    }  # fmt: skip


@pytest.mark.parametrize(("name", "begins"), [("a.md", "# Report on "), ("a.JSON", '{"format": "gap-dynamics report"')])
def test_the_suffix_says_as_what_and_only_the_path_is_printed(run_path, tmp_path, capsys, name, begins):
    assert main([str(run_path), "-o", str(tmp_path / name)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / name}\n"
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(begins)


def test_all_shows_long_tables_whole(tmp_path, capsys):
    random_run(tmp_path / "run.h5", n_steps=2, layers=12, heads=1)
    assert main([str(tmp_path / "run.h5"), "--score", "loss"]) == 0
    assert "… and 2 more (--all)" in capsys.readouterr().out
    assert main([str(tmp_path / "run.h5"), "--score", "loss", "--all"]) == 0
    assert "more (--all)" not in capsys.readouterr().out


def refused(arguments, capsys):
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.removesuffix("\n")


def test_what_cannot_be_reported_on_is_refused_in_a_line(run_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused([tmp_path / "no.h5"], capsys) == (
        f"error: there is no run file {tmp_path / 'no.h5'}; give the path that the training printed."
    )
    (tmp_path / "empty.h5").touch()
    assert refused([tmp_path / "empty.h5"], capsys) == (
        f"error: {tmp_path / 'empty.h5'} is empty. Expected a run file that GapTrackerCallback wrote."
    )
    random_run(tmp_path / "other.h5", layers=1)
    assert refused([run_path, tmp_path / "other.h5"], capsys) == (
        f"error: {run_path} has 6 components from L0H0 to L1MLP, but {tmp_path / 'other.h5'} has 3 components from "
        "L0H0 to L0MLP; open runs of the same components together, and others by themselves."
    )
    assert refused([run_path, "--window", "often"], capsys) == (
        "error: the window must be one of paper, all, or two shares such as 0.2,0.75; got 'often'."
    )
    assert refused([run_path, "--window", "0.9,0.1"], capsys) == (
        "error: a window needs 0 <= low <= high <= 1; got (0.9, 0.1)."
    )
    assert refused([run_path, "--threshold", "0"], capsys) == (
        "error: the threshold of a role must be a positive number of ranks; got 0.0."
    )


def test_an_output_that_cannot_be_is_refused_before_any_work(run_path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "report_on", lambda *args: pytest.fail("it was worked on"))
    assert refused([run_path, "-o", "a.txt"], capsys) == "error: the output must end in one of .md, .json; got 'a.txt'."
    assert refused([run_path, "-o", tmp_path / "no" / "a.md"], capsys) == (
        f"error: there is no folder {tmp_path / 'no'} to write a.md into; make it first."
    )
    (tmp_path / "folder.md").mkdir()
    assert refused([run_path, "-o", tmp_path / "folder.md"], capsys) == (
        f"error: the output {tmp_path / 'folder.md'} is a folder; give the path of a file."
    )
    assert refused([run_path, "--json", "-o", "a.md"], capsys) == (
        "error: --json writes JSON: the output must end in .json; got 'a.md'."
    )
    (tmp_path / "run.json").hardlink_to(run_path)
    assert refused([tmp_path / "run.json", "-o", tmp_path / "run.json"], capsys) == (
        f"error: the report would overwrite the run file {tmp_path / 'run.json'}; choose another output with -o."
    )


def test_a_file_that_cannot_be_written_is_an_error_of_one_line(run_path, tmp_path, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    assert refused([run_path, "-o", tmp_path / "a.md"], capsys) == (
        f"error: the report {tmp_path / 'a.md'} cannot be written: No space left on device."
    )


def test_the_module_runs_in_an_ascii_terminal_of_forty_columns(run_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    done = subprocess.run(
        [sys.executable, "-m", "dynamics.report", str(run_path), "--score", "loss"],
        capture_output=True, text=True, env=environment, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 40


def test_a_reader_that_has_seen_enough_is_no_error(run_path):
    line = f"{sys.executable} -m dynamics.report {run_path} --json | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("{0\n", "")
