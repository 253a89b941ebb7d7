"""In which of its shapes a table's rows came: by the position of their transaction, and by the order
in which the server announced them. No I/O.

Invariant: rows that come a second time, after a restart, get the schema versions that they got the
first time, although one shape may have been in force twice. An announcement that looks like the
newest version is taken for it only where a look at the catalog that began later says so, or where the
catalog is asked: columns that were dropped and added again look the same on the wire.
"""

from dataclasses import dataclass
from typing import Final, Literal

from sluice.contract.catalog_facts import TableFacts, Visible
from sluice.contract.schema import TableSchema
from sluice.manifest.values import TableState
from sluice.protocol.messages import RelationVersion
from sluice.tables.catalog_diff import other_primary_key
from sluice.tables.schemas import same_shape

BACK: Final = "back"
NOT_YET: Final = "not yet"
NotYet = Literal["not yet"]


@dataclass(frozen=True, slots=True)
class _Confirmed:
    """The newest shape was there for all that had committed through `lsn` and was `visible`."""

    lsn: int
    visible: Visible

    def has(self, position_lsn: int, xid: int) -> bool:
        """Whether transaction `xid`, with its commit record at `position_lsn`, is among them."""
        return position_lsn <= self.lsn and self.visible.sees(xid)


_NOTHING = _Confirmed(0, Visible(0))


class ShapeHistory:
    def __init__(self) -> None:
        self.resolved: dict[RelationVersion, TableSchema | None] = {}
        """By announcement: the version of all rows that come under it, None when the table is not carried."""
        self._announced: dict[int, tuple[RelationVersion, int, int]] = {}
        """By oid: the last announcement, and the transaction of the first rows under it: where its commit record
        begins, and its number.
        """
        self._reached: dict[int, tuple[int, int]] = {}
        """By oid: (position, schema version) of the rows that were resolved last."""
        self.awaited: dict[int, tuple[str, int]] = {}
        """By oid: the facts of a shape that a look has found and the stream has not come to, and where the server was
        then. BACK for the newest shape, which the table has again without what was awaited.
        """
        self._ends: dict[int, int] = {}
        """By oid: how far the rows reach that were resolved last. See `reaches_lsn` of a run."""
        self._confirmed = _NOTHING
        self._keys: dict[int, tuple[int, int, int]] = {}
        """By oid, of a primary key that is another one than a look knew: up to where it was that one, the new
        one, and where the server was when that was seen.
        """
        self._bounds: dict[int, _Confirmed] = {}
        """By oid, what was confirmed of the newest shape of a table that a look found otherwise."""

    def begun_again(self) -> "ShapeHistory":
        """For the next connection: of what was found out, only which tables looks have found otherwise."""
        fresh = ShapeHistory()
        fresh._bounds = dict.fromkeys(self._bounds, _NOTHING)
        return fresh

    def announced(self, relation: RelationVersion, position_lsn: int, xid: int) -> bool:
        """Notes rows of `relation`, of transaction `xid`. Whether the server announced it since the last ones: the same
        announcement is the same object.
        """
        last = self._announced.get(relation.oid)
        if last is not None and last[0] is relation:
            return False
        self._announced[relation.oid] = (relation, position_lsn, xid)
        return True

    def version_again(
        self, relation: RelationVersion, *, position_lsn: int, reaches_lsn: int, xid: int
    ) -> TableSchema | NotYet | None:
        """The schema version of more rows of `relation`, with the positions of RowsCame, if that was decided and holds
        still; None when the table is not carried. NOT_YET when it must be decided. `relation` is the same object until
        the server announces the relation again.
        """
        if self.announced(relation, position_lsn, xid):
            self.resolved.pop(relation, None)
        elif relation in self.resolved:
            self.passed(relation.oid, reaches_lsn)
            return self.resolved[relation]
        return NOT_YET

    def forget(self, oid: int) -> None:
        """A generation of the table ended or began, or another shape of it: what was found out no longer holds."""
        self.resolved = {relation: schema for relation, schema in self.resolved.items() if relation.oid != oid}
        self.awaited.pop(oid, None)

    def passed(self, oid: int, reaches_lsn: int) -> None:
        """Notes rows that were resolved, whose last transaction reaches to `reaches_lsn`. Rows for which that
        failed come again, and are not their own predecessors then.
        """
        self._ends[oid] = reaches_lsn

    def continues(self, oid: int, position_lsn: int) -> bool:
        """Whether rows of the transaction at `position_lsn` were resolved before the present ones."""
        return self._ends.get(oid, 0) > position_lsn

    def is_doubtful(self, oid: int) -> bool:
        """Whether the last announcement came after what a look at the catalog has confirmed."""
        last = self._announced.get(oid)
        return last is not None and not self._bounds.get(oid, self._confirmed).has(last[1], last[2])

    def doubt(self, oid: int) -> None:
        """Nothing more is confirmed of the table until `settle`."""
        self._bounds.setdefault(oid, self._confirmed)

    def settle(self, oid: int) -> None:
        """A look found the table in its newest shape."""
        self._bounds.pop(oid, None)

    def key_lsn(self, state: TableState, facts: TableFacts, *, wal_end: int) -> int:
        """Up to where the primary key was the one that `state` knows; the server is at `wal_end` now."""
        before = self._keys.pop(facts.oid, (self._confirmed.lsn, 0, 0))
        if other_primary_key(state.fingerprint, facts):
            at = before[2] if before[1:2] == (facts.primary_key,) and before[2] else wal_end
            self._keys[facts.oid] = before[0], facts.primary_key, at
        return before[0]

    def knows_key(self, oid: int, *, through_lsn: int) -> bool:
        """Whether the stream has come to where the primary key was seen to be what it is."""
        return oid not in self._keys or self._keys[oid][2] <= through_lsn

    def confirm(self, lsn: int, visible: Visible) -> None:
        """A look that began when the server was at `lsn` found every table in its newest shape, but
        for those in doubt.
        """
        if lsn >= self._confirmed.lsn:
            self._confirmed = _Confirmed(lsn, visible)

    def began(self, schema: TableSchema, position_lsn: int) -> None:
        """Rows of the transaction at `position_lsn` are in the new version from now on."""
        self._reached[int(schema.table_id)] = (position_lsn, schema.version)

    def version_at(self, state: TableState, relation: RelationVersion, position_lsn: int) -> TableSchema | None:
        """The recorded version of rows that a transaction with its commit record at `position_lsn`
        has under `relation`, None when it is a new one.

        A transaction begins in the version that the ones before it left, and goes on to those that it
        brought itself.
        """
        oid = relation.oid
        reached = self._reached.get(oid, (0, 0))
        first = reached[1] if reached[0] == position_lsn else _in_force(state, position_lsn - 1)
        own = [number for number, lsn in state.schema_lsns.items() if number > first and lsn == position_lsn]
        for number in (first, *sorted(own)):
            schema = state.schemas.get(number)
            if schema is not None and same_shape(schema, relation):
                self._reached[oid] = (position_lsn, number)
                return schema
        return None

    def possible(self, state: TableState, relation: RelationVersion, *, after_lsn: int) -> list[TableSchema]:
        """The recorded versions that rows of `relation` may be in when their transaction ends after
        `after_lsn`.
        """
        later = {number for number, lsn in state.schema_lsns.items() if lsn > after_lsn}
        numbers = sorted({_in_force(state, after_lsn), *later} & state.schemas.keys())
        return [state.schemas[number] for number in numbers if same_shape(state.schemas[number], relation)]


def _in_force(state: TableState, lsn: int) -> int:
    """The version that came into force last, at or before `lsn`."""
    return max((number for number, began in state.schema_lsns.items() if began <= lsn), default=0)
