"""Preflight of the lake: Java, the versions of Spark and Delta, the jars, the right to write,
and tables that are there already. Starts no Spark.

`python -m sluice_spark.preflight` reads the applier's options as the applier does and, on standard
input, a JSON list of lake tables (`Place`); it writes a JSON object on standard output: `findings`, and
under `not_examined` (what, how to see it) for what could not be looked at. Invariant: writes one
small object of its own below the lake and removes it, nothing else. (Spark: Overview; Delta:
Storage configuration, Table features.)
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyspark
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from sluice.contract import keys
from sluice.contract.table_state import State
from sluice.errors import ServiceError, UsageError
from sluice.findings import Finding
from sluice.manifest.reader import load_state
from sluice.manifest.targets import lake_tables
from sluice.store import probe
from sluice.store.opening import open_store
from sluice_spark import jars, storage
from sluice_spark.catalog.client import CatalogAway
from sluice_spark.catalog.examine import examine_catalog
from sluice_spark.lake.features import read_protocol, unknown_features
from sluice_spark.options import ApplyOptions

OLDEST_JAVA = 17
MOST_TABLES = 1000
"""Whose logs are read; more tables would make `check` slow."""
PROVEN = ("file", "s3", "s3a")
"""Where the tests commit to lake tables."""
_AT_ONCE = 8
_JAVA_SECONDS = 20
_LOG_STORE = ("spark.delta.logStore.s3a.impl", "spark.delta.logStore.s3.impl")


class Place(NamedTuple):
    """A lake table: its source table, the name of the target, and where it is to stand if it is not there yet."""

    schema: str
    table: str
    target: str
    path: str


def examine(options: ApplyOptions, tables: Sequence[Place]) -> Iterator[Finding]:
    """All findings about the Spark side, for these lake tables. A lake that is refused is not looked at."""
    yield from examine_java(_java_said())
    yield from examine_versions(
        pyspark.__version__,
        delta=version("delta-spark"),
        spark_jars=sorted(Path(pyspark.__file__).parent.glob("jars/*.jar")),
    )
    yield from _jars(options)
    yield from _addresses(options)
    if refused := list(examine_lake_store(options.lake_uri)):
        yield from refused
        return
    writable = list(_writable(options))
    yield from writable
    if not writable:
        yield from _protocols(options, tables[:MOST_TABLES])
    yield from _log_store(options)
    yield from _catalog(options, tables)


def examine_java(said: str | None) -> Iterator[Finding]:
    """`said` is what `java -version` printed, None when there is no java."""
    match = re.search(r'version "(?:1\.)?(\d+)', said or "")
    seen = "no java was found" if said is None else "java prints no version"
    if match is not None:
        seen = f"it is Java {match[1]}"
    if match is None or int(match[1]) < OLDEST_JAVA:
        yield Finding(
            "critical",
            "lake.java",
            "java",
            f"{seen}, Spark needs {OLDEST_JAVA}",
            fix_setting=f"install a Java {OLDEST_JAVA} runtime, set JAVA_HOME",
        )


def _java_said() -> str | None:
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if command is None:
        return None
    done = subprocess.run([command, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_SECONDS)  # noqa: S603 - fixed command
    return done.stderr + done.stdout


def examine_versions(spark: str, *, delta: str, spark_jars: Sequence[Path]) -> Iterator[Finding]:
    """Whether Spark, its Python package, Delta's Python package and the jars match."""
    match = re.search(r":delta-spark_(\d+\.\d+)_(\d+\.\d+):(\S+)", jars.DELTA.packages[0])
    assert match is not None
    wanted_spark, scala, wanted_delta = match.groups()
    core = next((path.name for path in spark_jars if path.name.startswith("spark-core_")), "no spark-core")
    wrong = []
    if not spark.startswith(f"{wanted_spark}."):
        wrong.append(f"pyspark is {spark}, the jars are for {wanted_spark}")
    if delta != wanted_delta:
        wrong.append(f"delta-spark is {delta}, the jars are {wanted_delta}")
    if core != f"spark-core_{scala}-{spark}.jar":
        wrong.append(f"Spark's own jars are {core}, not of Spark {spark} for Scala {scala}")
    for seen in wrong:
        yield Finding(
            "critical",
            "lake.versions",
            "Spark and Delta",
            seen,
            fix_setting=f"pyspark {wanted_spark}.*, delta-spark {wanted_delta}",
        )


def _jars(options: ApplyOptions) -> Iterator[Finding]:
    directory = Path(options.jars) if options.jars else jars.default_directory()
    s3 = storage.needs_s3(options.spool_uri, options.lake_uri)
    missing = jars.missing(directory, s3=s3)
    if missing and jars.fetched_at_start(directory):
        seen = f"{len(missing)} jars are not here yet: the first start of the applier fetches them"
        yield Finding("info", "lake.jars", str(directory), seen)
        return
    try:
        jars.classpath(directory, s3=s3)
    except UsageError as error:
        yield Finding("critical", "lake.jars", str(directory), str(error), fix_setting=error.hint)


def examine_lake_store(lake_uri: str) -> Iterator[Finding]:
    """Commits must be kept apart by the store's own connector, which only a test can show."""
    scheme = urlsplit(lake_uri).scheme
    if scheme not in PROVEN:
        seen = f"no test has ever committed to a lake on {scheme}://: neither its connector nor its settings are known"
        fix = "a lake on s3:// or file://; the spool may stay where it is"
        yield Finding("critical", "lake.unproven", lake_uri, seen, fix_setting=fix)


def _addresses(options: ApplyOptions) -> Iterator[Finding]:
    for uri, given in ((options.spool_uri, options.spool_options), (options.lake_uri, options.lake_options)):
        try:
            storage.spark_uri(uri)
            storage.hadoop_settings(uri, given)
        except UsageError as error:
            yield Finding("critical", "lake.address", uri, str(error), fix_setting=error.hint)


def _writable(options: ApplyOptions) -> Iterator[Finding]:
    """Writes, because the rights that are configured may differ from those in force."""
    if urlsplit(options.lake_uri).scheme == "file":
        folder = Path(unquote(urlsplit(options.lake_uri).path))
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=existing):
                return
        except OSError as error:
            seen = f"{existing} cannot be written to: {error.strerror}"
        yield Finding(
            "critical", "lake.writable", options.lake_uri, seen, fix_setting="the directory's owner and rights"
        )
        return
    try:
        store = open_store(options.lake_uri, prefix=f"{keys.path_part('_sluice')}/", options=options.lake_options)
        own = f"{probe.own_folder()}written"
        store.put(own, b"")
        for key in (own, *probe.abandoned(store)):
            store.delete(key)
    except ServiceError as error:
        yield Finding("critical", "lake.writable", options.lake_uri, str(error), fix_setting=error.hint)


def _protocols(options: ApplyOptions, tables: Sequence[Place]) -> Iterator[Finding]:
    store = open_store(options.lake_uri, options=options.lake_options)
    paths = _paths(options)

    def examine(table: Place) -> Finding | None:
        name = keys.target_title(table.schema, table.table, table.target)
        try:
            protocol = read_protocol(store, f"{paths.get(table[:3]) or table.path}/")
        except (ServiceError, ValueError) as error:
            said = str(error) if isinstance(error, ServiceError) else "its log cannot be understood"
            return Finding(
                "critical",
                "lake.protocol",
                name,
                f"its Delta table in the lake cannot be read: {said}",
                fix_setting="another lake.uri",
            )
        unknown = unknown_features(protocol) if protocol else []
        if not unknown:
            return None
        seen = (
            f"its Delta table in the lake needs {', '.join(unknown[:10])}, which this version of Delta does not support"
        )
        return Finding(
            "critical",
            "lake.protocol",
            name,
            seen,
            fix_setting="ALTER TABLE ... DROP FEATURE in the engine that added it, or another lake.uri",
        )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from (finding for finding in pool.map(examine, tables) if finding)


def _paths(options: ApplyOptions) -> dict[tuple[str, str, str], str]:
    """Where the lake tables stand that the pipeline carries already. Nothing of a spool that cannot be read: whoever
    looks at the spool reports that.
    """
    try:
        store = open_store(options.spool_uri, prefix=f"{options.pipeline}/", options=options.spool_options)
        known = lake_tables(load_state(store), options.targets_of).values()
    except ServiceError:
        return {}
    followed = (table for table in known if table.state != State.DETACHED)
    return {(table.schema_name, table.table_name, table.target_name): table.path for table in followed}


def _log_store(options: ApplyOptions) -> Iterator[Finding]:
    if storage.needs_s3(options.lake_uri) and not any(options.spark_conf.get(name) for name in _LOG_STORE):
        seen = "Delta's own log store for S3 keeps commits apart within one process only"
        fix = f"commit to these tables from the applier alone, or set apply.conf {_LOG_STORE[0]} for every writer"
        yield Finding("info", "lake.log_store", options.lake_uri, seen, fix_setting=fix)


def _catalog(options: ApplyOptions, tables: Sequence[Place]) -> Iterator[Finding]:
    paths = _paths(options) if options.catalog else {}
    places = {keys.target_title(*table[:3]): (*table[:3], paths.get(table[:3]) or table.path) for table in tables}
    yield from examine_catalog(options, places, jvm=_jvm)


def _jvm() -> Any:
    """One with Spark's jars and without Spark, which ends with this process."""
    launch: Any = launch_gateway
    if _java_said() is None:
        raise CatalogAway("there is no Java to ask it with")  # said by those who look for Java
    return launch(SparkConf(loadDefaults=False).set("spark.driver.memory", "256m")).jvm


def main() -> int:
    """Exit code 0 whatever was found; the options are those of `sluice_spark.cli`."""
    options = ApplyOptions.from_json(os.environ["SLUICE_APPLY_OPTIONS"])
    tables = [Place(*place) for place in json.load(sys.stdin)]
    findings = [dataclasses.asdict(finding) for finding in examine(options, tables)]
    unseen = [(f"the Delta tables of {len(tables) - MOST_TABLES} more tables", "")] if len(tables) > MOST_TABLES else []
    json.dump({"findings": findings, "not_examined": unseen}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
