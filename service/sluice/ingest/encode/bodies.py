"""Rows of transactions that have not ended: what waits in memory, and what waits in the object
store.

Invariant: rows are written in a schema version that the manifest has, or they are kept as they were
sent. There is no third way: a shape that is not known for certain is never guessed. Plain values;
the builder decides what becomes of them.
"""

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from sluice.contract.entries import Prepared, Segment
from sluice.contract.schema import TableSchema
from sluice.ingest.encode.rows import EncodedRows
from sluice.ingest.encode.undecoded import SentRows
from sluice.protocol.messages import RelationVersion
from sluice.tables.schemas import build_schema, relation_sent_as

AS_SENT = 0
"""The schema version of a file that holds rows as they were sent: none."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stored file of an open transaction. `shape` is the schema version in which its rows are
    written; AS_SENT tells only as what they came. `announced` are the announcements under which they
    came, in order: one for rows as they were sent.
    """

    announced: tuple[RelationVersion, ...]
    shape: TableSchema
    file: "Future[Segment]"

    @property
    def as_sent(self) -> bool:
        return self.shape.version == AS_SENT


@dataclass(slots=True)
class Body:
    """One transaction's. `decided` ones have committed at the source already, so their rows were
    brought into their final schema version on arrival.

    `unsettled` are the oids of tables of which it has rows as they were sent: what follows those is
    kept so too, in whatever shape it comes.
    """

    decided: bool = False
    xid: int = 0
    waiting: deque[tuple[RelationVersion, EncodedRows | SentRows]] = field(default_factory=deque)
    waiting_bytes: int = 0
    stored: list[Part] = field(default_factory=list)
    stored_bytes: int = 0
    unsettled: set[int] = field(default_factory=set)

    def keep(self, relation: RelationVersion, rows: EncodedRows | SentRows, *, xid: int) -> None:
        self.xid = xid
        if isinstance(rows, SentRows):
            self.unsettled.add(relation.oid)
        self.waiting.append((relation, rows))
        self.waiting_bytes += rows.nbytes

    def take(self) -> deque[tuple[RelationVersion, EncodedRows | SentRows]]:
        """What waits, in the order received; nothing waits afterwards."""
        taken, self.waiting, self.waiting_bytes = self.waiting, deque(), 0
        return taken


@dataclass(slots=True)
class PreparedTransaction:
    """A body that waits for COMMIT PREPARED. `recorded` once a unit was cut that holds it."""

    fact: Prepared
    body: Body
    recorded: bool


def sent_shape(relation: RelationVersion) -> TableSchema:
    """What is recorded of rows that were kept as they were sent. Nothing is read or written by its
    lake types.
    """
    return build_schema(relation, None, None, AS_SENT)


def recorded(prepared: Prepared) -> PreparedTransaction:
    """A transaction that an earlier session recorded."""
    body = Body(xid=prepared.xid)
    for part in prepared.parts:
        file: Future[Segment] = Future()
        file.set_result(part.segment)
        body.stored.append(Part((relation_sent_as(part.shape),), part.shape, file))
        body.stored_bytes += part.segment.bytes
    return PreparedTransaction(prepared, body, recorded=True)
