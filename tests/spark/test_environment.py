"""The tasks' Python is that of Spark's Python workers; it has to fit the driver's."""

import platform
import shutil
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import sparkray

from .conftest import NEEDS_SPARK, REPO, Driver, wait_until_gone

pytestmark = NEEDS_SPARK
Run = Callable[[str], Driver]


def test_tasks_run_in_the_layered_environment_of_sparks_workers_not_the_drivers(
    run_driver: Run, folder: Path
) -> None:
    layer = folder / "layer"
    venv.create(layer, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = layer / "lib" / version / "site-packages"
    (packages / "below.pth").write_text(sysconfig.get_path("purelib"))
    (packages / "in_the_layer.py").write_text("VALUE = 'layer'\n")
    told = run_driver(
        f"""
        os.environ["PYSPARK_PYTHON"] = {str(layer / "bin" / "python")!r}
        spark = start("local[2]")
        sparkray.init(spark)

        def look():
            import in_the_layer
            installed = [path for path in sys.path if path.endswith("-packages")]
            return [in_the_layer.VALUE, sys.executable, sys.prefix, installed]

        def udf(rows):
            rows["python"] = json.dumps(look())
            return rows

        frame = spark.range(1, numPartitions=1).groupBy("id")
        found = frame.applyInPandas(udf, "id long, python string").toPandas()
        tell(udf=json.loads(found["python"][0]))
        tell(task=sparkray.get(sparkray.remote(look).remote()))
        tell(driver=sys.executable)
        sparkray.shutdown()
        spark.stop()
        """
    ).results()
    results = {name: value for line in told for name, value in line.items()}
    assert results["task"] == results["udf"]
    assert results["task"][0] == "layer"
    assert results["task"][1] == str(layer / "bin" / "python") != results["driver"]


def test_executors_that_can_have_no_node_are_told_of_at_once_with_the_reason(
    run_driver: Run, folder: Path
) -> None:
    """Another version of sparkray there, and one that lacks what it needs."""
    other = folder / "other" / "sparkray"
    shutil.copytree(REPO / "sparkray", other)
    init = other / "__init__.py"
    ours = f'__version__ = "{sparkray.__version__}"'
    assert ours in init.read_text()
    init.write_text(init.read_text().replace(ours, '__version__ = "9.9.9"'))
    lacking = folder / "lacking"
    lacking.mkdir()
    (lacking / "msgspec.py").write_text(
        """raise ModuleNotFoundError("No module named 'msgspec'", name="msgspec")"""
    )
    paths = {"other": str(other.parent), "lacking": str(lacking)}
    told = run_driver(
        f"""
        for name, path in {paths!r}.items():
            spark = start("local-cluster[1,1,1024]", spark_executorEnv_PYTHONPATH=path)
            action(spark, 1)  # the executor is there
            began = time.monotonic()
            try:
                sparkray.init(spark)
            except sparkray.exceptions.SparkrayError as error:
                tell(**{{name: str(error), name + "_s": time.monotonic() - began}})
            spark.stop()
        """
    ).results()
    results = {name: value for line in told for name, value in line.items()}
    python = platform.python_version()
    assert f"has Python {python} and sparkray 9.9.9" in results["other"]
    assert (
        f"the driver Python {python} and sparkray {sparkray.__version__}"
        in results["other"]
    )
    assert "it lacks msgspec" in results["lacking"]
    print(f"told after {results['other_s']:.1f} and {results['lacking_s']:.1f} s")
    assert max(results["other_s"], results["lacking_s"]) < 120  # not the time-out
    wait_until_gone(folder, 10)
