from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from dynamics import open_run
from dynamics.analysis import (
    classify_roles,
    read_timeline,
    role_episodes,
    stable_role_table,
    threshold_table,
    turnover_table,
    with_threshold,
)
from dynamics.analysis.role_stability import default_thresholds
from tests.analysis.runs import components, random_run, write_run
from tests.analysis.timelines import LETTERS, timeline, words

ROLES = ("hero", "bloat", "aligned")


@given(words())
def test_turnover_equals_naive_loops(drawn):
    table = turnover_table(timeline(*drawn))
    assert list(table) == ["step", "compared", "changed", "share", "chance"]
    assert len(table) == len(drawn[0]) - 1
    for row in table.itertuples():
        now = row.step // 10
        pairs = [(word[:now].replace("-", "")[-1:], word[now]) for word in drawn]
        pairs = [(was, role) for was, role in pairs if was and role != "-"]
        changed = sum(was != role for was, role in pairs)
        assert (row.compared, row.changed) == (len(pairs), changed)
        if not pairs:
            assert np.isnan([row.share, row.chance]).all()
            continue
        assert row.share == pytest.approx(changed / len(pairs))
        # Every way to deal the roles of this snapshot anew.
        dealt = [
            sum(was != role for (was, _), role in zip(pairs, order, strict=True))
            for order in permutations([role for _, role in pairs])
        ]
        assert row.chance == pytest.approx(np.mean(dealt))


def test_turnover_of_layers_adds_up():
    whole = timeline("hhba", "h-ba", "aabb", "bbbb", layers=[0, 0, 1, 1])
    layers, together = turnover_table(whole, by_layer=True), turnover_table(whole)
    assert list(zip(layers["step"], layers["layer"], strict=True)) == [(s, la) for s in (10, 20, 30) for la in (0, 1)]
    assert layers["changed"].tolist() == [0, 0, 2, 1, 2, 0]
    assert layers["compared"].tolist() == [1, 2, 2, 2, 2, 2]
    sums = layers.groupby("step")[["compared", "changed"]].sum().reset_index()
    pd.testing.assert_frame_equal(sums, together[["step", "compared", "changed"]])


@given(words())
def test_time_in_roles_equals_naive_loops(drawn):
    table = iter(stable_role_table(timeline(*drawn)).to_dict("records"))
    for i, word in enumerate(drawn):
        told = word.replace("-", "")
        for letter in "hba":
            row = next(table)
            places = [10 * place for place, other in enumerate(word) if other == letter]
            assert (row["component"], row["role"]) == (f"L0H{i}", LETTERS[letter])
            assert (row["snapshots"], row["defined"]) == (len(places), len(told))
            assert row["share"] == pytest.approx(len(places) / len(told) if told else np.nan, nan_ok=True)
            assert row["longest"] == max(k for k in range(len(told) + 1) if letter * k in told)
            ends = [None if row[name] is pd.NA else row[name] for name in ("first", "last")]
            assert ends == ([places[0], places[-1]] if places else [None, None])


def test_unsure_roles_are_left_out():
    whole = timeline("hhh", "aaa")
    probability = {"hero": np.array([[1, 0], [0.2, 0], [1, 0]]), "aligned": np.ones((3, 2))}
    row = stable_role_table(whole, probability, confidence=0.5).iloc[0]
    assert (row["snapshots"], row["defined"], row["longest"]) == (2, 2, 2)
    assert turnover_table(whole, probability=probability, confidence=0.5)["compared"].tolist() == [1, 2]


def test_default_thresholds():
    assert [default_thresholds(n) for n in (20, 160, 2)] == [(4, 6, 8), (32, 48, 64), (1,)]


def test_sensitivity_to_the_threshold(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=5, layers=2, heads=2)
    with open_run(tmp_path / "run.h5") as run:
        whole = read_timeline(run, score="loss", threshold=2)
    table = threshold_table(whole, thresholds=(1, 2, 4), persistence=1)
    assert table[["threshold", "role"]].values.tolist() == [[t, r] for t in (1, 2, 4) for r in ("hero", "bloat")]
    assert table["chance"].tolist() == pytest.approx([2.5, 2.5, 10 / 6, 10 / 6, 0.5, 0.5])
    for row in table.itertuples():
        roles = np.array([classify_roles(gap.delta, row.threshold) for gap in whole.gaps])
        is_role = roles == row.role
        assert row.mean_count == pytest.approx(is_role.sum() / 5)
        assert (row.emerged, row.confirmed) == (is_role.any(0).sum(), is_role.any(0).sum())
        assert (None if row.first_onset is pd.NA else row.first_onset) == (
            10 * np.flatnonzero(is_role.any(1))[0] if is_role.any() else None
        )
        assert row.turnover == pytest.approx((roles[1:] != roles[:-1]).mean())
        assert row.same == pytest.approx((roles == whole.roles).mean())
    assert table["same"].tolist()[2:4] == [1, 1]
    # Six components: round(1.2), round(1.8), round(2.4).
    assert threshold_table(whole)["threshold"].tolist() == [1, 1, 2, 2]
    assert (with_threshold(whole, 2).roles == whole.roles).all()


def test_runs_without_any_role():
    whole = timeline("--", "--")
    assert turnover_table(whole)["share"].isna().all()
    assert stable_role_table(whole)["share"].isna().all()
    assert len(turnover_table(timeline("h", "a"))) == 0
    assert len(role_episodes(whole)) == 0


def test_a_diverged_run_has_no_role_at_any_threshold(tmp_path):
    rows = random_run(tmp_path / "run.h5", n_steps=1)
    rows[0]["gradient_norm"][:] = np.nan
    path = write_run(tmp_path / "nan.h5", [0], rows, components(2, 2))
    with open_run(path) as run:
        table = threshold_table(read_timeline(run))
    assert table["emerged"].tolist() == [0, 0, 0, 0]
    assert table[["mean_count", "turnover", "same"]].isna().all(axis=None)
