"""Tables that cannot be carried exactly: set aside by name while all others go on, and carried
again once what was wrong is fixed.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sluice.manifest.reader import read_entries
from sluice.manifest.values import TableState
from sluice.tables.policies import Policies, TablePolicy
from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline, encoded_in
from tests.support.least_rights import options_as, pipeline_role
from tests.support.source_setup import no_free_slot, since, until
from tools.local.postgres import PostgresServer

EVERYTHING: dict[str, Any] = {"tables": (), "watch_interval_s": 0.2}
"""All that is published is carried; the catalog is looked at often enough for a test."""

PLAIN = ("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
ROOT = (
    "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
    "INSERT INTO t SELECT generate_series(1, 5)",
)
UNLOGGED_LEAF = (
    "CREATE UNLOGGED TABLE high PARTITION OF t FOR VALUES FROM (100) TO (200)",
    "INSERT INTO t SELECT generate_series(101, 103)",
)
KEYED = (
    "CREATE TABLE t (id int PRIMARY KEY, v int, body text)",
    "INSERT INTO t SELECT i, i, 'x' FROM generate_series(1, 5) i",
)

# What is wrong, and what fixes it.
BROKEN: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], int]] = {
    "partition.not_logged": (ROOT, UNLOGGED_LEAF, ("ALTER TABLE high SET LOGGED",), 14),
    "partition.identity": (
        ROOT,
        ("ALTER TABLE low REPLICA IDENTITY FULL",),
        ("ALTER TABLE low REPLICA IDENTITY DEFAULT",),
        14,
    ),
    "publication.operations": (
        KEYED,
        ("ALTER PUBLICATION {p} SET (publish = 'insert')", "UPDATE t SET v = -v", "DELETE FROM t WHERE id = 2"),
        ("ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')",),
        14,
    ),
    "table.identity_not_published": (
        KEYED,
        ("ALTER PUBLICATION {p} SET TABLE t (v), other",),
        ("ALTER PUBLICATION {p} SET TABLE t, other",),
        15,
    ),
    "generated columns of the key": (
        KEYED,
        ("ALTER TABLE t ADD g int GENERATED ALWAYS AS (v) STORED, DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, g)",),
        ("ALTER TABLE t DROP g", "ALTER TABLE t ADD PRIMARY KEY (id)"),
        14,
    ),
    "table.identity_nullable": (
        KEYED,
        (
            "ALTER TABLE t ADD n int",
            "CREATE UNIQUE INDEX tn ON t (n)",
            "ALTER TABLE t ADD CONSTRAINT nn NOT NULL n NOT VALID",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX tn",
            "DELETE FROM t WHERE id = 3",
        ),
        ("UPDATE t SET n = id", "ALTER TABLE t VALIDATE CONSTRAINT nn"),
        18,
    ),
    "table.identity_by_name": (
        KEYED,
        (
            "CREATE TYPE pair AS (n int, r regclass)",
            "CREATE DOMAIN pairs AS pair[]",
            "ALTER TABLE t ADD r pairs",
            "UPDATE t SET r = ARRAY[(id, CASE id WHEN 1 THEN 'other'::regclass ELSE 0::regclass END)::pair]",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (r)",
            "ALTER TABLE other RENAME TO another",
            "UPDATE t SET v = -v",
            "ALTER TABLE another RENAME TO other",
        ),
        ("ALTER TABLE t DROP r", "ALTER TABLE t ADD PRIMARY KEY (id)"),
        14,
    ),
    "table.identity_spelled_twice": (
        KEYED,
        (
            "CREATE EXTENSION seg",
            "ALTER TABLE t ADD r seg",
            "UPDATE t SET r = v::text::seg",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (r)",
        ),
        ("ALTER TABLE t DROP r", "ALTER TABLE t ADD PRIMARY KEY (id)"),
        14,
    ),
    "column.reserved": (KEYED, ('ALTER TABLE t ADD "_Sluice_op" text',), ('ALTER TABLE t DROP "_Sluice_op"',), 14),
    "column.case": (KEYED, ('ALTER TABLE t ADD "V" int',), ('ALTER TABLE t DROP "V"',), 14),
}
LAST = {"table.identity_nullable": 18}
"""The last major in which it can be wrong: from 19 on the server refuses such an index."""
SAYS = {
    "partition.not_logged": "public.high: this partition of public.t is unlogged",
    "partition.identity": "false NULLs",
    "publication.operations": "does not publish every kind of change",
    "table.identity_not_published": "leaves out id",
    "generated columns of the key": "does not send g",
    "table.identity_nullable": "NOT NULL is not validated",
    "table.identity_by_name": "the name of another object",
    "table.identity_spelled_twice": "may have one text",
    "column.reserved": "'_Sluice_op'",
    "column.case": "only by case",
}


def broken(pipeline: IngestPipeline, code: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What makes it so and what fixes it, of tables that are made and published here."""
    before, bad, fix, major = BROKEN[code]
    since(pipeline.database, major, code)
    if code in LAST:
        until(pipeline.database, LAST[code], code)
    pipeline.execute(*PLAIN, *before)
    pipeline.publish("t", "other")
    return bad, fix


def states_of(pipeline: IngestPipeline, table_name: str) -> list[str]:
    """Every state that the manifest ever gave the table, in order."""
    said = (table for entry, _ in read_entries(pipeline.store, after_seq=0) for table in entry.tables)
    return [table.state for table in said if table.state is not None and table.table_name == table_name]


def is_set_aside(table: TableState, says: str) -> bool:
    return table.state == "quarantined" and says in table.reason


@pytest.mark.parametrize("code", cases(BROKEN, quick=["generated columns of the key", "table.identity_nullable"]))
def test_a_condition_that_does_not_hold_keeps_a_table_from_joining_until_it_is_fixed(
    pipeline: IngestPipeline, code: str
) -> None:
    bad, fix = broken(pipeline, code)
    pipeline.run(*bad, **EVERYTHING)
    assert is_set_aside(pipeline.table("public.t"), SAYS[code]), pipeline.table("public.t").reason
    assert set(states_of(pipeline, "t")) == {"quarantined"}, "it was carried for a moment"
    if code != "publication.operations":
        assert pipeline.table("public.other").state == "live"
    pipeline.run(*fix, **EVERYTHING)
    assert pipeline.table("public.t").state == "live", pipeline.table("public.t").reason
    assert pipeline.snapshot_rows("public.t") == pipeline.source_rows("t")


def test_a_table_that_changes_while_its_condition_does_not_hold_stays_set_aside(pipeline: IngestPipeline) -> None:
    before, bad, fix, _ = BROKEN["partition.not_logged"]
    pipeline.execute(*PLAIN, *before, *bad)
    pipeline.publish("t", "other")
    pipeline.run(**EVERYTHING)
    pipeline.run("ALTER TABLE t ADD COLUMN extra int", **EVERYTHING)
    assert set(states_of(pipeline, "t")) == {"quarantined"}, "it was carried for a moment"
    pipeline.run(*fix, **EVERYTHING)
    assert pipeline.snapshot_rows("public.t") == pipeline.source_rows("t")


@pytest.mark.parametrize(
    "code",
    cases(BROKEN, quick=["publication.operations", "table.identity_by_name"]),
)
def test_a_condition_that_ceases_to_hold_takes_a_live_table_out_until_it_is_fixed(
    pipeline: IngestPipeline, code: str
) -> None:
    bad, fix = broken(pipeline, code)
    pipeline.run(**EVERYTHING)
    assert pipeline.table("public.t").state == "live"
    pipeline.run(*bad, **EVERYTHING)
    assert is_set_aside(pipeline.table("public.t"), SAYS[code]), pipeline.table("public.t").reason
    pipeline.run(*fix, **EVERYTHING)
    assert (pipeline.table("public.t").state, pipeline.table("public.t").generation) == ("live", 2)
    assert pipeline.snapshot_rows("public.t") == pipeline.source_rows("t")


_TWINS = {
    "EUC_JP": ("text", "convert_from('\\xadf0', 'EUC_JP')", "convert_from('\\xa2e2', 'EUC_JP')"),
    "EUC_TW": ("text", "convert_from('\\x8ea1a1f0', 'EUC_TW')", "convert_from('\\xa1f0', 'EUC_TW')"),
    "UTF8": ("seg", "'1.2345678'", "'1.2345674'"),
}


@pytest.mark.parametrize("encoding", cases(_TWINS, quick=["EUC_JP", "UTF8"]))
def test_a_key_of_which_two_values_have_one_text_sets_its_table_aside(
    postgres: PostgresServer, tmp_path: Path, encoding: str
) -> None:
    """Two rows of the source would be one in the lake, where a later row would take the place of the first one."""
    kind, one, other = _TWINS[encoding]
    with encoded_in(postgres, tmp_path, encoding) as pipeline:
        pipeline.execute(
            "CREATE EXTENSION seg",
            f"CREATE TABLE t (id {kind} PRIMARY KEY, n int NOT NULL UNIQUE)",
            f"CREATE TABLE whole (v {kind})",
            "ALTER TABLE whole REPLICA IDENTITY FULL",
            f"INSERT INTO t VALUES ({one}, 1), ({other}, 2)",
            f"INSERT INTO whole VALUES ({one}), ({other})",
        )
        pipeline.publish("t", "whole")
        pipeline.run(**EVERYTHING)
        assert is_set_aside(pipeline.table("public.t"), "values of it that differ may have one text")
        assert pipeline.table("public.whole").state == "live"
        pipeline.run("ALTER TABLE t REPLICA IDENTITY USING INDEX t_n_key", **EVERYTHING)
        assert pipeline.table("public.t").state == "live", pipeline.table("public.t").reason
        assert len(pipeline.snapshot_rows("public.t")) == 2


def test_a_publication_without_deletes_on_purpose_is_carried_and_named(pipeline: IngestPipeline) -> None:
    pipeline.execute(*PLAIN, *KEYED)
    pipeline.publish("t", "other")
    pipeline.execute("ALTER PUBLICATION {p} SET (publish = 'insert, update')")
    accepting: dict[str, Any] = {**EVERYTHING, "policies": Policies(TablePolicy(accept_missing="dt"))}
    pipeline.run(**accepting)
    pipeline.run("DELETE FROM t WHERE id = 1", "UPDATE t SET v = -v WHERE id = 2", "TRUNCATE other", **accepting)
    assert [pipeline.table(f"public.{name}").state for name in ("t", "other")] == ["live", "live"]
    assert [(row["_sluice_op"], row["id"]) for row in pipeline.rows("public.t")] == [("u", 2)]
    (problem,) = [one for one in pipeline.reporter().take().verdict.problems if one.code == "publication.operations"]
    assert (problem.severity, problem.count, "delete, truncate" in problem.message) == ("info", 2, True)
    pipeline.run(**EVERYTHING)
    assert is_set_aside(pipeline.table("public.t"), SAYS["publication.operations"]), "it is not accepted any more"


@pytest.fixture
def role(pipeline: IngestPipeline) -> Iterator[str]:
    """A pipeline that connects with few rights, and publishes every table."""
    database = pipeline.database
    database.execute(*PLAIN, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    database.execute(f"CREATE PUBLICATION {database.publication} FOR ALL TABLES")
    with pipeline_role(database) as name:
        database.execute(f"CREATE ROLE {name} LOGIN REPLICATION", f"GRANT SELECT ON other TO {name}")
        pipeline.dsn = options_as(database, name).dsn
        yield name


@pytest.mark.parametrize(
    ("wrong", "says", "fix"),
    [
        pytest.param("SELECT 1", "cannot read it", "GRANT SELECT ON t TO {role}", marks=slow),
        (
            "GRANT SELECT ON t TO {role}; ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            "row level security",
            "ALTER TABLE t DISABLE ROW LEVEL SECURITY",
        ),
    ],
)
def test_a_table_without_the_right_to_read_it_is_set_aside_and_carried_once_it_is_granted(
    pipeline: IngestPipeline, role: str, wrong: str, says: str, fix: str
) -> None:
    pipeline.run(wrong.replace("{role}", role), **EVERYTHING)
    assert is_set_aside(pipeline.table("public.t"), says), pipeline.table("public.t").reason
    assert pipeline.table("public.other").state == "live"
    pipeline.run(fix.replace("{role}", role), **EVERYTHING)
    assert pipeline.table("public.t").state == "live"
    assert pipeline.snapshot_rows("public.t") == pipeline.source_rows("t")


@slow
def test_a_table_that_fails_while_it_is_read_is_set_aside_and_tried_again(ascii_only: IngestPipeline) -> None:
    """Bytes that have no UTF-8 form. Once they are gone no fact of the catalog says so."""
    database = ascii_only.database
    database.execute(
        *PLAIN, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, E'\\xff'), (2, 'x')"
    )
    database.execute(f"CREATE PUBLICATION {database.publication} FOR ALL TABLES")
    ascii_only.run(**EVERYTHING)
    assert is_set_aside(ascii_only.table("public.t"), "22021"), ascii_only.table("public.t").reason
    assert ascii_only.table("public.other").state == "live"
    database.execute("DELETE FROM t WHERE id = 1")
    ascii_only.run(**EVERYTHING)
    assert ascii_only.table("public.t").state == "live"
    assert ascii_only.snapshot_rows("public.t") == {("2", "x")}


@slow
def test_without_a_free_slot_snapshots_wait_and_the_stream_goes_on(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute(*PLAIN)
    pipeline.run(f"CREATE PUBLICATION {database.publication} FOR ALL TABLES", **EVERYTHING)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    with ExitStack() as taken:
        taken.enter_context(no_free_slot(database))
        with pipeline.running(**EVERYTHING) as running:
            running.wait_until(lambda: any("replication slot" in one.message for one in running.ingest.errors.recent()))
            database.execute("INSERT INTO other VALUES (7)")
            running.wait_until(lambda: [row["id"] for row in pipeline.rows("public.other")] == [7])
            assert pipeline.table("public.t").state == "snapshot"
            taken.close()
            running.wait_until(lambda: pipeline.table("public.t").state == "live")
    assert pipeline.snapshot_rows("public.t") == pipeline.source_rows("t")


@slow
def test_a_table_without_a_connection_for_its_snapshot_says_what_it_waits_for(
    pipeline: IngestPipeline, role: str
) -> None:
    database = pipeline.database
    database.execute(f"GRANT SELECT ON t TO {role}", f"ALTER ROLE {role} CONNECTION LIMIT 3")

    def reason() -> str:
        return next((table.reason for table in pipeline.state().tables.values() if table.table_name == "t"), "")

    with pipeline.running(**EVERYTHING) as running:
        running.wait_until(lambda: "limit of the role" in reason())
        assert pipeline.table("public.t").state == "snapshot"
        database.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
        running.wait_until(lambda: pipeline.table("public.t").state == "live")
    assert reason() == ""


def test_a_name_that_is_longer_in_utf8_than_on_its_server_is_carried_or_set_aside(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    long, longest = "\u00fc" * 40, "\u00fc" * 63
    with encoded_in(postgres, tmp_path, "LATIN1") as latin:
        latin.execute(
            *PLAIN,
            f'CREATE TABLE "{long}" (id int PRIMARY KEY, "{longest}" text)',
            f'CREATE TABLE "{longest}" (id int PRIMARY KEY)',
            f"INSERT INTO \"{long}\" VALUES (1, 'x')",
            "CREATE PUBLICATION {p} FOR ALL TABLES",
        )
        latin.run(**EVERYTHING)
        assert latin.table(f"public.{long}").state == "live"
        assert latin.snapshot_rows(f"public.{long}") == {("1", "x")}
        assert is_set_aside(latin.table(f"public.{longest}"), "longer than 255 bytes")
        assert latin.table("public.other").state == "live"
