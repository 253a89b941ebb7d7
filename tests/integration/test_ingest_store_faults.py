"""Ingest against a store that answers wrongly once: the process goes on, on the connection that it
has, and the rows are there once.
"""

from collections.abc import Iterator

import pytest

from sluice.contract import keys
from sluice.contract.control import PAUSE, RESYNC
from sluice.store.opening import open_store
from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline
from tests.support.s3proxy_faults import Fault, Operation, S3FaultProxy, error, error_after, reset_after
from tests.support.sources import Bucket, Database

ROUNDS = 6


@pytest.fixture
def proxy(moto: Bucket) -> Iterator[S3FaultProxy]:
    with S3FaultProxy(moto.server.port) as running:
        yield running


@pytest.fixture
def pipeline(database: Database, moto: Bucket, proxy: S3FaultProxy) -> IngestPipeline:
    options = {**moto.options, "endpoint": proxy.endpoint}
    return IngestPipeline(database, open_store(f"{moto.uri}/spool", prefix="test/", options=options))


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


@pytest.mark.parametrize("fault", cases(FAULTS, quick=[FAULTS[-1]]), ids=str)
def test_one_wrong_answer_ends_no_process_and_loses_no_row(
    database: Database, pipeline: IngestPipeline, proxy: S3FaultProxy, fault: Fault
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (0)")
    operations: tuple[Operation, ...] = ("put", "create")
    number = 0
    with pipeline.running() as running:
        running.wait_until_live()
        for _ in range(ROUNDS):
            for operation in operations:
                fired = proxy.plan(fault, operations={operation})
                number += 1
                database.execute(f"INSERT INTO t VALUES ({number})")
                running.wait_until(fired.is_set)
        expected = list(range(1, number + 1))
        running.wait_until(lambda: [row["id"] for row in pipeline.rows("public.t")] == expected)
        assert running.status.reconnects == 0
    assert [row["id"] for row in pipeline.rows("public.t")] == expected


@slow
def test_a_request_that_the_store_does_not_let_go_of_is_carried_out_once(
    database: Database, pipeline: IngestPipeline, proxy: S3FaultProxy
) -> None:
    store = pipeline.store
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    store.put("any", b"")
    store.delete("any")
    proxy.plan(error(403, "AccessDenied"), operations={"delete"}, count=None)
    pipeline.request(RESYNC, table="t")
    with pipeline.running(watch_interval_s=0.1) as running:
        running.wait_until(lambda: (now := pipeline.table("public.t")).generation == 2 and now.state == "live")
        for _ in range(3):
            seen = running.status.catalog_beat
            running.wait_until(lambda seen=seen: running.status.catalog_beat > seen + 1)
        assert list(store.list(keys.CONTROL)) != []
        proxy.calm()
        running.wait_until(lambda: list(store.list(keys.CONTROL)) == [])
    assert (pipeline.table("public.t").state, pipeline.table("public.t").generation) == ("live", 2)


def test_a_request_whose_removal_was_refused_goes_once_it_may_and_is_never_done_again(
    database: Database, pipeline: IngestPipeline, proxy: S3FaultProxy
) -> None:
    """No removal has ever worked for this process, so that the refusal is not taken for a passing one. What stays
    would pause the table again at the next start, long after it was resumed.
    """
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    proxy.plan(error(403, "AccessDenied"), operations={"delete"}, count=None)
    pipeline.run()
    pipeline.request(PAUSE, table="t")
    with pipeline.running(watch_interval_s=0.1) as running:
        running.wait_until(lambda: pipeline.table("public.t").paused is not None)
        proxy.calm()
        running.wait_until(lambda: list(pipeline.store.list(keys.CONTROL)) == [], seconds=30)
