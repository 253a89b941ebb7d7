"""The whole path inside one process, a step at a time: SQL at the source, ingest into a spool on
local disk, the applier, Delta read by another engine.

A lake is followed step by step; `rebuild` fills a second one from the finished spool, where each
table takes its snapshot and then all its changes in one window. What a test claims must hold in both.
"""

import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql import SparkSession

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete
from sluice.contract.row_form import LakeAnswer, LakeQuestion
from sluice.errors import ApplyError
from sluice.manifest.newest_record import newest_log
from sluice.operate.compare.comparing import Comparing
from sluice.operate.compare.source_side import Load
from sluice.source.sessions import KnownSource
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice_spark.applier import Applier
from sluice_spark.options import ApplyOptions
from sluice_spark.session import private
from sluice_spark.verify.lake_side import LakeSide
from tests.support import ingesting
from tests.support.compare import assert_equal
from tests.support.sources import Database

FOLLOWED, REBUILT = "followed", "rebuilt"
LAKES = (FOLLOWED, REBUILT)
CHANGELOGS = ("public.grown_log", "origins.log")
"""The tables of all stories whose changes are kept."""


def transactions(text: str) -> list[list[str]]:
    """A statement is a line, and a semicolon at its end says that its transaction goes on."""
    lines = text.strip().splitlines()
    found: list[list[str]] = [[]]
    for line in lines:
        found[-1].append(line.strip().removesuffix(";"))
        if not line.endswith(";"):
            found.append([])
    return found[:-1]


def without(left_out: Sequence[str], *statements: str) -> list[str]:
    """The statements that name none of these tables."""
    return [one for one in statements if not set(left_out) & set(re.findall(r"\w+", one))]


class Mirror:
    """One source, its spool, the lake that follows it and the lake made again from the spool."""

    def __init__(self, database: Database, spark: SparkSession, folder: Path) -> None:
        self.database = database
        self.spark = spark
        self._folder = folder
        self.pipeline = ingesting.IngestPipeline(
            database, open_store(self._spool_uri(FOLLOWED), prefix="test/", options={})
        )

    def execute(self, *statements: str) -> None:
        """Each statement in a transaction of its own."""
        self.database.execute(*statements)

    def transaction(self, *statements: str) -> None:
        """All statements in one transaction."""
        with self.database.connect() as connection, connection.transaction():
            for statement in statements:
                connection.execute(statement.encode())

    def follow(self, **options: Any) -> None:
        """Everything committed by now is in the spool, and then in the lake. What came since the
        last call is one window of each table.
        """
        self.pipeline.run(**options)
        self.apply()

    def rebuild(self) -> None:
        """The second lake, from the spool alone: nothing of the first applier's own notes is there."""
        self.fork(REBUILT)
        self.apply(REBUILT)

    def fork(self, lake: str) -> None:
        """Another spool, which begins as a copy of what the first one holds now."""
        shutil.copytree(self._folder / FOLLOWED, self._folder / lake, ignore=shutil.ignore_patterns("apply"))

    def forget_notes(self, lake: str = FOLLOWED) -> None:
        """Removes what the applier wrote into the spool."""
        shutil.rmtree(self._folder / lake / "test" / "apply")

    def apply(self, lake: str = FOLLOWED, *, workers: int = 2, ways: Mapping[str, str] | None = None) -> None:
        """Until everything in the spool is applied, by an applier that has just started. `ways` are those of
        tables, by qualified name.
        """
        self.apply_by(self.options(lake, workers=workers, ways=ways), lake)

    def apply_by(self, options: ApplyOptions, lake: str = FOLLOWED) -> None:
        Applier(options, self.store(lake), self.spark, stop=threading.Event()).run()

    def options(
        self, lake: str = FOLLOWED, *, workers: int = 2, ways: Mapping[str, str] | None = None, **more: Any
    ) -> ApplyOptions:
        """Of an applier that applies what there is and ends."""
        return ApplyOptions(
            "test",
            self._spool_uri(lake),
            self.lake_uri(lake),
            workers=workers,
            once=True,
            poll_seconds=0.05,
            tables={
                **{name: {"targets": [{"kind": "changelog"}]} for name in CHANGELOGS},
                **{name: {"way": way} for name, way in (ways or {}).items()},
            },
            **more,
        )

    def source(self, **ingest: Any) -> KnownSource:
        """For comparisons; `ingest` are its options."""
        source = self.pipeline.known()
        source.hash_keys.add(self.pipeline.options(**ingest).policies.hash_keys)
        return source

    def comparing(
        self,
        source: KnownSource,
        *,
        before: Callable[[LakeQuestion], None] = lambda _: None,
        options: ApplyOptions | None = None,
        wait_seconds: float = 0.0,
    ) -> Comparing:
        """What `verify` compares by. `before` happens before each question to the lake."""
        side = LakeSide(options or self.options(), self.store(FOLLOWED), private(self.spark))

        def ask(question: LakeQuestion) -> LakeAnswer:
            before(question)
            try:
                return LakeAnswer.decode(side.answer(LakeQuestion.decode(question.encode())).encode())
            except ApplyError as error:
                return LakeAnswer(error=str(error), exit_code=error.exit_code)

        return Comparing(
            source,
            lambda question: partial(ask, question),
            load=Load(),
            wait_seconds=wait_seconds,
            applied=lambda: log.tables if (log := newest_log(self.store(FOLLOWED)).read()) is not None else {},
        )

    def lake_path(self, lake: str = FOLLOWED) -> Path:
        return self._folder / f"{lake}-lake"

    def lake_uri(self, lake: str = FOLLOWED) -> str:
        return self.lake_path(lake).as_uri()

    def assert_equal(self, *tables: str, lake: str = FOLLOWED, schema: str = "public") -> None:
        """Fails with every difference between these tables and the source."""
        paths = {table: self.path(table, schema=schema) for table in tables}
        assert_equal(self.database, tables, lake_uri=self.lake_uri(lake), schema=schema, paths=paths)

    def delta(self, table: str, *, lake: str = FOLLOWED, schema: str = "public") -> DeltaTable:
        return DeltaTable(self.lake_path(lake) / self.path(table, schema=schema))

    def path(self, table: str, *, schema: str = "public") -> str:
        """Where the manifest says that the lake table stands; that of the name if it knows none."""
        known = self.pipeline.state().tables.values()
        found = [one for one in known if (one.schema_name, one.table_name) == (schema, table)]
        newest = max(found, key=lambda one: (one.state != "detached", one.generation_seq), default=None)
        return newest.path if newest is not None else keys.lake_path(schema, table)

    def rows(self, table: str, *, lake: str = FOLLOWED, schema: str = "public") -> list[dict[str, Any]]:
        """Rows as the lake has them, in no order; a scan, because delta-rs's counts do not look at
        deletion vectors.
        """
        rows: list[dict[str, Any]] = pa.table(self.delta(table, lake=lake, schema=schema).scan()).to_pylist(
            maps_as_pydicts="strict"
        )
        return rows

    def values(self, table: str, *columns: str, lake: str = FOLLOWED) -> list[tuple[Any, ...]]:
        """The named columns, sorted."""
        return sorted(tuple(row[column] for column in columns) for row in self.rows(table, lake=lake))

    def server_texts(self, table: str, columns: Sequence[str], *, key: str) -> dict[str, tuple[str | None, ...]]:
        """By the text of `key`: the server's own text of `columns`, from `format`, which calls the
        types' output functions.
        """
        formats = sql.SQL(", ").join(
            sql.SQL(
                "CASE WHEN {0} IS NULL AND pg_catalog.num_nulls({0}) = 1 THEN NULL ELSE "
                "pg_catalog.format('%s', {0}) END"
            ).format(sql.Identifier(column))
            for column in columns
        )
        with self.database.connect() as connection:
            connection.execute("SET search_path = ''; SET timezone = 'UTC'; SET lc_monetary = 'C'")
            found = connection.execute(
                sql.SQL("SELECT {}, {} FROM {}").format(sql.Identifier(key), formats, sql.Identifier("public", table))
            ).fetchall()
        return {str(row[0]): row[1:] for row in found}

    def applied(self, lake: str = FOLLOWED) -> dict[str, AppliedTable]:
        """By qualified name: what the applier last said of each table."""
        return {f"{table.schema_name}.{table.table_name}": table for table in self.applied_rows(lake)}

    def applied_rows(self, lake: str = FOLLOWED) -> list[AppliedTable]:
        """What the applier last said of each table."""
        store = self.store(lake)
        return list(AppliedLog.decode(store.get(list(store.list(keys.APPLY_LOG))[-1])).tables.values())

    def complete(self, lake: str = FOLLOWED) -> Complete:
        """The applier's newest statement about all tables."""
        store = self.store(lake)
        return Complete.decode(store.get(list(store.list(keys.APPLY_COMPLETE))[-1]))

    def store(self, lake: str) -> ObjectStore:
        """The spool of `lake`, under the pipeline's prefix."""
        return open_store(self._spool_uri(lake), prefix="test/", options={})

    def _spool_uri(self, lake: str) -> str:
        return (self._folder / lake).as_uri()
