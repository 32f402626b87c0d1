import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamics import open_run, take_snapshot, take_synergy
from dynamics.analysis import joint_ablation_table, synergy_ratios, synergy_table
from dynamics.errors import AnalysisError
from dynamics.store import create_run
from dynamics.synergy import with_controls
from tests.analysis.runs import random_run, random_synergy
from tests.cases import AND_PAIR, DEAD_AND_CRITICAL, REDUNDANT, WITHOUT_ATTENTION


def test_the_papers_ratio_is_to_the_mean():
    # Five components of 3.1 points each that cost 43.8 points together.
    found = synergy_ratios(0.438, np.full(5, 0.031))
    assert found.ratio_to_mean == pytest.approx(43.8 / 3.1)
    assert found.ratio_to_sum == pytest.approx(43.8 / 15.5)
    assert found.excess == pytest.approx(0.438 - 0.155)
    assert found.reason is None


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_effects_that_add_up(single):
    found = synergy_ratios(sum(single), np.array(single))
    assert found.excess == pytest.approx(0)
    assert found.ratio_to_sum == pytest.approx(1)
    assert found.ratio_to_mean == pytest.approx(len(single))


def test_why_there_is_no_ratio_is_said():
    for joint, single, excess, reason in (
        (0.0, [], 0.0, "the set is empty"),
        (1.0, [0.0, 0.0], 1.0, "the sum of C over the set is not positive (0)"),
        (0.5, [-0.5, 0.25], 0.75, "the sum of C over the set is not positive (-0.25)"),
        (0.5, [np.nan, 0.25], math.nan, "a value of C is not finite"),
        (math.inf, [0.25], math.nan, "a value of C is not finite"),
    ):
        found = synergy_ratios(joint, np.array(single))
        assert found.reason == reason
        assert math.isnan(found.ratio_to_sum)
        assert math.isnan(found.ratio_to_mean)
        assert found.excess == pytest.approx(excess, nan_ok=True)


@pytest.mark.parametrize(
    ("case", "single", "joint", "ratio_to_sum", "ratio_to_mean"),
    [
        (REDUNDANT, [0, 0], 1, math.nan, math.nan),
        (AND_PAIR, [1, 1], 1, 0.5, 1),
        (DEAD_AND_CRITICAL, [1, 0], 1, 1, 2),
    ],
    ids=["or", "and", "critical"],
)
def test_planted_pairs_have_the_ratios_of_the_closed_form(tmp_path, case, single, joint, ratio_to_sum, ratio_to_mean):
    model, probe = case.model(), case.probe()
    snapshot = take_snapshot(model, probe, measurements=WITHOUT_ATTENTION, methods="gradient")
    sets = with_controls({"bloats": [0, 1], "heroes": []}, 5)
    taken = take_synergy(model, probe, sets, role_score="exact_match")
    writer = create_run(tmp_path / "run.h5", snapshot, {}, synergy=taken)
    writer.append("snapshots", 7, snapshot)
    writer.append("synergy", 7, taken)
    writer.close()
    with open_run(tmp_path / "run.h5") as run:
        table = synergy_table(run).set_index(["set", "score"])
    row = table.loc[("bloats", "exact_match")]
    assert (row.joint, row["sum"], row["mean"]) == (joint, sum(single), sum(single) / 2)
    assert row.excess == joint - sum(single)
    np.testing.assert_array_equal([row.ratio_to_sum, row.ratio_to_mean], [ratio_to_sum, ratio_to_mean])
    nats = [(case.loss(gone) - case.loss()).mean() for gone in ([0], [1], [0, 1])]
    row = table.loc[("bloats", "loss")]
    np.testing.assert_allclose([row.joint, row["sum"]], [nats[2], nats[0] + nats[1]], rtol=1e-9)
    np.testing.assert_allclose([row.ratio_to_sum], [nats[2] / (nats[0] + nats[1])], rtol=1e-9)
    assert (table["judged_by"] == "exact_match").all()
    # Controls by the closed form: of the drawn pairs only {0, 1} with both, or with the one that counts, costs.
    draws = [sets[f"random_bloats_{draw}"] for draw in range(10)]
    costs = [1 - case.exact_match([i for i in draw if i < 4]).mean() for draw in draws]
    control = table.loc[("bloats", "exact_match")]
    assert (control.control_joint, control.control_low, control.control_high) == (
        pytest.approx(np.mean(costs)),
        min(costs),
        max(costs),
    )


def test_the_tables_are_what_a_loop_over_the_arrays_gives(tmp_path):
    sets, first = random_synergy({"bloats": [0, 3], "heroes": [5]}, 6)
    _, second = random_synergy({"bloats": [1, 2, 4], "heroes": []}, 6, role_score=1, seed=1)
    _, third = random_synergy({"bloats": [], "heroes": []}, 6, role_score=-1, seed=2)
    joint = [(10, first), (20, second), (30, third)]
    rows = random_run(tmp_path / "run.h5", n_steps=4, sets=sets, joint=joint)
    with open_run(tmp_path / "run.h5") as run:
        every = joint_ablation_table(run)
        table = synergy_table(run)
    assert len(every) == 3 * len(sets) * 2
    assert list(table) == [
        "step", "set", "score", "judged_by", "size", "draws", "draws_with_ratio", "joint", "sum", "mean", "excess",
        "ratio_to_sum", "ratio_to_mean", "control_joint", "control_low", "control_high", "control_ratio_to_sum",
        "control_ratio_to_mean", "control_ratio_to_sum_low", "control_ratio_to_sum_high", "control_ratio_to_mean_low",
        "control_ratio_to_mean_high", "reason",
    ]  # fmt: skip
    assert table["step"].tolist() == [10] * 4 + [20] * 4 + [30] * 4
    by_name = every.set_index(["step", "set", "score"])
    short = table.set_index(["step", "set", "score"])
    for step, row in joint:
        snapshot = rows[step // 10]
        for score, sign in (("exact_match", 1), ("loss", -1)):
            clean = snapshot[score].astype(float).mean()
            alone = sign * (clean - snapshot[f"ablation_{score}"][0].astype(float).mean(-1))
            costs = {}
            for place, name in enumerate(sets):
                found = by_name.loc[(step, name, score)]
                single = alone[row["membership"][place]]
                costs[name] = sign * (clean - row[f"joint_{score}"][place].astype(float).mean())
                assert found["joint"] == pytest.approx(costs[name])
                assert found["sum"] == pytest.approx(single.sum())
                assert found["size"] == len(single)
                assert found["judged_by"] == {0: "exact_match", 1: "loss", -1: None}[int(row["role_score"])]
                if len(single) and single.sum() > 0:
                    assert found["mean"] == pytest.approx(single.mean())
                    assert found["ratio_to_mean"] == pytest.approx(costs[name] / single.mean())
                    assert found["reason"] is None
                else:
                    assert math.isnan(found["ratio_to_sum"])
                    assert found["reason"].startswith("the s")
            for name in ("bloats", "heroes"):
                found = short.loc[(step, name, score)]
                control = [costs[f"random_{name}_{draw}"] for draw in (0, 1)]
                sums = [by_name.loc[(step, f"random_{name}_{draw}", score), "sum"] for draw in (0, 1)]
                assert found["draws"] == 2
                assert found["control_joint"] == pytest.approx(np.mean(control))
                assert (found["control_low"], found["control_high"]) == pytest.approx((min(control), max(control)))
                assert found["joint"] == pytest.approx(costs[name])
                if np.mean(sums) > 0:
                    ratio = np.mean(control) / np.mean(sums)
                    assert found["control_ratio_to_sum"] == pytest.approx(ratio)
                    assert found["control_ratio_to_mean"] == pytest.approx(ratio * found["size"])
                else:
                    assert math.isnan(found["control_ratio_to_sum"])
                own = [cost / total for cost, total in zip(control, sums, strict=True) if total > 0]
                assert found["draws_with_ratio"] == len(own)
                ends = [min(own), max(own)] if own else [math.nan] * 2
                for ratio, times in (("sum", 1), ("mean", found["size"])):
                    drawn = [found[f"control_ratio_to_{ratio}_{end}"] for end in ("low", "high")]
                    assert drawn == pytest.approx([times * end for end in ends], nan_ok=True)


def test_one_unknown_control_leaves_the_control_unknown(tmp_path):
    sets, row = random_synergy({"bloats": [0, 3], "heroes": [5]}, 6)
    row["joint_loss"][sets.index("random_bloats_1"), 0] = np.nan
    random_run(tmp_path / "run.h5", n_steps=2, sets=sets, joint=[(10, row)])
    with open_run(tmp_path / "run.h5") as run:
        table = synergy_table(run).set_index(["set", "score"])
    columns = ["control_joint", "control_low", "control_high", "control_ratio_to_sum", "control_ratio_to_sum_low"]
    assert table.loc[("bloats", "loss"), columns].isna().all()
    assert table.loc[("heroes", "loss"), columns].notna().all()


def test_a_run_that_has_no_rows_yet_gives_empty_tables(tmp_path):
    sets, _ = random_synergy({"bloats": [], "heroes": []}, 6)
    random_run(tmp_path / "run.h5", n_steps=1, sets=sets)
    with open_run(tmp_path / "run.h5") as run:
        assert len(synergy_table(run)) == len(joint_ablation_table(run)) == 0


def test_a_run_without_synergy_is_refused(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run, pytest.raises(AnalysisError) as caught:
        synergy_table(run)
    assert str(caught.value) == (
        f"{tmp_path / 'run.h5'} has no synergy: it was tracked with synergy=None, or by an earlier version. Track "
        "again with a schedule, such as synergy=5000."
    )
