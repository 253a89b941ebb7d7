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
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.contract.xids import NO_XIDS, XidIntervals
from sluice.errors import FormatTooNew, ManifestCorrupt

FORMAT_VERSION = 1
NOTHING_ABORTED: Mapping[int, XidIntervals] = {}


@dataclass(frozen=True, slots=True)
class BodyCommit:
    """What a body segment could not know while it was written: the commit of the one transaction it
    holds rows of.

    `commit_time_us` is microseconds since 1970 UTC. Rows whose XID column is in `aborted_xids` were
    rolled back and do not exist. In JSON a body has only the number of their intervals: all bodies
    of one transaction share them, so the entry states them once, by end LSN.
    """

    end_lsn: int
    commit_time_us: int
    xid: int
    aborted_xids: XidIntervals = NO_XIDS

    def to_json(self) -> dict[str, Any]:
        return {
            "end_lsn": self.end_lsn,
            "commit_time_us": self.commit_time_us,
            "xid": self.xid,
            "aborted_intervals": len(self.aborted_xids),
        }

    @staticmethod
    def from_json(value: dict[str, Any], aborted: Mapping[int, XidIntervals]) -> "BodyCommit":
        """Raises ValueError if `aborted` does not have what the body needs: a row that was rolled
        back must not come to life for want of a list.
        """
        xids = aborted.get(value["end_lsn"], NO_XIDS) if value["aborted_intervals"] else NO_XIDS
        if len(xids) != value["aborted_intervals"]:
            raise ValueError("a body lacks the list of its rolled-back subtransactions")
        return BodyCommit(value["end_lsn"], value["commit_time_us"], value["xid"], xids)


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

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "table_id": self.table_id,
            "schema_version": self.schema_version,
            "rows": self.rows,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "first_lsn": self.first_lsn,
            "last_lsn": self.last_lsn,
            "ops": self.ops,
            "unchanged": self.unchanged,
            "key_changes": self.key_changes,
            "key_ranges": {name: list(pair) for name, pair in self.key_ranges.items()},
            "body": self.body.to_json() if self.body else None,
        }

    @staticmethod
    def from_json(value: dict[str, Any], aborted: Mapping[int, XidIntervals] = NOTHING_ABORTED) -> "Segment":
        """`aborted` has the rolled-back subtransactions by the end LSN of their transaction."""
        return Segment(
            key=value["key"],
            table_id=value["table_id"],
            schema_version=value["schema_version"],
            rows=value["rows"],
            bytes=value["bytes"],
            sha256=value["sha256"],
            first_lsn=value["first_lsn"],
            last_lsn=value["last_lsn"],
            ops=value["ops"],
            unchanged=value["unchanged"],
            key_changes=value["key_changes"],
            key_ranges={name: (pair[0], pair[1]) for name, pair in value["key_ranges"].items()},
            body=BodyCommit.from_json(value["body"], aborted) if value["body"] else None,
        )


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

    def to_json(self) -> dict[str, Any]:
        return {
            "end_lsn": list(self.end_lsn),
            "commit_time_us": list(self.commit_time_us),
            "xid": list(self.xid),
            "origins": {str(position): list(origin) for position, origin in self.origins.items()},
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Commits":
        return Commits(
            end_lsn=value["end_lsn"],
            commit_time_us=value["commit_time_us"],
            xid=value["xid"],
            origins={int(position): (origin[0], origin[1]) for position, origin in value["origins"].items()},
        )


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

    def to_json(self) -> dict[str, Any]:
        return _plain(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Opened":
        return Opened(**{item.name: value[item.name] for item in fields(Opened)})


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """One file of a prepared transaction's rows. `shape` is the schema version they are written in,
    of one that the manifest had by then; a version of 0 says that they are kept as they were
    sent, in no version, and then it has their relation's columns. Both are published in what
    they are when it commits.
    """

    shape: TableSchema
    segment: Segment

    def to_json(self) -> dict[str, Any]:
        return {"shape": self.shape.to_json(), "segment": self.segment.to_json()}

    @staticmethod
    def from_json(value: dict[str, Any]) -> "PreparedPart":
        return PreparedPart(TableSchema.from_json(value["shape"]), Segment.from_json(value["segment"]))


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

    def to_json(self) -> dict[str, Any]:
        return {
            "gid": self.gid,
            "xid": self.xid,
            "end_lsn": self.end_lsn,
            "prepare_time_us": self.prepare_time_us,
            "rows": self.rows,
            "parts": [part.to_json() for part in self.parts],
            "aborted_xids": self.aborted_xids.to_json(),
            "origin": list(self.origin) if self.origin else None,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Prepared":
        return Prepared(
            gid=value["gid"],
            xid=value["xid"],
            end_lsn=value["end_lsn"],
            prepare_time_us=value["prepare_time_us"],
            rows=value["rows"],
            parts=tuple(PreparedPart.from_json(part) for part in value["parts"]),
            aborted_xids=XidIntervals.from_json(value["aborted_xids"]),
            origin=(value["origin"][0], value["origin"][1]) if value["origin"] else None,
        )


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

    def to_json(self) -> dict[str, Any]:
        return _plain(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> "PreparedEnd":
        return PreparedEnd(value["gid"], value["end_lsn"], value["fate"])


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
        bodies = [segment.body for segment in self.segments if segment.body]
        return {
            "segments": [segment.to_json() for segment in self.segments],
            "commits": self.commits.to_json(),
            "aborted_xids": {
                str(body.end_lsn): body.aborted_xids.to_json()
                for body in {body.end_lsn: body for body in bodies}.values()
                if body.aborted_xids
            },
            "prepared": [transaction.to_json() for transaction in self.prepared],
            "ended": [end.to_json() for end in self.ended],
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Changes":
        aborted = {int(end_lsn): XidIntervals.from_json(xids) for end_lsn, xids in value["aborted_xids"].items()}
        return Changes(
            segments=tuple(Segment.from_json(segment, aborted) for segment in value["segments"]),
            commits=Commits.from_json(value["commits"]),
            prepared=tuple(Prepared.from_json(transaction) for transaction in value["prepared"]),
            ended=tuple(PreparedEnd.from_json(end) for end in value["ended"]),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """Nothing happened up to `through_lsn`, and that may now be acknowledged."""

    kind: ClassVar[str] = "progress"

    def to_json(self) -> dict[str, Any]:
        return {}

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Progress":  # noqa: ARG004 - one form for every kind
        return Progress()


@dataclass(frozen=True, slots=True)
class Table:
    """A table's life cycle: it joined, its schema changed, its copy began, it went stale, it left.

    `reason` says why in one sentence (empty for ordinary steps),
    `lsn` is the commit or snapshot position at which it holds. A new `generation` starts the lake
    table again from the next copy. `schema` is given when a version is introduced, else None.
    `relfilenode` and `fingerprint` are what the catalog watch compares (0 and empty when not
    known). A generation becomes `live` by its final Copy.
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

    def to_json(self) -> dict[str, Any]:
        return {
            "table_id": self.table_id,
            "schema_name": self.schema_name,
            "table_name": self.table_name,
            "state": self.state,
            "generation": self.generation,
            "reason": self.reason,
            "lsn": self.lsn,
            "schema": self.schema.to_json() if self.schema else None,
            "relfilenode": self.relfilenode,
            "fingerprint": self.fingerprint,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Table":
        return Table(
            table_id=value["table_id"],
            schema_name=value["schema_name"],
            table_name=value["table_name"],
            state=State(value["state"]),
            generation=value["generation"],
            reason=value["reason"],
            lsn=value["lsn"],
            schema=TableSchema.from_json(value["schema"]) if value["schema"] else None,
            relfilenode=value["relfilenode"],
            fingerprint=value["fingerprint"],
        )


@dataclass(frozen=True, slots=True)
class Copy:
    """Initial rows of one generation of one table, as of `snapshot_lsn`.

    Every commit that ended at or before `snapshot_lsn` is in these rows, none that ended later is.
    `final` closes the copy and makes the table `live`: only then may it be applied. `relfilenode`
    and `fingerprint` are the catalog facts from before the snapshot, under which the rows were
    read: what changed since then shows when the catalog watch compares with them.
    """

    kind: ClassVar[str] = "copy"
    table_id: str
    generation: int
    schema_version: int
    snapshot_lsn: int
    segments: tuple[Segment, ...]
    final: bool
    relfilenode: int = 0
    fingerprint: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "table_id": self.table_id,
            "generation": self.generation,
            "schema_version": self.schema_version,
            "snapshot_lsn": self.snapshot_lsn,
            "segments": [segment.to_json() for segment in self.segments],
            "final": self.final,
            "relfilenode": self.relfilenode,
            "fingerprint": self.fingerprint,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Copy":
        return Copy(
            table_id=value["table_id"],
            generation=value["generation"],
            schema_version=value["schema_version"],
            snapshot_lsn=value["snapshot_lsn"],
            segments=tuple(Segment.from_json(segment) for segment in value["segments"]),
            final=value["final"],
            relfilenode=value["relfilenode"],
            fingerprint=value["fingerprint"],
        )


Body = Opened | Changes | Progress | Table | Copy
KINDS: dict[str, type[Any]] = {body.kind: body for body in (Opened, Changes, Progress, Table, Copy)}


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
        """The bytes to store: deterministic for equal entries."""
        head = {
            "format_version": self.format_version,
            "seq": self.seq,
            "epoch": self.epoch,
            "kind": self.body.kind,
            "previous_sha256": self.previous_sha256,
            "from_lsn": self.from_lsn,
            "through_lsn": self.through_lsn,
            "written_at": self.written_at,
        }
        value = {**self.extra, **head, self.body.kind: self.body.to_json()}
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()

    @staticmethod
    def decode(data: bytes) -> "Entry":
        """The entry that `data` spells. Raises ManifestCorrupt or FormatTooNew."""
        try:
            value = json.loads(data)
            version = value["format_version"]
            kind = value["kind"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ManifestCorrupt("a manifest entry is not readable JSON of the expected form") from error
        if not isinstance(version, int) or version > FORMAT_VERSION or not isinstance(kind, str) or kind not in KINDS:
            raise FormatTooNew(
                f"a manifest entry has format version {version} and kind {kind!r}; this Sluice reads "
                f"up to version {FORMAT_VERSION}",
                hint="run the Sluice version that wrote the manifest, or a newer one",
            )
        known = {
            "format_version",
            "seq",
            "epoch",
            "kind",
            "previous_sha256",
            "from_lsn",
            "through_lsn",
            "written_at",
            kind,
        }
        try:
            return Entry(
                seq=value["seq"],
                epoch=value["epoch"],
                previous_sha256=value["previous_sha256"],
                from_lsn=value["from_lsn"],
                through_lsn=value["through_lsn"],
                written_at=value["written_at"],
                body=KINDS[kind].from_json(value[kind]),
                format_version=version,
                extra={name: item for name, item in value.items() if name not in known},
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ManifestCorrupt(
                f"a manifest entry of kind {kind!r} lacks a field or has one of the wrong type"
            ) from error


def digest(data: bytes) -> str:
    """sha256 in lower-case hexadecimal, the form used everywhere on disk."""
    return hashlib.sha256(data).hexdigest()


def _plain(value: Any) -> dict[str, Any]:
    return {item.name: getattr(value, item.name) for item in fields(value)}
