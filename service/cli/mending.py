"""`copy`: begin a table again from a new snapshot, while everything else goes on."""

import uuid
from datetime import UTC, datetime

import click

from service.cli import rooms
from service.cli.invocation import Invocation, common
from service.contract import keys
from service.contract.control import COPY, Request
from service.errors import UsageError


@click.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@common
def copy(invocation: Invocation, tables: tuple[str, ...]) -> None:
    """Copy tables again, named as schema.table: what to do about a stale one.

    The request is left in the spool, and the running ingest (or the next one) takes it within seconds: it reads the table from a new snapshot while changes
    keep flowing, and the applier then replaces the lake table and follows on from there. Until it has, the lake keeps the old rows.

    \b
    Examples:
      sluice copy public.orders
      sluice copy public.orders public.customers && sluice tables
    """
    rooms.require("obstore")
    settings = invocation.settings().settings
    from service.manifest.follow import load_state

    store = rooms.open_spool(settings)
    known = {(table.schema_name, table.table_name) for table in load_state(store).tables.values()}
    wanted = [_named(name, known) for name in tables]
    for schema_name, table_name in wanted:
        request = Request(COPY, schema_name, table_name, datetime.now(UTC).isoformat(timespec="seconds"))
        store.create(keys.control_request(uuid.uuid4().hex), request.encode())
        click.echo(f"{schema_name}.{table_name} will be copied again")


def _named(name: str, known: set[tuple[str, str]]) -> tuple[str, str]:
    """The table that `name` means. Names may hold dots, so the known ones decide; a renamed table is not known yet, and one dot is then clear enough."""
    found = [table for table in known if ".".join(table) == name]
    if len(found) == 1:
        return found[0]
    if not found and name.count(".") == 1:
        schema_name, table_name = name.split(".")
        return schema_name, table_name
    raise UsageError(f"{name!r} is not the name of one table", hint="`sluice tables` lists the tables as schema.table")
