"""A pipeline that exists as records only: what ingest and the applier wrote, without either."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.catalog_names import CatalogNames
from sluice.contract.entries import Changes, Commits, Segment, Table
from sluice.contract.reasons import Reason
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.health.report import Report
from sluice.health.reporter import Reporter
from sluice.health.tables import LakeTables
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.memory import MemoryStore
from tests.support.manifests import opened, put
from tests.support.reasons import because

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(name: str, state: str = "live", **record: Any) -> AppliedTable:
    """What the applier says of the lake table of `public.<name>`."""
    at = (name, "public", name, "x", "mirror", record.pop("generation", 1), State(state))
    return replace(AppliedTable(*at), **record)


def rows(manifest: PipelineState, state: str = "live", **record: Any) -> dict[str, AppliedTable]:
    """The applier's word on every table of `manifest`: all that it has is in the lake."""
    done = {"through_seq": manifest.seq, "complete_through_lsn": manifest.through_lsn, **record}
    return {
        key: row(one.table_name, state, table_id=key, schema_name=one.schema_name, generation=one.generation, **done)
        for key, one in manifest.tables.items()
    }


class RecordedPipeline:
    """A pipeline without a server: a manifest on a memory store, and records as the applier writes them."""

    def __init__(self) -> None:
        self.store = MemoryStore(f"report-{uuid.uuid4().hex}", prefix="shop/")
        self.log = ManifestLog.open(self.store, opened(start_lsn=100), PipelineState(), through_lsn=100)
        self._logs = 0

    def table(
        self, name: str, *, state: str = "live", generation: int = 1, reason: str = "", why: Reason | None = None
    ) -> None:
        schema = TableSchema(name, 1, "public", name, "d", ())
        put(
            self.log,
            Table(name, "public", name, State(state), generation, why or because(reason), lsn=100, schema=schema),
            through_lsn=self.log.state.through_lsn,
        )

    def pause(self, name: str, *, paused: bool) -> None:
        self.log.append(Table(name, "public", name, State.LIVE, 1, lsn=100, paused=paused))

    def changes(self, *names: str, lsn: int, at: datetime) -> None:
        segments = tuple(
            Segment(keys.segment(name, 1, lsn), name, 1, 1, 10, "0" * 64, lsn, lsn, {"i": 1}) for name in names
        )
        time_us = int(at.timestamp() * 1e6)
        put(self.log, Changes(segments, Commits([lsn], [time_us], [7])), through_lsn=lsn)

    def applied(self, name: str, *, reason: str = "", **record: Any) -> None:
        self._logs += 1
        record = {**record, "why": because(reason)}
        self.said(AppliedLog(self._logs, "a", NOW.isoformat(), {name: row(name, **record)}))

    def said(self, log: AppliedLog) -> None:
        self.store.create(keys.apply_log(log.number), log.encode())

    def reporter(self, *, clock: Callable[[], datetime] = lambda: NOW, **more: Any) -> Reporter:
        return Reporter(pipeline="shop", store=self.store, lake_uri="file:///lake", source=None, clock=clock, **more)

    def report(self, *, names: CatalogNames | None = None) -> Report:
        return self.reporter(lake_tables=LakeTables(names=names)).take()
