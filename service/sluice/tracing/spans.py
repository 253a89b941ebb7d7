"""The spans of one manifest entry, as values. Pure.

The entry's hash names its trace and spans. So ingest, which knows when the entry was received and stored, and the
applier, which knows when it can be read in the lake, write into one trace without a word between them, and a process
that says something twice says it about the same span.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice import lsn
from sluice.contract.entries import Changes, Segment

RECEIVED, DURABLE, VISIBLE = "sluice.received", "sluice.durable", "sluice.visible"
PREFIX = "traceparent"
"""Of the logical message by which a transaction names the trace that it belongs to."""
MOST_CONTEXTS = 128
"""Of one entry; as many links as a span may have."""
_TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MESSAGES = "0"
"""The table of logical messages, as `sluice.tables.messages` has it."""


@dataclass(frozen=True, slots=True)
class SpanId:
    """A span of a trace, as 32 and 16 hexadecimal digits."""

    trace: str
    span: str


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span. Times are in nanoseconds since 1970."""

    name: str
    id: SpanId
    parent: SpanId | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int]
    links: tuple[SpanId, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """The span of an application within which a transaction was committed."""

    id: SpanId
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class Published:
    """What spans say of a stored entry. Times in unix seconds; `received_at` is when its last change was here, 0 for
    who does not know. `messages` are the segments with logical messages.
    """

    seq: int
    sha256: str
    from_lsn: int
    through_lsn: int
    durable_at: float
    first_commit_us: int
    last_commit_us: int
    transactions: int
    rows: int
    bytes: int
    tables: int
    received_at: float = 0.0
    messages: tuple[Segment, ...] = field(default=(), repr=False)

    @staticmethod
    def of(
        changes: Changes,
        *,
        seq: int,
        sha256: str,
        from_lsn: int,
        through_lsn: int,
        durable_at: float,
        received_at: float = 0.0,
    ) -> "Published | None":
        """None for an entry without a transaction."""
        times = changes.commits.commit_time_us
        if not times:
            return None
        return Published(
            seq=seq,
            sha256=sha256,
            from_lsn=from_lsn,
            through_lsn=through_lsn,
            durable_at=durable_at,
            first_commit_us=min(times),
            last_commit_us=max(times),
            transactions=len(times),
            rows=sum(segment.rows for segment in changes.segments),
            bytes=sum(segment.bytes for segment in changes.segments),
            tables=len({segment.table_id for segment in changes.segments}),
            received_at=received_at,
            messages=tuple(segment for segment in changes.segments if segment.table_id == _MESSAGES),
        )

    def span(self, stage: str) -> SpanId:
        """The span of `stage` of this entry."""
        digest = hashlib.sha256(f"{self.sha256} {stage}".encode()).hexdigest()
        return SpanId(self.sha256[:32], digest[:16])

    def attributes(self, pipeline: str) -> dict[str, str | int]:
        return {
            "sluice.pipeline": pipeline,
            "sluice.entry.seq": self.seq,
            "sluice.entry.from_lsn": lsn.show(self.from_lsn),
            "sluice.entry.through_lsn": lsn.show(self.through_lsn),
            "sluice.entry.transactions": self.transactions,
            "sluice.entry.rows": self.rows,
            "sluice.entry.bytes": self.bytes,
            "sluice.entry.tables": self.tables,
        }


def context_of(content: bytes) -> SpanId | None:
    """What a message of an application says (W3C Trace Context, version 00); None for anything else, and for a trace
    that is not sampled.
    """
    found = _TRACEPARENT.fullmatch(content.strip())
    if found is None or not int(found[3], 16) & 1 or not int(found[1], 16) or not int(found[2], 16):
        return None
    return SpanId(found[1].decode(), found[2].decode())


def when_stored(entry: Published, contexts: Iterable[Context], pipeline: str) -> list[Span]:
    """Received and durable, and for each transaction with a context one span in the trace of its application."""
    said, contexts = entry.attributes(pipeline), tuple(contexts)
    received, durable = _ns(entry.received_at), _ns(entry.durable_at)
    links = tuple(context.id for context in contexts)
    first, second = entry.span(RECEIVED), entry.span(DURABLE)
    return [
        _span(RECEIVED, first, None, entry.first_commit_us * 1000, received, said, links),
        _span(DURABLE, second, first, received, durable, said, links),
        *_beside(entry, DURABLE, contexts, durable, said),
    ]


def when_visible(
    entry: Published, contexts: Iterable[Context], pipeline: str, *, visible_at: float, left_out: int
) -> list[Span]:
    """Visible, and for each transaction with a context one span in the trace of its application. `left_out` lake
    tables of the entry do not follow now, and are not waited for.
    """
    said, contexts = {**entry.attributes(pipeline), "sluice.entry.tables_left_out": left_out}, tuple(contexts)
    visible, links = _ns(visible_at), tuple(context.id for context in contexts)
    own = _span(VISIBLE, entry.span(VISIBLE), entry.span(DURABLE), _ns(entry.durable_at), visible, said, links)
    return [own, *_beside(entry, VISIBLE, contexts, visible, said)]


def _beside(
    entry: Published, stage: str, contexts: Iterable[Context], end_ns: int, said: Mapping[str, str | int]
) -> list[Span]:
    found = []
    for context in contexts:
        digest = hashlib.sha256(f"{entry.sha256} {stage} {context.id} {context.commit_time_us}".encode()).hexdigest()
        own = SpanId(context.id.trace, digest[:16])
        found.append(_span(stage, own, context.id, context.commit_time_us * 1000, end_ns, said, (entry.span(stage),)))
    return found


def _span(
    name: str,
    own: SpanId,
    parent: SpanId | None,
    start_ns: int,
    end_ns: int,
    said: Mapping[str, str | int],
    links: tuple[SpanId, ...],
) -> Span:
    # The clocks of the source, of ingest and of the applier are three: no span ends before it begins.
    return Span(name, own, parent, min(start_ns, end_ns), end_ns, said, links)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
