"""`format("sluice")`: the changes of a table as Spark reads them from the spool, compared with the source by SQL;
through restarts and kill -9, in foreachBatch and in a join of two streams; and the changes that one stream cannot have.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.contract import consumer
from sluice.contract.consumer import Consumer
from sluice.operate.new_slot import recreate
from sluice_spark.source import SluiceDataSource
from tests.e2e import streaming_job
from tests.e2e.mirror import FOLLOWED, Mirror
from tests.support.extent import FULL
from tests.support.pipeline import wait_until
from tests.support.sources import Database

pytestmark = pytest.mark.timeout(1200)
ORDERS = ("id", "status", "total", "big")


def _job(mirror: Mirror, folder: Path, **more: Any) -> dict[str, Any]:
    spool = mirror.options(FOLLOWED).spool_uri
    return {"spool": spool, "pipeline": "test", "folder": str(folder), "most": 2, **more}


def _load(mirror: Mirror, spark: SparkSession, table: str, **options: str) -> DataFrame:
    spark.dataSource.register(SluiceDataSource)
    reader = spark.read.format("sluice").option("spool", mirror.options(FOLLOWED).spool_uri).option("pipeline", "test")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.option("table", table).load()


def _folded(rows: Iterable[Any]) -> dict[int, tuple[Any, ...]]:
    """The rows of the source that changes in any order make: what a consumer does, in ten lines."""
    state: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["_commit_version"], row["_sluice_ordinal"] or 0)):
        kind, unsent = row["_change_type"], set(row["_sluice_unsent"] or ())
        if kind == "truncate":
            state.clear()
            continue
        old = row["_sluice_old"]["id"] if row["_sluice_old"] is not None else row["id"]
        before = state.pop(old, {})
        if kind != "delete":
            state[row["id"]] = {name: before[name] if name in unsent else row[name] for name in ORDERS}
    return {key: tuple(row.values()) for key, row in state.items()}


def _source(mirror: Mirror) -> dict[int, tuple[Any, ...]]:
    with mirror.database.connect() as connection:
        return {row[0]: row for row in connection.execute("SELECT id, status, total, big FROM orders").fetchall()}


def _kept(spark: SparkSession, folder: Path) -> list[Any]:
    return spark.read.parquet(str(folder / "orders" / "*")).collect()


def _assert_once(rows: list[Any]) -> None:
    places = [(row["_commit_version"], row["_sluice_ordinal"], row["id"], row["_change_type"]) for row in rows]
    assert len(set(places)) == len(places)


@pytest.fixture
def shop(database: Database, spark: SparkSession, tmp_path: Path) -> Mirror:
    mirror = Mirror(database, spark, tmp_path / "mirror")
    mirror.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(12, 2), big text)",
        "ALTER TABLE orders ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO orders SELECT id, 'old', id, repeat('b', 5000) FROM generate_series(1, 4) id",
        "CREATE TABLE payments (payment_id int PRIMARY KEY, order_id int, amount numeric(12, 2))",
        "INSERT INTO payments VALUES (1, 1, 5), (2, 9, 7)",
    )
    mirror.pipeline.run()
    return mirror


def _go_on(mirror: Mirror, number: int) -> None:
    mirror.execute(
        f"INSERT INTO orders VALUES ({number * 10}, 'new', 1.5, 'x'), ({number * 10 + 1}, NULL, NULL, NULL)",
        "UPDATE orders SET status = status || 'x', total = total + 1",
        f"UPDATE orders SET id = id + 1000 WHERE id = {number}",
        f"INSERT INTO payments VALUES ({number * 10}, {number * 10}, {number}), ({number * 10 + 1}, 1, 1)",
        f"DELETE FROM orders WHERE id = {number * 10 + 1}",
    )
    mirror.pipeline.run()


def _joined(mirror: Mirror, spark: SparkSession, folder: Path) -> None:
    found = sorted(tuple(row) for row in spark.read.parquet(str(folder / "joined")).collect())
    # Every order that was inserted, under the number that it had then.
    inserted = {row["id"] for row in _kept(spark, folder) if row["_change_type"] in ("insert", "snapshot")}
    with mirror.database.connect() as connection:
        payments = connection.execute("SELECT order_id, payment_id, amount FROM payments").fetchall()
    assert found == sorted(row for row in payments if row[0] in inserted)


def test_changes_are_read_once_across_restarts_by_foreach_batch_and_a_join(
    shop: Mirror, spark: SparkSession, tmp_path: Path
) -> None:
    job = _job(shop, tmp_path)
    for number in range(1, 4 if FULL else 3):
        streaming_job.run(spark, job)
        rows = _kept(spark, tmp_path)
        _assert_once(rows)
        assert _folded(rows) == _source(shop), number
        assert {row["_change_type"] for row in rows if row["_commit_timestamp"] is None} == set()
        _joined(shop, spark, tmp_path)
        _go_on(shop, number)
    batch = _load(shop, spark, "public.orders").collect()
    assert _folded(batch) == _source(shop)
    assert sum(row["_change_type"] == "snapshot" for row in batch) == 4


def _batches(folder: Path, query: str) -> int:
    return len(list((folder / f"checkpoint-{query}" / "commits").glob("[0-9]*")))


def _has_more(folder: Path, query: str, *, than: int) -> bool:
    return _batches(folder, query) > than


def test_a_job_that_is_killed_reads_each_change_once_when_it_is_started_again(
    shop: Mirror, spark: SparkSession, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.e2e.streaming_job"]
    for number, query in enumerate(("orders", "joined") if FULL else ("joined",), 1):
        _go_on(shop, number)
        job = json.dumps(_job(shop, tmp_path, endless=query))
        with (tmp_path / "job.log").open("ab") as log:
            process = subprocess.Popen([*command, job], stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until(partial(_has_more, tmp_path, query, than=0), what=f"a batch of {query}", timeout=600)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    streaming_job.run(spark, _job(shop, tmp_path))
    rows = _kept(spark, tmp_path)
    _assert_once(rows)
    assert _folded(rows) == _source(shop)
    _joined(shop, spark, tmp_path)


def test_all_that_is_available_is_read_also_behind_a_batch_that_failed(
    shop: Mirror, spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(SluiceDataSource)
    job, failed = _job(shop, tmp_path), list[int]()
    reader = spark.readStream.format("sluice").option("spool", job["spool"]).option("pipeline", "test")
    frame = reader.option("table", "public.orders").option("maxEntriesPerTrigger", 1).load()

    def keep(batch: DataFrame, number: int) -> None:
        if not failed:
            failed.append(number)
            raise OSError("the first batch cannot be kept")
        batch.write.mode("overwrite").parquet(str(tmp_path / "orders" / str(number)))

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException):
        writer.trigger(availableNow=True).start().awaitTermination()
    for number in (1, 2):
        _go_on(shop, number)
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = _kept(spark, tmp_path)
    _assert_once(rows)
    assert _folded(rows) == _source(shop)


def test_of_two_queries_with_one_consumer_the_earlier_one_ends_by_name_and_the_other_one_holds_the_spool(
    shop: Mirror, spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(SluiceDataSource)

    def start(name: str) -> StreamingQuery:
        reader = spark.readStream.format("sluice").option("spool", shop.options(FOLLOWED).spool_uri)
        frame = reader.option("pipeline", "test").option("table", "public.orders").option("consumer", "mails").load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / name))
        query = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{name}")).start()
        query.processAllAvailable()
        return query

    def held() -> Consumer:
        return Consumer.decode(shop.store(FOLLOWED).get(consumer.key("mails")))

    earlier = start("earlier")
    first = held().query
    later = start("later")
    try:
        second = held().query
        assert second not in ("", first)
        _go_on(shop, 1)
        later.processAllAvailable()
        with pytest.raises(StreamingQueryException, match="another stream began to run as the consumer 'mails'"):
            earlier.processAllAvailable()
        assert held().query == second
    finally:
        later.stop()
        earlier.stop()
    rows = spark.read.parquet(str(tmp_path / "later")).collect()
    _assert_once(rows)
    assert _folded(rows) == _source(shop)


@pytest.mark.parametrize("table", ["public.orders", "*"])
def test_a_query_whose_place_the_spool_has_no_more_ends_by_name_after_an_older_copy_was_restored(
    shop: Mirror, spark: SparkSession, tmp_path: Path, table: str
) -> None:
    """The numbers of the entries that were lost come again, for other changes."""
    spark.dataSource.register(SluiceDataSource)
    spool = Path(urlsplit(shop.options(FOLLOWED).spool_uri).path)

    def read_on() -> None:
        reader = spark.readStream.format("sluice").option("spool", spool.as_uri()).option("pipeline", "test")
        frame = reader.option("table", table).load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "kept"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    shutil.copytree(spool, tmp_path / "copy")
    for number in (1, 2, 3, 4):  # each run has an entry at least, and a new slot takes some of their numbers
        _go_on(shop, number)
    read_on()
    reached = shop.pipeline.state().seq
    shutil.rmtree(spool)
    shutil.copytree(tmp_path / "copy", spool)
    recreate(shop.pipeline.options(), shop.store(FOLLOWED), mirrored=lambda _: True)
    assert shop.pipeline.state().seq < reached
    with pytest.raises(StreamingQueryException, match="an older copy of the spool was restored"):
        read_on()
    while shop.pipeline.state().seq <= reached + 2:
        number += 1
        _go_on(shop, number)
    with pytest.raises(StreamingQueryException, match="an older copy of the spool was restored"):
        read_on()


def test_a_query_that_began_in_a_gap_ends_by_name_when_the_slot_is_lost_again(
    shop: Mirror, spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(SluiceDataSource)

    def lose() -> None:
        shop.execute(f"SELECT pg_drop_replication_slot('{shop.database.slot}')")
        recreate(shop.pipeline.options(), shop.store(FOLLOWED), mirrored=lambda _: True)

    def read_on() -> None:
        reader = spark.readStream.format("sluice").option("spool", shop.options(FOLLOWED).spool_uri)
        frame = reader.option("pipeline", "test").option("table", "public.orders").option("startingPosition", "latest")
        writer = frame.load().writeStream.format("parquet").option("path", str(tmp_path / "kept"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    lose()
    read_on()
    _go_on(shop, 1)
    read_on()
    lose()
    _go_on(shop, 2)
    with pytest.raises(StreamingQueryException, match="were lost with the slot"):
        read_on()
    found = spark.read.parquet(str(tmp_path / "kept")).where("_change_type = 'insert'")
    assert {row["id"] for row in found.collect()} == {10, 11}


def test_columns_that_are_added_end_the_query_by_name_and_the_next_one_has_them(
    shop: Mirror, spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(SluiceDataSource)

    def started(folder: Path) -> Any:
        job = _job(shop, folder)
        reader = spark.readStream.format("sluice").option("spool", job["spool"]).option("pipeline", "test")
        frame = reader.option("table", "public.orders").load()

        def keep(batch: DataFrame, number: int) -> None:
            batch.write.mode("overwrite").parquet(str(folder / "orders" / str(number)))

        return frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "checkpoint")).start()

    query = started(tmp_path)
    query.processAllAvailable()
    shop.execute("ALTER TABLE orders ADD COLUMN more int", "UPDATE orders SET more = id")
    shop.pipeline.run()
    with pytest.raises(PySparkException, match="start the query again"):
        query.awaitTermination(300)
    query = started(tmp_path)
    query.processAllAvailable()
    query.stop()
    rows = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "orders" / "*")).collect()
    assert {row["more"] for row in rows if row["_change_type"] == "update_postimage"} == {1, 2, 3, 4}
    assert {row["more"] for row in rows if row["_change_type"] == "snapshot"} == {None}
    assert all(
        row["more"] is None for row in _load(shop, spark, "public.orders").where("_change_type = 'snapshot'").collect()
    )
    shop.execute("ALTER TABLE orders DROP COLUMN more", "UPDATE orders SET total = 0")
    shop.pipeline.run()
    with pytest.raises(PySparkException, match="was dropped, and changes from before"):
        _load(shop, spark, "public.orders").collect()


def test_all_tables_come_in_one_form_with_their_rows_as_json(shop: Mirror, spark: SparkSession) -> None:
    _go_on(shop, 1)
    everything = _load(shop, spark, "*").collect()
    rows = [row for row in everything if (row["schema"], row["table"]) == ("public", "payments")]
    assert {json.loads(row["row"])["state"] for row in rows if row["_change_type"] == "state"} <= {"snapshot"}
    read = [json.loads(row["row"]) for row in rows if row["_change_type"] != "state"]
    found = {row["payment_id"]: row for row in read}
    assert found[2] == {"payment_id": 2, "order_id": 9, "amount": "7.00"}
    assert {row["_change_type"] for row in rows} >= {"snapshot", "insert"}
    typed = _load(shop, spark, "public.payments").collect()
    assert {(row["_commit_version"], row["_change_type"]) for row in typed} <= {
        (row["_commit_version"], row["_change_type"]) for row in rows
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "public.nothing"}, "public.nothing is no table"),
        ({"startingPosition": "noon"}, "startingPosition is snapshot or latest"),
        ({"tables": "x"}, "has no option 'tables'"),
        ({"maxEntriesPerTrigger": "0"}, "is a number from 1 on"),
    ],
)
def test_an_option_that_means_nothing_is_refused_by_name(
    shop: Mirror, spark: SparkSession, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        _load(shop, spark, **{"table": "public.orders", **options}).collect()


def test_a_worker_needs_nothing_of_the_service() -> None:
    blocked = ("psycopg", "pydantic", "click", "rich", "structlog", "prometheus_client", "yaml")
    code = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\nimport sluice_spark.source.data_source"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
