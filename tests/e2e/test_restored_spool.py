"""The spool is restored from an older copy and the slot is no further than the copy, as after a failover to a standby
whose synchronized slot is late: ingest continues, and the numbers of the lost entries come again for other changes.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.support.pipeline import QUICK_JAVA
from tests.support.sources import Database, fresh_database
from tools.local.postgres import PostgresServer
from tools.local.sluice import Pipeline

pytestmark = pytest.mark.timeout(900)


@dataclass
class _Restored:
    database: Database
    pipeline: Pipeline

    def follow(self) -> int:
        """Everything is in the spool and then in the lake, as far as it may be; how the applier ended."""
        ran = self.pipeline.run("run", "--until-caught-up")
        assert ran.returncode == 0, ran.stderr
        return self.pipeline.run("apply", "--once").returncode

    def lake(self) -> list[int]:
        table = DeltaTable(f"{self.pipeline.lake_uri}/public/t")
        found = QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id").read_all()
        return [int(value) for value in found.column(0).to_pylist()]

    def source(self) -> list[int]:
        with self.database.connect() as connection:
            return [row[0] for row in connection.execute("SELECT id FROM t ORDER BY id")]


@pytest.fixture
def restored(postgres: PostgresServer, tmp_path: Path) -> Iterator[_Restored]:
    with fresh_database(postgres) as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1)")
        source = {"tables": ["public.*"], "slot": database.slot, "publication": database.publication}
        apply = {"driver_memory": "1GiB", "conf": QUICK_JAVA}
        pipeline = Pipeline(tmp_path, name="shop", dsn=database.dsn, settings={"source": source, "apply": apply})
        yield _Restored(database, pipeline)


def test_rows_of_entries_whose_numbers_come_again_are_missed_by_name_and_a_resync_brings_them(
    restored: _Restored, tmp_path: Path
) -> None:
    database, spool, kept = restored.database, tmp_path / "spool", tmp_path / "kept"
    assert restored.follow() == 0
    shutil.copytree(spool, kept)
    slot, late = database.slot, f"{database.slot}_late"
    database.execute(f"SELECT pg_copy_logical_replication_slot('{slot}', '{late}')")
    for number in (2, 3):
        database.execute(f"INSERT INTO t VALUES ({number})")
        assert restored.follow() == 0
    assert restored.lake() == [1, 2, 3]
    shutil.rmtree(spool)
    kept.rename(spool)
    database.execute(
        f"SELECT pg_drop_replication_slot('{slot}')",
        f"SELECT pg_copy_logical_replication_slot('{late}', '{slot}')",
        f"SELECT pg_drop_replication_slot('{late}')",
    )
    for number in (4, 5, 6):
        database.execute(f"INSERT INTO t VALUES ({number})")
        ran = restored.pipeline.run("run", "--until-caught-up")
        assert ran.returncode == 0, ran.stderr
    assert restored.follow() == 9
    (table,) = json.loads(restored.pipeline.run("tables", "--json").stdout)["tables"]
    assert (table["state"], "an older copy of the spool was restored" in table["reason"]) == ("stale", True), table
    compared = restored.pipeline.run("verify")
    assert compared.returncode != 0, compared.stdout
    asked = restored.pipeline.run("resync", "public.t")
    assert asked.returncode == 0, asked.stderr
    assert restored.follow() == 0
    assert restored.lake() == restored.source() == [1, 2, 3, 4, 5, 6]
