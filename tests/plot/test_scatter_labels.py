import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynamics.plot.scatter_labels import ABOVE, BELOW, LEFT, NOWHERE, OFFSET, RAISE, RIGHT, label_places

NOTHING = np.empty((0, 4))


def places(points, everywhere=True, kept_free=NOTHING, first=None, text="L0H0"):
    x, y = np.array(points, dtype=float).T
    first = np.arange(len(x)) if first is None else np.array(first)
    return label_places(x, y, [text] * len(x), first, 100.0, 3.0, kept_free, everywhere).tolist()


def test_to_the_right_if_there_is_room():
    assert places([(50, 50), (50, 80)]) == [RIGHT, RIGHT]


def test_no_label_leaves_the_panel():
    """At the right edge it goes to the left, and at the lower edge not below."""
    assert places([(95, 50)]) == [LEFT]
    assert places([(50, 97)], kept_free=np.array([[53.0, 80.0, 100.0, 100.0]])) == [ABOVE]
    assert places([(50, 3)], kept_free=np.array([[53.0, 0.0, 100.0, 9.0], [0.0, 0.0, 47.0, 9.0]])) == [BELOW]


def test_around_other_points():
    """The first is hemmed in from both sides."""
    assert places([(50, 50), (66, 50), (34, 50)]) == [ABOVE, RIGHT, LEFT]
    assert places([(50, 50), (66, 50), (34, 50), (50, 36)])[0] == BELOW


def test_around_what_is_kept_free():
    assert places([(50, 50)], kept_free=np.array([[55.0, 40.0, 90.0, 60.0]])) == [LEFT]


def test_without_room():
    crowd = [(50, 50), (70, 50), (30, 50), (50, 36), (50, 64)]
    assert places(crowd, everywhere=False, first=[0])[0] == NOWHERE
    assert places(crowd, everywhere=True, first=[0])[0] != NOWHERE


def test_only_those_asked_for_and_the_first_ones_first():
    assert places([(40, 50), (60, 50)], first=[1]) == [NOWHERE, RIGHT]
    # The label of the one that comes first takes the room between the points.
    assert places([(20, 50), (80, 50)], first=[0, 1], text="L10MLP") == [RIGHT, ABOVE]
    assert places([(20, 50), (80, 50)], first=[1, 0], text="L10MLP") == [ABOVE, LEFT]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=12, unique=True))
def test_labels_that_may_be_left_out_cover_nothing(points):
    found = places(points, everywhere=False)
    boxes = []
    for (x, y), place in zip(points, found, strict=True):
        left = {RIGHT: x + OFFSET, LEFT: x - OFFSET - 24, ABOVE: x - 12, BELOW: x - 12}.get(place)
        if left is not None:
            middle = y + {ABOVE: -RAISE, BELOW: RAISE}.get(place, 0)
            boxes.append((left, middle - 5, left + 24, middle + 5))
    marks = [(x - 3, y - 3, x + 3, y + 3) for x, y in points]
    for index, box in enumerate(boxes):
        assert min(box) >= 0
        assert max(box) <= 100
        for other in [*boxes[:index], *marks]:
            width = min(box[2], other[2]) - max(box[0], other[0])
            height = min(box[3], other[3]) - max(box[1], other[1])
            assert width <= 0 or height <= 0
