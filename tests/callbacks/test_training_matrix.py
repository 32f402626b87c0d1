"""Training with the tracker ends in the same bits as training without it, in every way to train that we know of."""

from __future__ import annotations

import pytest

from tests.callbacks.matrix import CELLS, SLOW_CELLS, first_difference, tracker, train
from dynamics import open_run


def check(cell, folder):
    alone = train(cell, folder / "alone", [])
    tracked = train(cell, folder / "tracked", [tracker(cell, folder / "tracked")])
    assert first_difference(alone, tracked) is None
    with open_run(folder / "tracked" / "run.h5") as run:
        assert run.finished
        assert run.steps[0] == 0
        assert len(run.steps) > 2


@pytest.mark.parametrize("name", CELLS)
def test_training_is_not_touched(tmp_path, name):
    check(CELLS[name], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", SLOW_CELLS)
def test_training_is_not_touched_slow(tmp_path, name):
    check(SLOW_CELLS[name], tmp_path)
