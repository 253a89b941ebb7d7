"""The spool is restored from an older copy and the slot is no further than the copy, as after a failover to a standby
whose synchronized slot is late: ingest continues, and the numbers of the lost entries come again for other changes.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.support.extent import cases, slow
from tests.support.pipeline import QUICK_JAVA, must, new_pipeline, wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

pytestmark = pytest.mark.timeout(900)
ROWS = 3000
KILLED = "snapshot.chunk.before=crash@{}"


@dataclass
class _Restored:
    database: Database
    pipeline: Pipeline

    def ingest(self) -> None:
        must(self.pipeline, "run", "--until-caught-up")

    def follow(self) -> int:
        """Everything is in the spool and then in the lake, as far as it may be; how the applier ended."""
        self.ingest()
        return self.pipeline.run("apply", "--once").returncode

    def insert(self, *numbers: int, table: str = "t") -> None:
        """Each is an entry of its own."""
        for number in numbers:
            self.database.execute(f"INSERT INTO {table} VALUES ({number})")
            self.ingest()

    def lake(self, table: str = "t", columns: str = "id", *, uri: str = "") -> list[tuple[Any, ...]]:
        stored = DeltaTable(f"{uri or self.pipeline.lake_uri}/public/{table}")
        found = QueryBuilder().register("t", stored).execute(f"SELECT {columns} FROM t ORDER BY id").read_all()
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def source(self, table: str = "t", columns: str = "id") -> list[tuple[Any, ...]]:
        return self.database.all(f"SELECT {columns} FROM {table} ORDER BY id")

    def assert_equal_or_stale(self, state: object, table: str = "t", columns: str = "id") -> None:
        found, wanted = self.lake(table, columns), self.source(table, columns)
        differ = sorted(set(found) ^ set(wanted))
        assert state == "stale" or found == wanted, f"{table} is {state}, and {len(differ)} rows differ: {differ[:50]}"


def _made(database: Database, folder: Path, **source: Any) -> _Restored:
    apply = {"driver_memory": "1GiB", "conf": QUICK_JAVA}
    return _Restored(database, new_pipeline(database, folder, name="shop", source=source, apply=apply))


@pytest.fixture
def restored(database: Database, tmp_path: Path) -> _Restored:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1)")
    return _made(database, tmp_path)


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


@slow
def test_rows_of_entries_whose_numbers_come_again_are_missed_by_name_and_a_resync_brings_them(
    restored: _Restored, tmp_path: Path
) -> None:
    assert restored.follow() == 0
    late = _Late(restored, tmp_path)
    for number in (2, 3):
        restored.database.execute(f"INSERT INTO t VALUES ({number})")
        assert restored.follow() == 0
    assert restored.lake() == [(1,), (2,), (3,)]
    late.restore()
    restored.insert(4, 5, 6)
    assert restored.follow() == 9
    (table,) = restored.pipeline.tables()
    assert (table["state"], "an older copy of the spool was restored" in table["reason"]) == ("stale", True), table
    compared = restored.pipeline.run("verify")
    assert compared.returncode != 0, compared.stdout
    must(restored.pipeline, "resync", "public.t")
    assert restored.follow() == 0
    assert restored.lake() == restored.source() == [(number,) for number in range(1, 7)]


def _under_a_running_applier(restored: _Restored, table: str, *, resync: bool = False) -> None:
    """The applier has opened its tables and reported; then come two entries, the second with another row."""
    pipeline, reports = restored.pipeline, restored.pipeline.own_spool / "apply" / "log"
    before = set(reports.glob("*.json"))
    with pipeline.start("apply") as applier:
        wait_until(lambda: bool(set(reports.glob("*.json")) - before), what="a report", processes=(applier,))
        if resync:
            must(pipeline, "resync", f"public.{table}")
        restored.ingest()
        restored.insert(51, table=table)
        state = _end(pipeline, table, applier)
    restored.assert_equal_or_stale(state, table)


def _end(pipeline: Pipeline, table: str, applier: SluiceProcess) -> str:
    """The state of `table` once the applier has all of it, or stopped it."""
    end = max(int(one.stem) for one in (pipeline.own_spool / "manifest").glob("*.json"))

    def row() -> dict[str, Any]:
        newest = max((pipeline.own_spool / "apply" / "log").glob("*.json"))
        rows = json.loads(newest.read_text())["tables"].values()
        return next((one for one in rows if one["table_name"] == table), {})

    def ended() -> bool:
        found = row()
        return found.get("state") == "stale" or (found.get("state") == "live" and found["through_seq"] >= end - 1)

    wait_until(ended, what=f"{table} is at its end", processes=(applier,))
    return str(row()["state"])


@slow
def test_a_table_that_was_new_in_the_lost_entries_and_joins_again_is_equal_to_the_source_or_stale(
    restored: _Restored, tmp_path: Path
) -> None:
    database = restored.database
    database.execute(f"CREATE PUBLICATION {database.publication} FOR ALL TABLES")
    assert restored.follow() == 0
    late = _Late(restored, tmp_path)
    database.execute("CREATE TABLE u (id int PRIMARY KEY, v text)", "INSERT INTO u VALUES (1)")
    restored.ingest()
    restored.insert(*range(2, 9), table="u")
    assert restored.follow() == 0
    assert restored.lake("u") == [(number,) for number in range(1, 9)]
    late.restore()
    database.execute("DELETE FROM u WHERE id BETWEEN 2 AND 8", "INSERT INTO u VALUES (50)")
    _under_a_running_applier(restored, "u")


@slow
def test_a_resync_under_a_running_applier_brings_the_rows_if_the_lost_entries_had_one_as_well(
    restored: _Restored, tmp_path: Path
) -> None:
    assert restored.follow() == 0
    late = _Late(restored, tmp_path)
    must(restored.pipeline, "resync", "public.t")
    restored.ingest()
    restored.insert(*range(2, 12))
    assert restored.follow() == 0
    assert restored.lake() == [(number,) for number in range(1, 12)]
    late.restore()
    restored.database.execute("DELETE FROM t WHERE id BETWEEN 2 AND 11", "INSERT INTO t VALUES (50)")
    _under_a_running_applier(restored, "t", resync=True)


@slow
def test_parts_of_a_snapshot_from_lost_entries_are_not_taken_for_those_of_a_later_moment(
    database: Database, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, pad text) WITH (fillfactor = 100, autovacuum_enabled = off)",
        f"INSERT INTO t SELECT i, 0, repeat('x', 40) FROM generate_series(1, {ROWS}) i",
        f"CREATE PUBLICATION {database.publication} FOR TABLE t",
    )
    restored = _made(database, tmp_path, snapshot_connections=1, snapshot_chunk="64KiB")

    def until_killed(chunk: int) -> None:
        faults = {"SLUICE_FAULTS": KILLED.format(chunk)}
        ran = restored.pipeline.run("run", "--until-caught-up", environment=faults)
        assert ran.returncode != 0, ran.stderr

    until_killed(2)
    late = _Late(restored, tmp_path)
    until_killed(3)
    must(restored.pipeline, "apply", "--once")
    late.restore()
    database.execute("UPDATE t SET n = 1 WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 0")
    assert restored.follow() == 0
    (row,) = restored.pipeline.tables()
    restored.assert_equal_or_stale(row["state"], columns="id, n")


@pytest.mark.parametrize("killed", cases(["apply.window.before=crash", "apply.commit.after=crash@2"], quick=[]))
def test_a_replay_that_goes_on_behind_a_restored_copy_makes_its_tables_through_its_position_or_says_no(
    restored: _Restored, tmp_path: Path, killed: str
) -> None:
    database, pipeline = restored.database, restored.pipeline
    database.execute(f"CREATE PUBLICATION {database.publication} FOR ALL TABLES")
    restored.ingest()
    late = _Late(restored, tmp_path)
    restored.insert(2)
    database.execute("INSERT INTO t VALUES (3)")
    (position,) = database.one("SELECT pg_current_wal_insert_lsn()")
    restored.ingest()
    there = (tmp_path / "replayed").as_uri()
    (tmp_path / "replayed").mkdir()
    given = ("replay", "--to", str(position), "--lake", there)
    first = pipeline.run(*given, environment={"SLUICE_FAULTS": killed})
    assert first.returncode != 0, first.stdout
    late.restore()
    for _ in range(5):
        ran = pipeline.run("run", "--until-caught-up", environment={"SLUICE_FAULTS": "manifest.opened=crash"})
        assert ran.returncode == 137, ran.stderr
    restored.ingest()
    restored.insert(4)
    again = pipeline.run(*given)
    if again.returncode == 0:
        (made,) = json.loads(again.stdout)["tables"]
        assert restored.lake(uri=there) == [one for one in restored.source() if one < (4,)], made
