"""`sluice verify` and `--repair` as processes against lake tables that somebody changed without a trace: by a commit
that looks like maintenance, or on disk. What differs from the source is never called equal, and the past of a history
stays as it is.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.orders import pipeline_of, reported
from tests.spark import lake
from tests.spark.protocol_reader import DeltaFolder, State
from tests.support.extent import slow
from tests.support.pipeline import wait_until
from tests.support.sources import Database, fresh_database
from tools.local.postgres import PostgresServer
from tools.local.sluice import SluiceProcess

pytestmark = [slow, pytest.mark.timeout(1500)]
Row = dict[str, Any]
OPTIMIZE = {
    "operation": "OPTIMIZE",
    "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
    "operationParameters": {"predicate": "[]", "auto": "false", "clusterBy": "[]", "zOrderBy": "[]"},
    "isBlindAppend": False,
    "isolationLevel": "SnapshotIsolation",
}


class Scene:
    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        targets = [
            {"kind": "mirror"},
            {"kind": "mirror", "name": "soft", "deletes": "soft"},
            {"kind": "history", "name": "versions"},
        ]
        self.pipeline = pipeline_of(database, folder, *targets)
        self.up: SluiceProcess

    def settled(self) -> None:
        """All lake tables are complete through now."""
        lsn = self.database.lsn()

        def complete() -> bool:
            rows = reported(self.pipeline).values()
            return len(rows) == 3 and all(one.state == "stale" or one.complete_through_lsn >= lsn for one in rows)

        wait_until(complete, what="complete", processes=(self.up,), timeout=300)

    def path(self, name: str) -> Path:
        return self.pipeline.directory / "lake" / "public" / name

    def lake_rows(self, name: str) -> list[Row]:
        return sorted(
            lake.rows_in(self.path(name), metadata=True),
            key=lambda row: (row["id"], row.get("_sluice_from_lsn") or 0),
        )

    def verify(self, *words: str, wait: int = 120) -> tuple[int, dict[str, Row], str]:
        done = self.pipeline.run("verify", *words, "--json", "--wait", str(wait), timeout=600)
        try:
            tables = {one["target"]: one for one in json.loads(done.stdout)["tables"]}
        except ValueError:
            tables = {}
        return done.returncode, tables, done.stderr

    def disguised(self, name: str, edit: Callable[[list[Row]], None]) -> None:
        """All rows of the lake table in one new file, after `edit`, in a commit that says that it optimizes."""
        path = self.path(name)
        state, rows = DeltaFolder(path).state(), self.lake_rows(name)
        live, names = list(state.adds.values()), _physical(state)
        edit(rows)
        schema = pq.read_schema(path / live[0]["path"])
        renamed = [{names[key]: value for key, value in row.items()} for row in rows]
        new = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
        pq.write_table(pa.Table.from_pylist(renamed, schema=schema), path / new, compression="zstd")
        now = int(time.time() * 1000)
        lines: list[Row] = [{"commitInfo": {**OPTIMIZE, "timestamp": now, "operationMetrics": {}}}]
        kept = {"deletionTimestamp": now, "dataChange": False, "extendedFileMetadata": True, "partitionValues": {}}
        lines += [
            {"remove": {**kept, **{name: one[name] for name in ("path", "size", "deletionVector") if one.get(name)}}}
            for one in live
        ]
        size = (path / new).stat().st_size
        stats = json.dumps({"numRecords": len(rows), "tightBounds": True})
        lines.append({"add": {"path": new, "partitionValues": {}, "size": size, "modificationTime": now,
                              "dataChange": False, "stats": stats}})  # fmt: skip
        with (path / "_delta_log" / f"{state.version + 1:020d}.json").open("x") as commit:
            commit.write("".join(json.dumps(line) + "\n" for line in lines))

    def on_disk(self, name: str, edit: Callable[[list[Row]], bool]) -> None:
        """The first data file in which `edit` changes something, replaced by one of the same length."""
        path = self.path(name)
        state = DeltaFolder(path).state()
        back = _physical(state)
        names = {key: name for name, key in back.items()}
        for one in state.adds.values():
            file = path / one["path"]
            table = pq.read_table(file)
            rows = [{names.get(key, key): value for key, value in row.items()} for row in table.to_pylist()]
            if not edit(rows):
                continue
            named = [{back.get(key, key): value for key, value in row.items()} for row in rows]
            made = pa.Table.from_pylist(named, schema=table.schema)
            length = file.stat().st_size
            # The store keeps one file under several names: ours goes to its place anew.
            new = file.with_suffix(".new")
            pq.write_table(
                made.replace_schema_metadata(None),
                new,
                compression="zstd",
                compression_level=19,
                store_schema=False,
                write_statistics=False,
                use_dictionary=False,
            )
            # Nobody reads what lies between the last page and the footer.
            data = new.read_bytes()
            footer = 8 + int.from_bytes(data[-8:-4], "little")
            new.write_bytes(data[:-footer] + bytes(length - len(data)) + data[-footer:])
            assert new.stat().st_size == length
            os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
            new.replace(file)
            return
        raise AssertionError("no file was edited")


def _physical(state: State) -> dict[str, str]:
    """The names of columns in files, by their names."""
    return {one["name"]: one["metadata"].get("delta.columnMapping.physicalName", one["name"]) for one in state.fields}


@pytest.fixture(scope="module")
def scene(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with fresh_database(postgres) as database:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v int, w text)",
            "INSERT INTO orders SELECT i, i, md5(i::text) FROM generate_series(1, 50) i",
        )
        scene = Scene(database, tmp_path_factory.mktemp("disguised"))
        with scene.pipeline.start("up") as scene.up:
            scene.settled()
            for number in range(3):
                database.execute(
                    f"UPDATE orders SET v = v + 100 WHERE id <= {10 + number}",
                    f"DELETE FROM orders WHERE id = {40 + number}",
                )
                scene.settled()
            yield scene


def test_verify_calls_nothing_equal_that_was_changed_in_disguise_and_a_repair_keeps_the_past(scene: Scene) -> None:
    def versions(rows: list[Row]) -> None:
        found(rows, 4, current=False).update(v=77777)
        row = found(rows, 5, current=True)
        row.update(_sluice_is_current=False, _sluice_to_lsn=row["_sluice_from_lsn"] + 1)
        row.update(_sluice_valid_to=row["_sluice_valid_from"])

    def soft(rows: list[Row]) -> None:
        found(rows, 41).update(_sluice_deleted_at=None)
        row = found(rows, 7)
        row.update(_sluice_deleted_at=row["_sluice_ts"])

    def other(rows: list[Row]) -> bool:
        there = [row for row in rows if row["id"] == 30]
        for row in there:
            row.update(v=row["v"] + 1)
        return bool(there)

    scene.disguised("versions", versions)
    scene.disguised("soft", soft)
    scene.on_disk("orders", other)
    scene.database.execute("UPDATE orders SET w = w || 'x' WHERE id = 20")
    scene.settled()
    code, tables, err = scene.verify()
    assert code == 4, err
    assert {name: (one["outcome"], one["differences"], one["compared"]) for name, one in tables.items()} == {
        "": ("different", 1, "rows"),
        "soft": ("different", 2, "undeleted rows"),
        # What differs from the source and not from what was: nobody can compare a version that ended.
        "versions": ("different", 1, "current versions"),
    }
    ended = [row for row in scene.lake_rows("versions") if not row["_sluice_is_current"]]
    code, tables, err = scene.verify("--repair")
    assert code == 0, err
    assert {name: (one["outcome"], one["repaired"]) for name, one in tables.items()} == {
        "": ("equal", 1),
        "soft": ("equal", 2),
        "versions": ("equal", 1),
    }
    source = scene.database.all("SELECT id, v, w FROM orders ORDER BY id")
    for name in ("orders", "soft", "versions"):
        rows = scene.lake_rows(name)
        alive = [row for row in rows if row.get("_sluice_is_current", True) and not row.get("_sluice_deleted_at")]
        assert [(row["id"], row["v"], row["w"]) for row in alive] == source, name
    after = scene.lake_rows("versions")
    assert [row for row in ended if row not in after] == []


def test_two_rows_of_one_key_are_never_called_equal(scene: Scene) -> None:
    def reopened(rows: list[Row]) -> None:
        found(rows, 3, current=False).update(_sluice_is_current=True, _sluice_to_lsn=None, _sluice_valid_to=None)

    scene.disguised("versions", reopened)
    scene.disguised("soft", lambda rows: rows.append(dict(found(rows, 6))))
    scene.database.execute("UPDATE orders SET w = w || 'x' WHERE id = 20")
    scene.settled()
    code, tables, err = scene.verify()
    assert code == 4, err
    assert {name: one["outcome"] for name, one in tables.items()} == {
        "": "equal",
        "soft": "different",
        "versions": "different",
    }
    # The repair finds both rows and stops the lake table.
    code, tables, err = scene.verify("--repair", wait=30)
    assert (code, tables[""]["outcome"]) == (4, "equal"), err
    for name in ("soft", "versions"):
        assert tables[name]["outcome"] != "equal", err
    assert {name: one.state for name, one in reported(scene.pipeline).items()} == {
        "": "live",
        "soft": "stale",
        "versions": "stale",
    }


def found(rows: list[Row], key: int, *, current: bool | None = None) -> Row:
    """The first row of this key."""
    return next(row for row in rows if row["id"] == key and current in (None, row.get("_sluice_is_current")))
