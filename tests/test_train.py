from __future__ import annotations

import sys

import pytest
import yaml

from dynamics import open_run, train

# LightningCLI calls methods of jsonargparse that are about to be renamed.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONFIG = """
name: tiny
seed_everything: 3
threads: 1
data: {task: reverse, lengths: [2, 3], ood_lengths: [4], batch_size: 4, probe_batches: 2, probe_batch_size: 3}
model:
  learning_rate: 0.01
  model:
    class_path: dynamics.model.Transformer
    init_args: {n_layers: 1, n_heads: 2, d_model: 8, d_ff: 8}
trainer:
  max_steps: 3
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
tracker:
  schedule: [{at: [1]}, {piecewise: {2: 10}}]
  train_gradients: 1
  faithfulness: {at: [2]}
  faithfulness_rankings: [gim, random]
  synergy: {at: [1]}
"""


def main(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train", *arguments])
        return train.main()


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def test_fit_writes_the_run_and_says_where(config, capsys):
    assert main("fit", "--config", str(config)) == 0
    assert capsys.readouterr().out.endswith(
        "run file: runs/tiny/run.h5\nlook at it: python -m dynamics.plot runs/tiny/run.h5\n"
    )
    with open_run("runs/tiny/run.h5") as run:
        assert run.steps.tolist() == [0, 1, 2, 3]
        assert [c.label for c in run.components] == ["L0H0", "L0H1", "L0MLP"]
        assert run.metadata["seed"] == 3
        assert run.faithfulness.steps.tolist() == [2, 3]
        assert run.faithfulness.labels("ranking").tolist() == ["gim", "random"]
        assert run.synergy.steps.tolist() == [1, 3]
        # The stored configuration runs again as it is, and holds what was given.
        stored = yaml.safe_load(run.metadata["config"])
        given = yaml.safe_load(CONFIG)
        assert {key: stored["data"][key] for key in given["data"]} == given["data"]
        assert stored["model"]["model"]["init_args"]["d_ff"] == 8
        assert stored["trainer"]["max_steps"] == 3


def test_the_printed_configuration_can_be_read_and_holds_the_default_schedules(config, capsys):
    printed = []
    for given in (["--config", str(config)], ["--config", "printed.yaml"], []):
        with pytest.raises(SystemExit):
            main("fit", *given, "--print_config")
        printed.append(capsys.readouterr().out)
        (config.parent / "printed.yaml").write_text(printed[0])
    assert printed[0] == printed[1]
    tracker = yaml.safe_load(printed[2])["tracker"]
    assert {name: tracker[name] for name in ("schedule", "train_gradients", "faithfulness", "synergy")} == {
        "schedule": 500,
        "train_gradients": 50,
        "faithfulness": 5000,
        "synergy": None,
    }


def test_the_stored_configuration_gives_the_same_run(config):
    assert main("fit", "--config", str(config)) == 0
    with open_run("runs/tiny/run.h5") as run:
        first = run["loss"]
        config.write_text(run.metadata["config"])
    assert main("fit", "--config", str(config), "--name", "again") == 0
    with open_run("runs/again/run.h5") as run:
        assert (run["loss"] == first).all()


def test_what_goes_beside_snapshots_can_be_switched_off(config):
    off = ("--tracker.faithfulness=null", "--tracker.synergy=null")
    assert main("fit", "--config", str(config), *off) == 0
    with open_run("runs/tiny/run.h5") as run:
        assert run.faithfulness is None
        assert run.synergy is None


def test_a_finished_run_is_not_overwritten_untold(config, capsys):
    assert main("fit", "--config", str(config)) == 0
    before = (config.parent / "runs/tiny/run.h5").read_bytes()
    assert main("fit", "--config", str(config)) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: the run file runs/tiny/run.h5 exists already and is not overwritten; choose another path, "
        "or pass overwrite=True (on the command line --tracker.overwrite=true) to replace it."
    )
    assert (config.parent / "runs/tiny/run.h5").read_bytes() == before
    assert main("fit", "--config", str(config), "--tracker.overwrite=true", "--trainer.max_steps=1") == 0
    with open_run("runs/tiny/run.h5") as run:
        assert run.steps.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "train_gradients",
            "train_gradient",
            "error: Subcommand 'fit' does not accept option 'tracker.train_gradient'",
        ),
        (
            "d_ff: 8",
            "d_f: 8",
            "error: Parser key \"model.model\":\n  Problem with given class_path 'dynamics.model.Transformer':\n"
            "    Option 'd_f' is not accepted",
        ),
        ("threads: 1", "threads: 0", "error: --threads must be at least 1; got 0."),
        (
            "name: tiny",
            "name: ../tiny",
            "error: --name is a folder's name of letters, digits, '-', '_' and '.', such as 'sort'; got '../tiny'.",
        ),
        ("task: reverse", "task: invert", "error: task must be one of reverse, sort, or a task object; got 'invert'."),
        (
            "ood_lengths: [4]",
            "ood_lengths: [3]",
            "error: ood_lengths must not be trained on, but [3] also stand in lengths; remove them from one.",
        ),
    ],
)
def test_a_wrong_setting_is_named(config, capsys, old, new, message):
    config.write_text(CONFIG.replace(old, new))
    assert main("fit", "--config", str(config)) == 2
    # An empty line would be a page of usage; Lightning's own line on the seed may come first.
    assert capsys.readouterr().err.strip().endswith(message)
    assert not (config.parent / "runs").exists()
