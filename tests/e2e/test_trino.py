"""Trino reads lake tables of every kind by their names in a Hive metastore and in Glue, while they change."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import trino
from tests.support.extent import slow
from tests.support.metastore import metastore
from tests.support.pipeline import QUICK_JAVA, must, new_pipeline, wait_until
from tests.support.sources import Database, fresh_database
from tests.support.trino import Trino, running_trino
from tools.local.postgres import PostgresServer
from tools.local.s3 import ACCESS_KEY, REGION, S3Server
from tools.local.sluice import Pipeline, SluiceProcess

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(trino.why_missing()), reason=trino.why_missing() or "there is one"),
]
_SECONDS = 240.0
_SOURCE = (
    (
        "CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(12, 2), at timestamptz, day date,"
        " tags text[], doc jsonb, raw bytea, ok boolean, big text, ratio float8, local timestamp)"
    ),
    "ALTER TABLE orders ALTER big SET STORAGE EXTERNAL",
    (
        "INSERT INTO orders SELECT i, 'new', i * 1.25,"
        " timestamptz '2026-01-02 03:04:05.678901+00' + i * interval '1 hour',"
        " '2026-01-01'::date + i % 3, ARRAY['a', NULL, 'ü' || i], jsonb_build_object('i', i), decode('00ff', 'hex'),"
        " i % 2 = 0, repeat('b', 3000) || i, i / 7.0, '2026-01-02 03:04:05.678901' FROM generate_series(1, 300) i"
    ),
    "CREATE TABLE by_day (id int, day date, v text, PRIMARY KEY (id, day))",
    "INSERT INTO by_day SELECT i, '2026-01-01'::date + i % 3, 'v' || i FROM generate_series(1, 100) i",
)
_CHANGES = (
    "UPDATE orders SET status = 'paid', total = total + 0.01 WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 10 = 0",
    "INSERT INTO orders (id, status, big) VALUES (1000, NULL, 'short')",
    "UPDATE by_day SET v = 'w' WHERE id % 4 = 0",
    "UPDATE by_day SET day = day + 1 WHERE id = 7",
    'ALTER TABLE orders RENAME COLUMN status TO "the Status"',
    "ALTER TABLE orders ADD COLUMN more int DEFAULT 7",
    "ALTER TABLE orders DROP COLUMN ok",
    "UPDATE orders SET \"the Status\" = 'late', more = 8 WHERE id % 5 = 1",
)
_TABLES: dict[str, Any] = {
    "public.orders": {
        "targets": [
            {"kind": "mirror"},
            {"kind": "mirror", "name": "orders_all", "deletes": "soft"},
            {"kind": "history", "name": "orders_history"},
            {"kind": "changelog", "name": "orders_changes"},
        ]
    },
    "public.by_day": {"partition_by": ["day"]},
}
_NAMES = ("orders", "orders_all", "orders_history", "orders_changes", "by_day")


@dataclass
class Named:
    """A pipeline whose tables have names in a catalog, and Trino, which knows that catalog as `names`."""

    database: Database
    pipeline: Pipeline
    process: SluiceProcess
    trino: Trino

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.trino.query(statement)]

    def settle(self) -> None:
        """What was committed is in the lake."""
        must(self.pipeline, "wait", "--now", "--timeout", f"{_SECONDS:g}s", timeout=_SECONDS + 60)

    def assert_equal(self) -> None:
        """Each table that mirrors the source has its rows, column by column, in the source's own texts."""
        names = [row[0] for row in self.database.all(_COLUMNS.format(table="orders"))]
        for table, where in (("orders", ""), ("orders_all", "WHERE _sluice_deleted_at IS NULL")):
            for name in names:
                wanted = self.database.all(f"SELECT id, {_text(name)} FROM orders ORDER BY 1")
                found = self.rows(
                    f"SELECT id, {_TRINO.get(name, _plain)(name)} FROM names.shop.{table} {where} ORDER BY 1"
                )
                assert found == wanted, (table, name)
        wanted = self.database.all("SELECT id, day::text, v FROM by_day ORDER BY id")
        assert self.rows("SELECT id, CAST(day AS varchar), v FROM names.shop.by_day ORDER BY id") == wanted


_COLUMNS = (
    "SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
    " ORDER BY attnum"
)
_TEXTS: dict[str, str] = {
    # Trino has a timestamp with time zone of Delta to the millisecond.
    "at": "to_char(at::timestamptz(3) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
    "tags": "array_to_string(tags, ',', '?')",
    "raw": "upper(encode(raw, 'hex'))",
    "ratio": "round(ratio::numeric, 9)::text",
    "doc": "doc ->> 'i'",
}


def _text(name: str) -> str:
    return _TEXTS.get(name, f'"{name}"::text')


def _plain(name: str) -> str:
    return f'CAST("{name}" AS varchar)'


_TRINO: dict[str, Callable[[str], str]] = {
    "at": lambda _: "date_format(at AT TIME ZONE 'UTC', '%Y-%m-%d %H:%i:%s.%f')",
    "tags": lambda _: "array_join(tags, ',', '?')",
    "raw": lambda _: "to_hex(raw)",
    "ratio": lambda _: "CAST(CAST(ratio AS decimal(30, 9)) AS varchar)",
    "doc": lambda _: "json_extract_scalar(doc, '$.i')",
}


@pytest.fixture(params=["hive", pytest.param("glue", marks=slow)])
def named(
    request: pytest.FixtureRequest, postgres: PostgresServer, s3_server: S3Server, tmp_path: Path
) -> Iterator[Named]:
    with ExitStack() as stack:
        database = stack.enter_context(fresh_database(postgres))
        database.execute(*_SOURCE)
        apply = {"driver_memory": "1GiB", "freshness": "500ms", "conf": QUICK_JAVA}
        settings: dict[str, dict[str, Any]] = {"apply": apply, "tables": _TABLES}
        catalog: dict[str, Any] = {"kind": request.param, "name": "shop.{target}", "create_schemas": True}
        if request.param == "hive":
            hive = stack.enter_context(metastore(tmp_path / "hive"))
            uri, known = hive.uri, _by_hive(hive.uri)
        else:
            s3_server.create_bucket("trino-lake")
            uri, known = s3_server.endpoint, _by_glue(s3_server)
            settings["lake"] = {"uri": "s3://trino-lake/lake", "options": s3_server.options()}
        more: dict[str, Any] = {**settings, "catalog": {**catalog, "uri": uri}}
        pipeline = new_pipeline(database, tmp_path / "pipeline", name="shop", **more)
        reader = stack.enter_context(running_trino(tmp_path / "trino", {"names": known}))
        process = stack.enter_context(pipeline.start("up"))
        found = Named(database, pipeline, process, reader)
        wait_until(lambda: _registered(pipeline) == len(_NAMES), what="the names are in the catalog", timeout=_SECONDS)
        yield found


def _registered(pipeline: Pipeline) -> int:
    return sum(bool(table.get("catalog", {}).get("registered_at")) for table in pipeline.tables())


def _by_hive(uri: str) -> dict[str, str]:
    return {
        "connector.name": "delta_lake",
        "hive.metastore": "thrift",
        "hive.metastore.uri": uri,
        "fs.hadoop.enabled": "true",
    }


def _by_glue(server: S3Server) -> dict[str, str]:
    return {
        "connector.name": "delta_lake",
        "hive.metastore": "glue",
        "hive.metastore.glue.region": REGION,
        "hive.metastore.glue.endpoint-url": server.endpoint,
        "hive.metastore.glue.aws-access-key": ACCESS_KEY,
        "hive.metastore.glue.aws-secret-key": ACCESS_KEY,
        "fs.native-s3.enabled": "true",
        "s3.endpoint": server.endpoint,
        "s3.region": REGION,
        "s3.path-style-access": "true",
        "s3.aws-access-key": ACCESS_KEY,
        "s3.aws-secret-key": ACCESS_KEY,
    }


def test_each_kind_of_table_is_read_by_its_name_and_equals_the_source_while_it_changes(named: Named) -> None:
    assert sorted(row[0] for row in named.rows("SHOW TABLES FROM names.shop")) == sorted(_NAMES)
    named.settle()
    named.assert_equal()
    for statement in _CHANGES:
        named.database.execute(statement)
        named.settle()
    named.assert_equal()
    dead = named.rows("SELECT count(*) FROM names.shop.orders_all WHERE _sluice_deleted_at IS NOT NULL")
    assert dead == [(30,)]
    current = named.rows("SELECT count(*), count(DISTINCT id) FROM names.shop.orders_history WHERE _sluice_is_current")
    assert current == [(271, 271)]
    operations = named.rows("SELECT _sluice_op, count(*) FROM names.shop.orders_changes GROUP BY 1 ORDER BY 1")
    assert sum(count for _, count in operations) >= 300 + 100 + 30 + 1
    versions = named.rows('SELECT count(*) FROM names.shop."orders$history"')
    assert versions[0][0] > 5
