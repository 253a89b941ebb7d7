"""Initial rows wait while the source has more to do than the limits allow.

Invariant: a limit that is set is kept or the wait is said, with its reason: what cannot be measured counts
as above its limit. Nobody waits with a table locked, and a snapshot, which holds VACUUM back, is not held
by a wait for longer than `hold_s`.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from sluice.errors import SourceUnavailable
from sluice.ingest.status import SnapshotCounts, SnapshotWait
from sluice.source.lazy_session import LazySession
from sluice.source.server_load import SourceLoad, Standby, source_load
from sluice.source.sessions import SourceOptions

LOOK_SECONDS = 1.0
"""Between two looks while the source is loaded. Otherwise each chunk costs one, which is nothing beside it."""
CALM = 0.8
"""A limit that was passed is kept again at this share of it, so that reading does not flutter about it."""
_GRANT = "cannot be seen: GRANT pg_read_all_stats to the pipeline's role, and keep track_activities on"


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Above one of these no further chunk is read; None is no limit. After `hold_s` of waiting the snapshot is
    released, and what is left is read from another one later.
    """

    stream_lag: int | None = None
    replica_lag_s: float | None = None
    active_sessions: int | None = None
    hold_s: float = 600.0

    @property
    def any(self) -> bool:
        return (self.stream_lag, self.replica_lag_s, self.active_sessions) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Measure:
    """One signal beside its limit; `value` is None where it cannot be seen, and `words` then say why."""

    signal: str
    value: float | None
    limit: float
    words: str


class StandbyLag:
    """For how many seconds at least the slowest standby is behind. For one thread."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[int, float]] = {}
        """By process: a position that the standby had not replayed at that time."""

    def slowest(self, load: SourceLoad, *, now: float) -> tuple[float, Standby | None]:
        """The server's own figure stays as it was while a standby replays nothing: so the time since a
        position was there that the standby lacks counts as well. `now` is monotonic.
        """
        behind = [one for one in load.standbys or () if one.replay_lsn < load.wal_end_lsn]
        marks = {one.pid: self._marks.get(one.pid, (0, now)) for one in behind}
        self._marks = {
            one.pid: marks[one.pid] if one.replay_lsn < marks[one.pid][0] else (load.wal_end_lsn, now) for one in behind
        }
        lags = [(max(one.lag_s, now - self._marks[one.pid][1]), one) for one in behind]
        return max(lags, key=lambda lag: lag[0], default=(0.0, None))


def measures(load: SourceLoad, limits: LoadLimits, lag: StandbyLag, *, now: float) -> Iterator[Measure]:
    """What `limits` ask for. `now` is monotonic."""
    if limits.stream_lag is not None:
        value, limit = load.stream_lag, limits.stream_lag
        words = "of the stream cannot be seen: the pipeline's slot is not there"
        if value is not None:
            words = f"of the stream, {_mebibytes(value)} of WAL, is above {_mebibytes(limit)}"
        yield Measure("stream_lag", value, limit, f"the lag {words}")
    if limits.replica_lag_s is not None:
        if load.standbys is None:
            yield Measure("replica_lag", None, limits.replica_lag_s, f"the lag of standbys {_GRANT}")
        else:
            seconds, standby = lag.slowest(load, now=now)
            name = standby.name if standby else ""
            words = f"the lag of standby {name}, {seconds:.0f} s, is above {limits.replica_lag_s:g} s"
            yield Measure("replica_lag", seconds, limits.replica_lag_s, words)
    if limits.active_sessions is not None:
        active, most = load.active_sessions, limits.active_sessions
        words = f"what sessions do {_GRANT}" if active is None else f"{active} active sessions are above {most}"
        yield Measure("active_sessions", active, most, words)


def above(measured: list[Measure], before: frozenset[str]) -> list[Measure]:
    """Those past their limits; one that was so `before` until it is well below."""
    return [
        one for one in measured if one.value is None or one.value > one.limit * (CALM if one.signal in before else 1.0)
    ]


def _mebibytes(value: int) -> str:
    return f"{value / (1 << 20):,.1f} MiB"


class LoadGate:
    """For the threads that read snapshots. Tells `counts` why they wait."""

    def __init__(
        self, options: SourceOptions, limits: LoadLimits, *, counts: SnapshotCounts, stop: threading.Event
    ) -> None:
        self._options = options
        self._limits = limits
        self._counts = counts
        self._stop = stop
        self._session = LazySession(options)
        self._lag = StandbyLag()
        self._lock = threading.Lock()
        self._above: frozenset[str] = frozenset()
        self._since = 0.0
        self._logger = structlog.get_logger("snapshot")

    def limit(self, limits: LoadLimits) -> None:
        """From the next look on these hold, for those who wait already as well. From any thread; waits for
        nobody.
        """
        self._limits = limits

    def rest(self) -> None:
        """Nobody reads, and so nobody waits: the next wait begins anew. Not while `wait` runs."""
        self._above, self._counts.load_wait = frozenset(), None

    def close(self) -> None:
        """Ends the session at the source; the next question opens another."""
        self._session.close()

    def is_open(self, *, holding: bool = False) -> bool:
        """Whether the source may be read now; `holding` says whether a snapshot is held meanwhile. Raises
        SourceError.
        """
        with self._lock:
            limits = self._limits
            if not limits.any and not self._above:
                return True
            load = self._read_load() if limits.any else None
            self._judge(list(measures(load, limits, self._lag, now=time.monotonic())) if load else [], holding=holding)
            return not self._above

    def wait(self) -> bool:
        """Returns True when the source may be read, and False when no more is to be read from the snapshot
        that is held: it was waited for too long, or a stop was asked for. Raises SourceError.
        """
        while not self.is_open(holding=True):
            if time.monotonic() - self._since >= self._limits.hold_s:
                return False
            if self._stop.wait(LOOK_SECONDS):
                return False
        return True

    def _read_load(self) -> SourceLoad:
        try:
            return self._session.ask(lambda conn: source_load(conn, self._options))
        except SourceUnavailable:  # an idle session may have been ended; the chunks under way were not
            return self._session.ask(lambda conn: source_load(conn, self._options))

    def _judge(self, measured: list[Measure], *, holding: bool) -> None:
        now, found = time.monotonic(), above(measured, self._above)
        if found and not self._above:
            self._since = now
            self._logger.warning("snapshots wait", reason=found[0].words)
        elif self._above and not found:
            self._logger.info("snapshots continue", waited_s=round(now - self._since, 1))
        self._above = frozenset(one.signal for one in found)
        waited = self._counts.load_wait
        began_at = waited.began_at if waited is not None else time.time()
        self._counts.load_wait = (
            SnapshotWait(tuple(one.signal for one in found), found[0].words, began_at, holding) if found else None
        )
