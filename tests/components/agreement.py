"""Compare every measurement of a snapshot with the oracles, for a model of any family."""

import numpy as np
import torch

from dynamics import take_snapshot
from tests.oracles import gim, measurements, self_repair


def equal(left, right, rtol=1e-8, atol=1e-11):
    np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)


def same(left, right, rtol=1e-8, atol=1e-11):
    """Compare all that two snapshots hold."""
    assert left.components.labels == right.components.labels
    assert set(left) == set(right)
    for name in left:
        equal(left[name], right[name], rtol, atol)


def agree(model, probe, oracle_under, components=None):
    """Compare logits and measurements with ``oracle_under(rules)``, an explicit forward pass of the model."""
    oracle, batches = oracle_under(gim.OFF), probe.batches
    with torch.no_grad():
        for ids, _ in measurements.examples(batches):
            logits = model(ids[None])
            logits = getattr(logits, "logits", logits)[0]
            torch.testing.assert_close(logits, oracle.run(ids)[0], rtol=1e-10, atol=1e-10)
    snapshot = take_snapshot(model, probe, components)
    assert snapshot.components.labels == tuple(oracle.labels)
    loss, match = measurements.scores(oracle, batches)
    equal(snapshot["loss"], loss)
    assert snapshot["exact_match"].tolist() == match
    for weights in ("value_out", "all"):
        found = take_snapshot(model, probe, components, ("gradient_norm", "weight_norm"), weights=weights)
        equal(found["gradient_norm"], measurements.gradient_norms(oracle, batches, weights))
        equal(found["weight_norm"], measurements.weight_norms(oracle, weights))
    for b, baseline in enumerate(snapshot.baselines):
        for i, label in enumerate(oracle.labels):
            loss, match = measurements.ablated_scores(oracle, batches, baseline, [label])
            equal(snapshot["ablation_loss"][b, i], loss)
            assert snapshot["ablation_exact_match"][b, i].tolist() == match
    by_method = dict(zip(snapshot.methods, snapshot["attribution"], strict=True))
    equal(by_method["gradient"], measurements.attributions(oracle, batches))
    equal(by_method["gim"], measurements.attributions(oracle_under(gim.Rules()), batches))
    assert not np.allclose(by_method["gim"], by_method["gradient"])
    found = take_snapshot(model, probe, components, "attribution", methods="ig", ig_steps=3)["attribution"][0]
    equal(found, measurements.integrated_gradients_at(oracle, batches, steps=3))
    for threshold in (0.0, 0.01):
        found = take_snapshot(model, probe, components, "self_repair", self_repair_threshold=threshold)
        rows, interaction = self_repair.self_repair(oracle, batches, threshold)
        equal(found["self_repair_rows"], rows)
        equal(found["self_repair_interaction"], interaction)
