"""Columns that are masked, truncated or hashed: what a rule keeps out is stored nowhere, whatever happens to the table
and however it is sent; what it makes of the values is exact, for every type.
"""

import hmac
from itertools import product
from pathlib import Path

import pytest

from sluice.contract.column_values import key_id
from sluice.contract.schema import ColumnRule
from sluice.ingest.encode.builder import BuilderLimits
from sluice.operate.check.preflight import run_preflight
from sluice.tables.policies import Policies, TablePolicy
from tests.integration.test_ingest_binary import binary
from tests.support import canary
from tests.support.column_rules import (
    KEYS,
    OLD_ROWS,
    assert_equal,
    carry,
    finding,
    hashed,
    mask,
    run,
    shape,
    truncate,
    under,
    with_keys,
)
from tests.support.extent import cases
from tests.support.ingesting import IngestPipeline
from tests.support.source_setup import since
from tests.support.type_matrix import COLUMNS, DEFINITIONS

RULES = with_keys({"email": hashed(KEYS[0]), "phone": mask("***"), "notes": truncate(5)})
RULED = under(RULES)
IDENTITIES = {
    **OLD_ROWS,
    "a hashed key": ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (email)",),
}
WAYS = ("one by one", "catalog ahead", "one transaction", "prepared")
BEFORE = (
    "CREATE TABLE t (id int PRIMARY KEY, email text NOT NULL, phone text, notes text, v text)",
    "ALTER TABLE t ALTER phone SET STORAGE EXTERNAL, ALTER notes SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT i, '{hidden} ' || i, {large} || i, 'äöü😀x' || {large}, 'old' FROM generate_series(1, 9) i",
    "CREATE PUBLICATION {p} FOR TABLE t",
)
CHANGES = (
    "INSERT INTO t VALUES (10, '{hidden} ten', {large}, NULL, 'ten'), (11, '{hidden} 11', NULL, '', 'ten')",
    "UPDATE t SET v = 'new' WHERE id = 1",
    "UPDATE t SET phone = NULL WHERE id = 2",
    "UPDATE t SET phone = '{hidden}', notes = 'short' WHERE id < 5 AND id <> 2",
    "UPDATE t SET email = '{hidden} moved' || id WHERE id IN (3, 11)",
    "UPDATE t SET id = id + 20 WHERE id IN (4, 10)",
    "DELETE FROM t WHERE id IN (5, 24)",
    "INSERT INTO t VALUES (5, '{hidden} again', '{hidden}', 'nnnnn{hidden}', 'old')",
)
SHAPES = (
    "ALTER TABLE t RENAME phone TO cell",
    "UPDATE t SET cell = {large}, v = 'renamed' WHERE id = 6",
    "ALTER TABLE t ADD phone text DEFAULT '{hidden} default'",
    "INSERT INTO t VALUES (50, '{hidden} 50', {large}, NULL, 'fifty', '{hidden} phone')",
    "ALTER TABLE t RENAME email TO mail",
    "ALTER TABLE t ADD email text DEFAULT '{hidden} default'",
    "ALTER TABLE t ALTER notes TYPE varchar",
    "UPDATE t SET email = NULL, notes = '12345{hidden}' WHERE id IN (7, 50)",
    "UPDATE t SET email = '{hidden} later' WHERE id = 6",
    "DELETE FROM t WHERE id = 8",
)


pytestmark = pytest.mark.usefixtures("read_again_at_once")


@pytest.mark.parametrize(
    ("way", "identity"),
    cases(
        product(WAYS, IDENTITIES),
        quick=[("catalog ahead", "a hashed key")],
    ),
)
def test_what_the_rules_keep_out_is_stored_nowhere_and_what_they_make_is_exact(
    pipeline: IngestPipeline, way: str, identity: str
) -> None:
    options = dict(RULED)
    if way == "prepared":
        since(pipeline.database, 16, "streaming of small transactions")
        options |= {"streaming": "on", "two_phase": True, "builder": BuilderLimits(body_bytes=1)}
    run(pipeline, *BEFORE, *IDENTITIES[identity], **options)
    for statements in (CHANGES, SHAPES):
        carry(pipeline, statements, way=way, options=options)
    assert shape(pipeline) == (["id", "mail", "cell", "notes", "v", "phone", "email"], [])


EVERY_TYPE = {f"c{number}": kind for number, kind in enumerate(COLUMNS)}


@pytest.mark.parametrize("rule", [mask("gone"), truncate(3), hashed(KEYS[0])], ids=["mask", "truncate", "hash"])
def test_every_type_is_ruled_by_its_text_in_snapshots_and_changes(pipeline: IngestPipeline, rule: ColumnRule) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in EVERY_TYPE.items())
    rows = [
        f"INSERT INTO t VALUES ({number}, {', '.join(values[number % len(values)] for values in COLUMNS.values())})"
        for number in range(5)
    ]
    pipeline.execute(*DEFINITIONS)
    pipeline.execute(
        "CREATE TABLE public.mood_holder (m public.mood)",
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
        *rows[:3],
        "INSERT INTO t (id) VALUES (100)",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    options = under(with_keys(dict.fromkeys(EVERY_TYPE, rule)))
    pipeline.run(**options)
    pipeline.run(*rows[3:], "UPDATE t SET c0 = NULL", "INSERT INTO t (id) VALUES (101)", **options)
    assert_equal(pipeline)
    state = pipeline.table("public.t")
    assert {one.lake.sql for one in state.schemas[1].columns if one.name != "id"} == {"string"}


SPELLED = (
    "bool",
    "int2",
    "int4",
    "int8",
    "oid",
    "text",
    "varchar(20)",
    "char(8)",
    "name",
    "bytea",
    "uuid",
    "json",
    "jsonb",
)


def test_types_that_are_spelled_exactly_are_ruled_in_binary_form_as_well(pipeline: IngestPipeline) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(SPELLED))
    rows = [
        f"INSERT INTO t VALUES ({number}, {', '.join(COLUMNS[kind][number % len(COLUMNS[kind])] for kind in SPELLED)})"
        for number in range(4)
    ]
    pipeline.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, {columns}, f float8)",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    named = {f"c{number}": truncate(4) if number % 2 else hashed(KEYS[0]) for number in range(len(SPELLED))}
    rules = with_keys({**named, "f": mask("-")})
    pipeline.run(**under(rules, binary=True), source=binary(pipeline))
    pipeline.execute(*rows, "UPDATE t SET f = 1.5 WHERE id = 1", "INSERT INTO t (id) VALUES (9)")
    pipeline.run(**under(rules, binary=True), source=binary(pipeline))
    assert_equal(pipeline)


def test_a_type_without_an_exact_text_in_binary_form_is_refused_by_name(pipeline: IngestPipeline) -> None:
    pipeline.execute(
        "CREATE TABLE t (id int PRIMARY KEY, f float8)",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    rules = with_keys({"f": hashed(KEYS[0])})
    examined = run_preflight(binary(pipeline), None, policies=under(rules, binary=True)["policies"])
    found = {one.code: one.object for one in examined.findings}
    assert found["column.rule_binary"] == "public.t.f"
    pipeline.run(**under(rules, binary=True), source=binary(pipeline))
    assert finding(pipeline) == ("quarantined", "column.rule_binary")


@pytest.mark.parametrize("rule", [mask("x"), truncate(3)], ids=["mask", "truncate"])
def test_a_column_of_the_key_may_be_hashed_and_not_masked_or_truncated(
    pipeline: IngestPipeline, rule: ColumnRule
) -> None:
    pipeline.execute("CREATE TABLE t (id text PRIMARY KEY)", "CREATE PUBLICATION {p} FOR TABLE t")
    pipeline.run(**under(with_keys({"id": rule})))
    assert finding(pipeline) == ("quarantined", "column.rule_on_key")


def test_another_key_begins_a_generation_and_equal_values_are_equal_under_one(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    pipeline.execute(
        "CREATE TABLE t (id int PRIMARY KEY, email text)",
        "CREATE TABLE o (id int PRIMARY KEY, customer varchar(40))",
        "INSERT INTO t VALUES (1, 'a@b.example'), (2, 'ä@b.example')",
        "INSERT INTO o VALUES (1, 'ä@b.example'), (2, NULL)",
        "CREATE PUBLICATION {p} FOR TABLE t, o",
    )
    for number, key in enumerate(KEYS):
        policies = Policies(
            tables={
                "public.t": TablePolicy(rules=with_keys({"email": hashed(key)})),
                "public.o": TablePolicy(rules=with_keys({"customer": hashed(key)})),
            }
        )
        pipeline.run(times=2, tables=(), policies=policies)
        assert_equal(pipeline)
        assert [pipeline.table(name).generation for name in ("public.t", "public.o")] == [number + 1] * 2
        emails = {row[1] for row in pipeline.snapshot_rows("public.t")}
        expected = {hmac.new(key, text.encode(), "sha256").hexdigest() for text in ("a@b.example", "ä@b.example")}
        assert emails == expected
        assert {row[1] for row in pipeline.snapshot_rows("public.o")} - {"None"} < emails
        schema = pipeline.table("public.t").schemas[number + 1]
        assert [one.rule and one.rule.key_id for one in schema.columns] == [None, key_id(key)]
        assert canary.in_stored(tmp_path, key.decode()) == []


def test_a_wider_type_that_prints_otherwise_is_read_again_although_it_was_cast(pipeline: IngestPipeline) -> None:
    """The value is the same, and its hash is not."""
    options = under(with_keys({"f": hashed(KEYS[0]), "n": hashed(KEYS[0])}), on_widen="follow")
    pipeline.execute(
        "CREATE TABLE t (id int PRIMARY KEY, f real, n int)",
        "INSERT INTO t VALUES (1, 0.1, 1), (2, NULL, 2)",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    pipeline.run(**options)
    for statement, resyncs_of_it in (("ALTER TABLE t ALTER n TYPE bigint", {}), (FLOAT8, {"schema": 1})):
        pipeline.run(statement, "INSERT INTO t SELECT max(id) + 1, 0.1, 7 FROM t", times=2, **options)
        assert_equal(pipeline)
        assert pipeline.table("public.t").resyncs.counts == resyncs_of_it


FLOAT8 = "ALTER TABLE t ALTER f TYPE double precision"
