"""Tells Spark's tasks where their driver is, by local properties.

Spark takes along to the tasks what a thread set (of jobs that this thread starts), and
what a session's configuration says (of all DataFrame actions of that session, whatever
thread starts them, and with Spark Connect too) if its name begins with "spark".
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from sparkray.spark.discovery import ADDRESS_PROPERTY, JOB_PROPERTY


def tell(spark: Any, address: str | None, job: str | None) -> None:
    """Tell later Spark jobs of a session, and of this thread.

    Args:
        address: of the head, ``host:port``; None: the cluster was left.
        job: the driver's, in hexadecimal.
    """
    for name, value in ((ADDRESS_PROPERTY, address), (JOB_PROPERTY, job)):
        with contextlib.suppress(Exception):  # the session may be stopped already
            _configure(spark, name, value)
        with contextlib.suppress(Exception):
            if ".connect." not in type(spark).__module__:
                spark.sparkContext.setLocalProperty(name, value)


def running_session() -> Any:
    """Return the Spark session of this driver; None if it has none."""
    module = sys.modules.get("pyspark.sql")
    if module is None:
        return None
    try:
        return module.SparkSession.getActiveSession()
    except Exception:  # its Java process is gone, or it is a kind that does not tell
        return None


def _configure(spark: Any, name: str, value: str | None) -> None:
    if value is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, value)
