"""What `plan` says will become of a table is what becomes of it, and a contract of stop holds."""

import json
import time
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sluice.cli.plan import Planned, _chosen, exit_code, look
from sluice.errors import SourceError, SourceRefused, SourceUnavailable, UsageError
from sluice.operate import dry_run
from sluice.settings import load
from sluice.tables.policies import Policies, TablePolicy
from sluice_spark.read.column_defaults import missing_value
from tests.integration.test_catalog_unseen_changes import PARTED, PLAIN
from tests.integration.test_key_changes import STORIES as KEY_STORIES
from tests.integration.test_renames import STORIES as RENAMES
from tests.integration.test_renames import TWO
from tests.integration.test_resyncs import STORIES as CHANGES
from tests.support.catalog_stories import RESYNC
from tests.support.command_line import Sluice
from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline

STOP: dict[str, Any] = {"tables": (), "policies": Policies(TablePolicy(contract="stop"))}
STORIES = {
    "rewrite": (*CHANGES["values_rewritten_under_the_same_type"][:2], ("snapshot", "rewrite", 13)),
    "partition": (*CHANGES["leaf_truncated"][:2], ("snapshot", "partition", 13)),
    "key": (*KEY_STORIES["replaced"][:2], ("followed", None, 0)),
    "key under full": (*KEY_STORIES["primary_key_replaced_under_full"][:2], ("snapshot", "key", 13)),
    "identity": (*KEY_STORIES["full_given_to_a_table_with_a_key"][:2], ("followed", None, 0)),
    "renamed": (TWO, RENAMES["renamed_in_silence"][0], ("followed", None, 0)),
    "column": (PLAIN, ("ALTER TABLE t ADD COLUMN w int DEFAULT 3",), ("followed", None, 0)),
    "nothing": (PLAIN, ("INSERT INTO t VALUES (3, 'c')", "ANALYZE t"), ("nothing", None, 0)),
    "left": (PLAIN, ("ALTER PUBLICATION {p} DROP TABLE t",), ("stop", None, 14)),
}


def planned(pipeline: IngestPipeline, *, more: str = "") -> tuple[Planned, int]:
    """The table of which most would become, and how `plan` would end."""
    found = look(pipeline.settings(more))
    worst = max(found, key=lambda one: ["nothing", "followed", "snapshot", "stop"].index(one.preview.effect))
    return worst, exit_code(found)


@pytest.mark.parametrize("name", cases(STORIES, quick=["rewrite", "key", "left"]))
def test_what_is_planned_is_what_happens(pipeline: IngestPipeline, name: str) -> None:
    before, after, (effect, cause, code) = STORIES[name]
    pipeline.run(*before, **RESYNC)
    entries = pipeline.state().seq
    pipeline.execute(*after)
    table, ended = planned(pipeline)
    assert (table.preview.effect, table.preview.cause or None, ended) == (effect, cause, code)
    assert pipeline.state().seq == entries
    pipeline.run(times=2, **RESYNC)
    states = pipeline.state().tables.values()
    read_again = sum(sum(state.resyncs.counts.values()) for state in states)
    assert read_again == (effect == "snapshot")
    assert pipeline.states() == {"detached" if effect == "stop" else "live"}
    assert planned(pipeline)[1] == 0


@pytest.mark.parametrize(
    ("on_rename", "expected"), [pytest.param("keep", ("nothing", 0), marks=slow), ("move", ("snapshot", 13))]
)
def test_a_plan_shows_that_another_template_moves_lake_tables(
    pipeline: IngestPipeline, on_rename: str, expected: tuple[str, int]
) -> None:
    pipeline.run(*PLAIN, **RESYNC)
    table, ended = planned(pipeline, more=f", path: '{{schema}}_{{target}}', on_rename: {on_rename}")
    assert (table.preview.effect, ended) == expected


def test_a_plan_says_how_much_a_snapshot_would_read(pipeline: IngestPipeline, command: Sluice) -> None:
    pipeline.run(*PLAIN, **RESYNC)
    pipeline.execute(
        "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(10, 5009) i",
        "ALTER TABLE t ALTER v TYPE text USING v || '!'",
        "ANALYZE t",
    )
    table, _ = planned(pipeline)
    assert table.rows == 5002
    assert table.bytes is not None
    assert 500_000 < table.bytes < 2_000_000
    assert planned(pipeline, more=", on_change: stop")[0].preview.effect == "stop"
    ended = command("plan", "-c", str(pipeline.configured()), "--json")
    (shown,) = json.loads(ended.stdout)["tables"]
    # A vacuum of the server's own may have cut off the end of the table since.
    assert 500_000 < shown["bytes"] < 2_000_000
    assert (ended.returncode, {**shown, "bytes": 0}) == (13, {**table.to_json(), "bytes": 0})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("ALTER TABLE t ADD COLUMN w int", marks=slow),
        "ALTER TABLE t ALTER v TYPE int USING length(v)",
        pytest.param(
            "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id, v); COMMIT", marks=slow
        ),
    ],
)
@pytest.mark.parametrize("row", cases(["", "INSERT INTO t (id, v) SELECT 3, v FROM t WHERE id = 1"], quick=[""]))
def test_a_table_whose_contract_is_stop_stops_at_a_change_of_its_columns_until_it_is_accepted(
    pipeline: IngestPipeline, change: str, row: str
) -> None:
    pipeline.run(*PLAIN, **STOP)
    pipeline.execute(change, *([row] if row else []))
    assert planned(pipeline, more=", contract: stop")[1] == 14
    pipeline.run(times=2, **STOP)
    table = pipeline.table("public.t")
    assert (table.state, table.cause, table.resync_at, table.resyncs.counts) == ("stale", "contract", "", {})
    assert "its contract is stop" in table.reason


@slow
def test_a_contract_of_stop_lets_rows_change_as_they_like(pipeline: IngestPipeline) -> None:
    pipeline.run(*PLAIN, **STOP)
    pipeline.run("UPDATE t SET v = 'u'", "ALTER TABLE t ALTER v TYPE text USING v || '!'", **STOP)
    assert (pipeline.table("public.t").state, pipeline.table("public.t").resyncs.counts) == ("live", {"rewrite": 1})


def tried(pipeline: IngestPipeline, statement: str, **options: Any) -> list[tuple[str, str, str]]:
    """What `plan --sql` says."""
    found = look(pipeline.settings(), statement=statement, **options)
    return [(one.table, one.preview.effect, one.preview.cause) for one in found]


TRIED = {
    "ALTER TABLE t ADD COLUMN w int DEFAULT 3": [("public.t", "followed", "")],
    "/* a; comment */ -- and another\n alter table t rename to later": [("public.later", "followed", "")],
    "ALTER TABLE t ALTER v TYPE int USING length(v)": [("public.t", "snapshot", "rewrite")],
    "ALTER TABLE t DROP CONSTRAINT t_pkey": [("public.t", "followed", "")],
    "DROP TABLE t": [("public.t", "stop", "")],
    "ALTER TABLE t SET (fillfactor = 50)": [],
}


def test_a_statement_is_tried_out_and_leaves_nothing_behind(pipeline: IngestPipeline) -> None:
    pipeline.run(*PLAIN, **RESYNC)
    assert {statement: tried(pipeline, statement) for statement in TRIED} == TRIED
    assert planned(pipeline)[0].preview.effect == "nothing"
    assert pipeline.source_rows("t") == {("1", "a"), ("2", "b")}


REFUSED = {
    "DELETE FROM t": "only a statement that alters or drops",
    "TRUNCATE t": "only a statement that alters or drops",
    "WITH d AS (DELETE FROM t) ALTER TABLE t ADD w int": "only a statement that alters or drops",
    "ALTER TABLE t ADD w int; COMMIT": "multiple commands",
    "ALTER TABLE t ADD w int; DELETE FROM t": "multiple commands",
    "ALTER TABLE aside ADD w int": "public.aside, which the publication does not carry",
    "DROP TABLE t, aside": "public.aside, which the publication does not carry",
    "ALTER TABLE t DROP COLUMN missing": "does not exist",
}


def test_any_other_statement_is_refused(pipeline: IngestPipeline) -> None:
    pipeline.run(*PLAIN, "CREATE TABLE aside (id int PRIMARY KEY)", **RESYNC)
    for statement, said in REFUSED.items():
        with pytest.raises((UsageError, SourceError), match=said):
            tried(pipeline, statement)
        assert pipeline.source_rows("t") == {("1", "a"), ("2", "b")}, statement
        assert planned(pipeline)[0].preview.effect == "nothing", statement


def test_a_statement_that_waits_or_works_too_long_is_cancelled(pipeline: IngestPipeline) -> None:
    pipeline.run(*PLAIN, **RESYNC)
    with pytest.raises(SourceRefused, match=r"longer than 0\.2 s"):
        tried(pipeline, "ALTER TABLE t ALTER v TYPE text USING v || pg_sleep(5)::text", seconds=0.2)
    with pipeline.database.connect() as reader, reader.transaction():
        reader.execute("SELECT FROM t")
        with pytest.raises(SourceRefused, match="waited 1 s for its lock"):
            tried(pipeline, "ALTER TABLE t ADD w int", seconds=30)
    assert tried(pipeline, "ALTER TABLE t ADD w int") == [("public.t", "followed", "")]


def test_a_table_with_partitions_may_be_tried_out_under_its_root(pipeline: IngestPipeline) -> None:
    pipeline.run(*PARTED, **RESYNC)
    assert tried(pipeline, "ALTER TABLE r ADD w int") == [("public.r", "followed", "")]
    assert tried(pipeline, "ALTER TABLE r DETACH PARTITION r1") == [("public.r", "snapshot", "partition")]


@pytest.mark.parametrize("table", ["t", "root"])
def test_a_table_that_the_server_has_not_counted_is_not_said_to_have_no_rows(
    pipeline: IngestPipeline, command: Sluice, table: str
) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) WITH (autovacuum_enabled = false)",
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root DEFAULT WITH (autovacuum_enabled = false)",
        f"INSERT INTO {table} SELECT generate_series(1, 1000)",
        f"CREATE PUBLICATION {database.publication} FOR TABLE {table} WITH (publish_via_partition_root = true)",
    )
    found, code = planned(pipeline)
    assert (found.preview.effect, found.rows, found.bytes, code) == ("snapshot", None, None, 13)
    assert command("plan", "-c", str(pipeline.configured())).stdout.count("unknown") == 2
    database.execute(f"ANALYZE {table}")
    assert planned(pipeline)[0].rows == 1000


WRONG = {
    "two targets at one path": ("{targets: [{kind: mirror}, {kind: history, name: other}]}", "would both be at"),
    "a mask on the key": ('{columns: {id: {mask: "*"}}}', "different rows would be one"),
    "a rule of no column": ("{columns: {vv: exclude}}", "never had"),
    "a tracked column that is none": ("{targets: [{kind: history, track: [vv]}]}", "did you mean v?"),
    "a history without a key": ("{targets: [{kind: history}]}", "needs a key"),
    "soft deletes without a key": ("{targets: [{kind: mirror, deletes: soft}]}", "needs a key"),
    "partitions by text": ("{partition_by: [v]}", "column 'v' is string"),
}
"""What is configured for the table `t`, and what `plan` says of it."""


QUICK = [("a history without a key", False), ("two targets at one path", True), ("a rule of no column", True)]


def changed(pipeline: IngestPipeline, table: str) -> Path:
    file = pipeline.configured()
    tables = f"tables: {{public.t: {table}}}\n"
    file.write_text(file.read_text().replace("source: {", "source: {tables: ['public.*'], ") + tables)
    return file


@pytest.mark.parametrize(("name", "new"), cases(product(WRONG, [True, False]), quick=QUICK))
def test_what_a_configuration_would_stop_is_said_before_the_publication_is_there_too(
    pipeline: IngestPipeline, name: str, new: bool
) -> None:
    table, said = WRONG[name]
    statements = PLAIN[:-1] if new else PLAIN
    if "without a key" in name:
        statements = (*statements, "ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t REPLICA IDENTITY FULL")
    pipeline.execute(*statements, "CREATE TABLE other (id int PRIMARY KEY)")
    if not new:
        pipeline.run("ALTER PUBLICATION {p} ADD TABLE other", **RESYNC)
    found = look(load(str(changed(pipeline, table)), environ={}).settings)
    stopped = [one for one in found if one.preview.effect == "stop"]
    assert {one.table for one in stopped} <= {"public.t", "public.other"}
    assert any(said in one.preview.why for one in stopped), found
    assert exit_code(found) == 14


def test_settings_of_a_table_that_is_not_there_are_found_with_the_nearest_name(
    pipeline: IngestPipeline, command: Sluice
) -> None:
    pipeline.execute(*PLAIN)
    file = changed(pipeline, "{targets: [{kind: history}]}, public.tt: {freshness: 5s}, other.name: {}")
    done = command("check", "--json", "-c", str(file))
    found = [one for one in json.loads(done.stdout)["findings"] if one["code"] == "table.settings_unmatched"]
    assert [(one["severity"], one["object"]) for one in found] == [("warning", "public.tt"), ("warning", "other.name")]
    assert "did you mean public.t?" in str(found[0])


def test_all_that_is_planned_of_a_table_is_shown_when_it_is_named(pipeline: IngestPipeline) -> None:
    pipeline.run(*PLAIN, **RESYNC)
    file = changed(pipeline, "{targets: [{kind: history, track: [vv]}], cluster_by: [v, flag]}")
    pipeline.execute("ALTER TABLE t ADD flag boolean", "ALTER TABLE t ALTER v TYPE int USING length(v)")
    found = look(load(str(file), environ={}).settings)
    assert {one.preview.effect for one in found} == {"snapshot", "stop", "followed"}
    assert _chosen(found, ("public.t",)) == found


def test_of_what_is_tried_out_only_functions_leave_something_behind_as_the_help_says(pipeline: IngestPipeline) -> None:
    pipeline.run(*PLAIN, "CREATE SEQUENCE numbers", **RESYNC)
    tried(pipeline, "ALTER TABLE t ADD k bigint DEFAULT nextval('numbers')")
    assert pipeline.database.all("SELECT is_called FROM numbers") == [(True,)]


def test_a_statement_that_locks_a_table_which_is_not_published_is_refused(pipeline: IngestPipeline) -> None:
    pipeline.execute(
        *PLAIN, "CREATE TABLE aside (id int PRIMARY KEY)", "INSERT INTO aside SELECT generate_series(1, 9)"
    )
    pipeline.run(**RESYNC)
    with pytest.raises(UsageError, match="aside"):
        tried(pipeline, "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES aside")


def test_what_is_read_while_the_locks_are_held_is_bounded(
    pipeline: IngestPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "READ_SECONDS", 0.1)
    pipeline.execute(*PLAIN)
    with pipeline.database.connect() as connection:
        oids = [oid for (oid,) in connection.execute("SELECT 't'::regclass::oid::int8").fetchall()]
        statement = "ALTER TABLE t ADD COLUMN w int"
        with (
            pytest.raises(SourceUnavailable, match="statement timeout"),
            dry_run.rolled_back(connection, statement, published=oids, seconds=2.0),
        ):
            connection.execute("SELECT pg_sleep(20)")
        assert connection.execute("SHOW statement_timeout").fetchall() == [("0",)]


def test_a_command_that_is_suspended_while_it_holds_locks_keeps_nobody_waiting(
    pipeline: IngestPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "IDLE_SECONDS", 0.2)
    is_free = False
    pipeline.execute(*PLAIN)
    with pipeline.database.connect() as connection:
        oids = [oid for (oid,) in connection.execute("SELECT 't'::regclass::oid::int8").fetchall()]
        with (
            suppress(SourceError, psycopg.Error),
            dry_run.rolled_back(connection, "ALTER TABLE t ADD COLUMN w int", published=oids, seconds=2.0),
        ):
            time.sleep(0.8)
            pipeline.database.transact("LOCK TABLE t IN ACCESS EXCLUSIVE MODE NOWAIT")
            is_free = True
        assert is_free


STATEMENTS = {
    "key_wider": "ALTER TABLE t ALTER id TYPE bigint",
    "volatile_default": "ALTER TABLE t ADD w float8 DEFAULT random()",
    "array_default": "ALTER TABLE t ADD w date[] DEFAULT ARRAY['2024-01-01', NULL, 'infinity']::date[]",
    "key_again": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
}


@pytest.mark.usefixtures("read_again_at_once")
@pytest.mark.parametrize(
    ("name", "given"),
    cases(
        product(STATEMENTS, ["evolve", "loose"]),
        quick=[("volatile_default", "evolve"), ("key_wider", "loose")],
    ),
)
def test_what_is_said_is_what_happens(pipeline: IngestPipeline, name: str, given: str) -> None:
    loose = given == "loose"
    policy = TablePolicy(on_widen="follow", contract="ignore_new") if loose else TablePolicy()
    options: dict[str, Any] = {"tables": (), "policies": Policies(policy)}
    pipeline.run(*PLAIN, **options)
    statement = STATEMENTS[name]
    more = ", on_widen: follow, contract: ignore_new" if loose else ""
    settings = pipeline.settings(more)
    said = {one.table: (one.preview.effect, one.preview.cause) for one in look(settings, statement=statement)}
    assert not [one for one in look(settings) if one.preview.effect != "nothing"]
    pipeline.run(statement, times=2, **options)
    (table,) = pipeline.state().tables.values()
    ((effect, cause),) = said.values()
    assert (table.state, list(table.resyncs.counts)) == ("live", [cause] if effect == "snapshot" else [])
    for column in table.schemas[table.schema_version].carried.columns:
        if effect == "followed":
            missing_value(column)  # raises what makes the applier call the table stale
