"""What the manifest says of the pipeline and of each table, as of one entry. Values that never change.

How an entry leads from one to the next is `manifest.state`.
"""

from dataclasses import dataclass, field

from sluice.contract.description import NOTHING, Description
from sluice.contract.entries import Opened, Prepared
from sluice.contract.lake_layout import PLAIN, LakeLayout
from sluice.contract.reasons import Reason, sentence
from sluice.contract.resyncs import Resyncs
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt
from sluice.manifest.gaps import Gap, Gaps, after_lsn
from sluice.manifest.snapshot_state import SnapshotState, published_kinds


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that is in force since `since` (ISO 8601 UTC), and what was spooled for the table in
    its generation from then on: none of it is in the lake.
    """

    since: str
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as of the last entry. `generation_seq` is the number of the Table entry that began
    the generation, `lsn` and `why` belong to `state`.

    A change of shape leaves `lsn` alone: what committed at or before it is in the snapshot.
    `schema_lsns` has by version where each shape of this generation came into force, 0 for the one
    that it began in, and `known_lsns` through where the catalog had been examined when the table was last known to
    have the shape before it. `schemas` holds every version ever introduced. `relfilenode` and `fingerprint` are
    the last known ones. `since` is when `state` began, as the entry says that put the table into it
    (ISO 8601 UTC). `stated_seq` is the number of the newest
    Table entry, or of the `opened` that put the table into its state. `paused` is beside the state:
    a pause outlasts changes of shape, a stale table and its resync, and ends when it is resumed or
    the table leaves. `cause` and `resync_at` are
    those of the newest Table entry, `resyncs` counts the generations after the first. `path` is
    where the lake table of this generation stands, below the lake, and `pattern` where those of its targets with
    other names do: see `contract.lake_names.split`. `first_name` is (schema, name)
    by which the table joined. All `schemas` have its present name. `unsent_lsn` is the newest position of a
    change of this generation that came without all its values before the first chunk of its snapshot did.
    `gaps` are those of this generation. `schema_seq` is the entry that introduced the newest shape, `held_lsn`
    through where the catalog had been examined when the table ceased to be live. `described` is what the catalog
    said last of the table for people, without what no column rule lets into the lake.

    Of a forgotten table only what tells it from every other is left, and in `schema_lsns` the newest
    version it had: should its id come back, it goes on with the next generation and version.
    """

    table_id: str
    schema_name: str
    table_name: str
    state: State
    why: Reason | None
    lsn: int
    generation: int
    generation_seq: int
    schemas: dict[int, TableSchema]
    schema_lsns: dict[int, int] = field(default_factory=dict)
    known_lsns: dict[int, int] = field(default_factory=dict)
    relfilenode: int = 0
    fingerprint: str = ""
    snapshot: SnapshotState | None = None
    unsent_lsn: int = 0
    since: str = ""
    cause: str = ""
    resync_at: str = ""
    resyncs: Resyncs = field(default_factory=Resyncs)
    path: str = ""
    pattern: str = ""
    first_name: tuple[str, str] = ("", "")
    paused: Pause | None = None
    gaps: Gaps = ()
    stated_seq: int = 0
    schema_seq: int = 0
    held_lsn: int = 0
    described: Description = NOTHING

    @property
    def key(self) -> str:
        """By which it is known beside all others."""
        return self.table_id

    @property
    def source_name(self) -> str:
        """The name of the source table, by which its settings are known."""
        return f"{self.schema_name}.{self.table_name}"

    @property
    def target_name(self) -> str:
        """The name of the lake table, empty for that of its source table."""
        return ""

    @property
    def keeps_changes(self) -> bool:
        """Whether the lake table keeps every change: then rows that are read again are none of its rows."""
        return False

    @property
    def layout(self) -> LakeLayout:
        """How the files of the lake table lie when it is made anew."""
        return PLAIN

    @property
    def title(self) -> str:
        """What people see of it."""
        return self.source_name

    @property
    def reason(self) -> str:
        """Why it is in `state`, as a sentence."""
        return sentence(self.why, self.state, self.source_name, resync_at=self.resync_at)

    @property
    def is_applied(self) -> bool:
        """What is spooled of the table is committed to the lake."""
        return self.state.is_applied and self.paused is None

    @property
    def is_forgotten(self) -> bool:
        """The table is gone, and no entry refers to it any more."""
        return self.state == State.DETACHED and self.why is None and not self.schemas

    @property
    def schema_version(self) -> int:
        """The newest schema version, 0 before the first."""
        return max(self.schemas, default=0)

    @property
    def latest(self) -> TableSchema | None:
        """The newest shape, None before the first."""
        return self.schemas[self.schema_version] if self.schemas else None

    @property
    def next_version(self) -> int:
        """That of the next shape: no version is used twice."""
        return max((*self.schemas, *self.schema_lsns), default=0) + 1

    @property
    def schema_lsn(self) -> int:
        """Where the newest shape came into force, 0 while there was no other in this generation."""
        return self.schema_lsns.get(self.schema_version, 0)

    @property
    def gap(self) -> Gap | None:
        """The one that is open."""
        return self.gaps[-1] if self.gaps and not self.gaps[-1].closed else None

    def after_lsn(self, seq: int) -> int:
        """Changes in entry `seq` that ended at or before this position are in the rows that were read: those
        of the snapshot, or those that closed a gap.
        """
        return max(self.snapshot.snapshot_lsn if self.snapshot else 0, after_lsn(self.gaps, seq=seq))

    @property
    def publishes(self) -> str:
        """What the publication sends, by `published_kinds`, as the catalog was last looked at."""
        return published_kinds(self.fingerprint)


@dataclass(frozen=True, slots=True)
class PipelineState:
    """Everything that must survive, as of entry `seq` (0: no manifest yet). `opened` is the newest,
    of entry `opened_seq`. Never changed in place.

    `prepared` are the transactions that were prepared and have not ended, by (gid, end LSN of the
    PREPARE). Since `unexamined_since` (ISO 8601 UTC) the newest `examined_lsn` is behind and has not moved.
    """

    seq: int = 0
    epoch: int = 0
    previous_sha256: str = ""
    through_lsn: int = 0
    opened: Opened | None = None
    tables: dict[str, TableState] = field(default_factory=dict)
    prepared: dict[tuple[str, int], Prepared] = field(default_factory=dict)
    opened_seq: int = 0
    examined_lsn: int = 0
    unexamined_since: str = ""

    @property
    def names(self) -> list[str]:
        """The tables that the source has, as schema.table."""
        tables = self.tables.values()
        return [table.source_name for table in tables if table.state != State.DETACHED]


def corrupt(seq: int, what: str) -> ManifestCorrupt:
    """The error of a manifest whose entry `seq` says what cannot be."""
    return ManifestCorrupt(
        f"manifest entry {seq} {what}",
        hint="nothing was acknowledged because of it; restore the manifest, or resync the tables",
    )
