"""The initial copy and the stream spell every value in the same bytes, and a copy that races DDL says so."""

import asyncio
import struct
from contextlib import closing

import pytest

from service.contract.schema import TableSchema
from service.errors import SourceRefused, SourceUnavailable
from service.source.catalog import Catalog, TableFacts
from service.source.copy import SnapshotRaced, copy_table
from service.source.schemas import build_schema, relation_of
from service.source.sessions import SourceOptions, open_query
from service.source.slot import ensure_publication, ensure_slot
from service.source.snapshot import SnapshotHolder, Waiting
from service.source.stream import ReplicationStream, StreamLimits
from tests.support.source_setup import options_of
from tests.support.sources import Database

Row = tuple[bytes | None, ...]

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'it''s "ok", {fine}');
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN moods AS mood[];
CREATE TYPE pair AS (x price, y mood, "Z z" timestamptz);
CREATE DOMAIN checked_pair AS pair CHECK (true);
CREATE SCHEMA "odd ""schema";
CREATE TYPE "odd ""schema"."odd type" AS ENUM ('a');
CREATE TABLE "odd ""schema"."it's, ""t""" (
  id int PRIMARY KEY, c_bool bool, c_int2 int2, c_int8 int8, c_float4 float4, c_float8 float8, c_num numeric, c_num2 numeric(12,2), c_money money,
  c_text text, c_varchar varchar(20), c_char char(8), c_char1 "char", c_name name, c_bytea bytea, c_date date, c_time time, c_timetz timetz,
  c_ts timestamp, c_tstz timestamptz, c_interval interval, c_uuid uuid, c_json json, c_jsonb jsonb, c_xml xml, c_inet inet, c_cidr cidr, c_mac macaddr,
  c_bit bit(3), c_varbit varbit, c_point point, c_box box, c_path path, c_ints int[], c_texts text[], c_boxes box[], c_tss timestamptz[], c_bools bool[],
  c_range tstzrange, c_multi int4multirange, c_mood mood, c_moods mood[], c_dmoods moods, c_pair pair, c_pairs pair[], c_cpair checked_pair, c_price price,
  c_odd "odd ""schema"."odd type", c_reg regclass, c_oid oid, c_xid8 xid8, c_ts_v tsvector, c_lsn pg_lsn, "We""ird, Näme" text, c_acl aclitem[])
"""
TABLE = '"odd ""schema"."it\'s, ""t"""'
ROWS = [
    """1, true, -32768, 9223372036854775807, 0.1, 0.1, 1.10, 1.1, 12.34, E'tab\\tnew\\nline \\\\ ü 😀', 'v', 'pad', 'c', 'n', '\\x00ff27', '2024-02-29',
       '24:00:00', '12:00:00+05:30:15', '2024-02-29 12:00:00.000001', '2024-07-01 12:00:00.5+05:30', '1 year -2 days 03:00:00.5', 'a0eebc999c0b4ef8bb6d6bb9bd380a11',
       '{"b": 1, "a":  2, "a": 3}', '{"b": 1, "a": 2, "a": 3}', '<a>ü</a>', '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03', B'000', B'', '(1.5,-0)', '(3,4),(1,2)',
       '[(1,2),(3,4)]', '{1,NULL,3}', ARRAY['a,b', '"q"', NULL, 'NULL', ''], ARRAY['(3,4),(1,2)'::box, '(1,1),(0,0)'], ARRAY['2024-07-01 12:00+02'::timestamptz],
       '{t,f,NULL}', '[2024-01-01 00:00+02,)', '{[1,3),[7,9)}', 'it''s "ok", {fine}', ARRAY['sad','it''s "ok", {fine}']::mood[], '{sad}', ROW(1.5,'sad','2024-07-01 12:00+02'),
       ARRAY[ROW(NULL,'it''s "ok", {fine}',NULL)::pair], ROW(1,'sad',NULL), 3, 'a', 'public.mood_holder', 4294967295, '18446744073709551615', 'a:1 b:2', '16/B374D848', '', NULL""",
    "2" + ", NULL" * 54,
    """3, false, 0, -1, 'NaN', '-Infinity', 'NaN', '-0.00', '-1234.5', '', '', '', '', '', '', 'infinity', '00:00', '00:00-12', '-infinity', '4713-01-01 BC', '-1 mon +1 day',
       '00000000-0000-0000-0000-000000000000', 'null', 'null', '', '::1', '::/0', '00:00:00:00:00:00', B'111', B'10101', '(NaN,Infinity)', '(0,0),(0,0)', '((0,0))', '{}', '{}',
       '{}', '{infinity}', '[2:3]={t,f}', 'empty', '{}', 'sad', '{}', '{}', ROW(NULL,NULL,NULL), '{}', NULL, NULL, NULL, 'pg_class', 0, '0', '', '0/0', 'x', NULL""",
    """4, true, 1, 1, 3.4e38, 1e-307, 1e100, 9999999999.99, 0, repeat('long ü ', 100000), 'v', 'x', 'x', 'x', decode(repeat('00ff', 50000), 'hex'), '294276-12-31', '00:00', '00:00+00',
       '294276-12-31 23:59:59.999999', '294276-12-31 23:59:59.999999+00', '178000000 years', 'a0eebc999c0b4ef8bb6d6bb9bd380a11', '{}', '{}', '<a/>', '1.2.3.4', '1.2.3.4/32',
       '08:00:2b:01:02:03', B'101', B'1', '(1e300,2)', '(1,1),(0,0)', '((0,0),(1,1))', '{{1,2},{3,4}}', '{a}', NULL, '{}', '{t}', '(,)', '{(,)}', 'sad', '{sad}', '{sad}', NULL, NULL,
       NULL, 0, 'a', 0, 1, '1', 'x', 'F/F', 'é', NULL""",
]


def facts_of(options: SourceOptions) -> TableFacts:
    with closing(open_query(options)) as conn:
        (facts,) = Catalog(conn).published_tables(options.publication)
    return facts


def schema_of(facts: TableFacts) -> TableSchema:
    return build_schema(relation_of(facts), facts, None, 1)


def copied(options: SourceOptions, facts: TableFacts, snapshot: str) -> list[Row]:
    """The rows of a copy, read by a parser of this test's own."""
    payload = b"".join(b"".join(batch) for batch in copy_table(options, schema=schema_of(facts), facts=facts, snapshot=snapshot))
    assert payload[:11] == b"PGCOPY\n\xff\r\n\0"
    position, rows = 19, []
    while True:
        (count,) = struct.unpack_from(">h", payload, position)
        position += 2
        if count == -1:
            assert position == len(payload)
            return sorted(rows, key=lambda row: int(row[0] or b"0"))
        row: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", payload, position)
            position += 4
            row.append(payload[position : position + length] if length >= 0 else None)
            position += max(length, 0)
        rows.append(tuple(row))


def streamed_rows(frames: list[bytes]) -> list[Row]:
    rows = []
    for frame in frames:
        if frame[0:1] != b"w" or frame[25:26] != b"I":
            continue
        position = 25 + 1 + 4 + 1
        (count,) = struct.unpack_from(">H", frame, position)
        position += 2
        row: list[bytes | None] = []
        for _ in range(count):
            kind = frame[position : position + 1]
            position += 1
            if kind == b"n":
                row.append(None)
                continue
            assert kind == b"t"
            (length,) = struct.unpack_from(">i", frame, position)
            row.append(frame[position + 4 : position + 4 + length])
            position += 4 + length
        rows.append(tuple(row))
    return rows


async def streamed(options: SourceOptions, start_lsn: int) -> list[Row]:
    stream = await ReplicationStream.open(
        options, start_lsn=start_lsn, proto_version=1, streaming="off", two_phase=False, messages=False, origin="any", limits=StreamLimits(max_delay_s=0.05)
    )
    frames: list[bytes] = []
    async with asyncio.timeout(20):
        while sum(frame[25:26] == b"C" for frame in frames) < len(ROWS):
            frames += (await stream.next_batch()).frames
    await stream.close()
    return streamed_rows(frames)


def test_copy_and_stream_send_the_same_bytes_for_every_type(database: Database) -> None:
    options = options_of(database)
    database.execute(*filter(str.strip, TYPES.split(";\n")), "CREATE TABLE public.mood_holder (m mood)")
    with database.connect() as connection:
        ensure_publication(connection, options.publication, [('odd "schema', 'it\'s, "t"')])
    slot = ensure_slot(options)
    database.execute("SET search_path = public", *(f"INSERT INTO {TABLE} VALUES ({row})" for row in ROWS))
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        copy = copied(options, facts, holder.snapshot_name)
    stream = asyncio.run(streamed(options, slot.confirmed_flush_lsn or 0))
    assert len(copy) == len(stream) == len(ROWS)
    for from_copy, from_stream in zip(copy, stream, strict=True):
        for column, one, other in zip(schema_of(facts).columns, from_copy, from_stream, strict=True):
            assert one == other, column.name
    assert copy[0][schema_of(facts).columns.index(schema_of(facts).column("c_char"))] == b"pad     "  # type: ignore[arg-type]
    assert copy[1][1:] == (None,) * (len(facts.columns) - 1)


def published(database: Database, *statements: str, tables: tuple[tuple[str, str], ...] = (("public", "t"),)) -> SourceOptions:
    options = options_of(database)
    database.execute(*statements)
    with database.connect() as connection:
        ensure_publication(connection, options.publication, tables)
    return options


@pytest.mark.parametrize(
    "race",
    ["TRUNCATE t", "ALTER TABLE t ALTER body TYPE text USING upper(body)", "VACUUM FULL t", "DROP TABLE t", "ALTER TABLE t RENAME TO u", "ALTER TABLE t DROP body"],
)
def test_a_table_that_changed_around_the_snapshot_is_never_taken_for_an_empty_one(database: Database, race: str) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY, body text)", "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        database.execute(race)
        with pytest.raises(SnapshotRaced, match=r"public\.t"):
            list(copy_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name))


def test_rows_committed_after_the_snapshot_are_not_copied(database: Database) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY, body text)", "INSERT INTO t VALUES (1, 'before')")
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        database.execute("INSERT INTO t VALUES (2, 'after')", "UPDATE t SET body = 'after' WHERE id = 1")
        assert holder.alive()
        assert copied(options, facts, holder.snapshot_name) == [(b"1", b"before")]


def test_a_snapshot_whose_holder_is_gone_is_a_race_and_not_a_copy(database: Database) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY)")
    facts = facts_of(options)
    holder = SnapshotHolder.open(options)
    holder.close()
    assert not holder.alive()
    with pytest.raises(SnapshotRaced, match="snapshot is gone"):
        list(copy_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name))


def test_an_empty_reading_of_a_table_with_rows_is_doubted_once(database: Database) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)", "ANALYZE t", "DELETE FROM t")
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        with pytest.raises(SnapshotRaced, match="empty"):
            list(copy_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name))
        assert list(copy_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name, accept_empty=True))


def test_a_partitioned_table_is_copied_through_its_root_and_children_by_inheritance_are_left_out(database: Database) -> None:
    options = published(
        database,
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p VALUES (1), (11)",
        tables=(("public", "p"),),
    )
    facts = facts_of(options)
    assert facts.relkind == "p"
    with closing(SnapshotHolder.open(options)) as holder:
        assert copied(options, facts, holder.snapshot_name) == [(b"1",), (b"11",)]
        database.execute("TRUNCATE p2")
        with pytest.raises(SnapshotRaced):
            copied(options, facts, holder.snapshot_name)


def test_only_rows_that_pass_the_publications_filter_are_copied_and_a_parents_children_are_not(database: Database) -> None:
    options = options_of(database)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, kind text)",
        "CREATE TABLE child () INHERITS (t)",
        "INSERT INTO t VALUES (1, 'in'), (2, 'out')",
        "INSERT INTO child VALUES (3, 'in')",
        f"CREATE PUBLICATION {options.publication} FOR TABLE ONLY t WHERE (id = 1 OR id = 3)",
    )
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        assert copied(options, facts, holder.snapshot_name) == [(b"1", b"in")]


def test_row_level_security_stops_the_copy_instead_of_hiding_rows(database: Database) -> None:
    published(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    role = f"reader_{database.name}"
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON t TO {role}",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY some ON t USING (id = 1)",
    )
    reader = options_of(database, user=role)
    try:
        facts = facts_of(reader)
        with closing(SnapshotHolder.open(reader)) as holder, pytest.raises(SourceRefused, match="row-level security"):
            list(copy_table(reader, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name))
    finally:
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_copy_abandoned_half_way_leaves_no_session_behind(database: Database) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY, body text)", "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        rows = copy_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name, batch_bytes=64 * 1024)
        assert next(rows)
        rows.close()
    database.execute("ALTER TABLE t ADD COLUMN locked_no_more int")


def test_a_snapshot_that_waits_names_whom_it_waits_for_and_can_be_cancelled(database: Database) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY)")
    reported: list[int | None] = []
    with database.connect() as blocking:
        blocking.execute("BEGIN")
        blocking.execute("INSERT INTO t VALUES (1)")
        waiting = Waiting(report=lambda blockers: reported.extend(blocker.pid for blocker in blockers), cancelled=lambda: bool(reported))
        with pytest.raises(SourceUnavailable, match="cancelled"):
            SnapshotHolder.open(options, waiting=waiting)
        assert blocking.info.backend_pid in reported
        blocking.execute("ROLLBACK")
    with database.connect() as connection:
        leftover = connection.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT active").fetchone()
    assert leftover == (0,)
