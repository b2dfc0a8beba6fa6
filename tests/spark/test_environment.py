"""The tasks' Python is that of Spark's Python workers."""

import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

from .conftest import NEEDS_SPARK, Driver

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
