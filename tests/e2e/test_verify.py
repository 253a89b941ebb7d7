"""`verify`: equal tables of every kind are called equal, and every difference is found by its key."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.contract.entries import Repair
from sluice.contract.row_form import LakeQuestion
from sluice.contract.verified import DIFFERENT, EQUAL
from sluice.manifest.reader import identity
from sluice.operate.compare.comparing import Comparison
from sluice.operate.compare.repairing import repair
from sluice_spark.lake.foreign_commits import tag
from sluice_spark.lake.opening import application_id
from sluice_spark.lake.sql import quote
from sluice_spark.session import private
from tests.e2e.mirror import FOLLOWED, Mirror
from tests.support.extent import slow


class Verified:
    """A mirror and what compares it. Before the lake is asked ingest passes the position asked for,
    and `between` is what happens meanwhile. `options` are those of ingest.
    """

    def __init__(self, mirror: Mirror, **options: Any) -> None:
        self.mirror = mirror
        self.options = options

    def verdicts(self, *tables: str, between: Callable[[], None] = lambda: None) -> dict[str, Comparison]:
        passed: set[int] = set()

        def before(question: LakeQuestion) -> None:
            if question.lsn not in passed:
                passed.add(question.lsn)
                self.mirror.pipeline.run(**self.options)
                between()

        comparing = self.mirror.comparing(self.mirror.source(**self.options), before=before)
        states = [
            state for state in self.mirror.pipeline.state().tables.values() if not tables or state.table_name in tables
        ]
        return {verdict.table_name: verdict for verdict in comparing.compare(states)}

    def corrupt(self, table: str, statement: str) -> None:
        """Changes a lake table in a commit that claims to be the applier's: nothing else notices."""
        state = self.mirror.pipeline.table(f"public.{table}")
        path = self.mirror.lake_path() / "public" / table
        app_id = application_id("test", state, manifest=identity(self.mirror.store(FOLLOWED)))
        session = private(self.mirror.spark)
        version = self.mirror.delta(table).version()
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", tag(app_id, after=version))
        session.sql(statement.replace("{}", f"delta.{quote(str(path))}"))


FAMILIES = {
    "boolean": ("true", "false"),
    "smallint": ("7", "8S"),
    "int": ("7", "8"),
    "bigint": ("9007199254740993", "9007199254740992L"),
    "real": ("0.1", "CAST(0.10000001 AS FLOAT)"),
    "float8": ("0.1", "CAST('0.10000000000000002' AS DOUBLE)"),
    "numeric(12,2)": ("1.10", "1.11"),
    "numeric(38,0)": ("99999999999999999999999999999999999999", "99999999999999999999999999999999999998"),
    "numeric": ("1.10", "'1.1'"),
    "text": ("'a|b'", "'a|c'"),
    "varchar(9)": ("''", "NULL"),
    "char(5)": ("'ab'", "'ab'"),
    "bytea": ("'\\x00ff'", "X'00FE'"),
    "date": ("'2024-02-29'", "DATE'2024-02-28'"),
    "timestamp": ("'2024-02-29 12:00:00.000001'", "TIMESTAMP_NTZ'2024-02-29 12:00:00.000002'"),
    "timestamptz": ("'2024-02-29 12:00:00.000001+00'", "TIMESTAMP'2024-02-29 12:00:00.000002+00:00'"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12'"),
    "jsonb": ("'{}'", "'{ }'"),
    "int[]": ("'{1,NULL}'", "array(1, 2)"),
    "text[]": ("ARRAY['NULL', NULL, '']", "array('NULL', 'NULL', '')"),
    "float8[]": ("'{0.1,NULL,NaN}'", "array(CAST('0.10000000000000002' AS DOUBLE), NULL, CAST('NaN' AS DOUBLE))"),
    "real[]": ("'{}'", "array(CAST(0 AS FLOAT))"),
    "numeric(6,3)[]": ("'{0.001}'", "array(CAST(0.002 AS DECIMAL(6,3)))"),
    "timestamp[]": ("'{2024-01-01}'", "array(TIMESTAMP_NTZ'2024-01-01 00:00:00.1')"),
    "bytea[]": ("ARRAY['\\x00'::bytea]", "array(X'01')"),
}
"""Type to a value at the source and, as Spark spells it, the nearest other one in the lake."""


@pytest.fixture(scope="module")
def verified(mirror: Mirror) -> Verified:
    columns = ", ".join(f'"c{number}.`" {name}' for number, name in enumerate(FAMILIES))
    values = ", ".join(value for value, _ in FAMILIES.values())
    mirror.execute(
        f"CREATE TABLE families (id int PRIMARY KEY, {columns})",
        f"INSERT INTO families SELECT i, {values} FROM generate_series(0, {len(FAMILIES)}) i",
        "CREATE TABLE plain (id bigint PRIMARY KEY, v text, n numeric(12,2), f float8, d date)",
        "ALTER TABLE plain ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO plain SELECT i, repeat('v' || i, 2000), i / 7.0, i / 7.0, "
        "CASE WHEN i % 2 = 0 THEN 'infinity'::date END FROM generate_series(1, 300) i",
        "CREATE TABLE damaged AS SELECT i AS a, 'k' || i AS b, i AS v FROM generate_series(1, 3000) i",
        "ALTER TABLE damaged ADD PRIMARY KEY (b, a)",
        "CREATE TABLE bag (v text, n int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT 'v' || i % 10, i % 3 FROM generate_series(1, 100) i",
        "CREATE TABLE log (v text)",
        "INSERT INTO log SELECT 'v' || i % 10 FROM generate_series(1, 100) i",
        "CREATE TABLE odd (f float8, t text, n numeric(6,2), d date, v int, PRIMARY KEY (f, t, n, d))",
        "INSERT INTO odd VALUES ('NaN', '|', 'NaN', 'infinity', 1), ('-0', '', 0, '0044-03-15 BC', 2), "
        "(1e300, 'ä', -0.5, '2024-02-29', 3)",
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "CREATE TABLE parts (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parts SELECT i, 'p' FROM generate_series(1, 15) i",
    )
    mirror.follow()
    return Verified(mirror)


@slow
def test_equal_tables_of_every_type_and_kind_are_called_equal(verified: Verified) -> None:
    verdicts = verified.verdicts()
    assert {name: verdict.reason for name, verdict in verdicts.items() if verdict.outcome != EQUAL} == {}
    assert verdicts["plain"].rows == verdicts["plain"].lake_rows == 300


@slow
def test_changes_that_are_not_applied_yet_and_those_behind_the_position_make_no_difference(verified: Verified) -> None:
    verified.mirror.execute(
        "UPDATE plain SET n = n + 1 WHERE id <= 20",  # v is not sent
        "DELETE FROM plain WHERE id = 30",
        "INSERT INTO plain VALUES (1000, 'new', 1, 'NaN', '-infinity')",
        "UPDATE plain SET id = id + 5000 WHERE id BETWEEN 40 AND 50",
        "UPDATE plain SET f = 1 WHERE id BETWEEN 5040 AND 5045",
        "UPDATE bag SET n = 9 WHERE n = 1",
        "INSERT INTO log VALUES ('after')",
        "UPDATE odd SET v = v + 10",
        "TRUNCATE empty",
        "INSERT INTO empty VALUES (1)",
    )

    def later() -> None:
        """Behind the position, and applied before the lake is read."""
        verified.mirror.execute(
            "UPDATE plain SET n = 0, v = 'later'", "DELETE FROM bag", "INSERT INTO log VALUES ('')", "DELETE FROM odd"
        )
        verified.mirror.follow()

    for between in (lambda: None, later):
        verdicts = verified.verdicts("plain", "bag", "log", "odd", "empty", between=between)
        assert {name: verdict.outcome for name, verdict in verdicts.items()} == dict.fromkeys(verdicts, EQUAL)
        assert verdicts["plain"].changed_keys > 0
    assert verified.verdicts("plain", "bag", "log", "odd")["plain"].changed_keys == 0


def test_a_row_that_came_before_the_position_and_went_behind_it_makes_no_difference(verified: Verified) -> None:
    """One window has both changes, in portions: they leave nothing to commit, and the applier says that it is behind
    them.
    """
    mirror = verified.mirror
    mirror.execute("INSERT INTO bag VALUES ('passes', 7)")

    def goes() -> None:
        mirror.execute("DELETE FROM bag WHERE n = 7")
        mirror.pipeline.run()
        mirror.apply_by(mirror.options(ways={"public.bag": "merge"}, max_memory_bytes=1))

    assert verified.verdicts("bag", between=goes)["bag"].outcome == EQUAL


def test_the_nearest_other_value_of_every_family_is_found(verified: Verified) -> None:
    changes = ", ".join(
        f"{quote(f'c{number}.`')} = CASE WHEN id = {number} THEN {other} ELSE {quote(f'c{number}.`')} END"
        for number, (_, other) in enumerate(FAMILIES.values())
    )
    verified.corrupt("families", f"UPDATE {{}} SET {changes}")
    verdict = verified.verdicts("families")["families"]
    assert verdict.outcome == DIFFERENT
    assert sorted(int(str(row.key[0])) for row in verdict.difference.changed) == list(range(len(FAMILIES)))
    assert not verdict.difference.missing
    assert not verdict.difference.extra


def test_one_changed_one_missing_and_one_extra_row_are_named_by_their_keys(verified: Verified) -> None:
    verified.corrupt("damaged", "UPDATE {} SET v = 0 WHERE a = 17")
    verified.corrupt("damaged", "DELETE FROM {} WHERE a = 18")
    verified.corrupt("damaged", "INSERT INTO {} SELECT 9999, 'kü', v, _sluice_lsn, _sluice_ts FROM {} WHERE a = 19")
    verdict = verified.verdicts("damaged")["damaged"]
    difference = verdict.difference
    assert (verdict.outcome, verdict.rows, verdict.lake_rows) == (DIFFERENT, 3000, 3000)
    assert [row.key for row in difference.changed] == [("17", "k17")]
    assert [row.key for row in difference.missing] == [("18", "k18")]
    assert [row.key for row in difference.extra] == [("9999", "kü")]


@slow
def test_a_repair_reads_the_rows_again_that_differ_and_nothing_else(verified: Verified) -> None:
    """In the middle of changes, of other rows and of some that differ."""
    table = "damaged"
    verdict = verified.verdicts(table)[table]
    wrong = len(verdict.difference)
    pipeline = verified.mirror.pipeline
    with pipeline.running(watch_interval_s=0.1):
        verified.mirror.execute("INSERT INTO damaged SELECT i, 'n', i FROM generate_series(1, 50) i")
        assert repair(pipeline.store, verdict, seconds=60) == 1
        verified.mirror.execute("UPDATE damaged SET v = v + 1 WHERE a <= 18", "DELETE FROM damaged WHERE a = 5000")
    entry = next(entry for entry in pipeline.entries() if isinstance(entry.body, Repair))
    assert isinstance(entry.body, Repair)
    assert sum(segment.rows for segment in entry.body.segments) == wrong
    verified.mirror.follow()
    assert verified.verdicts(table)[table].outcome == EQUAL
    verified.mirror.assert_equal(table)


@slow
def test_rows_without_a_key_are_counted(verified: Verified) -> None:
    verified.mirror.execute("INSERT INTO bag SELECT 'again', 1 FROM generate_series(1, 3)")
    verified.mirror.follow()
    verified.corrupt("bag", "INSERT INTO {} SELECT * FROM {} WHERE v = 'again' LIMIT 1")
    verdict = verified.verdicts("bag")["bag"]
    assert verdict.outcome == DIFFERENT
    assert verdict.lake_rows - verdict.rows == 1
