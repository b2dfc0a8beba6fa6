"""`ray.remote_function`."""

from sparkray import RemoteFunction

__all__ = ["RemoteFunction"]
