"""sparkray on Spark: ``sparkray.init(spark)``, joining from inside a UDF, DataFrames.

The only part that knows pyspark, and it imports that where it is used: an extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkray import Context
    from sparkray.spark.batching import map_batches as map_batches
    from sparkray.spark.dataframes import from_dataframe as from_dataframe
    from sparkray.spark.dataframes import release as release
    from sparkray.spark.dataframes import to_dataframe as to_dataframe

#: Names that are loaded on first use, and where they live.
_HOMES = {
    "from_dataframe": "sparkray.spark.dataframes",
    "map_batches": "sparkray.spark.batching",
    "release": "sparkray.spark.dataframes",
    "to_dataframe": "sparkray.spark.dataframes",
}

__all__ = [
    "from_dataframe",
    "map_batches",
    "release",
    "start_cluster",
    "to_dataframe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparkray.spark' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def start_cluster(spark: Any, **options: Any) -> Context:
    """Same as ``sparkray.init(spark)``, with all options of `session.start_on_spark`.

    Args:
        spark: a SparkSession; with Spark Connect give ``num_nodes`` too.
        **options: those, and what `sparkray.init` takes besides (``namespace``,
            ``runtime_env``, ``log_to_driver``...).

    Raises:
        SparkrayError: fewer nodes than asked for.
        TypeError, ValueError: a wrong option.
    """
    import sparkray
    from sparkray.spark.session import OnSpark, launch_options

    launch = {name: options.pop(name) for name in launch_options() & options.keys()}
    return sparkray.init(OnSpark(spark, launch), **options)
