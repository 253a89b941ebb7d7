"""All tables of a lake as of one boundary, read by three engines while the tables go on."""

import shutil
from dataclasses import replace
from typing import Any

import duckdb
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.cli import views
from sluice.contract import boundary, keys
from sluice.contract.boundary import LakeBoundary
from sluice.lsn import show
from sluice.store.opening import open_store
from sluice_lake import (
    BoundaryExpired,
    BoundaryNotReached,
    Lake,
    NoBoundary,
    TableLeftOut,
    UnknownTable,
    VersionMissing,
)
from sluice_spark.progress import offers
from tests.spark.changes import INT4, INT8, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.support.extent import FULL, slow

LEFT = table_schema(column("id", 1, INT8, key=True), column("amount", 2, INT4), table="accounts")
RIGHT = replace(LEFT, table_id="16386", table_name="Other.accounts", schema_name="bank")
TOTAL = 400
AMOUNTS = (10, 20, 30) if FULL else (10, 20)


def _begin(pipeline: Pipeline) -> None:
    for schema in (LEFT, RIGHT):
        pipeline.begin(schema, *({"id": key, "amount": 100} for key in (1, 2)))


def _transfer(pipeline: Pipeline, amount: int) -> int:
    """From one table to the other, in one transaction; 100 and 100 are what was there. The LSN that it ends at."""
    parts = ((LEFT, 100 - amount), (RIGHT, 100 + amount))
    pipeline.manifest.entry([([Change("u", {"id": 1, "amount": left})], schema) for schema, left in parts])
    return pipeline.manifest.lsn


def _sum(lake: Lake, **moment: Any) -> int:
    now = lake.as_of(**moment)
    found = now.duckdb().sql(
        'SELECT (SELECT sum(amount) FROM public.accounts) + (SELECT sum(amount) FROM bank."Other.accounts")'
    )
    return int(found.fetchall()[0][0])


def _lake(pipeline: Pipeline) -> Lake:
    return Lake(f"file://{pipeline.folder}/lake")


def test_each_boundary_reads_the_same_in_three_engines_with_a_sum_that_never_changes(pipeline: Pipeline) -> None:
    _begin(pipeline)
    pipeline.apply()
    ends = []
    for amount in AMOUNTS:
        ends.append(_transfer(pipeline, amount))
        pipeline.apply()
    lake = _lake(pipeline)
    offered = lake.boundaries()
    assert [one.lsn for one in offered][-len(ends) :] == ends
    assert [one.number for one in offered] == sorted({one.number for one in offered})
    for end, amount in zip(ends, AMOUNTS, strict=True):
        now = lake.as_of(lsn=show(end))
        assert now.boundary.lsn == end
        assert _sum(lake, lsn=end) == TOTAL
        frames = now.spark(pipeline.spark)
        by_spark = [sorted(row.amount for row in frames[name].collect()) for name in frames]
        by_arrow = [sorted(now.arrow(table.name)["amount"].to_pylist()) for table in now.tables]
        assert by_spark == by_arrow == [[100 - amount, 100], [100, 100 + amount]]
        assert now.arrow("accounts", columns=["amount"], where="id = 1").to_pylist() == [{"amount": 100 - amount}]
    assert _sum(lake) == TOTAL
    with pytest.raises(BoundaryNotReached, match=show(ends[-1] + 1)):
        lake.as_of(lsn=ends[-1] + 1)
    assert lake.as_of(lsn=ends[-1] - 1).boundary.lsn < ends[-1]
    assert lake.wait_for(ends[-1], 0).lsn == ends[-1]


def test_a_boundary_is_named_as_expired_once_its_retention_is_over(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(pipeline)
    pipeline.apply()
    first = _lake(pipeline).as_of()
    for amount in (1, 2):
        _transfer(pipeline, amount)
        pipeline.apply(boundary_retention_seconds=3600.0)
    lake = _lake(pipeline)
    assert lake.expires_at(first.boundary) is not None
    assert lake.expires_at(lake.newest()) is None
    _transfer(pipeline, 3)
    monkeypatch.setattr(offers, "MARGIN_SECONDS", 0.0)
    pipeline.apply(boundary_retention_seconds=0.0)
    with pytest.raises(BoundaryExpired, match=show(first.boundary.lsn)):
        lake.as_of(lsn=first.boundary.lsn)
    assert [one.lsn for one in lake.boundaries()] == [pipeline.manifest.lsn]
    shutil.rmtree(pipeline.log("accounts"))
    with pytest.raises(BoundaryExpired, match="does not offer"):
        first.arrow("accounts")


def test_a_table_that_took_the_place_of_another_is_not_taken_for_it(pipeline: Pipeline) -> None:
    _begin(pipeline)
    pipeline.apply()
    now, path = _lake(pipeline).as_of(), pipeline.path("accounts")
    shutil.rmtree(path)
    rows = pipeline.spark.createDataFrame([(1, 666)], "id bigint, amount int")
    for _ in range(2):  # it has the version of the boundary too
        rows.write.format("delta").mode("append").save(str(path))
    with pytest.raises(VersionMissing, match="another table took its place"):
        now.arrow("accounts")
    with pytest.raises(VersionMissing):
        now.duckdb()


def test_a_table_that_does_not_follow_is_left_out_by_name(pipeline: Pipeline) -> None:
    _begin(pipeline)
    pipeline.apply()
    session = pipeline.spark.newSession()
    _lake(pipeline).as_of().spark(session)
    assert {view.viewName for view in session.sql("SHOW VIEWS").collect()} == {"accounts", "other.accounts"}
    pipeline.manifest.table(RIGHT, state="stale", reason="it changed", new=False)
    pipeline.change(Change("u", {"id": 1, "amount": 7}), schema=LEFT)
    end = pipeline.manifest.lsn
    pipeline.apply()
    lake = _lake(pipeline)
    now = lake.as_of()
    assert [table.name for table in now.tables] == ["public.accounts"]
    assert now.boundary.left_out == {'bank."Other.accounts"': "stale"}
    with pytest.raises(TableLeftOut, match="is stale"):
        now.arrow('bank."Other.accounts"')
    with pytest.raises(TableLeftOut):
        lake.wait_for(end, 0.0, tables=['bank."Other.accounts"'])
    with pytest.raises(UnknownTable, match=r"it has: public\.accounts"):
        now.arrow("nothing")
    with pytest.raises(duckdb.CatalogException):
        now.duckdb().sql('SELECT * FROM bank."Other.accounts"')
    with pytest.raises(duckdb.InvalidInputException, match=r'bank\."Other\.accounts" is stale'):
        _refusing_views(lake).sql('SELECT count(*) FROM bank."Other.accounts"').fetchall()
    for statement in views.script(lake, now, "spark", ()).split(";\n"):
        session.sql(statement.rstrip(";"))
    for name in ("Other.accounts", "bank_Other.accounts"):
        with pytest.raises(PySparkException, match="is stale, and not part of"):
            session.sql(f"SELECT count(*) FROM `{name}`").collect()
    session.catalog.dropTempView("bank_Other.accounts")
    now.spark(SparkSession(session.sparkContext, session._jsparkSession))
    views_now = [view.viewName for view in session.sql("SHOW VIEWS").collect()]
    assert views_now == ["accounts"], "no view of an earlier boundary"


def _refusing_views(lake: Lake) -> duckdb.DuckDBPyConnection:
    """With the views for DuckDB of tables that are left out: those of others need an extension, which is not here."""
    connection = duckdb.connect()
    for statement in duckdb.extract_statements(views.script(lake, lake.as_of(), "duckdb", ())):
        if "delta_scan" not in statement.query:
            connection.execute(statement.query)
    return connection


def test_a_lake_without_boundaries_says_so(pipeline: Pipeline) -> None:
    (pipeline.folder / "lake").mkdir()
    with pytest.raises(NoBoundary, match="no pipeline yet"):
        _lake(pipeline).as_of()


@slow
def test_lsns_of_boundaries_never_fall_whatever_a_start_reads_again(pipeline: Pipeline) -> None:
    _begin(pipeline)
    _transfer(pipeline, 1)
    pipeline.apply()
    lake, store = _lake(pipeline), pipeline.store
    newest = lake.newest()
    files = open_store(f"file://{pipeline.folder}/lake", options={})
    stated = LakeBoundary.decode(files.get(boundary.key("shop", newest.number)))
    ahead = replace(stated, number=newest.number + 1, lsn=show(newest.lsn + 1000))
    files.create(boundary.key("shop", ahead.number), ahead.encode())
    pipeline.apply()
    assert [one.lsn for one in lake.boundaries()][-1] == newest.lsn + 1000
    assert max(store.list(keys.APPLY_COMPLETE)).endswith(f"{newest.number:016d}.json")


@slow
def test_the_sql_of_views_reads_the_tables_as_of_their_boundary(pipeline: Pipeline) -> None:
    """Run by Spark; for the other engines it is what their parsers take, for neither is here."""
    _begin(pipeline)
    end = _transfer(pipeline, 10)
    pipeline.apply()
    lake = _lake(pipeline)
    now = lake.as_of(lsn=end)
    _transfer(pipeline, 50)
    pipeline.apply()
    made = views.script(lake, now, "spark", ())
    assert made.splitlines()[0] == f"-- All tables as of {now.boundary}."
    for statement in made.split(";\n"):
        pipeline.spark.sql(statement.rstrip(";"))
    assert [row.amount for row in pipeline.spark.sql("SELECT amount FROM accounts ORDER BY id").collect()] == [90, 100]
    assert pipeline.spark.sql("SELECT sum(amount) FROM `Other.accounts`").collect()[0][0] == 210
    parser = pipeline.spark._jsparkSession.sessionState().sqlParser()
    for statement in views.script(lake, now, "databricks", ("accounts",)).split(";\n"):
        parser.parsePlan(statement.rstrip(";"))
    parsed = duckdb.extract_statements(views.script(lake, now, "duckdb", ()))
    assert len(parsed) == 4
    assert "version => " in parsed[1].query
