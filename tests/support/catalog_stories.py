"""Stories of tables that change: what runs before and after."""

from typing import Any

from sluice.tables.policies import Policies
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.source_setup import since

RESYNC: dict[str, Any] = {"tables": (), "policies": Policies()}
"""Every published table, under the policies that are in force without any configuration."""


def changed_while_down(
    pipeline: IngestPipeline, before: tuple[str, ...], after: tuple[str, ...], *, runs: int, **options: Any
) -> None:
    """Runs ingest after `before`, and `runs` times after `after`."""
    pipeline.run(*before, **options)
    pipeline.run(*after, times=runs, **options)


def read_again(pipeline: IngestPipeline, **options: Any) -> None:
    """Runs ingest until no table waits to be read again. A look may fall between any two changes of a story, and a
    table that a later one puts in doubt again rests before its next snapshot.
    """

    def rests() -> bool:
        return any(table.resync_at for table in pipeline.state().tables.values())

    pipeline.run(times=2, **options)
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
    """The statements of `inside` in one transaction that is streamed at once, and `prepared` first or committed."""
    since(pipeline.database, 16, "streaming at once")
    pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    streamed = {**options, "two_phase": True, "streaming": "on"}
    pipeline.run(*before, **streamed)
    pipeline.database.transact(*inside, end="PREPARE TRANSACTION 'story'" if prepared else "COMMIT")
    pipeline.run(**streamed)
    pipeline.run(*(("COMMIT PREPARED 'story'",) if prepared else ()), *after, times=2, **streamed)
