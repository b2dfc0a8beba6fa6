"""The GPUs that a worker's user code sees."""

from __future__ import annotations

import os
from typing import Final

from sparkray.runtime.context import running

#: Read by CUDA once, when a process first uses it.
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def show_devices(gpu_ids: list[str] | None) -> None:
    """Let user code see these devices and no others; None leaves all as it is."""
    running.gpu_ids = gpu_ids
    if gpu_ids is not None:
        os.environ[VISIBLE] = ",".join(gpu_ids)
