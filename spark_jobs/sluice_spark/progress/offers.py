"""The boundaries that the lake offers to whoever reads it: published there, kept for the retention, then removed.

Owns: a boundary that is offered can be read. What expires is removed before anything that it needs may go, and
`held_since` says since when versions and files must stay. The newest one never expires. LSNs of one manifest
never fall from one boundary to the next, whatever a start of the applier reads again. A number that is taken is
taken: what is there is offered, whoever made it, and the next number follows. For the applier's loop.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import structlog

from sluice import faults, lsn
from sluice.contract import boundary
from sluice.contract.applied import Complete, time_of, time_text
from sluice.contract.boundary import BoundaryTable, LakeBoundary
from sluice.errors import ObjectExists, ObjectMissing
from sluice.store.base import ObjectStore
from sluice_spark.lake.foreign_commits import ABSENT, is_another

REMOVED_AT_ONCE = 20
"""In one turn of the loop. Publishing adds one."""
MARGIN_SECONDS, MARGIN_SHARE = 300.0, 0.1
"""At most, and of the retention: how long things stay beyond what boundaries need, for clocks of stores and machines
differ.
"""

_log = structlog.get_logger("sluice.apply")


class _Offer(NamedTuple):
    """What is known of an offered boundary. Times in unix seconds."""

    published_at: float
    current_at: float


_GONE = _Offer(-math.inf, math.inf)


def _of(read: LakeBoundary) -> _Offer:
    return _Offer(time_of(read.published_at), time_of(read.current_at))


class Offers:
    """The boundaries of `pipeline` in the lake, which is `files`. `manifest` names the one that is followed, and
    `entry_sha256` gives the hash of an entry of it (`EntryHashes`). `retention_seconds` is how long a boundary stays
    behind the next one. `require_owner` raises WriterFenced when this process was replaced.
    """

    def __init__(
        self,
        files: ObjectStore,
        *,
        pipeline: str,
        manifest: Callable[[], str],
        retention_seconds: float,
        require_owner: Callable[[], None],
        entry_sha256: Callable[[int], str] = lambda _seq: "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._pipeline = pipeline
        self._manifest = manifest
        self._retention_seconds = retention_seconds
        self._require_owner = require_owner
        self._entry_sha256 = entry_sha256
        self._clock = clock
        self._margin_seconds = min(MARGIN_SECONDS, MARGIN_SHARE * retention_seconds)
        listed = (boundary.number_of(key) for key in files.list(boundary.folder(pipeline)))
        self._numbers = deque(sorted(number for number in listed if number))
        self._known: dict[int, _Offer] = {}
        self._newest = self._read(self._numbers[-1]) if self._numbers else None
        if self._newest is not None:
            self._known[self._numbers[-1]] = _of(self._newest)
        self.newest_lsn = 0
        """Of the newest boundary of the manifest that is followed; 0 before this process has published one."""
        self.held_since = math.inf
        """No version that is offered was replaced before (unix seconds)."""
        self._least: deque[tuple[int, float]] = deque()
        """Of the boundaries before the newest one that this process published and that are offered, those with an
        earlier `current_at` than all that follow: numbers and times, both ascending. Where the clock was set back, the
        first is not the oldest. Not of the newest one, whose time may still grow.
        """
        self._hold()

    @property
    def number(self) -> int:
        """Of the newest boundary, 0 while there is none."""
        return self._numbers[-1] if self._numbers else 0

    @property
    def are_of_another_manifest(self) -> bool:
        """Whether the newest boundary is of a manifest before this one, or of entries that were lost when an older copy
        of it was restored. Its position may mean other things.
        """
        newest = self._newest
        if newest is None or newest.manifest != self._manifest():
            return newest is not None
        return is_another(self._entry_sha256(newest.seq), newest.sha256)

    def publish(self, complete: Complete, *, current_at: float) -> int:
        """Offers `complete`, none of whose tables was beyond its version at `current_at` (unix seconds). Returns the
        number that it got, its own or a later one that is new; 0 when it is not offered, because the newest one of this
        manifest is further. Raises WriterFenced when this process was replaced, StoreError.
        """
        while True:
            offered = self._next(complete, current_at=current_at)
            if offered is None:
                return 0
            faults.point("apply.boundary.before")
            try:
                self._files.create(boundary.key(self._pipeline, offered.number), offered.encode())
            except ObjectExists:
                # An attempt of ours, whose answer was lost, or the last one of an applier that was replaced.
                self._require_owner()
                self._follow_with(self._read(offered.number))
                continue
            faults.point("apply.boundary.after")
            self._follow_with(offered)
            self.newest_lsn = complete.lsn
            return offered.number

    def _next(self, complete: Complete, *, current_at: float) -> LakeBoundary | None:
        """What would be offered of `complete`. None when the newest one of this manifest is further."""
        now, manifest = self._clock(), self._manifest()
        newest = None if self.are_of_another_manifest else self._newest
        if newest is not None and lsn.parse(newest.lsn) > complete.lsn:
            self.newest_lsn = lsn.parse(newest.lsn)
            return None
        number = max(complete.number, self.number + 1)
        return LakeBoundary(
            number,
            self._pipeline,
            manifest,
            lsn.show(complete.lsn),
            complete.seq,
            _not_before(complete.time_us, newest.time if newest else ""),
            time_text(current_at),
            time_text(now),
            self._retention_seconds,
            tuple(
                BoundaryTable(
                    *(one.schema_name, one.table_name, one.path, one.version),
                    marker=f"sluice/{self._pipeline}/{one.marker}/{manifest}",
                    marker_version=one.marker_seq,
                )
                for one in complete.tables
            ),
            complete.left_out,
            sha256=self._hash_of(complete.seq),
            reached=_not_before(complete.reached_us, newest.reached if newest else ""),
            first=newest.first if newest else number,
        )

    def still_current(self, at: float) -> None:
        """All versions of the newest boundary were those of their tables at `at` (unix seconds), too."""
        if self._numbers:
            offer = self._offer(self._numbers[-1])
            self._known[self._numbers[-1]] = offer._replace(current_at=max(offer.current_at, at))
            self._hold()

    def _follow_with(self, newest: LakeBoundary) -> None:
        """`newest` is there, behind all others."""
        if self._numbers:
            before = self._numbers[-1]
            current_at = self._offer(before).current_at
            while self._least and self._least[-1][1] >= current_at:
                self._least.pop()
            self._least.append((before, current_at))
        self._numbers.append(newest.number)
        self._known[newest.number] = _of(newest)
        self._newest = newest
        self._hold()

    def expire(self) -> None:
        """Removes what has been offered long enough; the newest one stays. Raises StoreError."""
        for _ in range(REMOVED_AT_ONCE):
            while len(self._numbers) > 2 and self._offer(self._numbers[1]) == _GONE:
                del self._numbers[1]
            if len(self._numbers) < 2:
                return
            if self._clock() < self._offer(self._numbers[1]).published_at + self._retention_seconds:
                return
            number = self._numbers[0]
            self._files.delete(boundary.key(self._pipeline, number))
            self._numbers.popleft()
            self._known.pop(number, None)
            self._hold()

    def _hold(self) -> None:
        """Only once an offer is gone may go what it alone needed."""
        while len(self._numbers) > 1 and self._offer(self._numbers[0]) == _GONE:
            self._known.pop(self._numbers.popleft(), None)
        while self._least and self._least[0][0] < self._numbers[0]:
            self._least.popleft()
        ends = (self._numbers[0], self._numbers[-1]) if self._numbers else ()
        times = [self._offer(number).current_at for number in ends]
        times += [at for _, at in islice(self._least, 1)]
        self.held_since = min(times, default=math.inf) - self._margin_seconds

    def _offer(self, number: int) -> _Offer:
        if number not in self._known:
            try:
                self._known[number] = _of(self._read(number))
            except ObjectMissing:
                # Somebody removed it: nobody can find it any more.
                self._known[number] = _GONE
        return self._known[number]

    def _hash_of(self, seq: int) -> str:
        found = self._entry_sha256(seq)
        return "" if found == ABSENT else found

    def _read(self, number: int) -> LakeBoundary:
        return LakeBoundary.decode(self._files.get(boundary.key(self._pipeline, number)))


def _not_before(time_us: int, newest: str) -> str:
    """`time_us`, but no time before the one that the newest boundary of the manifest has."""
    return time_text(max(time_us / 1e6, time_of(newest) if newest else 0.0))
