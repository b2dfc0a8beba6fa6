"""What Spark's tasks are told, with a Spark session that only remembers."""

import sys
from types import ModuleType
from typing import Any

import pytest

from sparkray.api import udf
from sparkray.spark import telling


class Conf(dict[str, str]):
    def set(self, name: str, value: str) -> None:
        self[name] = value

    def unset(self, name: str) -> None:
        del self[name]


class Context:
    def __init__(self) -> None:
        self.properties: dict[str, str | None] = {}

    def setLocalProperty(self, name: str, value: str | None) -> None:
        self.properties[name] = value


class SparkSession:
    active: Any = None

    def __init__(self) -> None:
        self.conf, self.sparkContext = Conf(), Context()

    @classmethod
    def getActiveSession(cls) -> Any:
        if isinstance(cls.active, Exception):
            raise cls.active
        return cls.active


ConnectSession = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
TOLD = {"sparkray.address": "10.0.0.1:9339", "sparkray.job": "0123"}


@pytest.fixture
def pyspark(monkeypatch: pytest.MonkeyPatch) -> type[SparkSession]:
    module = ModuleType("pyspark.sql")
    module.SparkSession = SparkSession  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark", ModuleType("pyspark"))
    monkeypatch.setitem(sys.modules, "pyspark.sql", module)
    monkeypatch.setattr(SparkSession, "active", SparkSession())
    return SparkSession


def test_tasks_of_the_session_and_of_the_thread_are_told_until_it_is_taken_back(
    pyspark: type[SparkSession],
) -> None:
    spark = udf.tell_spark("10.0.0.1:9339", "0123")
    assert spark is pyspark.active
    assert spark.conf == TOLD == spark.sparkContext.properties
    udf.untell_spark(spark)
    assert spark.conf == {}
    assert set(spark.sparkContext.properties.values()) == {None}


def test_a_connect_session_tells_by_its_configuration_alone() -> None:
    spark = ConnectSession()
    spark.conf = Conf()
    telling.tell(spark, "10.0.0.1:9339", "0123")
    assert spark.conf == TOLD
    assert all(name.startswith("spark") for name in TOLD)  # others Spark keeps back


@pytest.mark.parametrize("active", [None, RuntimeError("its Java process is gone")])
def test_a_driver_without_a_living_session_tells_nobody(
    pyspark: type[SparkSession], active: object
) -> None:
    pyspark.active = active
    assert udf.tell_spark("10.0.0.1:9339", "0123") is None
    udf.untell_spark(None)


def test_a_session_that_is_stopped_meanwhile_is_no_error(
    pyspark: type[SparkSession],
) -> None:
    spark = udf.tell_spark("10.0.0.1:9339", "0123")
    spark.conf = spark.sparkContext = None
    udf.untell_spark(spark)
