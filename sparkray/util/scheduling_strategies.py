"""Scheduling strategies beside the words ``"DEFAULT"`` and ``"SPREAD"``."""

from sparkray import NodeAffinitySchedulingStrategy

__all__ = ["NodeAffinitySchedulingStrategy"]
