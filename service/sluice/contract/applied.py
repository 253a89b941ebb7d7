"""What the applier writes below `apply/`, and ingest and the command line read.

One writer: the applier. `apply/log/<n>.json` is an AppliedLog (tables it applied or had to stop,
since the last one), `apply/complete/<n>.json` a Complete. Numbers are dense from 1 and create-only;
the newest of each is enough to know the present.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from sluice.contract import codec, keys
from sluice.contract.lake_layout import PLAIN, LakeLayout
from sluice.contract.reasons import Reason, sentence
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt
from sluice.printable import counted

FORMAT_VERSION = 1
WAYS = DIRECT, DISTRIBUTED, MERGE = ("direct", "distributed", "merge")
"""How the changes of a window are committed: by the driver without a Spark job, by executors, or by a
statement of Spark.
"""
CHECKPOINT = "checkpoint"
"""The task that writes checkpoints and cleans logs, also where it fails."""
LAYOUT = "layout"
"""Where `Maintenance.failing` says why the lake table does not lie as it is configured."""
CATALOG = "catalog"
"""Where `Maintenance.failing` says since when and why the name of the lake table in the catalog is not as it should be,
and `Maintenance.runs` when it came to be.
"""
MAINTENANCE_TASKS = ("join", "purge", CHECKPOINT, "vacuum")
"""What is done to a lake table besides windows. None of it changes a row."""
_WHAT = "an object below apply/"


@dataclass(frozen=True, slots=True)
class MaintenanceRun:
    """What the last run of one maintenance task ended with: when, how long it took, and the data files
    and bytes that left the table (or the store: vacuum) and came to it. -1: not said.
    """

    at: str
    seconds: float
    files_removed: int = 0
    bytes_removed: int = 0
    files_added: int = 0
    bytes_added: int = 0


@dataclass(frozen=True, slots=True)
class Maintenance:
    """How a lake table has been maintained. `tidied_version` is the Delta version at which its files were
    last counted and put in order, `vacuumed_version` the one at which files that no version needs were last
    removed, at `vacuumed_at` (empty: never seen; -1 and a time: seen since then). `settled`: nothing was left
    to remove later. `runs` has the last run of each of MAINTENANCE_TASKS, `failing` by turn why the
    last attempt failed.
    """

    tidied_version: int = -1
    vacuumed_version: int = -1
    vacuumed_at: str = ""
    settled: bool = False
    runs: dict[str, MaintenanceRun] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)

    def without(self, turn: str) -> "Maintenance":
        """The same, as if nothing had been tried for `turn`."""
        runs = {name: run for name, run in self.runs.items() if name != turn}
        return replace(self, runs=runs, failing={name: why for name, why in self.failing.items() if name != turn})

    def failing_at(self, turn: str, why: str, *, at: float) -> "Maintenance":
        """The same with `why` the last attempt at `turn` failed, at unix seconds `at`; the text says since when."""
        before, _, what = self.failing.get(turn, "").partition(": ")
        since = before if what == why else f"since {time_text(at)[:16]}Z"
        return replace(self, failing={**self.failing, turn: f"{since}: {why}"})

    @property
    def failure(self) -> str:
        """What fails, in a line; empty when nothing does."""
        return "; ".join(f"{turn}: {what}" for turn, what in self.failing.items())

    @property
    def summary(self) -> str:
        """The newest run in a line, empty when there is none."""
        if not self.runs:
            return ""
        task, run = max(self.runs.items(), key=lambda item: item[1].at)
        files = f"{counted(run.files_removed, 'file')} removed" if run.files_removed >= 0 else "files not counted"
        added = f", {run.files_added:,} added" if run.files_added else ""
        return f"{task} at {run.at[:16]}Z, {run.seconds:.1f} s: {files}{added}"


@dataclass(frozen=True, slots=True)
class AppliedTable:
    """How far one table's lake table has come.

    `state` is `live`, `snapshot`, `paused`, `stale` or `quarantined` (its windows fail again and again)
    as the applier sees it; `why` explains the last two, and any when `failing`: the last attempt at a
    window failed, and it is tried again. `through_seq` is the last manifest entry taken,
    `committed_seq` the marker of Delta version `delta_version` (0: none), through which every
    version was looked at, `complete_through_lsn` the LSN through which the lake table is complete
    (0: not yet). `commit_time_us` is the source's commit time of the newest change applied.
    `rows_applied` counts change rows taken in this generation, `rows` nothing but the last known
    number of rows (-1: not counted).

    `way` is how the newest changes were committed, one of WAYS (empty: no changes yet), and
    `way_reason` says why not directly. `files` is the number of data files in the lake table (-1: not
    counted).

    `track`, `soft_delete_retention` and `layout` are the settings of its target that may change while the
    lake table stays. What the lake table lacks of the layout is in `maintenance`.
    """

    table_id: str
    schema_name: str
    table_name: str
    path: str
    mode: str
    generation: int
    state: State
    why: Reason | None = None
    through_seq: int = 0
    complete_through_lsn: int = 0
    commit_time_us: int = 0
    delta_version: int = -1
    rows_applied: int = 0
    rows: int = -1
    schema_version: int = 0
    committed_seq: int = 0
    failing: bool = False
    way: str = ""
    way_reason: str = ""
    files: int = -1
    maintenance: Maintenance = field(default_factory=Maintenance)
    target: str = ""
    """The name of the lake table, empty for that of its source table."""
    track: tuple[str, ...] = ()
    soft_delete_retention: float | None = None
    layout: LakeLayout = PLAIN

    @property
    def title(self) -> str:
        """What people see of it."""
        return keys.target_title(self.schema_name, self.table_name, self.target)

    @property
    def reason(self) -> str:
        """Why, as a sentence."""
        return sentence(self.why, self.state, f"{self.schema_name}.{self.table_name}")


@dataclass(frozen=True, slots=True)
class SpoolUpkeep:
    """Why archiving entries or pruning the spool fails, and since when (ISO 8601); empty while it does not."""

    failing: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class AppliedLog:
    """The applier's own state after a cycle: every lake table it knows, by `keys.target_key`.

    `succeeded_at` is when it last committed something or found nothing left to do, empty if it has
    not yet. `started_at` is when this instance began. Times are by the applier's clock.
    """

    number: int
    instance: str
    written_at: str
    tables: dict[str, AppliedTable] = field(default_factory=dict)
    succeeded_at: str = ""
    started_at: str = ""
    configuration_refused: str = ""
    """Why the configuration file as it is now is not in force; empty when it is."""
    upkeep: SpoolUpkeep = SpoolUpkeep()
    left: dict[str, str] = field(default_factory=dict)
    """Lake tables that no target of the configuration asks for any more, by title, with their paths. They stay as
    they are, and nothing refers to them.
    """
    seq: int = 0
    sha256: str = ""
    """The newest manifest entry that had been read, and the hash of its bytes. A manifest without it is another one
    than the report speaks of.
    """

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    def as_of(self, *, round_at: float, succeeded_at: float) -> "AppliedLog":
        """As it would be written anew when the loop of this instance went round last, if that was later (unix
        seconds, 0 for never): nothing changed since.
        """
        if not round_at or round_at <= time_of(self.written_at):
            return self
        succeeded = max(succeeded_at, time_of(self.succeeded_at) if self.succeeded_at else 0.0)
        said = time_text(succeeded) if succeeded else ""
        return replace(self, written_at=time_text(round_at), succeeded_at=said)

    @staticmethod
    def decode(data: bytes) -> "AppliedLog":
        """Raises ManifestCorrupt or FormatTooNew."""
        log = codec.decode_versioned(AppliedLog, data, version=FORMAT_VERSION, what=_WHAT)
        maintained = [table.maintenance for table in log.tables.values()]
        times = [log.succeeded_at, log.started_at, log.upkeep.since, *(one.vacuumed_at for one in maintained)]
        times += [run.at for one in maintained for run in one.runs.values()]
        _check_times(log.written_at, *(at for at in times if at != ""))
        return log


@dataclass(frozen=True, slots=True)
class CompletedTable:
    """What tells a lake table at its version from any other one: its names at the source, the second
    one with that of its target if it has one (`orders/orders_copy`), and `marker`, the middle of
    its transaction identifier in Delta, which has the version `marker_seq` there.
    """

    schema_name: str
    table_name: str
    path: str
    version: int
    marker: str
    marker_seq: int


@dataclass(frozen=True, slots=True)
class Complete:
    """All tables in `versions` are complete through `lsn`: read each at its Delta version and the
    lake is at one transaction boundary.

    `paths` says where each of them is below the lake's address; one that an earlier version wrote does not.
    `left_out` names the tables that are stale, snapshot or quarantined, with their state.
    Names are `schema.table`, and `schema.table/target` for a lake table with a name of its own; a part with a dot, a
    slash or a double quote is quoted as in SQL. `tables` has the same tables in full. `time_us` is when the last
    transaction up to `lsn` was committed, at the latest, and `reached_us` when the last one that the stream brought
    was: no transaction that was committed earlier is missing.
    """

    number: int
    lsn: int
    seq: int
    written_at: str
    versions: dict[str, int]
    left_out: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    tables: tuple[CompletedTable, ...] = ()
    time_us: int = 0
    reached_us: int = 0

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "Complete":
        """Raises ManifestCorrupt or FormatTooNew."""
        complete = codec.decode_versioned(Complete, data, version=FORMAT_VERSION, what=_WHAT)
        _check_times(complete.written_at)
        return complete


def time_text(at: float) -> str:
    """A time (unix seconds) as these records have it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def time_of(text: str) -> float:
    """The time (unix seconds) of a `time_text`."""
    return datetime.fromisoformat(text).timestamp()


def _check_times(*times: str) -> None:
    """Readers calculate with these, so each must name one instant. Raises ManifestCorrupt."""
    for text in times:
        try:
            at = datetime.fromisoformat(text)
        except ValueError as error:
            raise ManifestCorrupt(f"{_WHAT} has a time that cannot be read") from error
        if at.tzinfo is None:
            raise ManifestCorrupt(f"{_WHAT} has a time without its zone")
