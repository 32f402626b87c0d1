from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

from dynamics import pair_interactions, take_snapshot
from dynamics.components import ComponentMap
from dynamics.errors import MeasurementError
from tests.cases import AND_PAIR, DEAD_AND_CRITICAL, REDUNDANT
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import ablated_scores, scores
from tests.strategies import decoder, probe, scenes
from tests.test_snapshot import everything_about, used_model


def lost(oracle, batches, labels):
    """Return accuracy lost and nats gained, by the oracle."""
    (clean_loss, clean_match), (loss, match) = (
        scores(oracle, batches),
        ablated_scores(oracle, batches, "mean", labels),
    )
    return {"exact_match": np.mean(clean_match) - np.mean(match), "loss": np.mean(loss) - np.mean(clean_loss)}


@given(scenes(max_layers=1))
def test_it_equals_ablating_by_hand(scene):
    model, probe = scene
    oracle = DecoderOracle(model)
    found = pair_interactions(model, probe)
    single = [lost(oracle, probe.batches, [label]) for label in oracle.labels]
    table = found.table().set_index(["first", "second", "score"])
    for score in ("exact_match", "loss"):
        np.testing.assert_allclose(found.importance[score], [c[score] for c in single], atol=1e-9)
        np.testing.assert_array_equal(np.diag(found.joint[score]), found.importance[score])
        assert np.isnan(np.diag(found.interaction[score])).all()
        for i, j in combinations(range(len(single)), 2):
            first, second = oracle.labels[i], oracle.labels[j]
            joint = lost(oracle, probe.batches, [first, second])[score]
            interaction = joint - single[i][score] - single[j][score]
            for a, b in ((i, j), (j, i)):
                np.testing.assert_allclose(found.joint[score][a, b], joint, atol=1e-9)
                np.testing.assert_allclose(found.interaction[score][a, b], interaction, atol=1e-9)
            row = table.loc[(first, second, score)]
            assert row.tolist() == [
                found.importance[score][i],
                found.importance[score][j],
                found.joint[score][i, j],
                found.interaction[score][i, j],
            ]
    assert len(table) == 2 * len(single) * (len(single) - 1) / 2


@pytest.mark.parametrize(
    ("case", "single", "joint", "interaction"),
    [(REDUNDANT, (0, 0), 1, 1), (AND_PAIR, (1, 1), 1, -1), (DEAD_AND_CRITICAL, (1, 0), 1, 0)],
    ids=["or", "and", "critical"],
)
def test_planted_pairs_interact_as_or_and_as_and(case, single, joint, interaction):
    found = pair_interactions(case.model(), case.probe())
    assert found.importance["exact_match"].tolist() == [*single, 0, 0, 0]
    assert found.joint["exact_match"][0, 1] == joint
    assert found.interaction["exact_match"][0, 1] == interaction
    others = found.interaction["exact_match"].copy()
    others[[0, 1], [1, 0]] = 0
    assert (others[~np.eye(5, dtype=bool)] == 0).all()
    exact = (case.loss([0, 1]) - case.loss([0]) - case.loss([1]) + case.loss()).mean()
    np.testing.assert_allclose(found.interaction["loss"][0, 1], exact, atol=1e-12)


def test_the_model_is_left_as_it_was_and_progress_is_told():
    model, counted = used_model(), []
    fixed = probe(model.model)
    before = everything_about(model)
    found = pair_interactions(model, fixed, progress=lambda done, total: counted.append((done, total)))
    assert everything_about(model) == before
    total = len(fixed) * (1 + 6 + 15)
    assert counted == [(done, total) for done in range(1, total + 1)]
    # Single ablations are those of a snapshot.
    snapshot = take_snapshot(model, fixed, measurements="ablation")
    by_snapshot = (snapshot["ablation_loss"][0].astype(float) - snapshot["loss"].astype(float)).mean(-1)
    assert (found.importance["loss"] == by_snapshot).all()


def test_a_part_of_the_components():
    model = decoder()
    fixed = probe(model)
    whole = pair_interactions(model, fixed)
    part = pair_interactions(model, fixed, ComponentMap([whole.components[i] for i in (1, 4, 5)]))
    assert part.components.labels == ("L0H1", "L1H1", "L1MLP")
    for score in ("exact_match", "loss"):
        np.testing.assert_array_equal(part.interaction[score], whole.interaction[score][np.ix_([1, 4, 5], [1, 4, 5])])
    with pytest.raises(MeasurementError) as caught:
        pair_interactions(model, fixed, ComponentMap([whole.components[0]]))
    assert str(caught.value) == "a pair takes 2 components; got 1."
