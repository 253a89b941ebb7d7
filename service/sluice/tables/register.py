"""What is decided of tables: the only way by which one changes. Pure.

Invariant: a table's state changes by an entry and in no other way. A decision sees what was decided before it, and
one that lacks an answer of the catalog leaves nothing behind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Snapshot, Table
from sluice.contract.reasons import Reason
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.lsn import show
from sluice.manifest.state import decided
from sluice.manifest.values import PipelineState, TableState
from sluice.tables.catalog_diff import fingerprint
from sluice.tables.events import Configured, Counted, Decision, Moment, Said, TableChange
from sluice.tables.lake_paths import TakenPaths
from sluice.tables.policies import TablePolicy
from sluice.tables.shape_history import ShapeHistory


class Unanswered(Exception):
    """See NeedFacts."""

    def __init__(self, oid: int | None) -> None:
        super().__init__(oid)
        self.oid = oid


class TableRegister:
    """Inside `at`, everybody who decides has the same `moment`. `configured` is what holds now, and `history` has what
    was found out about rows since the connection began.
    """

    def __init__(self, configured: Configured) -> None:
        self.configured = configured
        self.history = ShapeHistory()
        self.moment: Moment
        self._state: PipelineState
        self._decisions: list[Decision] = []
        self._taken: tuple[dict[str, TableState], Configured, TakenPaths] | None = None

    @contextmanager
    def at(self, moment: Moment) -> Iterator[list[Decision]]:
        """The block decides at `moment`; the list has what it decides, in order."""
        self.moment, self._state = moment, moment.state
        self._decisions = []
        yield self._decisions

    @property
    def through_lsn(self) -> int:
        """The position through which the manifest is complete."""
        return self.moment.through_lsn

    def facts(self, oid: int) -> TableFacts | None:
        """What the catalog says of a table today; None when it is gone. Raises Unanswered."""
        if oid not in self.moment.answers.facts:
            raise Unanswered(oid)
        return self.moment.answers.facts[oid]

    def wal_end(self) -> int:
        """A snapshot that is begun now will have whatever committed before it. Raises Unanswered."""
        if self.moment.answers.wal_end is None:
            raise Unanswered(None)
        return self.moment.answers.wal_end

    def policy(self, state: TableState) -> TablePolicy:
        """What is configured for the table under the name by which the state knows it."""
        return self.configured.policies.of(state.schema_name, state.table_name)

    def states(self) -> dict[str, TableState]:
        """By table id, with all that is decided; a value that does not change."""
        return self._state.tables

    def taken(self) -> TakenPaths:
        """Where lake tables stand, with all that is decided."""
        tables, configured = self._state.tables, self.configured
        if self._taken is None or self._taken[1] is not configured:
            self._taken = tables, configured, TakenPaths(tables, configured.policies)
        elif self._taken[0] is not tables:
            self._taken[2].follow(tables)
            self._taken = tables, configured, self._taken[2]
        return self._taken[2]

    def state(self, oid: int) -> TableState | None:
        return self._state.tables.get(str(oid))

    def say(self, level: str, event: str, **fields: Any) -> None:
        """A line of the log."""
        self._decisions.append(Said(level, event, fields))

    def become(
        self,
        table: TableState,
        state: State,
        why: Reason | None,
        *,
        lsn: int | None = None,
        cause: Cause | str = "",
        resync_at: str = "",
    ) -> None:
        """The table is in `state`, because of `why`, from `lsn` on (None: since it was in the one before)."""
        at = table.lsn if lsn is None else lsn
        self.append(replace(as_it_is(table), state=state, why=why, lsn=at, cause=cause, resync_at=resync_at))

    def follow(self, table: TableState, schema: TableSchema, *, lsn: int) -> None:
        """The table has the shape `schema` from `lsn` on."""
        self.say("info", "schema changed", table=schema.qualified_name, version=schema.version, lsn=show(lsn))
        before = {column.attnum for column in table.latest.left_out} if table.latest is not None else set()
        if added := [column.name for column in schema.left_out if column.attnum not in before]:
            self.say("warning", "columns were added and are left out", table=schema.qualified_name, columns=added)
        self.append(replace(as_it_is(table), schema=schema, lsn=lsn))

    def note_schema_change(self, kind: str, outcome: str) -> None:
        """Counts a change of shape that was `followed`, or turned its table `stale`."""
        self._decisions.append(Counted(kind, outcome))

    def append(self, entry: Table | Snapshot) -> None:
        """The manifest is to say so."""
        self._state = decided(self._state, entry, written_at=self.moment.now.isoformat())
        self._decisions.append(TableChange(entry))


def as_it_is(table: TableState) -> Table:
    """An entry that leaves the table in its state, whatever that is, for what else it is to say."""
    return Table(table.table_id, table.schema_name, table.table_name, None, table.generation)


def as_seen(entry: Table, facts: TableFacts) -> Table:
    """An entry that says, too, that the catalog has the table as `facts` say."""
    return replace(entry, relfilenode=facts.relfilenode, fingerprint=fingerprint(facts))


def differs(state: TableState, facts: TableFacts) -> bool:
    """Whether the catalog shows the table otherwise than when it was last looked at."""
    return state.relfilenode != facts.relfilenode or state.fingerprint != fingerprint(facts)
