"""`tables pause` and `tables resume`: stop and go on applying a table, while everything else goes on."""

import click

from sluice.cli import table_names, wiring
from sluice.cli.invocation import Invocation, common
from sluice.contract.control import PAUSE, RESUME
from sluice.contract.table_state import State


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TABLE...", shell_complete=table_names.completed)
@common
def pause(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Stop applying tables until they are resumed. Nothing is lost.

    Name tables as schema.table, or by patterns as in source.tables.

    Ingest still receives the changes of a paused table and keeps them in the spool, so the source
    keeps no WAL for them. The applier finishes the current window and then commits no more changes
    of the table. The table's state is `paused`, and `sluice tables` shows how much waits. A pause
    is not a problem and raises no alert. The spool grows meanwhile, because pruning deletes nothing
    that waits. A pause remains in force after restarts, changes of columns and a resync.

    The request is stored in the spool. The running ingest carries it out within seconds, or within
    half a minute if it runs on another machine and the spool is on an object store. If no ingest
    runs, the next one that starts carries it out.

    \b
    Examples:
      sluice tables pause public.orders
      sluice tables pause 'shop.*' '!shop.orders'       quoted, so that the shell leaves them alone
    """
    _request(invocation, names, PAUSE, "will be paused")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TABLE...", shell_complete=table_names.completed)
@common
def resume(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Resume applying paused tables. Everything that waits is applied in order.

    \b
    Examples:
      sluice tables resume public.orders
    """
    _request(invocation, names, RESUME, "will be resumed")


def _request(invocation: Invocation, names: tuple[str, ...], action: str, said: str) -> None:
    wiring.require("obstore")
    settings = invocation.settings().settings
    store = wiring.open_spool(settings)
    states = table_names.in_manifest(store)
    followed = [table for table, state in states.items() if state != State.DETACHED]
    wanted = table_names.chosen(
        names, lambda name: table_names.named(name, followed, what="a table that is followed"), followed
    )
    table_names.request_all(settings, store, action, wanted, said)
