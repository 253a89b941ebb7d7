"""Takes reports: reads what ingest and applier have stored, and asks the server.

Works while nothing runs. Must not write anything anywhere, nor judge.
"""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from urllib.parse import urlsplit, urlunsplit

from sluice.contract import keys
from sluice.contract.applied import AppliedLog
from sluice.contract.control import Refusal
from sluice.contract.entries import Progress
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectMissing, SlotLost, StoreRefused
from sluice.health.applied_records import AppliedRecords
from sluice.health.backlog import Appended, Backlog, Pending
from sluice.health.continuity import lost_between, lost_from
from sluice.health.facts import Away, RefusalSeen
from sluice.health.report import Report
from sluice.health.source_history import SourceHistory
from sluice.health.source_watch import SourceAnswer, SourceWatch
from sluice.health.tables import LakeTables, TableReport, current, joined
from sluice.health.verified import Comparisons
from sluice.manifest.reader import load_state, read_entry
from sluice.manifest.targets import TargetsOf
from sluice.manifest.values import PipelineState
from sluice.source.facts import ServerFacts, SlotFacts, foreign_user
from sluice.source.sessions import SourceOptions
from sluice.store.base import ObjectStore

SELDOM_SECONDS = 300.0
"""Between two looks at what people leave behind, comparisons and refused requests, where requests are spared."""
_SEED_ENTRIES = 64
"""How many manifest entries back the memory of the server's position begins: from seconds to
minutes ago.
"""


class Reporter:
    """Takes reports of one pipeline, and remembers what makes the next look cheap. Not for several
    threads at once.

    `store` is the pipeline's own prefix in the spool. Without `source` the server is not asked.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        store: ObjectStore,
        lake_uri: str,
        source: SourceOptions | None,
        spool_uri: str = "",
        lake_tables: LakeTables | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._spool_uri = public_uri(spool_uri)
        self._lake_uri = public_uri(lake_uri)
        self.source = SourceWatch(source) if source is not None else None
        """Who asks the server; shared with whoever else needs its answers."""
        self._application_name = source.application_name if source is not None else ""
        self._clock = clock
        self._lake_tables = lake_tables or LakeTables()
        self._records = AppliedRecords(store)
        self._backlog = Backlog(store)
        self._known = PipelineState()
        self._manifest: Callable[[], PipelineState | None] = lambda: None
        self._spares = False
        self._seldom_at = float("-inf")
        self._refused: tuple[RefusalSeen, ...] = ()
        """What the last look found, for one that spares requests."""
        self._changed_seq = 0
        """The newest entry that was more than an advance, as of the last look."""
        self._waits = False
        """Whether the last look found a table that lacks it."""
        self._compared = Comparisons()
        self._preceded = False
        self._opened: tuple[int, datetime | None] = (0, None)
        self._written: tuple[int, datetime | None] = (0, None)
        self._heard: tuple[str, datetime] | None = None

    def spare(self, manifest: Callable[[], PipelineState | None], entry: Appended) -> None:
        """From now on a look asks the store for little: inside the one process that appends to the manifest, whose
        state `manifest` gives once it is known, and of which `entry` has the newest entries.
        """
        self._manifest, self._spares = manifest, True
        self._backlog.appended = entry

    def configure(self, targets_of: TargetsOf) -> None:
        """Tables that come from now on have these lake tables. From any thread."""
        self._lake_tables.configure(targets_of)

    def take(self, *, asked_within_seconds: float = 0.0) -> Report:
        """Raises StoreError and ManifestCorrupt; a server that cannot be reached is part of the
        report. What the server said may be `asked_within_seconds` old.
        """
        # The applier's records first: they follow the manifest, so that what is read after them is
        # never behind them.
        self._read_records()
        applied, complete = self._records.applied, self._records.completed
        heard_at = self._heard_at(applied) if applied is not None else None
        state = self._manifest() or load_state(self._store, known=self._known)
        self._changed_seq, self._known = self._last_change(state), state
        now = self._clock()
        lake = self._lake_tables.of(state, applied)
        pending = self._backlog.read(lake, applied)
        self._read_seldom()
        compared = self._compared
        tables, pending_entries = self._tables(lake, applied, pending, compared, now=now)
        self._waits = pending_entries > state.seq - self._changed_seq
        answer, lost = self._ask_server(state, within_seconds=asked_within_seconds)
        facts = answer.facts if answer is not None else None
        server, slot = (facts.server, facts.slot) if facts is not None else (None, None)
        gone = self._gone(state, slot)
        if server is not None:
            self._precede(state, server)
        return Report(
            pipeline=self._pipeline,
            taken_at=now,
            spool_uri=self._spool_uri,
            lake_uri=self._lake_uri,
            manifest=state,
            lake=lake,
            opened_at=self._opened_at(state),
            tables=tables,
            applied=applied,
            complete=complete,
            pending=pending,
            server=server,
            slot=slot,
            history=self.source.history if self.source is not None else SourceHistory(),
            asked_at=datetime.fromtimestamp(answer.at, UTC) if answer is not None else None,
            pending_entries=pending_entries,
            written_at=self._written_at(state)
            if slot is None or slot.active_pid is None or foreign_user(slot, self._application_name)
            else None,
            lost=lost,
            source_away=Away.of(answer.error) if answer is not None and answer.error is not None else None,
            application_name=self._application_name,
            gone=gone,
            heard_at=heard_at,
            refusals=self._refused,
            comparisons=tuple(compared.seen(lake.tables)),
            comparisons_unread=compared.unread,
        )

    def _read_records(self) -> None:
        state = self._manifest()
        quiet = state is not None and self._last_change(state) == self._changed_seq and not self._waits
        self._records.read(quiet=quiet, now=self._clock())

    def _last_change(self, state: PipelineState) -> int:
        """The newest entry that may be more than an advance; nobody waits for the others to be applied."""
        for seq in range(state.seq, self._known.seq, -1):
            entry = self._backlog.appended(seq)
            if entry is None or not isinstance(entry.body, Progress):
                return seq
        return self._changed_seq

    def _read_seldom(self) -> None:
        if self._spares and time.monotonic() - self._seldom_at < SELDOM_SECONDS:
            return
        self._compared = Comparisons.read(self._store, known=self._compared)
        self._refused = tuple(self._refusals())
        self._seldom_at = time.monotonic()

    def _tables(
        self,
        state: PipelineState,
        applied: AppliedLog | None,
        pending: Pending,
        compared: Comparisons,
        *,
        now: datetime,
    ) -> tuple[tuple[TableReport, ...], int]:
        """Every table in the order of names, and the entries that the one furthest behind lacks."""
        known = applied.tables if applied else {}
        here = {table_id: current(table, known.get(table_id)) for table_id, table in state.tables.items()}
        tables = [
            joined(
                table,
                here[table_id],
                path=f"{self._lake_uri}/{table.path}",
                lag_seconds=pending.lag_seconds(table_id, now=now.timestamp()),
                verified=compared.of(table),
                verification_late=compared.is_late(table, now=now.timestamp()),
                catalog=self._lake_tables.catalog(table, here[table_id]),
            )
            for table_id, table in state.tables.items()
            if not table.is_forgotten
        ]
        behind = [
            state.seq - table.through_seq for table in here.values() if table is not None and table.state == "live"
        ]
        return tuple(sorted(tables, key=lambda table: (table.schema, table.table, table.target))), max(
            behind, default=0
        )

    def _refusals(self) -> Iterator[RefusalSeen]:
        """Requests that ingest could not carry out. One that is gone again, or that nobody can
        read, is left to ingest.
        """
        for key in filter(keys.is_control, self._store.list(keys.REFUSED)):
            try:
                refusal = Refusal.decode(self._store.get(key))
            except (ObjectMissing, ManifestCorrupt, FormatTooNew, StoreRefused):
                continue
            yield RefusalSeen(
                refusal.table, refusal.reason, refusal.hint, datetime.fromisoformat(refusal.refused_at).timestamp()
            )

    def _written_at(self, state: PipelineState) -> datetime | None:
        if state.seq and self._written[0] != state.seq:
            entry = self._backlog.appended(state.seq) or read_entry(self._store, state.seq)
            self._written = (state.seq, datetime.fromisoformat(entry.written_at) if entry is not None else None)
        return self._written[1]

    def _ask_server(
        self, state: PipelineState, *, within_seconds: float
    ) -> tuple[SourceAnswer | None, SlotLost | None]:
        """What the server says, and why the pipeline cannot go on from the slot. A loss is only
        believed of an answer between two looks at the manifest.
        """
        if self.source is None:
            return None, None
        answer = self.source.ask(within_seconds=within_seconds)
        if answer.facts is None or lost_from(state, answer.facts.server, answer.facts.slot) is None:
            return answer, None
        answer = self.source.ask()
        if answer.facts is None:
            return answer, None
        return answer, lost_between(
            state, load_state(self._store, known=self._known), answer.facts.server, answer.facts.slot
        )

    def _gone(self, state: PipelineState, slot: SlotFacts | None) -> str:
        """How the slot shows that there was a manifest, empty where there is one or may not have
        been. Nobody has used a slot that `setup` made: while it is being made it has no
        confirmed position, and ingest writes its first entry before it streams.
        """
        if state.opened is not None or slot is None or slot.confirmed_flush_lsn is None:
            return ""
        in_use = slot.active_pid is not None and not foreign_user(slot, self._application_name)
        if not (slot.decoded or in_use) or load_state(self._store).opened is not None:
            return ""
        used = "is in use" if in_use else "has served a pipeline"
        return f"slot {slot.name} {used}, and the spool has no manifest of it"

    def _heard_at(self, applied: AppliedLog) -> datetime:
        """When the applier last said that it lives, by our clock: when it says, and in no case after
        that was first seen here. Where our clock was set back since, its age begins anew: else it would
        live for as long as the clock was set back.
        """
        if self._heard is None or self._heard[0] != applied.written_at:
            self._heard = (applied.written_at, datetime.fromisoformat(applied.written_at))
        heard_at = min(self._clock(), self._heard[1])
        self._heard = (applied.written_at, heard_at)
        return heard_at

    def _precede(self, state: PipelineState, server: ServerFacts) -> None:
        """At the first look: what the manifest says of earlier positions of the server."""
        if self._preceded or self.source is None:
            return
        seqs = sorted({max(1, state.seq - _SEED_ENTRIES), state.seq}) if state.seq else []
        entries = [entry for seq in seqs if (entry := read_entry(self._store, seq)) is not None]
        self.source.precede(
            (datetime.fromisoformat(entry.written_at).timestamp(), entry.through_lsn)
            for entry in entries
            if entry.through_lsn <= server.wal_end_lsn
        )
        self._preceded = True

    def _opened_at(self, state: PipelineState) -> datetime | None:
        """When the present epoch began: its first entry, which is read once per epoch."""
        if state.epoch and self._opened[0] != state.epoch:
            first = read_entry(self._store, state.opened_seq)
            self._opened = (state.epoch, datetime.fromisoformat(first.written_at) if first is not None else None)
        return self._opened[1]


def public_uri(uri: str) -> str:
    """`uri` without what may be secret in it: user information, query and fragment."""
    parts = urlsplit(uri)
    return (
        urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        if parts.netloc
        else uri.partition("?")[0]
    )
