"""From a name on the command line to a table, and from there to a request.

Invariant: a name that means no table is refused at once, with the nearest that does: ingest would
refuse the request, and nobody would be looking.
"""

import time
import uuid
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sluice.cli import deadline, wiring
from sluice.contract import keys
from sluice.contract.control import Request
from sluice.contract.table_state import State
from sluice.errors import SlotLost, SourceError, SourceMoved, UsageError
from sluice.settings import Settings
from sluice.settings.tree import nearest

if TYPE_CHECKING:
    from sluice.store.base import ObjectStore

Name = tuple[str, str]
LISTED = "`sluice tables` lists the tables as schema.table"


def request(store: "ObjectStore", action: str, table: Name) -> None:
    """Stores a request for ingest. Keys sort by time, so that two requests of one operator are
    carried out in their order.
    """
    wanted = Request(action, *table, datetime.now(UTC).isoformat(timespec="seconds"))
    key = keys.control_request(f"{time.time_ns():020d}-{uuid.uuid4().hex}")
    deadline.within(deadline.LOOK_SECONDS, lambda: store.create(key, wanted.encode()))


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
