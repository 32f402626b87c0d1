"""When components take a role and when they leave it: episodes, and emergence by layer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dynamics.analysis.roles import ALIGNED, BLOAT, HERO, UNDEFINED
from dynamics.analysis.timeline import Timeline
from dynamics.errors import AnalysisError

PERSISTENCE = 3
"""Snapshots for which a role must be kept to count as emerged, by default."""
DEFINED_ROLES = (HERO, BLOAT, ALIGNED)


def confident_roles(
    timeline: Timeline, probability: Mapping[str, ArrayLike] | None = None, confidence: float | None = None
) -> np.ndarray:
    """Return the roles of a timeline, ``"undefined"`` where they are less sure than asked.

    Args:
        timeline: What `read_timeline` returns.
        probability: Probability of each role, by name: ``{"hero": (step, component), …}``, such as shares of bootstrap
            resamples. Every role that the timeline holds must be there.
        confidence: Least probability that a component's role must have to count. ``None``: every role counts.

    Returns:
        Text, ``(step, component)``. A probability of NaN is less than any confidence.

    Raises:
        AnalysisError: If the confidence is not above 0 and at most 1 or comes without probabilities, or a probability
            is missing or of another shape.
    """
    if confidence is None:
        return timeline.roles
    if not 0 < confidence <= 1:
        raise AnalysisError(f"the confidence must lie above 0 and be at most 1; got {confidence}.")
    if probability is None:
        raise AnalysisError("a confidence needs probability=, the probability of each role by name; got none.")
    own = _own_probability(timeline, probability)
    return np.where(own >= confidence, timeline.roles, UNDEFINED)


def _own_probability(timeline: Timeline, probability: Mapping[str, ArrayLike]) -> np.ndarray:
    """Return the probability of the role that each component has, ``(step, component)``; NaN where it has none."""
    own = np.full(timeline.roles.shape, np.nan)
    for role in DEFINED_ROLES:
        here = timeline.roles == role
        if not here.any():
            continue
        if role not in probability:
            raise AnalysisError(
                f"probability= must hold every role that occurs; {role!r} is missing, it holds "
                f"{', '.join(map(repr, probability)) or 'none'}."
            )
        values = np.asarray(probability[role], dtype=float)
        if values.shape != own.shape:
            raise AnalysisError(
                f"the probability of {role!r} must be (step, component) {own.shape}; got {values.shape}."
            )
        own[here] = values[here]
    return own


def role_episodes(
    timeline: Timeline,
    persistence: int = PERSISTENCE,
    probability: Mapping[str, ArrayLike] | None = None,
    confidence: float | None = None,
) -> pd.DataFrame:
    """Return every episode in which a component keeps a role: when it begins, and when it ends.

    An **episode** is a longest run of one role over the snapshots at which the component's role is defined. It counts
    if it lasts for ``persistence`` of them, or up to the last of them. An undefined snapshot (no ranking, or a role
    less sure than ``confidence``) says nothing about the role: it neither confirms nor breaks an episode.

    Args:
        timeline: What `read_timeline` returns.
        persistence: Snapshots for which the role must be kept, at least 1.
        probability: Probability of each role, by name, ``(step, component)`` each; see `confident_roles`.
        confidence: Least probability of a role that counts.

    Returns:
        One row per episode, by component and onset: ``component``, ``layer``, ``kind``, ``role``; ``onset``: step of
        its first snapshot, and ``after``: of the defined one before it, so that the role began in (after, onset],
        missing if there is none; ``last``: step of its last snapshot, and ``end``: of the first with another role,
        missing if none follows; ``snapshots``: how many it has, and ``skipped``: undefined ones between its first and
        its last; ``confirmed``: whether it has ``persistence`` snapshots, rather than fewer at the end;
        ``probability``: mean probability of the role, NaN if none was given.

    Raises:
        AnalysisError: If the persistence is less than 1, or for what `confident_roles` raises.
    """
    if persistence < 1:
        raise AnalysisError(f"persistence must be at least 1 snapshot; got {persistence}.")
    roles = confident_roles(timeline, probability, confidence)
    own = np.full(roles.shape, np.nan) if probability is None else _own_probability(timeline, probability)
    rows = []
    for column, component in enumerate(timeline.components):
        defined = np.flatnonzero(roles[:, column] != UNDEFINED)
        for first, stop in equal_runs(roles[defined, column]):
            at_end = stop == len(defined)
            if stop - first < persistence and not at_end:
                continue
            onset, last = defined[first], defined[stop - 1]
            rows.append(
                {
                    "component": component.label,
                    "layer": component.layer,
                    "kind": component.kind,
                    "role": roles[onset, column],
                    "onset": timeline.steps[onset],
                    "after": timeline.steps[defined[first - 1]] if first else None,
                    "last": timeline.steps[last],
                    "end": None if at_end else timeline.steps[defined[stop]],
                    "snapshots": stop - first,
                    "skipped": last - onset + 1 - (stop - first),
                    "confirmed": stop - first >= persistence,
                    "probability": own[defined[first:stop], column].mean(),
                }
            )
    types = {
        **dict.fromkeys(["component", "kind", "role"], "str"),
        **dict.fromkeys(["layer", "onset", "last", "snapshots", "skipped"], "int64"),
        **dict.fromkeys(["after", "end"], "Int64"),
        "confirmed": "bool",
        "probability": "float64",
    }
    columns = ["component", "layer", "kind", "role", "onset", "after", "last", "end", "snapshots", "skipped",
               "confirmed", "probability"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns).astype(types)


def equal_runs(values: np.ndarray) -> list[tuple[int, int]]:
    """Return first index and end (exclusive) of every longest run of equal values."""
    if not len(values):
        return []
    edges = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    return list(pairwise(edges))


def emergence_by_layer(timeline: Timeline, episodes: pd.DataFrame) -> pd.DataFrame:
    """Return when each role first emerges in each layer, and in how many of its components it ever does.

    Args:
        timeline: What `read_timeline` returns.
        episodes: What `role_episodes` returns for it.

    Returns:
        One row per layer and role (hero, bloat, aligned): ``layer``, ``role``, ``components``: how many the layer has;
        ``emerged``: in how many of them the role has an episode, and ``confirmed``: a confirmed one; ``first_onset``
        and ``median_onset``: least and median step over these components' first onsets, missing if there is none.
    """
    layers = pd.Series([component.layer for component in timeline.components]).value_counts().sort_index()
    rows = []
    for layer, size in layers.items():
        for role in DEFINED_ROLES:
            of_role = episodes[(episodes["layer"] == layer) & (episodes["role"] == role)]
            onsets = of_role.groupby("component")["onset"].min()
            confirmed = of_role.loc[of_role["confirmed"], "component"].nunique()
            first = onsets.min() if len(onsets) else None
            rows.append((layer, role, size, len(onsets), confirmed, first, onsets.median()))
    types = {
        "layer": "int64",
        "role": "str",
        **dict.fromkeys(["components", "emerged", "confirmed"], "int64"),
        "first_onset": "Int64",
        "median_onset": "float64",
    }
    return pd.DataFrame(rows, columns=list(types)).astype(types)
