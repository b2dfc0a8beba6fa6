"""What a worker process is told when it is forked."""

from sparkray.protocol.zygote import WorkerStart

__all__ = ["WorkerStart"]
