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
    """Stop applying tables, named as schema.table or by patterns as in source.tables, until they are
    resumed. Nothing is lost.

    Changes of a paused table are received and kept in the spool, so that the source keeps no WAL
    for it; the applier commits none of them. The window that is under way is finished. The table's
    state is `paused`, with how much waits; it is no problem and raises no alert. The spool grows
    meanwhile: pruning deletes nothing that waits. A pause outlasts restarts, changes of
    columns and a resync.

    The request is left in the spool, and the running ingest (or the next one) takes it within
    seconds.

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
    """Go on applying tables that were paused: everything that waits is applied, in order.

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
