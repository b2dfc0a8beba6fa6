"""sparkray on Spark: ``sparkray.init(spark)``, and joining from inside a UDF.

The only part that knows pyspark, and it imports that where it is used: an extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkray import Context

__all__ = ["start_cluster"]


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
