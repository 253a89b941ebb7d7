"""Fixtures that more than one folder of tests needs: one PostgreSQL, one S3 server and one Spark
for the whole run, a fresh database for each test.

Nothing here imports pyspark before a test asks for the Spark session.

Servers start when the first test asks for them and stop at the end of the run. Three workers (`pytest
-n 3 --dist loadscope`) each have their own.
"""

import logging
import uuid
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import structlog
from xdist.scheduler import LoadScopeScheduling

from sluice_spark.options import ApplyOptions
from tests.support import canary
from tests.support.extent import FULL
from tests.support.sources import Bucket, Database, fresh_database
from tools.local.jvm import QUICK
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.s3 import S3Server, running_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long one example takes says more about the machine than about the code.
hypothesis.settings.register_profile("sluice", deadline=None)
hypothesis.settings.load_profile("sluice")

LAKE = {"tests/spark/": "l", "tests/e2e/": "q"}
"""Folders whose tests share a Spark session: it takes long to start, and to become fast. Files whose names begin with
this letter or a later one, behind `test_`, share another one.
"""
_OF_E2E = (
    "apply_fleet complete_positions fleet lineage operators_day orchestrators query_the_lake_page rebuild "
    "replay_command traces verify_command"
)
_OF_SPARK = "cluster jars reconfigured rotation s3"
APART = {
    *(f"tests/e2e/test_{name}.py" for name in _OF_E2E.split()),
    *(f"tests/spark/test_{name}.py" for name in _OF_SPARK.split()),
}
"""Files in them that use only processes of their own."""


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """For a run with several workers: each takes one half of a folder that needs Spark, and all take the rest, file by
    file, in the order of the command line: the Makefile names what takes long first, so that no worker begins it when
    the others have nothing left.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        folder = next((folder for folder in LAKE if file.startswith(folder)), "")
        if not folder or file in APART:
            return file
        is_later = file.removeprefix(f"{folder}test_") >= LAKE[folder]
        return f"{folder}, later" if is_later else folder


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    """Asked by `pytest -n 3 --dist loadscope`."""
    return Lanes(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test whose captured output, logs included, shows a canary has failed, whatever it claims
    itself.
    """
    report = yield
    shown = [f"{title} holds {marker}" for title, text in report.sections for marker in canary.in_text(text)]
    if report.passed and shown:
        report.outcome = "failed"
        report.longrepr = "\n".join(shown)
    return report


@pytest.fixture(scope="session", autouse=True)
def no_canary_is_shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Searched when everything else has ended: all logs, answers and crash reports below the
    folders of the run.
    """
    yield
    assert list(canary.in_files(tmp_path_factory.getbasetemp())) == []


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the whole run, of the major that TEST_PG_MAJOR names (else 18).

    A test that restarts or breaks a server starts its own with `temporary_server`, which is of the
    same major.
    """
    with temporary_server() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    """An empty database; its slots and the database itself are dropped at the end, whatever still
    holds them.
    """
    with fresh_database(postgres) as created:
        yield created


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """Configured as the applier configures it; an applier under test works on sessions made from
    this one.

    Except that in runs of minutes nothing is compiled that costs more time than its faster code gives back: not by the
    JVM's second compiler, nor, but in `make chaos`, code for each query of a few rows. Processes of their own have it.
    """
    from sluice_spark import session

    folder = tmp_path_factory.mktemp("spark").as_uri()
    quick = {"spark.driver.extraJavaOptions": f"-XX:+UseParallelGC {QUICK}"}
    if not FULL:
        quick |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    started = session.start(
        ApplyOptions("tests", folder, folder, spark_master="local[2]", driver_memory="2g", spark_conf=quick)
    )
    yield started
    started.stop()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3-compatible server, shared by the whole run."""
    with running_s3() as server:
        yield server


@pytest.fixture
def moto(s3_server: S3Server) -> Bucket:
    """A fresh bucket with the options under which Sluice reaches it."""
    name = f"bucket-{uuid.uuid4().hex[:10]}"
    s3_server.create_bucket(name)
    return Bucket(s3_server, name)


@pytest.fixture(autouse=True)
def logs_as_before_afterwards() -> Iterator[None]:
    """Commands configure logging: what is logged later must not go into their streams."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
