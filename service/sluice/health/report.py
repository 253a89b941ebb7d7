"""Where a pipeline stands, joined from what ingest and applier have stored, the server when it
answers, and the running process when it is asked there.

Invariants: nothing here says that a table is complete further than the applier has stated for the
generation in force; what could not be reached is named, never left out. Works while nothing runs.
Must not write anything anywhere, nor judge: it hands facts to `sluice.health` and shows the
verdict. `status --json`, /status, the terminal and the status page all show this and nothing else.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.control import Refusal
from sluice.contract.entries import Opened, Prepared
from sluice.contract.table_state import State
from sluice.errors import (
    Disposition,
    FormatTooNew,
    ManifestCorrupt,
    ObjectMissing,
    ServiceError,
    SlotLost,
    StoreRefused,
)
from sluice.health.facts import ApplierSeen, Away, Facts, ManifestSeen, RefusalSeen, SourceSeen, grouped
from sluice.health.forecast import SlotForecast
from sluice.health.process_facts import ProcessFacts
from sluice.health.snapshots import Copies, copies
from sluice.health.tables import Ages, TableReport, current, joined
from sluice.health.verdict import Verdict, judge
from sluice.health.wal import Headroom, Stage, WalHistory, headroom, shown, slot_json
from sluice.manifest.apply_records import newest_complete, newest_log
from sluice.manifest.follow import load_state, read_entry
from sluice.manifest.state import PipelineState
from sluice.source.continuity import prove_continuity
from sluice.source.facts import ServerFacts, SlotFacts, foreign_user
from sluice.source.sessions import SourceOptions, open_query
from sluice.source.slot_facts import server_facts, slot_facts
from sluice.store.base import ObjectStore

SCHEMA_VERSION = 1
_SEED_ENTRIES = 64
"""How many manifest entries back the first look at the server's write rate begins: from seconds to
minutes ago.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """One look at a pipeline. Positions are read one after the other, not at one instant. `server`
    and `slot` are None when they were not reached, `process` when no running process was asked.
    `lost` is why the pipeline cannot go on from its slot. A running process shows its last
    report while it can take no other: `unread` then says why, and `judged_at` when that was.
    """

    pipeline: str
    taken_at: datetime
    spool_uri: str
    lake_uri: str
    manifest: PipelineState
    opened_at: datetime | None
    tables: tuple[TableReport, ...]
    applied: AppliedLog | None
    complete: Complete | None
    unapplied_seconds: float
    server: ServerFacts | None
    slot: SlotFacts | None
    history: WalHistory
    headroom: Headroom | None
    pending_entries: int
    written_at: datetime | None = None
    """When the newest manifest entry was written; looked up only while nobody streams."""
    lost: SlotLost | None = None
    source_away: Away | None = None
    application_name: str = ""
    """Under which our sessions are known to the server."""
    gone: str = ""
    """How the slot shows that there was a manifest, where there is none."""
    heard_at: datetime | None = None
    """When the applier wrote its newest record, by our clock."""
    refusals: tuple[RefusalSeen, ...] = ()
    process: ProcessFacts | None = None
    unread: Away | None = None
    judged_at: datetime | None = None

    @property
    def verdict(self) -> Verdict:
        """What is to be said of the pipeline: the only judgement that any surface shows."""
        return judge(self.facts())

    def facts(self) -> Facts:
        """What the verdict is made of."""
        return Facts(
            now=(self.judged_at or self.taken_at).timestamp(),
            read_at=self.taken_at.timestamp(),
            manifest=self._manifest_seen(),
            unread=self.unread,
            source=self._source_seen(),
            source_away=self.source_away,
            process=self.process.seen if self.process is not None else None,
            applier=self.applier,
            flush_lag_seconds=self._flushed_seconds(),
            lake_lag_seconds=self.unapplied_seconds,
            tables=grouped(table.seen for table in self.tables),
            refusals=self.refusals,
        )

    @property
    def applier(self) -> ApplierSeen:
        """The applier's newest record, its times brought to our clock: by how much the two differ
        shows when its record was written.
        """
        applied = self.applied
        if applied is None:
            return ApplierSeen()
        written = datetime.fromisoformat(applied.written_at).timestamp()
        heard = written if self.heard_at is None else self.heard_at.timestamp()

        def ours(text: str) -> float | None:
            return datetime.fromisoformat(text).timestamp() - written + heard if text else None

        return ApplierSeen(
            heard,
            applied.instance,
            ours(applied.succeeded_at),
            self.pending_entries,
            ours(applied.started_at),
            max(0.0, written - heard),
        )

    def _manifest_seen(self) -> ManifestSeen:
        opened, prepared = self.manifest.opened, self.manifest.prepared.values()
        return ManifestSeen(
            opened=opened is not None,
            slot=opened.slot if opened is not None else "",
            opened_at=self.opened_at.timestamp() if self.opened_at else None,
            written_at=self.written_at.timestamp() if self.written_at else None,
            prepared_at=min((one.prepare_time_us / 1e6 for one in prepared), default=None),
        )

    def _source_seen(self) -> SourceSeen | None:
        if self.server is None:
            return None
        slot, room, lost = self.slot, self.headroom, self.lost
        return SourceSeen(
            asked_at=self.taken_at.timestamp(),
            slot_active=None if slot is None else slot.active_pid is not None,
            wal_status=slot.wal_status if slot is not None else "",
            share_left=room.share if room is not None else None,
            seconds_left=room.seconds_left if room is not None else None,
            lost=str(lost) if lost is not None else "",
            lost_hint=lost.hint if lost is not None else "",
            foreign=foreign_user(slot, self.application_name) if self.application_name else "",
            gone=self.gone,
        )

    @property
    def version(self) -> str:
        """Of the Sluice that took this report."""
        return version("sluice-cdc")

    @property
    def complete_lsn(self) -> int:
        """The position through which all tables that are not left out are complete, 0 before the
        first. The applier states boundaries less often than it commits: what all live tables
        have stated by themselves counts as well.
        """
        live = [table.complete_through_lsn for table in self.tables if table.state == State.LIVE]
        return max(self.boundary_lsn, min(live, default=0))

    @property
    def boundary_lsn(self) -> int:
        """The newest position at which the applier has named a Delta version of each table, 0
        before the first.
        """
        return self.complete.lsn if self.complete else 0

    @property
    def copies(self) -> Copies:
        return copies(self.manifest, self.process.copy if self.process else None)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The WAL's way from the server into the lake. `received` is known to a running process
        alone.
        """
        received = self.process.received_lsn if self.process else None
        confirmed = self.slot.confirmed_flush_lsn if self.slot else None
        flushed_s = self._flushed_seconds()
        applied_s = None if not self.complete_lsn else max(self.unapplied_seconds, flushed_s or 0.0)
        return (
            Stage(
                "server",
                self.server.wal_end_lsn if self.server else None,
                0 if self.server else None,
                0.0 if self.server else None,
            ),
            Stage("received", received or None, self.behind_bytes(received), self._seconds(received)),
            Stage(
                "flushed", self.manifest.through_lsn or None, self.behind_bytes(self.manifest.through_lsn), flushed_s
            ),
            Stage(
                "confirmed",
                confirmed,
                self.behind_bytes(confirmed),
                flushed_s if self._has(confirmed) else self._seconds(confirmed),
            ),
            Stage("applied", self.complete_lsn or None, self.behind_bytes(self.complete_lsn), applied_s),
        )

    def _flushed_seconds(self) -> float | None:
        """WAL of others is no lag of ours: through the process's `complete_lsn` nothing is missing."""
        process = self.process
        seconds = self._seconds(max(self.manifest.through_lsn, process.complete_lsn if process else 0))
        if process is None or process.oldest_unflushed_at is None:
            return seconds
        return max(seconds or 0.0, (self.judged_at or self.taken_at).timestamp() - process.oldest_unflushed_at)

    def _has(self, confirmed: int | None) -> bool:
        return confirmed is not None and confirmed >= self.manifest.through_lsn

    def _seconds(self, lsn: int | None) -> float | None:
        return self.history.seconds_behind(lsn, now=self.taken_at.timestamp()) if lsn and self.server else None

    def age_seconds(self, prepared: Prepared) -> float:
        """How long ago `prepared` was, by the source's clock and ours."""
        return max(0.0, self.taken_at.timestamp() - prepared.prepare_time_us / 1e6)

    def behind_bytes(self, lsn: int | None) -> int | None:
        """WAL between `lsn` and the server's write position; never negative, None when the server
        was not reached or there is no position.
        """
        return None if self.server is None or not lsn else max(0, self.server.wal_end_lsn - lsn)

    @property
    def uptime_seconds(self) -> float | None:
        """Since the running process started or, seen from outside, took the pipeline over. None
        while nothing runs.
        """
        source = self._source_seen()
        active = source is not None and source.slot_active and not source.lost and not source.foreign
        began = self.process.started_at if self.process else self.opened_at if active else None
        return None if began is None else max(0.0, (self.taken_at - began).total_seconds())

    def to_json(self) -> dict[str, Any]:
        """The answer of `status --json` and of /status."""
        opened, room, verdict = self.manifest.opened, self.headroom, self.verdict
        return {
            "schema_version": SCHEMA_VERSION,
            "pipeline": self.pipeline,
            "version": self.version,
            "state": verdict.state,
            "headline": verdict.headline,
            "problems": verdict.to_json(),
            "taken_at": self.taken_at.isoformat(),
            "opened_at": self.opened_at.isoformat() if self.opened_at else None,
            "uptime_seconds": self.uptime_seconds,
            "spool_uri": self.spool_uri,
            "lake_uri": self.lake_uri,
            "source": None if self.server is None else self._source_json(self.server),
            "manifest": {
                "seq": self.manifest.seq,
                "epoch": self.manifest.epoch,
                "through_lsn": shown(self.manifest.through_lsn),
                "behind_bytes": self.behind_bytes(self.manifest.through_lsn),
                "slot": opened.slot if opened else None,
                "publication": opened.publication if opened else None,
                "database": opened.database if opened else None,
            },
            "wal": {"stages": [stage.to_json() for stage in self.stages], "headroom": room.to_json() if room else None},
            "apply": {
                "complete_through_lsn": shown(self.complete_lsn),
                "boundary_lsn": shown(self.boundary_lsn),
                "behind_bytes": self.behind_bytes(self.complete_lsn),
                "pending_entries": self.pending_entries,
                "last_record_at": self.applied.written_at if self.applied else None,
                "left_out": self.complete.left_out if self.complete else {},
            },
            "snapshot": self.copies.to_json(),
            "prepared": [self._prepared_json(one) for one in self.manifest.prepared.values()],
            "tables": [table.to_json() for table in self.tables],
            "process": self.process.to_json(now=self.taken_at) if self.process else None,
        }

    def tables_json(self) -> dict[str, Any]:
        """The answer of `tables --json`."""
        verdict = self.verdict
        return {
            "schema_version": SCHEMA_VERSION,
            "state": verdict.state,
            "problems": verdict.to_json(),
            "tables": [table.to_json() for table in self.tables],
        }

    def _source_json(self, server: ServerFacts) -> dict[str, Any]:
        return {
            "server_version": server.server_version,
            "database": server.database,
            "wal_lsn": shown(server.wal_end_lsn),
            "slot": None if self.slot is None else slot_json(server, self.slot),
        }

    def _prepared_json(self, one: Prepared) -> dict[str, Any]:
        return {
            "gid": one.gid,
            "xid": one.xid,
            "prepare_end_lsn": shown(one.end_lsn),
            "prepared_at": datetime.fromtimestamp(one.prepare_time_us / 1e6, UTC).isoformat(),
            "age_seconds": self.age_seconds(one),
            "rows": one.rows,
        }


class Reporter:
    """Takes reports of one pipeline, and remembers what makes the next look cheap and its rates
    true. Not for several threads at once.

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
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._spool_uri = public_uri(spool_uri)
        self._lake_uri = public_uri(lake_uri)
        self._source = source
        self._application_name = source.application_name if source is not None else ""
        self._clock = clock
        self._log = newest_log(store)
        self._complete = newest_complete(store)
        self._ages = Ages(store)
        self._history = WalHistory()
        self._forecast = SlotForecast()
        self._opened: tuple[int, datetime | None] = (0, None)
        self._written: tuple[int, datetime | None] = (0, None)
        self._heard: tuple[int, datetime] | None = None

    def take(self) -> Report:
        """Raises StoreError and ManifestCorrupt; a server that cannot be reached is part of the
        report.
        """
        # The applier's records first: they follow the manifest, so that what is read after them is
        # never behind them.
        applied = self._log.read()
        heard_at = self._heard_at(applied) if applied is not None else None
        complete = self._complete.read()
        state = load_state(self._store)
        known = applied.tables if applied else {}
        here = {table_id: current(table, known.get(table_id)) for table_id, table in state.tables.items()}
        now = self._clock()
        lags = self._ages.lags(state, here, now=now)
        tables = [
            joined(
                table,
                here[table_id],
                path=f"{self._lake_uri}/{keys.lake_path(table.schema_name, table.table_name)}",
                lag_seconds=lags.get(table_id),
            )
            for table_id, table in state.tables.items()
        ]
        behind = [
            state.seq - table.through_seq for table in here.values() if table is not None and table.state == State.LIVE
        ]
        server, slot, lost, away = self._ask_server(state)
        gone = self._gone(state, slot)
        if server is not None:
            self._remember(state, server, now=now)
        return Report(
            pipeline=self._pipeline,
            taken_at=now,
            spool_uri=self._spool_uri,
            lake_uri=self._lake_uri,
            manifest=state,
            opened_at=self._opened_at(state),
            tables=tuple(sorted(tables, key=lambda table: (table.schema, table.table))),
            applied=applied,
            complete=complete,
            unapplied_seconds=max(lags.values(), default=0.0),
            server=server,
            slot=slot,
            history=self._history.copy(),
            headroom=headroom(server, slot, self._forecast),
            pending_entries=max(behind, default=0),
            written_at=self._written_at(state)
            if slot is None or slot.active_pid is None or foreign_user(slot, self._application_name)
            else None,
            lost=lost,
            source_away=away,
            application_name=self._application_name,
            gone=gone,
            heard_at=heard_at,
            refusals=tuple(self._refusals()),
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
            entry = read_entry(self._store, state.seq)
            self._written = (state.seq, datetime.fromisoformat(entry.written_at) if entry is not None else None)
        return self._written[1]

    def _ask_server(
        self, state: PipelineState
    ) -> tuple[ServerFacts | None, SlotFacts | None, SlotLost | None, Away | None]:
        if self._source is None:
            return None, None, None, None
        try:
            with closing(open_query(self._source)) as connection:
                server, slot = server_facts(connection), slot_facts(connection, self._source.slot)
        except ServiceError as error:
            return None, None, None, away(error)
        return server, slot, self._doubt(state, server, slot), None

    def _doubt(self, state: PipelineState, server: ServerFacts, slot: SlotFacts | None) -> SlotLost | None:
        """Why the pipeline cannot go on from this slot. The slot was read after the manifest and
        may rightly be ahead of what was read of it: look again.
        """
        lost = lost_from(state, server, slot)
        if lost is None or not str(lost).startswith("AHEAD"):
            return lost
        again = lost_from(load_state(self._store), server, slot)
        return again if again is not None and str(again).startswith("AHEAD") else None

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
        """When the applier wrote this record, by our clock: when it says, and in no case after it
        was first seen here.
        """
        if self._heard is None or self._heard[0] != applied.number:
            self._heard = (applied.number, min(self._clock(), datetime.fromisoformat(applied.written_at)))
        return self._heard[1]

    def _remember(self, state: PipelineState, server: ServerFacts, *, now: datetime) -> None:
        """The server's position now; at the first look, what the manifest says of earlier ones as
        well.
        """
        if not self._history:
            for seq in sorted({max(1, state.seq - _SEED_ENTRIES), state.seq}) if state.seq else ():
                entry = read_entry(self._store, seq)
                if entry is not None and entry.through_lsn <= server.wal_end_lsn:
                    self._saw(datetime.fromisoformat(entry.written_at).timestamp(), entry.through_lsn)
        self._saw(now.timestamp(), server.wal_end_lsn)

    def _saw(self, at: float, lsn: int) -> None:
        self._history.add(at, lsn)
        self._forecast.note(at, lsn)

    def _opened_at(self, state: PipelineState) -> datetime | None:
        """When the present epoch began: its first entry, found by halving, once per epoch. None
        when that entry is no longer kept.
        """
        if state.epoch and self._opened[0] != state.epoch:
            low, high = 1, state.seq
            while low < high:
                middle = (low + high) // 2
                entry = read_entry(self._store, middle)
                low, high = (low, middle) if entry is not None and entry.epoch >= state.epoch else (middle + 1, high)
            first = read_entry(self._store, low)
            found = first is not None and isinstance(first.body, Opened)
            self._opened = (
                state.epoch,
                datetime.fromisoformat(first.written_at) if first is not None and found else None,
            )
        return self._opened[1]


def public_uri(uri: str) -> str:
    """`uri` without what may be secret in it: user information, query and fragment."""
    parts = urlsplit(uri)
    return (
        urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        if parts.netloc
        else uri.partition("?")[0]
    )


def lost_from(state: PipelineState, server: ServerFacts, slot: SlotFacts | None) -> SlotLost | None:
    """Why a pipeline at `state` cannot go on from `slot`, by the proof that `run` makes before it
    streams; None when it can, or is new.
    """
    if state.opened is None:
        return None
    try:
        # Whether the configuration wants two_phase is not asked here: that is a setting to correct,
        # not a loss.
        prove_continuity(
            state.opened, state.through_lsn, server=server, slot=slot, two_phase=slot.two_phase if slot else False
        )
    except SlotLost as error:
        return error
    return None


def away(error: ServiceError, *, since: float | None = None) -> Away:
    """What could not be asked, for the verdict."""
    return Away.of(error, retryable=error.disposition is Disposition.RETRY, since=since)
