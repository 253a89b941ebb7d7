"""What the applier has stored about its work: its newest report and boundary, and that it lives."""

import time
from datetime import datetime

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete, time_of
from sluice.contract.lease import Holder, Sign
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectMissing
from sluice.manifest.newest_record import newest_complete, newest_log
from sluice.store.base import ObjectStore

QUIET_SECONDS = 60.0
"""Between two looks while nothing is appended and nothing waits, where requests are spared."""
LATE_SECONDS = 105.0
"""An applier that was not heard for so long is looked for each time: one that lives has renewed its lease since."""


class AppliedRecords:
    """As of the last `read`. For one thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._log, self._complete = newest_log(store), newest_complete(store)
        self._read_at = float("-inf")
        self.applied: AppliedLog | None = None
        """The newest report, as old as the last sign of life of who wrote it."""
        self.completed: Complete | None = None

    def read(self, *, quiet: bool, now: datetime) -> None:
        """Looks for newer ones; not each time, and for little, while it is `quiet`: then whoever renews the lease says
        which are the newest. Raises StoreError, ManifestCorrupt, FormatTooNew.
        """
        late = self.applied is not None and now.timestamp() - time_of(self.applied.written_at) > LATE_SECONDS
        if quiet and not late and time.monotonic() - self._read_at < QUIET_SECONDS:
            return
        self._read_at = time.monotonic()
        holder, known = self._holder(), self.applied
        ours = quiet and holder is not None and known is not None and holder.instance == known.instance
        sign = holder.sign if holder is not None else Sign()
        if not ours or not sign.log_number:
            known = self._log.read()
        elif known is None or sign.log_number > known.number:
            # Only then: the newest report may have come after the lease was renewed.
            known = self._log.told(keys.apply_log(sign.log_number))
        if not ours or not sign.complete_number:
            self.completed = self._complete.read()
        elif self.completed is None or sign.complete_number > self.completed.number:
            self.completed = self._complete.told(keys.apply_complete(sign.complete_number))
        if known is not None and holder is not None and holder.instance == known.instance:
            known = known.as_of(round_at=sign.round_at, succeeded_at=sign.succeeded_at)
        self.applied = known

    def _holder(self) -> Holder | None:
        """None also for a record that nobody can read: the next applier says so."""
        try:
            return Holder.decode(self._store.get(keys.APPLY_LEASE))
        except (ObjectMissing, ManifestCorrupt, FormatTooNew):
            return None
