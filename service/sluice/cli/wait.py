"""`wait`: until the lake can be read as of a position."""

from contextlib import closing
from typing import TYPE_CHECKING

import click

from sluice import lsn
from sluice.cli import deadline, lake_reading, output, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.times import SHORTEST_TIMEOUT, duration
from sluice.errors import ObjectMissing, UsageError
from sluice.settings import Settings

if TYPE_CHECKING:
    from sluice.store.base import ObjectStore


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--lsn", "position", metavar="X/Y", help="Wait for the transactions that ended at or before this position."
)
@click.option("--now", is_flag=True, help="Wait for everything that the server has committed by now.")
@click.option(
    "--timeout",
    "timeout_seconds",
    callback=duration(least=SHORTEST_TIMEOUT),
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="The longest time to wait, such as 10s or 5m.",
)
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def wait(
    invocation: Invocation,
    tables: tuple[str, ...],
    position: str | None,
    now: bool,  # noqa: FBT001 - a command's parameter
    timeout_seconds: float,
    json_wanted: bool,  # noqa: FBT001 - a command's parameter
) -> None:
    """Wait until the lake can be read as of a position or a later one. A reader then finds
    everything that was written before that position. To learn the position of its
    write, an application calls pg_current_wal_insert_lsn() after the commit.

    Give either --lsn or --now. If you name tables, the command waits for these tables as well, even
    if one is stale or in its snapshot. GET /wait?lsn=X/Y at the applier's endpoint does the same.

    The exit code is 75 if the timeout passes; the command then says what was missing. With --now it
    is 7 if source.dsn leads to another server or database than the one that the pipeline reads.

    \b
    Examples:
      sluice wait --now
      sluice wait --lsn 16/B374D848 --timeout 10s public.orders
    """
    if (position is None) == (not now):
        raise UsageError("give either --lsn or --now")
    wiring.require("sluice_lake", *(deadline.PACKAGES if now else ()))
    target = lsn.parse(position) if position is not None else None
    settings = invocation.settings().settings
    spool, patience = wiring.open_spool(settings), min(timeout_seconds, deadline.LOOK_SECONDS)
    if target is None:
        target = deadline.within(patience, lambda: _end_of_wal(settings, spool))
        # Where nobody writes, ingest records where it is only now and then.
        deadline.hasten(spool, target)
    lake, waited = lake_reading.awaited(settings, timeout_seconds)
    with lake_reading.ours():
        reached = lake.wait_for(
            target,
            timeout_seconds,
            tables=tables,
            manifest=lambda: deadline.within(patience, lambda: _manifest(spool)),
            waited=waited,
        )
    if json_wanted:
        output.as_json(
            {
                "schema_version": 1,
                "lsn": lsn.show(target),
                "boundary_lsn": lsn.show(reached.lsn),
                "time": reached.time.isoformat(),
                "left_out": dict(reached.left_out),
            }
        )
    else:
        click.echo(f"the lake can be read as of {reached}")


def _manifest(spool: "ObjectStore") -> str:
    """What tells the manifest in `spool` from the one of a pipeline of this name that had another server, empty while
    there is none.
    """
    from sluice.manifest.reader import identity

    try:
        return identity(spool)
    except ObjectMissing:
        return ""


def _end_of_wal(settings: Settings, spool: "ObjectStore") -> int:
    """Where the log of the source ends now. Raises SlotLost and SourceMoved for another server or timeline than the
    manifest in `spool` is of: a position of its log says nothing of what the lake has.
    """
    from sluice.manifest.reader import load_state
    from sluice.source.catalog import Catalog
    from sluice.source.sessions import known, open_query

    source = known(wiring.source_options(settings), load_state(spool).opened)
    with closing(open_query(source)) as connection:
        return Catalog(connection).wal_end()
