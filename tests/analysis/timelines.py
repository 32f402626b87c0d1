"""Timelines from hand-made or drawn roles, without a run."""

import numpy as np
from hypothesis import strategies as st

from dynamics.analysis import Timeline, rank_gap
from dynamics.store import ComponentInfo

LETTERS = {"h": "hero", "b": "bloat", "a": "aligned", "-": "undefined"}


def timeline(*components, every=10, layers=None, threshold=1):
    """Return a timeline of roles written as letters, a word for each component: ``"hhb-a"``."""
    roles = np.array([[LETTERS[letter] for letter in word] for word in components]).T
    n = len(components)
    listed = tuple(ComponentInfo(f"L{layer}H{i}", layer, "head", i) for i, layer in enumerate(layers or [0] * n))
    rng = np.random.default_rng(0)
    gradient, causal = rng.random(roles.shape), rng.random(roles.shape)
    gaps = tuple(rank_gap(g, c) for g, c in zip(gradient, causal, strict=True))
    steps = every * np.arange(len(roles))
    return Timeline(listed, "mean", "loss", threshold, steps, gradient, causal, gaps, roles)


@st.composite
def words(draw, most_components=4, most_steps=12, letters="hba-"):
    """Draw the roles of some components over some steps, as words; roles tend to last."""
    steps = draw(st.integers(1, most_steps))
    word = st.lists(st.tuples(st.sampled_from(letters), st.integers(1, 4)), min_size=steps, max_size=steps)
    return [
        "".join(letter * times for letter, times in draw(word))[:steps]
        for _ in range(draw(st.integers(2, most_components)))
    ]
