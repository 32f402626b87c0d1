"""Components of a model: what they are, and how they are found."""

from dynamics.components.base import Component, ComponentMap, Site, WeightSlice
from dynamics.components.find import find_components

__all__ = ["Component", "ComponentMap", "Site", "WeightSlice", "find_components"]
