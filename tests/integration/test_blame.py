"""Every version of a row, as the spool has it: by plain, streamed, rolled-back and key-changing transactions."""

from decimal import Decimal

import pytest

from sluice.errors import ManifestCorrupt, UsageError
from sluice.manifest.values import PipelineState
from sluice.operate.blame import RowVersion, versions_of
from tests.support.catalog_stories import RESYNC
from tests.support.extent import slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.source_setup import since


def _of(pipeline: IngestPipeline, name: str, *key: str) -> list[RowVersion]:
    return _as_of(pipeline.state(), pipeline, name, *key)


def _as_of(state: PipelineState, pipeline: IngestPipeline, name: str, *key: str) -> list[RowVersion]:
    table = next(one for one in state.tables.values() if one.table_name == name)
    return list(versions_of(pipeline.store, table, key, after_seq=0, through_seq=state.seq))


def _shown(versions: list[RowVersion], column: str) -> list[tuple[str, object]]:
    return [(one.how, one.values.get(column)) for one in versions]


def test_every_version_of_a_row_is_shown_with_its_transaction_and_its_messages(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'read'), (2, 'other')")
    pipeline.run(messages=True)
    with database.connect() as connection:
        with connection.transaction():
            connection.execute("UPDATE t SET v = 'second' WHERE id = 1")
            connection.execute("SELECT pg_logical_emit_message(true, 'ticket', '4711')")
            row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
            assert row is not None
        connection.execute("UPDATE t SET v = 'not this one' WHERE id = 2")
        connection.execute("UPDATE t SET id = 7, v = 'moved' WHERE id = 1")
        connection.execute("DELETE FROM t WHERE id = 7")
        connection.execute("INSERT INTO t VALUES (1, 'again')")
        connection.execute("TRUNCATE t")
    pipeline.run(messages=True)
    one = _of(pipeline, "t", "1")
    assert _shown(one, "v") == [
        ("snapshot", "read"),
        ("update", "second"),
        ("update", None),
        ("insert", "again"),
        ("truncate", None),
    ]
    assert [version.moved for version in one] == [False, False, True, False, False]
    assert one[1].xid == int(row[0])
    assert [version.messages for version in one] == [(), ("ticket: 4711",), (), (), ()]
    assert [version.lsn for version in one] == sorted(version.lsn for version in one)
    assert all(version.at is not None for version in one[1:])
    assert _shown(_of(pipeline, "t", "7"), "v") == [("update", "moved"), ("delete", None), ("truncate", None)]
    assert [how for how, _ in _shown(_of(pipeline, "t", "2"), "v")] == ["snapshot", "update", "truncate"]
    assert _of(pipeline, "t", "99") == _of(pipeline, "t", "98")


def test_rows_of_rolled_back_savepoints_were_never_there(pipeline: IngestPipeline) -> None:
    since(pipeline.database, 16, "streaming at once")
    pipeline.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    pipeline.run(streaming="on")
    pipeline.database.transact(
        "INSERT INTO t VALUES (1, 'stays')",
        "SAVEPOINT s",
        "UPDATE t SET v = 'gone' WHERE id = 1",
        "ROLLBACK TO SAVEPOINT s",
        "UPDATE t SET v = 'last' WHERE id = 1",
    )
    pipeline.run(streaming="on")
    found = _of(pipeline, "t", "1")
    assert _shown(found, "v") == [("insert", "stays"), ("update", "last")]
    assert len({version.lsn for version in found}) == 1


KEYS = [
    ("bigint", "9007199254740993", "9007199254740993"),
    ("text", "'a,\"b'", 'a,"b'),
    ("uuid", "'0b2e2e6e-6a47-4a0f-8f43-2b7f7b6f4c11'", "0b2e2e6e-6a47-4a0f-8f43-2b7f7b6f4c11"),
    ("numeric(10,2)", "12.50", "12.50"),
    ("timestamptz", "'2026-01-02 03:04:05.6+00'", "2026-01-02 03:04:05.6+00:00"),
    ("timestamptz", "'2026-01-02 03:04:05.6+00'", "2026-01-02 03:04:05.6+00"),
    ("boolean", "true", "t"),
    ("double precision", "'NaN'", "NaN"),
    ("double precision", "'-Infinity'", "-Infinity"),
    ("date", "'infinity'", "infinity"),
    ("numeric(10,2)", "'NaN'", "NaN"),
    ("numeric", "1e60", "1" + "0" * 60),
    ("bytea", "'\\x00ff'", "\\x00ff"),
    ("date", "'2026-01-02'", "2026-01-02"),
]


@slow
def test_a_key_of_any_type_is_found_as_it_is_written(pipeline: IngestPipeline) -> None:
    for number, (kind, value, _) in enumerate(KEYS):
        create = f"CREATE TABLE t{number} (id {kind} PRIMARY KEY, v int)"
        pipeline.execute(create, f"INSERT INTO t{number} VALUES ({value}, {number})")
    pipeline.run()
    for number, (kind, _, given) in enumerate(KEYS):
        assert _shown(_of(pipeline, f"t{number}", given), "v") == [("snapshot", number)], (kind, given)


@pytest.mark.parametrize("text", ["--5", "5-", "9" * 5000, "\u0665\u00b2"])
def test_a_text_that_only_looks_like_a_number_is_refused_as_a_key(pipeline: IngestPipeline, text: str) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (5)")
    with pytest.raises(UsageError, match="the key column id is integer, and the given value is not"):
        _of(pipeline, "t", text)


def test_what_cannot_be_a_key_or_is_not_in_the_spool_is_said(pipeline: IngestPipeline) -> None:
    pipeline.run(
        "CREATE TABLE t (a int, b int, v numeric(6,2), PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES (1, 2, 3.5)",
        "CREATE TABLE keyless (v int)",
    )
    assert _shown(_of(pipeline, "t", "1", "2"), "v") == [("snapshot", Decimal("3.50"))]
    with pytest.raises(UsageError, match=r"2 columns \(a, b\)"):
        _of(pipeline, "t", "1")
    with pytest.raises(UsageError, match="is integer"):
        _of(pipeline, "t", "1", "two")
    with pytest.raises(UsageError, match="no key"):
        _of(pipeline, "keyless", "1")
    for key in list(pipeline.store.list("data/")):
        pipeline.store.delete(key)
    with pytest.raises(ManifestCorrupt, match="is missing"):
        _of(pipeline, "t", "1", "2")


def test_a_row_keeps_its_story_through_a_renamed_key_column(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    pipeline.run("ALTER TABLE t RENAME COLUMN id TO number", "UPDATE t SET v = 'b' WHERE number = 1")
    assert _shown(_of(pipeline, "t", "1"), "v") == [("snapshot", "a"), ("update", "b")]


def test_a_row_is_shown_though_its_key_could_not_be_what_it_is_before_the_type_of_the_column_changed(
    pipeline: IngestPipeline,
) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    pipeline.run("ALTER TABLE t ALTER id TYPE text", "INSERT INTO t VALUES ('one', 'b')", **RESYNC)
    pipeline.run("UPDATE t SET v = 'c'", **RESYNC)
    named, numbered = ([value for _, value in _shown(_of(pipeline, "t", key), "v")] for key in ("one", "1"))
    assert (named[-1], numbered[0], numbered[-1]) == ("c", "a", "c")


def test_what_comes_while_the_spool_is_read_is_shown_whole_or_not_at_all(pipeline: IngestPipeline) -> None:
    """Rows in a shape that came meanwhile would be left out between rows that are shown."""
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    before = pipeline.state()
    pipeline.run(
        "UPDATE t SET v = 'b'",
        "ALTER TABLE t ADD COLUMN n int",
        "UPDATE t SET v = 'c', n = 1",
    )
    assert _shown(_as_of(before, pipeline, "t", "1"), "v") == [("snapshot", "a")]
    assert [value for _, value in _shown(_of(pipeline, "t", "1"), "v")] == ["a", "b", "c"]
