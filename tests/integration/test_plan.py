"""What `plan` says will become of a table is what becomes of it, and a contract of stop holds."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.plan import Planned, exit_code, look
from sluice.errors import SourceError, SourceRefused, UsageError
from sluice.settings import load
from sluice.tables.policies import Policies, TablePolicy
from tests.integration.test_key_changes import STORIES as KEY_STORIES
from tests.integration.test_renames import STORIES as RENAMES
from tests.integration.test_renames import TWO
from tests.integration.test_resyncs import PARTED, PLAIN
from tests.integration.test_resyncs import STORIES as CHANGES
from tests.support import commands
from tests.support.catalog_stories import RESYNC, set_up
from tests.support.extent import cases
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


def configured(pipeline: IngestPipeline, folder: Path, *, more: str = "") -> Path:
    """The configuration file of the pipeline."""
    database, file = pipeline.database, folder / "sluice.yaml"
    file.write_text(
        f"version: 1\npipeline: test\nsource: {{dsn: '{database.dsn}', slot: {database.slot}, publication: "
        f"{database.publication}, allow_insecure: true}}\nspool: {{uri: '{(folder / 'spool').as_uri()}'}}\n"
        f"lake: {{uri: '{(folder / 'lake').as_uri()}'{more}}}\n"
    )
    return file


def planned(pipeline: IngestPipeline, folder: Path, *, more: str = "") -> tuple[Planned, int]:
    """The table of which most would become, and how `plan` would end."""
    found = look(load(str(configured(pipeline, folder, more=more)), environ={}).settings)
    worst = max(found, key=lambda one: ["nothing", "followed", "snapshot", "stop"].index(one.preview.effect))
    return worst, exit_code(found)


@pytest.mark.parametrize("name", STORIES)
def test_what_is_planned_is_what_happens(pipeline: IngestPipeline, tmp_path: Path, name: str) -> None:
    before, after, (effect, cause, code) = STORIES[name]
    set_up(pipeline, before)
    pipeline.run(**RESYNC)
    entries = pipeline.state().seq
    set_up(pipeline, after)
    table, ended = planned(pipeline, tmp_path)
    assert (table.preview.effect, table.preview.cause or None, ended) == (effect, cause, code)
    assert pipeline.state().seq == entries
    for _ in range(2):
        pipeline.run(**RESYNC)
    states = pipeline.state().tables.values()
    read_again = sum(sum(state.resyncs.counts.values()) for state in states)
    assert read_again == (effect == "snapshot")
    assert {state.state for state in states} == {"detached" if effect == "stop" else "live"}
    assert planned(pipeline, tmp_path)[1] == 0


@pytest.mark.parametrize(("on_rename", "expected"), [("keep", ("nothing", 0)), ("move", ("snapshot", 13))])
def test_a_plan_shows_that_another_template_moves_lake_tables(
    pipeline: IngestPipeline, tmp_path: Path, on_rename: str, expected: tuple[str, int]
) -> None:
    set_up(pipeline, PLAIN)
    pipeline.run(**RESYNC)
    table, ended = planned(pipeline, tmp_path, more=f", path: '{{schema}}_{{target}}', on_rename: {on_rename}")
    assert (table.preview.effect, ended) == expected


def test_a_plan_says_how_much_a_snapshot_would_read(pipeline: IngestPipeline, tmp_path: Path) -> None:
    set_up(pipeline, PLAIN)
    pipeline.run(**RESYNC)
    set_up(
        pipeline,
        (
            "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(10, 5009) i",
            "ALTER TABLE t ALTER v TYPE text USING v || '!'",
            "ANALYZE t",
        ),
    )
    table, _ = planned(pipeline, tmp_path)
    assert table.rows == 5002
    assert table.bytes is not None
    assert 500_000 < table.bytes < 2_000_000
    assert planned(pipeline, tmp_path, more=", on_change: stop")[0].preview.effect == "stop"
    command = [sys.executable, "-m", "sluice", "plan", "-c", str(configured(pipeline, tmp_path)), "--json"]
    ended = commands.ended(*command)
    (shown,) = json.loads(ended.stdout)["tables"]
    # A vacuum of the server's own may have cut off the end of the table since.
    assert 500_000 < shown["bytes"] < 2_000_000
    assert (ended.returncode, {**shown, "bytes": 0}) == (13, {**table.to_json(), "bytes": 0})


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t ADD COLUMN w int",
        "ALTER TABLE t ALTER v TYPE int USING length(v)",
        "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id, v); COMMIT",
    ],
)
@pytest.mark.parametrize("row", cases(["", "INSERT INTO t (id, v) SELECT 3, v FROM t WHERE id = 1"], quick=[""]))
def test_a_table_whose_contract_is_stop_stops_at_a_change_of_its_columns_until_it_is_accepted(
    pipeline: IngestPipeline, tmp_path: Path, change: str, row: str
) -> None:
    set_up(pipeline, PLAIN)
    pipeline.run(**STOP)
    set_up(pipeline, (change, *([row] if row else [])))
    assert planned(pipeline, tmp_path, more=", contract: stop")[1] == 14
    for _ in range(2):
        pipeline.run(**STOP)
    table = pipeline.table("public.t")
    assert (table.state, table.cause, table.resync_at, table.resyncs.counts) == ("stale", "contract", "", {})
    assert "its contract is stop" in table.reason


def test_a_contract_of_stop_lets_rows_change_as_they_like(pipeline: IngestPipeline) -> None:
    set_up(pipeline, PLAIN)
    pipeline.run(**STOP)
    set_up(pipeline, ("UPDATE t SET v = 'u'", "ALTER TABLE t ALTER v TYPE text USING v || '!'"))
    pipeline.run(**STOP)
    assert (pipeline.table("public.t").state, pipeline.table("public.t").resyncs.counts) == ("live", {"rewrite": 1})


def tried(pipeline: IngestPipeline, folder: Path, statement: str, **options: Any) -> list[tuple[str, str, str]]:
    """What `plan --sql` says."""
    settings = load(str(configured(pipeline, folder)), environ={}).settings
    found = look(settings, statement=statement, **options)
    return [(one.table, one.preview.effect, one.preview.cause) for one in found]


TRIED = {
    "ALTER TABLE t ADD COLUMN w int DEFAULT 3": [("public.t", "followed", "")],
    "/* a; comment */ -- and another\n alter table t rename to later": [("public.later", "followed", "")],
    "ALTER TABLE t ALTER v TYPE int USING length(v)": [("public.t", "snapshot", "rewrite")],
    "ALTER TABLE t DROP CONSTRAINT t_pkey": [("public.t", "followed", "")],
    "DROP TABLE t": [("public.t", "stop", "")],
    "ALTER TABLE t SET (fillfactor = 50)": [],
}


def test_a_statement_is_tried_out_and_leaves_nothing_behind(pipeline: IngestPipeline, tmp_path: Path) -> None:
    set_up(pipeline, PLAIN)
    pipeline.run(**RESYNC)
    assert {statement: tried(pipeline, tmp_path, statement) for statement in TRIED} == TRIED
    assert planned(pipeline, tmp_path)[0].preview.effect == "nothing"
    assert pipeline.source_rows("t") == {("1", "a"), ("2", "b")}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM t", "only a statement that alters or drops"),
        ("TRUNCATE t", "only a statement that alters or drops"),
        ("WITH d AS (DELETE FROM t) ALTER TABLE t ADD w int", "only a statement that alters or drops"),
        ("ALTER TABLE t ADD w int; COMMIT", "multiple commands"),
        ("ALTER TABLE t ADD w int; DELETE FROM t", "multiple commands"),
        ("ALTER TABLE aside ADD w int", "public.aside, which the publication does not carry"),
        ("DROP TABLE t, aside", "public.aside, which the publication does not carry"),
        ("ALTER TABLE t DROP COLUMN missing", "does not exist"),
    ],
)
def test_any_other_statement_is_refused(pipeline: IngestPipeline, tmp_path: Path, statement: str, said: str) -> None:
    set_up(pipeline, (*PLAIN, "CREATE TABLE aside (id int PRIMARY KEY)"))
    pipeline.run(**RESYNC)
    with pytest.raises((UsageError, SourceError), match=said):
        tried(pipeline, tmp_path, statement)
    assert pipeline.source_rows("t") == {("1", "a"), ("2", "b")}
    assert planned(pipeline, tmp_path)[0].preview.effect == "nothing"


def test_a_statement_that_waits_or_works_too_long_is_cancelled(pipeline: IngestPipeline, tmp_path: Path) -> None:
    set_up(pipeline, PLAIN)
    pipeline.run(**RESYNC)
    with pytest.raises(SourceRefused, match=r"longer than 0\.2 s"):
        tried(pipeline, tmp_path, "ALTER TABLE t ALTER v TYPE text USING v || pg_sleep(5)::text", seconds=0.2)
    with pipeline.database.connect() as reader, reader.transaction():
        reader.execute("SELECT FROM t")
        with pytest.raises(SourceRefused, match="waited 1 s for its lock"):
            tried(pipeline, tmp_path, "ALTER TABLE t ADD w int", seconds=30)
    assert tried(pipeline, tmp_path, "ALTER TABLE t ADD w int") == [("public.t", "followed", "")]


def test_a_table_with_partitions_may_be_tried_out_under_its_root(pipeline: IngestPipeline, tmp_path: Path) -> None:
    set_up(pipeline, PARTED)
    pipeline.run(**RESYNC)
    assert tried(pipeline, tmp_path, "ALTER TABLE r ADD w int") == [("public.r", "followed", "")]
    assert tried(pipeline, tmp_path, "ALTER TABLE r DETACH PARTITION r1") == [("public.r", "snapshot", "partition")]


@pytest.mark.parametrize("table", ["t", "root"])
def test_a_table_that_the_server_has_not_counted_is_not_said_to_have_no_rows(
    pipeline: IngestPipeline, tmp_path: Path, table: str
) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) WITH (autovacuum_enabled = false)",
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root DEFAULT WITH (autovacuum_enabled = false)",
        f"INSERT INTO {table} SELECT generate_series(1, 1000)",
        f"CREATE PUBLICATION {database.publication} FOR TABLE {table} WITH (publish_via_partition_root = true)",
    )
    found, code = planned(pipeline, tmp_path)
    assert (found.preview.effect, found.rows, found.bytes, code) == ("snapshot", None, None, 13)
    command = [sys.executable, "-m", "sluice", "plan", "-c", str(configured(pipeline, tmp_path))]
    assert commands.ended(*command).stdout.count("unknown") == 2
    database.execute(f"ANALYZE {table}")
    assert planned(pipeline, tmp_path)[0].rows == 1000
