"""`ray.util.queue`."""

from sparkray.util.queue import Empty, Full, Queue

__all__ = ["Empty", "Full", "Queue"]
