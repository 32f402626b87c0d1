import pytest

from dynamics import open_runs
from dynamics.plot import SeedTables
from dynamics.plot.seeds_facts import window_words
from tests.analysis.runs import random_run
from tests.plot.seeds import write_seeds


def facts(pattern, window="paper", **options):
    with open_runs(pattern) as runs:
        return {fact.name: fact.value for fact in SeedTables(runs, window, **options).facts}


def test_what_there_is_to_know(tmp_path):
    assert facts(write_seeds(tmp_path), threshold=2) == {
        "Runs": "3 (sort-0, sort-1, sort-2)",
        "Snapshots": "3 in each run, from step 0 to 2",
        "Window": "accuracy 20 to 75 %: 9 snapshots of 3 of 3 runs",
        "Components": "4 in 2 layers",
        "Threshold": "τ = 2 ranks",
        "By chance": "0.75 heroes, 0.75 bloats at a snapshot (19% each)",
        "Probe": "8 examples",
        "Ablation": "to mean",
        "Status": "all finished",
    }


def test_runs_that_differ(tmp_path):
    for seed, print_ in enumerate("aab" + "c" * 4):
        metadata = {
            "probe": {"fingerprint": print_},
            "git": {"commit": "0123456789abcdef", "uncommitted_changes": True},
        }
        random_run(tmp_path / f"{seed}.h5", n_steps=1 + seed, seed=seed, metadata=metadata, finished=seed > 0)
    found = facts(tmp_path / "*.h5", (0.99, 1.0))
    assert found["Runs"] == "7 (0 … 6)"
    assert found["Snapshots"] == "1 to 7 in each run, from step 0 to 60"
    assert found["Probe"] == "8 examples, not the same in all"
    assert found["Status"] == "6 of 7 finished; the others still train, or stopped early"
    assert found["Git commit"] == "0123456789 + uncommitted changes"
    assert facts([tmp_path / "0.h5", tmp_path / "1.h5"])["Probe"] == "8 examples, the same in all runs"
    assert facts([tmp_path / "1.h5", tmp_path / "2.h5"])["Probe"] == "8 examples, another in each run"


def test_an_empty_window(tmp_path):
    assert facts(write_seeds(tmp_path), (0.9, 0.95))["Window"] == "accuracy 90 to 95 %: no snapshot"


@pytest.mark.parametrize(
    ("window", "words"),
    [("paper", "accuracy 20 to 75 %"), ("all", "any accuracy"), ((0.125, 0.5), "accuracy 12.5 to 50 %")],
)
def test_windows_in_words(window, words):
    assert window_words(window) == words
