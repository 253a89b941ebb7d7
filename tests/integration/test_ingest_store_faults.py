"""Ingest against a store that answers wrongly once: the process goes on, on the connection that it
has, and the rows are there once.
"""

from collections.abc import Iterator

import pytest

from sluice.store.opening import open_store
from tests.support.extent import cases
from tests.support.ingesting import IngestPipeline
from tests.support.s3proxy_faults import Fault, Operation, S3FaultProxy, error, error_after, reset_after
from tests.support.sources import Bucket, Database

ROUNDS = 6


@pytest.fixture
def proxy(moto: Bucket) -> Iterator[S3FaultProxy]:
    with S3FaultProxy(moto.server.port) as running:
        yield running


FAULTS = [
    error(403, "AccessDenied"),
    error(403, "InvalidAccessKeyId"),
    error(400, "ExpiredToken"),
    error(404, "NoSuchUpload"),
    error(409, "OperationAborted"),
    error_after(403, "AccessDenied"),
    error_after(500, "InternalError"),
    reset_after(),
]


@pytest.mark.parametrize("fault", cases(FAULTS, quick=FAULTS[::2]), ids=str)
def test_one_wrong_answer_ends_no_process_and_loses_no_row(
    database: Database, moto: Bucket, proxy: S3FaultProxy, fault: Fault
) -> None:
    store = open_store(f"{moto.uri}/spool", prefix="test/", options={**moto.options, "endpoint": proxy.endpoint})
    pipeline = IngestPipeline(database, store)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (0)")
    operations: tuple[Operation, ...] = ("put", "create")
    number = 0
    with pipeline.running() as running:
        running.wait_until(
            lambda: (
                running.ingest is not None and running.ingest.status.state == "streaming" and pipeline.state().tables
            )
        )
        running.wait_until(lambda: pipeline.table("public.t").state == "live")
        for _ in range(ROUNDS):
            for operation in operations:
                fired = proxy.plan(fault, operations={operation})
                number += 1
                database.execute(f"INSERT INTO t VALUES ({number})")
                running.wait_until(fired.is_set)
        expected = list(range(1, number + 1))
        running.wait_until(lambda: [row["id"] for row in pipeline.rows("public.t")] == expected)
        assert running.ingest is not None
        assert running.ingest.status.reconnects == 0
    assert [row["id"] for row in pipeline.rows("public.t")] == expected
