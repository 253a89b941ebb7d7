"""What reaches the life of a table, and what is decided of it: values, and nothing else.

Invariant: an event has all that its producer knows; what only the catalog can say is asked for by `NeedFacts`. A
decision is carried out by whoever asked, in order, or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from sluice.contract.catalog_facts import TableFacts, Visible
from sluice.contract.description import Description
from sluice.contract.entries import Snapshot, Table
from sluice.contract.reasons import Reason
from sluice.contract.schema import TableSchema
from sluice.manifest.values import PipelineState, TableState
from sluice.protocol.messages import RelationVersion
from sluice.tables.catalog_diff import Unseen
from sluice.tables.policies import Policies
from sluice.tables.selection import matches, selects

Answer = TypeVar("Answer", covariant=True)


class Event(Generic[Answer]):
    """Each is answered with an `Answer`."""

    __slots__ = ()


class AboutTable(Event[Answer]):
    """It is decided behind what rows said of the table `oid`, which is stored with these rows. That may take until the
    rest of a large transaction has come. An event that does not wait for it is left meanwhile, without an answer:
    whoever brought it brings it again.
    """

    __slots__ = ()
    oid: int
    waits: ClassVar[bool] = False


class RowsSaid(Event[Answer]):
    """Said by rows of the transaction that committed at `position_lsn` (None: it is not known whether, and where, it
    commits): what is decided is stored with them.
    """

    __slots__ = ()
    position_lsn: int | None


@dataclass(frozen=True, slots=True)
class CatalogShows(AboutTable[Answer]):
    """The catalog has a table as `facts` say. It waits for the table, too, that leaves it its name, or the lake path of
    that name.
    """

    facts: TableFacts

    @property
    def oid(self) -> int:  # type: ignore[override] # which nobody writes
        return self.facts.oid


@dataclass(frozen=True, slots=True)
class Configured(Event[None]):
    """Other settings hold. Tables join and leave with the next look at the catalog. `patterns` are those of
    `source.tables`.
    """

    patterns: tuple[str, ...]
    policies: Policies

    def selected(self, schema_name: str, table_name: str) -> bool:
        """Whether a table of this name is asked for; no patterns mean every one."""
        return matches(self.patterns, schema_name, table_name)

    def selects(self, facts: TableFacts, known: TableState | None) -> bool:
        """Likewise for a table that may be carried already, under another name: see `selection.selects`."""
        return selects(self.patterns, facts, known)


@dataclass(frozen=True, slots=True)
class RowsCame(RowsSaid[TableSchema | None]):
    """Committed rows of `relation`. The answer is their schema version, None when the table is not carried.

    `position_lsn` is where the first commit record of these rows begins, `xid` the transaction of the first of them,
    not its savepoint. The position must be that for every way in which a transaction can come: one recorded for one
    of its rows is compared with those of its others, and with those of the same rows when they come again.
    `reaches_lsn` is a position within the last of these commit records. `columns_said` are columns of the table that
    commands of earlier transactions wrote, by attnum, with the end of the last transaction that is known to have
    written each; None where the server does not say it.
    """

    relation: RelationVersion
    position_lsn: int
    reaches_lsn: int
    xid: int
    columns_said: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class OpenRowsCommitted(RowsSaid[bool]):
    """Rows were written in `schema` while their transaction was open, and it has committed now. The answer is whether
    they may be published so. `columns_said`: see RowsCame.
    """

    relation: RelationVersion
    schema: TableSchema
    position_lsn: int
    xid: int
    columns_said: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class ValueLost(RowsSaid[None]):
    """A change cannot be written. One from before the table's snapshot is in that."""

    oid: int
    reason: str
    position_lsn: int | None


@dataclass(frozen=True, slots=True)
class EqualityLost(AboutTable[None]):
    """The lake table no longer equals the source: nothing more is spooled for it until it is read again, by itself
    where the policy says so.

    A table that is not known yet will be read after the commit that makes it known, so that nothing of it is missing.
    With `generation`, only while that one is in force.
    """

    oid: int
    unseen: Unseen
    lsn: int
    generation: int | None = None
    waits = True


@dataclass(frozen=True, slots=True)
class ConnectionEnded(Event[None]):
    """What rows said and is not stored was dropped with them: they come again, and say it again."""


@dataclass(frozen=True, slots=True)
class CatalogSeen(CatalogShows[bool]):
    """One look's facts of a published table; what was committed when they were read ended at or before `wal_end`.
    `before` are the states of all tables from before the look. A table that has changed since is left for the next
    look: the facts may be older than its state. The answer is whether the manifest has all that they say.
    """

    before: Mapping[str, TableState]
    wal_end: int


@dataclass(frozen=True, slots=True)
class LookEnded(Event[None]):
    """A look at every published table is complete that began when the server was at `before_lsn`. What it found
    changed came as CatalogSeen: of every other table the rows that committed by then have the columns of its newest
    shape, but for those of transactions that it did not see.
    """

    before_lsn: int
    visible: Visible


@dataclass(frozen=True, slots=True)
class TableGone(AboutTable[None]):
    """The source no longer publishes the table, or nobody asks for it. No reason: it is forgotten."""

    oid: int
    why: Reason | None


@dataclass(frozen=True, slots=True)
class SnapshotAsked(CatalogShows[bool]):
    """An operator asks for the table's next generation. The answer is False when its snapshot is under way already, or
    when it cannot be carried.
    """

    waits = True


@dataclass(frozen=True, slots=True)
class SnapshotDue(CatalogShows[TableSchema | None]):
    """A table that waits for its rows is about to be read under `facts`. The answer is the shape in which it can be,
    None when it is not to be read (any more). A table that changed since it joined begins another generation.
    """


@dataclass(frozen=True, slots=True)
class SnapshotRead(AboutTable[bool]):
    """Rows of a snapshot are to be published; the final entry makes its table live. The answer is False when the table
    has moved on meanwhile, even before the rows were read, a look has examined what they lack, or other column rules
    hold by now: then nothing is published.
    """

    entry: Snapshot
    waits = True

    @property
    def oid(self) -> int:  # type: ignore[override] # which nobody writes
        return int(self.entry.table_id)


@dataclass(frozen=True, slots=True)
class SnapshotSpoiled(CatalogShows[None]):
    """The rows of a snapshot that is under way in `generation` are of no use: the next one begins under today's facts,
    later if that happens again and again.
    """

    unseen: Unseen
    generation: int


@dataclass(frozen=True, slots=True)
class SnapshotDelayed(AboutTable[None]):
    """The snapshot of a table cannot be taken because of `what`, and is tried again. Stored, so that whoever looks
    from outside sees it.
    """

    oid: int
    what: str


@dataclass(frozen=True, slots=True)
class SnapshotRefused(CatalogShows[None]):
    """The server refused to let the table be read, as `what` says, in `generation`. It is tried again after a pause,
    or when its facts are other ones.
    """

    what: str
    generation: int


@dataclass(frozen=True, slots=True)
class PauseAsked(AboutTable[bool]):
    """An operator begins or ends a pause: what is spooled of the table is not applied while it lasts, and everything
    else goes on. The answer is False for a table that is not known: rows may have been the only word of it.
    """

    oid: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Described(AboutTable[bool]):
    """The catalog says `description` of the table for people. The answer is False for a table that is not known."""

    oid: int
    description: Description


# what is decided


@dataclass(frozen=True, slots=True)
class TableChange:
    """The manifest is to say so."""

    entry: Table | Snapshot


@dataclass(frozen=True, slots=True)
class Counted:
    """A change of shape of this kind was `followed`, or turned its table `stale`."""

    kind: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Said:
    """A line of the log."""

    level: str
    event: str
    fields: Mapping[str, Any]


Decision = TableChange | Counted | Said


@dataclass(frozen=True, slots=True)
class NeedFacts:
    """Nothing is decided: the catalog must be asked for the table `oid`, or for the server's position alone (None).
    The same event is then decided on what the state is by that time.
    """

    oid: int | None


@dataclass(frozen=True, slots=True)
class Decided(Generic[Answer]):
    answer: Answer
    decisions: tuple[Decision, ...]


@dataclass(slots=True)
class Answers:
    """What the catalog has said: it knows today's shapes only, and may be ahead of the stream. None is a table that
    is gone. `wal_end` is the server's position after all of `facts` were read.
    """

    wal_end: int | None = None
    facts: dict[int, TableFacts | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """What an event is decided on: `state` has all that was decided before, and the manifest is durable through
    `through_lsn`. `seconds` are those of a monotonic clock.
    """

    state: PipelineState
    through_lsn: int
    now: datetime
    seconds: float
    answers: Answers = field(default_factory=Answers)
