"""Rows that are read again come into the manifest at a place where they are known to be right, however
ingest ends on the way and whatever changes meanwhile.
"""

import uuid
from itertools import product
from pathlib import Path

import pytest

from sluice import faults
from sluice.contract import keys
from sluice.contract.control import REPAIR, Refusal, Request
from sluice.contract.entries import Changes, Repair
from sluice.errors import ServiceError
from sluice.ingest.options import FlushPolicy
from sluice_spark.read.changes import read_rows
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline, Running
from tests.support.sources import Database

POINTS = ("repair.begun", "repair.taken", "repair.append.before", "repair.append.after")


def ask(pipeline: IngestPipeline, *wanted: tuple[str, ...], table: str = "t") -> str:
    key = keys.control_request(uuid.uuid4().hex)
    pipeline.store.create(key, Request(REPAIR, "public", table, "2026-01-01T00:00:00+00:00", wanted).encode())
    return key


def is_done(pipeline: IngestPipeline, key: str) -> bool:
    return key not in set(pipeline.store.list(keys.CONTROL))


def carried_out(pipeline: IngestPipeline, key: str, *statements: str) -> None:
    with pipeline.running(watch_interval_s=0.1) as running:
        pipeline.execute(*statements)
        running.wait_until(lambda: is_done(pipeline, key))


def goes_on(running: Running) -> None:
    """A change that comes now is carried."""
    known = len(running.pipeline.changes())
    running.pipeline.execute("UPDATE t SET v = 'later' WHERE id = 3")
    running.wait_until(lambda: len(running.pipeline.changes()) > known)


def repairs(pipeline: IngestPipeline) -> list[Repair]:
    return [entry.body for entry in pipeline.entries() if isinstance(entry.body, Repair)]


def rows_of(pipeline: IngestPipeline, repair: Repair) -> list[tuple[object, ...]]:
    """(operation, columns ...) of each row, keys of removed ones."""
    found: list[tuple[object, ...]] = []
    for segment in repair.segments:
        for table in read_rows(pipeline.store, segment):
            for row in table.to_pylist():
                old = row["_sluice_old"] or {}
                found.append((row["_sluice_op"], old.get("id", row["id"]), old.get("k", row["k"]), row["v"]))
    return sorted(found, key=repr)


@pytest.fixture
def filled(database: Database, pipeline: IngestPipeline) -> IngestPipeline:
    pipeline.run(
        "CREATE TABLE t (id int, k text, v text, PRIMARY KEY (k, id))",
        "INSERT INTO t SELECT i, 'it''s \\ ' || i, 'v' || i FROM generate_series(1, 20) i",
    )
    return pipeline


@slow
def test_rows_are_read_whole_and_those_that_are_gone_are_removed(filled: IngestPipeline) -> None:
    carried_out(filled, ask(filled, ("3", "it's \\ 3"), ("99", "nobody"), ("4", "it's \\ 4")))
    (repair,) = repairs(filled)
    assert rows_of(filled, repair) == [
        ("d", 99, "nobody", None),
        ("u", 3, "it's \\ 3", "v3"),
        ("u", 4, "it's \\ 4", "v4"),
    ]
    assert repair.as_of_lsn <= repair.unchanged_through_lsn


def test_a_request_that_fails_each_time_is_refused_and_the_stream_goes_on(filled: IngestPipeline) -> None:
    key = ask(filled, ("no number", "x"))
    with filled.running(watch_interval_s=0.1) as running:
        running.wait_until(lambda: is_done(filled, key))
        goes_on(running)
    assert Refusal.decode(filled.store.get(keys.refused_request(key))).action == REPAIR
    assert repairs(filled) == []


LASTING = [
    *product(["repair.begun", "segment.put.before", "repair.append.before"], ["StoreRefused", "ValueError"]),
    *product(["repair.begun"], ["ManifestCorrupt", "UnsupportedChange", "ProtocolViolation"]),
]


@slow
def test_an_error_of_one_repair_that_lasts_refuses_that_request_and_the_stream_goes_on(filled: IngestPipeline) -> None:
    with filled.running(watch_interval_s=0.1) as running:
        for point, error in LASTING:
            faults.arm(f"{point}=raise:{error}@1")
            key = ask(filled, ("3", "it's \\ 3"))
            running.wait_until(lambda key=key: is_done(filled, key))
            faults.arm("")
            goes_on(running)
            reason = Refusal.decode(filled.store.get(keys.refused_request(key))).reason
            assert reason == ("unexpected ValueError" if error == "ValueError" else f"fault point {point}"), error
    assert repairs(filled) == []


@slow
@pytest.mark.parametrize("point", POINTS)
def test_a_repair_that_fails_anywhere_is_done_by_the_next_ingest(filled: IngestPipeline, point: str) -> None:
    key = ask(filled, ("3", "it's \\ 3"))
    faults.arm(f"{point}=raise:WriterFenced@1")
    with pytest.raises(ServiceError), filled.running(watch_interval_s=0.1) as running:
        running.thread.join(60)
    faults.arm("")
    carried_out(filled, key)
    assert repairs(filled)
    assert all(rows_of(filled, repair) == [("u", 3, "it's \\ 3", "v3")] for repair in repairs(filled))


@slow
def test_a_key_that_changes_behind_the_reading_is_read_again(filled: IngestPipeline) -> None:
    """The change is in the manifest before the repair, so the repair must have it, too."""
    key = ask(filled, ("3", "it's \\ 3"), ("4", "it's \\ 4"))
    faults.arm("repair.taken=delay:2@1")
    with filled.running(watch_interval_s=0.1) as running:
        running.wait_until(lambda: faults.passages("repair.taken"))
        filled.execute("UPDATE t SET v = 'later' WHERE id = 3", "UPDATE t SET k = 'moved' WHERE id = 4")
        running.wait_until(lambda: is_done(filled, key))
    (repair,) = repairs(filled)
    assert rows_of(filled, repair) == [("d", 4, "it's \\ 4", None), ("u", 3, "it's \\ 3", "later")]
    bodies = [type(entry.body) for entry in filled.entries()]
    assert bodies.index(Changes) < bodies.index(Repair)


def test_columns_that_change_and_come_back_while_a_repair_begins_are_looked_at_again(
    filled: IngestPipeline, tmp_path: Path
) -> None:
    """The rows were read for a shape that was not the newest any more, which ended ingest as a damaged manifest."""
    key, gate = ask(filled, ("3", "it's \\ 3")), tmp_path / "begun.open"
    faults.arm(f"repair.begun=hold:{gate}@1")
    flush = FlushPolicy(max_delay_s=0.05, progress_interval_s=0.2)
    with filled.running(watch_interval_s=0.1, flush=flush) as running:
        running.wait_until(lambda: faults.passages("repair.begun"))
        for version, identity in ((2, "FULL"), (3, "DEFAULT")):
            filled.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}", "UPDATE t SET v = v WHERE id = 9")
            running.wait_until(lambda: filled.table("public.t").schema_version == version)  # noqa: B023 - waited for
        gate.touch()
        running.wait_until(lambda: is_done(filled, key))
    (repair,) = repairs(filled)
    assert (repair.schema_version, rows_of(filled, repair)) == (3, [("u", 3, "it's \\ 3", "v3")])


@slow
def test_what_cannot_be_repaired_is_refused_by_name(filled: IngestPipeline) -> None:
    filled.run("CREATE TABLE bag (id int)", "ALTER TABLE bag REPLICA IDENTITY FULL")
    for table, wanted in (("bag", ("1",)), ("nowhere", ("1",)), ("t", ("1",)), ("t", ("no number", "k"))):
        key = ask(filled, wanted, table=table)
        carried_out(filled, key)
        refusal = Refusal.decode(filled.store.get(keys.refused_request(key)))
        assert f"public.{table}" in (refusal.reason, refusal.table) or f"public.{table}" in refusal.reason
        assert "no number" not in refusal.reason
    assert repairs(filled) == []


KEYS = {
    # type: (value of a row, the lake's name of its key, the lake's name of a key that no row has)
    "float8": ("1", "1.0", "inf"),
    "float4": ("'0.1'", "0.10000000149011612", "-inf"),
    "float8 ": ("'Infinity'", "inf", "nan"),
    "float8  ": ("'NaN'", "nan", "-inf"),
    "float8   ": ("0", "-0.0", "2.0"),
    "float8[]": ("'{1}'", "{1.0}", "{inf}"),
    "numeric(6,2)": ("1.5", "1.50", "2.50"),
    "timestamp": ("'2024-01-02 03:04:05'", "2024-01-02 03:04:05", "infinity"),
    "timestamptz": ("'2024-01-02 03:04:05+00'", "2024-01-02 03:04:05+00", "-infinity"),
    "bytea": ("'\\x00ff'", "\\x00ff", "\\x01"),
    "ltree": ("'a.b'", "a.b", "a.c"),
    "citext": ("'A'", "A", "a"),
}


def test_a_row_that_the_source_has_is_never_removed_however_its_key_is_named(pipeline: IngestPipeline) -> None:
    """A key of a lake is named as the lake's reader prints it; the same value is the same key."""
    pipeline.execute("CREATE EXTENSION ltree", "CREATE EXTENSION citext")
    for number, (kind, (value, _, _)) in enumerate(KEYS.items()):
        create = f"CREATE TABLE t{number} (id {kind.strip()}, k text, v text, PRIMARY KEY (k, id))"
        pipeline.execute(create, f"INSERT INTO t{number} VALUES ({value}, 'a', 'kept')")
    pipeline.run()
    asked = [
        ask(pipeline, (has, "a"), (has_not, "a"), (has, "b"), table=f"t{number}")
        for number, (_, has, has_not) in enumerate(KEYS.values())
    ]
    with pipeline.running(watch_interval_s=0.1) as running:
        running.wait_until(lambda: all(is_done(pipeline, key) for key in asked))
    assert {keys.refused_request(key) for key in asked} & set(pipeline.store.list(keys.CONTROL)) == set()
    found = {repair.table_id: repair for repair in repairs(pipeline)}
    for number, kind in enumerate(KEYS):
        rows = rows_of(pipeline, found[pipeline.table(f"public.t{number}").table_id])
        assert [(row[0], row[2]) for row in rows if row[3] == "kept"] == [("u", "a")], kind
        assert sorted((row[0], row[2]) for row in rows if row[3] is None) == [("d", "a"), ("d", "b")], kind
        (present,) = (row[1] for row in rows if row[0] == "u")
        assert repr(present) not in {repr(row[1]) for row in rows if (row[0], row[2]) == ("d", "a")}, kind


UNANNOUNCED = {
    "a column came and went": ("ALTER TABLE t ADD COLUMN x int", "ALTER TABLE t DROP COLUMN x"),
    "a type was renamed": ("ALTER TYPE mood RENAME TO feeling",),
    "a type moved": ("CREATE SCHEMA apart", "ALTER TYPE feeling SET SCHEMA apart"),
    "the table was renamed": ("ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME TO t"),
    "a column was renamed": ("ALTER TABLE t RENAME COLUMN v TO w", "ALTER TABLE t RENAME COLUMN w TO v"),
    "another default": ("ALTER TABLE t ALTER COLUMN e SET DEFAULT 7",),
}


@slow
def test_what_changes_no_column_that_is_sent_keeps_no_row_from_repair(filled: IngestPipeline) -> None:
    filled.run(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "ALTER TABLE t ADD COLUMN m mood, ADD COLUMN e int DEFAULT 5",
        "UPDATE t SET m = 'ok' WHERE id = 4",
    )
    for change, statements in UNANNOUNCED.items():
        filled.run(*statements)
        table = filled.table("public.t")
        assert table.state == "live", (change, table.reason)
        before = len(repairs(filled))
        carried_out(filled, ask(filled, ("3", "it's \\ 3")))
        (repair,) = repairs(filled)[before:]
        assert rows_of(filled, repair) == [("u", 3, "it's \\ 3", "v3")], change
