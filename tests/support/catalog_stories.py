"""Stories of tables that change: what runs before and after, and whether the tables end equal."""

from pathlib import Path
from typing import Any

from sluice.tables.policies import Policies
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.oracle import Spool, Verdict
from tests.support.source_setup import since

RESYNC: dict[str, Any] = {"tables": (), "policies": Policies()}
"""Every published table, under the policies that are in force without any configuration."""


def set_up(pipeline: IngestPipeline, statements: tuple[str, ...]) -> None:
    pipeline.database.execute(*(statement.format(p=pipeline.database.publication) for statement in statements))


def changed_while_down(
    pipeline: IngestPipeline, before: tuple[str, ...], after: tuple[str, ...], *, runs: int, **options: Any
) -> None:
    """Runs ingest after `before`, and `runs` times after `after`."""
    set_up(pipeline, before)
    pipeline.run(**options)
    set_up(pipeline, after)
    for _ in range(runs):
        pipeline.run(**options)


def read_again(pipeline: IngestPipeline, **options: Any) -> None:
    """Runs ingest until no table waits to be read again. A look may fall between any two changes of a story, and a
    table that a later one puts in doubt again rests before its next snapshot.
    """

    def rests() -> bool:
        return any(table.resync_at for table in pipeline.state().tables.values())

    for _ in range(2):
        pipeline.run(**options)
    if rests():
        with pipeline.running(**options) as ingest:
            ingest.wait_until(lambda: not rests(), seconds=180)
        pipeline.run(**options)


def changed_in_a_streamed_transaction(
    pipeline: IngestPipeline,
    before: tuple[str, ...],
    inside: tuple[str, ...],
    after: tuple[str, ...] = (),
    *,
    prepared: bool,
    **options: Any,
) -> None:
    """The statements of `inside` in one transaction that is streamed at once, and `prepared` first or
    committed.
    """
    since(pipeline.database, 16, "streaming at once")
    pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    streamed = {**options, "two_phase": True, "streaming": "on"}
    set_up(pipeline, before)
    pipeline.run(**streamed)
    with pipeline.database.connect() as connection:
        for statement in ("BEGIN", *inside, "PREPARE TRANSACTION 'story'" if prepared else "COMMIT"):
            connection.execute(statement.encode())
    pipeline.run(**streamed)
    set_up(pipeline, (*(("COMMIT PREPARED 'story'",) if prepared else ()), *after))
    for _ in range(2):
        pipeline.run(**streamed)


def verdicts(pipeline: IngestPipeline, tmp_path: Path, hash_keys: dict[str, bytes] | None = None) -> list[Verdict]:
    """What the oracle finds in the spool at `tmp_path`, beside the source."""
    spool = Spool(tmp_path / "spool" / "test", hash_keys)
    spool.read()
    with pipeline.database.connect() as connection:
        return spool.verdicts(connection, pipeline.database.publication)


def assert_equal(pipeline: IngestPipeline, tmp_path: Path, resyncs: dict[str, int]) -> None:
    """Every published table is live and equal, and `resyncs` is how often they were read again, by cause."""
    found = verdicts(pipeline, tmp_path)
    assert {(verdict.state, verdict.differences) for verdict in found} == {("live", ())}
    total: dict[str, int] = {}
    for table in pipeline.state().tables.values():
        for cause, count in table.resyncs.counts.items():
            total[cause] = total.get(cause, 0) + count
    assert total == resyncs
