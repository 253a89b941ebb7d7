"""Fixtures that more than one folder of tests needs: one PostgreSQL, one S3 server and one Spark for the whole run, a fresh database for each test.

Servers start when the first test asks for them and stop at the end of the run. Two workers (`pytest -n 2 --dist loadgroup`) each have their own.
"""

import uuid
from collections.abc import Generator, Iterator

import pytest
from pyspark.sql import SparkSession

from deploy.local.postgres import PostgresServer, temporary_server
from deploy.local.s3 import S3Server, running_s3
from spark_jobs import session
from spark_jobs.options import ApplyOptions
from tests.support import canary
from tests.support.sources import Bucket, Database, fresh_database

LAKE = ("spark", "e2e")
"""Folders whose tests share the one Spark session."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two lanes for a run with two workers: what needs the Spark session, and all the rest. First of all such hooks: xdist reads the groups in its own."""
    for item in items:
        folder = item.path.relative_to(item.config.rootpath / "tests").parts[0]
        item.add_marker(pytest.mark.xdist_group("lake" if folder in LAKE else "rest"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test whose captured output, logs included, shows a canary has failed, whatever it claims itself."""
    report = yield
    shown = [f"{title} holds {marker}" for title, text in report.sections for marker in canary.in_text(text)]
    if report.passed and shown:
        report.outcome = "failed"
        report.longrepr = "\n".join(shown)
    return report


@pytest.fixture(scope="session", autouse=True)
def no_canary_is_shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Searched when everything else has ended: all logs, answers and crash reports below the folders of the run."""
    yield
    assert list(canary.in_files(tmp_path_factory.getbasetemp())) == []


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the whole run, of the major that SLUICE_PG_MAJOR names (else 18).

    A test that restarts or breaks a server starts its own with `temporary_server`, which is of the same major.
    """
    with temporary_server() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    """An empty database; its slots and the database itself are dropped at the end, whatever still holds them."""
    with fresh_database(postgres) as created:
        yield created


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Configured as the applier configures it; an applier under test works on sessions made from this one.

    Except for the JVM's second compiler: in runs of minutes it costs more time than its faster code gives back.
    """
    folder = tmp_path_factory.mktemp("spark").as_uri()
    quick = {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"}
    started = session.start(ApplyOptions("tests", folder, folder, spark_master="local[2]", driver_memory="2g", spark_conf=quick))
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
