"""Standby status updates, and how a server that is stopping is recognised by its keepalives.

Invariant: no status message reports more as flushed than was received. Pure: no clock, no socket;
times are handed in. (PostgreSQL: Streaming Replication Protocol.)
"""

import struct
from dataclasses import dataclass

from sluice import lsn
from sluice.errors import ProtocolViolation
from sluice.protocol.constants import POSTGRES_EPOCH_US, STANDBY_STATUS_UPDATE

_STATUS = struct.Struct(">BQQQqB")

STOP_REQUESTS = 3
"""Reply requests at one position, each answered, before the server counts as stopping. A server that
is not stopping asks once.
"""
STOP_BOUND_S = 5.0
"""How long a stopping server waits for us without progress before we let it go."""


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """Received (the server's `write`) and durable (its `flush` and `apply`). No defaults: each must
    be meant.
    """

    received_lsn: int
    flushed_lsn: int
    reply_requested: bool

    def __post_init__(self) -> None:
        if not 0 <= self.flushed_lsn <= self.received_lsn <= lsn.MAX:
            raise ProtocolViolation(
                f"refusing to report {lsn.show(self.flushed_lsn)} as flushed: only "
                f"{lsn.show(self.received_lsn)} was received"
            )

    def encode(self, now_us: int) -> bytes:
        """The message as CopyData; `now_us` is microseconds since 1970."""
        return _STATUS.pack(
            STANDBY_STATUS_UPDATE,
            self.received_lsn,
            self.flushed_lsn,
            self.flushed_lsn,
            now_us - POSTGRES_EPOCH_US,
            self.reply_requested,
        )


class ShutdownWatch:
    """Recognises a server in fast shutdown: it keeps asking for a reply at one position and ends
    only when we report that position as flushed.

    Left alone it would wait for ever, so it is `stopping` first (flush everything now) and
    `overdue` when STOP_BOUND_S brought no progress.
    """

    def __init__(self) -> None:
        self._lsn = -1
        self._requests = 0
        self._since: float | None = None

    @property
    def stopping(self) -> bool:
        return self._since is not None

    def asked(self, end_lsn: int, *, flushed_lsn: int, now: float) -> None:
        """The server asked for a reply at `end_lsn`."""
        self._requests = self._requests + 1 if end_lsn == self._lsn else 1
        self._lsn = end_lsn
        if self._requests >= STOP_REQUESTS and flushed_lsn < end_lsn:
            self.mark_stopping(now)

    def mark_stopping(self, now: float) -> None:
        """The server is stopping: `asked` calls this, and so does a caller that learnt it otherwise."""
        if self._since is None:
            self._since = now

    def busy(self) -> None:
        """The server sent changes: it has work to do and is not waiting for us."""
        self._requests = 0
        self._since = None

    def progressed(self, now: float) -> None:
        """We acknowledged something more."""
        if self._since is not None:
            self._since = now

    def overdue(self, now: float) -> bool:
        return self._since is not None and now - self._since > STOP_BOUND_S
