"""Manifest entries: one JSON object each, hash-chained, and the only thing that makes anything
visible or permanent.

Invariants: `seq` is dense from 1. `previous_sha256` is the hash of the previous entry's bytes as
stored. `from_lsn` is the `through_lsn` of the previous entry, as the writer of this one knew it.
`through_lsn` is never before it and says that every transaction which ended at or before it is in
this entry or an earlier one. So no entry can follow one that was left out: neither its number, its
hash nor its position would fit.
`examined_lsn` says that a look at the catalog began when everything up to there was stored, or that the source
would have signalled DDL since, and that what was found is in earlier entries: no table is complete beyond it,
wherever its rows are. An unknown `format_version` or `kind` stops the reader (FormatTooNew); an unknown
field is kept in `extra`.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from sluice.contract import codec
from sluice.contract.chunks import BlockRange
from sluice.contract.description import Description
from sluice.contract.reasons import Reason, sentence
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.contract.xids import NO_XIDS, XidIntervals
from sluice.errors import FormatTooNew, ManifestCorrupt

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class BodyCommit:
    """What a body segment could not know while it was written: the commit of the one transaction it
    holds rows of.

    `commit_time_us` is microseconds since 1970 UTC. Rows whose XID column is in `aborted_xids` were
    rolled back and do not exist.
    """

    end_lsn: int
    commit_time_us: int
    xid: int
    aborted_xids: XidIntervals = NO_XIDS


@dataclass(frozen=True, slots=True)
class Segment:
    """One Parquet file of changes of one table in one schema version.

    `key` is relative to the pipeline's prefix. `ops` counts rows by operation (`i`, `u`, `d`, `t`),
    before `body.aborted_xids` are dropped. `unchanged` counts, by attnum as text, the rows whose
    value of that column was not sent. `key_changes` counts updates that moved a row to another key.
    `key_ranges` gives, for key columns of integer and text types, the smallest and greatest key
    seen in new and old rows; a missing column means not known. `first_lsn` and `last_lsn` are
    commit end LSNs.
    """

    key: str
    table_id: str
    schema_version: int
    rows: int
    bytes: int
    sha256: str
    first_lsn: int
    last_lsn: int
    ops: dict[str, int]
    unchanged: dict[str, int] = field(default_factory=dict)
    key_changes: int = 0
    key_ranges: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    body: BodyCommit | None = None


@dataclass(frozen=True, slots=True)
class Commits:
    """The transactions of one entry in commit order, as parallel lists: forty thousand a second
    must not cost an object each.

    `origins` maps the position of a transaction that came from elsewhere to (origin name, origin
    LSN).
    """

    end_lsn: Sequence[int] = ()
    commit_time_us: Sequence[int] = ()
    xid: Sequence[int] = ()
    origins: dict[int, tuple[str, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.end_lsn)

    def origins_by_lsn(self) -> dict[int, tuple[str, int]]:
        """The origins by the end LSN of their transaction."""
        return {self.end_lsn[position]: origin for position, origin in self.origins.items()}


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a server left `timeline` for the next one of its history: at a promotion, or at the end of
    a recovery to a point in time.
    """

    timeline: int
    lsn: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Changes that nobody can have any more, for `reason`: those that ended in the range of the entry.

    `repairable` are tables (ids) whose rows can be compared with the lake by their keys. Their lake
    tables stand still in front of that range until a Repair closes the gap. All other tables go stale.
    """

    reason: str
    repairable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """A writer took the pipeline over: entries of older epochs cannot follow this one.

    `origin` is which transactions the server was asked for, `any` or `none` (only those that began
    there). From `none` to `any` is a gap: what was left out does not come again, so tables that
    have their rows go stale with this entry. `forks` is the history of `timeline`, oldest first:
    two standbys of one server can both be promoted to a timeline of the same number.

    With `lost` the pipeline goes on with another slot, which begins further on than the manifest
    ended: the entry itself moves the position, so that no writer can die between going on and
    saying what is missing. Prepared transactions from before are over, and what became of them is lost.
    """

    kind: ClassVar[str] = "opened"
    system_identifier: str
    timeline: int
    database: str
    database_oid: int
    slot: str
    publication: str
    two_phase: bool
    origin: str
    server_version: int
    start_lsn: int
    instance: str
    forks: tuple[Fork, ...] = ()
    lost: Lost | None = None


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """One file of a prepared transaction's rows. `shape` is the schema version they are written in,
    of one that the manifest had by then; a version of 0 says that they are kept as they were
    sent, in no version, and then it has their relation's columns. Both are published in what
    they are when it commits.
    """

    shape: TableSchema
    segment: Segment


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction that was prepared and has not ended: its rows are durable and not visible.

    Identified by `gid` and `end_lsn` (the end of its PREPARE): the gid may be empty, and may be
    used again afterwards. `rows` counts its changes, those of `aborted_xids` included; a
    transaction without any is kept too, for its end will be sent. `prepare_time_us` is microseconds
    since 1970 UTC.
    """

    gid: str
    xid: int
    end_lsn: int
    prepare_time_us: int
    rows: int
    parts: tuple[PreparedPart, ...] = ()
    aborted_xids: XidIntervals = NO_XIDS
    origin: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class PreparedEnd:
    """The prepared transaction of an earlier entry ended. `fate` is `committed` (its segments are
    in this entry), `rolled_back`, or `released`: the slot no longer decodes at PREPARE, so the
    server sends the whole transaction again when it commits. `passed_over`: it ended while the
    publication did not exist, and what became of it is not sent.
    """

    gid: str
    end_lsn: int
    fate: str


FATES = ("committed", "rolled_back", "released", "passed_over")


@dataclass(frozen=True, slots=True)
class Table:
    """A table's life cycle: it joined, its schema changed, its snapshot began, it went stale, it left.

    Without a `state` the table stays in the one that it is in, with its reason and position, and has what else is
    given from here on: a `schema` (from `lsn` on), names, facts of the catalog, a pause.
    `why` is the reason (None for ordinary steps), `lsn` is the commit or snapshot
    position at which it holds. A new `generation` starts the lake table again from the next snapshot.
    `schema` is given when a version is introduced, else None. `relfilenode` and `fingerprint` are
    what the catalog watch compares (0 and empty when not known). A generation becomes `live` by its
    final Snapshot. `paused` begins or ends a pause; None leaves it as it is, so that no other step of
    the table can end one.

    `cause` is one of `Cause`, of a stale table and of a generation that is not the first (empty: an
    ordinary step). `resync_at` is when a stale table is read again by itself, ISO 8601 UTC; empty
    when people decide. `path` is where the lake table of a generation stands, given with the entry
    that begins it, with braces as in `lake_names`; empty for that of the name. `described` is what the catalog says
    of the table for people, None where that is as it was.
    """

    kind: ClassVar[str] = "table"
    table_id: str
    schema_name: str
    table_name: str
    state: State | None
    generation: int
    why: Reason | None = None
    lsn: int = 0
    schema: TableSchema | None = None
    relfilenode: int = 0
    fingerprint: str = ""
    paused: bool | None = None
    cause: str = ""
    resync_at: str = ""
    path: str = ""
    described: Description | None = None

    @property
    def reason(self) -> str:
        """Why, as a sentence."""
        return sentence(
            self.why, self.state or State.LIVE, f"{self.schema_name}.{self.table_name}", resync_at=self.resync_at
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """Whole transactions, published; beside them those that were prepared and are not visible yet,
    and what became of earlier ones. In front of all of these, `tables` are what their rows say of their tables.
    """

    kind: ClassVar[str] = "changes"
    segments: tuple[Segment, ...]
    commits: Commits
    prepared: tuple[Prepared, ...] = ()
    ended: tuple[PreparedEnd, ...] = ()
    tables: tuple[Table, ...] = ()

    def first_commit_time_us(self, segment: Segment) -> int:
        """Commit time of the first transaction that `segment`, one of `segments`, has rows of; 0
        when no commit is named.
        """
        if segment.body is not None:
            return segment.body.commit_time_us
        times = self.commits.commit_time_us
        return times[min(bisect_left(self.commits.end_lsn, segment.first_lsn), len(times) - 1)] if times else 0

    def to_json(self) -> dict[str, Any]:
        """What all bodies of one transaction share is stated once, in `bodies`; a segment names the
        end LSN of its own. Raises ValueError if two bodies of one transaction differ.
        """
        bodies: dict[int, BodyCommit] = {}
        for segment in self.segments:
            if segment.body and bodies.setdefault(segment.body.end_lsn, segment.body) != segment.body:
                raise ValueError(f"two different commits end at {segment.body.end_lsn}")
        segments = [
            {**codec.to_json(replace(segment, body=None)), "body": segment.body.end_lsn if segment.body else None}
            for segment in self.segments
        ]
        return {
            **codec.fields_to_json(replace(self, segments=())),
            "segments": segments,
            "bodies": codec.to_json(tuple(bodies.values())),
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Changes":
        """Raises ValueError if a segment names a body that is not stated: a row that was rolled
        back must not come to life for want of a list.
        """
        bodies = {body.end_lsn: body for body in codec.from_json(tuple[BodyCommit, ...], value["bodies"])}
        segments = tuple(_segment(segment, bodies) for segment in value["segments"])
        rest = {name: item for name, item in value.items() if name != "bodies"}
        return replace(codec.fields_from_json(Changes, {**rest, "segments": []}), segments=segments)


def _segment(value: dict[str, Any], bodies: Mapping[int, BodyCommit]) -> Segment:
    segment = codec.from_json(Segment, {**value, "body": None})
    return segment if value["body"] is None else replace(segment, body=bodies[value["body"]])


@dataclass(frozen=True, slots=True)
class Progress:
    """Nothing happened up to `through_lsn`, and that may now be acknowledged."""

    kind: ClassVar[str] = "progress"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Initial rows of one generation of one table, as of `snapshot_lsn`: those in the blocks `ranges`.

    Every commit that ended at or before `snapshot_lsn` is in these rows, none that ended later is.
    `final` closes the snapshot and makes the table `live`: only then may it be applied. `relfilenode`
    and `fingerprint` are the catalog facts from before the snapshot, under which the rows were
    read: what changed since then shows when the catalog watch compares with them.

    A snapshot of several entries names in its first one the `relations` (oids) that it reads, and is
    final only with every block of each. How entries of several moments are put together is in
    `contract.chunks`. Without `relations` all entries are of one moment.

    With `awaits_shape` the table is `pending` instead of `live` after the final one: the catalog has shown another
    shape by then.
    """

    kind: ClassVar[str] = "snapshot"
    table_id: str
    generation: int
    schema_version: int
    snapshot_lsn: int
    segments: tuple[Segment, ...]
    final: bool
    relfilenode: int = 0
    fingerprint: str = ""
    relations: tuple[str, ...] = ()
    ranges: tuple[BlockRange, ...] = ()
    awaits_shape: bool = False


@dataclass(frozen=True, slots=True)
class Repair:
    """Rows of a live table that were read again from the source, each whole (`u`), and rows that the
    source does not have (`d`), as of `as_of_lsn`. Their LSN is `as_of_lsn`, and their ordinals are
    from REPAIR_ORDINAL on.

    No row of their keys changed after `as_of_lsn` up to `unchanged_through_lsn`, which is where this
    entry stands: so they are what the table holds for these keys there, whatever came before, and
    every change behind this entry comes after them.

    With a `gap_seq` it closes the gap that began with that entry. The rows are then all in which the
    source as of `as_of_lsn` differs from the table as of that entry, and they belong there: in front of
    the changes behind it, of which those up to `as_of_lsn` are in the rows. The table is live again.
    """

    kind: ClassVar[str] = "repair"
    table_id: str
    generation: int
    schema_version: int
    as_of_lsn: int
    unchanged_through_lsn: int
    segments: tuple[Segment, ...]
    gap_seq: int = 0


REPAIR_ORDINAL = 1 << 61
"""No transaction has so many rows: a repair comes after every change that ended at the same LSN. It can be doubled: the
applier does so where it cuts a change in two.
"""

Body = Opened | Changes | Progress | Table | Snapshot | Repair
KINDS: dict[str, type[Any]] = {body.kind: body for body in (Opened, Changes, Progress, Table, Snapshot, Repair)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One link of the manifest. It holds what ended after `from_lsn`, up to and including
    `through_lsn`. What the catalog shows was looked at through `examined_lsn`.

    `written_at` is the writer's clock, ISO 8601 UTC, for people only.
    """

    seq: int
    epoch: int
    previous_sha256: str
    from_lsn: int
    through_lsn: int
    written_at: str
    body: Body
    examined_lsn: int = 0
    format_version: int = FORMAT_VERSION
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[Table, ...]:
        """What it says of tables, in order, in front of any rows that it has."""
        if isinstance(self.body, Table):
            return (self.body,)
        return self.body.tables if isinstance(self.body, Changes) else ()

    @property
    def newest_commit_us(self) -> int:
        """When the last of its transactions was committed, by the source's clock (unix microseconds); 0 without any."""
        return max(self.body.commits.commit_time_us, default=0) if isinstance(self.body, Changes) else 0

    @property
    def committed_by_us(self) -> int:
        """No transaction of which it has rows was committed later (unix microseconds); 0 without rows. Of rows that
        were read, and of a clock that went back, only the writer's own clock knows.
        """
        if isinstance(self.body, Changes):
            return self.newest_commit_us
        try:
            written_at = datetime.fromisoformat(self.written_at).timestamp()
        except ValueError:
            return 0
        return int(written_at * 1e6) if isinstance(self.body, Snapshot | Repair) else 0

    def encode(self) -> bytes:
        """The bytes to store: equal for equal entries."""
        head = {name: getattr(self, name) for name in _HEAD}
        own = {"format_version": self.format_version, "kind": self.body.kind, self.body.kind: self.body}
        return codec.encode({**self.extra, **head, **own})

    @staticmethod
    def decode(data: bytes) -> "Entry":
        """The entry that `data` spells. Raises ManifestCorrupt or FormatTooNew."""
        value = codec.parse(data, "a manifest entry")
        codec.check_version(value, version=FORMAT_VERSION, what="a manifest entry")
        if "kind" not in value:
            raise ManifestCorrupt("a manifest entry lacks its kind")
        kind = value["kind"]
        if not isinstance(kind, str) or kind not in KINDS:
            raise FormatTooNew(
                f"a manifest entry is of kind {str(kind)[:40]!r}, which this Sluice does not have",
                hint="run the Sluice version that wrote the manifest, or a newer one",
            )
        known = {"format_version", "kind", kind, *_HEAD}
        try:
            return Entry(
                **{name: codec.from_json(of, value[name]) for name, of in _HEAD.items()},
                body=codec.from_json(KINDS[kind], value[kind]),
                format_version=value["format_version"],
                extra={name: item for name, item in value.items() if name not in known},
            )
        except KeyError as error:
            raise ManifestCorrupt(f"a manifest entry of kind {kind!r} lacks {error.args[0]}") from error
        except codec.Malformed as error:
            raise ManifestCorrupt(f"a manifest entry of kind {kind!r} is damaged: {error}") from error


_HEAD: dict[str, type[Any]] = {
    "seq": int,
    "epoch": int,
    "previous_sha256": str,
    "from_lsn": int,
    "through_lsn": int,
    "written_at": str,
    "examined_lsn": int,
}
"""What every kind has."""


def digest(data: bytes) -> str:
    """sha256 in lower-case hexadecimal, the form used everywhere on disk."""
    return hashlib.sha256(data).hexdigest()
