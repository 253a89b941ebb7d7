"""The reports that the applier writes below `apply/`: how far each table is, and at which LSN a Delta
version of every table is known.

Owns: a report is never ahead of the lake, because it is written after the commits that it
describes. Report numbers only grow, and old reports are deleted. A number that is taken, by an attempt whose answer
was lost or by an applier that was replaced, is left to it. The truth about a table is its
Delta marker. People, `status` and the next start read these objects; the next start takes the
progress of idle tables from them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import structlog

from sluice import faults, lsn
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete, SpoolUpkeep, time_text
from sluice.contract.lease import Sign
from sluice.contract.table_state import State
from sluice.errors import ApplyError, ObjectExists, ObjectMissing, TablesStopped
from sluice.manifest.newest_record import newest_complete, newest_log
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice.store.calls import create_named
from sluice_spark.lake.opening import Lake
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.offers import Offers

_log = structlog.get_logger("sluice.apply")

_UPKEPT = SpoolUpkeep()
_NONE: Mapping[str, str] = MappingProxyType({})
_UNREAD = PipelineState()
KEPT = 20
"""Reports that stay for a reader who is late."""


class Reports:
    """Writes and reads the two kinds of report. `require_owner` raises WriterFenced when this process was replaced."""

    def __init__(self, store: ObjectStore, *, instance: str, offers: Offers, require_owner: Callable[[], None]) -> None:
        self._store = store
        self._offers = offers
        self._require_owner = require_owner
        self._instance = instance
        self._started_at = time_text(time.time())
        self._log_number = newest_log(store).number()
        self._complete_number = max(newest_complete(store).number(), offers.number)
        self._last_complete: Complete | None = None
        self._completed_at = float("-inf")
        self.versions: dict[str, int] = {}
        """Of each table by id, the Delta version that the last log names: an earlier one need not be examined again."""

    @staticmethod
    def of(options: ApplyOptions, store: ObjectStore, lake: Lake, *, instance: str) -> "Reports":
        """Those of one applier process. Raises StoreError, ManifestCorrupt, FormatTooNew."""
        offers = Offers(
            lake.files,
            pipeline=options.pipeline,
            manifest=lambda: lake.manifest,
            retention_seconds=options.boundary_retention_seconds,
            require_owner=lake.require_owner,
            entry_sha256=lake.entries.of,
        )
        return Reports(store, instance=instance, offers=offers, require_owner=lake.require_owner)

    def last_log(self) -> AppliedLog | None:
        """The newest log, if there is one."""
        try:
            return newest_log(self._store).read()
        except ObjectMissing:
            return None

    def log(
        self,
        tables: Mapping[str, AppliedTable],
        *,
        succeeded_at: float = 0.0,
        configuration_refused: str = "",
        upkeep: SpoolUpkeep = _UPKEPT,
        left: Mapping[str, str] = _NONE,
        manifest: PipelineState = _UNREAD,
    ) -> None:
        """Writes the next log. `succeeded_at`, unix seconds, is when the applier last had success;
        0 if it had none. `upkeep` is how the spool is kept short, `left` are lake tables that are no
        target any more, and `manifest` is the state through which entries were read.
        """
        faults.point("apply.log.before")
        succeeded = time_text(succeeded_at) if succeeded_at else ""
        log = AppliedLog(
            self._log_number,
            self._instance,
            time_text(time.time()),
            dict(tables),
            succeeded,
            self._started_at,
            configuration_refused,
            upkeep,
            dict(left),
            manifest.seq,
            manifest.previous_sha256,
        )
        while not self._is_written(replace(log, number=self._log_number + 1)):
            self._require_owner()
        self.versions = {table_id: table.delta_version for table_id, table in tables.items()}

    def again(self, log: AppliedLog, manifest: PipelineState) -> None:
        """Writes what `log` says of tables and of the spool as the next log, of `manifest`."""
        self.log(log.tables, upkeep=log.upkeep, left=log.left, manifest=manifest)

    def _is_written(self, log: AppliedLog) -> bool:
        """Writes `log` unless its number is taken, which is the last one from then on."""
        try:
            self._store.create(keys.apply_log(log.number), log.encode())
            faults.point("apply.log.after")
            written = True
        except ObjectExists:
            written = False
        self._log_number = log.number
        self._forget(keys.apply_log(log.number - KEPT), log.number)
        return written

    def sign(self, *, round_at: float, succeeded_at: float) -> Sign:
        """What the lease says of a loop that went round and had success then (unix seconds). From any thread."""
        return Sign(round_at, succeeded_at, self._log_number, self._complete_number)

    @property
    def readable_lsn(self) -> int:
        """The position of the newest boundary of the lake, 0 while there is none of this manifest."""
        return self._offers.newest_lsn

    @property
    def held_since(self) -> float:
        """No version that a reader is offered was replaced before (unix seconds)."""
        return self._offers.held_since

    def expire(self) -> None:
        """Ends offers that were long enough. Raises StoreError."""
        self._offers.expire()

    def completed_within(self, seconds: float) -> bool:
        """Whether every version that this process has stated last was the newest of its table so recently."""
        return time.monotonic() - self._completed_at < seconds

    def begin(self, *, seq: int) -> None:
        """Before anything is applied of a manifest that begins, or of which an older copy was restored: the lake offers
        a boundary without a table, so that nobody takes a position of the log before for one of this log. `seq` is the
        last entry that there is.
        """
        if not seq or not self._offers.are_of_another_manifest:
            return
        now = time.time()
        nothing = Complete(self._complete_number + 1, 0, seq, "", {}, time_us=int(now * 1e6))
        self._complete_number = max(self._complete_number, self._offers.publish(nothing, current_at=now))

    def complete(self, complete: Complete, current_at: float) -> None:
        """Writes the next completion, unless it says what the last one said, or less. `complete` comes
        without number and time; its versions were all the newest of their tables at `current_at`, or later.
        The lake offers it first: whoever learns of a position finds it there.
        """
        at = time.time() - (time.monotonic() - current_at)
        if self._last_complete is not None and replace(self._last_complete, number=0, written_at="") == complete:
            self._completed_at = max(self._completed_at, current_at)
            self._offers.still_current(at)
            return
        numbered = replace(complete, number=self._complete_number + 1, written_at=time_text(time.time()))
        number = self._offers.publish(numbered, current_at=at)
        if not number:
            return
        self._complete_number, numbered = number, replace(numbered, number=number)
        faults.point("apply.complete.before")
        # The lake has given the number to us alone.
        create_named(self._store, keys.apply_complete(number), numbered.encode())
        faults.point("apply.complete.after")
        _log.debug("a boundary is complete", lsn=lsn.show(complete.lsn), seq=complete.seq)
        self._last_complete, self._completed_at = numbered, current_at
        self._forget(keys.apply_complete(self._complete_number - KEPT), self._complete_number)

    def _forget(self, key: str, number: int) -> None:
        if number > KEPT:
            self._store.delete(key)


def require_none_quarantined(ledger: Ledger) -> None:
    """Raises ApplyError for tables that did not get to the end. One that ingest has set aside does not count: no change
    of it waits in the spool.
    """
    behind = [row for key, row in ledger.report().items() if ledger.tables[key].quarantined and ledger.may_apply(key)]
    if behind:
        names = ", ".join(row.title for row in behind)
        raise ApplyError(f"{len(behind)} of {len(ledger.tables)} tables are quarantined: {names}; {behind[0].reason}")


def require_none_stopped(ledger: Ledger) -> None:
    """Raises TablesStopped for tables whose lake table stays unequal to the source until somebody acts, whoever set
    them aside.
    """
    stopped = [row for row in ledger.report().values() if row.state in (State.STALE, State.QUARANTINED, State.GAP)]
    if stopped:
        named = "; ".join(f"{row.title} is {row.state}: {row.reason}" for row in stopped)
        raise TablesStopped(
            f"{len(stopped)} of {len(ledger.tables)} tables are not equal to the source: {named}",
            hint="everything else is applied; `sluice tables` says what to do about each",
        )
