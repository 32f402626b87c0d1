"""What a report says of one run: the numbers of planted runs, and why a section is missing."""

import numpy as np
import pandas as pd
import pytest

from dynamics import open_run
from dynamics.analysis import Findings, Resampling, faithfulness_table, self_repair_by_layer
from dynamics.errors import AnalysisError
from dynamics.report import markdown, run_report
from dynamics.report.build import OF_A_RUN, resamples_for
from dynamics.report.given import Given
from dynamics.report.role_section import _count_words, outside
from tests.analysis.runs import (
    N_BATCHES,
    N_EXAMPLES,
    components,
    random_arrays,
    random_faithfulness,
    random_run,
    random_synergy,
    write_run,
)

FEW = Resampling(resamples=60)
METRICS = [(step, {"train/exact_match": step / 50, "ood/exact_match": step / 80}) for step in range(0, 60, 5)]


def report(path, resampling=FEW, **options):
    with open_run(path) as run:
        found = run_report(run, resampling=resampling, **options)
    return {section.name: section for section in found.sections}


def said(section):
    return " ".join(section.sentences)


def shown(section, name):
    """Return the cells of a table, as a list of dictionaries by heading."""
    table = {table.name: table for table in section.tables}[name]
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows()]


def planted(gradient, causal, exact=0.5):
    """Return a snapshot whose G and C (by loss, and by accuracy as far as eighths go) are the given ones."""
    n = len(gradient)
    arrays = random_arrays(np.random.default_rng(0), n)
    match = np.arange(N_EXAMPLES) < exact * N_EXAMPLES
    lost = np.round(np.asarray(causal) * N_EXAMPLES).astype(int)
    ablated = np.array([[m and index >= count for index, m in enumerate(match)] for count in lost])
    return arrays | {
        "loss": np.ones(N_EXAMPLES, np.float32),
        "exact_match": match,
        "gradient_norm": np.repeat(np.asarray(gradient, np.float32)[:, None], N_BATCHES, 1),
        "ablation_loss": np.broadcast_to(1 + np.asarray(causal, np.float32)[:, None], (2, n, N_EXAMPLES)).copy(),
        "ablation_exact_match": np.broadcast_to(ablated, (2, n, N_EXAMPLES)).copy(),
    }


@pytest.fixture
def opposite(tmp_path):
    """Six components at three snapshots: G and C rank alike at the first, in reverse at the others."""
    up = np.arange(1.0, 7)
    rows = [planted(up, up / 16), planted(up, up[::-1] / 16), planted(up, up[::-1] / 16)]
    return write_run(tmp_path / "run.h5", [0, 10, 20], rows, components(2, 2))


def test_planted_ranks_come_out_with_their_rho_roles_and_chance(opposite):
    found = report(opposite, score="loss")
    assert (
        "median rho -1.00 (from -1.00 to 1.00); positive and beyond chance at 1 of 3, negative and beyond chance at 2"
        in (said(found["rho"]))
    )
    by_loss = shown(found["rho"], "rho_end")[1]
    assert by_loss["C by"] == "loss"
    assert (by_loss["rho"], by_loss["interval"], by_loss["tied"]) == ("-1.00", "-1.00 to -1.00", "0%")
    # Tau is 2: of gaps 5, 3, 1, -1, -3, -5 two are of a bloat and two of a hero.
    roles = said(found["roles"])
    assert "1.3 heroes on average; luck gives 1.67" in roles
    assert "1.3 bloats on average; luck gives 1.67" in roles
    heroes = shown(found["roles"], "surest_heroes")
    assert [(row["hero"], row["probability"], row["snapshots"], row["gap"]) for row in heroes] == [
        ("L0H0", "0.67", "2 of 3", "-5.0"),
        ("L0H1", "0.67", "2 of 3", "-3.0"),
    ]
    assert [row["bloat"] for row in shown(found["roles"], "surest_bloats")] == ["L1H1", "L1MLP"]
    layers = shown(found["roles"], "layers_heroes")
    assert [(row["layer"], row["heroes"], row["of"]) for row in layers] == [("0", "1.3", "3"), ("1", "0.0", "3")]
    # 4 of 6 change between the first two, none after; dealt anew, 6 - 2 would, then 6 - (4 + 4 + 4) / 6.
    assert f"{4 / 12:.0%} of components change their role; {(4 + 4) / 12:.0%} would" in roles


def test_a_gap_of_layers_alone_is_called_depth(tmp_path):
    # In layer 0 every G lies above every G of layer 1, and C the other way round; within layers they agree.
    gradient, causal = [4, 5, 6, 1, 2, 3], np.array([1, 2, 3, 4, 5, 6]) / 16
    path = write_run(tmp_path / "run.h5", [0], [planted(gradient, causal)], components(2, 2))
    found = report(path, score="loss")["depth"]
    assert "100% of the gaps' sum of squares is layer and kind; chance would give 40%" in said(found)
    assert "Within layers rho is 1.00 instead of -0.54" in said(found)
    measures = {row["ranked"]: row for row in shown(found, "depth")}
    assert measures["all components"]["at 0"] == "-0.54"
    assert (measures["within layers"]["at 0"], measures["within layers"]["n"]) == ("1.00", "6")


@pytest.fixture
def full(tmp_path):
    """A run that has recorded everything."""
    rng, listed = np.random.default_rng(2), components(2, 2)
    repair = {
        "self_repair_rows": rng.integers(0, 3, (6, N_EXAMPLES)).astype(np.float32),
        "self_repair_interaction": rng.normal(0.1, 1, (6, N_EXAMPLES)).astype(np.float32),
    }
    rows = [random_arrays(rng, 6, 2) | repair for _ in range(5)]
    sets, joint = random_synergy({"bloats": [0, 1], "heroes": [4]}, 6)
    rankings = ("ablation", "gradient_norm")
    faithful = [(step, row) for step, row in zip((10, 20), random_faithfulness(6, 2, 2), strict=True)]
    return write_run(
        tmp_path / "run.h5", [0, 10, 20, 30, 40], rows, listed, METRICS, methods=("gradient", "gim"), sets=sets,
        joint=[(20, joint)], rankings=rankings, faithful=faithful,
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"score": "loss", "baseline": "zero", "threshold": 1.0, "window": "all"}])
def test_no_section_is_missing_where_everything_is_recorded(full, options):
    found = report(full, **options)
    assert list(found) == list(OF_A_RUN)
    assert {name: section.missing for name, section in found.items()} == dict.fromkeys(OF_A_RUN)
    assert {name: section.heading for name, section in found.items()} == {k: v[0] for k, v in OF_A_RUN.items()}


def test_the_tables_behind_it_are_those_of_the_findings(full):
    sections = report(full, score="loss", baseline="zero", threshold=1.0)
    data = {name: table for section in sections.values() for name, table in section.data.items()}
    with open_run(full) as run:
        findings = Findings(run, "zero", 1.0, FEW)
        by_loss, grokking = findings.by["loss"], findings.grokking
        expected = {
            "rho_exact_match": findings.by["exact_match"].rho,
            "rho_loss": by_loss.rho,
            **{name: getattr(by_loss, name) for name in ("depth", "depth_share", "counts", "episodes", "emergence",
                                                         "turnover", "stability", "thresholds")},
            "agreement": findings.agreement,
            "ablation_agreement": findings.ablation_agreement,
            **{name: getattr(grokking, name) for name in ("times", "events", "lags")},
            "synergy": findings.synergy,
            "self_repair_by_layer": self_repair_by_layer(run),
            "faithfulness": faithfulness_table(run, "loss"),
        }  # fmt: skip
        assert sections["grokking"].sentences == tuple(grokking.text().split("\n\n"))
    assert set(data) == set(expected)
    for name, table in expected.items():
        pd.testing.assert_frame_equal(data[name], table, obj=name)


def test_medians_and_counts_over_the_window_are_those_of_a_loop(full):
    with open_run(full) as run:
        window = (np.sort(run["exact_match"].mean(1))[1], 1)
    sections = report(full, window=window)
    with open_run(full) as run:
        findings = Findings(run, resampling=FEW)
        accuracy = run["exact_match"].mean(1)
        rho = findings.by["exact_match"].rho
        steps = [
            step for step, share, value in zip(run.steps, accuracy, rho["rho"], strict=True)
            if window[0] <= share <= window[1] and not np.isnan(value)
        ]  # fmt: skip
        assert 1 < len(steps) < 5
        agreement = findings.agreement
    for row in sections["agreement"].tables[0].frame.to_dict("records"):
        own = agreement[(agreement["measure"] == row["measure"]) & (agreement["score"] == "exact_match")]
        own = own.set_index("step").loc[steps]
        assert row["median"] == np.median(own["rho"])
        assert row["beyond"] == sum((own["p_value"] < 0.05) & (own["rho"] > 0))
        assert row["snapshots"] == len(steps)
    values = rho.set_index("step").loc[steps, "rho"]
    assert f"in the window ({len(steps)} snapshots): median rho {np.median(values):.2f} (from {min(values):.2f}" in (
        said(sections["rho"])
    )


def test_synergy_is_compared_with_random_sets(full):
    section = report(full)["synergy"]
    with open_run(full) as run:
        rows = Findings(run).synergy
    row = rows[(rows["score"] == "exact_match") & (rows["set"] == "bloats")].iloc[0]
    where = (
        "more than every random set" if row["joint"] > row["control_high"]
        else "less than every random set" if row["joint"] < row["control_low"] else "within the range of random sets"
    )  # fmt: skip
    assert (
        f"At step 20 the 2 bloats together cost {row['joint']:.2f}, {where} of that size (2 draws: "
        f"{row['control_low']:.2f} to {row['control_high']:.2f})."
    ) in section.sentences


NOT_RECORDED = {
    "synergy": "Not recorded; track with a schedule, such as synergy=5000.",
    "self_repair": 'Not recorded; track with measurements="all", or with "self_repair" among them.',
    "faithfulness": "Not recorded; track with a schedule, such as faithfulness=5000.",
}


def missing(found):
    return {name: section.missing for name, section in found.items() if section.missing is not None}


def test_one_snapshot(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=1)
    found = report(tmp_path / "run.h5", score="loss")
    assert missing(found) == NOT_RECORDED
    assert "Turnover needs two snapshots with roles." in found["roles"].sentences


def test_no_snapshot_in_the_window(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        accuracy = run["exact_match"].mean(1)
    found = report(tmp_path / "run.h5", score="loss", window=(0, 0.01))
    assert missing(found) == NOT_RECORDED
    assert (
        f"C by loss: no snapshot with a rho lies in the window, 0% to 1%; the probe's accuracy goes from "
        f"{min(accuracy):.0%} to {max(accuracy):.0%}."
    ) in found["rho"].sentences
    last = "at the last snapshot with a rho (step 30), since none lies in the window"
    assert last in said(found["depth"])
    assert last in said(found["roles"])
    assert {row["beyond chance"] for row in shown(found["agreement"], "agreement_loss")} == {"–"}


def test_no_snapshot_at_all(tmp_path):
    path = write_run(tmp_path / "run.h5", [], [], components(2, 2))
    found = report(path)
    assert found["rho"].missing == f"{path} has no snapshots yet; try again once the training has taken its first."
    as_before = "For the same reason as under “Does the gradient rank components as ablation does?”."
    same = dict.fromkeys(["depth", "agreement", "roles", "grokking"], as_before)
    assert missing(found) == {"rho": found["rho"].missing, **same, **NOT_RECORDED}
    assert ["snapshots", "none yet"] in found["run"].tables[0].rows()


def test_a_single_batch_of_the_probe_has_no_intervals(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.analysis.runs.N_BATCHES", 1)
    random_run(tmp_path / "run.h5")
    found = report(tmp_path / "run.h5", score="loss", window="all")
    assert missing(found) == NOT_RECORDED
    reason = "no interval, since the probe has a single batch; an interval needs at least 2 batches to resample"
    assert reason in said(found["rho"])
    assert shown(found["rho"], "rho_end")[1]["interval"] == "–"
    assert ["probe", "8 examples in 1 batch; a single batch gives no intervals"] in found["run"].tables[0].rows()
    assert {row["probability"] for row in shown(found["roles"], "surest_heroes")} == {"–"}


def test_where_all_c_are_tied_the_other_score_still_speaks(tmp_path):
    rng = np.random.default_rng(0)
    rows = [random_arrays(rng, 6) for _ in range(3)]
    for row in rows:
        row["ablation_exact_match"] = np.broadcast_to(row["exact_match"], (2, 6, N_EXAMPLES)).copy()
    path = write_run(tmp_path / "run.h5", [0, 10, 20], rows, components(2, 2))
    found = report(path, window="all")
    reason = "No snapshot has a rho by accuracy: causal importance is the same for all components (0)."
    as_before = "For the same reason as under “How much of that is depth and kind?”."
    assert missing(found) == {"depth": reason, "roles": as_before, **NOT_RECORDED}
    assert reason in found["rho"].sentences
    assert "C by loss, in the window (3 snapshots): median rho" in said(found["rho"])
    assert [row["tied"] for row in shown(found["rho"], "rho_end")] == ["100%", "0%"]


def test_two_components(tmp_path):
    random_run(tmp_path / "run.h5", layers=1, heads=1, seed=1)
    found = report(tmp_path / "run.h5", score="loss", window="all")
    assert missing(found) == NOT_RECORDED
    assert [row["n"] for row in shown(found["depth"], "depth")] == ["2", "1", "2", "1", "2"]
    assert "Heads within layers" not in said(found["depth"])


def test_rows_that_are_not_finite_are_left_out(tmp_path):
    rng = np.random.default_rng(0)
    rows = [random_arrays(rng, 6, 1) for _ in range(4)]
    for name in ("loss", "gradient_norm", "ablation_loss", "attribution"):
        rows[-1][name] = np.full_like(rows[-1][name], np.nan)
    path = write_run(tmp_path / "run.h5", [0, 10, 20, 30], rows, components(2, 2))
    found = report(path, score="loss", window="all")
    assert missing(found) == NOT_RECORDED
    assert "in the window (3 snapshots): median rho" in said(found["rho"])
    assert "At the end (step 30) by loss: no rho, since 6 of 6 values of gradient magnitude are not finite" in (
        said(found["rho"])
    )


def test_a_run_without_gradients_says_so_once(tmp_path):
    rng = np.random.default_rng(0)
    rows = [random_arrays(rng, 6) for _ in range(2)]
    for row in rows:
        del row["gradient_norm"]
    path = write_run(tmp_path / "run.h5", [0, 10], rows, components(2, 2))
    found = report(path)
    assert found["rho"].missing == (
        f"{path} has no 'gradient_norm', which this analysis needs; it holds ablation_exact_match, ablation_loss, "
        "exact_match, loss. Track again with measurements=\"all\", or with 'gradient_norm' among them."
    )
    assert len({section.missing for section in found.values()}) == 6
    assert found["run"].missing is None


def test_a_run_without_accuracy_still_has_what_the_loss_says(tmp_path):
    rng = np.random.default_rng(0)
    rows = [random_arrays(rng, 6) for _ in range(2)]
    for row in rows:
        del row["exact_match"], row["ablation_exact_match"]
    path = write_run(tmp_path / "run.h5", [0, 10], rows, components(2, 2))
    found = report(path, score="loss")
    assert "At the end (step 10) by loss: rho" in said(found["rho"])
    assert found["depth"].missing is None
    assert found["roles"].missing is None
    assert ["window", "probe accuracy 20% to 75%: unknown, since no accuracy was recorded"] in (
        found["run"].tables[0].rows()
    )


def test_the_facts_of_the_training_are_those_of_the_metadata(tmp_path):
    metadata = {"seed": 7, "git": {"commit": "a" * 40, "uncommitted_changes": True},
                "datamodule": {"hyperparameters": {"task": "sort"}}}  # fmt: skip
    random_run(tmp_path / "run.h5", metadata=metadata, finished=False)
    rows = report(tmp_path / "run.h5")["run"].tables[0].rows()
    assert rows[-3:] == [["task", "sort"], ["seed", "7"], ["commit", "aaaaaaaaaa and uncommitted changes"]]
    assert ["status", "not finished: still training, or stopped early"] in rows
    assert ["by chance", "1.67 heroes and as many bloats (28% each), without ties"] in rows


def test_long_runs_are_resampled_less(tmp_path):
    class Long:
        def __init__(self, steps, n):
            self.steps, self.components = range(steps), range(n)

    assert [resamples_for(Long(*size)) for size in ((0, 20), (19, 20), (100, 100), (200, 160), (9999, 999))] == [
        1000, 1000, 600, 200, 200,
    ]  # fmt: skip


def test_a_window_that_is_none_is_refused(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run, pytest.raises(AnalysisError) as error:
        Given(Findings(run), window=(0.5, 0.2))
    assert str(error.value) == "a window needs 0 <= low <= high <= 1; got (0.5, 0.2)."


def test_long_tables_are_cut_unless_all_is_asked_for(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2, layers=14, heads=1)
    with open_run(tmp_path / "run.h5") as run:
        found = run_report(run, "loss", resampling=FEW, window="all")
    table = next(table for table in found.sections[4].tables if table.name == "layers_heroes")
    assert (len(table.rows()), table.cut(), len(table.rows(True)), table.cut(True)) == (10, 4, 14, 0)
    assert "… and 4 more (`--all`)" in markdown(found)
    assert "more (`--all`)" not in markdown(found, everything=True)


def test_more_than_luck_gives_and_fewer_are_told_apart():
    rows = pd.DataFrame({"count": [9, 1, 9, 4], "chance": 4.0, "low": 2.0, "high": 6.0, "p_value": 0.5})
    assert [side.tolist() for side in outside(rows)] == [[True, False, True, False], [False, True, False, False]]
    assert _count_words("hero", rows, 0.9) == (
        "5.8 heroes on average; luck gives 4.00 (90% of luck: 2 to 6): more than that at 2 of 4, fewer at 1."
    )
    assert _count_words("bloat", rows[1:2], 0.9) == "1 bloat; luck gives 4.00 (90% of luck: 2 to 6), p = 0.50."
