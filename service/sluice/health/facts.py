"""What was seen of a pipeline, as plain values: the only thing that a verdict is made of.

Invariant: what was not seen is None, never a guess. Times are unix seconds of the machine that
looks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.contract.table_state import State
from sluice.errors import ErrorSeen, ServiceError, may_pass

_NAMED = 3
"""Tables of a group that are named; of more there is a count."""


@dataclass(frozen=True, slots=True)
class Away:
    """Something that could not be asked or read, and why. `retryable` when the same question may be
    answered later.
    """

    error: str
    message: str
    hint: str
    retryable: bool
    since: float | None = None

    @staticmethod
    def of(error: ServiceError, *, since: float | None = None) -> "Away":
        return Away(type(error).__name__, str(error), error.hint, may_pass(error), since)


@dataclass(frozen=True, slots=True)
class ManifestSeen:
    """The manifest as far as health depends on it. `opened` is False for a pipeline that has
    received nothing yet.
    """

    opened: bool
    slot: str = ""
    opened_at: float | None = None
    written_at: float | None = None
    """When the newest entry was written, where that was looked up."""
    unexamined_since: float | None = None
    """Since when no look at the catalog has caught up with what is published; None when one has."""
    prepared_at: float | None = None
    """When the oldest prepared transaction that has not ended was prepared."""


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """One answer of the server. `slot_active` is None without a slot. `foreign` says who uses the
    slot when that is certainly not our pipeline. `lost` is why the manifest cannot go on from
    the slot, with `lost_hint`. `unlimited_bytes` is the WAL that it keeps where the server sets
    no limit. `gone` is how the slot shows that there was a manifest, where there is none.
    """

    asked_at: float
    slot_active: bool | None = None
    wal_status: str = ""
    share_left: float | None = None
    unlimited_bytes: int | None = None
    seconds_left: float | None = None
    lost: str = ""
    lost_hint: str = ""
    foreign: str = ""
    gone: str = ""


@dataclass(frozen=True, slots=True)
class ChildSeen:
    """The applier that `up` supervises. `instance_prefix` is how the names of its instances begin.
    `started_at` belongs to the child that runs.
    """

    running: bool
    restarts: int
    instance_prefix: str = ""
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """The running ingest, asked from inside. `streaming_since` is when it last asked the server to
    stream; `stuck` has a sentence for each stage that does not move. `snapshots_wait` is why snapshots wait
    for the source, if they do, and `snapshot_is_held` whether one holds VACUUM back meanwhile.
    """

    state: str
    connected: bool
    streaming_since: float | None = None
    stuck: tuple[str, ...] = ()
    errors: tuple[ErrorSeen, ...] = ()
    applier: ChildSeen | None = None
    configuration_refused: str = ""
    configuration_refused_at: float | None = None
    snapshots_wait: str = ""
    snapshots_wait_since: float | None = None
    snapshot_is_held: bool = False

    @property
    def streaming(self) -> bool:
        return self.state == "streaming" and self.connected


@dataclass(frozen=True, slots=True)
class ApplierSeen:
    """The applier's newest record; `record_at` is None when there never was one. `pending` counts
    entries that the lake lacks. Times are by our clock, which no clock of the applier's can keep
    fresh; its own is `ahead_seconds` ahead of ours. `started_at` is when that instance began.
    """

    record_at: float | None = None
    instance: str = ""
    succeeded_at: float | None = None
    pending: int = 0
    started_at: float | None = None
    ahead_seconds: float = 0.0
    configuration_refused: str = ""
    upkeep_failing: str = ""
    upkeep_failing_since: float | None = None


@dataclass(frozen=True, slots=True)
class RefusalSeen:
    """A request that ingest could not carry out."""

    table: str
    reason: str
    hint: str
    refused_at: float


@dataclass(frozen=True, slots=True)
class ComparisonSeen:
    """A table of which a comparison at `at` found so many `differences` between source and lake; or, without
    any, one that was last found equal then, or could be since, and is to be by `late_at`. `reason` is why the
    newest comparison was none.
    """

    table: str
    differences: int
    at: float
    late_at: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TableSeen:
    """One table, ingest's and the applier's side joined. `failing` when its snapshot or its windows
    fail for `reason`, and are tried again.
    """

    name: str
    state: State
    reason: str = ""
    since: float | None = None
    failing: bool = False


@dataclass(frozen=True, slots=True)
class TableGroup:
    """Tables that share a state and a reason: a thousand must not bury the slot. `since` is the
    earliest known.
    """

    state: State
    reason: str
    names: str
    count: int
    since: float | None
    failing: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """One look. `manifest` is None when it was never read; `unread` says why it could not be read
    now. `source` is None when the server was not asked, or not reached, with the reason in
    `source_away`. `process` is None when no running process was asked. `read_at` is when the
    stored facts were read: a record that was fresh then says nothing bad of the applier, however
    long nothing could be read since. `comparisons_unread` is why it could not be read what comparisons
    found; `comparisons` are then those that were last read.
    """

    now: float
    read_at: float | None = None
    manifest: ManifestSeen | None = None
    unread: Away | None = None
    source: SourceSeen | None = None
    source_away: Away | None = None
    process: ProcessSeen | None = None
    applier: ApplierSeen = ApplierSeen()
    flush_lag_seconds: float | None = None
    lake_lag_seconds: float | None = None
    tables: tuple[TableGroup, ...] = ()
    maintenance: tuple[TableGroup, ...] = ()
    unnamed: tuple[TableGroup, ...] = ()
    not_sent: tuple[TableGroup, ...] = ()
    displaced: tuple[TableGroup, ...] = ()
    refusals: tuple[RefusalSeen, ...] = ()
    comparisons: tuple[ComparisonSeen, ...] = ()
    comparisons_unread: str = ""


def named(names: Sequence[str]) -> str:
    """The first few of `names`, and how many there are more."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def grouped(tables: Iterable[TableSeen]) -> tuple[TableGroup, ...]:
    """`tables` by state, reason and whether they fail, in the order in which these first occur."""
    groups: dict[tuple[State, str, bool], list[TableSeen]] = {}
    for table in tables:
        groups.setdefault((table.state, table.reason, table.failing), []).append(table)
    return tuple(_group(*key, found) for key, found in groups.items())


def _group(state: State, reason: str, failing: bool, found: list[TableSeen]) -> TableGroup:  # noqa: FBT001 - a part of the group's key
    known = [table.since for table in found if table.since is not None]
    return TableGroup(
        state,
        reason,
        named([table.name for table in found]),
        len(found),
        min(known, default=None),
        failing,
    )
