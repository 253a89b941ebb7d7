"""`wait`: until the lake can be read as of a position."""

from contextlib import closing

import click

from sluice import lsn
from sluice.cli import deadline, lake_reading, output, wiring
from sluice.cli.drain import seconds_of
from sluice.cli.invocation import Invocation, common
from sluice.errors import UsageError
from sluice.settings import Settings


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--lsn", "position", metavar="X/Y", help="Wait for the transactions that ended at or before this position."
)
@click.option("--now", is_flag=True, help="Wait for everything that the server has committed by now.")
@click.option(
    "--timeout",
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
    timeout: str,
    json_wanted: bool,  # noqa: FBT001 - a command's parameter
) -> None:
    """Wait until the lake can be read as of a position or a later one. A reader then finds
    everything that was written before that position. To learn the position of its
    write, an application calls pg_current_wal_insert_lsn() after the commit.

    If you name tables, the command waits for these tables as well, even if one is stale or in its
    snapshot. The endpoint of the applier answers the same question: GET
    /wait?lsn=X/Y.

    Ends with 75 when the time is over, and says what was missing.

    \b
    Examples:
      sluice wait --now
      sluice wait --lsn 16/B374D848 --timeout 10s public.orders
    """
    if (position is None) == (not now):
        raise UsageError("give either --lsn or --now")
    timeout_seconds = seconds_of(timeout)
    wiring.require("sluice_lake", *(deadline.PACKAGES if now else ()))
    target = lsn.parse(position) if position is not None else None
    settings = invocation.settings().settings
    lake = lake_reading.lake_of(settings)
    if target is None:
        target = deadline.within(deadline.LOOK_SECONDS, lambda: _end_of_wal(settings))
        # Where nobody writes, ingest records where it is only now and then.
        deadline.hasten(wiring.open_spool(settings), target)
    with lake_reading.ours():
        reached = lake.wait_for(target, timeout_seconds, tables=tables)
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


def _end_of_wal(settings: Settings) -> int:
    from sluice.source.catalog import Catalog
    from sluice.source.sessions import open_query

    with closing(open_query(wiring.source_options(settings))) as connection:
        return Catalog(connection).wal_end()
