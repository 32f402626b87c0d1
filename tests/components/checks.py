"""What every model family is held to: each measurement of a snapshot equals the slow references."""

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from dynamics import Probe, take_snapshot
from tests.oracles import measurements


class InDouble(TorchFunctionMode):
    """Norms and rotations of many models step down to single precision; this keeps them in double."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        kwargs = {name: torch.float64 if arg is torch.float32 else arg for name, arg in (kwargs or {}).items()}
        return function(*args, **kwargs)


def probe(vocabulary=7, seed=0, sizes=((2, 4), (1, 3))):
    """Return batches of unequal size and length, in which position 1 is no target."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for examples, length in sizes:
        ids, labels = torch.randint(vocabulary, (2, examples, length), generator=generator)
        labels[:, 1] = -100
        batches.append({"input_ids": ids, "labels": labels})
    return Probe(batches)


def equal(left, right, rtol=1e-8, atol=1e-11):
    np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)


def same(left, right, rtol=1e-8, atol=1e-11):
    """Compare all that two snapshots hold."""
    assert left.components.labels == right.components.labels
    assert set(left) == set(right)
    for name in left:
        equal(left[name], right[name], rtol, atol)


def every_measurement_equals(model, examples, oracle, gim_oracle, components=None):
    """Compare the logits and every array of a snapshot with an oracle, and one whose backward pass follows GIM."""
    batches = examples.batches
    with torch.no_grad():
        for ids, _ in measurements.examples(batches):
            torch.testing.assert_close(model(ids[None])[0], oracle.run(ids)[0], rtol=1e-9, atol=1e-10)
    snapshot = take_snapshot(model, examples, components)
    assert snapshot.components.labels == tuple(oracle.labels)
    loss, match = measurements.scores(oracle, batches)
    equal(snapshot["loss"], loss)
    assert snapshot["exact_match"].tolist() == match
    for weights in ("value_out", "all"):
        names = ("gradient_norm", "weight_norm")
        found = take_snapshot(model, examples, components, measurements=names, weights=weights)
        equal(found["gradient_norm"], measurements.gradient_norms(oracle, batches, weights))
        equal(found["weight_norm"], measurements.weight_norms(oracle, weights))
    for b, baseline in enumerate(snapshot.baselines):
        for i, label in enumerate(oracle.labels):
            loss, match = measurements.ablated_scores(oracle, batches, baseline, [label])
            equal(snapshot["ablation_loss"][b, i], loss)
            assert snapshot["ablation_exact_match"][b, i].tolist() == match
    by_method = dict(zip(snapshot.methods, snapshot["attribution"], strict=True))
    equal(by_method["gradient"], measurements.attributions(oracle, batches))
    equal(by_method["gim"], measurements.attributions(gim_oracle, batches))
    assert not np.allclose(by_method["gim"], by_method["gradient"])
    return snapshot
