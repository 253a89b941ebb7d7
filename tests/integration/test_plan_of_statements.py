"""What `plan --sql` leaves behind and locks, and whether what it says is what happens."""

from pathlib import Path
from typing import Any

import pytest

from sluice.cli.plan import look
from sluice.contract import resyncs
from sluice.errors import SourceUnavailable, UsageError
from sluice.operate import dry_run
from sluice.settings import load
from sluice.tables.policies import Policies, TablePolicy
from sluice_spark.read.column_defaults import missing_value
from tests.integration.test_plan import configured, tried
from tests.integration.test_resyncs import PLAIN
from tests.support.catalog_stories import RESYNC, set_up
from tests.support.ingesting import IngestPipeline


def test_of_what_is_tried_out_only_functions_leave_something_behind_as_the_help_says(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    set_up(pipeline, (*PLAIN, "CREATE SEQUENCE numbers"))
    pipeline.run(**RESYNC)
    tried(pipeline, tmp_path, "ALTER TABLE t ADD k bigint DEFAULT nextval('numbers')")
    assert pipeline.database.all("SELECT is_called FROM numbers") == [(True,)]


def test_a_statement_that_locks_a_table_which_is_not_published_is_refused(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    set_up(
        pipeline, (*PLAIN, "CREATE TABLE aside (id int PRIMARY KEY)", "INSERT INTO aside SELECT generate_series(1, 9)")
    )
    pipeline.run(**RESYNC)
    with pytest.raises(UsageError, match="aside"):
        tried(pipeline, tmp_path, "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES aside")


def test_what_is_read_while_the_locks_are_held_is_bounded(
    pipeline: IngestPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "READ_SECONDS", 0.1)
    set_up(pipeline, PLAIN)
    with pipeline.database.connect() as connection:
        oids = [oid for (oid,) in connection.execute("SELECT 't'::regclass::oid::int8").fetchall()]
        statement = "ALTER TABLE t ADD COLUMN w int"
        with (
            pytest.raises(SourceUnavailable, match="statement timeout"),
            dry_run.rolled_back(connection, statement, published=oids, seconds=2.0),
        ):
            connection.execute("SELECT pg_sleep(20)")
        assert connection.execute("SHOW statement_timeout").fetchall() == [("0",)]


STATEMENTS = {
    "key_wider": "ALTER TABLE t ALTER id TYPE bigint",
    "volatile_default": "ALTER TABLE t ADD w float8 DEFAULT random()",
    "array_default": "ALTER TABLE t ADD w date[] DEFAULT ARRAY['2024-01-01', NULL, 'infinity']::date[]",
    "key_again": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
}


@pytest.mark.parametrize("given", ["evolve", "loose"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_what_is_said_is_what_happens(
    pipeline: IngestPipeline, tmp_path: Path, name: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resyncs, "REST", 0.0)
    monkeypatch.setattr(resyncs, "PAUSES_SECONDS", (0.0,))
    loose = given == "loose"
    policy = TablePolicy(on_widen="follow", contract="ignore_new") if loose else TablePolicy()
    options: dict[str, Any] = {"tables": (), "policies": Policies(policy)}
    set_up(pipeline, PLAIN)
    pipeline.run(**options)
    statement = STATEMENTS[name]
    more = ", on_widen: follow, contract: ignore_new" if loose else ""
    settings = load(str(configured(pipeline, tmp_path, more=more)), environ={}).settings
    said = {one.table: (one.preview.effect, one.preview.cause) for one in look(settings, statement=statement)}
    assert not [one for one in look(settings) if one.preview.effect != "nothing"]
    set_up(pipeline, (statement,))
    for _ in range(2):
        pipeline.run(**options)
    (table,) = pipeline.state().tables.values()
    ((effect, cause),) = said.values()
    assert (table.state, list(table.resyncs.counts)) == ("live", [cause] if effect == "snapshot" else [])
    for column in table.schemas[table.schema_version].carried.columns:
        if effect == "followed":
            missing_value(column)  # raises what makes the applier call the table stale
