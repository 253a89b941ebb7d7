"""`drain`: wait until the lake has everything, for a planned move of the source."""

from functools import partial

import click

from sluice import lsn
from sluice.cli import deadline, output, plan, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.times import SHORTEST_TIMEOUT, duration
from sluice.lsn import show
from sluice.printable import one_line


@click.command()
@click.option("--to-lsn", metavar="X/Y", help="Wait for this position.  [default: where the server's WAL ends now]")
@click.option(
    "--timeout",
    "timeout_seconds",
    callback=duration(least=SHORTEST_TIMEOUT),
    default="15m",
    show_default=True,
    metavar="DURATION",
    help="The longest time to wait, such as 90s or 1h; the last check may take a few seconds more.",
)
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def drain(invocation: Invocation, to_lsn: str | None, timeout_seconds: float, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Wait until everything through a position is published, acknowledged and in the lake. Use it
    before a planned move of the source, after the applications have stopped writing.

    Ingest and the applier do the work, so both must run. `drain` only waits, and says on stderr
    what it waits for. It names each table that is not complete in the lake because it is paused,
    stale, quarantined, has a gap or is still in its snapshot. The exit code is 75 if the timeout
    passes, and 7 as soon as the slot is lost.

    \b
    Examples:
      sluice drain
      sluice drain --to-lsn 16/B374D848 --timeout 5m
    """
    wiring.require(*deadline.PACKAGES)
    target = lsn.parse(to_lsn) if to_lsn is not None else None
    settings = invocation.settings().settings
    from sluice.manifest.reader import load_state
    from sluice.operate.drain import CatalogSeen
    from sluice.operate.drain import drain as wait

    reporter, store = wiring.reporter(settings), wiring.open_spool(settings)

    def read_catalog() -> CatalogSeen:
        # What the configuration asks for besides waits for the next start of the applier, or can never be.
        found = plan.look(settings, catalog_alone=True)
        unfollowed = [one.table for one in found if one.preview.effect != "nothing"]
        return CatalogSeen(tuple(unfollowed), load_state(store).seq)

    done = wait(
        lambda seconds: deadline.within(min(seconds, deadline.LOOK_SECONDS), reporter.take),
        lambda seconds: deadline.within(min(seconds, deadline.LOOK_SECONDS), read_catalog),
        target=target,
        timeout_s=timeout_seconds,
        said=lambda words: click.echo(one_line(words), err=True),
        hasten=partial(deadline.hasten, store),
    )
    if json_wanted:
        output.as_json(
            {
                "schema_version": 1,
                "target_lsn": show(done.target),
                "complete_through_lsn": show(done.complete_lsn),
            }
        )
    else:
        click.echo(f"the lake has everything through {show(done.target)}")
