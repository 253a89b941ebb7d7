"""Where a pipeline stands, joined from what ingest and applier have stored, the server when it
answers, and the running process when it is asked there.

Invariants: nothing here says that a table is complete further than the applier has stated for the
generation in force; what could not be reached is named, never left out. Must not judge: it hands
facts to `sluice.health.verdict` and shows the verdict. `status --json`, /status, the terminal and
the status page all show this and nothing else.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.entries import Prepared
from sluice.errors import SlotLost
from sluice.health.backlog import Pending
from sluice.health.facts import ApplierSeen, Away, ComparisonSeen, Facts, ManifestSeen, RefusalSeen, SourceSeen, grouped
from sluice.health.process_facts import ProcessFacts
from sluice.health.snapshots import Snapshots, snapshots
from sluice.health.source_history import SourceHistory
from sluice.health.tables import TableReport
from sluice.health.verdict import Verdict, judge
from sluice.health.wal import Headroom, Positions, Stage, headroom, shown, slot_json, stages
from sluice.manifest.values import PipelineState
from sluice.source.facts import ServerFacts, SlotFacts, foreign_user
from sluice.telemetry.waits import Wait

SCHEMA_VERSION = 1


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
    lake: PipelineState
    opened_at: datetime | None
    tables: tuple[TableReport, ...]
    applied: AppliedLog | None
    complete: Complete | None
    pending: Pending
    server: ServerFacts | None
    slot: SlotFacts | None
    history: SourceHistory
    pending_entries: int
    asked_at: datetime | None = None
    """When the server was asked; None for `taken_at`."""
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
    comparisons: tuple[ComparisonSeen, ...] = ()
    comparisons_unread: str = ""
    """Why it could not be read what comparisons found."""
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
            now=self._now,
            read_at=self.taken_at.timestamp(),
            manifest=self._manifest_seen(),
            unread=self.unread,
            source=self._source_seen(),
            source_away=self.source_away,
            process=self.process.seen if self.process is not None else None,
            applier=self.applier,
            flush_lag_seconds=self._flush_lag_seconds(),
            lake_lag_seconds=self._unapplied_seconds(),
            tables=grouped(table.seen for table in self.tables),
            displaced=grouped(seen for table in self.tables if (seen := table.path_seen) is not None),
            maintenance=grouped(seen for table in self.tables if (seen := table.maintenance_seen) is not None),
            unnamed=grouped(seen for table in self.tables if (seen := table.catalog_seen) is not None),
            not_sent=grouped(seen for table in self.tables if (seen := table.not_sent_seen) is not None),
            refusals=self.refusals,
            comparisons=self.comparisons,
            comparisons_unread=self.comparisons_unread,
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
            applied.configuration_refused,
            applied.upkeep.failing,
            ours(applied.upkeep.since),
        )

    def _manifest_seen(self) -> ManifestSeen:
        opened, prepared = self.manifest.opened, self.manifest.prepared.values()
        since = self.manifest.unexamined_since
        return ManifestSeen(
            opened=opened is not None,
            slot=opened.slot if opened is not None else "",
            opened_at=self.opened_at.timestamp() if self.opened_at else None,
            written_at=self.written_at.timestamp() if self.written_at else None,
            unexamined_since=datetime.fromisoformat(since).timestamp() if since else None,
            prepared_at=min((one.prepare_time_us / 1e6 for one in prepared), default=None),
        )

    def _source_seen(self) -> SourceSeen | None:
        if self.server is None:
            return None
        slot, headroom, lost = self.slot, self.headroom, self.lost
        return SourceSeen(
            asked_at=(self.asked_at or self.taken_at).timestamp(),
            slot_active=None if slot is None else slot.active_pid is not None,
            wal_status=slot.wal_status if slot is not None else "",
            share_left=headroom.share if headroom is not None else None,
            unlimited_bytes=headroom.retained_bytes if headroom is not None and headroom.safe_bytes is None else None,
            seconds_left=headroom.seconds_left if headroom is not None else None,
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
        live = [table.complete_through_lsn for table in self.tables if table.state == "live"]
        return max(self.boundary_lsn, min(live, default=0))

    @property
    def boundary_lsn(self) -> int:
        """The newest position at which the applier has named a Delta version of each table, 0
        before the first.
        """
        return self.complete.lsn if self.complete else 0

    @property
    def snapshots(self) -> Snapshots:
        return snapshots(self.manifest, self.process.snapshot if self.process else None)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What is waited for now: by the running process, and by tables until they are read again."""
        again = [
            Wait(
                table.title,
                "Sluice reads it again by itself",
                datetime.fromisoformat(table.since).timestamp() if table.since else None,
                datetime.fromisoformat(table.resync_at).timestamp(),
            )
            for table in self.tables
            if table.resync_at
        ]
        return (*(self.process.waits if self.process else ()), *again)

    @property
    def headroom(self) -> Headroom | None:
        return headroom(self.server, self.slot, self.history)

    @property
    def positions(self) -> Positions:
        """What the stages are made of."""
        process, unapplied_us = self.process, self.pending.oldest_live_us
        return Positions(
            history=self.history,
            server_lsn=self.server.wal_end_lsn if self.server else None,
            flushed_lsn=self.manifest.through_lsn,
            confirmed_lsn=self.slot.confirmed_flush_lsn if self.slot else None,
            applied_lsn=self.complete_lsn,
            received_lsn=process.received_lsn if process else None,
            complete_lsn=process.complete_lsn if process else 0,
            oldest_unflushed_at=process.oldest_unflushed_at if process else None,
            has_live=bool(self.pending.live),
            oldest_unapplied_at=None if unapplied_us is None else unapplied_us / 1e6,
        )

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The WAL's way from the server into the lake. `received` is known to a running process
        alone.
        """
        return stages(self.positions, now=self._now)

    @property
    def _now(self) -> float:
        return (self.judged_at or self.taken_at).timestamp()

    def _flush_lag_seconds(self) -> float | None:
        """A server that is not reached is a problem of its own, and no proof of lag."""
        at = self.positions
        if self.server is not None:
            return at.flush_seconds(now=self._now)
        return None if at.oldest_unflushed_at is None else max(0.0, self._now - at.oldest_unflushed_at)

    def _unapplied_seconds(self) -> float:
        """As of the look: while nothing can be read, the applier may have gone on."""
        oldest_us = self.pending.oldest_live_us
        return 0.0 if oldest_us is None else max(0.0, self.taken_at.timestamp() - oldest_us / 1e6)

    def age_seconds(self, prepared: Prepared) -> float:
        """How long ago `prepared` was, by the source's clock and ours."""
        return max(0.0, self.taken_at.timestamp() - prepared.prepare_time_us / 1e6)

    def behind_bytes(self, lsn: int | None) -> int | None:
        """WAL between `lsn` and the server's write position; None when one of the two is not there."""
        return self.positions.behind_bytes(lsn)

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
        opened, headroom, verdict = self.manifest.opened, self.headroom, self.verdict
        heard = self.applier.record_at
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
                "examined_lsn": shown(self.manifest.examined_lsn),
                "behind_bytes": self.behind_bytes(self.manifest.through_lsn),
                "slot": opened.slot if opened else None,
                "publication": opened.publication if opened else None,
                "database": opened.database if opened else None,
            },
            "wal": {
                "stages": [stage.to_json() for stage in self.stages],
                "headroom": headroom.to_json() if headroom else None,
            },
            "apply": {
                "complete_through_lsn": shown(self.complete_lsn),
                "boundary_lsn": shown(self.boundary_lsn),
                "behind_bytes": self.behind_bytes(self.complete_lsn),
                "pending_entries": self.pending_entries,
                "last_record_at": None if heard is None else datetime.fromtimestamp(heard, UTC).isoformat(),
                "left_out": self.complete.left_out if self.complete else {},
                "left": self.applied.left if self.applied else {},
            },
            "snapshot": self.snapshots.to_json(),
            "waits": [self._wait_json(one) for one in self.waits],
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

    def _wait_json(self, one: Wait) -> dict[str, Any]:
        return {
            "what": one.what,
            "reason": one.reason,
            "for_seconds": None if one.since is None else max(0.0, self._now - one.since),
            "retry_in_seconds": None if one.retry_at is None else max(0.0, one.retry_at - self._now),
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
