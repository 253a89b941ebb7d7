"""Brings comments, keys and labels of the catalog to the tables, when they are other ones.

Invariant: nothing waits for it, and nothing fails with it: rows go on whatever the catalog says for people. It costs
the server one part in a hundred of its time at most. For one thread.
"""

import time
from collections.abc import Collection

import structlog

from sluice.contract.table_state import State
from sluice.errors import SourceError, SourceUnavailable
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.manifest.values import TableState
from sluice.source.descriptions import descriptions, numbers
from sluice.source.sessions import Connection
from sluice.tables import events

PAUSE_SECONDS = 5.0
"""Between two questions, unless a table has not been asked about."""
_SHARE = 100
"""A question is followed by a pause of so many times what it took."""
_Seen = tuple[int, int, int]
"""What the server said the description is, and the generation and schema version for which it was brought."""

_log = structlog.get_logger("tables")


class DescribedTables:
    def __init__(self, tables: FollowedTables) -> None:
        self._tables = tables
        self._connection: Connection | None = None
        self._seen: dict[int, _Seen] = {}
        self._not_before = 0.0
        self._failed = ""

    def turn(self, connection: Connection, published: Collection[int]) -> None:
        """Asks about the tables that are `published` and known, by oid, unless that was done a moment ago. Raises
        SourceUnavailable.
        """
        if connection is not self._connection:
            self._connection, self._seen = connection, {}
        states = self._tables.states()
        known = [oid for oid in published if str(oid) in states and states[str(oid)].state != State.DETACHED]
        began = time.monotonic()
        if not known or (began < self._not_before and self._seen.keys() >= set(known)):
            return
        try:
            self._bring(connection, known, states)
            self._failed = ""
        except SourceUnavailable:
            raise
        except (SourceError, ValueError) as error:
            # A server that does not know the encoding of its texts, or has no time: it is asked again later.
            if str(error) != self._failed:
                _log.warning("the comments of tables cannot be read", error=str(error))
            self._failed = str(error)
            self._seen |= {oid: (0, 0, 0) for oid in known if oid not in self._seen}
        now = time.monotonic()
        self._not_before = now + max(PAUSE_SECONDS, _SHARE * (now - began))

    def _bring(self, connection: Connection, known: list[int], states: dict[str, TableState]) -> None:
        found = {oid: _of(number, states[str(oid)]) for oid, number in numbers(connection, known).items()}
        changed = [oid for oid, seen in found.items() if self._seen.get(oid) != seen]
        for oid, description in descriptions(connection, changed):
            if self._tables.decide(events.Described(oid, description)):
                self._seen[oid] = found[oid]


def _of(number: int, state: TableState) -> _Seen:
    return number, state.generation, state.schema_version
