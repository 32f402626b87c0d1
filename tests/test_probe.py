import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dynamics import Probe, take_snapshot
from dynamics.errors import ProbeError
from dynamics.probe import sequence_objective
from dynamics.tasks import TASKS, encode
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import greedy_decode, scores
from tests.strategies import batches, decoder, decoders, probe, scenes

IDS = torch.tensor([[1, 2, 3], [0, 4, 2]])
LABELS = torch.tensor([[-100, 3, 4], [-100, -100, 1]])


class Fixed(nn.Module):
    """Logits that do not depend on anything."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, input_ids):
        return self.logits


@given(scenes())
def test_loss_and_exact_match_equal_the_slow_ones(scene):
    model, probe = scene
    results = [probe.objective(model, batch) for batch in probe.batches]
    loss, match = scores(DecoderOracle(model), probe.batches)
    np.testing.assert_allclose(torch.cat([loss for loss, _ in results]).detach(), loss, rtol=1e-10)
    assert torch.cat([match for _, match in results]).tolist() == match


def test_the_loss_is_the_mean_over_the_targets_of_an_example_not_over_the_batch():
    logits = torch.zeros(2, 3, 4)
    logits[0, 1, 0] = np.log(5.0)
    labels = torch.tensor([[-100, 0, 1], [-100, -100, 2]])
    loss, match = sequence_objective(Fixed(logits), {"input_ids": IDS, "labels": labels})
    np.testing.assert_allclose(loss, [(np.log(8 / 5) + np.log(4)) / 2, np.log(4)], rtol=1e-6)
    assert match.tolist() == [False, False]


@given(decoders(), st.integers(0, 2**16))
def test_teacher_forced_exact_match_equals_greedy_decoding(model, seed):
    generator = torch.Generator().manual_seed(seed)
    prompt_length, n_targets = (int(torch.randint(1, high, (1,), generator=generator)) for high in (4, 5))
    prompts = torch.randint(model.vocab_size, (8, prompt_length), generator=generator)
    answers = torch.randint(model.vocab_size, (8, n_targets), generator=generator)
    for row in range(6):
        answers[row] = torch.tensor(greedy_decode(model, prompts[row].tolist(), n_targets))
    for row in range(3, 6):
        wrong = int(torch.randint(n_targets, (1,), generator=generator))
        answers[row, wrong] = (answers[row, wrong] + 1) % model.vocab_size
    tokens = torch.cat([prompts, answers], dim=1)
    labels = tokens[:, 1:].clone()
    labels[:, : prompt_length - 1] = -100
    _, match = sequence_objective(model, {"input_ids": tokens[:, :-1], "labels": labels})
    decoded = [greedy_decode(model, prompt, n_targets) for prompt in prompts.tolist()]
    assert match.tolist() == [a == b for a, b in zip(decoded, answers.tolist(), strict=True)]
    assert match[:3].all()
    assert not match[3:6].any()


def test_greedy_decoding_of_a_task_by_a_partly_trained_model():
    model = decoder(n_layers=1, d_model=16, d_ff=16, vocab_size=103, positions="none", scale=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(0)

    def draw(n):
        # A few integers only, so that little training goes a long way.
        return encode(TASKS["sort"], torch.randint(1, 7, (n, 2), generator=generator))

    for _ in range(60):
        optimizer.zero_grad()
        sequence_objective(model, draw(32))[0].mean().backward()
        optimizer.step()
    batch = draw(40)
    _, match = sequence_objective(model, batch)
    decoded = [greedy_decode(model, ids[:4].tolist(), 3) for ids in batch["input_ids"]]
    assert match.tolist() == [a == b[3:].tolist() for a, b in zip(decoded, batch["labels"], strict=True)]
    assert 0.1 < match.double().mean() < 0.9


@given(scenes())
def test_shifted_labels_equal_a_shift_by_hand(scene):
    model, probe = scene
    shifted = [
        {"input_ids": b["input_ids"], "labels": nn.functional.pad(b["labels"][:, :-1], (1, 0), value=3)}
        for b in probe.batches
    ]
    by_hand = []
    for b in shifted:
        labels = torch.full_like(b["labels"], -100)
        labels[:, :-1] = b["labels"][:, 1:]
        by_hand.append({"input_ids": b["input_ids"], "labels": labels})
    if any((b["labels"] == -100).all(-1).any() for b in by_hand):
        with pytest.raises(ProbeError):
            Probe(shifted, shift_labels=True)
        return
    a, b = take_snapshot(model, Probe(shifted, shift_labels=True)), take_snapshot(model, Probe(by_hand))
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-12)
    assert Probe(shifted, shift_labels=True).target_counts() == Probe(by_hand).target_counts()


def test_a_model_that_returns_an_object_with_logits():
    logits = torch.randn(2, 3, 5)
    batch = {"input_ids": IDS, "labels": LABELS}
    plain = sequence_objective(Fixed(logits), batch)
    wrapped = sequence_objective(Fixed(SimpleNamespace(logits=logits)), batch)
    assert all(torch.equal(a, b) for a, b in zip(plain, wrapped, strict=True))


def test_a_model_that_returns_no_logits_is_an_error():
    with pytest.raises(ProbeError) as caught:
        sequence_objective(Fixed({"hidden": torch.zeros(2, 3, 4)}), {"input_ids": IDS, "labels": IDS})
    assert str(caught.value) == (
        "the default objective needs logits, or an output with .logits; Fixed returned a dict without. "
        "Let Probe(batches, objective=...) go on from it to the loss."
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_of_half_precision_logits_is_computed_in_single_precision(dtype):
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    batch = {"input_ids": IDS, "labels": LABELS}
    loss, _ = sequence_objective(Fixed(logits), batch)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, sequence_objective(Fixed(logits.float()), batch)[0])


def test_nan_logits_match_nothing_and_have_a_nan_loss():
    logits = torch.full((2, 3, 5), torch.nan)
    loss, match = sequence_objective(Fixed(logits), {"input_ids": IDS, "labels": torch.zeros(2, 3, dtype=torch.long)})
    assert loss.isnan().all()
    assert not match.any()


def test_target_counts_run_through_the_batches():
    pair = [{"input_ids": IDS, "labels": LABELS}, {"input_ids": IDS[:1], "labels": IDS[:1]}]
    assert Probe(pair).target_counts() == [2, 1, 3]
    assert Probe(pair, shift_labels=True).target_counts() == [2, 1, 2]
    assert Probe([0], objective=lambda model, batch: batch).target_counts() is None


def test_batches_are_read_once_and_kept():
    source = batches(decoder(), 0, [(2, 3), (1, 4)])
    kept = Probe(batch for batch in source)
    expected = [{name: tensor.clone() for name, tensor in batch.items()} for batch in source]
    source[0]["input_ids"].zero_()
    assert len(kept) == 2
    for batch, before in zip(kept.batches, expected, strict=True):
        assert all(torch.equal(batch[name], before[name]) for name in before)


def test_a_probe_made_in_inference_mode_can_be_measured():
    model = decoder()
    with torch.inference_mode():
        inside = probe(model)
    expected = take_snapshot(model, probe(model))
    assert all(np.array_equal(take_snapshot(model, inside)[name], expected[name], equal_nan=True) for name in expected)


def test_the_fingerprint_tells_probes_apart():
    def change(batch, name, value):
        changed = {key: tensor.clone() for key, tensor in batch.items()}
        changed[name][-1, -1] = value
        return changed

    first, second = batches(decoder(), 0, [(2, 3), (2, 3)])
    assert Probe([first, second]).fingerprint() == Probe(iter([first, second])).fingerprint()
    others = [
        Probe([first]),
        Probe([second, first]),
        Probe([first, change(second, "input_ids", 77)]),
        Probe([change(first, "labels", 77), second]),
        Probe([first, second], shift_labels=True),
        Probe([{name: torch.cat([first[name], second[name]]) for name in first}]),
        Probe([{name: tensor.int() for name, tensor in batch.items()} for batch in (first, second)]),
    ]
    assert len({Probe([first, second]).fingerprint(), *(other.fingerprint() for other in others)}) == 8


GOOD = {"input_ids": IDS, "labels": LABELS}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Probe([]), "a probe needs at least one batch; got none."),
        (lambda: Probe(GOOD), "a probe takes an iterable of batches; got a single dict. Put it in a list."),
        (lambda: Probe(IDS), "a probe takes an iterable of batches; got a single Tensor. Put it in a list."),
        (
            lambda: Probe([GOOD, {"input_ids": IDS, "targets": LABELS}]),
            "probe batch 1 must be a mapping with 'input_ids' and 'labels'; got keys ['input_ids', 'targets']. "
            "For other batches pass Probe(batches, objective=...).",
        ),
        (
            lambda: Probe([(IDS, LABELS)]),
            "probe batch 0 must be a mapping with 'input_ids' and 'labels'; got a tuple. "
            "For other batches pass Probe(batches, objective=...).",
        ),
        (
            lambda: Probe([{"input_ids": IDS, "labels": LABELS[:, :2]}]),
            "probe batch 0: input_ids and labels must both be (examples, positions) with at least one example; "
            "got (2, 3) and (2, 2).",
        ),
        (
            lambda: Probe([{"input_ids": IDS[0], "labels": LABELS[0]}]),
            "probe batch 0: input_ids and labels must both be (examples, positions) with at least one example; "
            "got (3,) and (3,).",
        ),
        (
            lambda: Probe([{"input_ids": IDS[:0], "labels": LABELS[:0]}]),
            "probe batch 0: input_ids and labels must both be (examples, positions) with at least one example; "
            "got (0, 3) and (0, 3).",
        ),
        (
            lambda: Probe([GOOD, {"input_ids": IDS, "labels": LABELS.masked_fill(LABELS == 1, -100)}]),
            "probe batch 1: every example needs at least one target token, but example 1 has only labels -100. "
            "Remove it or set its labels.",
        ),
        (
            lambda: Probe([{"input_ids": IDS, "labels": torch.full_like(IDS, -100)}]),
            "probe batch 0: every example needs at least one target token, but example 0 has only labels -100 "
            "(2 such examples). Remove it or set its labels.",
        ),
        (
            lambda: Probe([{"input_ids": IDS[:, :1], "labels": IDS[:, :1]}], shift_labels=True),
            "probe batch 0: every example needs at least one target token, but example 0 has only labels -100 "
            "(2 such examples). Remove it or set its labels.",
        ),
    ],
)
def test_a_probe_that_cannot_be_scored_is_an_error(build, message):
    with pytest.raises(ProbeError) as caught:
        build()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [[1, 2]]}, "probe batch 0: labels must be a tensor; got a list."),
        (
            {"attention_mask": torch.ones(1, 3)},
            "probe batch 0: attention_mask must have the shape of input_ids, (1, 2); got (1, 3).",
        ),
    ],
)
def test_a_batch_of_another_kind_is_named(change, message):
    batch = {"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1, 2]])}
    with pytest.raises(ProbeError) as error:
        Probe([{**batch, **change}])
    assert str(error.value) == message


def test_labels_that_copy_the_input_are_pointed_out():
    ids = torch.tensor([[5, 6, 7, 8]])
    with pytest.warns(UserWarning, match=r"pass Probe\(batches, shift_labels=True\)"):
        Probe([{"input_ids": ids, "labels": ids}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Probe([{"input_ids": ids, "labels": ids}], shift_labels=True)
        Probe([{"input_ids": ids, "labels": ids.roll(-1)}])
    with pytest.warns(UserWarning, match=r"pass Probe\(batches, shift_labels=True\)"):
        Probe([{"input_ids": ids, "labels": ids.masked_fill(ids < 7, -100)}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # One target that equals its input by chance is no sign of a mistake.
        Probe([{"input_ids": ids, "labels": torch.tensor([[-100, -100, -100, 8]])}])


def test_labels_of_any_whole_number_type_score_alike():
    ids = torch.tensor([[1, 2, 3]])
    logits = torch.randn(1, 3, 5)
    scores = [
        Probe([{"input_ids": ids, "labels": ids.roll(-1).to(dtype)}]).objective(
            lambda _: logits, {"input_ids": ids, "labels": ids.roll(-1).to(dtype)}
        )
        for dtype in (torch.int64, torch.int32)
    ]
    assert torch.equal(scores[0][0], scores[1][0])
    with pytest.raises(ProbeError) as error:
        Probe([{"input_ids": ids, "labels": ids.float()}])
    assert str(error.value) == "probe batch 0: labels must be whole numbers; got torch.float32."
