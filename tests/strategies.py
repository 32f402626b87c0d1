"""Hypothesis strategies: small float64 decoders with random weights everywhere, and probes for them."""

from contextlib import contextmanager

import torch
from hypothesis import strategies as st

from dynamics.model import Transformer
from dynamics.probe import Probe

POSITIONS = ("none", "learned", "rotary", "sinusoidal")


@contextmanager
def float64():
    """Build modules in double precision, and leave the global generator where it was."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(before)


def randomise(model, seed, scale=0.4):
    """Shift every parameter, so that norms, biases and embeddings are far from their trivial initial values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
    return model


def decoder(seed=0, scale=0.4, **sizes):
    """Return a small decoder in float64 and evaluation mode, with every parameter random."""
    chosen = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_ff": 6, "vocab_size": 5, "max_length": 8, **sizes}
    with float64():
        torch.manual_seed(seed)
        model = Transformer(**chosen)
    return randomise(model, seed, scale).eval()


@st.composite
def decoders(draw, positions=POSITIONS, max_layers=2):
    n_heads = draw(st.integers(1, 3))
    return decoder(
        seed=draw(st.integers(0, 2**16)),
        n_layers=draw(st.integers(1, max_layers)),
        n_heads=n_heads,
        d_model=n_heads * draw(st.sampled_from((2, 4))),
        d_ff=draw(st.integers(1, 5)),
        vocab_size=draw(st.integers(2, 6)),
        positions=draw(st.sampled_from(positions)),
    )


def batch(model, generator, n_examples, length, solved=0.5):
    """Return a random batch with random targets; a share of the examples asks for just what the model would say."""

    def random(high, shape):
        return torch.randint(high, shape, generator=generator)

    shape = (n_examples, length)
    ids, labels = random(model.vocab_size, shape), random(model.vocab_size, shape)
    with torch.no_grad():
        own = model(ids).argmax(-1)
    right = torch.rand(n_examples, 1, generator=generator) < solved
    labels = torch.where(right, own, labels)
    skipped = torch.rand(shape, generator=generator) < 0.4
    skipped[torch.arange(n_examples), random(length, (n_examples,))] = False
    return {"input_ids": ids, "labels": labels.masked_fill(skipped, -100)}


def batches(model, seed, sizes):
    generator = torch.Generator().manual_seed(seed)
    return [batch(model, generator, *size) for size in sizes]


def probe(model, seed=0, sizes=((3, 4), (2, 2))):
    """Return a probe whose batches have the given (examples, length)."""
    return Probe(batches(model, seed, sizes))


@st.composite
def scenes(draw, **kinds):
    """Draw a decoder and a probe of one to three batches of unequal size and length."""
    model = draw(decoders(**kinds))
    sizes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(2, 5)), min_size=1, max_size=3))
    return model, probe(model, draw(st.integers(0, 2**16)), sizes)
