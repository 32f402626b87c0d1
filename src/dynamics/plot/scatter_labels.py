"""Where labels of points go: beside, above or below, so that they cover no point and no other label."""

from __future__ import annotations

import numpy as np

NOWHERE, RIGHT, LEFT, ABOVE, BELOW = range(5)
"""The places of a label."""
OFFSET = 9.0
"""From the middle of a point to the edge of its label beside it, in pixels."""
RAISE = 13.0
"""From the middle of a point to the middle of its label above or below it."""
_LETTER, _LINE = 6.0, 10.0
"""Width of a letter and height of a line, as labels of this size have them."""
_BOXES = {RIGHT: (OFFSET, 0.0, 1.0), LEFT: (-OFFSET, 0.0, -1.0), ABOVE: (0.0, -RAISE, 0.0), BELOW: (0.0, RAISE, 0.0)}


def label_places(
    x: np.ndarray,
    y: np.ndarray,
    texts: list[str],
    first: np.ndarray,
    side: float,
    radius: float,
    kept_free: np.ndarray,
    everywhere: bool,
) -> np.ndarray:
    """Return the place of each label, chosen one by one.

    Args:
        x: Where the points are, in pixels, ``(point,)``.
        y: The same from top to bottom.
        texts: The labels, one for each point.
        first: Which points get a label, the most important ones first.
        side: Width and height of the panel, which labels do not leave.
        radius: Of the points, in pixels.
        kept_free: Where no label may go, as boxes of ``left, top, right, bottom``, ``(box, 4)``.
        everywhere: Give a label that has no free place the one that covers least; default is to leave it out.

    Returns:
        ``(point,)``, from `NOWHERE` to `BELOW`.
    """
    places = np.full(len(x), NOWHERE)
    taken = np.concatenate([np.stack([x - radius, y - radius, x + radius, y + radius], 1), kept_free])
    for point in first:
        half = len(texts[point]) * _LETTER / 2
        boxes = np.array(
            [
                (middle - half, y[point] + dy - _LINE / 2, middle + half, y[point] + dy + _LINE / 2)
                for dx, dy, lean in _BOXES.values()
                for middle in (x[point] + dx + lean * half,)
            ]
        )
        low = np.maximum(boxes[:, None, :2], taken[None, :, :2])
        high = np.minimum(boxes[:, None, 2:], taken[None, :, 2:])
        # Points at the same ranks lie on each other; a label beside them covers none of them.
        covered = np.clip(high - low, 0, None).prod(-1).sum(-1)
        outside = (boxes < 0).any(1) | (boxes > side).any(1)
        cost = covered + np.where(outside, side * side, 0.0)
        best = int(cost.argmin())
        if cost[best] > 0 and not everywhere:
            continue
        places[point] = list(_BOXES)[best]
        taken = np.concatenate([taken, boxes[best : best + 1]])
    return places
