"""One selection: what `source.tables` asks for is the same to `check`, to the SQL that it prints, to `setup`,
`plan` and to a running ingest.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.findings import Finding
from sluice.operate.check.preflight import run_preflight
from tests.support.command_line import Sluice
from tests.support.commands import assert_ended
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.source_setup import options_of
from tests.support.sources import Database
from tests.support.surfaces import Pipe

TABLES = ("a", "b", '"Logs"', '"x*"')
PATTERNS = {
    "all": ("public.*",),
    "all but one": ("public.*", "!public.b"),
    "all but a pattern": ("public.*", "!*.[lL]ogs", "!public.x*"),
    "one by name": ("public.a",),
    "one by an escaped name": ("public.x[*]",),
    "nothing but what is left out": ("!public.b",),
    "named and left out": ("public.a", "public.b", "!public.b"),
    "none": (),
}


def make(database: Database) -> None:
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in TABLES))


def publish(database: Database, *tables: str) -> None:
    database.execute(f"CREATE PUBLICATION {{p}} FOR TABLE {', '.join(tables)}")


def checked(pipe: Pipe) -> tuple[int, list[dict[str, Any]]]:
    """How `check` ends, and what it finds of the publication and its tables."""
    ended = pipe("check", "--json")
    found = json.loads(ended.stdout)["findings"]
    return ended.returncode, [one for one in found if one["code"].startswith(("publication.", "table.", "tables."))]


def findings(database: Database, *patterns: str) -> dict[str, Finding]:
    return {one.code: one for one in run_preflight(options_of(database), patterns).findings}


@pytest.mark.parametrize("name", PATTERNS)
def test_what_check_would_carry_is_what_ingest_carries(pipeline: IngestPipeline, name: str) -> None:
    patterns, database = PATTERNS[name], pipeline.database
    make(database)
    publish(database, *TABLES)
    examined = run_preflight(options_of(database), patterns).tables
    pipeline.run(tables=patterns)
    carried = {(state.schema_name, state.table_name) for state in pipeline.state().tables.values()}
    assert carried
    assert set(examined or ()) == carried


@slow
def test_the_publication_that_check_proposes_leaves_out_what_is_left_out(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    make(database)
    pipe = Pipe(database, tmp_path, tables='["public.*", "!public.Logs", "!public.x[*]"]', command=command)
    code, (found,) = checked(pipe)
    assert (code, found["code"], found["severity"]) == (0, "publication.missing", "info")
    assert 'FOR TABLE ONLY "public"."a", ONLY "public"."b" WITH' in found["fix_sql"]
    database.execute(found["fix_sql"])
    assert checked(pipe) == (0, [])
    assert pipe("run", "--until-caught-up").returncode == 0
    assert checked(pipe) == (0, [])


def test_with_patterns_that_only_leave_out_everything_else_is_examined(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    make(database)
    database.execute("CREATE TABLE bare (id int)", "CREATE TABLE also (id int)")
    publish(database, *TABLES, "bare", "also")
    code, found = checked(Pipe(database, tmp_path, tables='["!public.also"]', command=command))
    assert (code, [(one["code"], one["object"]) for one in found]) == (3, [("table.no_identity", "public.bare")])


@slow
def test_a_table_that_was_taken_out_is_no_reason_against_the_pipeline(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    """Whether a pattern selects it or `source.tables` has its very name."""
    make(database)
    publish(database, *TABLES)
    for place, tables in enumerate(('["public.*"]', '["public.a", "public.b"]')):
        (tmp_path / str(place)).mkdir()
        pipe = Pipe(database, tmp_path / str(place), tables=tables, command=command)
        assert pipe("run", "--until-caught-up").returncode == 0
        assert pipe("tables", "remove", "--apply", "public.b").returncode == 0
        assert pipe("run", "--until-caught-up").returncode == 0
        sql = tmp_path / "fix.sql"
        code, found = checked(pipe)
        expected = [("publication.lacks_tables", "info", "")]
        assert (code, [(one["code"], one["severity"], one["fix_sql"]) for one in found]) == (0, expected)
        assert pipe("check", "--sql-out", str(sql)).returncode == 0
        assert "ADD TABLE" not in sql.read_text(encoding="utf-8")
        database.execute(
            "ALTER PUBLICATION {p} ADD TABLE b",
            f"SELECT pg_drop_replication_slot('{database.slot}')",
        )


def test_a_table_that_only_a_pattern_selects_may_stay_unpublished(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    """To `check` and to the first run alike; one that is named must be published, to both."""
    make(database)
    publish(database, "a", "b")
    (tmp_path / "named").mkdir()
    named = Pipe(database, tmp_path / "named", tables='["public.a", "public.Logs"]', command=command)
    code, (found,) = checked(named)
    assert (code, found["severity"]) == (3, "critical")
    assert found["fix_sql"].endswith('ADD TABLE "public"."Logs";')
    assert_ended(named("run", "--until-caught-up"), 5, "public.Logs")
    pipe = Pipe(database, tmp_path, command=command)
    code, (found,) = checked(pipe)
    assert (code, found["severity"], "public.Logs, public.x*" in found["seen"]) == (0, "info", True)
    assert pipe("run", "--until-caught-up").returncode == 0
    assert {table["table"] for table in json.loads(pipe("tables", "--json").stdout)["tables"]} == {"a", "b"}


@slow
def test_a_renamed_table_is_examined_under_the_name_by_which_it_is_carried(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    make(database)
    publish(database, *TABLES)
    pipe = Pipe(database, tmp_path, tables='["public.a"]', command=command)
    assert pipe("run", "--until-caught-up").returncode == 0
    database.execute("ALTER TABLE a RENAME TO renamed", "ALTER TABLE renamed REPLICA IDENTITY NOTHING")
    code, found = checked(pipe)
    assert (code, [(one["code"], one["object"]) for one in found]) == (3, [("table.no_identity", "public.renamed")])
    database.execute("ALTER TABLE renamed REPLICA IDENTITY DEFAULT")
    assert checked(pipe) == (0, [])


def test_a_name_that_cannot_be_taken_out_or_in_is_said_what_it_is(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    make(database)
    database.execute(
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root DEFAULT",
        "CREATE UNLOGGED TABLE loose (id int PRIMARY KEY)",
        "CREATE VIEW shown AS SELECT 1 AS one",
    )
    publish(database, "a", "root")
    database.execute("ALTER PUBLICATION {p} SET (publish_via_partition_root = true)")
    pipe = Pipe(database, tmp_path, command=command)
    assert pipe("run", "--until-caught-up").returncode == 0
    for action, name, said in (
        ("remove", "public.b", "is a table that the publication does not have"),
        ("remove", "public.leaf", "is a partition, which goes as public.root does"),
        ("add", "public.leaf", "is a partition, which goes as public.root does"),
        ("remove", "public.loose", "is an unlogged or temporary table"),
        ("add", "public.loose", "is an unlogged or temporary table"),
        ("add", "public.shown", "is no table"),
        ("remove", "public.bb", "is not the name of a table"),
    ):
        assert_ended(pipe("tables", action, name), 2, said)
