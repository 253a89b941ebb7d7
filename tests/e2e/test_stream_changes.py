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
from pyspark.sql.functions import from_json
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice.contract import consumer
from sluice.contract.consumer import Consumer
from sluice.operate.new_slot import recreate
from sluice_spark.source import SluiceDataSource
from tests.e2e import streaming_job
from tests.e2e.mirror import FOLLOWED, Mirror
from tests.support.extent import FULL, slow
from tests.support.pipeline import wait_until
from tests.support.sources import Database

pytestmark = pytest.mark.timeout(1200)
ORDERS = ("id", "status", "total", "big")


def _job(mirror: Mirror, folder: Path, **more: Any) -> dict[str, Any]:
    spool = mirror.options(FOLLOWED).spool_uri
    return {"spool": spool, "pipeline": "test", "folder": str(folder), "most": 2 if FULL else 4, **more}


def _options(mirror: Mirror, table: str, **more: str) -> dict[str, str]:
    mirror.spark.dataSource.register(SluiceDataSource)
    return {"spool": mirror.options(FOLLOWED).spool_uri, "pipeline": "test", "table": table, **more}


def _load(mirror: Mirror, table: str, **more: str) -> DataFrame:
    return mirror.spark.read.format("sluice").options(**_options(mirror, table, **more)).load()


def _stream(mirror: Mirror, folder: Path, table: str = "public.orders", **more: str) -> DataStreamWriter:
    frame = mirror.spark.readStream.format("sluice").options(**_options(mirror, table, **more)).load()
    return frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))


def _keep(folder: Path, batch: DataFrame, number: int) -> None:
    batch.write.mode("overwrite").parquet(str(folder / "orders" / str(number)))


def _read_on(writer: DataStreamWriter) -> None:
    """All that is available."""
    writer.trigger(availableNow=True).start().awaitTermination()


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
    return {row[0]: row for row in mirror.database.all("SELECT id, status, total, big FROM orders")}


def _assert_read_once(mirror: Mirror, folder: Path) -> list[Any]:
    """What was kept has each change once, and makes the source."""
    rows: list[Any] = mirror.spark.read.parquet(str(folder)).collect()
    places = [(row["_commit_version"], row["_sluice_ordinal"], row["id"], row["_change_type"]) for row in rows]
    assert len(set(places)) == len(places)
    assert _folded(rows) == _source(mirror)
    return rows


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


def _assert_joined(mirror: Mirror, folder: Path, rows: list[Any]) -> None:
    found = sorted(tuple(row) for row in mirror.spark.read.parquet(str(folder / "joined")).collect())
    # Every order that was inserted, under the number that it had then.
    inserted = {row["id"] for row in rows if row["_change_type"] in ("insert", "snapshot")}
    payments = mirror.database.all("SELECT order_id, payment_id, amount FROM payments")
    assert found == sorted(row for row in payments if row[0] in inserted)


def test_changes_are_read_once_across_restarts_by_foreach_batch_and_a_join(shop: Mirror, tmp_path: Path) -> None:
    job = _job(shop, tmp_path)
    for number in range(1, 4 if FULL else 3):
        streaming_job.run(shop.spark, job)
        rows = _assert_read_once(shop, tmp_path / "orders" / "*")
        assert {row["_change_type"] for row in rows if row["_commit_timestamp"] is None} == set()
        _assert_joined(shop, tmp_path, rows)
        _go_on(shop, number)
    batch = _load(shop, "public.orders").collect()
    assert _folded(batch) == _source(shop)
    assert sum(row["_change_type"] == "snapshot" for row in batch) == 4


def _batches(folder: Path, query: str) -> int:
    return len(list((folder / f"checkpoint-{query}" / "commits").glob("[0-9]*")))


def _has_more(folder: Path, query: str, *, than: int) -> bool:
    return _batches(folder, query) > than


@slow
def test_a_job_that_is_killed_reads_each_change_once_when_it_is_started_again(shop: Mirror, tmp_path: Path) -> None:
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
    streaming_job.run(shop.spark, _job(shop, tmp_path))
    _assert_joined(shop, tmp_path, _assert_read_once(shop, tmp_path / "orders" / "*"))


@slow
def test_all_that_is_available_is_read_also_behind_a_batch_that_failed(shop: Mirror, tmp_path: Path) -> None:
    failed = list[int]()

    def keep(batch: DataFrame, number: int) -> None:
        if not failed:
            failed.append(number)
            raise OSError("the first batch cannot be kept")
        _keep(tmp_path, batch, number)

    writer = _stream(shop, tmp_path, maxEntriesPerTrigger="1").foreachBatch(keep)
    with pytest.raises(StreamingQueryException):
        _read_on(writer)
    for number in (1, 2):
        _go_on(shop, number)
    _read_on(writer)
    _assert_read_once(shop, tmp_path / "orders" / "*")


@slow
def test_of_two_queries_with_one_consumer_the_earlier_one_ends_by_name_and_the_other_one_holds_the_spool(
    shop: Mirror, tmp_path: Path
) -> None:
    def start(name: str) -> StreamingQuery:
        query = _stream(shop, tmp_path / name, consumer="mails").start(str(tmp_path / name / "kept"))
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
    _assert_read_once(shop, tmp_path / "later" / "kept")


@slow
@pytest.mark.parametrize("table", ["public.orders", "*"])
def test_a_query_whose_place_the_spool_has_no_more_ends_by_name_after_an_older_copy_was_restored(
    shop: Mirror, tmp_path: Path, table: str
) -> None:
    """The numbers of the entries that were lost come again, for other changes."""
    spool = Path(urlsplit(shop.options(FOLLOWED).spool_uri).path)

    def read_on() -> None:
        _read_on(_stream(shop, tmp_path, table).option("path", str(tmp_path / "kept")))

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


@slow
def test_a_query_that_began_in_a_gap_ends_by_name_when_the_slot_is_lost_again(shop: Mirror, tmp_path: Path) -> None:
    def lose() -> None:
        shop.execute(f"SELECT pg_drop_replication_slot('{shop.database.slot}')")
        recreate(shop.pipeline.options(), shop.store(FOLLOWED), mirrored=lambda _: True)

    def read_on() -> None:
        _read_on(_stream(shop, tmp_path, startingPosition="latest").option("path", str(tmp_path / "kept")))

    lose()
    read_on()
    _go_on(shop, 1)
    read_on()
    lose()
    _go_on(shop, 2)
    with pytest.raises(StreamingQueryException, match="were lost with the slot"):
        read_on()
    found = shop.spark.read.parquet(str(tmp_path / "kept")).where("_change_type = 'insert'")
    assert {row["id"] for row in found.collect()} == {10, 11}


@slow
def test_columns_that_are_added_end_the_query_by_name_and_the_next_one_has_them(shop: Mirror, tmp_path: Path) -> None:
    def started() -> StreamingQuery:
        query = _stream(shop, tmp_path).foreachBatch(partial(_keep, tmp_path)).start()
        query.processAllAvailable()
        return query

    query = started()
    shop.execute("ALTER TABLE orders ADD COLUMN more int", "UPDATE orders SET more = id")
    shop.pipeline.run()
    with pytest.raises(PySparkException, match="start the query again"):
        query.awaitTermination(300)
    started().stop()
    rows = shop.spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "orders" / "*")).collect()
    assert {row["more"] for row in rows if row["_change_type"] == "update_postimage"} == {1, 2, 3, 4}
    assert {row["more"] for row in rows if row["_change_type"] == "snapshot"} == {None}
    assert all(row["more"] is None for row in _load(shop, "public.orders").where("_change_type = 'snapshot'").collect())
    shop.execute("ALTER TABLE orders DROP COLUMN more", "UPDATE orders SET total = 0")
    shop.pipeline.run()
    with pytest.raises(PySparkException, match="was dropped, and changes from before"):
        _load(shop, "public.orders").collect()


def test_all_tables_come_in_one_form_with_their_rows_as_json(shop: Mirror) -> None:
    _go_on(shop, 1)
    everything = _load(shop, "*").collect()
    rows = [row for row in everything if (row["schema"], row["table"]) == ("public", "payments")]
    assert {json.loads(row["row"])["state"] for row in rows if row["_change_type"] == "state"} <= {"snapshot"}
    read = [json.loads(row["row"]) for row in rows if row["_change_type"] != "state"]
    found = {row["payment_id"]: row for row in read}
    assert found[2] == {"payment_id": 2, "order_id": 9, "amount": "7.00"}
    assert {row["_change_type"] for row in rows} >= {"snapshot", "insert"}
    typed = _load(shop, "public.payments").collect()
    assert {(row["_commit_version"], row["_change_type"]) for row in typed} <= {
        (row["_commit_version"], row["_change_type"]) for row in rows
    }


def test_what_spark_reads_from_the_rows_as_json_is_what_it_reads_typed(shop: Mirror) -> None:
    """NULL would be read for what Spark's JSON does not know, and nothing would say so."""
    values = (
        (
            "(1, 'NaN', '-Infinity', '{Infinity,NaN,-0,NULL}', 1.10, '2024-02-29 23:59:59.999999', "
            "'0001-01-01 00:00:00.000001+00', '0001-01-01', '\\xff00', 9007199254740993, true, '{\"a\",NULL}')"
        ),
        (
            "(2, 3.4028235e38, 5e-324, '{}', -99999.01, '9999-12-31 23:59:59.999999', '1883-11-18 12:03:58-04:56:02', "
            "'9999-12-31', '', -9223372036854775808, false, '{\"ü \\\\ \\\"\"}')"
        ),
    )
    shop.execute(
        "CREATE TABLE edges (id int PRIMARY KEY, r real, d double precision, ds double precision[], n numeric(7, 2), "
        "t timestamp, z timestamptz, day date, b bytea, i bigint, yes boolean, words text[])",
        *(f"INSERT INTO edges VALUES {row}" for row in values),
        "ALTER PUBLICATION {p} ADD TABLE edges",
    )
    shop.pipeline.run()
    typed = _load(shop, "public.edges")
    own = typed.select([name for name in typed.columns if not name.startswith("_")])
    every = _load(shop, "*").where("table = 'edges' AND row IS NOT NULL AND _change_type <> 'state'")
    read = every.select(from_json("row", own.schema).alias("row")).select("row.*")
    wanted, found = ({row["id"]: repr(row) for row in frame.toArrow().to_pylist()} for frame in (own, read))
    assert found == wanted
    assert len(wanted) == len(values)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "public.nothing"}, "public.nothing is no table"),
        pytest.param({"startingPosition": "noon"}, "startingPosition is snapshot or latest", marks=slow),
        pytest.param({"tables": "x"}, "has no option 'tables'", marks=slow),
        pytest.param({"maxEntriesPerTrigger": "0"}, "is a number from 1 on", marks=slow),
    ],
)
def test_an_option_that_means_nothing_is_refused_by_name(shop: Mirror, options: dict[str, str], says: str) -> None:
    with pytest.raises(PySparkException, match=says):
        _load(shop, **{"table": "public.orders", **options}).collect()


def test_a_worker_needs_nothing_of_the_service() -> None:
    blocked = ("psycopg", "pydantic", "click", "rich", "structlog", "prometheus_client", "yaml")
    code = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\nimport sluice_spark.source.data_source"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
