"""`ray.util.state`, as far as it is there."""

from sparkray.util.state import list_jobs, list_nodes, list_objects

__all__ = ["list_jobs", "list_nodes", "list_objects"]
