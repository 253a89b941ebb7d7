"""`resync`: begin a table again from a new snapshot, while everything else goes on."""

from collections.abc import Mapping

import click

from sluice.cli import table_names, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.table_names import Name
from sluice.contract.control import RESYNC
from sluice.contract.table_state import State
from sluice.errors import UsageError


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TABLE...", shell_complete=table_names.completed)
@common
def resync(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Take a new snapshot of tables, named as schema.table or by patterns as in source.tables. Use
    it for a stale table.

    The request is stored in the spool. The running ingest carries it out within seconds, or within
    half a minute if it runs on another machine and the spool is on an object store. If no ingest
    runs, the next one that starts carries it out. Ingest reads the table from a new snapshot while
    it continues to receive changes. The applier then replaces the lake table and applies the later
    changes. Until then the lake keeps the old rows. A changelog is replaced, and loses the changes
    that it has. A table that the publication does not have is refused at once. If ingest cannot
    carry out the request later, `sluice status` shows a problem. `sluice resync` and `sluice tables
    resync` are the same command.

    \b
    Examples:
      sluice resync public.orders
      sluice resync public.orders public.customers && sluice tables
      sluice resync 'public.*' '!public.logs'       quoted, so that the shell leaves them alone
    """
    wiring.require("obstore")
    settings = invocation.settings().settings
    store = wiring.open_spool(settings)
    known = table_names.in_manifest(store)
    published, away = table_names.published(settings, store)
    can = published if published is not None else {table for table, state in known.items() if state != State.DETACHED}
    hint = f"; a table that is new could not be looked for: {away}" if published is None else ""
    wanted = table_names.chosen(names, lambda name: _named(name, known, can, hint=f"{table_names.LISTED}{hint}"), can)
    table_names.request_all(settings, store, RESYNC, wanted, "will be resynced")


def _named(name: str, known: Mapping[Name, State], can: set[Name], *, hint: str) -> Name:
    """The table that `name` means, which the publication carries now."""
    if name in map(".".join, known) and name not in map(".".join, can):
        raise UsageError(
            f"{name} cannot be resynced: the publication does not carry it any more",
            hint=f"`sluice tables add {name}` adds it again, with a new snapshot",
        )
    return table_names.named(name, can, what="a table that the publication carries", hint=hint)
