import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynamics.errors import ModelError
from dynamics.model import Transformer
from tests.oracles.decoder import DecoderOracle
from tests.strategies import POSITIONS, decoder, decoders


@given(decoders(), st.integers(1, 8), st.integers(0, 2**16))
def test_the_fused_forward_equals_the_slow_one(model, length, seed):
    ids = torch.randint(model.vocab_size, (3, length), generator=torch.Generator().manual_seed(seed))
    oracle = DecoderOracle(model)
    expected = torch.stack([oracle.run(row)[0] for row in ids])
    torch.testing.assert_close(model(ids), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_slow_forward_of_the_default_widths(positions):
    # Wide heads, so that every frequency of the position code is used.
    model = decoder(d_model=32, d_ff=8, positions=positions, scale=0.1, vocab_size=7, max_length=40)
    ids = torch.randint(7, (2, 33), generator=torch.Generator().manual_seed(0))
    expected = torch.stack([DecoderOracle(model).run(row)[0] for row in ids])
    torch.testing.assert_close(model(ids), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("positions", POSITIONS)
def test_no_position_sees_a_later_one(positions):
    model = decoder(positions=positions)
    ids = torch.tensor([[0, 1, 2, 3, 4]])
    changed = torch.tensor([[0, 1, 2, 4, 3]])
    difference = (model(ids) - model(changed)).abs().amax(-1)[0]
    assert (difference[:3] == 0).all()
    assert (difference[3:] > 1e-6).all()


def test_the_defaults_are_the_papers_sizes():
    model = Transformer()
    assert (model.n_layers, model.n_heads, model.d_model, model.d_ff) == (4, 4, 128, 512)
    assert (model.vocab_size, model.positions, model.max_length, model.dropout) == (103, "none", 64, 0.0)
    assert model(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, 103)
    assert len(model.blocks) == 4
    assert model.blocks[3].mlp.input.weight.shape == (512, 128)
    assert model.blocks[3].attention.query.weight.shape == (128, 128)


def test_learned_positions_start_at_zero_in_evaluation_and_at_random_in_training():
    model = decoder(positions="learned", n_layers=1)
    ids = torch.tensor([[1, 2, 3, 0, 2]] * 400)
    evaluated = model.eval()(ids)
    assert torch.equal(evaluated, model(ids))
    assert (evaluated == evaluated[0]).all()
    torch.manual_seed(0)
    trained = model.train()(ids)
    # max_length 8 leaves the offsets 0..3, for each example its own.
    rows = model.embed(ids[0])[None] + torch.stack([model.position_table.weight[o : o + 5] for o in range(4)])
    expected = [model.unembed(model.final_norm(model.blocks[0](row[None])))[0] for row in rows]
    offsets = [[o for o in range(4) if torch.allclose(logits, expected[o], atol=1e-12)] for logits in trained]
    assert all(len(offset) == 1 for offset in offsets)
    counts = [offsets.count([o]) for o in range(4)]
    assert min(counts) > 60
    assert torch.allclose(evaluated[0], expected[0], atol=1e-12)


def test_every_row_of_the_table_is_trained_and_only_the_first_in_evaluation():
    model = decoder(positions="learned")
    ids = torch.tensor([[1, 2, 3]] * 200)
    for training, trained in ((True, 8), (False, 3)):
        model.zero_grad()
        torch.manual_seed(0)
        model.train(training)(ids).square().sum().backward()
        moved = (model.position_table.weight.grad != 0).any(-1)
        assert moved.tolist() == [True] * trained + [False] * (8 - trained)


def test_the_longest_input_fits_and_a_longer_one_is_an_error():
    for positions in POSITIONS:
        model = decoder(positions=positions)
        for training in (True, False):
            assert model.train(training)(torch.zeros(1, 8, dtype=torch.long)).shape == (1, 8, 5)
            with pytest.raises(ModelError) as caught:
                model(torch.zeros(1, 9, dtype=torch.long))
            assert str(caught.value) == (
                "the input has 9 tokens but max_length is 8; raise max_length or shorten the sequences."
            )


def test_dropout_acts_in_training_only():
    model, still = decoder(dropout=0.5), decoder()
    ids = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(model(ids), still(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))
    # Dropout on the attention pattern alone also shows.
    for block in model.blocks:
        block.dropout.eval()
    assert not torch.equal(model(ids), model(ids))


def test_positions_cost_no_parameters_unless_they_are_learned():
    count = {p: sum(x.numel() for x in decoder(positions=p).parameters()) for p in POSITIONS}
    assert count["rotary"] == count["sinusoidal"] == count["none"] == count["learned"] - 8 * 8
    keys = {p: set(decoder(positions=p).state_dict()) for p in POSITIONS}
    assert keys["sinusoidal"] == keys["rotary"] == keys["none"] == keys["learned"] - {"position_table.weight"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({name: 0}, f"{name} must be at least 1; got 0.")
            for name in ("n_layers", "n_heads", "d_model", "d_ff", "vocab_size", "max_length")
        ),
        ({"n_heads": 3}, "n_heads must divide d_model; got n_heads=3 and d_model=128."),
        (
            {"d_model": 12, "positions": "rotary"},
            "rotary positions need an even d_model / n_heads; got 12 / 4.",
        ),
        ({"positions": "alibi"}, "positions must be none, learned, rotary or sinusoidal; got 'alibi'."),
    ],
)
def test_sizes_that_do_not_fit_together_are_errors(settings, message):
    with pytest.raises(ModelError) as caught:
        Transformer(**settings)
    assert str(caught.value) == message
