"""From a name on the command line to a table, and from there to a request.

Invariant: a name that means no table is refused at once, with the nearest that does: ingest would
refuse the request, and nobody would be looking.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from sluice.cli import deadline, wiring
from sluice.contract import keys
from sluice.contract.control import Request
from sluice.contract.table_state import State
from sluice.errors import SlotLost, SourceError, SourceMoved, StoreUnavailable, UsageError
from sluice.printable import one_line
from sluice.settings import DEFAULT_FILE, Settings, load
from sluice.settings.tree import nearest
from sluice.store.calls import create_named
from sluice.store.doorbell import Doorbell
from sluice.tables.selection import excluding, matches, naming

if TYPE_CHECKING:
    from sluice.manifest.values import TableState
    from sluice.store.base import ObjectStore

Name = tuple[str, str]
_WILD = set("*?[")
_ASK_SECONDS, _COMPLETE_SECONDS = 5.0, 2.0
LISTED = "`sluice tables` lists the tables as schema.table"


def request(store: "ObjectStore", action: str, table: Name) -> None:
    """Stores a request for ingest. Keys sort by time, so that two requests of one operator are
    carried out in their order.
    """
    wanted = Request(action, *table, datetime.now(UTC).isoformat(timespec="seconds"))
    key = keys.control_request(f"{time.time_ns():020d}-{uuid.uuid4().hex}")
    deadline.within(deadline.LOOK_SECONDS, lambda: create_named(store, key, wanted.encode()))
    Doorbell(store, "ingest").ring()


def request_all(settings: Settings, store: "ObjectStore", action: str, tables: Iterable[Name], said: str) -> None:
    """Stores a request for each table and says so, and whether anybody is there to take it."""
    for table in tables:
        request(store, action, table)
        click.echo(one_line(f"{'.'.join(table)} {said}"))
    if find_spec("psycopg") is None:
        return
    from sluice.source.slot import active_process

    with suppress(StoreUnavailable, SourceError):
        if deadline.within(_ASK_SECONDS, lambda: active_process(wiring.source_options(settings))) is None:
            click.echo("no ingest runs: the next one carries out the request when it starts", err=True)


def named(name: str, known: Iterable[Name], *, what: str, hint: str = LISTED) -> Name:
    """The one of `known` that `name` means. Names may hold dots, so the known ones decide. Raises
    UsageError, which says `what` the name is not, and the nearest one or `hint`.
    """
    can = set(known)
    found = [table for table in can if ".".join(table) == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} means more than one table, because names hold dots", hint="rename one of them")
    near = nearest(name, map(".".join, can))
    raise UsageError(f"{name!r} is not the name of {what}", hint=f"nearest: {near}" if near else hint)


def chosen(names: Iterable[str], find: Callable[[str], Name], known: Iterable[Name]) -> list[Name]:
    """The tables that `names` mean, without repetition: names, for which `find` decides, and patterns as in
    `source.tables`, which mean all of `known` that they match. Raises UsageError for a pattern that matches
    nothing.
    """
    given, can = tuple(names), sorted(set(known))
    exact = {".".join(table) for table in can}
    if not naming(given):
        raise UsageError("only tables to leave out are given", hint="name tables, or give a pattern such as 'public.*'")
    found: list[Name] = []
    for name in naming(given):
        if name in exact or not _WILD & set(name):
            found.append(find(name))
            continue
        matched = [table for table in can if matches((name,), *table)]
        if not matched:
            near = nearest(name, exact)
            raise UsageError(f"{name!r} matches no table", hint=f"nearest: {near}" if near else LISTED)
        found += matched
    return [table for table in dict.fromkeys(found) if not excluding(given, *table)]


def completed(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - the form of a callback
    """For a shell: the tables of the manifest that begin with `incomplete`. None when that takes long or fails."""
    with suppress(Exception):
        settings = load(context.params.get("config") or DEFAULT_FILE, environ=os.environ).settings
        known = deadline.within(_COMPLETE_SECONDS, lambda: in_manifest(wiring.open_spool(settings)))
        return [name for name in sorted(map(".".join, known)) if name.startswith(incomplete)]
    return []


def carried(states: "Iterable[TableState]") -> "dict[Name, TableState]":
    """The tables that the pipeline carries, by name: of two with one name the newest. Not that of logical messages."""
    from sluice.tables.messages import TABLE_ID

    return {
        (state.schema_name, state.table_name): state
        for state in sorted(states, key=lambda state: state.generation_seq)
        if state.state != State.DETACHED and state.table_id != TABLE_ID
    }


def lake_tables(states: "Iterable[TableState]", names: Iterable[str]) -> "list[TableState]":
    """Those of the lake tables `states` that `names` mean: all that one table of the source feeds, or a single one as
    schema.table/target; without names all that the pipeline carries. Raises UsageError for a name that is none.
    """
    known = list(states)
    newest = {name: state.table_id for name, state in carried(known).items()}
    beside = {name: [state for state in known if state.table_id == table_id] for name, table_id in newest.items()}
    single = {state.title: state for found in beside.values() for state in found if state.key != state.table_id}
    wanted: list[TableState] = []
    for name in names:
        if name in single:
            wanted.append(single[name])
        else:
            wanted += beside[named(name, beside, what="a table that the pipeline carries")]
    everything = (state for name in sorted(beside) for state in beside[name])
    return list({one.key: one for one in wanted or everything}.values())


def in_manifest(store: "ObjectStore") -> dict[Name, State]:
    """The tables that the manifest has, with the states of the newest of each name."""
    from sluice.manifest.reader import load_state

    state = deadline.within(deadline.LOOK_SECONDS, lambda: load_state(store))
    tables = sorted(state.tables.values(), key=lambda table: table.generation_seq)
    return {(table.schema_name, table.table_name): table.state for table in tables}


def published(settings: Settings, store: "ObjectStore") -> tuple[set[Name] | None, str]:
    """The tables that the publication carries; None, and why, where the server cannot be asked, or is not
    the manifest's: then the manifest has to do.
    """
    if find_spec("psycopg") is None:
        return None, "this installation has no psycopg"
    from sluice.manifest.reader import load_state
    from sluice.source.catalog import Catalog
    from sluice.source.sessions import known, open_query

    source = known(wiring.source_options(settings), load_state(store).opened)
    try:
        with closing(open_query(source)) as connection:
            return {
                (facts.schema, facts.name)
                for facts in Catalog(connection).published_tables(settings.source.publication)
            }, ""
    except (SourceError, SlotLost, SourceMoved) as error:
        return None, str(error)
