"""`ray.experimental`, as far as it is there."""

from sparkray.compat.ray.experimental import tqdm_ray

__all__ = ["tqdm_ray"]
