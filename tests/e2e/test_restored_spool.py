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

from tests.support.extent import cases, slow
from tests.support.pipeline import QUICK_JAVA, wait_until
from tests.support.sources import Database, fresh_database
from tools.local.postgres import PostgresServer
from tools.local.sluice import Pipeline, SluiceProcess

pytestmark = pytest.mark.timeout(900)
ROWS = 3000
KILLED = "snapshot.chunk.before=crash@{}"


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


def _ingest(restored: _Restored) -> None:
    ran = restored.pipeline.run("run", "--until-caught-up")
    assert ran.returncode == 0, ran.stderr


def _ids(restored: _Restored, table: str) -> list[int]:
    found = DeltaTable(f"{restored.pipeline.lake_uri}/public/{table}")
    read = QueryBuilder().register("t", found).execute("SELECT id FROM t ORDER BY id").read_all()
    return [int(value) for value in read.column(0).to_pylist()]


def _source(restored: _Restored, table: str) -> list[int]:
    with restored.database.connect() as connection:
        return [row[0] for row in connection.execute(f"SELECT id FROM {table} ORDER BY id")]


class _Late:
    """The spool and the slot as they are now, to be restored."""

    def __init__(self, restored: _Restored, folder: Path) -> None:
        self._database, self._spool, self._kept = restored.database, folder / "spool", folder / "kept"
        shutil.copytree(self._spool, self._kept)
        slot = self._database.slot
        self._database.execute(f"SELECT pg_copy_logical_replication_slot('{slot}', '{slot}_late')")

    def restore(self) -> None:
        slot = self._database.slot
        shutil.rmtree(self._spool)
        self._kept.rename(self._spool)
        self._database.execute(
            f"SELECT pg_drop_replication_slot('{slot}')",
            f"SELECT pg_copy_logical_replication_slot('{slot}_late', '{slot}')",
            f"SELECT pg_drop_replication_slot('{slot}_late')",
        )


def _looked(applier: SluiceProcess, folder: Path, before: set[str]) -> None:
    """The applier has opened its tables and reported."""
    wait_until(
        lambda: bool({path.name for path in folder.rglob("apply/log/*.json")} - before),
        what="the applier has reported",
        processes=(applier,),
    )


def _end(restored: _Restored, table: str, applier: SluiceProcess) -> str:
    """The state of `table` once the applier has all of it, or stopped it."""
    end = max(int(one.stem) for one in (restored.pipeline.own_spool / "manifest").glob("*.json"))

    def row() -> dict[str, object]:
        said = sorted(restored.pipeline.own_spool.rglob("apply/log/*.json"))
        rows = json.loads(said[-1].read_text())["tables"].values()
        return next((one for one in rows if one["table_name"] == table), {})

    def ended() -> bool:
        found = row()
        return found.get("state") == "stale" or (
            found.get("state") == "live" and int(str(found.get("through_seq", 0))) >= end - 1
        )

    wait_until(ended, what=f"{table} is at its end", processes=(applier,))
    return str(row()["state"])


def test_a_table_that_was_new_in_the_lost_entries_and_joins_again_is_equal_to_the_source_or_stale(
    restored: _Restored, tmp_path: Path
) -> None:
    database = restored.database
    database.execute(f"CREATE PUBLICATION {database.publication} FOR ALL TABLES")
    assert restored.follow() == 0
    late = _Late(restored, tmp_path)
    database.execute("CREATE TABLE u (id int PRIMARY KEY, v text)", "INSERT INTO u VALUES (1)")
    for number in range(2, 9):
        _ingest(restored)
        database.execute(f"INSERT INTO u VALUES ({number})")
    assert restored.follow() == 0
    assert _ids(restored, "u") == list(range(1, 9))
    late.restore()
    database.execute("DELETE FROM u WHERE id BETWEEN 2 AND 8", "INSERT INTO u VALUES (50)")
    before = {path.name for path in (tmp_path / "spool").rglob("apply/log/*.json")}
    with restored.pipeline.start("apply") as applier:
        _looked(applier, tmp_path / "spool", before)
        _ingest(restored)
        database.execute("INSERT INTO u VALUES (51)")
        _ingest(restored)
        state = _end(restored, "u", applier)
    found, wanted = _ids(restored, "u"), _source(restored, "u")
    assert state == "stale" or found == wanted, (state, found, wanted)


@slow
def test_a_resync_under_a_running_applier_brings_the_rows_if_the_lost_entries_had_one_as_well(
    restored: _Restored, tmp_path: Path
) -> None:
    database = restored.database
    assert restored.follow() == 0
    late = _Late(restored, tmp_path)
    asked = restored.pipeline.run("resync", "public.t")
    assert asked.returncode == 0, asked.stderr
    for number in range(2, 12):
        _ingest(restored)
        database.execute(f"INSERT INTO t VALUES ({number})")
    assert restored.follow() == 0
    assert restored.lake() == list(range(1, 12))
    late.restore()
    database.execute("DELETE FROM t WHERE id BETWEEN 2 AND 11", "INSERT INTO t VALUES (50)")
    before = {path.name for path in (tmp_path / "spool").rglob("apply/log/*.json")}
    with restored.pipeline.start("apply") as applier:
        _looked(applier, tmp_path / "spool", before)
        asked = restored.pipeline.run("resync", "public.t")
        assert asked.returncode == 0, asked.stderr
        _ingest(restored)
        database.execute("INSERT INTO t VALUES (51)")
        _ingest(restored)
        state = _end(restored, "t", applier)
    found, wanted = restored.lake(), restored.source()
    assert state == "stale" or found == wanted, (state, found, wanted)


def test_parts_of_a_snapshot_from_lost_entries_are_not_taken_for_those_of_a_later_moment(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with fresh_database(postgres) as database:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, n int, pad text) WITH (fillfactor = 100, autovacuum_enabled = off)",
            f"INSERT INTO t SELECT i, 0, repeat('x', 40) FROM generate_series(1, {ROWS}) i",
            f"CREATE PUBLICATION {database.publication} FOR TABLE t",
        )
        source = {
            "tables": ["public.*"],
            "slot": database.slot,
            "publication": database.publication,
            "snapshot_connections": 1,
            "snapshot_chunk": "64KiB",
        }
        apply = {"driver_memory": "1GiB", "conf": QUICK_JAVA}
        pipeline = Pipeline(tmp_path, name="shop", dsn=database.dsn, settings={"source": source, "apply": apply})
        restored = _Restored(database, pipeline)

        def until_killed(chunk: int) -> None:
            ran = pipeline.run("run", "--until-caught-up", environment={"SLUICE_FAULTS": KILLED.format(chunk)})
            assert ran.returncode != 0, ran.stderr

        until_killed(2)
        late = _Late(restored, tmp_path)
        until_killed(3)
        ran = pipeline.run("apply", "--once")
        assert ran.returncode == 0, ran.stderr
        late.restore()
        database.execute("UPDATE t SET n = 1 WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 0")
        assert restored.follow() == 0
        (row,) = json.loads(pipeline.run("tables", "--json").stdout)["tables"]
        lake = DeltaTable(f"{pipeline.lake_uri}/public/t")
        read = QueryBuilder().register("t", lake).execute("SELECT id, n FROM t ORDER BY id").read_all()
        found = list(zip(read.column(0).to_pylist(), read.column(1).to_pylist(), strict=True))
        with database.connect() as connection:
            wanted = [tuple(one) for one in connection.execute("SELECT id, n FROM t ORDER BY id")]
        differ = set(found) ^ set(wanted)
        assert row["state"] == "stale" or found == wanted, (
            row["state"],
            f"{len(differ)} rows differ, {len(found)} in the lake, {len(wanted)} in the source",
        )


@pytest.mark.parametrize(
    "killed", cases(["apply.window.before=crash", "apply.commit.after=crash@2"], quick=["apply.commit.after=crash@2"])
)
def test_a_replay_that_goes_on_behind_a_restored_copy_makes_its_tables_through_its_position_or_says_no(
    restored: _Restored,
    tmp_path: Path,
    killed: str,
) -> None:
    database, pipeline = restored.database, restored.pipeline
    database.execute(f"CREATE PUBLICATION {database.publication} FOR ALL TABLES")
    _ingest(restored)
    late = _Late(restored, tmp_path)
    database.execute("INSERT INTO t VALUES (2)")
    _ingest(restored)
    database.execute("INSERT INTO t VALUES (3)")
    with database.connect() as connection:
        ((position,),) = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
    _ingest(restored)
    there = (tmp_path / "replayed").as_uri()
    (tmp_path / "replayed").mkdir()
    given = ("replay", "--to", str(position), "--lake", there)
    first = pipeline.run(*given, environment={"SLUICE_FAULTS": killed})
    assert first.returncode != 0, first.stdout
    late.restore()
    for _ in range(5):
        ran = pipeline.run("run", "--until-caught-up", environment={"SLUICE_FAULTS": "manifest.opened=crash"})
        assert ran.returncode == 137, ran.stderr
    _ingest(restored)
    database.execute("INSERT INTO t VALUES (4)")
    _ingest(restored)
    again = pipeline.run(*given)
    if again.returncode == 0:
        (made,) = json.loads(again.stdout)["tables"]
        read = QueryBuilder().register("t", DeltaTable(f"{there}/public/t")).execute("SELECT id FROM t").read_all()
        found = sorted(read.column(0).to_pylist())
        assert found == [one for one in _source(restored, "t") if one < 4], (made, found)
