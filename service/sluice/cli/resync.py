"""`resync`: begin a table again from a new snapshot, while everything else goes on."""

import uuid
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from importlib.util import find_spec

import click

from sluice.cli import wiring
from sluice.cli.invocation import Invocation, common
from sluice.contract import keys
from sluice.contract.control import RESYNC, Request
from sluice.contract.table_state import State
from sluice.errors import SourceError, UsageError
from sluice.printable import one_line
from sluice.settings import Settings
from sluice.settings.tree import nearest

Name = tuple[str, str]


@click.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@common
def resync(invocation: Invocation, tables: tuple[str, ...]) -> None:
    """Take a new snapshot of tables, named as schema.table: what to do about a stale one.

    The request is left in the spool, and the running ingest (or the next one) takes it within
    seconds: it reads the table from a new snapshot while changes keep flowing, and the applier then
    replaces the lake table and follows on from there. Until it has, the lake keeps the old rows. A
    table that the publication does not carry is refused at once; a request that ingest cannot carry
    out later is a problem in `sluice status`.

    \b
    Examples:
      sluice resync public.orders
      sluice resync public.orders public.customers && sluice tables
    """
    wiring.require("obstore")
    settings = invocation.settings().settings
    from sluice.manifest.reader import load_state

    store = wiring.open_spool(settings)
    known = {(table.schema_name, table.table_name): table.state for table in load_state(store).tables.values()}
    published, away = _published(settings)
    wanted = [_named(name, known, published, away) for name in tables]
    for schema_name, table_name in wanted:
        request = Request(RESYNC, schema_name, table_name, datetime.now(UTC).isoformat(timespec="seconds"))
        store.create(keys.control_request(uuid.uuid4().hex), request.encode())
        click.echo(one_line(f"{schema_name}.{table_name} will be resynced"))


def _published(settings: Settings) -> tuple[set[Name] | None, str]:
    """The tables that the publication carries; None, and why, where the server cannot be asked:
    then the manifest has to do.
    """
    if find_spec("psycopg") is None:
        return None, "this installation has no psycopg"
    from sluice.source.catalog import Catalog
    from sluice.source.sessions import open_query

    try:
        with closing(open_query(wiring.source_options(settings))) as connection:
            return {
                (facts.schema, facts.name)
                for facts in Catalog(connection).published_tables(settings.source.publication)
            }, ""
    except SourceError as error:
        return None, str(error)


def _named(name: str, known: Mapping[Name, State], published: set[Name] | None, away: str) -> Name:
    """The table that `name` means, which the publication carries now. Names may hold dots, so the
    known ones decide. Raises UsageError for any other: ingest would refuse the request, and
    nobody would be looking.
    """
    can = published if published is not None else {table for table, state in known.items() if state != State.DETACHED}
    found = [table for table in can if ".".join(table) == name]
    if len(found) == 1:
        return found[0]
    near = nearest(name, map(".".join, can))
    hint = f"nearest: {near}" if near else "`sluice tables` lists the tables as schema.table"
    if published is None:
        hint += f"; a table that is new could not be looked for: {away}"
    if len(found) > 1:
        raise UsageError(f"{name!r} means more than one table, because names hold dots", hint="rename one of them")
    if name in map(".".join, known):
        raise UsageError(
            f"{name} cannot be resynced: the publication does not carry it any more",
            hint="add it to the publication first",
        )
    raise UsageError(f"{name!r} is not the name of a table that the publication carries", hint=hint)
