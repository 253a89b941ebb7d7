"""With the DDL signal completeness follows without looks at the catalog, waits for the one that a command needs,
and what two looks do not show is named.
"""

from pathlib import Path

import pytest

from sluice.contract.entries import Changes
from sluice.source import ddl_signal
from tests.integration.test_catalog_unseen_changes import LIMITS, PLAIN
from tests.support.catalog_stories import set_up, verdicts
from tests.support.ingesting import IngestPipeline, Running

NOT_OF_DDL = ("regclass_renamed",)
"""Limits that stay."""
FOUND = {name: story for name, story in LIMITS.items() if name not in NOT_OF_DDL}


def with_signal(pipeline: IngestPipeline, *statements: str) -> None:
    set_up(pipeline, statements)
    pipeline.database.execute(*ddl_signal.statements())


def until_alone(pipeline: IngestPipeline, running: Running) -> None:
    """Until completeness needs no look any more."""

    def is_alone() -> bool:
        pipeline.database.execute("SELECT pg_logical_emit_message(true, 'test', '')")
        if running.ingest is not None:
            running.ask(running.ingest.refresh)
        return running.ingest is not None and not running.ingest.status.ddl_signal_lacks

    running.wait_until(is_alone)


@pytest.mark.parametrize("name", FOUND)
def test_what_two_looks_do_not_show_is_named_when_it_was_signalled(
    pipeline: IngestPipeline, tmp_path: Path, name: str
) -> None:
    before, after = FOUND[name]
    with_signal(pipeline, *before)
    pipeline.run(tables=())
    set_up(pipeline, after)
    for _ in range(2):
        pipeline.run(tables=())
    assert not [verdict for verdict in verdicts(pipeline, tmp_path) if verdict.is_silent_difference]
    assert "stale" in [table.state for table in pipeline.state().tables.values()]


def test_completeness_follows_rows_without_a_look(pipeline: IngestPipeline) -> None:
    with_signal(pipeline, *PLAIN)
    with pipeline.running(tables=(), watch_interval_s=0.2) as running:
        until_alone(pipeline, running)
        before = pipeline.state().seq
        for number in range(10, 20):
            pipeline.database.execute(f"INSERT INTO t VALUES ({number}, 'x')")
            running.wait_until(lambda: len(pipeline.rows("public.t")) == number - 9)  # noqa: B023
        entries = [entry for entry in pipeline.entries() if entry.seq > before and isinstance(entry.body, Changes)]
    assert len(entries) >= 10
    assert [entry.seq for entry in entries if entry.examined_lsn != entry.through_lsn] == []
