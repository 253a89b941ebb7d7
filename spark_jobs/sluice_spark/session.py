"""The only place that starts Spark: settings on which exactness, idempotence and cost depend.

Owns: UTC everywhere, microseconds in Parquet, ANSI arithmetic (an overflow is an error, never
NULL), statements that run as they are written, no jar resolved at run time, no row values in
what the JVM logs. (Delta: Quick start, Table properties; Spark: Configuration.)

The log store of a local disk stays Delta's default. Both of its stores look whether a commit exists
and rename their file onto it; the default looks again right before it renames, the "local" one
(`io.delta.storage.LocalLogStore`) only before it writes. It forks fewer processes, but an applier
that is frozen while it writes, loses its lease and wakes up would put its commit over its
successor's, and no reader could tell. File systems without check sums (RawLocalFs) fork fewer as
well, and leave check sums of `_last_checkpoint` behind that make other readers fail.
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from sluice.errors import ApplyError
from sluice.telemetry.logs import for_people
from sluice_spark import jars, storage
from sluice_spark.class_archive import archive_options
from sluice_spark.options import ApplyOptions

_log = structlog.get_logger("sluice.apply")

_REQUIRED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Days and times are counted as Arrow counts them, and TIMESTAMP is the type with a time zone.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    # It would replace `${...}` in every statement, by settings and by the environment: names of the
    # source may hold that text.
    "spark.sql.variable.substitute": "false",
    # A TRUNCATE of a partitioned table would leave the partitions of which its window has no row.
    "spark.sql.sources.partitionOverwriteMode": "static",
    # A file of the lake, or of a window, that is lost or damaged would be one without rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # How many rows a MERGE removed is judged by what its commit says.
    "spark.databricks.delta.history.metricsEnabled": "true",
    # Unity Catalog's second code path cannot write; without this a default decides.
    "spark.databricks.delta.v2.enableMode": "NONE",
    # Marker and payload must belong together: the marker is set and unset around each commit by
    # sluice_spark.lake.table.
    "spark.databricks.delta.write.txnVersion.autoReset.enabled": "false",
    # The source of a MERGE is ours, in memory or in files that do not change: materializing it would
    # only cost time.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_TUNED = {
    "spark.scheduler.mode": "FAIR",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.databricks.delta.stalenessLimit": "0",
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.sql.autoBroadcastJoinThreshold": "64MB",
    "spark.databricks.delta.merge.materializeSource.rddStorageLevel": "MEMORY_AND_DISK",
    # Statistics in the checksum of each commit that nothing here reads, a tenth of an append's CPU.
    "spark.databricks.delta.fileSizeHistogramMetrics.enabled": "false",
    "spark.databricks.delta.checksumDVMetrics.enabled": "false",
    "spark.databricks.delta.checksumDeletedRecordCountsHistogramMetrics.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}
_JAVA_OPTIONS = (
    "-XX:+UseParallelGC",
    # The second compiler takes over ten times later than it would: code that runs hot for long gets
    # there all the same, and a start is not spent on compiling what runs for a moment.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
_IN_UTC = "-Duser.timezone=UTC"
"""Delta rebuilds a table's state at each commit of a JVM that is elsewhere."""
_DRIVER_JAVA, _DRIVER_JARS = "spark.driver.extraJavaOptions", "spark.driver.extraClassPath"
_EXECUTOR_JAVA = "spark.executor.extraJavaOptions"
_CHECKSUMS_BY = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Writes a commit's checksum on a local disk with eight processes less than the default."""
_ERROR = "%replace{%ex{1}}{(?s):.*}{}"
_JVM_PATTERN = f"%d{{ISO8601}} %-5p %c {_ERROR}%n"
_JVM_PATTERN_JSON = (
    '{"logger": "%enc{%c}{JSON}", "error": "%enc{' + _ERROR + '}{JSON}", "event": "the JVM of Spark reports an '
    'error", "level": "%p{lowerCase=true}", "time": "%d{yyyy-MM-dd\'T\'HH:mm:ss.SSSSSS}{UTC}Z"}%n'
)
"""The keys of our own lines: one parser reads both."""
_HADOOP = "spark.hadoop."
_SAY_SECONDS = 2.0
"""A person should never wait longer than this without reading what for."""
JVM_END_SECONDS = 10.0
"""For a JVM without a session, to end."""
_WAREHOUSE = "spark.sql.warehouse.dir"
_STARTED, _STDERR = b"\0started\n", 2
_LOCAL_ONLY = ("spark.driver.bindAddress", "spark.driver.host")


def fetch_jars(
    options: ApplyOptions, *, others: Sequence[ApplyOptions] = (), stopped: Callable[[], bool] = lambda: False
) -> None:
    """Fetches the jars that `start` needs, if they are missing in the user's cache, and says so. Raises UsageError."""
    directory = jars_directory(options)
    jars.ensure(
        directory,
        s3=needs_s3(options, *others),
        report=jars.every(
            _SAY_SECONDS, lambda progress: _log.info("fetching jars", fetched=str(progress), into=str(directory))
        ),
        stopped=stopped,
    )


def jars_directory(options: ApplyOptions) -> Path:
    """Where the jars of this applier are."""
    return Path(options.jars) if options.jars else jars.default_directory()


def needs_s3(*pipelines: ApplyOptions) -> bool:
    """Whether any of them has its spool or lake in S3."""
    return any(storage.needs_s3(options.spool_uri, options.lake_uri) for options in pipelines)


def store_settings(options: ApplyOptions) -> dict[str, str]:
    """Where the spool and the lake of a pipeline are, for Hadoop. Raises UsageError."""
    return {
        **storage.hadoop_settings(options.spool_uri, options.spool_options),
        **storage.hadoop_settings(options.lake_uri, options.lake_options),
    }


def settings(options: ApplyOptions, *, others: Sequence[ApplyOptions] = ()) -> dict[str, str]:
    """All Spark settings for `options`, and for the places of the `others`. The operator's own come over
    the tuned ones, never over those that exactness needs.
    """
    directory = jars_directory(options)
    delta = jars.present(jars.DELTA, directory)
    s3 = jars.present(jars.S3, directory) if needs_s3(options, *others) else []
    on_disk = all(urlsplit(each.lake_uri).scheme == "file" for each in (options, *others))
    local = options.spark_master.startswith("local")
    chosen = {
        "spark.app.name": f"sluice {options.pipeline}",
        "spark.master": options.spark_master,
        "spark.driver.memory": options.driver_memory,
        # Executors elsewhere get Delta from the driver.
        "spark.jars": ",".join(str(path) for path in (s3 if local else [*delta, *s3])),
        **_TUNED,
        **({_CHECKSUMS_BY: _BY_FILE_SYSTEM} if on_disk else {}),
        **store_settings(options),
    }
    if not local:
        for name in _LOCAL_ONLY:
            del chosen[name]
    given = options.spark_conf
    java = (given.get(_DRIVER_JAVA, " ".join(_JAVA_OPTIONS)), *archive_options(directory), _IN_UTC)
    return {
        **chosen,
        **given,
        _DRIVER_JAVA: " ".join(java),
        _DRIVER_JARS: ":".join([*map(str, delta), *filter(None, [given.get(_DRIVER_JARS)])]),
        _EXECUTOR_JAVA: f"{given.get(_EXECUTOR_JAVA, '')} {_IN_UTC}".strip(),
        **_REQUIRED,
    }


def start(options: ApplyOptions, *, others: Sequence[ApplyOptions] = ()) -> SparkSession:
    """Starts Spark, or joins the one that spark-submit started. The `others` are served by it as well, once
    `reach` was called for each. Raises ApplyError.
    """
    chosen = settings(options, others=others)
    # The builder's settings are on the JVM's command line, which every user of the machine can read.
    hadoop = {name: value for name, value in chosen.items() if name.startswith(_HADOOP)}
    operators = _of_the_operator()
    theirs = (operators & _TUNED.keys()) - options.spark_conf.keys()
    ours = {name: value for name, value in chosen.items() if name not in hadoop.keys() | theirs}
    if _WAREHOUSE not in ours.keys() | operators:
        ours[_WAREHOUSE] = _temporary_folder().as_uri()
    people = for_people(options.log_format, sys.stderr)
    _log.info("starting Spark")
    begun = time.monotonic()
    try:
        with _held_back(ours):
            session = SparkSession.builder.config(map=dict(ours.items())).getOrCreate()
            _quieten(session, pattern=_JVM_PATTERN if people else _JVM_PATTERN_JSON)
    except Exception as error:
        raise ApplyError(
            f"Spark did not start: {type(error).__name__}", hint="look at Java's message above; Java 17 is needed"
        ) from error
    _to_utc(session)
    _choose_python(options, session)
    _set_hadoop(session, hadoop)
    _log.info("Spark has started", seconds=round(time.monotonic() - begun, 1))
    return session


def ways_to_stores(options: ApplyOptions) -> dict[str, str]:
    """The settings of Hadoop with which a pipeline reaches its stores. Raises UsageError."""
    return {**store_settings(options), **{n: v for n, v in options.spark_conf.items() if n.startswith(_HADOOP)}}


def reach(session: SparkSession, ways: Mapping[str, str]) -> None:
    """Lets the session reach the stores of another pipeline. A store that it has reached keeps the keys of then."""
    _set_hadoop(session, ways)


def _set_hadoop(session: SparkSession, chosen: Mapping[str, str]) -> None:
    java: Any = session.sparkContext._jsc
    for name, value in chosen.items():
        java.hadoopConfiguration().set(name.removeprefix(_HADOOP), value)


@contextmanager
def _held_back(ours: Mapping[str, str]) -> Iterator[None]:
    """Starts the JVM. What it says on the way is shown when Spark does not start, and is of no use when it does: then
    it becomes lines of the log for those who debug. What it says afterwards is shown as it comes. Not where the JVM is
    there.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None:
        yield
        return
    reading, writing = os.pipe()
    started, ended = False, threading.Event()

    def show() -> None:
        with os.fdopen(reading, "rb") as said:
            held = []
            for line in said:
                if line.endswith(_STARTED):
                    break
                held.append(line)
            for line in held:
                if started:
                    _log.debug("the JVM says while it starts", line=line.decode(errors="replace").rstrip())
                else:
                    os.write(_STDERR, line)
            ended.set()
            for line in said:
                os.write(_STDERR, line)

    threading.Thread(target=show, name="jvm", daemon=True).start()
    try:
        conf, launch = SparkConf().setAll(list(ours.items())), cast("Any", launch_gateway)
        SparkContext._ensure_initialized(gateway=launch(conf, {"stderr": writing}), conf=conf)
        yield
        started = True
    finally:
        os.write(writing, _STARTED)
        os.close(writing)
        ended.wait(1.0)


def _temporary_folder() -> Path:
    """For what Spark makes and nobody uses: below the current folder it would stay."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-warehouse-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_gone(session: SparkSession) -> bool:
    """Whether Spark has stopped, or its JVM has ended: then nothing that it is asked is answered any more."""
    java: Any = session.sparkContext._jsc
    try:
        return java is None or bool(java.sc().isStopped())
    except (Py4JError, OSError):
        return True


def stop(session: SparkSession) -> None:
    """Ends `session`. Where the JVM has ended first, nothing is left to do."""
    try:
        session.stop()
    except (Py4JError, OSError) as error:
        _log.debug("Spark had ended before", kind=type(error).__name__)


def end_jvm() -> None:
    """Ends the JVM that this process started, after `stop` of its session, and returns when it is gone.
    One of spark-submit is left alone. A program that takes the place of this process would have it beside
    its own, and then as a process that nobody waits for.
    """
    gateway: Any = SparkContext._gateway
    jvm: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if jvm is None or jvm.stdin is None:
        return
    # Objects of Java's that are let go from now on are not reported to it: py4j would show people that it failed.
    gateway._gateway_client.is_connected = False
    jvm.stdin.close()  # at which it ends
    try:
        jvm.wait(JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def _of_the_operator() -> set[str]:
    """Names of what spark-defaults.conf sets, or what spark-submit was given: what we only tune gives
    way to it, and the builder would override it.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {name for name, _ in SparkConf().getAll()}
    folder = Path(os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME", ""), "conf"))
    try:
        lines = (folder / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    found = (re.match(r"\s*(spark\.[^\s=:]+)", line) for line in lines)
    return {match[1] for match in found if match}


def private(session: SparkSession) -> SparkSession:
    """A private session. The settings that exactness needs hold in it, even if Spark was started
    with others.
    """
    mine = session.newSession()
    require(mine)
    return mine


def require(session: SparkSession) -> None:
    """Gives `session` the settings that exactness needs."""
    for name, value in _REQUIRED.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)


def _to_utc(session: SparkSession) -> None:
    """A JVM that spark-submit started has not seen our options."""
    java: Any = session._jvm
    zones, system = java.java.util.TimeZone, java.java.lang.System
    found = {str(zones.getDefault().getID()), str(system.getProperty("user.timezone"))}
    if found == {"UTC"}:
        return
    zones.setDefault(zones.getTimeZone("UTC"))
    system.setProperty("user.timezone", "UTC")
    _log.warning(
        "the JVM of Spark was not in UTC, and is now",
        found=sorted(found),
        hint=f"start it with {_IN_UTC} in {_DRIVER_JAVA}",
    )


def _choose_python(options: ApplyOptions, session: SparkSession) -> None:
    """Executors on this machine run the Python of this process, others the one of their image:
    PYSPARK_PYTHON or spark.pyspark.python say which, else it is `python3`.
    """
    chosen = options.spark_conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if chosen or options.spark_master.startswith("local"):
        session.sparkContext.pythonExec = chosen or sys.executable


def _quieten(session: SparkSession, *, pattern: str) -> None:
    """Errors only, and of each its place and class: the text of Spark's own lines and exceptions
    may quote rows and literals.
    """
    session.sparkContext.setLogLevel("ERROR")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    jvm: Any = session.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)  # noqa: FBT003 - Java's signature
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern(pattern).build()
    console = log4j.core.appender.ConsoleAppender
    appender = console.newBuilder().setName("sluice").setLayout(layout).setTarget(console.Target.SYSTEM_ERR).build()
    appender.start()
    root = context.getConfiguration().getRootLogger()
    for name in list(root.getAppenders()):
        root.removeAppender(name)
    root.addAppender(appender, None, None)
    context.updateLoggers()
    # It reports as an error, for every file, that its own filter on deleted rows cannot be pushed
    # down.
    log4j.core.config.Configurator.setLevel("org.apache.spark.sql.delta.DeltaParquetFileFormat", log4j.Level.OFF)
