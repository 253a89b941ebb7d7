"""Manifest entries: one JSON object each, hash-chained, and the only thing that makes anything
visible or permanent.

Invariants: `seq` is dense from 1; `previous_sha256` is the hash of the previous entry's bytes as
stored; `from_lsn` is the `through_lsn` of the previous entry, as the writer of this one knew it;
`through_lsn` is never before it and says that every transaction which ended at or before it is in
this entry or an earlier one. So no entry can follow one that was left out: neither its number, its
hash nor its position would fit. An unknown `format_version` or `kind` stops the reader
(FormatTooNew); an unknown field is kept in `extra`.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sluice.contract import codec
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
class Opened:
    """A writer took the pipeline over: entries of older epochs cannot follow this one.

    `origin` is which transactions the server was asked for, `any` or `none` (only those that began
    there). From `none` to `any` is a gap: what was left out does not come again, so tables that
    have their rows go stale with this entry.
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
class Changes:
    """Whole transactions, published; beside them those that were prepared and are not visible yet,
    and what became of earlier ones.
    """

    kind: ClassVar[str] = "changes"
    segments: tuple[Segment, ...]
    commits: Commits
    prepared: tuple[Prepared, ...] = ()
    ended: tuple[PreparedEnd, ...] = ()

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
        end LSN of its own.
        """
        bodies = {segment.body.end_lsn: segment.body for segment in self.segments if segment.body}
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
class Table:
    """A table's life cycle: it joined, its schema changed, its snapshot began, it went stale, it left.

    `reason` says why in one sentence (empty for ordinary steps), `lsn` is the commit or snapshot
    position at which it holds. A new `generation` starts the lake table again from the next snapshot.
    `schema` is given when a version is introduced, else None. `relfilenode` and `fingerprint` are
    what the catalog watch compares (0 and empty when not known). A generation becomes `live` by its
    final Copy.
    """

    kind: ClassVar[str] = "table"
    table_id: str
    schema_name: str
    table_name: str
    state: State
    generation: int
    reason: str = ""
    lsn: int = 0
    schema: TableSchema | None = None
    relfilenode: int = 0
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Initial rows of one generation of one table, as of `snapshot_lsn`.

    Every commit that ended at or before `snapshot_lsn` is in these rows, none that ended later is.
    `final` closes the snapshot and makes the table `live`: only then may it be applied. `relfilenode`
    and `fingerprint` are the catalog facts from before the snapshot, under which the rows were
    read: what changed since then shows when the catalog watch compares with them.
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


Body = Opened | Changes | Progress | Table | Snapshot
KINDS: dict[str, type[Any]] = {body.kind: body for body in (Opened, Changes, Progress, Table, Snapshot)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One link of the manifest. It holds what ended after `from_lsn`, up to and including
    `through_lsn`.

    `written_at` is the writer's clock, ISO 8601 UTC, for people only.
    """

    seq: int
    epoch: int
    previous_sha256: str
    from_lsn: int
    through_lsn: int
    written_at: str
    body: Body
    format_version: int = FORMAT_VERSION
    extra: dict[str, Any] = field(default_factory=dict)

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
}
"""What every kind has."""


def digest(data: bytes) -> str:
    """sha256 in lower-case hexadecimal, the form used everywhere on disk."""
    return hashlib.sha256(data).hexdigest()
