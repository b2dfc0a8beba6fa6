"""Scheduling strategies beside the words ``"DEFAULT"`` and ``"SPREAD"``."""

from sparkray import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

__all__ = ["NodeAffinitySchedulingStrategy", "PlacementGroupSchedulingStrategy"]
