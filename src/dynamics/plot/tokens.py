"""A picture of an example, its tokens shaded by their attribution, one row for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import vl_convert

from dynamics.errors import PlotError
from dynamics.plot.files import write_whole
from dynamics.plot.token_page import token_page
from dynamics.plot.token_svg import token_svg

TOKEN_SUFFIXES = (".html", ".png", ".svg")
"""What a picture of tokens can be."""
_NAMES = {"gim": "GIM", "gradient": "gradient", "ig": "integrated gradients"}
_PNG_SCALE = 2


class Attribution(Protocol):
    """What `attribute_tokens` returns, as far as a picture needs it."""

    @property
    def scores(self) -> np.ndarray:
        """Return the scores, ``(examples, positions)``."""

    @property
    def mask(self) -> np.ndarray:
        """Return which positions hold a token, bool ``(examples, positions)``."""

    @property
    def method(self) -> str:
        """Return the name of the method."""

    @property
    def target(self) -> str:
        """Return what is explained."""

    @property
    def baseline(self) -> Any:
        """Return the baseline."""


@dataclass(frozen=True)
class TokenRow:
    """One method's scores of the tokens.

    Attributes:
        name: The method.
        scores: ``(tokens,)``.
        scale: The absolute score that has the full colour.
    """

    name: str
    scores: np.ndarray
    scale: float


def draw_tokens(
    attributions: Attribution | Sequence[Attribution] | Mapping[str, Any],
    tokens: Sequence[str],
    output: str | Path,
    example: int = 0,
    target: str | None = None,
    title: str = "What each token contributes",
    shared_scale: bool = False,
) -> Path:
    """Draw an example's tokens, shaded by what they contribute to the target; return the path of the picture.

    Green tokens support the target, purple ones oppose it. Colour is linear in the score; the full colour is the row's
    largest absolute score, which stands beside the row. Spaces, tabs and newlines in tokens are shown as ␣, ⇥ and ⏎,
    other invisible characters by their code.

    Args:
        attributions: One or several of what `attribute_tokens` returns, a row each; or rows by name, each of
            ``(tokens,)`` scores.
        tokens: The tokens as text; those of padding may be left out, at either end.
        output: Where to: ``.html`` (one page that loads nothing and runs no script), ``.png`` or ``.svg``.
        example: Which example of the attributions to draw.
        target: What is explained, as the picture names it; default: the attributions' own words.
        title: Title of the picture.
        shared_scale: Give all rows the largest scale, to compare sizes rather than patterns.

    Raises:
        PlotError: If tokens and scores do not fit together, or the picture cannot be written there.
    """
    path = Path(output)
    kind = path.suffix.lower()
    if kind not in TOKEN_SUFFIXES:
        raise PlotError(f"the output must end in one of {', '.join(TOKEN_SUFFIXES)}; got {path.name!r}.")
    if isinstance(tokens, str):
        raise PlotError("tokens must be a sequence of texts, one for each token; got a single text.")
    if not all(isinstance(token, str) for token in tokens):
        raise PlotError("tokens must be texts, one for each token; decode the ids first, one by one.")
    rows, words, own = _rows(attributions, list(tokens), example)
    if shared_scale:
        largest = max(row.scale for row in rows)
        rows = [TokenRow(row.name, row.scores, largest) for row in rows]
    explained = own if target is None else target
    content: str | bytes
    if kind == ".html":
        content = token_page(rows, words, title, explained)
    else:
        content = token_svg(rows, words, title, explained)
        if kind == ".png":
            content = bytes(vl_convert.svg_to_png(content, scale=_PNG_SCALE))
    try:
        write_whole(path, content)
    except OSError as error:
        raise PlotError(f"the picture {path} cannot be written: {error.strerror}.") from error
    return path


def _rows(attributions: Any, tokens: list[str], example: int) -> tuple[list[TokenRow], list[str], str]:
    """Return the rows, their tokens, and what is explained."""
    if isinstance(attributions, Mapping):
        named = [(str(name), np.asarray(scores, dtype=float)) for name, scores in attributions.items()]
        explained = ""
    else:
        several = list(attributions) if isinstance(attributions, Sequence) else [attributions]
        targets = {one.target for one in several}
        if len(targets) > 1:
            raise PlotError(f"the rows of one picture must explain one target; got {', '.join(sorted(targets))}.")
        explained = next(iter(targets), "")
        named = []
        for one in several:
            if not -len(one.scores) <= example < len(one.scores):
                raise PlotError(f"the attribution has {len(one.scores)} examples, so there is no example {example}.")
            real = np.asarray(one.mask[example])
            if len(tokens) == len(real) and not real.all():
                tokens = [token for token, is_real in zip(tokens, real, strict=True) if is_real]
            named.append((_name(one), np.asarray(one.scores[example][real], dtype=float)))
    if not named:
        raise PlotError("a picture of tokens needs at least one row of scores; got none.")
    for name, scores in named:
        if scores.shape != (len(tokens),):
            raise PlotError(f"{name}: there are {len(tokens)} tokens, but the scores are {scores.shape}.")
        if not np.isfinite(scores).all():
            raise PlotError(f"{name}: the scores hold NaN or infinity, so they have no colour.")
    if not tokens:
        raise PlotError("a picture of tokens needs at least one token; got none.")
    return [TokenRow(name, scores, float(np.abs(scores).max())) for name, scores in named], tokens, explained


def _name(one: Attribution) -> str:
    name = _NAMES.get(one.method, one.method)
    if one.method == "gradient" and one.baseline == "zero":
        return "gradient × input"
    return name
