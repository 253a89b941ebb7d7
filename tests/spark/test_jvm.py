"""The JVM as it really runs, and the Delta in it."""

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sluice_spark import class_archive, jars, session
from sluice_spark.lake.features import KNOWN_FEATURES
from sluice_spark.lake.opening import Lake
from tests.spark.conftest import Pipeline
from tests.support import commands
from tests.support.extent import slow

STARTED = """
import json, sys
from sluice_spark import session
from sluice_spark.options import ApplyOptions
uri = "file:///tmp/x"
spark = session.start(ApplyOptions("x", uri, uri, spark_master="local[1]", driver_memory="512m", log_format="json"))
log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger('a "name"')
log.error("row 42", spark._jvm.java.lang.IllegalStateException('row 42 of "t"'))
names = ("spark.sql.shuffle.partitions", "spark.sql.codegen.cache.maxEntries", "spark.sql.ansi.enabled")
zone = str(spark._jvm.java.util.TimeZone.getDefault().getID())
print(json.dumps([spark.range(3).count(), zone, *map(spark.conf.get, names)]))
spark.stop()
"""


FOR_PEOPLE = """
import sys
from sluice_spark import session
from sluice_spark.options import ApplyOptions
uri = "file:///tmp/x"
spark = session.start(ApplyOptions("x", uri, uri, spark_master="local[1]", driver_memory="512m", log_format="console"))
spark.sql("SHOW TABLES").collect()
warehouse = spark.conf.get("spark.sql.warehouse.dir")
spark._jvm.org.apache.logging.log4j.LogManager.getLogger("later").error("row 42")
spark.stop()
session.end_jvm()
print(warehouse)
"""


def _for_people(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    ours = {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
    return commands.ended(sys.executable, "-c", FOR_PEOPLE, cwd=folder, env={**ours, **environment})


def _started(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Spark with the jars in `folder`."""
    ours = {**os.environ, "SLUICE_JARS": str(folder), **environment}
    done = commands.ended(sys.executable, "-c", STARTED, env=ours)
    assert done.returncode == 0, done.stderr
    return done


def _with_jars(folder: Path) -> Path:
    for path in jars.present(jars.DELTA, jars.default_directory()):
        shutil.copy2(path, folder)
    return folder


@slow
def test_people_see_no_line_of_a_start_of_spark_and_later_ones_as_they_come(tmp_path: Path) -> None:
    done = _for_people(tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1:3] for line in done.stderr.splitlines()] == [["ERROR", "later"]], done.stderr
    assert "starting Spark" in done.stdout
    assert list(tmp_path.iterdir()) == [], "Spark leaves nothing in the folder where it was started"
    warehouse = Path(done.stdout.splitlines()[-1].removeprefix("file:"))
    assert warehouse.is_absolute()
    assert not warehouse.exists()


def test_what_java_says_is_shown_when_spark_does_not_start(tmp_path: Path) -> None:
    done = _for_people(tmp_path, JAVA_HOME="/nowhere")
    assert done.returncode == 1
    assert "/nowhere/bin/java" in done.stderr
    assert "Spark did not start" in done.stderr


def test_the_jvm_is_in_utc_and_one_that_is_not_is_put_there(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    zones, system = java.java.util.TimeZone, java.java.lang.System
    assert (str(zones.getDefault().getID()), str(system.getProperty("user.timezone"))) == ("UTC", "UTC")
    # As where spark-submit has started it.
    zones.setDefault(zones.getTimeZone("Asia/Tokyo"))
    system.setProperty("user.timezone", "Asia/Tokyo")
    session._to_utc(spark)
    assert (str(zones.getDefault().getID()), str(system.getProperty("user.timezone"))) == ("UTC", "UTC")


@slow
def test_a_damaged_archive_does_not_keep_spark_from_starting_and_its_lines_are_json(tmp_path: Path) -> None:
    archive = class_archive._path(_with_jars(tmp_path))
    assert archive is not None
    archive.write_bytes(os.urandom(1 << 20))
    # What an operator sets in Spark's own file wins over what is only tuned, never over exactness.
    theirs = (
        "# ours\nspark.sql.shuffle.partitions 7\nspark.sql.codegen.cache.maxEntries=11\nspark.sql.ansi.enabled false\n"
    )
    (tmp_path / "spark-defaults.conf").write_text(theirs)
    done = _started(tmp_path, SPARK_CONF_DIR=str(tmp_path))
    assert json.loads(done.stdout.splitlines()[-1]) == [3, "UTC", "7", "11", "true"]
    (line,) = [json.loads(line) for line in done.stderr.splitlines() if '"logger": "a' in line]
    assert (line["logger"], line["level"], line["error"]) == ('a "name"', "error", "java.lang.IllegalStateException")
    assert abs(datetime.fromisoformat(line["time"]).timestamp() - time.time()) < 300
    assert "row 42" not in done.stderr


@slow
def test_an_archive_of_classes_is_made_and_spark_starts_from_it(tmp_path: Path) -> None:
    archive = class_archive.make(_with_jars(tmp_path))
    assert class_archive.archive_options(tmp_path)[0] == f"-XX:SharedArchiveFile={archive}"
    _started(tmp_path, JDK_JAVA_OPTIONS=f"-Xlog:class+load:file={tmp_path}/loaded-%p.log")
    loaded = "".join(path.read_text() for path in tmp_path.glob("loaded-*.log"))
    assert "org.apache.spark.SparkContext source: shared objects file (top)" in loaded


def test_the_warm_up_leaves_no_object_behind_and_touches_no_lake(pipeline: Pipeline) -> None:
    before = set(pipeline.store.list(""))
    Lake(pipeline.options(), pipeline.store, before_commit=lambda: None).warm_up(session.private(pipeline.spark))
    assert set(pipeline.store.list("")) == before
    assert not (pipeline.folder / "lake").exists()


def test_the_accepted_features_are_those_of_delta_itself(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    module = getattr(jvm, "org.apache.spark.sql.delta.TableFeature$").__getattr__("MODULE$")
    features, found = module.allSupportedFeaturesMap().valuesIterator(), set()
    while features.hasNext():
        found.add(str(features.next().name()))
    assert found == KNOWN_FEATURES
