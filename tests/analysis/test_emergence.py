from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamics.analysis import confident_roles, emergence_by_layer, role_episodes
from dynamics.errors import AnalysisError
from tests.analysis.timelines import LETTERS, timeline, words


def brute_force(word, every, persistence):
    """Read the definition aloud: an onset is where a role starts that the next defined snapshots keep."""
    told = [(every * row, LETTERS[letter]) for row, letter in enumerate(word) if letter != "-"]
    found = []
    for i, (step, role) in enumerate(told):
        starts = i == 0 or told[i - 1][1] != role
        if starts and all(later == role for _, later in told[i : i + persistence]):
            others = [k for k in range(i, len(told)) if told[k][1] != role]
            stop = others[0] if others else len(told)
            found.append(
                {
                    "role": role,
                    "onset": step,
                    "after": told[i - 1][0] if i else None,
                    "last": told[stop - 1][0],
                    "end": told[stop][0] if others else None,
                    "snapshots": stop - i,
                    "skipped": word[step // every : told[stop - 1][0] // every].count("-"),
                    "confirmed": stop - i >= persistence,
                }
            )
    return found


def rows(table):
    return [
        {key: None if value is pd.NA else value for key, value in row.items()}
        for row in table.drop(columns=["layer", "kind", "probability"]).to_dict("records")
    ]


@given(words(), st.integers(1, 4))
def test_episodes_equal_a_brute_force_reading(drawn, persistence):
    found = rows(role_episodes(timeline(*drawn, every=7), persistence))
    expected = [
        {"component": f"L0H{i}", **row} for i, word in enumerate(drawn) for row in brute_force(word, 7, persistence)
    ]
    assert found == expected


@given(words(), st.randoms())
def test_labels_and_their_order_do_not_matter(drawn, random):
    order = list(range(len(drawn)))
    random.shuffle(order)
    whole = timeline(*drawn)
    shuffled = replace(whole, components=tuple(whole.components[i] for i in order), roles=whole.roles[:, order])
    by = ["component", "onset"]
    pd.testing.assert_frame_equal(
        role_episodes(shuffled).sort_values(by, ignore_index=True),
        role_episodes(whole).sort_values(by, ignore_index=True),
    )


def test_undefined_snapshots_neither_confirm_nor_break():
    table = role_episodes(timeline("hh--hb", "hh----"), persistence=3)
    assert rows(table)[0] == {
        "component": "L0H0", "role": "hero", "onset": 0, "after": None, "last": 40, "end": 50, "snapshots": 3,
        "skipped": 2, "confirmed": True,
    }  # fmt: skip
    # Two snapshots of hero and then nothing: kept to the end of what is known, but not confirmed.
    assert [(row["role"], row["onset"], row["end"], row["confirmed"]) for row in rows(table)[1:]] == [
        ("bloat", 50, None, False),
        ("hero", 0, None, False),
    ]


@pytest.mark.parametrize(("words", "count"), [(("h", "a"), 2), (("---", "---"), 0), (("h-b", "-aa"), 2)])
def test_few_and_undefined_snapshots(words, count):
    whole = timeline(*words)
    table = role_episodes(whole)
    assert len(table) == count
    assert table.dtypes.astype(str).to_dict() == {
        "component": "str", "layer": "int64", "kind": "str", "role": "str", "onset": "int64", "after": "Int64",
        "last": "int64", "end": "Int64", "snapshots": "int64", "skipped": "int64", "confirmed": "bool",
        "probability": "float64",
    }  # fmt: skip
    assert emergence_by_layer(whole, table)["emerged"].sum() == count


def test_unsure_roles_count_as_undefined():
    whole = timeline("hhhhb", "aaaaa")
    hero = np.full((5, 2), 0.1)
    hero[:, 0] = [0.95, 0.5, 0.9, 0.99, np.nan]
    probability = {"hero": hero, "bloat": np.full((5, 2), 0.9), "aligned": np.full((5, 2), 0.3)}
    assert confident_roles(whole, probability, 0.9).T.tolist() == [
        ["hero", "undefined", "hero", "hero", "bloat"],
        ["undefined"] * 5,
    ]
    assert confident_roles(whole) is whole.roles
    table = role_episodes(whole, 3, probability, confidence=0.9)
    assert [(row["role"], row["snapshots"], row["skipped"]) for row in rows(table)] == [("hero", 3, 1), ("bloat", 1, 0)]
    assert table["probability"].tolist() == pytest.approx([(0.95 + 0.9 + 0.99) / 3, 0.9])
    # Probabilities without a confidence are reported and change nothing.
    assert rows(role_episodes(whole, 3, probability)) == rows(role_episodes(whole, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"persistence": 0}, "persistence must be at least 1 snapshot; got 0."),
        ({"confidence": 0.9}, "a confidence needs probability=, the probability of each role by name; got none."),
        (
            {"confidence": 0.0, "probability": {}},
            "the confidence must lie above 0 and be at most 1; got 0.0.",
        ),
        (
            {"confidence": 0.9, "probability": {"hero": np.ones((3, 2))}},
            "probability= must hold every role that occurs; 'aligned' is missing, it holds 'hero'.",
        ),
        (
            {"probability": {"hero": np.ones((2, 3)), "aligned": np.ones((3, 2))}},
            "the probability of 'hero' must be (step, component) (3, 2); got (2, 3).",
        ),
    ],
)
def test_what_cannot_be_answered_is_said(options, message):
    with pytest.raises(AnalysisError) as caught:
        role_episodes(timeline("hhh", "aaa"), **options)
    assert str(caught.value) == message


def test_emergence_by_layer():
    whole = timeline("hhhaaa", "aahhhh", "hbbbbb", layers=[0, 0, 1])
    table = emergence_by_layer(whole, role_episodes(whole, 3))
    found = {
        (layer, role): tuple(None if pd.isna(value) else value for value in values)
        for layer, role, *values in table.itertuples(index=False, name=None)
    }
    assert found == {
        (0, "hero"): (2, 2, 2, 0, 10.0),
        (0, "bloat"): (2, 0, 0, None, None),
        (0, "aligned"): (2, 1, 1, 30, 30.0),
        (1, "hero"): (1, 0, 0, None, None),
        (1, "bloat"): (1, 1, 1, 10, 10.0),
        (1, "aligned"): (1, 0, 0, None, None),
    }
