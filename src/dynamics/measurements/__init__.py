"""Measurements: pure functions of a model, a probe and components; one scientific idea to a file."""

from dynamics.measurements.catalogue import MEASUREMENTS

__all__ = ["MEASUREMENTS"]
