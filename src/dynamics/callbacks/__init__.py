"""The Lightning callback that tracks a training."""

from dynamics.callbacks.gap_tracker import GapTrackerCallback

__all__ = ["GapTrackerCallback"]
